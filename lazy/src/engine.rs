//! The eager engine: what runs single recorded ops at once (tier 0, call nodes).
use crate::{FrameId, Sig};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// An error that came to light on the executor, after the op had been recorded: it is raised at a later sync.
#[derive(Debug)]
pub struct Fault {
    pub kind: EngineErrorKind,
    /// The recorded op, or a phrase such as `a compiled segment`.
    pub op: String,
    /// Where the user called the op.
    pub frame: FrameId,
    /// For user errors PyTorch's own words.
    pub message: String,
    /// Sequence number of the segment it happened in.
    pub sequence: u64,
    /// Sequence number reached when it was raised; [`UNRAISED`] before.
    raised_at: AtomicU64,
}

const UNRAISED: u64 = u64::MAX;

impl Fault {
    pub fn new(kind: EngineErrorKind, op: impl Into<String>, frame: FrameId, message: String, sequence: u64) -> Fault {
        Fault { kind, op: op.into(), frame, message, sequence, raised_at: AtomicU64::new(UNRAISED) }
    }

    /// Has somebody outside seen it?
    pub fn is_raised(&self) -> bool {
        self.raised_at.load(Ordering::Acquire) != UNRAISED
    }

    /// Notes that it is being raised; `sequence` is that of the last segment closed by now.
    pub fn raise(&self, sequence: u64) {
        let _ = self.raised_at.compare_exchange(UNRAISED, sequence, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Was segment `sequence` closed when nobody had seen the fault? What it computes from values that the fault left
    /// as they were is void.
    pub fn voids(&self, sequence: u64) -> bool {
        sequence <= self.raised_at.load(Ordering::Acquire)
    }
}

/// Runs single ops at once on host-addressable memory.
pub trait EagerEngine: Send + Sync {
    fn run(&self, call: &EagerCall<'_>, outputs: &mut dyn EagerOutputs) -> Result<(), EngineError>;
}
