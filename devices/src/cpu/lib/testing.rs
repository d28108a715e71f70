//! Helpers for the library's tests.

use super::elem::Elem;
use super::isa::{self, Isa};
use std::sync::Mutex;

/// A small linear congruential generator: the same numbers on every run.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    /// A multiple of 1/8 in [-1, 1]: exact in every float type.
    pub(crate) fn small(&mut self) -> f64 {
        (self.next() % 17) as f64 / 8.0 - 1.0
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    /// In [-1, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 30) as f64 - 1.0
    }
}

/// Runs `f` at each level that the processor has, one test at a time.
pub(crate) fn at_levels(levels: &[Isa], f: impl Fn()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for &l in levels {
        isa::set_max(l);
        if isa::current() == l {
            f();
        }
    }
    isa::set_max(Isa::Avx512Bf16);
}

/// Bytes of `v` as elements of type `e`.
pub(crate) fn write_all(e: Elem, v: &[f64]) -> Vec<u8> {
    let mut b = vec![0u8; v.len() * e.size() + 64];
    for (i, &x) in v.iter().enumerate() {
        // SAFETY: within the buffer.
        unsafe { e.store_f64(b.as_mut_ptr().add(i * e.size()), x) };
    }
    b.truncate(v.len() * e.size());
    b
}

/// The elements in `b` as f64.
pub(crate) fn read_all(e: Elem, b: &[u8]) -> Vec<f64> {
    (0..b.len() / e.size())
        // SAFETY: within the buffer.
        .map(|i| unsafe { e.load_f64(b.as_ptr().add(i * e.size())) })
        .collect()
}
