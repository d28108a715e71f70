//! The CPU device.

pub mod lib;
pub mod pool;
