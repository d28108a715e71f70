//! `layout`: results of attention are stored in the order their readers want.
//!
//! ```text
//! %o, %l = attention ... : 2x12x64x64           =>   %o, %l = attention ...
//! %t = transpose %o, [0, 2, 1, 3]                    %t = transpose %o, [0, 2, 1, 3]
//! %b = attention_backward .. %o ..                   %u = transpose %t, [0, 2, 1, 3]
//!                                                    %b = attention_backward .. %u ..
//! ```
//! A result whose only user is a transpose is stored transposed (the kernel writes through strides) and the transpose is
//! free; every other reader then takes a strided view of that. Runs after the last `simplify`, which would cancel the two.
//!
//! Safety: the second transpose is the inverse of the first.
use super::rewriter::{Rewriter, live_order};
use crate::ir::{Attrs, Dims, Graph, OpKind, TypeError};

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
            let perm_of = |u: &crate::ir::InstId| match (graph.inst(*u).kind, &graph.inst(*u).attrs) {
                (OpKind::Transpose, Attrs::Dims(p)) => Some(p.clone()),
                _ => None,
            };
            let Some(perm) = users[v.0 as usize].iter().find_map(perm_of) else { continue };
            let new = r.get(v);
            let stored = r.b.transpose(new, &perm);
            let back = r.b.transpose(stored, inverse(&perm));
            r.set(v, back);
            for u in &users[v.0 as usize] {
                if perm_of(u).as_ref() == Some(&perm) {
                    r.set(graph.inst(*u).result(), stored);
                }
            }
        }
    }
    r.finish()
}

fn inverse(perm: &[i64]) -> Dims {
    let mut inv = Dims::from_elem(0, perm.len());
    for (i, &p) in perm.iter().enumerate() {
        inv[p as usize] = i as i64;
    }
    inv
}
