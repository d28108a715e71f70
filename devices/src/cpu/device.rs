//! The CPU as a device.
use super::executable::CpuExecutable;
use super::target::Target;
use crate::memory::MemoryPool;
use crate::store::DiskStore;
use crate::{Device, DeviceError, Executable, Identity};
use rsx_compiler::DeviceMemory;
use rsx_compiler::program::Program;
use std::sync::Arc;

/// This machine's processor. Cheap to make; devices share code and (by default) memory.
pub struct CpuDevice {
    pool: MemoryPool,
    target: Target,
    store: Option<Arc<DiskStore>>,
}

impl CpuDevice {
    /// The processor at its own level (bounded by `RSX_CPU_LEVEL`) with the process's pool and the user's store of
    /// kernels (see [`DiskStore::shared`]).
    pub fn new() -> CpuDevice {
        CpuDevice { pool: MemoryPool::cpu().clone(), target: Target::host(), store: DiskStore::shared().cloned() }
    }

    /// As given, and without a store; for tests of levels and of limits.
    pub fn with(pool: MemoryPool, target: Target) -> CpuDevice {
        CpuDevice { pool, target, store: None }
    }

    /// The same device with kernels kept in `store`.
    pub fn with_store(self, store: Arc<DiskStore>) -> CpuDevice {
        CpuDevice { store: Some(store), ..self }
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

    fn identity(&self) -> Identity {
        Identity {
            device: format!("cpu {} {} byte vectors", self.target.level.name(), self.target.vector_bytes),
            compiler: super::jit::VERSION.into(),
            library: env!("RSX_LIBRARY_SOURCES").into(),
        }
    }

    fn memory(&self) -> &MemoryPool {
        &self.pool
    }

    fn plans(&self) -> Option<DeviceMemory> {
        Some(DeviceMemory {
            work: super::library::work_bytes,
            rounded: |bytes| crate::memory::rounded(bytes as usize) as u64,
        })
    }

    fn lanes(&self) -> Option<i64> {
        Some(super::lib::gemm::kernel::f32_kernel().lanes as i64)
    }

    fn compile(&self, program: Arc<Program>) -> Result<Arc<dyn Executable>, DeviceError> {
        super::listing::attach(&program, self.target);
        Ok(Arc::new(CpuExecutable::compile(program, self.target, self.pool.clone(), self.store.as_ref())?))
    }
}
