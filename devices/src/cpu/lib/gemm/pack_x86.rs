//! Packing with AVX2: units of 4 bytes, and 2-byte floats widened to f32 on the way.
//!
//! What packing costs is cache misses: an operand's rows lie at large strides, often powers of two,
//! where lines meet in few cache sets and the processor's own prefetchers see no stream. So both
//! forms read whole cache lines soon after one another and ask for lines well ahead, across the
//! ends of rows and panels. Stores are exact: nothing outside the block is written.

use super::kernel::Pair;
use super::pack::{Matrix, pack_plain};
use super::pack_512;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::isa::{self, Isa};
use crate::cpu::lib::simd::{Load8, LoadBf16, LoadF16, LoadF32, transpose8};
use std::arch::x86_64::*;

/// Elements of a row that are asked for ahead of their use.
const AHEAD: usize = 64;
/// Read in place of lanes that do not exist.
static ZEROS: [u64; 1024] = [0; 1024];

/// Packs 4-byte units if a vector path fits; false if the strides need the plain loop.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn pack(s: &Matrix, lanes: usize, kc: usize, width: usize, dst: *mut f32, per_unit: usize) -> bool {
    let size = s.elem.size() as isize;
    // SAFETY: the caller's contract throughout.
    unsafe {
        if per_unit == 2 {
            if s.k == size {
                // A pair of neighbours is one 32-bit word: move words.
                if !words_along_k(s, lanes, kc / 2, kc.div_ceil(2), width, dst) {
                    return false;
                }
                if kc % 2 == 1 {
                    pack_plain::<Pair>(s, lanes, kc / 2, kc, width, dst.cast());
                }
                return true;
            }
            if s.lane == size {
                interleave(s, lanes, kc, width, dst.cast());
                return true;
            }
            return false;
        }
        if s.k == size {
            return match s.elem {
                Elem::F32 => words_along_k(s, lanes, kc, kc, width, dst),
                Elem::BF16 => along_k::<LoadBf16>(s, lanes, kc, kc, width, dst),
                Elem::F16 => along_k::<LoadF16>(s, lanes, kc, kc, width, dst),
                _ => false,
            };
        }
        if s.lane == size {
            match s.elem {
                Elem::F32 => along_lanes::<LoadF32>(s, lanes, kc, width, dst),
                Elem::BF16 => along_lanes::<LoadBf16>(s, lanes, kc, width, dst),
                Elem::F16 => along_lanes::<LoadF16>(s, lanes, kc, width, dst),
                _ => return false,
            }
            return true;
        }
        false
    }
}

/// One panel from rows along k (null: zeros). False if there is no vector path.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows(elem: Elem, rows: &[*const u8], k: usize, width: usize, dst: *mut f32) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        match elem {
            Elem::F32 if isa::current() >= Isa::Avx512 && pack_512::fits(k, width) => {
                pack_512::panel(rows, k, width, dst);
                true
            }
            Elem::F32 => panel_rows::<LoadF32>(rows, k, width, dst),
            Elem::BF16 => panel_rows::<LoadBf16>(rows, k, width, dst),
            Elem::F16 => panel_rows::<LoadF16>(rows, k, width, dst),
            _ => false,
        }
    }
}

#[inline(always)]
fn prefetch(p: *const u8) {
    // SAFETY: a prefetch never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
}

/// Stores the first N numbers of a vector.
#[inline(always)]
unsafe fn store<const N: usize>(p: *mut f32, v: __m256) {
    // SAFETY: the caller's N numbers.
    unsafe {
        match N {
            8 => _mm256_storeu_ps(p, v),
            6 => {
                _mm_storeu_ps(p, _mm256_castps256_ps128(v));
                _mm_storel_pd(p.add(4).cast(), _mm_castps_pd(_mm256_extractf128_ps::<1>(v)));
            }
            4 => _mm_storeu_ps(p, _mm256_castps256_ps128(v)),
            _ => {
                let mut t = [0f32; 8];
                _mm256_storeu_ps(t.as_mut_ptr(), v);
                for (i, x) in t.iter().enumerate().take(N) {
                    *p.add(i) = *x;
                }
            }
        }
    }
}

