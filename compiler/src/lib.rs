//! The compiler of rsx: primitive IR, passes, fusion, buffers and kernel IR.
//!
//! Knows nothing of devices, libtorch or Python (see ARCHITECTURE.md).
pub mod interp;
pub mod ir;
pub mod kernel;
pub mod program;
pub mod samples;
pub mod text;
pub mod verify;
