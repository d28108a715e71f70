//! Activation functions and their gradients. Formulas are those of PyTorch's CPU kernels (`Activation.cpp`).
use super::expr::Ex;
use super::{KEEP, Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::DType;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// `gelu`'s tanh form: sqrt(2 / pi) and the cubic coefficient.
const BETA: f64 = SQRT_2 * FRAC_2_SQRT_PI * 0.5;
const KAPPA: f64 = 0.044715;

type Res<T> = Result<T, super::Unsupported>;

/// Tensor argument 0 in its opmath type and number arguments in the same type.
fn with_numbers<'a, const N: usize>(cx: &mut Cx<'a>, numbers: [usize; N]) -> Res<(Ex<'a>, [Ex<'a>; N])> {
    let x = cx.math(0)?;
    numbers_as(cx, x, numbers)
}

fn numbers_as<'a, const N: usize>(cx: &mut Cx<'a>, x: Ex<'a>, numbers: [usize; N]) -> Res<(Ex<'a>, [Ex<'a>; N])> {
    let mut out = [x; N];
    for (o, i) in out.iter_mut().zip(numbers) {
        *o = cx.x_as(i, x.dtype())?;
    }
    Ok((x, out))
}

/// Two tensors in the opmath type of their common type: a gradient and what it belongs to.
fn pair<'a>(cx: &mut Cx<'a>, i: usize, j: usize) -> Res<(Ex<'a>, Ex<'a>)> {
    let d = cx.common(&[i, j]).opmath();
    Ok((cx.x_as(i, d)?, cx.x_as(j, d)?))
}

fn pointwise(cx: &mut Cx, f: fn(Ex<'_>) -> Ex<'_>) -> Lowered {
    one(f(cx.math(0)?))
}

fn gelu(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    one(match cx.str(1)? {
        "none" => gelu_erf(x),
        _ => x * 0.5 * ((BETA * (x + KAPPA * x * x * x)).tanh() + 1.0),
    })
}

pub(super) fn gelu_erf(x: Ex) -> Ex {
    x * 0.5 * ((x * FRAC_1_SQRT_2).erf() + 1.0)
}

fn gelu_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    one(match cx.str(2)? {
        "none" => {
            let cdf = 0.5 * ((x * FRAC_1_SQRT_2).erf() + 1.0);
            let pdf = (x * x * -0.5).exp() * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5);
            dy * (cdf + x * pdf)
        }
        _ => {
            let t = (BETA * (x + KAPPA * x * x * x)).tanh();
            let inner = BETA * (1.0 + 3.0 * KAPPA * x * x);
            dy * (0.5 * (t + 1.0) + 0.5 * x * (1.0 - t * t) * inner)
        }
    })
}

fn silu_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let s = x.sigmoid();
    one(dy * s * (1.0 + x * (1.0 - s)))
}

fn mish_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let t = x.exp().log1p().tanh();
    one(dy * (t + x * x.sigmoid() * (1.0 - t * t)))
}

fn softplus(cx: &mut Cx) -> Lowered {
    let (x, [beta, threshold]) = with_numbers(cx, [1, 2])?;
    let z = x * beta;
    one(x.when(z.gt(threshold), z.exp().log1p() / beta))
}

fn softplus_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let (x, [beta, threshold]) = numbers_as(cx, x, [2, 3])?;
    let z = (x * beta).exp();
    one(dy.when((x * beta).gt(threshold), dy * z / (z + 1.0)))
}

fn elu(cx: &mut Cx) -> Lowered {
    let (x, [alpha, scale, input_scale]) = with_numbers(cx, [1, 2, 3])?;
    one(((x * input_scale).expm1() * (alpha * scale)).when(x.lt(0.0), x * scale))
}

fn elu_backward(cx: &mut Cx) -> Lowered {
    let (dy, y) = pair(cx, 0, 5)?;
    let (_, [alpha, scale, input_scale]) = numbers_as(cx, y, [1, 2, 3])?;
    let negative = alpha * scale;
    let slope =
        if cx.bool(4)? { input_scale * (y + negative) } else { input_scale * negative * (y * input_scale).exp() };
    one((dy * slope).when(y.le(0.0), dy * scale))
}

fn celu(cx: &mut Cx) -> Lowered {
    let (x, [alpha]) = with_numbers(cx, [1])?;
    one(((x / alpha).expm1() * alpha).when(x.lt(0.0), x))
}

