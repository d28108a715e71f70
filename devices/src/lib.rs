//! Devices of rsx: memory, executors and code generation. See ARCHITECTURE.md.
pub mod buffer;
pub mod cpu;
mod error;
pub mod memory;

<<<<<<< HEAD
pub use buffer::{Buffer, Memory, OutOfRange};
=======
pub use buffer::Buffer;
pub use error::DeviceError;
>>>>>>> 78f458a (wip: generated kernels run)
