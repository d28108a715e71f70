//! Positions of the greatest or least element along a dimension.

use super::elem::{Elem, Scalar};
use super::view::{LibError, Ptr, View, Walk, without};
use crate::cpu::pool;
use crate::dispatch_elem;

/// Lanes taken together (see `scan`).
const GROUP: usize = 16;

/// Writes for each lane of `src` along `dim` the position of its maximum (minimum if not `max`) to
/// `indices` (i64) and, if given, the element itself to `values`.
///
/// Outputs have `src`'s shape without `dim`. The first NaN wins, else the first of equals.
/// Errors on shape mismatch or an empty `dim` with a non-empty output.
///
/// # Safety
/// Views cover live memory; outputs overlap nothing.
pub unsafe fn argreduce(
    indices: &View,
    values: Option<&View>,
    src: &View,
    dim: usize,
    max: bool,
) -> Result<(), LibError> {
    src.check("argreduce")?;
    if src.rank() == 0 {
        let s = View { dims: &[1], strides: &[1], ..*src };
        // SAFETY: a 0-d view covers one element.
        return unsafe { argreduce(indices, values, &s, 0, max) };
    }
    let fits = |v: &View, e: Elem| {
        dim < src.rank() && v.elem == e && v.dims == &without(src.dims, dim)[..] && v.strides.len() == v.rank()
    };
    if !fits(indices, Elem::I64) || values.is_some_and(|v| !fits(v, src.elem)) {
        return Err(LibError::shape("argreduce", format!("{:?} along {dim} into {:?}", src.dims, indices.dims)));
    }
    if indices.count() == 0 {
        return Ok(());
    }
    if src.dims[dim] == 0 {
        return Err(LibError::shape("argreduce", "no element to choose from"));
    }
    dispatch_elem!(src.elem, T => {
        // SAFETY: the caller's contract.
        unsafe { lanes::<T>(indices, values, src, dim, max) }
    });
    Ok(())
}

unsafe fn lanes<T: Scalar>(indices: &View, values: Option<&View>, src: &View, dim: usize, max: bool) {
    let (n, step) = (src.dims[dim], src.strides[dim]);
    let outer = without(src.dims, dim);
    let st = without(src.strides, dim);
    let count: usize = outer.iter().product();
    let (sp, ip, vp) = (Ptr(src.ptr), Ptr(indices.ptr), values.map(|v| Ptr(v.ptr)));
    let vst = values.map_or(indices.strides, |v| v.strides);
    pool::parallel_range(count, GROUP, (count * n) as u64, &|begin, end| {
        let mut w = Walk::new(&outer, [&st, indices.strides, vst], begin);
        let mut lane = begin;
        while lane < end {
            let group = GROUP.min(end - lane);
            let mut off = [[0isize; 3]; GROUP];
            for o in off.iter_mut().take(group) {
                *o = w.off;
                w.step();
            }
            // SAFETY: offsets of lanes `lane..lane + group`, positions `0..n`.
            unsafe {
                let mut best: [T; GROUP] = std::array::from_fn(|l| *sp.at::<T>(off[l.min(group - 1)][0]));
                let mut at = [0i64; GROUP];
                for j in 1..n {
                    for l in 0..group {
                        let x = *sp.at::<T>(off[l][0] + j as isize * step);
                        let better = if max { best[l].lt(x) } else { x.lt(best[l]) };
                        if better || (x.is_nan() && !best[l].is_nan()) {
                            best[l] = x;
                            at[l] = j as i64;
                        }
                    }
                }
                for l in 0..group {
                    *ip.at::<i64>(off[l][1]) = at[l];
                    if let Some(vp) = vp {
                        *vp.at::<T>(off[l][2]) = best[l];
                    }
                }
            }
            lane += group;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_equals_and_nan() {
        let n = f32::NAN;
        let v = [1f32, 5.0, 5.0, 0.0, n, 9.0, n, -1.0, 2.0, 2.0, -1.0, -1.0];
        let src = View::new(v.as_ptr().cast_mut().cast(), Elem::F32, &[3, 4], &[4, 1]);
        let (mut idx, mut val) = ([0i64; 4], [0f32; 4]);
        let i = View::new(idx.as_mut_ptr().cast(), Elem::I64, &[3], &[1]);
        let o = View::new(val.as_mut_ptr().cast(), Elem::F32, &[3], &[1]);
        // SAFETY: buffers cover the views.
        unsafe {
            argreduce(&i, Some(&o), &src, 1, true).unwrap();
            assert_eq!(idx[..3], [1, 0, 0]);
            assert!(val[0] == 5.0 && val[1].is_nan() && val[2] == 2.0);
            argreduce(&i, None, &src, 1, false).unwrap();
            assert_eq!(idx[..3], [3, 0, 2]);
            let i = View::new(idx.as_mut_ptr().cast(), Elem::I64, &[4], &[1]);
            argreduce(&i, None, &src, 0, true).unwrap();
            assert_eq!(idx, [1, 1, 1, 0]);
            assert!(argreduce(&i, None, &src, 2, true).is_err());
        }
    }

    #[test]
    fn integers_and_empty() {
        let v = [i64::MIN, 3, i64::MAX, 3];
        let src = View::new(v.as_ptr().cast_mut().cast(), Elem::I64, &[4], &[1]);
        let mut idx = [0i64];
        let i = View::new(idx.as_mut_ptr().cast(), Elem::I64, &[], &[]);
        // SAFETY: buffers cover the views.
        unsafe {
            argreduce(&i, None, &src, 0, true).unwrap();
            assert_eq!(idx, [2]);
            let e = View::new(v.as_ptr().cast_mut().cast(), Elem::I64, &[0], &[1]);
            assert!(argreduce(&i, None, &e, 0, true).is_err());
        }
    }
}
