//! Random ops: draws of [`crate::philox`] as IR. Element i (in row-major order) of a random op uses the block of
//! counter `offset + i`.
//!
//! Only ops that the eager engine draws in the same way have a row: numbers must not depend on the tier. The others
//! (`multinomial`, `randperm`, `geometric_`, ..) are call nodes with a host generator.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use crate::words::Arg;
use rsx_compiler::ir::{DType, Dims, OpKind};

type Res<T> = Result<T, super::Unsupported>;

/// Word `word` of each element's block.
fn word<'a>(cx: &mut Cx<'a>, dims: &[i64], word: u32) -> Res<Ex<'a>> {
    let (seed, offset) = cx.rng()?;
    Ok(seed.with(|b| b.rng_bits(seed.v, offset.v, dims, word)))
}

/// Words `hi` and `lo` as one 64-bit number.
fn wide<'a>(cx: &mut Cx<'a>, dims: &[i64], hi: u32, lo: u32) -> Res<Ex<'a>> {
    let hi = word(cx, dims, hi)?.to(DType::U64);
    let lo = word(cx, dims, lo)?.to(DType::U64);
    Ok(hi.bin(OpKind::ShiftLeft, 32.0).or(lo))
}

/// `philox::uniform_f32`.
fn unit_f32(w: Ex) -> Ex {
    w.bin(OpKind::ShiftRight, 8.0).to(DType::F32) * (1.0 / 16_777_216.0)
}

/// `philox::uniform_f64` of a 64-bit number.
fn unit_f64(w: Ex) -> Ex {
    w.bin(OpKind::ShiftRight, 11.0).to(DType::F64) * (1.0 / 9_007_199_254_740_992.0)
}

/// Uniform in [0, 1): 53 bits for f64, else 24 bits in f32.
pub(super) fn uniform<'a>(cx: &mut Cx<'a>, dims: &[i64], dtype: DType) -> Res<Ex<'a>> {
    Ok(if dtype == DType::F64 { unit_f64(wide(cx, dims, 0, 1)?) } else { unit_f32(word(cx, dims, 0)?) })
}

/// Standard normal by Box and Muller (`philox::normal_f32`, `philox::normal_f64`).
fn normal<'a>(cx: &mut Cx<'a>, dims: &[i64], dtype: DType) -> Res<Ex<'a>> {
    let (u1, u2) = if dtype == DType::F64 {
        (unit_f64(wide(cx, dims, 0, 1)?), unit_f64(wide(cx, dims, 2, 3)?))
    } else {
        (unit_f32(word(cx, dims, 0)?), unit_f32(word(cx, dims, 1)?))
    };
    let radius = ((1.0 - u1).log() * -2.0).sqrt();
    Ok(radius * (u2 * (2.0 * std::f64::consts::PI)).un(OpKind::Cos))
}

/// Sizes of the result and the type draws are made in.
fn shape(cx: &Cx) -> Res<(Dims, DType)> {
    let t = cx.out(0)?;
    Ok((t.dims.clone(), t.dtype.opmath()))
}

/// Number arguments `at` and `at + 1` in type `d`.
fn two<'a>(cx: &mut Cx<'a>, at: usize, d: DType, defaults: [f64; 2]) -> Res<(Ex<'a>, Ex<'a>)> {
    Ok((cx.num_or(at, d, defaults[0])?, cx.num_or(at + 1, d, defaults[1])?))
}

fn uniform_(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    let (from, to) = two(cx, 1, DType::F64, [0.0, 1.0])?;
    one(uniform(cx, &dims, d)? * (to - from).to(d) + from.to(d))
}

fn normal_(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    let (mean, std) = two(cx, 1, d, [0.0, 1.0])?;
    one(normal(cx, &dims, d)? * std + mean)
}

/// Draws that hold with probability `p`: a uniform below it. For numbers the uniform has 24 bits (`philox::bernoulli`),
/// for tensors as many as their type's draws.
fn bernoulli<'a>(cx: &mut Cx<'a>, p: Ex<'a>, dims: &[i64], drawn: DType) -> Res<Ex<'a>> {
    Ok(uniform(cx, dims, drawn)?.to(DType::F64).lt(p.to(DType::F64)))
}

