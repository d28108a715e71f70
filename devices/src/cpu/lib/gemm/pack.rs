//! Packing: operands rearranged into the order in which the register tiles read them.
//!
//! A packed block is a list of panels of `width` lanes (rows of A, or columns of B); a panel holds,
//! for each unit of k, its `width` numbers side by side: `dst[panel][k][lane]`. Lanes beyond the
//! matrix are zero, as is the second half of a last odd pair.

use super::kernel::Pair;
#[cfg(target_arch = "x86_64")]
use super::pack_x86 as x86;
use super::{BatchDim, batch_offset};
use crate::cpu::lib::elem::{BF16, Elem, F16};
use crate::cpu::lib::isa::{self, Isa};
use crate::cpu::lib::view::Ptr;
use crate::kept::Keep;
use smallvec::SmallVec;

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

/// Supplies an operand's blocks. Implemented for strided matrices here and for convolution's
/// implicit patches in `conv`.
pub(crate) trait Pack<U: Unit>: Sync {
    /// Packs lanes `lane0..lane0+lanes` and elements `k0..k0+kc` of k into panels of `width`.
    ///
    /// # Safety
    /// `dst` has room for `ceil(lanes/width)·width·ceil(kc/U::K)` units; the operand's memory is live.
    unsafe fn pack(&self, batch: usize, lane0: usize, lanes: usize, k0: usize, kc: usize, width: usize, dst: *mut U);

    /// Address, lane and k strides and element size, all in bytes, of an operand one of whose
    /// strides is the element size: for fetching its lines ahead.
    fn lines(&self, _batch: usize) -> Option<(*const u8, isize, isize, usize)> {
        None
    }

    /// The operand's address and its lane and k strides, in units, if it lies in memory as units.
    fn direct(&self, _batch: usize) -> Option<(*const U, isize, isize)> {
        None
    }

    /// Where the packed operand may be kept from call to call.
    fn keep(&self) -> Option<Kept<'_>> {
        None
    }
}

/// An operand whose packed form may be kept, for a product of some lanes and elements of k.
pub(crate) struct Kept<'a> {
    pub(crate) keep: Keep<'a>,
    /// Address, element type and strides: what makes the form, besides panels and blocks of k.
    pub(crate) form: SmallVec<[i64; 24]>,
    /// Bytes of an element.
    pub(crate) size: usize,
    /// All products of a batch have the same operand.
    pub(crate) shared: bool,
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
    pub(crate) keep: Option<Keep<'a>>,
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

    fn lines(&self, batch: usize) -> Option<(*const u8, isize, isize, usize)> {
        let size = self.elem.size() as isize;
        let first = batch_offset(self.batch, batch, self.which);
        let lines = (self.ptr.at::<u8>(first * size).cast_const(), self.lane * size, self.k * size, size as usize);
        (self.lane == 1 || self.k == 1).then_some(lines)
    }

    fn direct(&self, batch: usize) -> Option<(*const U, isize, isize)> {
        if !U::same_as(self.elem) {
            return None;
        }
        let first = batch_offset(self.batch, batch, self.which);
        Some((self.ptr.at::<U>(first).cast_const(), self.lane, self.k))
    }

    fn keep(&self) -> Option<Kept<'_>> {
        let keep = self.keep?;
        let mut form =
            SmallVec::from_slice(&[0, keep.offset(self.ptr.0), self.elem as i64, self.lane as i64, self.k as i64]);
        let stride = |d: &BatchDim| if self.which == 0 { d.a } else { d.b };
        let shared = self.batch.iter().all(|d| d.size == 1 || stride(d) == 0);
        if !shared {
            form.extend(self.batch.iter().flat_map(|d| [d.size as i64, stride(d) as i64]));
        }
        Some(Kept { keep, form, size: self.elem.size(), shared })
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
pub(super) unsafe fn pack_plain<U: Unit>(s: &Matrix, lanes: usize, from: usize, kc: usize, width: usize, dst: *mut U) {
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
/// Rows cover `k` elements of `elem`; `dst` has room for `k·width` units.
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
