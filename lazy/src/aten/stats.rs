//! Mean and variance, order statistics and running reductions.
use super::expr::Ex;
use super::reduce::shaped;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{CumKind, DType, Dims};

type Res<T> = Result<T, super::Unsupported>;

/// Variance and mean along argument 1 with the correction in argument 2 (1 if none), of kept dimensions.
fn moments<'a>(cx: &mut Cx<'a>) -> Res<(Ex<'a>, Ex<'a>)> {
    let x = cx.math(0)?;
    let dims = cx.dims(1, x.rank())?;
    let n: f64 = dims.iter().map(|&d| x.size(d as usize) as f64).product();
    let mean = x.sum_keep(&dims) / n;
    let deviation = x - mean;
    let squares = (deviation * deviation).sum_keep(&dims);
    let correction = cx.num_or(2, DType::F64, 1.0)?;
    Ok((squares / (n - correction).max(0.0).to(x.dtype()), mean))
}

fn var(cx: &mut Cx, root: bool) -> Lowered {
    let (v, _) = moments(cx)?;
    one(shaped(cx, if root { v.sqrt() } else { v }, 0)?)
}

fn var_mean(cx: &mut Cx, root: bool) -> Lowered {
    let (v, m) = moments(cx)?;
    let v = shaped(cx, if root { v.sqrt() } else { v }, 0)?;
    Ok(vec![v.v, shaped(cx, m, 1)?.v])
}

/// Running sum, product or log-sum-exp in the result's type.
fn cumulative(cx: &mut Cx, kind: CumKind) -> Lowered {
    let d = cx.out(0)?.dtype;
    let x = cx.x_as(0, d)?.opmath();
    if x.rank() == 0 {
        return one(x);
    }
    let dim = cx.dim(1, x.rank())?;
    one(x.cumulative(kind, dim))
}

/// Running extreme and the index of its latest occurrence.
fn running_extreme<'a>(cx: &Cx<'a>, x: Ex<'a>, kind: CumKind, dim: usize) -> [Ex<'a>; 2] {
    if x.rank() == 0 {
        return [x, x.int(DType::I64, 0)];
    }
    let original = x;
    let x = if x.dtype() == DType::Bool { x.to(DType::U8) } else { x };
    let best = x.cumulative(kind, dim);
    // The element itself is the extreme so far: the index moves there.
    let mut here = x.eq(best);
    if x.dtype().is_float() {
        here = here.or(x.is_nan());
    }
    let at = cx.iota(&x.dims(), dim);
    let at = at.when(here, at.lit(0.0));
    [best.to(original.dtype()), at.cumulative(CumKind::Max, dim)]
}

fn cummax(cx: &mut Cx, kind: CumKind, dim: usize) -> Lowered {
    let x = cx.x(0)?;
    let dim = cx.dim(dim, x.rank())?;
    Ok(running_extreme(cx, x, kind, dim).map(|e| e.v).to_vec())
}

/// Elements along `dim` in increasing order with their places; 0-d counts as one element.
fn sorted<'a>(x: Ex<'a>, dim: usize, descending: bool) -> (Ex<'a>, Ex<'a>) {
    if x.rank() == 0 {
        return (x, x.int(DType::I64, 0));
    }
    let mut places = x.v;
    let values = x.with(|b| {
        let (v, i) = b.sort(x.v, dim as i64, descending);
        places = i;
        v
    });
    (values, Ex::new(x.ctx(), places))
}

fn sort(cx: &mut Cx, dim: usize) -> Lowered {
    let x = cx.x(0)?;
    let d = cx.dim(dim, x.rank())?;
    let (v, i) = sorted(x, d, cx.bool(dim + 1)?);
    Ok(vec![v.v, i.v])
}

