//! What can go wrong on a device.
use crate::memory::OutOfMemory;

/// An error of a device. Programs that fail have written nothing that a caller could mistake for a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// Code could not be generated for a kernel: a bug of the compiler or of this device.
    #[error("internal: kernel {kernel} does not compile: {message}")]
    Compile { kernel: String, message: String },
    /// A kernel could not be launched. `loc`: the recorded op it came from.
    #[error("kernel {kernel} (recorded op {loc}) failed to launch: {message}")]
    Launch { kernel: String, loc: u32, message: String },
    /// An index read from a tensor is outside of the dimension it indexes.
    #[error("index {index} is out of bounds for dimension with size {size}")]
    Index { index: i64, size: i64, kernel: String, loc: u32 },
    /// Number or sizes of arguments do not match the program.
    #[error("internal: {0}")]
    Arguments(String),
}
