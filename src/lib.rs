//! rsx: a lazy tensor backend.
//!
//! This crate is the Rust front: it re-exports the layers that work without libtorch and Python. The PyTorch device is
//! the Python package `rsx` (folder `python/`, crate `rsx-ffi`). See ARCHITECTURE.md for the map.
pub use rsx_capture as capture;
pub use rsx_compiler as compiler;
pub use rsx_devices as devices;
pub use rsx_graphbreak as graphbreak;
pub use rsx_lazy as lazy;
