//! What becomes of finished blocks of sums: epilogue, conversion, C.

use super::{BatchDim, Epilogue, Output, Tile, batch_offset};
use crate::cpu::lib::elem::{Elem, Scalar};
use crate::cpu::lib::simd;
use crate::cpu::lib::view::Ptr;

/// What happens to a finished block.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    pub(crate) out: Option<Output>,
    pub(crate) batch: &'a [BatchDim],
    pub(crate) accumulate: bool,
    pub(crate) epilogue: Option<Epilogue<'a>>,
}
// SAFETY: the output's address is written in disjoint blocks.
unsafe impl Sync for Finish<'_> {}

impl Finish<'_> {
    /// Address and row stride of C if sums of type T can be kept in C itself.
    pub(crate) fn direct<T: Scalar>(&self, batch: usize) -> Option<(*mut T, isize)> {
        let o = self.out.filter(|o| o.elem == T::ELEM)?;
        Some((Ptr(o.ptr).at::<T>(batch_offset(self.batch, batch, 2)), o.ld))
    }

    /// Loads the old C into scratch, for `accumulate`.
    pub(crate) unsafe fn preload<T: Scalar>(
        &self,
        dst: *mut T,
        ld: usize,
        batch: usize,
        row0: usize,
        rows: usize,
        col0: usize,
        cols: usize,
    ) {
        let Some(o) = self.out else { return };
        let off = batch_offset(self.batch, batch, 2) + col0 as isize;
        for r in 0..rows {
            let src = o.ptr.wrapping_offset((off + (row0 + r) as isize * o.ld) * o.elem.size() as isize);
            // SAFETY: the row lies within C; scratch has `ld >= cols` per row.
            unsafe {
                if T::ELEM == Elem::F32 {
                    simd::load_f32(o.elem, src, dst.add(r * ld).cast(), cols);
                } else {
                    for c in 0..cols {
                        *dst.add(r * ld + c) = T::from_f64(o.elem.load_f64(src.add(c * o.elem.size())));
                    }
                }
            }
        }
    }

    /// Runs the epilogue on a finished block and, if it lies in scratch, stores it to C.
    pub(crate) unsafe fn tile<T: Scalar>(
        &self,
        p: *mut T,
        ld: isize,
        in_scratch: bool,
        batch: usize,
        row0: usize,
        rows: usize,
        col0: usize,
        cols: usize,
    ) {
        if let Some(f) = self.epilogue {
            f(&Tile { ptr: p.cast(), ld, batch, row0, col0, rows, cols });
        }
        if !in_scratch {
            return;
        }
        let Some(o) = self.out else { return };
        let off = batch_offset(self.batch, batch, 2) + col0 as isize;
        for r in 0..rows {
            let dst = o.ptr.wrapping_offset((off + (row0 + r) as isize * o.ld) * o.elem.size() as isize);
            let src = p.wrapping_offset(r as isize * ld);
            // SAFETY: as in `preload`.
            unsafe {
                if T::ELEM == Elem::F32 {
                    simd::store_f32(o.elem, src.cast(), dst, cols);
                } else {
                    for c in 0..cols {
                        o.elem.store_f64(dst.add(c * o.elem.size()), (*src.add(c)).to_f64());
                    }
                }
            }
        }
    }
}
