//! The CPU device.

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
mod literals;
pub mod llvm;
pub mod pool;
pub mod target;

pub use device::CpuDevice;
