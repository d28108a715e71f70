//! What can go wrong on a device.
use crate::memory::OutOfMemory;

/// An error of a device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// From a run: donated parameters may have been overwritten (otherwise the error is a clean `Launch`).
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// Code could not be generated for a kernel: a bug of the compiler or of this device.
    #[error("internal: kernel {kernel} does not compile: {message}")]
    Compile { kernel: String, message: String },
    /// A kernel could not be launched.
    #[error("kernel {kernel} failed to launch: {message}")]
    Launch {
        kernel: String,
        /// The recorded op it came from.
        loc: u32,
        message: String,
        /// All values that the program read are as they were: no donated parameter has been overwritten.
        clean: bool,
    },
    /// An index read from a tensor is outside of the dimension it indexes. Results hold garbage.
    #[error("index {index} is out of bounds for dimension with size {size}")]
    Index {
        index: i64,
        size: i64,
        kernel: String,
        /// The recorded op it came from.
        loc: u32,
        /// As for `Launch`.
        clean: bool,
    },
    /// Number or sizes of arguments do not match the program.
    #[error("internal: {0}")]
    Arguments(String),
}
