//! The CPU kernel library: what the code generator does not write itself.
//!
//! Matrix products, convolution, attention, sorting, scans, scatter/gather, windows and strided
//! copies over plain strided memory. Nothing here knows programs, IR or LLVM: a kernel takes
//! [`View`]s (or the operand structs of `gemm`, `conv` and `attention`) and writes into memory the
//! caller owns. Every kernel is deterministic: its result does not depend on the number of threads.
//!
//! All entry points are `unsafe fn`: the caller promises that every view covers live memory of its
//! element type, and that outputs overlap neither each other nor (unless stated) the inputs.
//! Shape mistakes come back as [`LibError`]; nothing here panics on them.

pub mod argreduce;
pub mod attention;
pub mod conv;
pub mod copy;
pub mod elem;
pub mod gather;
pub mod gemm;
pub mod isa;
pub mod reduce_window;
pub mod scan;
pub mod scatter;
pub(crate) mod simd;
pub mod sort;
#[cfg(test)]
pub(crate) mod testing;
pub mod view;

pub use elem::Elem;
pub use view::{LibError, View};
