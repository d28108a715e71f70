//! The CPU device.

mod arena;
pub mod codegen;
mod device;
mod executable;
pub mod extern_math;
pub mod fault;
pub mod generic;
pub mod jit;
pub mod kernel;
pub mod lib;
mod library;
mod link;
mod listing;
mod literals;
pub mod llvm;
pub mod pool;
pub mod target;
mod waves;

pub use device::CpuDevice;
