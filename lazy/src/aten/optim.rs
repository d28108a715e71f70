//! Fused optimisers (`FusedAdamKernel.cpp`, `FusedSGDKernel.cpp`, `FusedAdagradKernel.cpp`): every parameter's update
//! as plain elementwise ops, which the compiler fuses across parameters.
use super::blend::lerp_of;
use super::expr::Ex;
use super::{KEEP, Lowered, Row};
use crate::Cx;
use crate::words::Arg;
use rsx_compiler::ir::{DType, Value};

type Res<T> = Result<T, super::Unsupported>;

/// What all updates share.
struct Common<'a> {
    /// Gradients are divided by it first (and written back).
    grad_scale: Option<Ex<'a>>,
    /// The update is skipped where this is 1.
    found_inf: Option<Ex<'a>>,
    maximize: bool,
}

impl<'a> Common<'a> {
    fn read(cx: &mut Cx<'a>, maximize: usize) -> Res<Common<'a>> {
        let zero_d = |e: Ex<'a>| e.reshape(&[]);
        Ok(Common {
            grad_scale: cx.opt_as(maximize + 1, DType::F32)?.map(zero_d),
            found_inf: cx.opt_as(maximize + 2, DType::F32)?.map(zero_d),
            maximize: cx.bool(maximize)?,
        })
    }

    /// The gradient without its scale (if it has one), and the one to step along.
    fn gradient(&self, g: Ex<'a>) -> (Option<Ex<'a>>, Ex<'a>) {
        let unscaled = self.grad_scale.map(|s| g / s.to(g.dtype()));
        let g = unscaled.unwrap_or(g);
        (unscaled, if self.maximize { -g } else { g })
    }

    /// `new`, or `old` if the step is skipped.
    fn stepped(&self, new: Ex<'a>, old: Ex<'a>) -> Value {
        match self.found_inf {
            Some(f) => old.when(f.eq(1.0), new).v,
            None => new.v,
        }
    }
}

fn length(cx: &Cx, i: usize) -> usize {
    match cx.arg(i) {
        Arg::List(l) => l.len(),
        _ => 0,
    }
}

/// Number arguments in f64.
fn numbers<'a, const N: usize>(cx: &mut Cx<'a>, at: [usize; N]) -> Res<[Ex<'a>; N]> {
    let mut out = [cx.scalar(DType::F64, 0.0); N];
    for (o, i) in out.iter_mut().zip(at) {
        *o = cx.x_as(i, DType::F64)?.reshape(&[]);
    }
    Ok(out)
}

/// Lists: parameters, gradients, averages, squared averages, their maxima, steps; then lr, beta1, beta2, weight decay,
/// eps, amsgrad, maximize. Results in the order of the lists (steps are not written).
fn adam(cx: &mut Cx, decoupled: bool) -> Lowered {
    let n = length(cx, 0);
    let [lr, beta1, beta2, decay, eps] = numbers(cx, [6, 7, 8, 9, 10])?;
    let amsgrad = cx.bool(11)?;
    let common = Common::read(cx, 12)?;
    let mut lists: [Vec<Value>; 5] = Default::default();
    for k in 0..n {
        let c = &mut cx.element(k);
        let param = c.x(0)?;
        let d = param.dtype().opmath();
        let old = [param.to(d), c.x_as(1, d)?, c.x_as(2, d)?, c.x_as(3, d)?];
        let [mut p, g, m, v] = old;
        let step = c.x_as(5, DType::F64)?.reshape(&[]);
        let (written, mut g) = common.gradient(g);
        if decoupled {
            p = p - p * (lr * decay).to(d);
        } else {
            g = g + p * decay.to(d);
        }
        let m2 = lerp_of(m, g, (1.0 - beta1).to(d));
        let v2 = v * beta2.to(d) + g * g * (1.0 - beta2).to(d);
        let correction1 = 1.0 - beta1.pow(step);
        let root = (1.0 - beta2.pow(step)).sqrt().to(d);
        let mut second = v2;
        if amsgrad {
            let old_max = c.x_as(4, d)?;
            second = old_max.max(v2);
            lists[4].push(common.stepped(second, old_max));
        }
        let denominator = second.sqrt() / root + eps.to(d);
        let p2 = p - m2 / denominator * (lr / correction1).to(d);
        lists[0].push(common.stepped(p2, old[0]));
        lists[1].push(written.map_or(KEEP, |w| common.stepped(w, old[1])));
        lists[2].push(common.stepped(m2, m));
        lists[3].push(common.stepped(v2, v));
    }
    Ok(lists.concat())
}

