//! Packing with AVX-512: 4-byte units of 16 lanes at a time, one cache line of every row.
//!
//! A line is read whole and once: rows whose distance is a power of two meet in few sets of the L1 cache, and lines that
//! are needed again soon would be gone by then. Lanes of rows along k are transposed 16×16 in registers; a row of a panel
//! that is narrower than a vector is stored with a whole vector where the next row covers what is too much.

use crate::cpu::lib::simd::transpose16;
use std::arch::x86_64::*;

/// Lines of a row that are asked for ahead of their use. They come to the L2 cache: where rows lie a power of two apart,
/// the lines of a group of rows are more than a set of the L1 cache holds.
const AHEAD: usize = 4;
/// Read in place of lanes that do not exist.
static ZEROS: [u64; 1024] = [0; 1024];

/// What the first `n` lanes of a vector are.
fn first(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// True if [`along_k`] takes panels of this width with rows of `k` units.
pub(super) fn fits(k: usize, width: usize) -> bool {
    (width == 14 || width.is_multiple_of(16)) && k * 4 <= size_of_val(&ZEROS)
}

/// Rows contiguous along k: packs units `0..k` of panels that are `units` long.
///
/// # Safety
/// AVX-512 F; lane l's units lie at `p + l·lane` bytes; `dst` has room for the panels; [`fits`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn along_k(
    p: *const u8,
    lane: isize,
    lanes: usize,
    k: usize,
    units: usize,
    width: usize,
    dst: *mut f32,
) {
    for (panel, l0) in (0..lanes).step_by(width).enumerate() {
        let w = width.min(lanes - l0);
        let out = dst.wrapping_add(panel * units * width);
        for g in (0..width).step_by(16) {
            let mut rows = [ZEROS.as_ptr().cast::<u8>(); 16];
            for (r, row) in rows.iter_mut().enumerate().take(w.saturating_sub(g)) {
                *row = p.wrapping_offset((l0 + g + r) as isize * lane);
            }
            // Where the next group's rows lie, seen from this one's.
            let next = lane * (width - g).min(16) as isize;
            // SAFETY: rows of this panel's lanes, or zeros of their length; the caller's buffer.
            unsafe { group(&rows, next, k, width, out.wrapping_add(g)) };
        }
    }
}

/// One panel from rows along k (null: zeros). [`fits`].
///
/// # Safety
/// AVX-512 F; rows cover `k` units; `out` has room for `k·width`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn panel(rows: &[*const u8], k: usize, width: usize, out: *mut f32) {
    for g in (0..width).step_by(16) {
        let mut list = [ZEROS.as_ptr().cast::<u8>(); 16];
        for (to, from) in list.iter_mut().zip(rows.iter().skip(g)) {
            if !from.is_null() {
                *to = *from;
            }
        }
        // SAFETY: the caller's rows, or zeros of their length; the caller's buffer.
        unsafe { group(&list, 0, k, width, out.wrapping_add(g)) };
    }
}

/// Up to 16 lanes of a panel; `next`: bytes from these rows to those read afterwards.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn group(rows: &[*const u8; 16], next: isize, k: usize, width: usize, out: *mut f32) {
    for p in (0..k).step_by(16) {
        let n = 16.min(k - p);
        let more =
            if p + 16 * AHEAD < k { 4 * (p + 16 * AHEAD) as isize } else { next + 4 * (p + 16 * AHEAD - k) as isize };
        // SAFETY: n units of each row are read, n rows of the panel are written: the last of them exactly, the others with
        // lanes of the row behind, which is written afterwards.
        unsafe {
            let mut t = [_mm512_setzero_ps(); 16];
            for r in 0..16 {
                _mm_prefetch::<_MM_HINT_T1>(rows[r].wrapping_offset(more).cast());
                t[r] = _mm512_maskz_loadu_ps(first(n), rows[r].add(4 * p).cast());
            }
            transpose16(&mut t);
            let out = out.add(p * width);
            let exact = first(width);
            if n == 16 {
                for q in 0..15 {
                    _mm512_storeu_ps(out.add(q * width), t[q]);
                }
                _mm512_mask_storeu_ps(out.add(15 * width), exact, t[15]);
            } else {
                for (q, v) in t.iter().enumerate().take(n) {
                    _mm512_mask_storeu_ps(out.add(q * width), exact, *v);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::lib::elem::Elem;
    use crate::cpu::lib::gemm::kernel::Pair;
    use crate::cpu::lib::gemm::pack::{Matrix, Unit, pack_matrix, pack_plain};
    use crate::cpu::lib::isa::Isa;
    use crate::cpu::lib::testing::{Lcg, at_levels};

    /// Panels of rows along k against the plain loop: the same bits, and nothing behind them.
    fn check<U: Unit>(elem: Elem, lanes: usize, kc: usize, width: usize, bits: fn(U) -> u32) {
        let (size, pitch) = (elem.size(), kc + 5);
        let mut rng = Lcg((lanes * kc + width) as u64);
        let source: Vec<u8> = (0..lanes * pitch * size).map(|_| rng.next() as u8).collect();
        let s = Matrix { p: source.as_ptr(), elem, lane: (pitch * size) as isize, k: size as isize };
        let room = lanes.next_multiple_of(width) * kc.div_ceil(U::K);
        let run = |plain: bool| {
            // SAFETY: the source covers the lanes and k; the output has room.
            unsafe {
                // What lies behind the panels must stay.
                let mut out = vec![U::read(elem, source.as_ptr(), size as isize, U::K); room + 32];
                match plain {
                    true => pack_plain(&s, lanes, 0, kc, width, out.as_mut_ptr()),
                    false => pack_matrix(&s, lanes, kc, width, out.as_mut_ptr()),
                }
                out.into_iter().map(bits).collect::<Vec<u32>>()
            }
        };
        assert!(run(false) == run(true), "{elem:?} {lanes} lanes, k {kc}, panels of {width}");
    }

    #[test]
    fn panels_are_those_of_the_plain_loop() {
        at_levels(&[Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16], || {
            for lanes in [1, 13, 14, 16, 29, 70] {
                for kc in [70, 79, 96, 131, 512] {
                    for width in [14, 32] {
                        check::<f32>(Elem::F32, lanes, kc, width, f32::to_bits);
                        check::<Pair>(Elem::BF16, lanes, kc, width, |p| p.0);
                    }
                }
            }
        });
    }
}
