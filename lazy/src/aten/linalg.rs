//! Matrix products.
use super::expr::Ex;
use super::{KEEP, Lowered, Row, one};
use crate::Cx;
use crate::words::Arg;
use rsx_compiler::ir::{DType, Dims, DotDims};

type Res<T> = Result<T, super::Unsupported>;

/// Integer products are made of elementwise ops: at most this many terms.
const MAX_INTEGER_TERMS: i64 = 1 << 22;

/// `x · y` over the dimension pairs in `dims`, in element type `dtype`.
pub(super) fn dot<'a>(x: Ex<'a>, y: Ex<'a>, dims: DotDims, dtype: DType) -> Ex<'a> {
    x.with(|b| b.dot_general(x.v, y.v, dims, dtype))
}

/// Dimension numbers of a product of [batch.., m, k] and [batch.., k, n].
fn matrix_dims(rank: usize) -> DotDims {
    let batch: Dims = (0..rank as i64 - 2).collect();
    let one = |d: usize| Dims::from_slice(&[d as i64]);
    DotDims { lhs_batch: batch.clone(), rhs_batch: batch, lhs_contract: one(rank - 1), rhs_contract: one(rank - 2) }
}

/// [.., m, k] · [.., k, n] of equal ranks and batch sizes. Accumulates in f32 (f64 for f64) and rounds once to `dtype`.
pub(super) fn matmul<'a>(cx: &Cx, x: Ex<'a>, y: Ex<'a>, dtype: DType) -> Res<Ex<'a>> {
    if x.dtype().is_float() {
        return Ok(dot(x, y, matrix_dims(x.rank()), dtype));
    }
    let r = x.rank();
    if x.numel().saturating_mul(y.size(r - 1)) > MAX_INTEGER_TERMS {
        return cx.decline("large matrix product of integers");
    }
    // [.., m, k, 1] * [.., 1, k, n], summed over k.
    Ok((x.unsqueeze(r) * y.unsqueeze(r - 2)).sum(&[r as i64 - 1]).to(dtype))
}

fn product(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.x(0)?, cx.x(1)?);
    let d = cx.out(0)?.dtype;
    one(matmul(cx, x, y, d)?)
}

/// beta * self + alpha * product, where beta = 0 ignores self (NaN too). In the opmath type of the result.
fn blend<'a>(cx: &mut Cx<'a>, product: Ex<'a>, beta: usize, alpha: usize) -> Res<Ex<'a>> {
    let d = product.dtype();
    let p = if cx.is_one(alpha) { product } else { product * cx.x_as(alpha, d)? };
    match cx.arg(beta) {
        Arg::Int(0) => Ok(p),
        Arg::Int(1) | Arg::None => Ok(cx.x_as(0, d)? + p),
        _ => {
            let (beta, x) = (cx.x_as(beta, d)?, cx.x_as(0, d)?);
            Ok(x.lit(0.0).when(beta.eq(0.0), beta * x) + p)
        }
    }
}

/// Type in which a product is wanted that is blended before it is rounded.
fn wide(cx: &Cx) -> Res<DType> {
    Ok(cx.out(0)?.dtype.opmath())
}

fn addmm(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.x(1)?, cx.x(2)?);
    let d = wide(cx)?;
    let p = matmul(cx, x, y, d)?;
    one(blend(cx, p, 3, 4)?)
}

/// As `addmm` with the result type in argument 3.
fn addmm_dtype(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.x(1)?, cx.x(2)?);
    let d = wide(cx)?;
    let p = matmul(cx, x, y, d)?;
    one(blend(cx, p, 4, 5)?)
}

fn addmm_activation(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.x(1)?, cx.x(2)?);
    let d = wide(cx)?;
    let p = matmul(cx, x, y, d)?;
    let z = blend(cx, p, 3, 4)?;
    one(if cx.bool(5)? { super::activation::gelu_erf(z) } else { z.max(0.0) })
}

/// Sum over the batch of batched products.
fn addbmm(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.x(1)?, cx.x(2)?);
    let d = wide(cx)?;
    let p = if x.dtype().is_float() {
        let pair = |a: i64, b: i64| Dims::from_slice(&[a, b]);
        dot(x, y, DotDims { lhs_contract: pair(0, 2), rhs_contract: pair(0, 1), ..DotDims::default() }, d)
    } else {
        matmul(cx, x, y, d)?.sum(&[0])
    };
    one(blend(cx, p, 3, 4)?)
}

