//! Gathers: rows of a table, general advanced indexing, and `torch.gather` along a dimension.

use std::sync::Mutex;

use super::elem::Elem;
use super::view::{LibError, Ptr, View, Walk};
use crate::cpu::pool;
use smallvec::SmallVec;

/// Out-of-range indices met by a gather or scatter. They are clamped, never followed; the executor
/// raises PyTorch's IndexError from this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexReport {
    /// How many index values were out of range.
    pub bad: usize,
    /// The first in row-major order of the index arrays.
    pub first: Option<BadIndex>,
}

/// One out-of-range index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// Row-major position in the index array.
    pub position: usize,
    /// Dimension of the indexed operand.
    pub dim: usize,
    pub value: i64,
    /// Size of that dimension.
    pub size: usize,
}

impl IndexReport {
    fn note(&mut self, b: BadIndex) {
        self.bad += 1;
        if self.first.is_none_or(|f| b.position < f.position) {
            self.first = Some(b);
        }
    }
    pub(crate) fn merge(&mut self, o: IndexReport) {
        self.bad += o.bad;
        if let Some(b) = o.first
            && self.first.is_none_or(|f| b.position < f.position)
        {
            self.first = Some(b);
        }
    }
}

/// Checks and, for `wrap`, counts negative indices from the end; clamps what is out of range.
#[inline(always)]
pub(crate) fn resolve(v: i64, size: usize, wrap: bool, position: usize, dim: usize, report: &mut IndexReport) -> usize {
    let w = if wrap && v < 0 { v + size as i64 } else { v };
    if w >= 0 && (w as u64) < size as u64 {
        return w as usize;
    }
    report.note(BadIndex { position, dim, value: v, size });
    (w.max(0) as usize).min(size.saturating_sub(1))
}

/// The geometry shared by general gathers and scatters: an operand, the dimensions that are indexed
/// by arrays of one shape I, and the remaining ones.
pub(crate) struct Indexed<'a> {
    pub(crate) dims: &'a [usize],
    pub(crate) indices: &'a [View<'a>],
    pub(crate) sizes: SmallVec<[usize; 8]>,
    pub(crate) strides: SmallVec<[isize; 8]>,
    pub(crate) rest_dims: SmallVec<[usize; 8]>,
    pub(crate) rest_strides: SmallVec<[isize; 8]>,
    /// Elements of I.
    pub(crate) count: usize,
    /// Elements of the remaining dimensions.
    pub(crate) rest: usize,
    pub(crate) wrap: bool,
}

impl<'a> Indexed<'a> {
    /// `whole`: the updates of a scatter or the result of a gather, of shape I ++ rest.
    pub(crate) fn new(
        kernel: &'static str,
        operand: &View,
        dims: &'a [usize],
        indices: &'a [View<'a>],
        whole: &View,
        wrap: bool,
    ) -> Result<Indexed<'a>, LibError> {
        operand.check(kernel)?;
        whole.check(kernel)?;
        let shape = indices.first().map(|v| v.dims).unwrap_or(&[]);
        let distinct = dims.iter().enumerate().all(|(i, d)| *d < operand.rank() && !dims[..i].contains(d));
        if !distinct
            || dims.len() != indices.len()
            || indices.iter().any(|v| v.elem != Elem::I64 || v.dims != shape || v.strides.len() != v.rank())
        {
            return Err(LibError::shape(
                kernel,
                format!("dims {dims:?} of {:?} with {} index arrays", operand.dims, indices.len()),
            ));
        }
        let rest: SmallVec<[usize; 8]> = (0..operand.rank()).filter(|d| !dims.contains(d)).collect();
        let g = Indexed {
            dims,
            indices,
            sizes: dims.iter().map(|&d| operand.dims[d]).collect(),
            strides: dims.iter().map(|&d| operand.strides[d]).collect(),
            rest_dims: rest.iter().map(|&d| operand.dims[d]).collect(),
            rest_strides: rest.iter().map(|&d| operand.strides[d]).collect(),
            count: shape.iter().product(),
            rest: rest.iter().map(|&d| operand.dims[d]).product(),
            wrap,
        };
        let want = shape.iter().chain(&g.rest_dims);
        if whole.elem != operand.elem || !whole.dims.iter().eq(want) {
            return Err(LibError::shape(
                kernel,
                format!("{:?} for indices {shape:?} over {:?}", whole.dims, operand.dims),
            ));
        }
        if g.count > 0 && g.rest > 0 && g.sizes.contains(&0) {
            return Err(LibError::shape(kernel, "indexing into an empty dimension"));
        }
        Ok(g)
    }

    /// Visits index positions `begin..end` with the operand's offset, the flat destination among the
    /// indexed dimensions, and the offset in `whole`.
    ///
    /// # Safety
    /// Index arrays cover live memory.
    pub(crate) unsafe fn visit(
        &self,
        whole: &View,
        begin: usize,
        end: usize,
        report: &mut IndexReport,
        mut f: impl FnMut(isize, usize, isize),
    ) {
        let shape = self.indices.first().map(|v| v.dims).unwrap_or(&[]);
        let mut w = Walk::new(shape, [&whole.strides[..shape.len()]], begin);
        let mut walks: SmallVec<[Walk<1>; 4]> =
            self.indices.iter().map(|v| Walk::new(shape, [v.strides], begin)).collect();
        for pos in begin..end {
            let (mut off, mut flat) = (0isize, 0usize);
            for (i, walk) in walks.iter_mut().enumerate() {
                // SAFETY: the walk stays inside the index array.
                let v = unsafe { *self.indices[i].ptr.cast::<i64>().offset(walk.off[0]) };
                let at = resolve(v, self.sizes[i], self.wrap, pos, self.dims[i], report);
                off += at as isize * self.strides[i];
                flat = flat * self.sizes[i] + at;
                walk.step();
            }
            f(off, flat, w.off[0]);
            w.step();
        }
    }
}

