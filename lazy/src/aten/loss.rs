//! Losses and their gradients. Formulas are those of PyTorch's CPU kernels.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims};

type Res<T> = Result<T, super::Unsupported>;

/// `at::Reduction`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Mean,
    Sum,
}

fn reduction(cx: &Cx, i: usize) -> Res<Reduction> {
    Ok(match cx.int_or(i, 1)? {
        0 => Reduction::None,
        1 => Reduction::Mean,
        _ => Reduction::Sum,
    })
}

/// Reduces elementwise losses.
fn reduced(loss: Ex, r: Reduction) -> Lowered {
    one(match r {
        Reduction::None => loss,
        Reduction::Mean => loss.sum_all() / loss.numel() as f64,
        Reduction::Sum => loss.sum_all(),
    })
}

/// The gradient of each elementwise loss.
fn shared<'a>(dy: Ex<'a>, n: i64, r: Reduction) -> Ex<'a> {
    if r == Reduction::Mean { dy / n as f64 } else { dy }
}

/// Input and target in the opmath type of their common type.
fn pair<'a>(cx: &mut Cx<'a>, i: usize) -> Res<(Ex<'a>, Ex<'a>)> {
    let d = cx.common(&[i, i + 1]).opmath();
    let (x, t) = (cx.x_as(i, d)?, cx.x_as(i + 1, d)?);
    // Losses broadcast their operands.
    let dims = super::expr::broadcast_dims(&x.dims(), &t.dims());
    Ok((x.broadcast(&dims), t.broadcast(&dims)))
}

fn mse(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 0)?;
    reduced((x - t).square(), reduction(cx, 2)?)
}

fn mse_backward(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 1)?;
    let dy = shared(cx.x_as(0, x.dtype())?, x.numel(), reduction(cx, 3)?);
    one((x - t) * 2.0 * dy)
}

fn smooth_l1(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 0)?;
    let beta = cx.num_or(3, x.dtype(), 1.0)?;
    let z = (x - t).abs();
    reduced((z * z * 0.5 / beta).when(z.lt(beta), z - beta * 0.5), reduction(cx, 2)?)
}

/// dx of a loss that is quadratic within `limit` (slope `inner`) and linear outside (slope `outer`).
fn kinked_backward<'a>(d: Ex<'a>, limit: Ex<'a>, inner: Ex<'a>, outer: Ex<'a>) -> Ex<'a> {
    (-outer).when(d.le(-limit), outer.when(d.ge(limit), inner))
}

fn smooth_l1_backward(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 1)?;
    let dy = shared(cx.x_as(0, x.dtype())?, x.numel(), reduction(cx, 3)?);
    let beta = cx.x_as(4, x.dtype())?;
    let d = x - t;
    one(kinked_backward(d, beta, dy * d / beta, dy))
}

fn huber(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 0)?;
    let delta = cx.num_or(3, x.dtype(), 1.0)?;
    let z = (x - t).abs();
    reduced((z * z * 0.5).when(z.le(delta), delta * (z - delta * 0.5)), reduction(cx, 2)?)
}

fn huber_backward(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 1)?;
    let dy = shared(cx.x_as(0, x.dtype())?, x.numel(), reduction(cx, 3)?);
    let delta = cx.x_as(4, x.dtype())?;
    let d = x - t;
    one(kinked_backward(d, delta, dy * d, dy * delta))
}

fn weighted<'a>(cx: &mut Cx<'a>, loss: Ex<'a>, i: usize) -> Res<Ex<'a>> {
    Ok(match cx.opt_as(i, loss.dtype())? {
        Some(w) => loss * w,
        None => loss,
    })
}

fn bce(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 0)?;
    // Logarithms are clamped to -100, as documented.
    let loss = (t - 1.0) * (-x).log1p().max(-100.0) - t * x.log().max(-100.0);
    let loss = weighted(cx, loss, 2)?;
    reduced(loss, reduction(cx, 3)?)
}

fn bce_backward(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 1)?;
    let dy = shared(cx.x_as(0, x.dtype())?, x.numel(), reduction(cx, 4)?);
    let g = dy * (x - t) / ((1.0 - x) * x).max(1e-12);
    one(weighted(cx, g, 3)?)
}

fn bce_with_logits(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 0)?;
    let log_sigmoid = x.min(0.0) - (-x.abs()).exp().log1p();
    let loss = match cx.opt_as(3, x.dtype())? {
        Some(positive) => (1.0 - t) * x - ((positive - 1.0) * t + 1.0) * log_sigmoid,
        None => (1.0 - t) * x - log_sigmoid,
    };
    let loss = weighted(cx, loss, 2)?;
    reduced(loss, reduction(cx, 4)?)
}