/// Probabilities in argument `p`.
fn bernoulli_(cx: &mut Cx, p: usize) -> Lowered {
    let (dims, _) = shape(cx)?;
    let drawn = match cx.arg(p) {
        Arg::Tensor(_) | Arg::CpuScalar { .. } => cx.x(p)?.dtype().opmath(),
        _ => DType::F32,
    };
    let p = cx.num_or(p, DType::F64, 0.5)?;
    one(bernoulli(cx, p, &dims, drawn)?)
}

fn exponential_(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    let lambda = cx.num_or(1, d, 1.0)?;
    one(-(1.0 - uniform(cx, &dims, d)?).log() / lambda)
}

/// `from` plus a 64-bit number modulo `range` (both 0-d; `philox::below`).
fn integers<'a>(cx: &mut Cx<'a>, from: Ex<'a>, range: Ex<'a>) -> Lowered {
    let (dims, _) = shape(cx)?;
    let w = wide(cx, &dims, 0, 1)?;
    let reduced = w.rem(range.with(|b| b.bitcast(range.v, DType::U64)));
    one(reduced.with(|b| b.bitcast(reduced.v, DType::I64)) + from)
}

/// Without bounds: all values an integer type can hold from 0 on, or the integers a float type holds exactly.
fn random_all(cx: &mut Cx) -> Lowered {
    let range: i64 = match cx.out(0)?.dtype {
        DType::Bool => 2,
        DType::U8 => 1 << 8,
        DType::I8 => 1 << 7,
        DType::I16 => 1 << 15,
        DType::I32 => 1 << 31,
        DType::I64 | DType::U16 | DType::U32 | DType::U64 => i64::MAX,
        DType::F16 => (1 << 11) + 1,
        DType::BF16 => (1 << 8) + 1,
        DType::F32 => (1 << 24) + 1,
        DType::F64 => (1 << 53) + 1,
    };
    let zero = cx.scalar(DType::I64, 0.0);
    integers(cx, zero, zero.int(DType::I64, range))
}

/// Bounds in arguments `from` (0 if `None`) and `to` (exclusive; the end of the type if `None`).
fn random_between(cx: &mut Cx, from: Option<usize>, to: usize) -> Lowered {
    if cx.is_none(to) {
        return cx.decline("random_ without upper bound");
    }
    let from = match from {
        Some(i) => cx.num_or(i, DType::I64, 0.0)?,
        None => cx.scalar(DType::I64, 0.0),
    };
    let range = cx.x_as(to, DType::I64)? - from;
    integers(cx, from, range)
}

fn native_dropout(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    if !cx.is_none(2) && !cx.bool(2)? {
        return Ok(vec![x.v, x.int(DType::Bool, 1).v]);
    }
    let keep = 1.0 - cx.x_as(1, DType::F64)?;
    let mask = bernoulli(cx, keep, &x.dims(), DType::F32)?;
    let scale = keep.lit(0.0).when(keep.eq(0.0), 1.0 / keep).to(x.dtype());
    Ok(vec![(x * mask.to(x.dtype()) * scale).v, mask.v])
}

fn native_dropout_backward(cx: &mut Cx) -> Lowered {
    let d = cx.out(0)?.dtype.opmath();
    let dy = cx.x_as(0, d)?;
    let (mask, scale) = (cx.x_as(1, dy.dtype())?, cx.x_as(2, dy.dtype())?);
    one(dy * mask * scale)
}

pub(super) static ROWS: &[Row] = rows![
    "uniform_" => uniform_;
    "normal_" => normal_;
    "bernoulli" => |cx| bernoulli_(cx, 0);
    "bernoulli_.float" "bernoulli_.Tensor" => |cx| bernoulli_(cx, 1);
    "exponential_" => exponential_;
    "random_" => random_all;
    "random_.from" => |cx| random_between(cx, Some(1), 2);
    "random_.to" => |cx| random_between(cx, None, 1);
    "native_dropout" "native_dropout.out" => native_dropout;
    "native_dropout_backward" "native_dropout_backward.out" "_masked_scale" => native_dropout_backward;
];
