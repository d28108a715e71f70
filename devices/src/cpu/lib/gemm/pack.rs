//! Packing: operands rearranged into the order in which the register tiles read them.
//!
//! A packed block is a list of panels of `width` lanes (rows of A, or columns of B); a panel holds,
//! for each unit of k, its `width` numbers side by side: `dst[panel][k][lane]`. Lanes beyond the
//! matrix are zero, as is the second half of a last odd pair.

use super::kernel::Pair;
use super::{BatchDim, batch_offset};
use crate::cpu::lib::elem::{BF16, Elem, F16};
use crate::cpu::lib::isa::{self, Isa};
use crate::cpu::lib::view::Ptr;

/// What one step along k of one lane holds.
pub(crate) trait Unit: Copy + Send + Sync + 'static {
    /// Elements of k in a unit.
    const K: usize;
    const ZERO: Self;
    /// Element types that lie in memory as this unit does.
    fn same_as(elem: Elem) -> bool;
    /// Reads a unit of element type `elem` at `p`, its second element (if any) `k_bytes` further;
    /// `have`: elements of it that exist.
    unsafe fn read(elem: Elem, p: *const u8, k_bytes: isize, have: usize) -> Self;
}

/// Slack units that packers may write beyond a block (vector stores past a narrow panel).
pub(crate) const SLACK: usize = 32;

/// Supplies an operand's blocks. Implemented for strided matrices here and for convolution's
/// implicit patches in `conv`.
pub(crate) trait Pack<U: Unit>: Sync {
    /// Packs lanes `lane0..lane0+lanes` and elements `k0..k0+kc` of k into panels of `width`.
    ///
    /// # Safety
    /// `dst` has room for `ceil(lanes/width)·width·ceil(kc/U::K) + SLACK` units; the operand's
    /// memory is live.
    unsafe fn pack(&self, batch: usize, lane0: usize, lanes: usize, k0: usize, kc: usize, width: usize, dst: *mut U);

    /// The operand's address and its lane and k strides, in units, if it lies in memory as units.
    fn direct(&self, _batch: usize) -> Option<(*const U, isize, isize)> {
        None
    }
}

/// A strided matrix as a packing source.
pub(crate) struct Strided<'a> {
    pub(crate) ptr: Ptr,
    pub(crate) elem: Elem,
    /// Stride between lanes, elements.
    pub(crate) lane: isize,
    /// Stride along k, elements.
    pub(crate) k: isize,
    pub(crate) batch: &'a [BatchDim],
    /// Which stride of the batch dimensions: 0 for A, 1 for B.
    pub(crate) which: usize,
}

impl<U: Unit> Pack<U> for Strided<'_> {
    unsafe fn pack(&self, batch: usize, lane0: usize, lanes: usize, k0: usize, kc: usize, width: usize, dst: *mut U) {
        let size = self.elem.size() as isize;
        let first = batch_offset(self.batch, batch, self.which) + lane0 as isize * self.lane + k0 as isize * self.k;
        let src =
            Matrix { p: self.ptr.at::<u8>(first * size), elem: self.elem, lane: self.lane * size, k: self.k * size };
        // SAFETY: the caller's contract.
        unsafe { pack_matrix(&src, lanes, kc, width, dst) }
    }

    fn direct(&self, batch: usize) -> Option<(*const U, isize, isize)> {
        if !U::same_as(self.elem) {
            return None;
        }
        let first = batch_offset(self.batch, batch, self.which);
        Some((self.ptr.at::<U>(first).cast_const(), self.lane, self.k))
    }
}

/// A source block: address and byte strides.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub(crate) p: *const u8,
    pub(crate) elem: Elem,
    pub(crate) lane: isize,
    pub(crate) k: isize,
}

/// Packs a strided block; picks the vector path that fits the strides.
///
/// # Safety
/// As [`Pack::pack`].
pub(crate) unsafe fn pack_matrix<U: Unit>(s: &Matrix, lanes: usize, kc: usize, width: usize, dst: *mut U) {
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && std::mem::size_of::<U>() == 4 {
        // SAFETY: AVX2, FMA and F16C are present; the contract is the caller's.
        if unsafe { x86::pack(s, lanes, kc, width, dst.cast::<f32>(), U::K) } {
            return;
        }
    }
    // SAFETY: the caller's contract.
    unsafe { pack_plain(s, lanes, 0, kc, width, dst) }
}

