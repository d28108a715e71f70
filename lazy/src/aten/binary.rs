//! Arithmetic of two tensors or numbers.
use super::expr::Ex;
use super::unary::signbit;
use super::{Lowered, Row, one};
use crate::Cx;
use crate::words::Arg;
use rsx_compiler::ir::{DType, OpKind};
use std::f64::consts::LN_2;

type Res<T> = Result<T, super::Unsupported>;

/// Arguments 0 and 1 for the four basic operations: straight to the opmath type of their common type, so that a
/// number beside a bf16 tensor is not rounded to bf16 first (nor is it in eager).
pub(super) fn arith<'a>(cx: &mut Cx<'a>) -> Res<(Ex<'a>, Ex<'a>)> {
    let d = cx.common(&[0, 1]).opmath();
    Ok((cx.x_as(0, d)?, cx.x_as(1, d)?))
}

/// Arguments 0 and 1 rounded to their common type (integers become floats if `float`), then to its opmath type.
fn pair<'a>(cx: &mut Cx<'a>, float: bool) -> Res<(Ex<'a>, Ex<'a>)> {
    let mut d = cx.common(&[0, 1]);
    if float && !d.is_float() {
        d = cx.result_dtype().filter(|&r| r == DType::F64).unwrap_or(DType::F32);
    }
    Ok((cx.x_as(0, d)?.opmath(), cx.x_as(1, d)?.opmath()))
}

/// `y` times number argument `i` (`alpha`).
fn scaled<'a>(cx: &mut Cx<'a>, y: Ex<'a>, i: usize) -> Res<Ex<'a>> {
    if cx.is_one(i) { Ok(y) } else { Ok(y * cx.x_as(i, y.dtype())?) }
}

fn add(cx: &mut Cx) -> Lowered {
    let (x, y) = arith(cx)?;
    one(x + scaled(cx, y, 2)?)
}

fn sub(cx: &mut Cx) -> Lowered {
    let (x, y) = arith(cx)?;
    one(x - scaled(cx, y, 2)?)
}

fn rsub(cx: &mut Cx) -> Lowered {
    let (x, y) = arith(cx)?;
    one(y - scaled(cx, x, 2)?)
}

fn add_relu(cx: &mut Cx) -> Lowered {
    let (x, y) = arith(cx)?;
    one((x + scaled(cx, y, 2)?).max(0.0))
}

fn mul(cx: &mut Cx) -> Lowered {
    let (x, y) = arith(cx)?;
    one(x * y)
}

fn true_div(cx: &mut Cx) -> Lowered {
    let (x, y) = pair(cx, true)?;
    // As in `arith`: numbers are not rounded to a narrow type first.
    one(cx.x_as(0, x.dtype())? / cx.x_as(1, y.dtype())?)
}

fn div_mode(cx: &mut Cx) -> Lowered {
    match cx.arg(2) {
        Arg::None => true_div(cx),
        Arg::Str(s) if s == "floor" => floor_div(cx),
        _ => {
            let (x, y) = pair(cx, false)?;
            let q = x / y;
            one(if q.dtype().is_float() { q.trunc() } else { q })
        }
    }
}

/// Python's remainder: the sign of the divisor.
fn remainder<'a>(x: Ex<'a>, y: Ex<'a>) -> Ex<'a> {
    let r = x.rem(y);
    if !r.dtype().is_signed() {
        return r;
    }
    let other_side = r.lt(0.0).ne(y.lt(0.0));
    (r + y).when(r.ne(0.0).and(other_side), r)
}

