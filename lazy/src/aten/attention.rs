//! Scaled dot-product attention on the fused primitive.
use super::expr::Ex;
use super::reduce::shaped;
use super::{KEEP, Lowered, Row};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims, DotDims, ReduceKind};

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

fn pairs(lhs: i64, rhs: i64) -> DotDims {
    let dims = |d: &[i64]| Dims::from_slice(d);
    DotDims {
        lhs_batch: dims(&[0, 1]),
        rhs_batch: dims(&[0, 1]),
        lhs_contract: dims(&[lhs]),
        rhs_contract: dims(&[rhs]),
    }
}

/// The product of matrices per head over dimension `l` of `x` and `r` of `y`.
fn product<'a>(x: Ex<'a>, l: i64, y: Ex<'a>, r: i64) -> Ex<'a> {
    super::linalg::dot(x, y, pairs(l, r), x.dtype())
}

/// Scores of queries and keys; minus infinity where a key is not seen.
fn scores<'a>(cx: &Cx<'a>, q: Ex<'a>, k: Ex<'a>, s: Ex<'a>, bias: Option<Ex<'a>>, causal: bool) -> Ex<'a> {
    let mut x = product(q, 3, k, 3) * s;
    if let Some(bias) = bias {
        x = x + bias;
    }
    if causal {
        let dims = x.dims();
        x = x.when(cx.iota(&dims, 3).le(cx.iota(&dims, 2)), f64::NEG_INFINITY);
    }
    x
}

/// `x`, and 0 where it is minus infinity: the reference of a row that sees no key, whose weights are all 0 then.
fn finite<'a>(x: Ex<'a>) -> Ex<'a> {
    x.when(x.ne(f64::NEG_INFINITY), 0.0)
}

fn forward(cx: &mut Cx) -> Lowered {
    let (q, k, v) = (four(cx.x(0)?), four(cx.x(1)?), four(cx.x(2)?));
    check(cx, q, k, 3)?;
    let (k, v) = (for_heads(k, q.size(1)), for_heads(v, q.size(1)));
    let bias = cx.opt_as(5, q.dtype())?;
    let causal = cx.bool(4)?;
    let s = scale(cx, 6, q)?;
    if q.dtype() == DType::F64 {
        // The primitive's logarithm of sums is f32.
        let x = scores(cx, q, k, s, bias, causal);
        let largest = finite(x.reduce_keep(ReduceKind::Max, &[3]));
        let p = (x - largest).exp();
        let sum = p.sum_keep(&[3]);
        let out = product(p / sum.when(sum.gt(0.0), 1.0), 3, v, 2);
        return Ok(vec![shaped(cx, out, 0)?.v, shaped(cx, largest + sum.log(), 1)?.v]);
    }
    let (mut out, mut lse) = (q.v, q.v);
    q.with(|b| {
        (out, lse) = b.attention([q.v, k.v, v.v], s.v, bias.map(|e| e.v), causal);
        out
    });
    Ok(vec![shaped(cx, Ex::new(q.ctx(), out), 0)?.v, lse])
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
    check(cx, q, k, 6)?;
    let kept = k.size(1);
    let (k, v) = (for_heads(k, q.size(1)), for_heads(v, q.size(1)));
    let dout = four(cx.x_as(0, q.dtype())?);
    let bias = cx.opt_as(8, q.dtype())?;
    let out = four(cx.x(4)?);
    let causal = cx.bool(7)?;
    let s = scale(cx, 9, q)?;
    let grads = if q.dtype() == DType::F64 {
        let p = (scores(cx, q, k, s, bias, causal) - finite(cx.x(5)?).unsqueeze(3)).exp();
        let ds = p * (product(dout, 3, v, 3) - (dout * out).sum_keep(&[3])) * s;
        [product(ds, 3, k, 2), product(ds, 2, q, 2), product(p, 2, dout, 2)]
    } else {
        let lse = cx.x_as(5, DType::F32)?;
        let mut grads = [q.v; 3];
        q.with(|b| {
            grads = b.attention_backward([q.v, k.v, v.v, s.v, out.v, lse.v, dout.v], bias.map(|e| e.v), causal);
            grads[0]
        });
        grads.map(|g| Ex::new(q.ctx(), g))
    };
    let mut results = Vec::new();
    for (n, g) in grads.into_iter().enumerate() {
        let g = if n == 0 { g } else { of_heads(g, kept) };
        results.push(if cx.wants(n) { shaped(cx, g, n)?.v } else { KEEP });
    }
    Ok(results)
}

pub(super) static ROWS: &[Row] = rows![
    "_scaled_dot_product_flash_attention_for_cpu" => forward;
    "_scaled_dot_product_flash_attention_for_cpu_backward" => backward;
];
