//! Devices of rsx: memory, executors and code generation. See ARCHITECTURE.md.
pub mod buffer;

pub use buffer::Buffer;
