//! Elementwise ops on single elements; the caller rounds the result to the element type.
use super::Num::{self, B, F, I};
use super::math;
use crate::ir::{CmpDir, DType, OpKind};
use std::cmp::Ordering;

/// Ops of one operand; `None` for an op that has no meaning on elements of this kind.
pub(super) fn unary(kind: OpKind, x: Num) -> Option<Num> {
    Some(match (kind, x) {
        (OpKind::Convert, x) => x,
        (OpKind::IsFinite, F(v)) => B(v.is_finite()),
        (OpKind::IsFinite, _) => B(true),
        (OpKind::Not, B(v)) => B(!v),
        (OpKind::Not, I(v)) => I(!v),
        (OpKind::Negate, I(v)) => I(-v),
        (OpKind::Abs, I(v)) => I(v.abs()),
        (OpKind::Sign, I(v)) => I(v.signum()),
        // -1 is not 0, so i1 stays as it is under all three.
        (OpKind::Abs | OpKind::Negate | OpKind::Sign, B(v)) => B(v),
        (_, F(v)) => F(float(kind, v)?),
        _ => return None,
    })
}

/// Functions of one float.
pub fn float(kind: OpKind, x: f64) -> Option<f64> {
    use OpKind as K;
    Some(match kind {
        K::Abs => x.abs(),
        K::Negate => -x,
        K::Sign if x == 0.0 || x.is_nan() => x,
        K::Sign => 1f64.copysign(x),
        K::Exp => libm::exp(x),
        K::Expm1 => libm::expm1(x),
        K::Log => libm::log(x),
        K::Log1p => libm::log1p(x),
        K::Sqrt => x.sqrt(),
        K::Rsqrt => 1.0 / x.sqrt(),
        K::Sin => libm::sin(x),
        K::Cos => libm::cos(x),
        K::Tan => libm::tan(x),
        K::Tanh => libm::tanh(x),
        K::Logistic => 1.0 / (1.0 + libm::exp(-x)),
        K::Erf => libm::erf(x),
        K::Erfc => libm::erfc(x),
        K::ErfInv => math::erf_inv(x),
        K::Lgamma => libm::lgamma(x),
        K::Digamma => math::digamma(x),
        K::Asin => libm::asin(x),
        K::Acos => libm::acos(x),
        K::Atan => libm::atan(x),
        K::Sinh => libm::sinh(x),
        K::Cosh => libm::cosh(x),
        K::Asinh => libm::asinh(x),
        K::Acosh => libm::acosh(x),
        K::Atanh => libm::atanh(x),
        K::Floor => x.floor(),
        K::Ceil => x.ceil(),
        K::RoundEven => x.round_ties_even(),
        K::Trunc => x.trunc(),
        _ => return None,
    })
}

/// Ops of two operands of type `dtype`; `None` for an op that has no meaning on elements of this kind.
pub(super) fn binary(kind: OpKind, dtype: DType, a: Num, b: Num) -> Option<Num> {
    match (a, b) {
        (B(a), B(b)) => logical(kind, a, b).map(B),
        (I(a), I(b)) => integer(kind, dtype, a, b).map(I),
        (a, b) => float2(kind, dtype, a.to_f64(), b.to_f64()).map(F),
    }
}

/// `i1`: sum is or, product is and; the others follow from 0 and 1.
fn logical(kind: OpKind, a: bool, b: bool) -> Option<bool> {
    use OpKind as K;
    Some(match kind {
        K::Add | K::Or | K::Maximum => a || b,
        K::Multiply | K::And | K::Minimum | K::Divide => a && b,
        K::Subtract | K::Xor => a != b,
        K::Power => a || !b,
        // x rem 1 and x rem 0 are 0.
        K::Remainder => false,
        _ => return None,
    })
}

