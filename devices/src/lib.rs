//! Devices of rsx: memory, executors and code generation. See ARCHITECTURE.md.
pub mod buffer;
pub mod cpu;
mod error;
mod kept;
pub mod memory;
pub mod null;
pub mod store;

pub use buffer::{Buffer, Memory, OutOfRange};
pub use error::DeviceError;
pub use kept::Keep;

use memory::MemoryPool;
use rsx_compiler::program::Program;
use std::sync::Arc;

/// A device: memory and programs.
pub trait Device: Send + Sync {
    /// Short name, such as `cpu`.
    fn name(&self) -> &str;

    /// Everything that decides what code comes out of a program. Part of the key under which programs are cached.
    fn identity(&self) -> Identity;

    /// The pool that all memory of the device comes from.
    fn memory(&self) -> &MemoryPool;

    /// A new buffer of `bytes` bytes, contents unspecified, aligned to 64 bytes.
    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer::new(self.memory().alloc(bytes)?))
    }

    /// What the compiler should know about the device's memory; none if kernels need no work memory of their own.
    fn plans(&self) -> Option<rsx_compiler::DeviceMemory> {
        None
    }

    /// f32 numbers in a vector of its library kernels; none if the compiler's own assumption will do.
    fn lanes(&self) -> Option<i64> {
        None
    }

    /// Generates the code of a program. May be called on several threads.
    fn compile(&self, program: Arc<Program>) -> Result<Arc<dyn Executable>, DeviceError>;
}

/// What makes two devices' code interchangeable, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The device and the features of the processor that code is made for.
    pub device: String,
    /// The compiler and the code generator: versions and sources.
    pub compiler: String,
    /// The library of kernels that programs call.
    pub library: String,
}

/// A program ready to run, any number of times.
pub trait Executable: Send + Sync {
    fn program(&self) -> &Program;

    /// Runs to the end. `params` are the tensor inputs, `scalars` the runtime scalars as f64 or i64 bits, `results` where
    /// the results go: the parameter's own buffer for a result with an alias, another buffer otherwise. Nothing else
    /// may use the results' memory during the run.
    fn run(&self, params: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), DeviceError>;

    /// Runs and measures every thunk, in order. Arguments and errors as for [`Executable::run`].
    fn profile(&self, params: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<Vec<ThunkTime>, DeviceError>;

    /// What one run does.
    fn cost(&self) -> RunCost;

    /// What compiling took.
    fn compile_stats(&self) -> CompileStats;
}

/// Runs `executable` with results in new buffers of `device` (in the parameters' own ones where it takes them over).
pub fn execute(
    device: &dyn Device,
    executable: &dyn Executable,
    params: &[Buffer],
    scalars: &[u64],
) -> Result<Vec<Buffer>, DeviceError> {
    let result = |r: &rsx_compiler::program::ResultSpec| match r.alias.and_then(|p| params.get(p as usize)) {
        Some(b) => Ok(b.clone()),
        None => device.allocate(r.ty.bytes() as usize),
    };
    let results = executable.program().results.iter().map(result).collect::<Result<Vec<_>, _>>()?;
    executable.run(params, scalars, &results)?;
    Ok(results)
}

/// Time of one thunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThunkTime {
    /// Kernel or library op.
    pub name: String,
    /// The recorded op it came from.
    pub loc: u32,
    /// Wall time, nanoseconds.
    pub ns: u64,
}

/// Work of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCost {
    /// Generated kernels launched.
    pub kernels: u64,
    /// Library kernels and copies launched.
    pub library_calls: u64,
    /// Bytes read and written by them, estimated.
    pub bytes_moved: u64,
}

/// Work of one compile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileStats {
    /// Kernels for which code was generated.
    pub compiled: u64,
    /// Kernels whose object code came from the object store.
    pub stored: u64,
    /// Kernels that were loaded already.
    pub cached: u64,
    /// Kernels, of all, that run on code made for other sizes.
    pub sized: u64,
    /// Wall time, nanoseconds.
    pub ns: u64,
}

/// Checks numbers and sizes of a run's arguments.
pub(crate) fn check_arguments(
    program: &Program,
    params: &[Buffer],
    scalars: &[u64],
    results: &[Buffer],
) -> Result<(), DeviceError> {
    let counts = (params.len(), scalars.len(), results.len());
    let want = (program.params.len(), program.n_scalars as usize, program.results.len());
    if counts != want {
        let message = format!("{}: {counts:?} parameters, scalars and results, expected {want:?}", program.name);
        return Err(DeviceError::Arguments(message));
    }
    let types = program.params.iter().chain(program.results.iter().map(|r| &r.ty));
    for (n, (buffer, ty)) in params.iter().chain(results).zip(types).enumerate() {
        if (buffer.len() as u64) < ty.bytes() {
            let message = format!("{}: argument {n} has {} bytes, {ty} needs more", program.name, buffer.len());
            return Err(DeviceError::Arguments(message));
        }
    }
    Ok(())
}
