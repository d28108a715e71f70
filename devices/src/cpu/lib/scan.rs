//! Running sums, products, extrema and log-sum-exp along a dimension.

use super::copy::copy;
use super::elem::{Elem, Scalar};
use super::view::{LibError, Ptr, View, without};
use crate::cpu::pool;
use crate::dispatch_elem;

/// What runs along the dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    Sum,
    Prod,
    /// Running maximum; NaN stays; among equals the last position, as PyTorch's `cummax`.
    Max,
    Min,
    LogSumExp,
}

/// Writes to `dst[.., j, ..]` the scan of `src[.., 0..=j, ..]` along `dim`.
///
/// Shapes equal; `src` is converted to `dst`'s type first (an integer `cumsum` runs in int64 so).
/// f32 and f64 run in f64, 16-bit floats in f32, integers wrap: as PyTorch on CPU. `indices` (i64,
/// same shape): for `Max` and `Min`, where each running extremum was found.
/// Errors on shape mismatch, indices for another kind, or `LogSumExp` of a non-float.
///
/// # Safety
/// Views cover live memory; `dst` may be `src` itself, nothing else overlaps.
pub unsafe fn scan(kind: Scan, dst: &View, indices: Option<&View>, src: &View, dim: usize) -> Result<(), LibError> {
    dst.check("scan")?;
    let extremum = matches!(kind, Scan::Max | Scan::Min);
    if dst.dims != src.dims
        || (dim >= dst.rank() && dst.rank() > 0)
        || indices
            .is_some_and(|i| !extremum || i.dims != dst.dims || i.strides.len() != i.rank() || i.elem != Elem::I64)
        || (kind == Scan::LogSumExp && !dst.elem.is_float())
    {
        return Err(LibError::shape("scan", format!("{kind:?} of {:?} into {:?} along {dim}", src.dims, dst.dims)));
    }
    // SAFETY: the caller's contract.
    unsafe {
        if dst.ptr != src.ptr || dst.elem != src.elem || dst.strides != src.strides {
            copy(dst, src)?;
        }
        if dst.rank() == 0 {
            if let Some(i) = indices {
                i.ptr.cast::<i64>().write(0);
            }
            return Ok(());
        }
        dispatch_elem!(dst.elem, T => match kind {
            Scan::Sum | Scan::Prod | Scan::LogSumExp => match dst.elem {
                Elem::F32 | Elem::F64 => lanes::<T, f64>(dst, None, dim, T::to_f64, |s, x, _, _| fold_f64(kind, s, x), T::from_f64),
                Elem::F16 | Elem::BF16 => lanes::<T, f32>(dst, None, dim, T::to_f32, |s, x, _, _| fold_f64(kind, s as f64, x as f64) as f32, T::from_f32),
                _ => lanes::<T, T>(dst, None, dim, |x| x, |s, x, _, _| if kind == Scan::Sum { s.add(x) } else { s.mul(x) }, |x| x),
            },
            Scan::Max | Scan::Min => {
                let max = kind == Scan::Max;
                let fold = move |s: T, x: T, at: &mut i64, j: i64| {
                    let wins = x.is_nan() || (!s.is_nan() && if max { !x.lt(s) } else { !s.lt(x) });
                    if wins {
                        *at = j;
                        x
                    } else {
                        s
                    }
                };
                lanes::<T, T>(dst, indices, dim, |x| x, fold, |x| x)
            }
        });
    }
    Ok(())
}

#[inline(always)]
fn fold_f64(kind: Scan, s: f64, x: f64) -> f64 {
    match kind {
        Scan::Sum => s + x,
        Scan::Prod => s * x,
        _ => {
            // PyTorch's _log_add_exp_helper.
            let (lo, hi) = if x.is_nan() || s.is_nan() { (f64::NAN, f64::NAN) } else { (s.min(x), s.max(x)) };
            if lo != hi || lo.is_finite() { (lo - hi).exp().ln_1p() + hi } else { s }
        }
    }
}

/// Lanes taken together: neighbours along the next dimension hide the latency of one lane's chain
/// and share cache lines when the scan runs across rows.
const GROUP: usize = 16;

