//! The eager engine: what runs single recorded ops at once (tier 0, call nodes).
use crate::Sig;

/// A host-addressable block of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    pub ptr: *mut u8,
    pub len: usize,
}

/// One op to run.
#[derive(Debug)]
pub struct EagerCall<'a> {
    pub sig: &'a Sig,
    /// Memory of the record's storages, in order.
    pub storages: &'a [Bytes],
    pub data: &'a [u64],
}

/// Where results go: fresh outputs in order of the signature.
pub trait EagerOutputs {
    /// Memory of `nbytes` for fresh output `index`, to be filled by the engine.
    fn allocate(&mut self, index: usize, nbytes: usize) -> Result<*mut u8, EngineError>;
    /// Takes over memory that already holds the output in the predicted layout; `drop` gives it back.
    fn adopt(&mut self, index: usize, ptr: *mut u8, nbytes: usize, drop: Box<dyn FnOnce() + Send + Sync>);
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineErrorKind {
    /// The user's: PyTorch's own message.
    User,
    /// PyTorch's IndexError.
    Index,
    OutOfMemory,
    Unsupported,
    /// A bug of rsx.
    Internal,
}

/// An op that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    pub kind: EngineErrorKind,
    pub message: String,
}

/// Runs single ops at once on host-addressable memory.
pub trait EagerEngine: Send + Sync {
    fn run(&self, call: &EagerCall<'_>, outputs: &mut dyn EagerOutputs) -> Result<(), EngineError>;
}
