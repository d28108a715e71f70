//! See ARCHITECTURE.md.

pub mod cpu;
pub mod memory;