fn topk(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    if x.rank() == 0 {
        let i = x.int(DType::I64, 0);
        let (v, i) = if cx.int(1)? == 0 { (x.full(&[0], 0.0), i.full(&[0], 0.0)) } else { (x, i) };
        return Ok(vec![v.v, i.v]);
    }
    let (d, last) = (cx.dim(2, x.rank())?, x.rank() - 1);
    let (k, largest) = (cx.int(1)?, cx.bool(3)?);
    let x = x.move_dim(d, last);
    let mut places = x.v;
    let values = x.with(|b| {
        let (v, i) = b.top_k(x.v, k, largest);
        places = i;
        v
    });
    let places = Ex::new(x.ctx(), places);
    Ok(vec![values.move_dim(last, d).v, places.move_dim(last, d).v])
}

/// The k-th smallest (from 1) along argument `dim` and its place.
fn kth(cx: &mut Cx, dim: usize, k: impl Fn(i64) -> i64, nan_wins: bool) -> Lowered {
    let x = cx.x(0)?;
    let d = cx.dim(dim, x.rank())?;
    let (v, i) = sorted(x, d, false);
    if x.rank() == 0 {
        return Ok(vec![v.v, i.v]);
    }
    let k = k(x.size(d)) - 1;
    let (mut v1, mut i1) = (v.slice(d, k, k + 1, 1), i.slice(d, k, k + 1, 1));
    if nan_wins && x.dtype().is_float() {
        // NaN sorts last: if the last is NaN, the first NaN is the median.
        let n = x.size(d);
        let last = v.slice(d, n - 1, n, 1);
        let first_nan = x.with(|b| b.arg_reduce(true, x.v, d as i64)).reshape(&last.dims());
        (v1, i1) = (last.when(last.is_nan(), v1), first_nan.when(last.is_nan(), i1));
    }
    Ok(vec![shaped(cx, v1, 0)?.v, shaped(cx, i1, 1)?.v])
}

fn median_all(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?.flatten();
    let n = x.numel();
    if n == 0 {
        return cx.decline("median of an empty tensor");
    }
    let (v, _) = sorted(x, 0, false);
    let k = (n - 1) / 2;
    let (m, last) = (v.slice(0, k, k + 1, 1), v.slice(0, n - 1, n, 1));
    let m = if x.dtype().is_float() { last.when(last.is_nan(), m) } else { m };
    one(m.reshape(&[]))
}

/// Sum of the main diagonal.
fn trace(cx: &mut Cx) -> Lowered {
    let d = cx.out(0)?.dtype;
    let x = cx.x_as(0, d)?.opmath();
    let dims: Dims = x.dims();
    let on = cx.iota(&dims, 0).eq(cx.iota(&dims, 1));
    one(x.when(on, 0.0).sum_all())
}

pub(super) static ROWS: &[Row] = rows![
    "var.correction" "var.correction_out" => |cx| var(cx, false);
    "std.correction" "std.correction_out" => |cx| var(cx, true);
    "var_mean.correction" "var_mean.correction_out" => |cx| var_mean(cx, false);
    "std_mean.correction" "std_mean.correction_out" => |cx| var_mean(cx, true);
    "cumsum" "cumsum_" "cumsum.out" => |cx| cumulative(cx, CumKind::Sum);
    "cumprod" "cumprod_" "cumprod.out" => |cx| cumulative(cx, CumKind::Prod);
    "logcumsumexp" "logcumsumexp.out" "_logcumsumexp" "_logcumsumexp.out" => |cx| cumulative(cx, CumKind::LogSumExp);
    "cummax" "cummax.out" => |cx| cummax(cx, CumKind::Max, 1);
    "cummin" "cummin.out" => |cx| cummax(cx, CumKind::Min, 1);
    "_cummax_helper" => |cx| cummax(cx, CumKind::Max, 3);
    "_cummin_helper" => |cx| cummax(cx, CumKind::Min, 3);
    "sort" "sort.values" => |cx| sort(cx, 1);
    "sort.stable" "sort.values_stable" => |cx| sort(cx, 2);
    "topk" "topk.values" => topk;
    "kthvalue" "kthvalue.values" => |cx| { let k = cx.int(1)?; kth(cx, 2, |_| k, false) };
    "median.dim" "median.dim_values" => |cx| kth(cx, 1, |n| (n - 1) / 2 + 1, true);
    "median" "median.out" => median_all;
    "trace" "trace.out" => trace;
];
