//! The CPU device behind a session: memory of `rsx_devices`' pool; programs when the code generator is wired in.

use rsx_capture::{Backend, CompileError, MemoryStats, OutOfMemory, Runnable};
use rsx_devices::memory::{Block, MemoryPool};
use rsx_devices::{Buffer, Memory};
use rsx_lazy::lower::GraphPiece;
use std::sync::Arc;

/// Memory and code generation of the CPU.
#[derive(Debug)]
pub(crate) struct Cpu;

impl Cpu {
    pub(crate) fn new() -> Cpu {
        Cpu
    }
}

struct Pooled(Block);

impl Memory for Pooled {
    fn ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Backend for Cpu {
    fn compile(&self, _piece: &GraphPiece) -> Result<Arc<dyn Runnable>, CompileError> {
        Err(CompileError { message: "the code generator is not wired in yet".into(), node: None })
    }

    fn identity(&self) -> String {
        format!("cpu {}", std::env::consts::ARCH)
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        let block = MemoryPool::cpu().alloc(bytes);
        block.map(|b| Buffer::new(Pooled(b))).map_err(|e| OutOfMemory { bytes, message: e.to_string() })
    }

    fn release_cached(&self) {
        MemoryPool::cpu().empty_cache();
    }

    fn memory(&self) -> MemoryStats {
        let s = MemoryPool::cpu().stats();
        MemoryStats {
            live: s.in_use as u64,
            peak: s.peak as u64,
            reserved: s.reserved as u64,
            system_allocations: s.system_allocations as u64,
            allocations: s.allocations as u64,
        }
    }

    fn reset_peak(&self) {
        MemoryPool::cpu().reset_peak();
    }
}

/// Bytes of memory in the machine; 0 if it cannot be told.
pub(crate) fn total_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
