//! Where library kernels that write through strides put their results.
//!
//! ```text
//! %dq, %dk, %dv = attention_backward ..          stored as slices of %d, transposed: neither the transposes nor the
//! %a, %b, %c = transpose %dq, ..                 concatenation are thunks
//! %d = concatenate %a, %b, %c
//! ```
//! A result whose only user is a transpose is stored in the transpose's order (matrix products: if n stays innermost);
//! results that are put together, transposed
//! or not, by a concatenation of nothing else are stored in its memory. The value that then has the dense memory (the
//! transpose, the concatenation) is the *root*.
use crate::ir::{Attrs, Dims, Graph, Inst, InstId, OpKind, Value, row_major_strides};
use crate::passes::dimmap::DotShape;
use smallvec::SmallVec;

/// The op's kernel writes its results through strides.
pub(crate) fn stores_in_any_order(kind: OpKind) -> bool {
    matches!(kind, OpKind::Attention | OpKind::AttentionBackward)
}

/// A result as elements of its root's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) root: Value,
    pub(crate) strides: Dims,
    pub(crate) offset: i64,
}

/// For every value: where it is stored, if that is not in memory of its own.
pub(crate) fn stored(g: &Graph) -> Vec<Option<Stored>> {
    let mut out = vec![None; g.n_values()];
    let users = g.users();
    let strided = |i: &&Inst| stores_in_any_order(i.kind) || i.kind == OpKind::DotGeneral;
    for inst in g.insts.iter().filter(strided) {
        for (v, s) in place(g, inst, &users) {
            out[v.0 as usize] = Some(s);
        }
    }
    out
}

/// The kernel of `inst` can write its result permuted by `perm`.
fn can_store(g: &Graph, inst: &Inst, perm: &[i64]) -> bool {
    match (inst.kind, &inst.attrs) {
        (OpKind::DotGeneral, Attrs::Dot(d)) => {
            let n = DotShape::canonical(g, inst, d).map_or(0, |s| s.n);
            let inner = perm.len().saturating_sub(n.max(1));
            (inner..perm.len()).all(|i| perm[i] == i as i64)
        }
        (kind, _) => stores_in_any_order(kind),
    }
}

/// The only user of `v`, if it has one and is no result of the graph.
fn only_user<'g>(g: &'g Graph, v: Value, users: &[SmallVec<[InstId; 4]>]) -> Option<&'g Inst> {
    match users[v.0 as usize][..] {
        [user] if !g.results.contains(&v) => Some(g.inst(user)),
        _ => None,
    }
}

fn place(g: &Graph, inst: &Inst, users: &[SmallVec<[InstId; 4]>]) -> Vec<(Value, Stored)> {
    // Every result with the value that holds its elements in the order they are read in, and the permutation to it.
    let read: Vec<(Value, Value, Option<&Dims>)> = inst
        .results()
        .map(|r| match only_user(g, r, users) {
            Some(Inst { kind: OpKind::Transpose, attrs: Attrs::Dims(p), first, .. }) if can_store(g, inst, p) => {
                (r, *first, Some(p))
            }
            _ => (r, r, None),
        })
        .collect();
    let mut out = Vec::new();
    for &(r, v, perm) in &read {
        let (root, mut strides, mut offset) = match only_user(g, v, users) {
            Some(c) if c.kind == OpKind::Concatenate && assembles(c, &read) => (c.first, Dims::new(), 0),
            _ if perm.is_some() => (v, Dims::new(), 0),
            _ => continue,
        };
        strides.extend(row_major_strides(&g.ty(root).dims));
        if let (true, Attrs::Dim(d)) = (root != v, &g.def_inst(root).attrs) {
            let before = g.def_inst(root).operands.iter().take_while(|&&o| o != v);
            let start: i64 = before.map(|&o| g.ty(o).dims[*d as usize]).sum();
            offset = start * strides[*d as usize];
        }
        if let Some(p) = perm {
            let stored = strides.clone();
            for (i, &d) in p.iter().enumerate() {
                strides[d as usize] = stored[i];
            }
        }
        out.push((r, Stored { root, strides, offset }));
    }
    out
}

/// Concatenation `c` has each of its operands once, and all are among `read`.
fn assembles(c: &Inst, read: &[(Value, Value, Option<&Dims>)]) -> bool {
    let from = |o: &Value| read.iter().any(|(_, v, _)| v == o);
    let once = |o: &Value| c.operands.iter().filter(|&p| p == o).count() == 1;
    c.operands.iter().all(|o| from(o) && once(o))
}