fn soft_margin(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 0)?;
    reduced((-t * x).exp().log1p(), reduction(cx, 2)?)
}

fn soft_margin_backward(cx: &mut Cx) -> Lowered {
    let (x, t) = pair(cx, 1)?;
    let dy = shared(cx.x_as(0, x.dtype())?, x.numel(), reduction(cx, 3)?);
    let z = (-t * x).exp();
    one(-t * z / (1.0 + z) * dy)
}

/// The class dimension of an input of [C] or [N, C, ..], targets with it inserted as size 1, and which classes they
/// pick: one-hot (bool), of the sizes of the input, `ignore_index` none.
struct Picked<'a> {
    class: i64,
    hot: Ex<'a>,
    /// Weight of each target (kept class dimension), 0 where ignored.
    weight: Ex<'a>,
}

/// `target`, `weight` and `ignore_index` by argument number.
fn picked<'a>(cx: &mut Cx<'a>, x: Ex<'a>, target: usize, weight: usize, ignore: usize) -> Res<Picked<'a>> {
    let class = usize::from(x.rank() > 1);
    let t = cx.x_as(target, DType::I64)?;
    let mut dims = x.dims();
    dims[class] = 1;
    let t = t.reshape(&dims);
    let valid = t.ne(t.int(DType::I64, cx.int(ignore)?));
    let classes = cx.iota(&x.dims(), class);
    let hot = classes.eq(t).and(valid.broadcast(&x.dims()));
    let d = x.dtype();
    let weight = match cx.opt_as(weight, d)? {
        Some(w) => w.along(class, x.rank()).broadcast(&x.dims()).when(hot, 0.0).sum_keep(&[class as i64]),
        None => valid.to(d),
    };
    Ok(Picked { class: class as i64, hot, weight })
}

fn nll(cx: &mut Cx) -> Lowered {
    let x = cx.math(0)?;
    let p = picked(cx, x, 1, 2, 4)?;
    let chosen = x.when(p.hot, 0.0).sum_keep(&[p.class]);
    // Where the weight is 0 the input may be infinite: the product would be NaN (and is, in eager, unless ignored).
    let losses = -chosen * p.weight;
    let total = p.weight.sum_all();
    Ok(match reduction(cx, 3)? {
        Reduction::None => vec![losses.reshape(&cx.out(0)?.dims.clone()).v, cx.scalar(x.dtype(), 0.0).v],
        Reduction::Mean => vec![(losses.sum_all() / total).v, total.v],
        Reduction::Sum => vec![losses.sum_all().v, total.v],
    })
}

fn nll_backward(cx: &mut Cx) -> Lowered {
    let x = cx.math(1)?;
    let p = picked(cx, x, 2, 3, 5)?;
    let dy = cx.x_as(0, x.dtype())?;
    let dy = match reduction(cx, 4)? {
        Reduction::None => {
            let mut dims: Dims = x.dims();
            dims[p.class as usize] = 1;
            dy.reshape(&dims)
        }
        Reduction::Mean => dy / cx.x_as(6, x.dtype())?,
        Reduction::Sum => dy,
    };
    one((-p.weight * dy).broadcast(&x.dims()).when(p.hot, 0.0))
}

pub(super) static ROWS: &[Row] = rows![
    "mse_loss" "mse_loss.out" => mse;
    "mse_loss_backward" "mse_loss_backward.grad_input" => mse_backward;
    "smooth_l1_loss" "smooth_l1_loss.out" => smooth_l1;
    "smooth_l1_loss_backward" "smooth_l1_loss_backward.grad_input" => smooth_l1_backward;
    "huber_loss" "huber_loss.out" => huber;
    "huber_loss_backward" "huber_loss_backward.out" => huber_backward;
    "binary_cross_entropy" "binary_cross_entropy.out" => bce;
    "binary_cross_entropy_backward" "binary_cross_entropy_backward.grad_input" => bce_backward;
    "binary_cross_entropy_with_logits" "binary_cross_entropy_with_logits.out" => bce_with_logits;
    "soft_margin_loss" "soft_margin_loss.out" => soft_margin;
    "soft_margin_loss_backward" "soft_margin_loss_backward.grad_input" => soft_margin_backward;
    "nll_loss_forward" "nll_loss_forward.output" "nll_loss2d_forward" "nll_loss2d_forward.output" => nll;
    "nll_loss_backward" "nll_loss_backward.grad_input" "nll_loss2d_backward" "nll_loss2d_backward.grad_input"
        => nll_backward;
];
