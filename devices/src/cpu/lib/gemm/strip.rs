//! Strips: one panel of B's columns under all row panels of a block of A.

use super::kernel::{Kernel, MAX_TILE};
use super::pack::Unit;
use crate::cpu::lib::elem::Scalar;

/// A strip of `w <= nr` columns over all row panels of a block.
pub(super) struct Strip<U> {
    pub(super) a: *const U,
    pub(super) a_r: isize,
    pub(super) a_k: isize,
    pub(super) packed: bool,
    pub(super) b: *const U,
    pub(super) b_k: isize,
    pub(super) len: usize,
    pub(super) w: usize,
    /// C has room for whole vectors.
    pub(super) padded: bool,
    pub(super) acc: bool,
}

/// # Safety
/// All panels of the strip and `m` rows of C, row stride `ldc`, are live memory.
#[inline]
pub(super) unsafe fn strip_rows<U: Unit, T: Scalar>(kn: &Kernel<U, T>, s: &Strip<U>, m: usize, c: *mut T, ldc: isize) {
    let nv = s.w.div_ceil(kn.lanes);
    let table = if s.packed { kn.packed[nv - 1] } else { kn.strided[nv - 1] };
    let lines = s.len.div_ceil(super::kernel::UNROLL) * 64;
    let ragged = s.w % kn.lanes != 0 && !s.padded;
    for i in (0..m).step_by(kn.mr) {
        let h = kn.mr.min(m - i);
        let a = if s.packed { s.a.wrapping_add(i * s.len) } else { s.a.wrapping_offset(i as isize * s.a_r) };
        let cp = c.wrapping_offset(i as isize * ldc);
        // The next strip of packed B lies behind this one: each call asks for some of its lines.
        let ahead = (i / kn.mr) * lines;
        let next = if ahead < s.len * kn.nr * size_of::<U>() {
            s.b.wrapping_add(s.len * kn.nr).cast::<u8>().wrapping_add(ahead)
        } else {
            a.cast::<u8>()
        };
        // SAFETY: the caller's contract; a ragged strip goes through a full-width temporary.
        unsafe {
            if !ragged {
                table[h - 1](s.len, a, s.a_k, s.a_r, s.b, s.b_k, cp, ldc, s.acc, next);
                continue;
            }
            let mut tmp = [T::zero(); MAX_TILE];
            table[h - 1](s.len, a, s.a_k, s.a_r, s.b, s.b_k, tmp.as_mut_ptr(), kn.nr as isize, false, next);
            for r in 0..h {
                let row = cp.wrapping_offset(r as isize * ldc);
                for (col, &x) in tmp[r * kn.nr..][..s.w].iter().enumerate() {
                    *row.add(col) = if s.acc { x.add(*row.add(col)) } else { x };
                }
            }
        }
    }
}

/// A block product on packed B: `C[m, n] (+)= A · B`, for kernels that schedule their own blocks.
pub(crate) struct Panels<U> {
    /// Packed panels of `mr` rows (`packed`), or element (r, p) at `a + r·a_r + p·a_k`.
    pub(crate) a: *const U,
    pub(crate) packed: bool,
    pub(crate) a_r: isize,
    pub(crate) a_k: isize,
    /// Packed panels of `nr` columns, each `b_len` units long.
    pub(crate) b: *const U,
    pub(crate) b_len: usize,
    /// Units of k that are summed: the first ones of the panels.
    pub(crate) k: usize,
}

/// Runs a block product on the calling thread. Rows of C have room for `n` rounded up to vectors.
///
/// # Safety
/// The panels cover `m`, `n` and `k`; C covers `m` rows of stride `ldc`.
pub(crate) unsafe fn block<U: Unit, T: Scalar>(
    kn: &Kernel<U, T>,
    p: &Panels<U>,
    m: usize,
    n: usize,
    c: *mut T,
    ldc: usize,
    acc: bool,
) {
    let a_k = if p.packed { kn.mr as isize } else { p.a_k };
    for j in (0..n).step_by(kn.nr) {
        let w = kn.nr.min(n - j);
        let s = Strip {
            a: p.a,
            a_r: p.a_r,
            a_k,
            packed: p.packed,
            b: p.b.wrapping_add(j * p.b_len),
            b_k: kn.nr as isize,
            len: p.k,
            w,
            padded: true,
            acc,
        };
        // SAFETY: the caller's contract.
        unsafe { strip_rows(kn, &s, m, c.wrapping_add(j), ldc as isize) };
    }
}
