//! What a session needs of a device: memory, and programs made from graphs.
use crate::key::Identity;
use rsx_devices::Buffer;
use rsx_lazy::EngineErrorKind;
use rsx_lazy::lower::GraphPiece;
use std::sync::Arc;

/// The device below a session. Called from the user's threads, the executor and compile threads at once.
pub trait Backend: Send + Sync {
    /// Compiles one piece. May take long; may be called on several threads.
    fn compile(&self, piece: &GraphPiece) -> Result<Arc<dyn Runnable>, CompileError>;

    /// A program from what [`Runnable::to_bytes`] gave, perhaps in another process with an equal identity. Errors say
    /// what is wrong with the bytes.
    fn restore(&self, bytes: &[u8]) -> Result<Arc<dyn Runnable>, String>;

    /// Everything besides the trace that decides what code comes out. Part of every key. The front end fills its own
    /// field in.
    fn identity(&self) -> Identity;

    /// Memory of at least `bytes` bytes, contents unspecified.
    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;

    /// Counts `bytes` that an eager engine allocated for the device itself until what it returns is dropped.
    fn claim(&self, _bytes: usize) -> Result<Claim, OutOfMemory> {
        Ok(Box::new(()))
    }

    /// Bound of what the device may hold, bytes; none: the machine's.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Gives cached memory back to the system.
    fn release_cached(&self);

    fn memory(&self) -> MemoryStats;

    /// Starts a new peak at the present use.
    fn reset_peak(&self);
}

/// Memory counted as the device's while it is kept.
pub type Claim = Box<dyn std::any::Any + Send + Sync>;

/// A compiled piece, ready to run any number of times. Runs on the executor's thread only.
pub trait Runnable: Send + Sync {
    /// The input whose memory result `result` is written into, if the donation was taken up.
    fn alias(&self, result: usize) -> Option<usize>;

    /// Runs to the end. `inputs` and `results` in the order of the graph's tensor parameters and results; a result with
    /// an alias is that input's own buffer. `scalars`: f64 or i64 bits, in the order of scalar parameters.
    fn run(&self, inputs: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), RunError>;

    /// What one run does.
    fn cost(&self) -> RunCost;

    /// No machine code was generated for it: its kernels are those of other sizes.
    fn is_planned(&self) -> bool {
        false
    }

    /// Numbers of inputs, scalars and results.
    fn arity(&self) -> (usize, usize, usize);

    /// The program for [`Backend::restore`]; none if it cannot be stored. Equal programs give equal bytes.
    fn to_bytes(&self) -> Option<Vec<u8>> {
        None
    }
}

/// Work of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCost {
    /// Kernels and library calls launched.
    pub kernels: u64,
    /// Bytes read and written by them.
    pub bytes_moved: u64,
}

/// A piece that could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    pub message: String,
    /// Number of the recorded op at fault, where known.
    pub node: Option<u32>,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// It could not start: nothing was written.
    #[error("launch failed: {0}")]
    Launch(String),
    /// It failed on the way: results hold garbage.
    #[error("{message}")]
    Failed {
        kind: EngineErrorKind,
        message: String,
        /// No input's memory has been written: the ops can still be run one by one, which finds the one at fault and
        /// saves what does not depend on it. A device that can tell (a bad index, before the first donated input is
        /// written) should.
        intact: bool,
        /// Number of the recorded op at fault, where known.
        node: Option<u32>,
    },
}

/// Memory that could not be had, with the device's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OutOfMemory {
    /// Bytes wanted.
    pub bytes: usize,
    pub message: String,
}

/// Counters of device memory. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Held by live buffers.
    pub live: u64,
    /// Greatest `live` since the start or the last reset.
    pub peak: u64,
    /// Held from the system: live and cached.
    pub reserved: u64,
    /// Number of allocations that reached the system.
    pub system_allocations: u64,
    /// Number of buffers handed out.
    pub allocations: u64,
    /// Held by packed copies of arguments that programs only read, kept from run to run; not part of `live`.
    pub packed: u64,
    /// Number of operands that a kernel found packed.
    pub prepack_hits: u64,
}