/// Largest integer not above x / y, as the CPU kernel finds it (`div_floor_floating`).
fn floor_div(cx: &mut Cx) -> Lowered {
    let (x, y) = pair(cx, false)?;
    if !x.dtype().is_float() {
        if !x.dtype().is_signed() {
            return one(x / y);
        }
        let (q, r) = (x / y, x.rem(y));
        return one((q - 1.0).when(r.ne(0.0).and(r.lt(0.0).ne(y.lt(0.0))), q));
    }
    let r = x.rem(y);
    let exact = (x - r) / y;
    let exact = (exact - 1.0).when(r.ne(0.0).and(r.lt(0.0).ne(y.lt(0.0))), exact);
    let floor = exact.floor();
    let floor = (floor + 1.0).when((exact - floor).gt(0.5), floor);
    let zero = x.lit(0.0).when(signbit(x / y).not(), -0.0);
    one((x / y).when(y.eq(0.0), floor.when(exact.ne(0.0), zero)))
}

/// x^y with PyTorch's special cases for exponents known now.
fn pow(cx: &mut Cx) -> Lowered {
    let (x, y) = pair(cx, false)?;
    let p = match (cx.arg(1), x.dtype().is_float()) {
        (Arg::Double(p), true) => *p,
        (Arg::Int(p), _) => *p as f64,
        _ => return one(x.pow(y)),
    };
    one(match p {
        _ if p == 0.0 => x.lit(1.0),
        _ if p == 1.0 => x,
        _ if p == 2.0 => x * x,
        _ if p == 3.0 => x * x * x,
        _ if !x.dtype().is_float() => x.pow(y),
        _ if p == 0.5 => x.sqrt(),
        _ if p == -0.5 => x.rsqrt(),
        _ if p == -1.0 => x.recip(),
        _ if p == -2.0 => (x * x).recip(),
        _ => x.pow(y),
    })
}

fn hypot(cx: &mut Cx) -> Lowered {
    let (x, y) = pair(cx, false)?;
    let (x, y) = (x.abs(), y.abs());
    let (hi, lo) = (x.max(y), x.min(y));
    let q = lo / hi;
    let plain = hi.when(hi.eq(0.0), hi * (1.0 + q * q).sqrt());
    // An infinite side decides, even beside NaN.
    let infinite = x.eq(f64::INFINITY).or(y.eq(f64::INFINITY));
    one(x.lit(f64::INFINITY).when(infinite, plain))
}

fn copysign(cx: &mut Cx) -> Lowered {
    let (x, y) = pair(cx, true)?;
    let x = x.abs();
    one((-x).when(signbit(y), x))
}

fn larger<'a>(x: Ex<'a>, y: Ex<'a>) -> Ex<'a> {
    if x.dtype() == DType::Bool { x.or(y) } else { x.max(y) }
}

fn smaller<'a>(x: Ex<'a>, y: Ex<'a>) -> Ex<'a> {
    if x.dtype() == DType::Bool { x.and(y) } else { x.min(y) }
}

/// `f` where neither is NaN, else the one that is not.
fn without_nan(cx: &mut Cx, f: for<'a> fn(Ex<'a>, Ex<'a>) -> Ex<'a>) -> Lowered {
    let (x, y) = pair(cx, false)?;
    let both = f(x, y);
    one(if x.dtype().is_float() { y.when(x.is_nan(), x.when(y.is_nan(), both)) } else { both })
}

/// log(b^x + b^y) for base e or 2.
fn logaddexp(cx: &mut Cx, base2: bool) -> Lowered {
    let (x, y) = pair(cx, true)?;
    let (m, d) = (x.max(y), -(x - y).abs());
    let tail = if base2 { d.lit(2.0).pow(d).log1p() / LN_2 } else { d.exp().log1p() };
    // Equal infinities: their difference is NaN.
    one(x.when(x.eq(y).and(x.abs().eq(f64::INFINITY)), m + tail))
}

