//! Scaled dot-product attention on the fused primitive.
use super::expr::Ex;
use super::reduce::shaped;
use super::{KEEP, Lowered, Row};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims, DotDims};

type Res<T> = Result<T, super::Unsupported>;

/// The scale in argument `i`, or 1 / sqrt(depth), as 0-d f64.
fn scale<'a>(cx: &mut Cx<'a>, i: usize, q: Ex<'a>) -> Res<Ex<'a>> {
    let depth = q.size(q.rank() - 1) as f64;
    cx.num_or(i, DType::F64, 1.0 / depth.sqrt())
}

/// [heads, time, depth] as a batch of one.
fn four<'a>(x: Ex<'a>) -> Ex<'a> {
    if x.rank() == 3 { x.unsqueeze(0) } else { x }
}

/// Each head of `x` as often as there are queries for it (grouped queries).
fn for_heads<'a>(x: Ex<'a>, heads: i64) -> Ex<'a> {
    let d = x.dims();
    if d[1] == heads {
        return x;
    }
    x.unsqueeze(2).broadcast(&[d[0], d[1], heads / d[1], d[2], d[3]]).reshape(&[d[0], heads, d[2], d[3]])
}

/// The adjoint of [`for_heads`]: a gradient for `kept` heads.
fn of_heads<'a>(g: Ex<'a>, kept: i64) -> Ex<'a> {
    let d = g.dims();
    if d[1] == kept { g } else { g.opmath().reshape(&[d[0], kept, d[1] / kept, d[2], d[3]]).sum(&[2]).to(g.dtype()) }
}

fn forward(cx: &mut Cx) -> Lowered {
    let (q, k, v) = (four(cx.x(0)?), four(cx.x(1)?), four(cx.x(2)?));
    check(cx, q, k, 4)?;
    let (k, v) = (for_heads(k, q.size(1)), for_heads(v, q.size(1)));
    let bias = cx.opt_as(3, q.dtype())?;
    let causal = cx.bool(5)?;
    let s = scale(cx, 7, q)?;
    let (mut out, mut lse) = (q.v, q.v);
    q.with(|b| {
        (out, lse) = b.attention([q.v, k.v, v.v], s.v, bias.map(|e| e.v), causal);
        out
    });
    let out = shaped(cx, Ex::new(q.ctx(), out), 0)?;
    // Results 2 to 5 are undefined tensors and sizes; the rest belongs to dropout and debugging, which is not done.
    let mut results = vec![out.v, lse];
    for k in 2..cx.n_outs() {
        results.push(match cx.out(k) {
            Ok(t) => cx.fill(t.dtype, &t.dims, 0.0).v,
            Err(_) => KEEP,
        });
    }
    Ok(results)
}

fn check(cx: &Cx, q: Ex, k: Ex, dropout: usize) -> Res<()> {
    if !cx.is_none(dropout) && cx.double(dropout)? != 0.0 {
        return cx.decline("dropout inside attention");
    }
    if q.rank() != 4 || q.size(0) != k.size(0) || q.size(1) % k.size(1).max(1) != 0 {
        return cx.decline("sizes of queries and keys");
    }
    Ok(())
}

fn backward(cx: &mut Cx) -> Lowered {
    let (q, k, v) = (four(cx.x(1)?), four(cx.x(2)?), four(cx.x(3)?));
    check(cx, q, k, 12)?;
    let kept = k.size(1);
    let (k, v) = (for_heads(k, q.size(1)), for_heads(v, q.size(1)));
    let dout = four(cx.x_as(0, q.dtype())?);
    let bias = cx.opt_as(4, q.dtype())?;
    let (out, lse) = (four(cx.x(6)?), cx.x_as(7, DType::F32)?);
    let causal = cx.bool(13)?;
    let s = scale(cx, 16, q)?;
    let mut grads = [q.v; 3];
    q.with(|b| {
        grads = b.attention_backward([q.v, k.v, v.v, s.v, out.v, lse.v, dout.v], bias.map(|e| e.v), causal);
        grads[0]
    });
    let mut results = Vec::new();
    for (n, g) in grads.into_iter().enumerate() {
        let g = Ex::new(q.ctx(), g);
        let g = if n == 0 { g } else { of_heads(g, kept) };
        results.push(if cx.wants(n) { shaped(cx, g, n)?.v } else { KEEP });
    }
    results.push(match bias {
        Some(bias) if cx.wants(3) => {
            if !cx.bools(5)?.get(3).copied().unwrap_or(true) {
                // Predicted but not asked for.
                bias.lit(0.0).v
            } else {
                bias_gradient(cx, [q, k, v, out, lse, dout], s, bias, causal).v
            }
        }
        _ if cx.wants(3) => cx.fill(q.dtype(), &cx.out(3)?.dims.clone(), 0.0).v,
        _ => KEEP,
    });
    Ok(results)
}

/// Gradient of the additive mask: that of the scores, summed to its sizes.
fn bias_gradient<'a>(cx: &Cx<'a>, t: [Ex<'a>; 6], s: Ex<'a>, bias: Ex<'a>, causal: bool) -> Ex<'a> {
    let [q, k, v, out, lse, dout] = t.map(|e| e.to(DType::F32));
    let pairs = || {
        let dims = |d: &[i64]| Dims::from_slice(d);
        DotDims {
            lhs_batch: dims(&[0, 1]),
            rhs_batch: dims(&[0, 1]),
            lhs_contract: dims(&[3]),
            rhs_contract: dims(&[3]),
        }
    };
    let scores = super::linalg::dot(q, k, pairs(), DType::F32) * s.to(DType::F32) + bias.to(DType::F32);
    let mut p = (scores - lse.unsqueeze(3)).exp();
    if causal {
        let dims = p.dims();
        p = p.lit(0.0).when(cx.iota(&dims, 3).gt(cx.iota(&dims, 2)), p);
    }
    let ds = p * (super::linalg::dot(dout, v, pairs(), DType::F32) - (dout * out).sum_keep(&[3]));
    sum_to(ds, &bias.dims())
}

/// Undoes broadcasting from `dims`.
pub(super) fn sum_to<'a>(x: Ex<'a>, dims: &[i64]) -> Ex<'a> {
    let lead = x.rank() - dims.len();
    let over: Dims = (0..x.rank() as i64)
        .filter(|&d| (d as usize) < lead || (dims[d as usize - lead] == 1 && x.size(d as usize) != 1))
        .collect();
    x.sum(&over).reshape(dims)
}

pub(super) static ROWS: &[Row] = rows![
    "_scaled_dot_product_fused_attention_overrideable" => forward;
    "_scaled_dot_product_fused_attention_overrideable_backward" => backward;
];