/// Lists: parameters, gradients, momentum buffers; then weight decay, momentum, lr, dampening, nesterov, maximize,
/// is_first_step.
fn sgd(cx: &mut Cx) -> Lowered {
    let n = length(cx, 0);
    let with_momentum = length(cx, 2) > 0;
    let [decay, momentum, lr, dampening] = numbers(cx, [3, 4, 5, 6])?;
    let (nesterov, first) = (cx.bool(7)?, cx.bool(9)?);
    // `is_first_step` stands between `maximize` and the scales.
    let mut common = Common::read(cx, 9)?;
    common.maximize = cx.bool(8)?;
    let mut lists: [Vec<Value>; 3] = Default::default();
    for k in 0..n {
        let c = &mut cx.element(k);
        let d = c.x(0)?.dtype().opmath();
        let (p, old_g) = (c.x_as(0, d)?, c.x_as(1, d)?);
        let (written, g) = common.gradient(old_g);
        let mut g = g + p * decay.to(d);
        if with_momentum {
            let old = c.x_as(2, d)?;
            let m = momentum.to(d);
            let buffer = if first { g } else { old * m + g * (1.0 - dampening).to(d) };
            g = if nesterov { g + buffer * m } else { buffer };
            lists[2].push(common.stepped(buffer, old));
        }
        lists[0].push(common.stepped(p - g * lr.to(d), p));
        lists[1].push(written.map_or(KEEP, |w| common.stepped(w, old_g)));
    }
    Ok(lists.concat())
}

/// Lists: parameters, gradients, sums of squares, steps; then lr, lr decay, weight decay, eps, maximize.
fn adagrad(cx: &mut Cx, writes_steps: bool) -> Lowered {
    let n = length(cx, 0);
    let [lr, lr_decay, decay, eps] = numbers(cx, [4, 5, 6, 7])?;
    let common = Common::read(cx, 8)?;
    let mut lists: [Vec<Value>; 4] = Default::default();
    for k in 0..n {
        let c = &mut cx.element(k);
        let d = c.x(0)?.dtype().opmath();
        let (p, old_g, s) = (c.x_as(0, d)?, c.x_as(1, d)?, c.x_as(2, d)?);
        let step = c.x_as(3, DType::F64)?.reshape(&[]);
        let (written, g) = common.gradient(old_g);
        let g = g + p * decay.to(d);
        let rate = (lr / (1.0 + (step - 1.0) * lr_decay)).to(d);
        let s2 = s + g * g;
        lists[0].push(common.stepped(p - g / (s2.sqrt() + eps.to(d)) * rate, p));
        lists[1].push(written.map_or(KEEP, |w| common.stepped(w, old_g)));
        lists[2].push(common.stepped(s2, s));
        if writes_steps {
            lists[3].push(KEEP);
        }
    }
    Ok(lists.concat())
}

pub(super) static ROWS: &[Row] = rows![
    "_fused_adam_" "_fused_adam_.tensor_lr" => |cx| adam(cx, false);
    "_fused_adamw_" "_fused_adamw_.tensor_lr" => |cx| adam(cx, true);
    "_fused_sgd_" "_fused_sgd_.tensor_lr" => sgd;
    "_fused_adagrad_" => |cx| adagrad(cx, true);
    "_fused_adagrad_.tensor_lr" => |cx| adagrad(cx, false);
];