/// `dst[I.., rest..] = src[.., indices[i][I] at dims[i], .., rest..]`.
///
/// `dims`: distinct dimensions of `src`; `indices`: one i64 array for each, all of one shape I;
/// `dst`: shape I followed by `src`'s other dimensions in order. `wrap`: negative indices count from
/// the end. Errors on shape mismatch; out-of-range indices are clamped and reported.
///
/// # Safety
/// Views cover live memory; `dst` overlaps nothing.
pub unsafe fn gather(
    dst: &View,
    src: &View,
    dims: &[usize],
    indices: &[View],
    wrap: bool,
) -> Result<IndexReport, LibError> {
    let g = Indexed::new("gather", src, dims, indices, dst, wrap)?;
    let all = Mutex::new(IndexReport::default());
    if g.rest == 0 || g.count == 0 {
        return Ok(IndexReport::default());
    }
    let size = src.elem.size();
    let tail = &dst.strides[dst.rank() - g.rest_dims.len()..];
    let dense = View::new(src.ptr, src.elem, &g.rest_dims, &g.rest_strides).is_contiguous()
        && View::new(dst.ptr, dst.elem, &g.rest_dims, tail).is_contiguous();
    let (sp, dp) = (Ptr(src.ptr), Ptr(dst.ptr));
    let cost = (g.count * g.rest * size) as u64 / 8 + g.count as u64 * 5;
    pool::parallel_range(g.count, 1, cost, &|begin, end| {
        let mut report = IndexReport::default();
        // SAFETY: clamped offsets stay inside `src`; each index position writes its own part of `dst`.
        unsafe {
            g.visit(dst, begin, end, &mut report, |so, _, d_o| {
                let (s, d) = (sp.at::<u8>(so * size as isize), dp.at::<u8>(d_o * size as isize));
                if dense {
                    std::ptr::copy_nonoverlapping(s, d, g.rest * size);
                } else {
                    let mut w = Walk::new(&g.rest_dims, [&g.rest_strides, tail], 0);
                    for _ in 0..g.rest {
                        move_one(
                            size,
                            s.wrapping_offset(w.off[0] * size as isize),
                            d.wrapping_offset(w.off[1] * size as isize),
                        );
                        w.step();
                    }
                }
            });
        }
        if let (true, Ok(mut a)) = (report.bad > 0, all.lock()) {
            a.merge(report);
        }
    });
    Ok(all.into_inner().unwrap_or_default())
}

#[inline(always)]
pub(crate) unsafe fn move_one(size: usize, s: *const u8, d: *mut u8) {
    // SAFETY: the caller's element of `size` bytes on both sides, aligned as such.
    unsafe {
        match size {
            1 => *d = *s,
            2 => *d.cast::<u16>() = *s.cast::<u16>(),
            4 => *d.cast::<u32>() = *s.cast::<u32>(),
            _ => *d.cast::<u64>() = *s.cast::<u64>(),
        }
    }
}

/// `torch.gather`: `dst[p] = src[p with index[p] at dim]`, for every position p of `index`.
///
/// `dst` and `index` (i64) have one shape, whose other dimensions do not exceed `src`'s.
///
/// # Safety
/// As [`gather`].
pub unsafe fn gather_along(dst: &View, src: &View, dim: usize, index: &View) -> Result<IndexReport, LibError> {
    along_check("gather_along", src, dst, dim, index)?;
    let n = index.count();
    let all = Mutex::new(IndexReport::default());
    if n == 0 {
        return Ok(IndexReport::default());
    }
    let (extent, step) = (src.dims.get(dim).copied().unwrap_or(1), src.strides.get(dim).copied().unwrap_or(0));
    let mut others: SmallVec<[isize; 8]> = src.strides.into();
    if let Some(s) = others.get_mut(dim) {
        *s = 0;
    }
    let size = src.elem.size() as isize;
    let (sp, dp, ip) = (Ptr(src.ptr), Ptr(dst.ptr), Ptr(index.ptr));
    pool::parallel_range(n, 1024, n as u64 * 4, &|begin, end| {
        let mut report = IndexReport::default();
        let mut w = Walk::new(index.dims, [index.strides, dst.strides, &others], begin);
        for pos in begin..end {
            // SAFETY: positions of `index` and `dst`; the clamped index stays inside `src`.
            unsafe {
                let at = resolve(*ip.at::<i64>(w.off[0]), extent, false, pos, dim, &mut report);
                let s = sp.at::<u8>((w.off[2] + at as isize * step) * size);
                move_one(size as usize, s, dp.at::<u8>(w.off[1] * size));
            }
            w.step();
        }
        if let (true, Ok(mut a)) = (report.bad > 0, all.lock()) {
            a.merge(report);
        }
    });
    Ok(all.into_inner().unwrap_or_default())
}