fn integer(kind: OpKind, dtype: DType, a: i128, b: i128) -> Option<i128> {
    use OpKind as K;
    let width = 8 * dtype.size() as i128;
    let shift_in_range = (0..width).contains(&b);
    Some(match kind {
        K::Add => a + b,
        K::Subtract => a - b,
        K::Multiply => a.wrapping_mul(b),
        K::Divide => a.checked_div(b).unwrap_or(0),
        K::Remainder => a.checked_rem(b).unwrap_or(0),
        K::Power => integer_power(a, b),
        K::Maximum => a.max(b),
        K::Minimum => a.min(b),
        K::And => a & b,
        K::Or => a | b,
        K::Xor => a ^ b,
        K::ShiftLeft if shift_in_range => a << b,
        K::ShiftRight if shift_in_range => a >> b,
        K::ShiftRight if a < 0 => -1,
        K::ShiftLeft | K::ShiftRight => 0,
        _ => return None,
    })
}

/// By repeated squaring, wrapping; only the low 64 bits matter.
fn integer_power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1i128, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    result
}

pub fn float2(kind: OpKind, dtype: DType, a: f64, b: f64) -> Option<f64> {
    use OpKind as K;
    Some(match kind {
        K::Add => a + b,
        K::Subtract => a - b,
        K::Multiply => a * b,
        K::Divide => a / b,
        K::Remainder => a % b,
        K::Power => libm::pow(a, b),
        K::Maximum => maximum(a, b),
        K::Minimum => -maximum(-a, -b),
        K::Atan2 => libm::atan2(a, b),
        K::NextAfter => next_after(dtype, a, b),
        _ => return None,
    })
}

/// IEEE 754-2019 maximum: NaN if either is, and +0 above -0.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        if a.is_sign_positive() { a } else { b }
    } else {
        a.max(b)
    }
}

/// The next number of type `dtype` after `a` towards `b`; `b` itself if they are equal.
fn next_after(dtype: DType, a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if a == b {
        return b;
    }
    let mut bytes = F(a).encode(dtype);
    // As integers, floats of one sign are ordered by magnitude.
    let bits = bytes.iter().rev().fold(0u64, |acc, &x| acc << 8 | u64::from(x));
    let sign = 1u64 << (8 * dtype.size() - 1);
    let next = if a == 0.0 {
        1 | if b < 0.0 { sign } else { 0 }
    } else if (b > a) == (a > 0.0) {
        bits + 1
    } else {
        bits - 1
    };
    bytes.copy_from_slice(&next.to_le_bytes()[..dtype.size()]);
    Num::decode(dtype, &bytes).to_f64()
}

/// Larger of two elements; NaN if either is.
pub(super) fn larger(a: Num, b: Num) -> Num {
    match (a, b) {
        (F(a), F(b)) => F(maximum(a, b)),
        (a, b) => {
            if order(a, b) == Some(Ordering::Less) {
                b
            } else {
                a
            }
        }
    }
}

/// Smaller of two elements; NaN if either is.
pub(super) fn smaller(a: Num, b: Num) -> Num {
    match (a, b) {
        (F(a), F(b)) => F(-maximum(-a, -b)),
        (a, b) => {
            if order(a, b) == Some(Ordering::Greater) {
                b
            } else {
                a
            }
        }
    }
}

/// Order of two elements of one type; none if either is NaN.
fn order(a: Num, b: Num) -> Option<Ordering> {
    match (a, b) {
        (I(a), I(b)) => Some(a.cmp(&b)),
        (B(a), B(b)) => Some(a.cmp(&b)),
        (a, b) => a.to_f64().partial_cmp(&b.to_f64()),
    }
}

/// Order of two elements of one type with NaN above everything and equal to itself: the order of sorts.
pub(super) fn total_order(a: Num, b: Num) -> Ordering {
    order(a, b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

pub(super) fn compare(dir: CmpDir, a: Num, b: Num) -> bool {
    let order = order(a, b);
    match dir {
        CmpDir::Eq => order == Some(Ordering::Equal),
        CmpDir::Ne => order != Some(Ordering::Equal),
        CmpDir::Lt => order == Some(Ordering::Less),
        CmpDir::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        CmpDir::Gt => order == Some(Ordering::Greater),
        CmpDir::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}
