//! Reductions: sums, products, extremes, logical reductions, counts, norms.
use super::expr::Ex;
use super::unary::abs;
use super::{Lowered, Row, one};
use crate::Cx;
use crate::cx::float_of;
use crate::words::Arg;
use rsx_compiler::ir::{DType, Dims, ReduceKind};

type Res<T> = Result<T, super::Unsupported>;

/// `x` under the sizes of result `k`: kept dimensions come back with size 1.
pub(super) fn shaped<'a>(cx: &Cx<'a>, x: Ex<'a>, k: usize) -> Res<Ex<'a>> {
    let dims = cx.out(k)?.dims.clone();
    Ok(if x.numel() == dims.iter().product() { x.reshape(&dims) } else { x })
}

/// Tensor argument 0 in the type of the result, in its opmath type: what sums accumulate in.
fn summand<'a>(cx: &mut Cx<'a>) -> Res<Ex<'a>> {
    let d = cx.out(0)?.dtype;
    Ok(cx.x_as(0, d)?.opmath())
}

fn sum_dims(cx: &mut Cx, dims: usize) -> Lowered {
    let x = summand(cx)?;
    let dims = cx.dims(dims, x.rank())?;
    one(shaped(cx, x.sum(&dims), 0)?)
}

/// No argument of this number: all dimensions.
const ALL: usize = usize::MAX;

fn product(dims: &Dims, x: Ex) -> f64 {
    dims.iter().map(|&d| x.size(d as usize) as f64).product()
}

fn mean(cx: &mut Cx, dims: usize) -> Lowered {
    let x = summand(cx)?;
    let dims = cx.dims(dims, x.rank())?;
    one(shaped(cx, x.sum(&dims) / product(&dims, x), 0)?)
}

fn nansum(cx: &mut Cx) -> Lowered {
    let x = summand(cx)?;
    let x = if x.dtype().is_float() { x.lit(0.0).when(x.is_nan(), x) } else { x };
    let dims = cx.dims(1, x.rank())?;
    one(shaped(cx, x.sum(&dims), 0)?)
}

fn prod(cx: &mut Cx, dims: usize) -> Lowered {
    let x = summand(cx)?;
    let dims = cx.dims(dims, x.rank())?;
    one(shaped(cx, x.reduce(ReduceKind::Prod, &dims), 0)?)
}

/// Largest or smallest along `dims`, NaN if there is one.
pub(super) fn extreme<'a>(x: Ex<'a>, max: bool, dims: &[i64]) -> Ex<'a> {
    x.reduce(
        match (max, x.dtype()) {
            (true, DType::Bool) => ReduceKind::Or,
            (false, DType::Bool) => ReduceKind::And,
            (true, _) => ReduceKind::Max,
            (false, _) => ReduceKind::Min,
        },
        dims,
    )
}

fn extreme_dims(cx: &mut Cx, max: bool, dims: usize) -> Lowered {
    let x = cx.x(0)?;
    let dims = cx.dims(dims, x.rank())?;
    one(shaped(cx, extreme(x, max, &dims), 0)?)
}

fn both_extremes(cx: &mut Cx, dims: usize) -> Lowered {
    let x = cx.x(0)?;
    let dims = cx.dims(dims, x.rank())?;
    let lo = shaped(cx, extreme(x, false, &dims), 0)?;
    Ok(vec![lo.v, shaped(cx, extreme(x, true, &dims), 1)?.v])
}

/// Index of the first extreme along `dim`; bool is compared as an integer.
fn arg_extreme<'a>(x: Ex<'a>, max: bool, dim: usize) -> Ex<'a> {
    let x = if x.dtype() == DType::Bool { x.to(DType::U8) } else { x };
    x.with(|b| b.arg_reduce(max, x.v, dim as i64))
}

/// Extreme values along one dimension and where they are.
fn extreme_with_index(cx: &mut Cx, max: bool) -> Lowered {
    let x = cx.x(0)?;
    if x.rank() == 0 {
        return Ok(vec![x.v, x.int(DType::I64, 0).v]);
    }
    let d = cx.dim(1, x.rank())?;
    let values = shaped(cx, extreme(x, max, &[d as i64]), 0)?;
    Ok(vec![values.v, shaped(cx, arg_extreme(x, max, d), 1)?.v])
}

fn argmax(cx: &mut Cx, max: bool) -> Lowered {
    let x = cx.x(0)?;
    if x.rank() == 0 {
        return one(x.int(DType::I64, 0));
    }
    let (x, d) = if cx.is_none(1) { (x.flatten(), 0) } else { (x, cx.dim(1, x.rank())?) };
    one(shaped(cx, arg_extreme(x, max, d), 0)?)
}

fn logical(cx: &mut Cx, kind: ReduceKind, dims: usize) -> Lowered {
    let x = cx.x(0)?.to(DType::Bool);
    // An empty list (unlike none) reduces nothing.
    let dims = match cx.arg(dims) {
        Arg::Ints(l) if l.is_empty() => Dims::new(),
        Arg::List(l) if l.is_empty() => Dims::new(),
        _ => cx.dims(dims, x.rank())?,
    };
    one(shaped(cx, x.reduce(kind, &dims), 0)?)
}

