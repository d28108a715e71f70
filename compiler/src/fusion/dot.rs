//! What contractions need of their operands' strides and of their epilogues.
use super::analysis::Analysis;
use super::views::Strided;
use super::{body, collapse};
use crate::ir::{Attrs, DotDims, Inst, InstId, OpKind, Value};
use crate::passes::dimmap::DotShape;

/// Smallest inner part of m that is worth a matrix product of its own when m cannot be walked as one dimension.
const MIN_M: i64 = 16;

/// A contraction can take operand `v` of `inst` as `view` without a copy: the contracted dimensions join into one, so do
/// the right operand's free ones, and so do the left's unless the innermost is long (the others then count as batch).
pub(crate) fn walkable(view: &Strided, inst: &Inst, v: Value, d: &DotDims) -> bool {
    let (batch, k) = (d.lhs_batch.len(), d.lhs_contract.len());
    let rank = view.dims.len();
    let joined = |from: usize, to: usize| (from + 1..to).all(|i| view.joins(i - 1));
    let lhs = v == inst.operands[0];
    let rhs = v == inst.operands[1];
    let lhs_ok = || {
        let (m0, m1) = (batch, rank - k);
        joined(m1, rank) && (joined(m0, m1) || view.dims[m1 - 1] >= MIN_M)
    };
    let rhs_ok = || joined(batch, batch + k) && joined(batch + k, rank);
    (!lhs || lhs_ok()) && (!rhs || rhs_ok())
}

/// Whatever elementwise ops an epilogue of `of` holds, n stays one dimension.
pub(crate) fn any_epilogue_fits(a: &Analysis<'_>, of: InstId) -> bool {
    let inst = a.g.inst(of);
    match &inst.attrs {
        Attrs::Dot(d) => DotShape::canonical(a.g, inst, d).is_some_and(|s| s.n == 1),
        _ => true,
    }
}

/// The epilogue made of `members` leaves n (and k) of the dot `of` one dimension.
pub(crate) fn epilogue_fits(a: &Analysis<'_>, of: InstId, members: &[InstId]) -> bool {
    let inst = a.g.inst(of);
    let (OpKind::DotGeneral, Attrs::Dot(d)) = (inst.kind, &inst.attrs) else { return true };
    match DotShape::canonical(a.g, inst, d) {
        None => return false,
        Some(s) if s.m == 0 || s.n == 0 => return false,
        Some(s) if s.n == 1 => return true,
        Some(_) => {}
    }
    let inside = |id: InstId| members.binary_search(&id).is_ok() || members.contains(&id);
    let outputs: Vec<Value> = members
        .iter()
        .filter(|&&m| m != of)
        .map(|&m| a.g.inst(m).first)
        .filter(|&v| a.is_result[v.0 as usize] || a.readers(v).iter().any(|&r| !inside(r)))
        .collect();
    let Ok(built) = body::build(a, &outputs, Some(of), &inside) else { return false };
    let Ok(joined) = collapse::collapse(built.clone(), |p, i| !operand_joins(a, &built.operands, inst, p, i)) else {
        return false;
    };
    joined.graph.insts.iter().filter(|i| i.kind == OpKind::DotGeneral).all(|i| match &i.attrs {
        Attrs::Dot(d) => DotShape::canonical(&joined.graph, i, d).is_some_and(|s| s.n <= 1 && s.k <= 1),
        _ => false,
    })
}

/// Dimensions `i` and `i + 1` of parameter `p` of a body that starts with contraction `inst` can be walked as one. Only
/// operands of the contraction can be strided.
pub(crate) fn operand_joins(a: &Analysis<'_>, operands: &[Value], inst: &Inst, p: usize, i: usize) -> bool {
    p >= inst.operands.len() || a.view(operands[p]).joins(i)
}