/// [`along_k`] of 4-byte units with the widest vectors there are.
#[inline(always)]
unsafe fn words_along_k(s: &Matrix, lanes: usize, k: usize, units: usize, width: usize, dst: *mut f32) -> bool {
    // SAFETY: the caller's contract; the instruction set is checked.
    unsafe {
        if isa::current() >= Isa::Avx512 && pack_512::fits(k, width) {
            pack_512::along_k(s.p, s.lane, lanes, k, units, width, dst);
            return true;
        }
        along_k::<LoadF32>(s, lanes, k, units, width, dst)
    }
}

/// k is contiguous: 8×8 transposes. Packs units `0..k` of panels that are `units` long.
#[inline(always)]
unsafe fn along_k<S: Load8>(s: &Matrix, lanes: usize, k: usize, units: usize, width: usize, dst: *mut f32) -> bool {
    if k * S::SIZE > size_of_val(&ZEROS) || !matches!(width % 8, 0 | 4 | 6) {
        return false;
    }
    for (panel, l0) in (0..lanes).step_by(width).enumerate() {
        let w = width.min(lanes - l0);
        let out = dst.wrapping_add(panel * units * width);
        for g in (0..width).step_by(8) {
            let mut rows = [ZEROS.as_ptr().cast::<u8>(); 8];
            for (r, row) in rows.iter_mut().enumerate().take(w.saturating_sub(g)) {
                *row = s.p.wrapping_offset((l0 + g + r) as isize * s.lane);
            }
            // Where the next group's rows lie, seen from this one's.
            let next = s.lane * (width - g).min(8) as isize;
            let out = out.wrapping_add(g);
            // SAFETY: rows of this panel's lanes, or zeros of their length; the caller's buffer.
            unsafe {
                match width - g {
                    8.. => group::<S, 8>(&rows, next, k, width, out),
                    6 => group::<S, 6>(&rows, next, k, width, out),
                    _ => group::<S, 4>(&rows, next, k, width, out),
                }
            }
        }
    }
    true
}

#[inline(always)]
unsafe fn panel_rows<S: Load8>(rows: &[*const u8], k: usize, width: usize, out: *mut f32) -> bool {
    if k * S::SIZE > size_of_val(&ZEROS) || !matches!(width % 8, 0 | 4 | 6) {
        return false;
    }
    for g in (0..width).step_by(8) {
        let mut list = [ZEROS.as_ptr().cast::<u8>(); 8];
        for (to, from) in list.iter_mut().zip(rows.iter().skip(g)) {
            if !from.is_null() {
                *to = *from;
            }
        }
        let out = out.wrapping_add(g);
        // SAFETY: the caller's rows, or zeros of their length; the caller's buffer.
        unsafe {
            match width - g {
                8.. => group::<S, 8>(&list, 0, k, width, out),
                6 => group::<S, 6>(&list, 0, k, width, out),
                _ => group::<S, 4>(&list, 0, k, width, out),
            }
        }
    }
    true
}

/// N lanes of a panel from rows along k; `next`: bytes from these rows to those read afterwards.
#[inline(always)]
unsafe fn group<S: Load8, const N: usize>(rows: &[*const u8; 8], next: isize, k: usize, width: usize, out: *mut f32) {
    let mut p = 0;
    // SAFETY: rows cover `k` elements; N numbers of each k step are stored.
    unsafe {
        while p + 8 <= k {
            if p * S::SIZE % 64 == 0 {
                let more = if p + AHEAD < k {
                    ((p + AHEAD) * S::SIZE) as isize
                } else {
                    next + ((p + AHEAD - k) * S::SIZE) as isize
                };
                for row in &rows[..N] {
                    prefetch(row.wrapping_offset(more));
                }
            }
            let mut t = [_mm256_setzero_ps(); 8];
            for r in 0..N {
                t[r] = S::load8(rows[r].add(p * S::SIZE));
            }
            transpose8(&mut t);
            for (q, v) in t.iter().enumerate() {
                store::<N>(out.add((p + q) * width), *v);
            }
            p += 8;
        }
        while p < k {
            for r in 0..N {
                *out.add(p * width + r) = S::load1(rows[r].add(p * S::SIZE));
            }
            p += 1;
        }
    }
}