/// x * f(y), 0 where x is 0 (unless y is NaN).
fn x_log(cx: &mut Cx, f: fn(Ex<'_>) -> Ex<'_>) -> Lowered {
    let (x, y) = pair(cx, true)?;
    let value = x.lit(0.0).when(x.eq(0.0), x * f(y));
    one(y.when(y.is_nan(), value))
}

fn heaviside(cx: &mut Cx) -> Lowered {
    let (x, v) = pair(cx, false)?;
    let d = x.dtype();
    one(v.when(x.eq(0.0), x.gt(0.0).to(d)))
}

fn ldexp(cx: &mut Cx) -> Lowered {
    let (x, y) = pair(cx, true)?;
    one(x * y.lit(2.0).pow(y))
}

fn bits(cx: &mut Cx, kind: OpKind) -> Lowered {
    let (x, y) = pair(cx, false)?;
    if x.dtype().is_float() {
        return cx.decline("bitwise operation on floats");
    }
    one(x.bin(kind, y))
}

fn logical(cx: &mut Cx, kind: OpKind) -> Lowered {
    let (x, y) = (cx.x(0)?.to(DType::Bool), cx.x(1)?.to(DType::Bool));
    one(x.bin(kind, y))
}

pub(super) static ROWS: &[Row] = rows![
    "add.Tensor" "add_.Tensor" "add.out" "add.Scalar" "add_.Scalar" "add.Scalar_out" => add;
    "sub.Tensor" "sub_.Tensor" "sub.out" "sub.Scalar" "sub_.Scalar" "sub.Scalar_out" => sub;
    "rsub.Tensor" "rsub.Scalar" "rsub.Tensor_out" "rsub.Scalar_out" => rsub;
    "_add_relu.Tensor" "_add_relu_.Tensor" "_add_relu.out" "_add_relu.Scalar" "_add_relu_.Scalar"
        "_add_relu.Scalar_out" => add_relu;
    "mul.Tensor" "mul_.Tensor" "mul.out" "mul.Scalar" "mul_.Scalar" "mul.Scalar_out" => mul;
    "div.Tensor" "div_.Tensor" "div.out" "div.Scalar" "div_.Scalar" "div.Scalar_out" => true_div;
    "div.Tensor_mode" "div_.Tensor_mode" "div.out_mode" "div.Scalar_mode" "div_.Scalar_mode" "div.Scalar_mode_out"
        => div_mode;
    "floor_divide" "floor_divide_.Tensor" "floor_divide.out" "floor_divide.Scalar" "floor_divide_.Scalar"
        "floor_divide.Scalar_out" => floor_div;
    "remainder.Tensor" "remainder_.Tensor" "remainder.Tensor_out" "remainder.Scalar" "remainder_.Scalar"
        "remainder.Scalar_out" "remainder.Scalar_Tensor" "remainder.Scalar_Tensor_out" => |cx| {
        let (x, y) = pair(cx, false)?;
        one(remainder(x, y))
    };
    "fmod.Tensor" "fmod_.Tensor" "fmod.Tensor_out" "fmod.Scalar" "fmod_.Scalar" "fmod.Scalar_out" => |cx| {
        let (x, y) = pair(cx, false)?;
        one(x.rem(y))
    };
    "pow.Tensor_Tensor" "pow_.Tensor" "pow.Tensor_Tensor_out" "pow.Tensor_Scalar" "pow_.Scalar"
        "pow.Tensor_Scalar_out" "pow.Scalar" "pow.Scalar_out" => pow;
    "atan2" "atan2_" "atan2.out" => |cx| {
        let (x, y) = pair(cx, true)?;
        one(x.bin(OpKind::Atan2, y))
    };
    "hypot" "hypot_" "hypot.out" => hypot;
    "nextafter" "nextafter_" "nextafter.out" => |cx| {
        let d = cx.common(&[0, 1]);
        let x = cx.x_as(0, d)?;
        one(x.bin(OpKind::NextAfter, cx.x_as(1, d)?))
    };
    "copysign.Tensor" "copysign_.Tensor" "copysign.out" "copysign.Scalar" "copysign_.Scalar" "copysign.Scalar_out"
        => copysign;
    "maximum" "maximum.out" => |cx| { let (x, y) = pair(cx, false)?; one(larger(x, y)) };
    "minimum" "minimum.out" => |cx| { let (x, y) = pair(cx, false)?; one(smaller(x, y)) };
    "fmax" "fmax.out" => |cx| without_nan(cx, larger);
    "fmin" "fmin.out" => |cx| without_nan(cx, smaller);
    "logaddexp" "logaddexp.out" => |cx| logaddexp(cx, false);
    "logaddexp2" "logaddexp2.out" => |cx| logaddexp(cx, true);
    "xlogy.Tensor" "xlogy_.Tensor" "xlogy.OutTensor" "xlogy.Scalar_Self" "xlogy.Scalar_Other" "xlogy_.Scalar_Other"
        "xlogy.OutScalar_Self" "xlogy.OutScalar_Other" => |cx| x_log(cx, |y| y.log());
    "special_xlog1py" "special_xlog1py.out" "special_xlog1py.self_scalar" "special_xlog1py.other_scalar"
        "special_xlog1py.self_scalar_out" "special_xlog1py.other_scalar_out" => |cx| x_log(cx, |y| y.log1p());
    "heaviside" "heaviside_" "heaviside.out" => heaviside;
    "ldexp.Tensor" "ldexp_" "ldexp.out" => ldexp;
    "bitwise_and.Tensor" "bitwise_and_.Tensor" "bitwise_and.Tensor_out" "bitwise_and.Scalar" "bitwise_and_.Scalar"
        "bitwise_and.Scalar_out" "bitwise_and.Scalar_Tensor" "bitwise_and.Scalar_Tensor_out"
        => |cx| bits(cx, OpKind::And);
    "bitwise_or.Tensor" "bitwise_or_.Tensor" "bitwise_or.Tensor_out" "bitwise_or.Scalar" "bitwise_or_.Scalar"
        "bitwise_or.Scalar_out" "bitwise_or.Scalar_Tensor" "bitwise_or.Scalar_Tensor_out"
        => |cx| bits(cx, OpKind::Or);
    "bitwise_xor.Tensor" "bitwise_xor_.Tensor" "bitwise_xor.Tensor_out" "bitwise_xor.Scalar" "bitwise_xor_.Scalar"
        "bitwise_xor.Scalar_out" "bitwise_xor.Scalar_Tensor" "bitwise_xor.Scalar_Tensor_out"
        => |cx| bits(cx, OpKind::Xor);
    "bitwise_left_shift.Tensor" "bitwise_left_shift_.Tensor" "bitwise_left_shift.Tensor_out"
        "bitwise_left_shift.Tensor_Scalar" "bitwise_left_shift_.Tensor_Scalar" "bitwise_left_shift.Tensor_Scalar_out"
        "bitwise_left_shift.Scalar_Tensor" "bitwise_left_shift.Scalar_Tensor_out" "__lshift__.Tensor"
        "__lshift__.Scalar" "__ilshift__.Tensor" "__ilshift__.Scalar" "__lshift__.Tensor_out" "__lshift__.Scalar_out"
        => |cx| bits(cx, OpKind::ShiftLeft);
    "bitwise_right_shift.Tensor" "bitwise_right_shift_.Tensor" "bitwise_right_shift.Tensor_out"
        "bitwise_right_shift.Tensor_Scalar" "bitwise_right_shift_.Tensor_Scalar"
        "bitwise_right_shift.Tensor_Scalar_out" "bitwise_right_shift.Scalar_Tensor"
        "bitwise_right_shift.Scalar_Tensor_out" "__rshift__.Tensor" "__rshift__.Scalar" "__irshift__.Tensor"
        "__irshift__.Scalar" "__rshift__.Tensor_out" "__rshift__.Scalar_out" => |cx| bits(cx, OpKind::ShiftRight);
    "logical_and" "logical_and_" "logical_and.out" => |cx| logical(cx, OpKind::And);
    "logical_or" "logical_or_" "logical_or.out" => |cx| logical(cx, OpKind::Or);
    "logical_xor" "logical_xor_" "logical_xor.out" => |cx| logical(cx, OpKind::Xor);
];
