//! Elementwise functions of one tensor.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use crate::cx::float_of;
use rsx_compiler::ir::{DType, OpKind};
use std::f64::consts;

/// Float functions: integers and bool become PyTorch's default float first; computed in the opmath type.
pub(super) fn float(cx: &mut Cx, f: fn(Ex<'_>) -> Ex<'_>) -> Lowered {
    let x = cx.x(0)?;
    let mut d = float_of(x.dtype());
    if !x.dtype().is_float() && cx.result_dtype() == Some(DType::F64) {
        d = DType::F64;
    }
    one(f(x.to(d).opmath()))
}

/// Functions that keep the element type; `f` sees f16 and bf16 as f32.
fn same(cx: &mut Cx, f: fn(Ex<'_>) -> Ex<'_>) -> Lowered {
    one(f(cx.math(0)?))
}

/// Functions that are the identity on integers and bool.
fn rounding(cx: &mut Cx, f: fn(Ex<'_>) -> Ex<'_>) -> Lowered {
    let x = cx.math(0)?;
    one(if x.dtype().is_float() { f(x) } else { x })
}

/// The sign bit (bool). Integers: below zero.
pub(super) fn signbit(x: Ex) -> Ex {
    let int = match x.dtype() {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::F16 | DType::BF16 => DType::I16,
        DType::Bool => return x.lit(0.0),
        _ => return x.lt(0.0),
    };
    x.with(|b| b.bitcast(x.v, int)).lt(0.0)
}

/// -1, 0 or 1; PyTorch gives 0 for NaN.
pub(super) fn sign(x: Ex) -> Ex {
    let d = x.dtype();
    if d == DType::Bool { x } else { x.gt(0.0).to(d) - x.lt(0.0).to(d) }
}

pub(super) fn abs(x: Ex) -> Ex {
    if x.dtype().is_signed() { x.abs() } else { x }
}

/// Logarithm to another base, in f64: exact for powers of the base.
fn log_base(x: Ex, ln_base: f64) -> Ex {
    (x.to(DType::F64).log() / ln_base).to(x.dtype())
}

fn sinc(x: Ex) -> Ex {
    let y = x * consts::PI;
    x.lit(1.0).when(x.eq(0.0), y.un(OpKind::Sin) / y)
}

fn is_inf(x: Ex) -> Ex {
    if x.dtype().is_float() { x.abs().eq(f64::INFINITY) } else { x.int(DType::Bool, 0) }
}

/// x equals a float constant; false for integers.
fn is_value(cx: &mut Cx, value: f64) -> Lowered {
    let x = cx.x(0)?;
    one(if x.dtype().is_float() { x.eq(value) } else { x.int(DType::Bool, 0) })
}

/// Largest finite value of a float type.
fn largest(d: DType) -> f64 {
    match d {
        DType::F16 => 65504.0,
        DType::BF16 => 3.3895313892515355e38,
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

fn nan_to_num(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let d = x.dtype();
    if !d.is_float() {
        return one(x);
    }
    let nan = cx.num_or(1, d, 0.0)?;
    let hi = cx.num_or(2, d, largest(d))?;
    let lo = cx.num_or(3, d, -largest(d))?;
    let y = hi.when(x.eq(f64::INFINITY), lo.when(x.eq(f64::NEG_INFINITY), x));
    one(nan.when(x.is_nan(), y))
}

fn logit(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let x = x.to(float_of(x.dtype())).opmath();
    let x = match cx.opt_as(1, x.dtype())? {
        Some(eps) => x.max(eps).min(1.0 - eps),
        None => x,
    };
    one((x / (1.0 - x)).log())
}

fn round_decimals(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    if !x.dtype().is_float() {
        return one(x);
    }
    let decimals = cx.int(1)?;
    let scale = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
    one(if decimals < 0 {
        (x / scale).un(OpKind::RoundEven) * scale
    } else {
        (x * scale).un(OpKind::RoundEven) / scale
    })
}

/// Angle of a real number: 0 or pi.
fn angle(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let x = x.to(float_of(x.dtype())).opmath();
    one(x.when(x.is_nan(), x.lit(consts::PI).when(x.lt(0.0), 0.0)))
}

pub(super) static FLOAT: &[Row] = unary_rows![
    "acos" => |cx| float(cx, |x| x.un(OpKind::Acos));
    "acosh" => |cx| float(cx, |x| x.un(OpKind::Acosh));
    "asin" => |cx| float(cx, |x| x.un(OpKind::Asin));
    "asinh" => |cx| float(cx, |x| x.un(OpKind::Asinh));
    "atan" => |cx| float(cx, |x| x.un(OpKind::Atan));
    "atanh" => |cx| float(cx, |x| x.un(OpKind::Atanh));
    "cos" => |cx| float(cx, |x| x.un(OpKind::Cos));
    "cosh" => |cx| float(cx, |x| x.un(OpKind::Cosh));
    "deg2rad" => |cx| float(cx, |x| x * (consts::PI / 180.0));
    "digamma" => |cx| float(cx, |x| x.un(OpKind::Digamma));
    "erf" => |cx| float(cx, |x| x.erf());
    "erfc" => |cx| float(cx, |x| x.un(OpKind::Erfc));
    "erfinv" => |cx| float(cx, |x| x.un(OpKind::ErfInv));
    "exp" => |cx| float(cx, |x| x.exp());
    "exp2" => |cx| float(cx, |x| x.lit(2.0).pow(x));
    "expm1" => |cx| float(cx, |x| x.expm1());
    "lgamma" => |cx| float(cx, |x| x.un(OpKind::Lgamma));
    "log" => |cx| float(cx, |x| x.log());
    "log10" => |cx| float(cx, |x| log_base(x, consts::LN_10));
    "log1p" => |cx| float(cx, |x| x.log1p());
    "log2" => |cx| float(cx, |x| log_base(x, consts::LN_2));
    "rad2deg" => |cx| float(cx, |x| x * (180.0 / consts::PI));
    "reciprocal" => |cx| float(cx, |x| x.recip());
    "rsqrt" => |cx| float(cx, |x| x.rsqrt());
    "sigmoid" => |cx| float(cx, |x| x.sigmoid());
    "sin" => |cx| float(cx, |x| x.un(OpKind::Sin));
    "sinc" => |cx| float(cx, sinc);
    "sinh" => |cx| float(cx, |x| x.un(OpKind::Sinh));
    "sqrt" => |cx| float(cx, |x| x.sqrt());
    "tan" => |cx| float(cx, |x| x.un(OpKind::Tan));
    "tanh" => |cx| float(cx, |x| x.tanh());
];

pub(super) static SAME: &[Row] = unary_rows![
    "abs" => |cx| same(cx, abs);
    "bitwise_not" => |cx| same(cx, |x| x.not());
    "ceil" => |cx| rounding(cx, |x| x.ceil());
    "floor" => |cx| rounding(cx, |x| x.floor());
    "frac" => |cx| rounding(cx, |x| x - x.trunc());
    "logical_not" => |cx| same(cx, |x| x.eq(0.0));
    "neg" => |cx| same(cx, |x| -x);
    "relu" => |cx| same(cx, |x| x.max(0.0));
    "round" => |cx| rounding(cx, |x| x.un(OpKind::RoundEven));
    "sgn" => |cx| same(cx, sign);
    "sign" => |cx| same(cx, sign);
    "trunc" => |cx| rounding(cx, |x| x.trunc());
];

pub(super) static ROWS: &[Row] = rows![
    "angle" "angle.out" => angle;
    "_conj_physical" "conj_physical.out" "conj_physical_" => |cx| one(cx.x(0)?);
    "isinf" "isinf.out" => |cx| { let x = cx.x(0)?; one(is_inf(x)) };
    "isnan" "isnan.out" => |cx| { let x = cx.x(0)?; one(x.is_nan()) };
    "isneginf" "isneginf.out" => |cx| is_value(cx, f64::NEG_INFINITY);
    "isposinf" "isposinf.out" => |cx| is_value(cx, f64::INFINITY);
    "logit" "logit_" "logit.out" => logit;
    "nan_to_num" "nan_to_num_" "nan_to_num.out" => nan_to_num;
    "round.decimals" "round_.decimals" "round.decimals_out" => round_decimals;
    "signbit" "signbit.out" => |cx| { let x = cx.x(0)?; one(signbit(x)) };
    "special_entr" "special_entr.out" => |cx| float(cx, |x| {
        let y = x.lit(0.0).when(x.eq(0.0), x.lit(f64::NEG_INFINITY).when(x.lt(0.0), -(x * x.log())));
        x.when(x.is_nan(), y)
    });
];
