//! Scatters in place: advanced-index updates and `torch.scatter` along a dimension.
//!
//! Updates reach each element in the row-major order of the index arrays, as if run sequentially;
//! threads divide destinations between them, never the order.

use std::sync::Mutex;

use super::elem::Scalar;
use super::gather::{IndexReport, Indexed, along_check, resolve};
use super::view::{LibError, Ptr, View, Walk, without};
use crate::cpu::pool;
use crate::dispatch_elem;
use smallvec::SmallVec;

/// How an update meets the element it lands on. Arithmetic is in the element type; `Max` and `Min`
/// keep NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterKind {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

#[inline(always)]
fn combine<T: Scalar>(kind: ScatterKind, old: T, new: T) -> T {
    match kind {
        ScatterKind::Set => new,
        ScatterKind::Add => old.add(new),
        ScatterKind::Mul => old.mul(new),
        ScatterKind::Max => old.max_nan(new),
        ScatterKind::Min => old.min_nan(new),
    }
}

/// `operand[.., indices[i][I] at dims[i], .., rest..] (kind)= updates[I.., rest..]`, in place.
///
/// `dims`, `indices`, `wrap`: as [`super::gather::gather`]; `updates`: shape I ++ rest, the
/// operand's element type. Errors on shape mismatch; out-of-range indices are clamped and reported.
///
/// # Safety
/// Views cover live memory; `operand` overlaps neither itself nor the others.
pub unsafe fn scatter(
    operand: &View,
    dims: &[usize],
    indices: &[View],
    updates: &View,
    kind: ScatterKind,
    wrap: bool,
) -> Result<IndexReport, LibError> {
    let g = Indexed::new("scatter", operand, dims, indices, updates, wrap)?;
    if g.rest == 0 || g.count == 0 {
        return Ok(IndexReport::default());
    }
    // SAFETY: the caller's contract.
    Ok(dispatch_elem!(operand.elem, T => unsafe { run::<T>(operand, &g, updates, kind) }))
}

unsafe fn run<T: Scalar>(operand: &View, g: &Indexed, updates: &View, kind: ScatterKind) -> IndexReport {
    let tail = &updates.strides[updates.rank() - g.rest_dims.len()..];
    let dense = View::new(operand.ptr, operand.elem, &g.rest_dims, &g.rest_strides).is_contiguous()
        && View::new(updates.ptr, updates.elem, &g.rest_dims, tail).is_contiguous();
    let (op, up) = (Ptr(operand.ptr), Ptr(updates.ptr));
    let report = Mutex::new(IndexReport::default());
    let cost = (g.count * g.rest) as u64 + g.count as u64 * 5;
    let threads = pool::num_threads();
    // Wide rows: threads take columns. Narrow rows: threads take destinations, each reading all
    // indices.
    let by_columns = g.rest >= 32 * threads;
    let parts = if threads == 1 || cost < 20_000 { 1 } else { threads };
    let targets: usize = g.sizes.iter().product();
    pool::parallel_for(parts, cost, &|part| {
        let (c0, c1) = if by_columns { (g.rest * part / parts, g.rest * (part + 1) / parts) } else { (0, g.rest) };
        let mut mine = IndexReport::default();
        // SAFETY: clamped offsets lie in the operand; parts touch disjoint elements of it.
        unsafe {
            g.visit(updates, 0, g.count, &mut mine, |oo, flat, uo| {
                if !by_columns && parts > 1 && flat * parts / targets != part {
                    return;
                }
                if dense {
                    let (d, s) = (op.at::<T>(oo + c0 as isize), up.at::<T>(uo + c0 as isize));
                    combine_row(kind, d, s, c1 - c0);
                } else {
                    let mut w = Walk::new(&g.rest_dims, [&g.rest_strides, tail], c0);
                    for _ in c0..c1 {
                        let d = op.at::<T>(oo + w.off[0]);
                        *d = combine(kind, *d, *up.at::<T>(uo + w.off[1]));
                        w.step();
                    }
                }
            });
        }
        // Every part sees all indices; one reports.
        if let (0, Ok(mut r)) = (part, report.lock()) {
            *r = mine;
        }
    });
    report.into_inner().unwrap_or_default()
}