/// Lanes are contiguous: copies of vectors, a few rows at a time over all panels, so that each row
/// is read in one long run.
#[inline(always)]
unsafe fn along_lanes<S: Load8>(s: &Matrix, lanes: usize, k: usize, width: usize, dst: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        match width {
            6 => lanes_by::<S, 6>(s, lanes, k, width, dst),
            16 => lanes_by::<S, 16>(s, lanes, k, width, dst),
            14 => lanes_by::<S, 14>(s, lanes, k, width, dst),
            32 => lanes_by::<S, 32>(s, lanes, k, width, dst),
            _ => lanes_by::<S, 0>(s, lanes, k, width, dst),
        }
    }
}

/// W: the width if it is known, else 0.
#[inline(always)]
unsafe fn lanes_by<S: Load8, const W: usize>(s: &Matrix, lanes: usize, k: usize, width: usize, dst: *mut f32) {
    /// Rows taken together.
    const ROWS: usize = 4;
    let width = if W > 0 { W } else { width };
    // Panels whose whole-vector reads stay within the lanes.
    let wide = width.next_multiple_of(8);
    let whole = if W > 0 && lanes >= wide { (lanes - wide) / width + 1 } else { 0 };
    // Rows ahead: about 8 KiB of them.
    let ahead = (2048 / lanes.max(1)).clamp(ROWS, 64) as isize * s.k;
    for p0 in (0..k).step_by(ROWS) {
        let n = ROWS.min(k - p0);
        let row0 = s.p.wrapping_offset(p0 as isize * s.k);
        // SAFETY: vector reads cover existing lanes; stores are exact.
        unsafe {
            for panel in 0..whole {
                let at = panel * width * S::SIZE;
                for q in 0..n {
                    let src = row0.wrapping_offset(q as isize * s.k).wrapping_add(at);
                    let out = dst.add((panel * k + p0 + q) * width);
                    // One request per line: narrow panels share lines.
                    if at % 64 < width * S::SIZE {
                        prefetch(src.wrapping_offset(ahead));
                    }
                    for g in (0..W).step_by(8) {
                        let v = S::load8(src.add(g * S::SIZE));
                        match W - g {
                            8.. => store::<8>(out.add(g), v),
                            6 => store::<6>(out.add(g), v),
                            _ => store::<4>(out.add(g), v),
                        }
                    }
                }
            }
            for panel in whole..lanes.div_ceil(width) {
                let w = width.min(lanes - panel * width);
                for q in 0..n {
                    let src = row0.wrapping_offset(q as isize * s.k).wrapping_add(panel * width * S::SIZE);
                    let out = dst.add((panel * k + p0 + q) * width);
                    let mut l = 0;
                    while l + 8 <= w {
                        _mm256_storeu_ps(out.add(l), S::load8(src.add(l * S::SIZE)));
                        l += 8;
                    }
                    while l < width {
                        *out.add(l) = if l < w { S::load1(src.add(l * S::SIZE)) } else { 0.0 };
                        l += 1;
                    }
                }
            }
        }
    }
}

/// bf16 with contiguous lanes: rows 2p and 2p+1 interleaved into pairs.
#[inline(always)]
unsafe fn interleave(s: &Matrix, lanes: usize, kc: usize, width: usize, dst: *mut u32) {
    let units = kc.div_ceil(2);
    for (panel, l0) in (0..lanes).step_by(width).enumerate() {
        let w = width.min(lanes - l0);
        for u in 0..units {
            let x = s.p.wrapping_add(l0 * 2).wrapping_offset(2 * u as isize * s.k).cast::<u16>();
            let y = x.cast::<u8>().wrapping_offset(s.k).cast::<u16>();
            // SAFETY: `w` lanes of rows 2u and (if it exists) 2u + 1 are read.
            unsafe {
                let o = dst.add((panel * units + u) * width);
                if 2 * u + 1 < kc {
                    for l in 0..w {
                        *o.add(l) = x.add(l).read_unaligned() as u32 | (y.add(l).read_unaligned() as u32) << 16;
                    }
                } else {
                    for l in 0..w {
                        *o.add(l) = x.add(l).read_unaligned() as u32;
                    }
                }
                for l in w..width {
                    *o.add(l) = 0;
                }
            }
        }
    }
}
