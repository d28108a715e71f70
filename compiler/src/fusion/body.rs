//! The body of a kernel: a graph over what it reads.
use super::analysis::Analysis;
use crate::ir::{Builder, Graph, InstId, ParamKind, TypeError, Value};
use ahash::AHashMap;

/// A body and the values of the outer graph its parameters stand for.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) graph: Graph,
    pub(crate) operands: Vec<Value>,
}

/// Name of all bodies: equal ones must be equal in every respect.
pub(crate) const BODY_NAME: &str = "fused";

/// Builds the graph that computes `outputs`. `inside` are the instructions computed in it (besides inline ones); with
/// `contraction`, that instruction comes first and takes its operands, whatever they are, as parameters.
pub(crate) fn build(
    a: &Analysis<'_>,
    outputs: &[Value],
    contraction: Option<InstId>,
    inside: &dyn Fn(InstId) -> bool,
) -> Result<Body, TypeError> {
    let mut b = BodyBuilder { a, inside, b: Builder::new(BODY_NAME), map: AHashMap::new(), operands: Vec::new() };
    if let Some(id) = contraction {
        let inst = a.g.inst(id);
        let operands: Vec<Value> = inst.operands.iter().map(|&v| b.parameter(v)).collect();
        let types: Vec<_> = inst.results().map(|v| a.g.ty(v).clone()).collect();
        let first = b.b.op(inst.kind, inst.attrs.clone(), &operands, &types);
        for (n, v) in inst.results().enumerate() {
            b.map.insert(v, Value(first.0 + n as u32));
        }
    }
    let results = outputs.iter().map(|&v| b.value(v)).collect();
    Ok(Body { operands: b.operands, graph: b.b.finish(results)? })
}

struct BodyBuilder<'a, 'g> {
    a: &'a Analysis<'g>,
    inside: &'a dyn Fn(InstId) -> bool,
    b: Builder,
    map: AHashMap<Value, Value>,
    operands: Vec<Value>,
}

impl BodyBuilder<'_, '_> {
    fn parameter(&mut self, v: Value) -> Value {
        let kind = if self.a.is_scalar_param(v) { ParamKind::Scalar } else { ParamKind::Tensor };
        self.operands.push(v);
        self.b.parameter(self.a.g.ty(v).clone(), kind)
    }

    /// What `v` is in the body. Chains may be as long as a segment: no recursion.
    fn value(&mut self, v: Value) -> Value {
        let mut pending = vec![v];
        while let Some(&v) = pending.last() {
            if self.map.contains_key(&v) {
                pending.pop();
                continue;
            }
            let id = self.a.g.def(v);
            let inst = self.a.g.inst(id);
            let outer = self.a.is_stored(v) && !(self.inside)(id);
            let new = if outer || (self.a.is_renaming(v) && !(self.inside)(id)) {
                self.parameter(v)
            } else {
                let known = pending.len();
                pending.extend(inst.operands.iter().rev().filter(|o| !self.map.contains_key(o)));
                if pending.len() > known {
                    continue;
                }
                let operands: Vec<Value> = inst.operands.iter().map(|o| self.map[o]).collect();
                self.b.op(inst.kind, inst.attrs.clone(), &operands, std::slice::from_ref(self.a.g.ty(v)))
            };
            self.map.insert(v, new);
            pending.pop();
        }
        self.map[&v]
    }
}
