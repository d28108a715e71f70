//! Fused recurrent cells, as the CUDA kernels define them (`RNN.cu`): no CPU kernels exist.
use super::expr::Ex;
use super::{KEEP, Lowered, Row};
use crate::Cx;
use rsx_compiler::ir::DType;

type Res<T> = Result<T, super::Unsupported>;

/// Tensor arguments in the opmath type of the first.
fn operands<'a, const N: usize>(cx: &mut Cx<'a>, first: usize) -> Res<([Option<Ex<'a>>; N], DType)> {
    let d = cx.x(first)?.dtype().opmath();
    let mut out = [None; N];
    for (i, o) in out.iter_mut().enumerate() {
        *o = cx.opt_as(i, d)?;
    }
    Ok((out, d))
}

fn plus<'a>(x: Ex<'a>, bias: Option<Ex<'a>>) -> Ex<'a> {
    bias.map_or(x, |b| x + b)
}

/// (hy, cy, activated gates i f g o).
fn lstm_cell(cx: &mut Cx) -> Lowered {
    let ([Some(input), Some(hidden), Some(c), b1, b2], _) = operands(cx, 0)? else {
        return cx.decline("undefined gates");
    };
    let gates = plus(plus(input + hidden, b1), b2);
    let part = |k| gates.chunk(k, 4, 1);
    let (i, f, g, o) = (part(0).sigmoid(), part(1).sigmoid(), part(2).tanh(), part(3).sigmoid());
    let cy = f * c + i * g;
    let hy = o * cy.tanh();
    let workspace = Ex::concat(&[i, f, g, o], 1).unwrap_or(gates);
    Ok(vec![hy.v, cy.v, workspace.v])
}

/// (gradient of the gates, of cx, of the biases).
fn lstm_cell_backward(cx: &mut Cx) -> Lowered {
    let ([dhy, dcy, Some(c), Some(cy), Some(workspace)], _) = operands(cx, 2)? else {
        return cx.decline("undefined cell states");
    };
    let part = |k| workspace.chunk(k, 4, 1);
    let (i, f, g, o) = (part(0), part(1), part(2), part(3));
    let dhy = dhy.unwrap_or(cy.lit(0.0));
    let t = cy.tanh();
    let through_h = dhy * o * (1.0 - t * t);
    let dc = dcy.map_or(through_h, |dcy| through_h + dcy);
    let gates = [dc * g * (1.0 - i) * i, dc * c * (1.0 - f) * f, dc * i * (1.0 - g * g), dhy * t * (1.0 - o) * o];
    let dgates = Ex::concat(&gates, 1).unwrap_or(dc);
    Ok(vec![dgates.v, (dc * f).v, if cx.wants(2) { dgates.sum(&[0]).v } else { KEEP }])
}

/// (hy, workspace: reset, update and new gates, hx, hidden part of the new gate with its bias).
fn gru_cell(cx: &mut Cx) -> Lowered {
    let ([Some(input), Some(hidden), Some(h), b1, b2], _) = operands(cx, 0)? else {
        return cx.decline("undefined gates");
    };
    let (x, y) = (plus(input, b1), plus(hidden, b2));
    let part = |t: Ex<'_>, k| t.chunk(k, 3, 1).v;
    let p = |t: Ex<'_>, k| Ex::new(input.ctx(), part(t, k));
    let r = (p(x, 0) + p(y, 0)).sigmoid();
    let z = (p(x, 1) + p(y, 1)).sigmoid();
    let hn = p(y, 2);
    let n = (p(x, 2) + r * hn).tanh();
    let hy = n + z * (h - n);
    let workspace = Ex::concat(&[r, z, n, h, hn], 1).unwrap_or(n);
    Ok(vec![hy.v, workspace.v])
}

/// (gradients of the input gates, hidden gates, hx, input bias, hidden bias).
fn gru_cell_backward(cx: &mut Cx) -> Lowered {
    let ([Some(dhy), Some(workspace)], _) = operands(cx, 0)? else { return cx.decline("undefined gradients") };
    let part = |k| workspace.chunk(k, 5, 1);
    let (r, z, n, h, hn) = (part(0), part(1), part(2), part(3), part(4));
    let dz = dhy * (h - n) * (1.0 - z) * z;
    let dn = dhy * (1.0 - z) * (1.0 - n * n);
    let dr = dn * hn * (1.0 - r) * r;
    let dinput = Ex::concat(&[dr, dz, dn], 1).unwrap_or(dn);
    let dhidden = Ex::concat(&[dr, dz, dn * r], 1).unwrap_or(dn);
    let bias = |k: usize, g: Ex<'_>| if cx.wants(k) { g.sum(&[0]).v } else { KEEP };
    Ok(vec![dinput.v, dhidden.v, (dhy * z).v, bias(3, dinput), bias(4, dhidden)])
}

pub(super) static ROWS: &[Row] = rows![
    "_thnn_fused_lstm_cell" "_thnn_fused_lstm_cell.out" => lstm_cell;
    "_thnn_fused_lstm_cell_backward_impl" "_thnn_fused_lstm_cell_backward_impl.out" => lstm_cell_backward;
    "_thnn_fused_gru_cell" "_thnn_fused_gru_cell.out" => gru_cell;
    "_thnn_fused_gru_cell_backward" "_thnn_fused_gru_cell_backward.out" => gru_cell_backward;
];
