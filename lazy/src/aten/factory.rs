//! Tensors made from numbers.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims};

type Res<T> = Result<T, super::Unsupported>;

/// Sizes and element type of the result.
fn shape(cx: &Cx) -> Res<(Dims, DType)> {
    let t = cx.out(0)?;
    Ok((t.dims.clone(), t.dtype))
}

/// start + step * i; integers exactly, floats in f64.
fn arange(cx: &mut Cx, start: Option<usize>, step: Option<usize>) -> Lowered {
    let (dims, dtype) = shape(cx)?;
    let d = if dtype.is_float() { DType::F64 } else { DType::I64 };
    let i = cx.iota(&dims, 0).to(d);
    let start = match start {
        Some(a) => cx.num_or(a, d, 0.0)?,
        None => cx.scalar(d, 0.0),
    };
    let i = match step {
        Some(a) if !cx.is_one(a) => i * cx.x_as(a, d)?,
        _ => i,
    };
    one(start + i)
}

/// Points of a linear grid, from the nearer end as in eager; f64 or, for integers, truncated.
fn grid<'a>(cx: &mut Cx<'a>) -> Res<Ex<'a>> {
    let (dims, dtype) = shape(cx)?;
    let steps = dims[0];
    // Eager computes f32 grids in f32.
    let d = if dtype == DType::F64 || !dtype.is_float() { DType::F64 } else { DType::F32 };
    let (start, end) = (cx.x_as(0, d)?.reshape(&[]), cx.x_as(1, d)?.reshape(&[]));
    if steps == 1 {
        return Ok(start.broadcast(&dims));
    }
    let step = (end - start) / (steps - 1) as f64;
    let i = cx.iota(&dims, 0).to(d);
    let from_end = end - step * ((steps - 1) as f64 - i);
    Ok((start + step * i).when(i.lt((steps / 2) as f64), from_end))
}

fn linspace(cx: &mut Cx) -> Lowered {
    one(grid(cx)?)
}

fn logspace(cx: &mut Cx) -> Lowered {
    let base = cx.num_or(3, DType::F64, 10.0)?;
    let x = grid(cx)?;
    one(base.to(x.dtype()).pow(x))
}

fn eye(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    one(cx.iota(&dims, 0).eq(cx.iota(&dims, 1)).to(d))
}

fn constant(cx: &mut Cx, value: f64) -> Lowered {
    let (_, d) = shape(cx)?;
    one(cx.scalar(d, value))
}

/// Filled with number (or 0-d tensor) argument `i`.
fn full(cx: &mut Cx, i: usize) -> Lowered {
    let (_, d) = shape(cx)?;
    one(cx.x_as(i, d)?.reshape(&[]))
}

/// Indices of a triangle of a row × col matrix, as a [2, n] constant. `col - row` at most (lower) or at least `offset`.
fn triangle_indices(cx: &mut Cx, lower: bool) -> Lowered {
    let (dims, d) = shape(cx)?;
    let (rows, cols, offset) = (cx.int(0)?, cx.int(1)?, cx.int_or(2, 0)?);
    if dims[1] > 1 << 20 {
        return cx.decline("large constant");
    }
    let inside = |r: i64, c: i64| if lower { c - r <= offset } else { c - r >= offset };
    let all = || (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).filter(|&(r, c)| inside(r, c));
    let table: Vec<i64> = all().map(|p| p.0).chain(all().map(|p| p.1)).collect();
    one(cx.table(&table).to(d).reshape(&dims))
}

pub(super) static ROWS: &[Row] = rows![
    "arange" "arange.out" => |cx| arange(cx, None, None);
    "arange.start" => |cx| arange(cx, Some(0), None);
    "arange.start_step" "arange.start_out" "range.step" "range.out" => |cx| arange(cx, Some(0), Some(2));
    "range" => |cx| arange(cx, Some(0), None);
    "linspace" "linspace.out" "linspace.Tensor_Tensor" "linspace.Tensor_Scalar" "linspace.Scalar_Tensor" => linspace;
    "logspace" "logspace.out" => logspace;
    "eye" "eye.m" "eye.out" "eye.m_out" => eye;
    "zero_" "zero" "zero.out" "zeros" "zeros.out" "zeros_like" "zeros_like.out" "new_zeros" "new_zeros.out"
        => |cx| constant(cx, 0.0);
    // Nobody may rely on the contents.
    "new_empty_strided" "new_empty" "empty_like" => |cx| constant(cx, 0.0);
    "ones" "ones.out" "ones_like" "ones_like.out" "new_ones" "new_ones.out" => |cx| constant(cx, 1.0);
    "fill_.Scalar" "fill_.Tensor" "fill.Scalar" "fill.Tensor" "fill.Scalar_out" "fill.Tensor_out" "full" "full.out"
        "full_like" "full_like.out" => |cx| full(cx, 1);
    "new_full" "new_full.out" => |cx| full(cx, 2);
    "scalar_tensor" "scalar_tensor.out" => |cx| full(cx, 0);
    "tril_indices" => |cx| triangle_indices(cx, true);
    "triu_indices" => |cx| triangle_indices(cx, false);
];
