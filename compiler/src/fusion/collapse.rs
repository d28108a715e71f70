//! Joins dimensions of a body that are never told apart, so that kernels see the fewest loops and equal kernels look equal.
//!
//! ```text
//! %x : 4x8x768, %b : 768                        =>   %x : 32x768, %b : 768
//! %c = broadcast_in_dim %b, [2] : 4x8x768            %c = broadcast_in_dim %b, [1] : 32x768
//! %s = add %x, %c                                    %s = add %x, %c
//! ```
//! Two neighbouring dimensions join if wherever one stands in a value of the body, the other stands beside it. Reductions
//! and broadcasts that treat them differently leave values with only one of them, so nothing has to be said about those.
use super::body::{BODY_NAME, Body};
use crate::ir::{Dims, Graph, OpKind, TypeError, Value};
use crate::passes::dimmap::{Grouping, Regrouped, Relation, relations};
use crate::passes::rewriter::Rewriter;

/// What stands beside a dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Never seen.
    Unknown,
    /// Always this class.
    Class(u32),
    /// Different things, or the end of a value.
    Mixed,
}

impl Beside {
    fn note(&mut self, class: Option<u32>) {
        let seen = class.map_or(Beside::Mixed, Beside::Class);
        *self = match *self {
            Beside::Unknown => seen,
            old if old == seen => old,
            _ => Beside::Mixed,
        };
    }
}

/// The body with joined dimensions. `apart(p, i)` forbids joining dimensions i and i + 1 of parameter p.
pub(crate) fn collapse(body: Body, apart: impl Fn(usize, usize) -> bool) -> Result<Body, TypeError> {
    let g = &body.graph;
    let groupings = groupings(g, apart);
    if (0..g.n_values()).all(|v| groupings[v].dims == g.ty(Value(v as u32)).dims) {
        return Ok(body);
    }
    let mut param_dims: Vec<Dims> = g.params.iter().map(|p| p.ty.dims.clone()).collect();
    for inst in &g.insts {
        if let (OpKind::Parameter, crate::ir::Attrs::Index(i)) = (inst.kind, &inst.attrs) {
            param_dims[*i as usize] = groupings[inst.first.0 as usize].dims.clone();
        }
    }
    let mut r = Rewriter::with_params(g, |i| g.params[i].ty.with_dims(&param_dims[i]));
    for (_, inst) in g.iter() {
        if inst.kind != OpKind::Parameter {
            Regrouped { r: &mut r, of: &groupings }.emit(inst);
        }
    }
    let mut graph = r.finish()?;
    graph.name = BODY_NAME.to_owned();
    // Locations would keep equal kernels apart.
    graph.insts.iter_mut().for_each(|i| i.loc = 0);
    Ok(Body { graph, operands: body.operands })
}

fn groupings(g: &Graph, apart: impl Fn(usize, usize) -> bool) -> Vec<Grouping> {
    let mut base = Vec::with_capacity(g.n_values());
    let mut n = 0u32;
    for v in 0..g.n_values() as u32 {
        base.push(n);
        n += g.ty(Value(v)).rank() as u32;
    }
    let mut parent: Vec<u32> = (0..n).collect();
    fn find(parent: &mut [u32], mut k: u32) -> u32 {
        while parent[k as usize] != k {
            parent[k as usize] = parent[parent[k as usize] as usize];
            k = parent[k as usize];
        }
        k
    }
    let of = |v: Value, i: usize| base[v.0 as usize] + i as u32;
    let mut whole = Vec::new();
    for (_, inst) in g.iter() {
        let known = inst.kind == OpKind::Parameter
            || relations(g, inst, |rel| match rel {
                Relation::Same((v, i), (w, j)) => {
                    let (a, b) = (find(&mut parent, of(v, i)), find(&mut parent, of(w, j)));
                    parent[a as usize] = b;
                }
                Relation::Whole(v, i) => whole.push(of(v, i)),
            });
        if !known {
            for v in inst.operands.iter().copied().chain(inst.results()) {
                whole.extend((0..g.ty(v).rank()).map(|i| of(v, i)));
            }
        }
    }
    let class: Vec<u32> = (0..n).map(|k| find(&mut parent, k)).collect();
    let mut next = vec![Beside::Unknown; n as usize];
    let mut prev = vec![Beside::Unknown; n as usize];
    for k in whole {
        next[class[k as usize] as usize] = Beside::Mixed;
        prev[class[k as usize] as usize] = Beside::Mixed;
    }
    for v in 0..g.n_values() as u32 {
        let v = Value(v);
        let rank = g.ty(v).rank();
        for i in 0..rank {
            let here = class[of(v, i) as usize] as usize;
            next[here].note((i + 1 < rank).then(|| class[of(v, i + 1) as usize]));
            prev[here].note((i > 0).then(|| class[of(v, i - 1) as usize]));
        }
    }
    for inst in &g.insts {
        if let (OpKind::Parameter, crate::ir::Attrs::Index(p)) = (inst.kind, &inst.attrs) {
            for i in 1..g.ty(inst.first).rank() {
                if apart(*p as usize, i - 1) {
                    next[class[of(inst.first, i - 1) as usize] as usize] = Beside::Mixed;
                }
            }
        }
    }
    (0..g.n_values() as u32)
        .map(|v| {
            let v = Value(v);
            let ty = g.ty(v);
            let mut out = Grouping::default();
            for i in 0..ty.rank() {
                let joins = i > 0 && {
                    let (a, b) = (class[of(v, i - 1) as usize], class[of(v, i) as usize]);
                    a != b && next[a as usize] == Beside::Class(b) && prev[b as usize] == Beside::Class(a)
                };
                match out.dims.last_mut().filter(|_| joins) {
                    Some(last) => *last *= ty.dims[i],
                    None => out.dims.push(ty.dims[i]),
                }
                let at = out.dims.len() - 1;
                out.ranges.push(at..at + 1);
            }
            out
        })
        .collect()
}
