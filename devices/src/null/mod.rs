//! A device that computes nothing: programs "run" at once and leave their results as they are. For tests and
//! measurements of what lies above.
use crate::memory::MemoryPool;
use crate::{Buffer, CompileStats, Device, DeviceError, Executable, Identity, RunCost, ThunkTime};
use rsx_compiler::program::{Program, Thunk};
use std::sync::Arc;

/// See the module's documentation.
pub struct NullDevice {
    pool: MemoryPool,
}

impl NullDevice {
    pub fn new() -> NullDevice {
        NullDevice { pool: MemoryPool::new(None) }
    }
}

impl Default for NullDevice {
    fn default() -> Self {
        NullDevice::new()
    }
}

impl Device for NullDevice {
    fn name(&self) -> &str {
        "null"
    }

    fn identity(&self) -> Identity {
        Identity { device: "null".to_owned(), ..Identity::default() }
    }

    fn memory(&self) -> &MemoryPool {
        &self.pool
    }

    fn compile(&self, program: Arc<Program>) -> Result<Arc<dyn Executable>, DeviceError> {
        Ok(Arc::new(NullExecutable { program }))
    }
}

struct NullExecutable {
    program: Arc<Program>,
}

impl Executable for NullExecutable {
    fn program(&self) -> &Program {
        &self.program
    }

    fn run(&self, params: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), DeviceError> {
        crate::check_arguments(&self.program, params, scalars, results)
    }

    fn profile(&self, params: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<Vec<ThunkTime>, DeviceError> {
        self.run(params, scalars, results).map(|()| Vec::new())
    }

    fn cost(&self) -> RunCost {
        let mut cost = RunCost::default();
        for t in &self.program.thunks {
            match t {
                Thunk::Kernel(_) => cost.kernels += 1,
                Thunk::Group(calls) => cost.kernels += calls.len() as u64,
                Thunk::Library { .. } | Thunk::Copy { .. } => cost.library_calls += 1,
            }
        }
        cost
    }

    fn compile_stats(&self) -> CompileStats {
        CompileStats::default()
    }
}
