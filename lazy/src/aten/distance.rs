//! Distances between all pairs of rows, and the three-way product of `bilinear`.
use super::expr::Ex;
use super::reduce::norm_of;
use super::{Lowered, Row, one};
use crate::Cx;
use crate::cx::wrap_dim;
use rsx_compiler::ir::Dims;

/// x1[.., p, :] - x2[.., r, :] for all p and r.
fn differences<'a>(x1: Ex<'a>, x2: Ex<'a>) -> Ex<'a> {
    x1.unsqueeze(x1.rank() - 1) - x2.unsqueeze(x2.rank() - 2)
}

fn cdist(cx: &mut Cx) -> Lowered {
    let d = differences(cx.math(0)?, cx.math(1)?);
    let p = cx.double(2)?;
    one(norm_of(d, p, &[d.rank() as i64 - 1]))
}

/// dx1 from (gradient, x1, x2, p, distances).
fn cdist_backward(cx: &mut Cx) -> Lowered {
    let (g, x1, x2, dist) = (cx.math(0)?, cx.math(1)?, cx.math(2)?, cx.math(4)?);
    let p = cx.double(3)?;
    let d = differences(x1, x2);
    let (g, dist) = (g.unsqueeze(g.rank()), dist.unsqueeze(dist.rank()));
    let slope = match p {
        _ if p == 0.0 => d.lit(0.0),
        _ if p == 1.0 => d.sign(),
        _ if p == f64::INFINITY => d.sign().when(d.abs().eq(dist), 0.0),
        _ if p == 2.0 => d / dist,
        _ => d.sign() * (d.abs() / dist).pow(p - 1.0),
    };
    let smooth = p == 0.0 || p == 1.0 || p == f64::INFINITY;
    let term = g * slope;
    let term = if smooth { term } else { term.lit(0.0).when(dist.eq(0.0), term) };
    one(term.sum(&[term.rank() as i64 - 2]))
}

/// Product of three tensors, each expanded by new dimensions, summed over some.
fn trilinear(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[0, 1, 2]).opmath();
    let mut product: Option<Ex> = None;
    for k in 0..3 {
        let mut x = cx.x_as(k, d)?;
        let mut expand: Dims = Dims::from_slice(cx.ints(3 + k)?);
        expand.sort_unstable();
        for &e in &expand {
            x = x.unsqueeze(e as usize);
        }
        product = Some(product.map_or(x, |p| p * x));
    }
    let Some(product) = product else { return cx.decline("no operands") };
    let dims: Dims = cx.ints(6)?.iter().map(|&s| wrap_dim(s, product.rank()) as i64).collect();
    one(product.sum(&dims))
}

pub(super) static ROWS: &[Row] = rows![
    "_cdist_forward" "_cdist_forward.out" => cdist;
    "_cdist_backward" "_cdist_backward.out" => cdist_backward;
    "_trilinear" "_trilinear.out" => trilinear;
];