/// One element at a time, from unit `from` of k on; `dst` is the block's start.
unsafe fn pack_plain<U: Unit>(s: &Matrix, lanes: usize, from: usize, kc: usize, width: usize, dst: *mut U) {
    let units = kc.div_ceil(U::K);
    for (panel, l0) in (0..lanes).step_by(width).enumerate() {
        let w = width.min(lanes - l0);
        for u in from..units {
            let have = U::K.min(kc - u * U::K);
            let src = s.p.wrapping_offset(l0 as isize * s.lane + (u * U::K) as isize * s.k);
            // SAFETY: lanes and k lie within the operand; `dst` is the caller's contract.
            unsafe {
                let out = dst.add((panel * units + u) * width);
                for l in 0..w {
                    *out.add(l) = U::read(s.elem, src.wrapping_offset(l as isize * s.lane), s.k, have);
                }
                for l in w..width {
                    *out.add(l) = U::ZERO;
                }
            }
        }
    }
}

/// Packs one panel from rows that are contiguous along k: lane l's `k` elements lie at `rows[l]`,
/// or are zero where that is null. Only for units of one element.
///
/// # Safety
/// Rows cover `k` elements of `elem`; `dst` has room for `k·width` units and the slack.
pub(crate) unsafe fn pack_rows<U: Unit>(elem: Elem, rows: &[*const u8], k: usize, width: usize, dst: *mut U) {
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && std::mem::size_of::<U>() == 4 && U::K == 1 {
        // SAFETY: AVX2, FMA and F16C are present; the contract is the caller's.
        if unsafe { x86::rows(elem, rows, k, width, dst.cast()) } {
            return;
        }
    }
    let size = elem.size();
    for p in 0..k {
        for l in 0..width {
            let row = rows.get(l).copied().unwrap_or(std::ptr::null());
            // SAFETY: the caller's contract.
            unsafe {
                *dst.add(p * width + l) = if row.is_null() { U::ZERO } else { U::read(elem, row.add(p * size), 0, 1) }
            };
        }
    }
}

impl Unit for f32 {
    const K: usize = 1;
    const ZERO: f32 = 0.0;
    fn same_as(elem: Elem) -> bool {
        elem == Elem::F32
    }
    #[inline(always)]
    unsafe fn read(elem: Elem, p: *const u8, _: isize, _: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            match elem {
                Elem::F32 => p.cast::<f32>().read_unaligned(),
                Elem::BF16 => p.cast::<BF16>().read_unaligned().to_f32(),
                Elem::F16 => p.cast::<F16>().read_unaligned().to_f32(),
                e => e.load_f64(p) as f32,
            }
        }
    }
}

impl Unit for f64 {
    const K: usize = 1;
    const ZERO: f64 = 0.0;
    fn same_as(elem: Elem) -> bool {
        elem == Elem::F64
    }
    #[inline(always)]
    unsafe fn read(elem: Elem, p: *const u8, _: isize, _: usize) -> f64 {
        // SAFETY: the caller's contract.
        unsafe { if elem == Elem::F64 { p.cast::<f64>().read_unaligned() } else { elem.load_f64(p) } }
    }
}

