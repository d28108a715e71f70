//! The compiler of rsx: primitive IR, passes, fusion, buffers and kernel IR.
//!
//! Knows nothing of devices, libtorch or Python (see ARCHITECTURE.md).
mod bisect;
pub mod buffers;
mod compile;
pub mod cost;
pub mod dump;
pub mod fusion;
pub mod interp;
pub mod ir;
pub mod kernel;
pub mod passes;
pub mod program;
pub mod samples;
pub mod text;
pub mod verify;

pub use bisect::{Bisection, bisect, first_difference, tolerance};
pub use compile::{
    CompileError, CompileOptions, Compiled, DeviceMemory, STACK_BYTES, Stats, compile, dump_directory, memory_limit,
    parse_size,
};
