//! Random ops: draws of [`crate::philox`] as IR. Element i (in row-major order) of a random op uses the block of
//! counter `offset + i`.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
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
    let (from, to) = two(cx, 1, d, [0.0, 1.0])?;
    one(uniform(cx, &dims, d)? * (to - from) + from)
}

/// Mean and standard deviation (numbers or tensors) in arguments `at` and `at + 1`.
fn normal_(cx: &mut Cx, at: usize) -> Lowered {
    let (dims, d) = shape(cx)?;
    let (mean, std) = two(cx, at, d, [0.0, 1.0])?;
    one(normal(cx, &dims, d)? * std + mean)
}

fn log_normal_(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    let (mean, std) = two(cx, 1, d, [1.0, 2.0])?;
    one((normal(cx, &dims, d)? * std + mean).exp())
}

/// Draws that hold with probability argument `p` (or tensor `p`): a 24-bit uniform below it, compared in f64.
fn bernoulli<'a>(cx: &mut Cx<'a>, p: Ex<'a>, dims: &[i64]) -> Res<Ex<'a>> {
    Ok(unit_f32(word(cx, dims, 0)?).to(DType::F64).lt(p.to(DType::F64)))
}

fn bernoulli_(cx: &mut Cx, p: usize) -> Lowered {
    let (dims, _) = shape(cx)?;
    let p = cx.num_or(p, DType::F64, 0.5)?;
    one(bernoulli(cx, p, &dims)?)
}

fn exponential_(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    let lambda = cx.num_or(1, d, 1.0)?;
    one(-(1.0 - uniform(cx, &dims, d)?).log() / lambda)
}

fn geometric_(cx: &mut Cx) -> Lowered {
    let (dims, _) = shape(cx)?;
    let p = cx.x_as(1, DType::F64)?;
    let u = uniform(cx, &dims, DType::F64)?;
    one(((1.0 - u).log() / (1.0 - p).log()).ceil().max(1.0))
}

fn cauchy_(cx: &mut Cx) -> Lowered {
    let (dims, d) = shape(cx)?;
    let (median, sigma) = two(cx, 1, d, [0.0, 1.0])?;
    let u = uniform(cx, &dims, d)?;
    one(median + sigma * ((u - 0.5) * std::f64::consts::PI).un(OpKind::Tan))
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
        DType::U16 => 1 << 16,
        DType::I32 => 1 << 31,
        DType::U32 => 1 << 32,
        // 2^63 as its bits; 64-bit unsigned draws stay below it too.
        DType::I64 | DType::U64 => i64::MIN,
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
    let mask = bernoulli(cx, keep, &x.dims())?;
    let scale = keep.lit(0.0).when(keep.eq(0.0), 1.0 / keep).to(x.dtype());
    Ok(vec![(x * mask.to(x.dtype()) * scale).v, mask.v])
}

fn native_dropout_backward(cx: &mut Cx) -> Lowered {
    let d = cx.out(0)?.dtype.opmath();
    let dy = cx.x_as(0, d)?;
    let (mask, scale) = (cx.x_as(1, dy.dtype())?, cx.x_as(2, dy.dtype())?);
    one(dy * mask * scale)
}

/// A random permutation: the order of 64-bit keys.
fn randperm(cx: &mut Cx) -> Lowered {
    let (dims, _) = shape(cx)?;
    let keys = wide(cx, &dims, 0, 1)?;
    let mut places = keys.v;
    let sorted = keys.with(|b| {
        let (v, i) = b.sort(keys.v, 0, false);
        places = i;
        v
    });
    one(Ex::new(sorted.ctx(), places))
}

/// One draw per row (or several without replacement): exponential races, as in eager. Argument 1 is their number.
fn multinomial(cx: &mut Cx) -> Lowered {
    let p = cx.math(0)?;
    let n = cx.int(1)?;
    if n > 1 && cx.bool(2)? {
        return cx.decline("several draws with replacement");
    }
    let race = p / -(1.0 - uniform(cx, &p.dims(), p.dtype())?).log();
    // A draw of exactly 0 with probability 0 is 0 / 0: it must lose.
    let race = race.lit(-1.0).when(p.eq(0.0), race);
    let mut places = race.v;
    race.with(|b| {
        let (v, i) = b.top_k(race.v, n, true);
        places = i;
        v
    });
    one(Ex::new(race.ctx(), places))
}

pub(super) static ROWS: &[Row] = rows![
    "uniform_" "uniform" "uniform.out" => uniform_;
    "normal_" "normal_functional" "normal.out" => |cx| normal_(cx, 1);
    "normal.Tensor_Tensor" "normal.Tensor_float" "normal.float_Tensor" "normal.Tensor_Tensor_out"
        "normal.Tensor_float_out" "normal.float_Tensor_out" => |cx| normal_(cx, 0);
    "log_normal_" "log_normal" => log_normal_;
    "bernoulli" "bernoulli.out" => |cx| bernoulli_(cx, 0);
    "bernoulli.p" "bernoulli.Tensor" "bernoulli_.float" "bernoulli_.Tensor" "bernoulli.float_out"
        "bernoulli.Tensor_out" => |cx| bernoulli_(cx, 1);
    "exponential_" "exponential" => exponential_;
    "geometric_" "geometric" => geometric_;
    "cauchy_" "cauchy" => cauchy_;
    "random_" "random" => random_all;
    "random_.from" "random.from" => |cx| random_between(cx, Some(1), 2);
    "random_.to" "random.to" => |cx| random_between(cx, None, 1);
    "randint" "randint.generator" "randint.out" "randint.generator_out" => |cx| random_between(cx, None, 0);
    "randint.low" "randint.low_generator" "randint.low_out" "randint.low_generator_out"
        => |cx| random_between(cx, Some(0), 1);
    "randint_like" "randint_like.generator" "randint_like.Tensor" => |cx| random_between(cx, None, 1);
    "randint_like.low_dtype" "randint_like.low_generator_dtype" => |cx| random_between(cx, Some(1), 2);
    "rand" "rand.generator" "rand_like" "rand_like.generator" => |cx| {
        let (dims, d) = shape(cx)?;
        one(uniform(cx, &dims, d)?)
    };
    "randn" "randn.generator" "randn_like" "randn_like.generator" => |cx| {
        let (dims, d) = shape(cx)?;
        one(normal(cx, &dims, d)?)
    };
    "native_dropout" "native_dropout.out" => native_dropout;
    "native_dropout_backward" "native_dropout_backward.out" "_masked_scale" => native_dropout_backward;
    "randperm" "randperm.generator" "randperm.out" "randperm.generator_out" => randperm;
    "multinomial" "multinomial.out" => multinomial;
];