unsafe fn lanes<T: Scalar, A: Copy + Send + Sync>(
    v: &View,
    indices: Option<&View>,
    dim: usize,
    load: impl Fn(T) -> A + Sync,
    fold: impl Fn(A, A, &mut i64, i64) -> A + Sync,
    store: impl Fn(A) -> T + Sync,
) {
    let n = v.dims[dim];
    let mut outer = without(v.dims, dim);
    let mut st = without(v.strides, dim);
    let mut ist = indices.map(|i| without(i.strides, dim)).unwrap_or_else(|| st.clone());
    let (inner, inner_s, inner_i) = match outer.pop() {
        Some(d) => (d, st.pop().unwrap_or(0), ist.pop().unwrap_or(0)),
        None => (1, 0, 0),
    };
    let rest: usize = outer.iter().product();
    if n == 0 || inner == 0 || rest == 0 {
        return;
    }
    let groups = inner.div_ceil(GROUP);
    let (p, ip, step) = (Ptr(v.ptr), indices.map(|i| (Ptr(i.ptr), i.strides[dim])), v.strides[dim]);
    pool::parallel_range(rest * groups, 1, (rest * inner * n) as u64 * 2, &|begin, end| {
        for g in begin..end {
            let w = super::view::Walk::new(&outer, [&st, &ist], g / groups);
            let first = g % groups * GROUP;
            let count = GROUP.min(inner - first);
            let base = w.off[0] + first as isize * inner_s;
            let ibase = w.off[1] + first as isize * inner_i;
            let mut at = [0i64; GROUP];
            // SAFETY: lanes `first..first + count`, positions `0..n` are elements of the view.
            unsafe {
                let mut s: [A; GROUP] =
                    std::array::from_fn(|l| load(*p.at::<T>(base + l.min(count - 1) as isize * inner_s)));
                for j in 0..n {
                    for l in 0..count {
                        let e = p.at::<T>(base + l as isize * inner_s + j as isize * step);
                        if j > 0 {
                            s[l] = fold(s[l], load(*e), &mut at[l], j as i64);
                            *e = store(s[l]);
                        }
                        if let Some((ip, is)) = ip {
                            *ip.at::<i64>(ibase + l as isize * inner_i + j as isize * is) = at[l];
                        }
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::view::dense_strides;

    fn run(kind: Scan, v: &[f32], dims: &[usize], dim: usize) -> (Vec<f32>, Vec<i64>) {
        let st = dense_strides(dims);
        let (mut out, mut idx) = (vec![0f32; v.len()], vec![-1i64; v.len()]);
        let d = View::new(out.as_mut_ptr().cast(), Elem::F32, dims, &st);
        let i = View::new(idx.as_mut_ptr().cast(), Elem::I64, dims, &st);
        let s = View::new(v.as_ptr().cast_mut().cast(), Elem::F32, dims, &st);
        // SAFETY: buffers cover the views.
        unsafe { scan(kind, &d, matches!(kind, Scan::Max | Scan::Min).then_some(&i), &s, dim).unwrap() };
        (out, idx)
    }

    #[test]
    fn sums_along_each_dim() {
        let dims = [3, 40, 19];
        let v: Vec<f32> = (0..3 * 40 * 19).map(|i| (i % 7) as f32 - 3.0).collect();
        for dim in 0..3 {
            let got = run(Scan::Sum, &v, &dims, dim).0;
            let st = dense_strides(&dims);
            for a in 0..3 {
                for b in 0..40 {
                    for c in 0..19 {
                        let ix = [a, b, c];
                        let at =
                            |j: usize| (0..3).map(|d| if d == dim { j } else { ix[d] } * st[d] as usize).sum::<usize>();
                        let want: f32 = (0..=ix[dim]).map(|j| v[at(j)]).sum();
                        assert_eq!(got[at(ix[dim])], want);
                    }
                }
            }
        }
    }

    #[test]
    fn extrema_nan_and_ties() {
        let n = f32::NAN;
        assert_eq!(run(Scan::Max, &[1.0, 3.0, 3.0, 2.0], &[4], 0), (vec![1.0, 3.0, 3.0, 3.0], vec![0, 1, 2, 2]));
        let (v, i) = run(Scan::Min, &[1.0, n, 0.0, n], &[4], 0);
        assert!(v[0] == 1.0 && v[1].is_nan() && v[2].is_nan() && v[3].is_nan());
        assert_eq!(i, [0, 1, 1, 3]);
        let ni = f32::NEG_INFINITY;
        let l = run(Scan::LogSumExp, &[ni, ni, 0.0, 0.0], &[4], 0).0;
        assert!(l[0] == ni && l[1] == ni && l[2] == 0.0 && (l[3] - 2f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn integers_widen_and_wrap() {
        let v = [100u8, 100, 100];
        let mut out = [0i64; 3];
        let s = View::new(v.as_ptr().cast_mut(), Elem::U8, &[3], &[1]);
        let d = View::new(out.as_mut_ptr().cast(), Elem::I64, &[3], &[1]);
        // SAFETY: buffers cover the views.
        unsafe { scan(Scan::Sum, &d, None, &s, 0).unwrap() };
        assert_eq!(out, [100, 200, 300]);
        // SAFETY: as above.
        assert!(unsafe { scan(Scan::LogSumExp, &d, None, &s, 0) }.is_err());
    }
}