/// Shape rules of the `_along` forms: `operand` is indexed, `other` runs along with `index`.
pub(crate) fn along_check(
    kernel: &'static str,
    operand: &View,
    other: &View,
    dim: usize,
    index: &View,
) -> Result<(), LibError> {
    operand.check(kernel)?;
    other.check(kernel)?;
    index.check(kernel)?;
    let n = index.count();
    let ok = index.elem == Elem::I64
        && other.elem == operand.elem
        && other.dims == index.dims
        && index.rank() == operand.rank()
        && (dim < operand.rank() || operand.rank() == 0)
        && (n == 0 || index.dims.iter().zip(operand.dims).enumerate().all(|(d, (i, o))| d == dim || i <= o))
        && (n == 0 || operand.dims.get(dim) != Some(&0));
    if ok {
        Ok(())
    } else {
        Err(LibError::shape(
            kernel,
            format!("index {:?}, values {:?} over {:?} along {dim}", index.dims, other.dims, operand.dims),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ix<'a>(v: &'a [i64], dims: &'a [usize], st: &'a [isize]) -> View<'a> {
        View::new(v.as_ptr().cast_mut().cast(), Elem::I64, dims, st)
    }

    #[test]
    fn rows_and_report() {
        let t: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let src = View::new(t.as_ptr().cast_mut().cast(), Elem::F32, &[4, 3], &[3, 1]);
        let mut out = [0f32; 12];
        let dst = View::new(out.as_mut_ptr().cast(), Elem::F32, &[2, 2, 3], &[6, 3, 1]);
        let idx = [3i64, 0, -1, 7];
        // SAFETY: buffers cover the views.
        let r = unsafe { gather(&dst, &src, &[0], &[ix(&idx, &[2, 2], &[2, 1])], false).unwrap() };
        assert_eq!(out, [9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 9.0, 10.0, 11.0]);
        assert_eq!(r, IndexReport { bad: 2, first: Some(BadIndex { position: 2, dim: 0, value: -1, size: 4 }) });
        // SAFETY: as above.
        let r = unsafe { gather(&dst, &src, &[0], &[ix(&idx[..3], &[3], &[1])], true) };
        assert!(r.is_err());
    }

    #[test]
    fn two_dims_with_wrap_and_a_transposed_operand() {
        let t: Vec<i32> = (0..24).collect();
        // Logical [2, 3, 4] stored as [4, 3, 2].
        let src = View::new(t.as_ptr().cast_mut().cast(), Elem::I32, &[2, 3, 4], &[1, 2, 6]);
        let (a, b) = ([1i64, 0, -1], [3i64, -4, 0]);
        let mut out = [0i32; 9];
        let dst = View::new(out.as_mut_ptr().cast(), Elem::I32, &[3, 3], &[3, 1]);
        // SAFETY: buffers cover the views.
        let r = unsafe { gather(&dst, &src, &[0, 2], &[ix(&a, &[3], &[1]), ix(&b, &[3], &[1])], true).unwrap() };
        assert_eq!(r.bad, 0);
        for (i, (x, z)) in [(1, 3), (0, 0), (1, 0)].into_iter().enumerate() {
            for y in 0..3 {
                assert_eq!(out[i * 3 + y], x + 2 * y as i32 + 6 * z);
            }
        }
    }

    #[test]
    fn along_a_dimension() {
        let t = [1f64, 2.0, 3.0, 4.0, 5.0, 6.0];
        let src = View::new(t.as_ptr().cast_mut().cast(), Elem::F64, &[2, 3], &[3, 1]);
        let idx = [2i64, 0, 1, 9];
        let mut out = [0f64; 4];
        let dst = View::new(out.as_mut_ptr().cast(), Elem::F64, &[2, 2], &[2, 1]);
        // SAFETY: buffers cover the views.
        let r = unsafe { gather_along(&dst, &src, 1, &ix(&idx, &[2, 2], &[2, 1])).unwrap() };
        assert_eq!((out, r.bad), ([3.0, 1.0, 5.0, 6.0], 1));
    }
}