fn count_nonzero(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?.to(DType::Bool).to(DType::I64);
    let dims = cx.dims(1, x.rank())?;
    one(shaped(cx, x.sum(&dims), 0)?)
}

fn logsumexp(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let x = x.to(float_of(x.dtype())).opmath();
    let dims = cx.dims(1, x.rank())?;
    let m = x.reduce_keep(ReduceKind::Max, &dims);
    // Infinite maxima would give inf - inf.
    let m = x.full(&m.dims(), 0.0).when(m.abs().eq(f64::INFINITY), m);
    let total = (x - m).exp().sum_keep(&dims).log() + m;
    one(shaped(cx, total, 0)?)
}

/// The p-norm of `x` along `dims`.
pub(super) fn norm_of<'a>(x: Ex<'a>, p: f64, dims: &[i64]) -> Ex<'a> {
    let a = abs(x);
    match p {
        _ if p == f64::INFINITY => extreme(a, true, dims),
        _ if p == f64::NEG_INFINITY => extreme(a, false, dims),
        _ if p == 0.0 => x.ne(0.0).to(x.dtype()).sum(dims),
        _ if p == 1.0 => a.sum(dims),
        _ if p == 2.0 => (x * x).sum(dims).sqrt(),
        _ => a.pow(p).sum(dims).pow(1.0 / p),
    }
}

/// Norms; argument `dims` holds the dimensions. The order (argument 1) is structure.
fn norm(cx: &mut Cx, dims: usize) -> Lowered {
    let x = cx.x(0)?;
    // With a result type given (or an `out=` tensor's) the operand is converted to it first.
    let d = cx.out(0)?.dtype;
    let x = if d.is_float() { x.to(d).opmath() } else { x.to(float_of(x.dtype())).opmath() };
    let p = if cx.is_none(1) { 2.0 } else { cx.double(1)? };
    let dims = cx.dims(dims, x.rank())?;
    if x.numel() == 0 && (p < 0.0 || p == f64::INFINITY) {
        return cx.decline("norm of an empty tensor");
    }
    one(shaped(cx, norm_of(x, p, &dims), 0)?)
}

/// Sum of |x|^p (`_foreach_powsum`).
fn powsum(cx: &mut Cx) -> Lowered {
    let x = summand(cx)?;
    let p = cx.double(1)?;
    let a = abs(x);
    one(match p {
        _ if p == 1.0 => a,
        _ if p == 2.0 => x * x,
        _ => a.pow(p),
    }
    .sum_all())
}

pub(super) static ROWS: &[Row] = rows![
    "sum" "sum.out" => |cx| sum_dims(cx, ALL);
    "sum.dim_IntList" "sum.IntList_out" => |cx| sum_dims(cx, 1);
    "mean" "mean.dtype_out" => |cx| mean(cx, ALL);
    "mean.dim" "mean.out" => |cx| mean(cx, 1);
    "nansum" "nansum.out" => nansum;
    "prod" "prod.out" => |cx| prod(cx, ALL);
    "prod.dim_int" "prod.int_out" => |cx| prod(cx, 1);
    "amax" "amax.out" => |cx| extreme_dims(cx, true, 1);
    "amin" "amin.out" => |cx| extreme_dims(cx, false, 1);
    "max" "max.unary_out" => |cx| extreme_dims(cx, true, ALL);
    "min" "min.unary_out" => |cx| extreme_dims(cx, false, ALL);
    "aminmax" "aminmax.out" "_aminmax.dim" "_aminmax.dim_out" => |cx| both_extremes(cx, 1);
    "_aminmax" "_aminmax.out" => |cx| both_extremes(cx, ALL);
    "max.dim" "max.dim_max" => |cx| extreme_with_index(cx, true);
    "min.dim" "min.dim_min" => |cx| extreme_with_index(cx, false);
    "argmax" "argmax.out" => |cx| argmax(cx, true);
    "argmin" "argmin.out" => |cx| argmax(cx, false);
    "any" "any.all_out" "_is_any_true" => |cx| logical(cx, ReduceKind::Or, ALL);
    "all" "all.all_out" "_is_all_true" => |cx| logical(cx, ReduceKind::And, ALL);
    "any.dim" "any.out" "any.dims" "any.dims_out" => |cx| logical(cx, ReduceKind::Or, 1);
    "all.dim" "all.out" "all.dims" "all.dims_out" => |cx| logical(cx, ReduceKind::And, 1);
    "count_nonzero" "count_nonzero.out" "count_nonzero.dim_IntList" "count_nonzero.dim_IntList_out" => count_nonzero;
    "logsumexp" "logsumexp.out" => logsumexp;
    "linalg_vector_norm" "linalg_vector_norm.out" => |cx| norm(cx, 2);
    "norm.ScalarOpt_dim" "norm.ScalarOpt_dim_dtype" "norm.out" "norm.dtype_out" "native_norm.ScalarOpt_dim_dtype"
        => |cx| norm(cx, 2);
    "norm.Scalar" "norm.Scalar_out" "norm.ScalarOpt_dtype" "norm.ScalarOpt_dtype_out" "native_norm"
        => |cx| norm(cx, ALL);
];

/// Compositions that only multi-tensor ops use.
pub(super) static ELEMENTS: &[(&str, fn(&mut Cx) -> Lowered)] = &[("powsum", powsum)];
