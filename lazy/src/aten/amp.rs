//! Gradient scaling for mixed precision (`AmpKernels.cu`).
use super::expr::Ex;
use super::{Lowered, Row};
use crate::Cx;
use rsx_compiler::ir::{DType, OpKind, ReduceKind};

/// Each gradient times the inverse scale; the flag becomes 1 if one was infinite or NaN.
fn unscale(cx: &mut Cx) -> Lowered {
    let grads = cx.list(0)?;
    let inverse = cx.x_as(2, DType::F32)?.reshape(&[]);
    let found = cx.x(1)?;
    let mut bad: Option<Ex> = None;
    let mut results = Vec::with_capacity(grads.len() + 1);
    for g in grads {
        let x = g.opmath();
        results.push((x * inverse.to(x.dtype())).v);
        let all_finite = x.un(OpKind::IsFinite).reduce(ReduceKind::And, &x.all_dims());
        bad = Some(bad.map_or(all_finite.not(), |b| b.or(all_finite.not())));
    }
    results.push(bad.map_or(found, |b| found.lit(1.0).when(b, found)).v);
    Ok(results)
}

/// (scale, growth tracker) of the next step.
fn update_scale(cx: &mut Cx) -> Lowered {
    let (scale, tracker, found) = (cx.x(0)?, cx.x(1)?, cx.x(2)?);
    let d = scale.dtype();
    let (growth, backoff) = (cx.x_as(3, DType::F64)?, cx.x_as(4, DType::F64)?);
    let steps = tracker + 1.0;
    let grow = steps.eq(cx.x_as(5, tracker.dtype())?);
    let grown = (scale.to(DType::F64) * growth).to(d);
    // A scale that would overflow stays.
    let grown = grown.when(grown.un(OpKind::IsFinite), scale);
    let found = found.ne(0.0);
    let next = (scale.to(DType::F64) * backoff).to(d).when(found, grown.when(grow, scale));
    Ok(vec![next.v, tracker.lit(0.0).when(found.or(grow), steps).v])
}

pub(super) static ROWS: &[Row] = rows![
    "_amp_foreach_non_finite_check_and_unscale_" => unscale;
    "_amp_update_scale_" => update_scale;
];
