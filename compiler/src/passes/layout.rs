//! `layout`: results of attention are stored in the order their readers want.
//!
//! ```text
//! %o, %l = attention ... : 2x12x64x64           =>   %o, %l = attention ...
//! %t = transpose %o, [0, 2, 1, 3]                    %t = transpose %o, [0, 2, 1, 3]
//! %b = attention_backward .. %o ..                   %u = transpose %t, [0, 2, 1, 3]
//!                                                    %b = attention_backward .. %u ..
//! ```
//! A result that a transpose reads is stored transposed (the kernel writes through strides) and the transpose is free;
//! every other reader then takes a strided view of that. Dimensions of size 1 that a reshape drops on the way (a batch of
//! one) make no difference. Runs after the last `simplify`, which would cancel the two.
//!
//! Safety: the second transpose is the inverse of the first; a reshape that drops or adds dimensions of size 1 keeps the
//! order of all others.
use super::rewriter::{Rewriter, live_order};
use crate::ir::{Attrs, Dims, Graph, InstId, OpKind, TypeError, Value};
use smallvec::SmallVec;

pub(super) fn run(graph: &Graph) -> Result<Graph, TypeError> {
    let users = graph.users();
    let mut r = Rewriter::new(graph);
    for id in live_order(graph) {
        let inst = graph.inst(id);
        if r.has(inst.first) {
            continue;
        }
        r.copy(inst);
        if !crate::buffers::stores_in_any_order(inst.kind) {
            continue;
        }
        for v in inst.results() {
            if graph.results.contains(&v) {
                continue;
            }
            let readers = &users[v.0 as usize];
            let Some(moved) = readers.iter().find_map(|&u| transposed(graph, &users, v, u)) else { continue };
            let new = r.get(v);
            let stored = r.b.transpose(new, &moved.perm);
            let back = r.b.transpose(stored, inverse(&moved.perm));
            r.set(v, back);
            for &u in readers {
                let Some(m) = transposed(graph, &users, v, u).filter(|m| m.perm == moved.perm) else { continue };
                let same = if m.direct { stored } else { r.b.reshape(stored, &graph.ty(m.result).dims) };
                r.set(m.result, same);
            }
        }
    }
    r.finish()
}

/// A value that has a result's elements in another order.
struct Moved {
    result: Value,
    /// The order, in dimensions of the result.
    perm: Dims,
    /// It has the result's dimensions; else some of size 1 are missing or more.
    direct: bool,
}

/// What reader `u` of `v` makes of it, if that is a transpose, perhaps of a reshape that only drops or adds dimensions of
/// size 1.
fn transposed(graph: &Graph, users: &[SmallVec<[InstId; 4]>], v: Value, u: InstId) -> Option<Moved> {
    let perm_of = |u: InstId| match (graph.inst(u).kind, &graph.inst(u).attrs) {
        (OpKind::Transpose, Attrs::Dims(p)) => Some(p),
        _ => None,
    };
    let result = graph.inst(u).first;
    if let Some(p) = perm_of(u) {
        return Some(Moved { result, perm: p.clone(), direct: true });
    }
    if graph.inst(u).kind != OpKind::Reshape {
        return None;
    }
    let (from, to) = (&graph.ty(v).dims, &graph.ty(result).dims);
    let wide = |dims: &Dims| (0..dims.len()).filter(|&d| dims[d] != 1).collect::<SmallVec<[usize; 6]>>();
    let (a, b) = (wide(from), wide(to));
    if a.len() != b.len() || a.iter().zip(&b).any(|(&i, &j)| from[i] != to[j]) {
        return None;
    }
    let (t, p) = users[result.0 as usize].iter().find_map(|&t| Some((t, perm_of(t)?)))?;
    // The dimensions of size 1 first, then the others as the transpose orders them.
    let mut perm: Dims = (0..from.len()).filter(|&d| from[d] == 1).map(|d| d as i64).collect();
    perm.extend(p.iter().filter_map(|&d| b.iter().position(|&j| j as i64 == d)).map(|n| a[n] as i64));
    Some(Moved { result: graph.inst(t).first, perm, direct: false })
}

fn inverse(perm: &[i64]) -> Dims {
    let mut inv = Dims::from_elem(0, perm.len());
    for (i, &p) in perm.iter().enumerate() {
        inv[p as usize] = i as i64;
    }
    inv
}
