//! The CPU as a device.
use super::executable::CpuExecutable;
use super::jit::set_object_store;
use super::store::DiskStore;
use super::target::Target;
use crate::memory::MemoryPool;
use crate::{Device, DeviceError, Executable};
use rsx_compiler::program::Program;
use std::sync::{Arc, Once};

/// This machine's processor. Cheap to make; devices share code and (by default) memory.
pub struct CpuDevice {
    pool: MemoryPool,
    target: Target,
}

impl CpuDevice {
    /// The processor at its own level (bounded by `RSX_CPU_LEVEL`) with the process's pool and the user's store of object
    /// code (see [`DiskStore`]).
    pub fn new() -> CpuDevice {
        static STORE: Once = Once::new();
        STORE.call_once(|| {
            if let Some(store) = DiskStore::from_environment() {
                set_object_store(Box::new(store));
            }
        });
        CpuDevice { pool: MemoryPool::cpu().clone(), target: Target::host() }
    }

    /// As given; for tests of levels and of limits.
    pub fn with(pool: MemoryPool, target: Target) -> CpuDevice {
        CpuDevice { pool, target }
    }
}

impl Default for CpuDevice {
    fn default() -> Self {
        CpuDevice::new()
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn identity(&self) -> String {
        format!("cpu {}/{} {}", self.target.level.name(), self.target.vector_bytes, super::jit::VERSION)
    }

    fn memory(&self) -> &MemoryPool {
        &self.pool
    }

    fn compile(&self, program: Arc<Program>) -> Result<Arc<dyn Executable>, DeviceError> {
        Ok(Arc::new(CpuExecutable::compile(program, self.target, self.pool.clone())?))
    }
}
