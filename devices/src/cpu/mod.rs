//! The CPU device.

pub mod codegen;
pub mod extern_math;
pub mod jit;
pub mod kernel;
pub mod lib;
pub mod llvm;
pub mod pool;
pub mod target;