fn hardtanh_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let (_, [lo, hi]) = numbers_as(cx, x, [2, 3])?;
    one(dy.lit(0.0).when(x.le(lo).or(x.ge(hi)), dy))
}

fn relu6(x: Ex) -> Ex {
    x.max(0.0).min(6.0)
}

fn hardsigmoid_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    one((dy / 6.0).when(x.gt(-3.0).and(x.lt(3.0)), 0.0))
}

fn hardswish_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let middle = dy * (x / 3.0 + 0.5);
    one(dy.lit(0.0).when(x.le(-3.0), middle.when(x.lt(3.0), dy)))
}

fn leaky_relu(cx: &mut Cx) -> Lowered {
    let (x, [slope]) = with_numbers(cx, [1])?;
    one(x.when(x.gt(0.0), x * slope))
}

fn leaky_relu_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let (_, [slope]) = numbers_as(cx, x, [2])?;
    one(dy.when(x.gt(0.0), dy * slope))
}

fn hardshrink(cx: &mut Cx) -> Lowered {
    let (x, [lambda]) = with_numbers(cx, [1])?;
    one(x.lit(0.0).when(x.ge(-lambda).and(x.le(lambda)), x))
}

fn softshrink(cx: &mut Cx) -> Lowered {
    let (x, [lambda]) = with_numbers(cx, [1])?;
    one((x - lambda).when(x.gt(lambda), (x + lambda).when(x.lt(-lambda), x * 0.0)))
}

/// Gradient of `hardshrink` and `softshrink`.
fn shrink_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let (_, [lambda]) = numbers_as(cx, x, [2])?;
    one(dy.lit(0.0).when(x.ge(-lambda).and(x.le(lambda)), dy))
}

fn threshold(cx: &mut Cx) -> Lowered {
    let (x, [threshold, value]) = with_numbers(cx, [1, 2])?;
    one(value.when(x.le(threshold), x))
}

fn threshold_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let (_, [threshold]) = numbers_as(cx, x, [2])?;
    one(dy.lit(0.0).when(x.le(threshold), dy))
}

/// log(sigmoid(x)) and the buffer exp(-|x|) that the CPU kernel keeps for the backward pass.
fn log_sigmoid(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    let z = (-x.abs()).exp();
    let buffer = match cx.out(1) {
        Ok(t) if t.numel() == x.numel() => z.v,
        Ok(t) => cx.fill(t.dtype, &t.dims, 0.0).v,
        Err(_) => KEEP,
    };
    Ok(vec![(x.min(0.0) - z.log1p()).v, buffer])
}

fn log_sigmoid_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let z = (-x.abs()).exp();
    let negative = x.lt(0.0);
    let fraction = z / (1.0 + z);
    one(dy * (1.0 - fraction).when(negative, fraction))
}

fn logit_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let inside = dy / (x * (1.0 - x));
    one(match cx.opt_as(2, x.dtype())? {
        Some(eps) => dy.lit(0.0).when(x.lt(eps).or(x.gt(1.0 - eps)), inside),
        None => dy.lit(f64::NAN).when(x.lt(0.0).or(x.gt(1.0)), inside),
    })
}

fn glu(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    let d = cx.dim(1, x.rank())?;
    one(x.chunk(0, 2, d) * x.chunk(1, 2, d).sigmoid())
}

fn glu_backward(cx: &mut Cx) -> Lowered {
    let (dy, x) = pair(cx, 0, 1)?;
    let d = cx.dim(2, x.rank())?;
    let (a, s) = (x.chunk(0, 2, d), x.chunk(1, 2, d).sigmoid());
    let parts = [dy * s, dy * a * s * (1.0 - s)];
    Ok(Ex::concat(&parts, d).map(|e| e.v).into_iter().collect())
}

fn prelu(cx: &mut Cx) -> Lowered {
    let (x, w) = pair(cx, 0, 1)?;
    one(x.when(x.gt(0.0), x * w))
}

fn prelu_backward(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[0, 1, 2]).opmath();
    let (dy, x, w) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.x_as(2, d)?);
    let positive = x.gt(0.0);
    Ok(vec![dy.when(positive, dy * w).v, dy.lit(0.0).when(positive, x * dy).v])
}

