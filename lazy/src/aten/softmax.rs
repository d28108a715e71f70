//! Softmax, its logarithm and their gradients.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims, ReduceKind};

type Res<T> = Result<T, super::Unsupported>;

/// Argument `i` as reduction dimension; none for a 0-d tensor.
fn along(cx: &Cx, i: usize, x: Ex) -> Res<Dims> {
    Ok(if x.rank() == 0 { Dims::new() } else { Dims::from_slice(&[cx.dim(i, x.rank())? as i64]) })
}

pub(super) fn softmax_of<'a>(x: Ex<'a>, dims: &[i64]) -> Ex<'a> {
    let e = (x - x.reduce_keep(ReduceKind::Max, dims)).exp();
    e / e.sum_keep(dims)
}

fn softmax(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    let dims = along(cx, 1, x)?;
    one(softmax_of(x, &dims))
}

fn log_softmax(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    let dims = along(cx, 1, x)?;
    let shifted = x - x.reduce_keep(ReduceKind::Max, &dims);
    one(shifted - shifted.exp().sum_keep(&dims).log())
}

fn softmax_backward(cx: &mut Cx) -> Lowered {
    let (dy, y) = (cx.math(0)?, cx.math(1)?);
    let dims = along(cx, 2, y)?;
    one(y * (dy - (dy * y).sum_keep(&dims)))
}

fn log_softmax_backward(cx: &mut Cx) -> Lowered {
    let (dy, y) = (cx.math(0)?, cx.math(1)?);
    let dims = along(cx, 2, y)?;
    one(dy - y.exp() * dy.sum_keep(&dims))
}

/// Softmax that gives 0, not NaN, for rows that are all -inf.
fn safe_softmax(cx: &mut Cx) -> Lowered {
    let d = cx.out(0)?.dtype;
    let x = cx.x_as(0, d)?.opmath();
    let dims = along(cx, 1, x)?;
    let dead = x.eq(f64::NEG_INFINITY).to(DType::Bool).reduce_keep(ReduceKind::And, &dims);
    one(x.lit(0.0).when(dead, softmax_of(x, &dims)))
}

pub(super) static ROWS: &[Row] = rows![
    "_softmax" "_softmax.out" => softmax;
    "_log_softmax" "_log_softmax.out" => log_softmax;
    "_softmax_backward_data" "_softmax_backward_data.out" => softmax_backward;
    "_log_softmax_backward_data" "_log_softmax_backward_data.out" => log_softmax_backward;
    "_safe_softmax" => safe_softmax;
];