/// Combines a dense row, with vectors where the processor has them.
unsafe fn combine_row<T: Scalar>(kind: ScatterKind, d: *mut T, s: *const T, n: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2<T: Scalar>(kind: ScatterKind, d: *mut T, s: *const T, n: usize) {
            // SAFETY: the same contract.
            unsafe { row(kind, d, s, n) }
        }
        if super::isa::current() >= super::isa::Isa::Avx2 {
            // SAFETY: AVX2 is present; the caller's rows.
            return unsafe { avx2(kind, d, s, n) };
        }
    }
    // SAFETY: the caller's rows.
    unsafe { row(kind, d, s, n) }
}

#[inline(always)]
unsafe fn row<T: Scalar>(kind: ScatterKind, d: *mut T, s: *const T, n: usize) {
    // SAFETY: both rows have `n` elements and do not overlap.
    unsafe {
        match kind {
            ScatterKind::Set => std::ptr::copy_nonoverlapping(s, d, n),
            ScatterKind::Add => (0..n).for_each(|i| *d.add(i) = (*d.add(i)).add(*s.add(i))),
            _ => (0..n).for_each(|i| *d.add(i) = combine(kind, *d.add(i), *s.add(i))),
        }
    }
}

/// `torch.scatter`: `operand[p with index[p] at dim] (kind)= updates[p]` for every position p of
/// `index`, in row-major order along `dim`.
///
/// `updates` has `index`'s shape (a stride of 0 everywhere gives the scalar form).
///
/// # Safety
/// As [`scatter`].
pub unsafe fn scatter_along(
    operand: &View,
    dim: usize,
    index: &View,
    updates: &View,
    kind: ScatterKind,
) -> Result<IndexReport, LibError> {
    along_check("scatter_along", operand, updates, dim, index)?;
    if index.count() == 0 {
        return Ok(IndexReport::default());
    }
    if operand.rank() == 0 {
        let one = |v: &View| View { dims: &[1], strides: &[1], ..*v };
        let i = View { ptr: index.ptr, elem: index.elem, dims: &[1], strides: &[1] };
        let u = View { ptr: updates.ptr, elem: updates.elem, dims: &[1], strides: &[1] };
        // SAFETY: 0-d views cover one element.
        return unsafe { scatter_along(&one(operand), 0, &i, &u, kind) };
    }
    let outer = without(index.dims, dim);
    let st = [without(index.strides, dim), without(updates.strides, dim), without(operand.strides, dim)];
    let (n, extent) = (index.dims[dim], operand.dims[dim]);
    let lanes: usize = outer.iter().product();
    let (ip, up, op) = (Ptr(index.ptr), Ptr(updates.ptr), Ptr(operand.ptr));
    let (is, us, os) = (index.strides[dim], updates.strides[dim], operand.strides[dim]);
    // Row-major position of an index element, for the report.
    let dense: SmallVec<[isize; 8]> = super::view::dense_strides(index.dims).into();
    let pos_st = without(&dense, dim);
    let all = Mutex::new(IndexReport::default());
    dispatch_elem!(operand.elem, T => pool::parallel_range(lanes, 1, (lanes * n) as u64 * 4, &|begin, end| {
        let mut report = IndexReport::default();
        let mut w = Walk::new(&outer, [&st[0], &st[1], &st[2], &pos_st], begin);
        for _ in begin..end {
            for j in 0..n as isize {
                // SAFETY: lanes are disjoint in the operand; the clamped index stays inside.
                unsafe {
                    let pos = (w.off[3] + j * dense[dim]) as usize;
                    let at = resolve(*ip.at::<i64>(w.off[0] + j * is), extent, false, pos, dim, &mut report);
                    let d = op.at::<T>(w.off[2] + at as isize * os);
                    *d = combine(kind, *d, *up.at::<T>(w.off[1] + j * us));
                }
            }
            w.step();
        }
        if let (true, Ok(mut a)) = (report.bad > 0, all.lock()) {
            a.merge(report);
        }
    }));
    Ok(all.into_inner().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::Elem;
    use crate::cpu::lib::testing::Lcg;

    #[test]
    fn embedding_backward_wide_and_narrow() {
        let mut rng = Lcg(3);
        for rest in [1usize, 3, 200] {
            let (rows, n) = (17usize, 9000usize);
            let idx: Vec<i64> = (0..n).map(|_| rng.below(rows) as i64).collect();
            let up: Vec<f32> = (0..n * rest).map(|_| rng.uniform() as f32).collect();
            let mut got = vec![1f32; rows * rest];
            let mut want = got.clone();
            for (i, &r) in idx.iter().enumerate() {
                for c in 0..rest {
                    want[r as usize * rest + c] += up[i * rest + c];
                }
            }
            let (od, os) = ([rows, rest], [rest as isize, 1]);
            let (ud, us) = ([n, rest], [rest as isize, 1]);
            let (id, is) = ([n], [1isize]);
            let ix = [View::new(idx.as_ptr().cast_mut().cast(), Elem::I64, &id, &is)];
            // SAFETY: buffers cover the views.
            let r = unsafe {
                scatter(
                    &View::new(got.as_mut_ptr().cast(), Elem::F32, &od, &os),
                    &[0],
                    &ix,
                    &View::new(up.as_ptr().cast_mut().cast(), Elem::F32, &ud, &us),
                    ScatterKind::Add,
                    false,
                )
                .unwrap()
            };
            assert_eq!(r.bad, 0);
            assert_eq!(got, want, "bitwise: the order is the sequential one");
        }
    }

    #[test]
    fn kinds_two_dims_and_reports() {
        let mut op = [1i32, 2, 3, 4, 5, 6];
        let (a, b) = ([0i64, 1, 1, -1], [2i64, 0, 0, 5]);
        let up = [10i32, 2, 3, 100];
        let sh = [4usize];
        let ix = [
            View::new(a.as_ptr().cast_mut().cast(), Elem::I64, &sh, &[1]),
            View::new(b.as_ptr().cast_mut().cast(), Elem::I64, &sh, &[1]),
        ];
        let o = View::new(op.as_mut_ptr().cast(), Elem::I32, &[2, 3], &[3, 1]);
        let u = View::new(up.as_ptr().cast_mut().cast(), Elem::I32, &sh, &[1]);
        // SAFETY: buffers cover the views.
        let r = unsafe { scatter(&o, &[0, 1], &ix, &u, ScatterKind::Mul, true).unwrap() };
        assert_eq!(op, [1, 2, 30, 24, 5, 600]);
        assert_eq!((r.bad, r.first.unwrap().value, r.first.unwrap().dim), (1, 5, 1));
        let mut f = [1f32, f32::NAN, 3.0];
        let i = [0i64, 1, 2, 2];
        let u = [f32::NAN, 5.0, 2.0, 9.0];
        let o = View::new(f.as_mut_ptr().cast(), Elem::F32, &[3], &[1]);
        // SAFETY: as above.
        unsafe {
            scatter_along(
                &o,
                0,
                &View::new(i.as_ptr().cast_mut().cast(), Elem::I64, &sh, &[1]),
                &View::new(u.as_ptr().cast_mut().cast(), Elem::F32, &sh, &[1]),
                ScatterKind::Max,
            )
            .unwrap()
        };
        assert!(f[0].is_nan() && f[1].is_nan() && f[2] == 9.0);
    }

    #[test]
    fn along_rows_last_write_wins() {
        let mut op = [0u8; 6];
        let i = [1i64, 1, 0, 4];
        let u = [7u8, 8, 9, 1];
        let o = View::new(op.as_mut_ptr(), Elem::U8, &[2, 3], &[3, 1]);
        let ix = View::new(i.as_ptr().cast_mut().cast(), Elem::I64, &[2, 2], &[2, 1]);
        // SAFETY: buffers cover the views.
        let r = unsafe {
            scatter_along(&o, 1, &ix, &View::new(u.as_ptr().cast_mut(), Elem::U8, &[2, 2], &[2, 1]), ScatterKind::Set)
                .unwrap()
        };
        assert_eq!(op, [0, 8, 0, 9, 0, 1]);
        assert_eq!((r.bad, r.first.unwrap().position), (1, 3));
    }
}
