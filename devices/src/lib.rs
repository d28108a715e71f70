//! Devices of rsx: memory, executors and code generation. See ARCHITECTURE.md.
pub mod buffer;
pub mod cpu;
pub mod memory;

pub use buffer::{Buffer, Memory, OutOfRange};