/// Slope of `rrelu` when it is not training.
fn mean_slope<'a>(cx: &mut Cx<'a>, lower: usize, d: DType) -> Res<Ex<'a>> {
    let sum = cx.x_as(lower, DType::F64)? + cx.x_as(lower + 1, DType::F64)?;
    Ok((sum * 0.5).to(d))
}

fn rrelu(cx: &mut Cx, functional: bool) -> Lowered {
    let x = cx.math(0)?;
    if !cx.bool(4)? {
        let slope = mean_slope(cx, 2, x.dtype())?;
        let noise = if functional { cx.x(1)?.v } else { KEEP };
        return Ok(vec![x.when(x.gt(0.0), x * slope).v, noise]);
    }
    cx.decline("random slopes are drawn by a host generator")
}

fn rrelu_backward(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[0, 1]).opmath();
    let (dy, x, noise) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.x_as(2, d)?);
    let slope = mean_slope(cx, 3, d)?;
    let leaky = dy.when(x.gt(0.0), dy * slope);
    if !cx.bool(5)? {
        return one(leaky);
    }
    let random = (cx.x_as(4, d)? - cx.x_as(3, d)?).gt(1e-6);
    one((noise * dy).when(random, leaky))
}

pub(super) static ROWS: &[Row] = rows![
    "celu" "celu_" "celu.out" => celu;
    "elu" "elu_" "elu.out" => elu;
    "gelu" "gelu_" "gelu.out" => gelu;
    "glu" "glu.out" => glu;
    "hardshrink" "hardshrink.out" => hardshrink;
    "hardsigmoid" "hardsigmoid_" "hardsigmoid.out" => |cx| pointwise(cx, |x| relu6(x + 3.0) / 6.0);
    "hardswish" "hardswish_" "hardswish.out" => |cx| pointwise(cx, |x| x * relu6(x + 3.0) / 6.0);
    "leaky_relu" "leaky_relu_" "leaky_relu.out" => leaky_relu;
    "log_sigmoid_forward" "log_sigmoid_forward.output" => log_sigmoid;
    "mish" "mish_" "mish.out" => |cx| pointwise(cx, |x| x * x.exp().log1p().tanh());
    "_prelu_kernel" => prelu;
    "rrelu_with_noise" "rrelu_with_noise_" => |cx| rrelu(cx, false);
    "rrelu_with_noise_functional" => |cx| rrelu(cx, true);
    "silu" "silu_" "silu.out" => |cx| pointwise(cx, |x| x * x.sigmoid());
    "softplus" "softplus.out" => softplus;
    "softshrink" "softshrink.out" => softshrink;
    "threshold" "threshold_" "threshold.out" => threshold;
];

pub(super) static BACKWARD: &[Row] = rows![
    "elu_backward" "elu_backward.grad_input" => elu_backward;
    "gelu_backward" "gelu_backward.grad_input" => gelu_backward;
    "glu_backward" "glu_backward.grad_input" => glu_backward;
    "hardshrink_backward" "hardshrink_backward.grad_input" => shrink_backward;
    "hardsigmoid_backward" "hardsigmoid_backward.grad_input" => hardsigmoid_backward;
    "hardswish_backward" "hardswish_backward.out" => hardswish_backward;
    "hardtanh_backward" "hardtanh_backward.grad_input" => hardtanh_backward;
    "leaky_relu_backward" "leaky_relu_backward.grad_input" => leaky_relu_backward;
    "log_sigmoid_backward" "log_sigmoid_backward.grad_input" => log_sigmoid_backward;
    "logit_backward" "logit_backward.grad_input" => logit_backward;
    "mish_backward" => mish_backward;
    "_prelu_kernel_backward" => prelu_backward;
    "rrelu_with_noise_backward" "rrelu_with_noise_backward.out" => rrelu_backward;
    "sigmoid_backward" "sigmoid_backward.grad_input" => |cx| {
        let (dy, y) = pair(cx, 0, 1)?;
        one(dy * (1.0 - y) * y)
    };
    "silu_backward" "silu_backward.grad_input" => silu_backward;
    "softplus_backward" "softplus_backward.grad_input" => softplus_backward;
    "softshrink_backward" "softshrink_backward.grad_input" => shrink_backward;
    "tanh_backward" "tanh_backward.grad_input" => |cx| {
        let (dy, y) = pair(cx, 0, 1)?;
        one(dy * (1.0 - y * y))
    };
    "threshold_backward" "threshold_backward.grad_input" => threshold_backward;
];