/// Matrix times vector.
fn mat_vec<'a>(cx: &Cx, m: Ex<'a>, v: Ex<'a>, dtype: DType) -> Res<Ex<'a>> {
    Ok(matmul(cx, m, v.unsqueeze(1), dtype)?.squeeze(1))
}

fn mv(cx: &mut Cx) -> Lowered {
    let (m, v) = (cx.x(0)?, cx.x(1)?);
    let d = cx.out(0)?.dtype;
    one(mat_vec(cx, m, v, d)?)
}

fn addmv(cx: &mut Cx) -> Lowered {
    let (m, v) = (cx.x(1)?, cx.x(2)?);
    let d = wide(cx)?;
    let p = mat_vec(cx, m, v, d)?;
    one(blend(cx, p, 3, 4)?)
}

fn vec_dot(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.x(0)?, cx.x(1)?);
    let d = cx.out(0)?.dtype;
    one(matmul(cx, x.unsqueeze(0), y.unsqueeze(1), d)?.reshape(&[]))
}

/// beta * self + alpha * outer product.
fn addr(cx: &mut Cx) -> Lowered {
    let d = wide(cx)?;
    let (x, y) = (cx.x_as(1, d)?, cx.x_as(2, d)?);
    let p = x.unsqueeze(1) * y.unsqueeze(0);
    one(blend(cx, p, 3, 4)?)
}

/// x [.., k] · w [n, k] + bias [n], rounded once.
fn linear(cx: &mut Cx) -> Lowered {
    let (x, w) = (cx.x(0)?, cx.x(1)?);
    let d = if cx.is_none(2) { x.dtype() } else { wide(cx)? };
    let one_dim = |d: usize| Dims::from_slice(&[d as i64]);
    let dims = DotDims { lhs_contract: one_dim(x.rank() - 1), rhs_contract: one_dim(1), ..DotDims::default() };
    let y = dot(x, w, dims, d);
    match cx.opt_as(2, d)? {
        None => one(y),
        Some(bias) => one(y + bias),
    }
}

/// Gradients of [`linear`] in x, w and bias: (x, dy [.., n], w, mask). x and w are anything where nothing asks for what
/// they are needed for.
fn linear_backward(cx: &mut Cx) -> Lowered {
    let dy = cx.x(1)?;
    let r = dy.rank();
    let one_dim = |d: usize| Dims::from_slice(&[d as i64]);
    let rows: Dims = (0..r as i64 - 1).collect();
    let mut out = vec![KEEP; 3];
    if cx.wants(0) {
        let w = cx.x(2)?;
        let dims = DotDims { lhs_contract: one_dim(r - 1), rhs_contract: one_dim(0), ..DotDims::default() };
        out[0] = dot(dy, w, dims, dy.dtype()).v;
    }
    if cx.wants(1) {
        let x = cx.x(0)?;
        let dims = DotDims { lhs_contract: rows.clone(), rhs_contract: rows.clone(), ..DotDims::default() };
        out[1] = dot(dy, x, dims, dy.dtype()).v;
    }
    if cx.wants(2) {
        out[2] = dy.opmath().sum(&rows).v;
    }
    Ok(out)
}

pub(super) static ROWS: &[Row] = rows![
    "mm" "mm.out" "bmm" "bmm.out" "mm.dtype" "mm.dtype_out" "bmm.dtype" "bmm.dtype_out" => product;
    "addmm" "addmm_" "addmm.out" "baddbmm" "baddbmm_" "baddbmm.out" => addmm;
    "addmm.dtype" "addmm.dtype_out" "baddbmm.dtype" "baddbmm.dtype_out" => addmm_dtype;
    "_addmm_activation" "_addmm_activation.out" => addmm_activation;
    "linear" => linear;
    "linear_backward" => linear_backward;
    "addbmm" "addbmm_" "addbmm.out" => addbmm;
    "mv" "mv.out" => mv;
    "addmv" "addmv_" "addmv.out" => addmv;
    "dot" "dot.out" "vdot" "vdot.out" => vec_dot;
    "addr" "addr_" "addr.out" => addr;
];
