//! Devices of rsx: memory, executors and code generation. See ARCHITECTURE.md.
pub mod buffer;
pub mod cpu;
mod error;
pub mod memory;

pub use buffer::{Buffer, Memory, OutOfRange};
pub use error::DeviceError;
