//! Elementwise functions of three operands: clamp, lerp, addcmul, addcdiv.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;

/// Bounds in arguments 1 and 2; NaN in any operand stays NaN; the upper bound wins.
fn clamp(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[0, 1, 2]);
    let mut x = cx.x_as(0, d)?;
    if let Some(lo) = cx.opt_as(1, d)? {
        x = x.max(lo);
    }
    if let Some(hi) = cx.opt_as(2, d)? {
        x = x.min(hi);
    }
    one(x)
}

fn clamp_one(cx: &mut Cx, upper: bool) -> Lowered {
    let d = cx.common(&[0, 1]);
    let (x, bound) = (cx.x_as(0, d)?, cx.x_as(1, d)?);
    one(if upper { x.min(bound) } else { x.max(bound) })
}

/// x + w (y - x), from the nearer end (`at::native::lerp`).
pub(super) fn lerp_of<'a>(x: Ex<'a>, y: Ex<'a>, w: Ex<'a>) -> Ex<'a> {
    let d = y - x;
    (x + w * d).when(w.abs().lt(0.5), y - d * (1.0 - w))
}

fn lerp(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[0, 1]).opmath();
    let (x, y, w) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.x_as(2, d)?);
    one(lerp_of(x, y, w))
}

/// self + value * t1 * t2 or self + value * t1 / t2.
fn addc(cx: &mut Cx, f: for<'a> fn(Ex<'a>, Ex<'a>) -> Ex<'a>) -> Lowered {
    let d = cx.common(&[0, 1, 2]).opmath();
    let (x, t1, t2) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.x_as(2, d)?);
    let scaled = if cx.is_one(3) { t1 } else { cx.x_as(3, d)? * t1 };
    one(x + f(scaled, t2))
}

/// As [`addc`] with the values of all elements in one 1-d tensor, for element `k`.
pub(super) fn addc_element(cx: &mut Cx, k: usize, divide: bool) -> Lowered {
    let values = cx.x(3)?;
    let c = &mut cx.element(k);
    let d = c.common(&[0, 1, 2]).opmath();
    let value = values.slice(0, k as i64, k as i64 + 1, 1).reshape(&[]).to(d);
    let (x, t1, t2) = (c.x_as(0, d)?, c.x_as(1, d)?, c.x_as(2, d)?);
    one(if divide { x + value * t1 / t2 } else { x + value * t1 * t2 })
}

pub(super) static ROWS: &[Row] = rows![
    "clamp" "clamp_" "clamp.out" "clamp.Tensor" "clamp_.Tensor" "clamp.Tensor_out" "hardtanh" "hardtanh_"
        "hardtanh.out" => clamp;
    "clamp_min" "clamp_min_" "clamp_min.out" "clamp_min.Tensor" "clamp_min_.Tensor" "clamp_min.Tensor_out"
        => |cx| clamp_one(cx, false);
    "clamp_max" "clamp_max_" "clamp_max.out" "clamp_max.Tensor" "clamp_max_.Tensor" "clamp_max.Tensor_out"
        => |cx| clamp_one(cx, true);
    "lerp.Scalar" "lerp_.Scalar" "lerp.Scalar_out" "lerp.Tensor" "lerp_.Tensor" "lerp.Tensor_out" => lerp;
    "addcmul" "addcmul_" "addcmul.out" => |cx| addc(cx, |t1, t2| t1 * t2);
    "addcdiv" "addcdiv_" "addcdiv.out" => |cx| addc(cx, |t1, t2| t1 / t2);
];