impl Unit for Pair {
    const K: usize = 2;
    const ZERO: Pair = Pair(0);
    fn same_as(_: Elem) -> bool {
        // Pairs lie side by side only along a contiguous, even k: rare enough to pack always.
        false
    }
    #[inline(always)]
    unsafe fn read(_: Elem, p: *const u8, k_bytes: isize, have: usize) -> Pair {
        // SAFETY: the caller's contract; the second element is read only if it exists.
        unsafe {
            let lo = p.cast::<u16>().read_unaligned() as u32;
            let hi = if have == 2 { p.wrapping_offset(k_bytes).cast::<u16>().read_unaligned() as u32 } else { 0 };
            Pair(lo | hi << 16)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Matrix, pack_plain};
    use crate::cpu::lib::elem::Elem;
    use crate::cpu::lib::gemm::kernel::Pair;
    use crate::cpu::lib::simd::{Load8, LoadBf16, LoadF16, LoadF32, transpose8};
    use std::arch::x86_64::*;

    /// Packs 4-byte units if a vector path fits; false if the strides need the plain loop.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn pack(
        s: &Matrix,
        lanes: usize,
        kc: usize,
        width: usize,
        dst: *mut f32,
        per_unit: usize,
    ) -> bool {
        let size = s.elem.size() as isize;
        // SAFETY: the caller's contract throughout.
        unsafe {
            if per_unit == 2 {
                if s.k == size {
                    // A pair of neighbours is one 32-bit word: move words.
                    along_k::<LoadF32>(s, lanes, kc / 2, kc.div_ceil(2), width, dst);
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
                match s.elem {
                    Elem::F32 => along_k::<LoadF32>(s, lanes, kc, kc, width, dst),
                    Elem::BF16 => along_k::<LoadBf16>(s, lanes, kc, kc, width, dst),
                    Elem::F16 => along_k::<LoadF16>(s, lanes, kc, kc, width, dst),
                    _ => return false,
                }
                return true;
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

    /// k is contiguous: 8×8 transposes. Packs units `0..k` of panels that are `units` long.
    #[inline(always)]
    unsafe fn along_k<S: Load8>(s: &Matrix, lanes: usize, k: usize, units: usize, width: usize, dst: *mut f32) {
        for (panel, l0) in (0..lanes).step_by(width).enumerate() {
            let w = width.min(lanes - l0);
            let mut rows = [std::ptr::null(); 32];
            for (l, r) in rows.iter_mut().enumerate().take(w) {
                *r = s.p.wrapping_offset((l0 + l) as isize * s.lane);
            }
            // SAFETY: rows of this panel's lanes; the caller's buffer.
            unsafe { panel_rows::<S>(&rows[..w], k, width, dst.wrapping_add(panel * units * width)) };
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn rows(elem: Elem, rows: &[*const u8], k: usize, width: usize, dst: *mut f32) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            match elem {
                Elem::F32 => panel_rows::<LoadF32>(rows, k, width, dst),
                Elem::BF16 => panel_rows::<LoadBf16>(rows, k, width, dst),
                Elem::F16 => panel_rows::<LoadF16>(rows, k, width, dst),
                _ => return false,
            }
        }
        true
    }

    /// One panel from rows along k (null: zeros), in 8×8 transposes.
    #[inline(always)]
    unsafe fn panel_rows<S: Load8>(rows: &[*const u8], k: usize, width: usize, out: *mut f32) {
        let groups = width.div_ceil(8);
        let mut src = [std::ptr::null::<u8>(); 32];
        src[..rows.len()].copy_from_slice(rows);
        let mut p = 0;
        // SAFETY: rows cover `k` elements; stores run at most 8 - width % 8 units past a k step,
        // into what is written next (or the slack).
        unsafe {
            while p + 8 <= k {
                let mut t = [[_mm256_setzero_ps(); 8]; 4];
                for (g, block) in t.iter_mut().enumerate().take(groups) {
                    for (r, row) in block.iter_mut().enumerate() {
                        let q = src[g * 8 + r];
                        if !q.is_null() {
                            *row = S::load8(q.add(p * S::SIZE));
                        }
                    }
                    transpose8(block);
                }
                for q in 0..8 {
                    for (g, block) in t.iter().enumerate().take(groups) {
                        _mm256_storeu_ps(out.add((p + q) * width + g * 8), block[q]);
                    }
                }
                p += 8;
            }
            while p < k {
                for (l, q) in src.iter().enumerate().take(width) {
                    *out.add(p * width + l) = if q.is_null() { 0.0 } else { S::load1(q.add(p * S::SIZE)) };
                }
                p += 1;
            }
        }
    }

    /// Lanes are contiguous: copies of whole vectors.
    ///
    /// Several panels are filled together, so that each row is read in long runs: single lines at
    /// large strides are what memory is slowest at.
    #[inline(always)]
    unsafe fn along_lanes<S: Load8>(s: &Matrix, lanes: usize, k: usize, width: usize, dst: *mut f32) {
        let (wide, groups) = (width.next_multiple_of(8), width.div_ceil(8));
        // Panels whose vector reads stay within the lanes.
        let whole = if lanes >= wide { (lanes - wide) / width + 1 } else { 0 };
        // A narrow panel's stores spill into the next panel's first units: fill it alone, in order.
        let together = if wide == width { 8 } else { 1 };
        // SAFETY: vector reads cover existing lanes; spilled stores are overwritten or slack.
        unsafe {
            for first in (0..whole).step_by(together) {
                let last = (first + together).min(whole);
                for p in 0..k {
                    let row = s.p.wrapping_offset(p as isize * s.k);
                    for panel in first..last {
                        let src = row.wrapping_add(panel * width * S::SIZE);
                        let out = dst.wrapping_add((panel * k + p) * width);
                        for g in 0..groups {
                            _mm256_storeu_ps(out.add(g * 8), S::load8(src.add(g * 8 * S::SIZE)));
                        }
                    }
                }
            }
            for panel in whole..lanes.div_ceil(width) {
                let w = width.min(lanes - panel * width);
                for p in 0..k {
                    let row = s.p.wrapping_offset(p as isize * s.k).wrapping_add(panel * width * S::SIZE);
                    let out = dst.wrapping_add((panel * k + p) * width);
                    let mut l = 0;
                    while l + 8 <= w {
                        _mm256_storeu_ps(out.add(l), S::load8(row.add(l * S::SIZE)));
                        l += 8;
                    }
                    while l < width {
                        *out.add(l) = if l < w { S::load1(row.add(l * S::SIZE)) } else { 0.0 };
                        l += 1;
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
}
