//! Strips: one panel of B's columns under all row panels of a block of A.

use super::kernel::{Kernel, MAX_TILE, UNROLL};
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

/// What is fetched into the caches while the tiles of a strip are computed: `calls` tiles ask for
/// one row of lines each, `step` bytes apart.
pub(super) struct Ahead {
    pub(super) base: *const u8,
    pub(super) step: isize,
    /// Tile `q` begins at `base + (q / per)·col + (q % per)·part`.
    pub(super) per: usize,
    pub(super) col: isize,
    pub(super) part: isize,
    pub(super) calls: usize,
}

impl Ahead {
    /// `bytes` from `base` on, with tiles of `len` steps.
    pub(super) fn line(base: *const u8, bytes: usize, len: usize) -> Ahead {
        let col = (len / UNROLL).max(1) * 64;
        Ahead { base, step: 64, per: 1, col: col as isize, part: 0, calls: bytes.div_ceil(col) }
    }

    /// A matrix of `lanes` × `len` elements of `size` bytes with these byte strides, one of them `size`.
    pub(super) fn matrix(base: *const u8, lane: isize, k: isize, size: usize, lanes: usize, len: usize) -> Ahead {
        let slots = (len / UNROLL).max(1);
        let (step, rows, bytes) = if k == size as isize { (lane, lanes, len * size) } else { (k, len, lanes * size) };
        let per = rows.div_ceil(slots);
        Ahead { base, step, per, col: 64, part: step * slots as isize, calls: bytes.div_ceil(64) * per }
    }

    fn at(&self, q: usize) -> (*const u8, isize) {
        if q >= self.calls {
            // Nothing more to fetch: the same line again.
            return (self.base, 0);
        }
        (self.base.wrapping_offset((q / self.per) as isize * self.col + (q % self.per) as isize * self.part), self.step)
    }
}

/// `ahead.at(first + i)` goes with row panel i.
///
/// # Safety
/// All panels of the strip and `m` rows of C, row stride `ldc`, are live memory.
#[inline]
pub(super) unsafe fn strip_rows<U: Unit, T: Scalar>(
    kn: &Kernel<U, T>,
    s: &Strip<U>,
    m: usize,
    c: *mut T,
    ldc: isize,
    ahead: &Ahead,
    first: usize,
) {
    let table = kn.tiles(s.w.div_ceil(kn.lanes), s.a_k, s.a_r);
    let ragged = !s.w.is_multiple_of(kn.lanes) && !s.padded;
    for i in (0..m).step_by(kn.mr) {
        let h = kn.mr.min(m - i);
        let a = if s.packed { s.a.wrapping_add(i * s.len) } else { s.a.wrapping_offset(i as isize * s.a_r) };
        let cp = c.wrapping_offset(i as isize * ldc);
        let (next, step) = ahead.at(first + i / kn.mr);
        // SAFETY: the caller's contract; a ragged strip goes through a full-width temporary.
        unsafe {
            if !ragged {
                table[h - 1](s.len, a, s.a_k, s.a_r, s.b, s.b_k, cp, ldc, s.acc, next, step);
                continue;
            }
            let mut tmp = [T::zero(); MAX_TILE];
            table[h - 1](s.len, a, s.a_k, s.a_r, s.b, s.b_k, tmp.as_mut_ptr(), kn.nr as isize, false, next, step);
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
        let bytes = p.b_len * kn.nr * size_of::<U>();
        let ahead = Ahead::line(s.b.cast::<u8>().wrapping_add(bytes), bytes, p.k);
        // SAFETY: the caller's contract.
        unsafe { strip_rows(kn, &s, m, c.wrapping_add(j), ldc as isize, &ahead, 0) };
    }
}
