//! The helper every pass uses to rebuild a graph: a builder for the new graph and a map from old values to new ones.
//!
//! Rebuilding instead of editing keeps order, types and dead-code removal true by construction.
use crate::ir::{Attrs, Builder, Graph, Inst, InstId, OpKind, TensorType, TypeError, Value};
use smallvec::SmallVec;

/// Values of one instruction, few by far in the usual case.
pub type Values = SmallVec<[Value; 4]>;

/// Reads `src` and builds its successor in `b`.
///
/// All parameters of `src` are emitted first, in their order, donation included, used or not: the parameter list is the
/// graph's calling convention and no pass may change it.
pub struct Rewriter<'g> {
    pub src: &'g Graph,
    pub b: Builder,
    map: Vec<Option<Value>>,
}

impl<'g> Rewriter<'g> {
    pub fn new(src: &'g Graph) -> Self {
        Rewriter::with_params(src, |i| src.params[i].ty.clone())
    }

    /// As [`Rewriter::new`], but parameter i gets the type `ty(i)`: for bodies, whose callers change with them.
    pub fn with_params(src: &'g Graph, ty: impl Fn(usize) -> TensorType) -> Self {
        let mut b = Builder::new(src.name.clone());
        b.reserve_like(src);
        let mut by_index = Vec::with_capacity(src.params.len());
        for (i, p) in src.params.iter().enumerate() {
            by_index.push(b.parameter(ty(i), p.kind));
            if let Some(result) = p.donate_to {
                b.donate(i as u32, result);
            }
        }
        let mut map = vec![None; src.n_values()];
        for inst in &src.insts {
            if let (OpKind::Parameter, Attrs::Index(i)) = (inst.kind, &inst.attrs) {
                map[inst.first.0 as usize] = by_index.get(*i as usize).copied();
            }
        }
        Rewriter { src, b, map }
    }

    /// True once `old` has a new value.
    pub fn has(&self, old: Value) -> bool {
        self.map[old.0 as usize].is_some()
    }

    /// The new value of `old`. Instructions are visited in topological order, so that it exists; if a pass breaks that,
    /// the graph is reported as invalid instead of a panic.
    pub fn get(&mut self, old: Value) -> Value {
        match self.map[old.0 as usize] {
            Some(v) => v,
            None => {
                self.b.fail(TypeError::new(format!("value {} used before it was rewritten", old.0)));
                let ty = self.src.ty(old).clone();
                self.b.splat(&ty, 0.0)
            }
        }
    }

    pub fn set(&mut self, old: Value, new: Value) {
        self.map[old.0 as usize] = Some(new);
    }

    /// New values of the operands of `inst`.
    pub fn operands(&mut self, inst: &Inst) -> Values {
        inst.operands.iter().map(|&v| self.get(v)).collect()
    }

    /// Declared result types of `inst`.
    pub fn types(&self, inst: &Inst) -> SmallVec<[TensorType; 2]> {
        inst.results().map(|v| self.src.ty(v).clone()).collect()
    }

    /// Copies `inst` with its operands mapped; parameters are already there.
    pub fn copy(&mut self, inst: &Inst) {
        if inst.kind == OpKind::Parameter {
            return;
        }
        let operands = self.operands(inst);
        let types = self.types(inst);
        self.b.loc = inst.loc;
        let first = self.b.op(inst.kind, inst.attrs.clone(), &operands, &types);
        self.set_results(inst, first);
    }

    /// Maps the results of `inst` to the consecutive values from `first`.
    pub fn set_results(&mut self, inst: &Inst, first: Value) {
        for (n, old) in inst.results().enumerate() {
            self.set(old, Value(first.0 + n as u32));
        }
    }

    /// Ends the rewrite: results are the new values of the old ones.
    pub fn finish(mut self) -> Result<Graph, TypeError> {
        let results = self.src.results.clone().into_iter().map(|v| self.get(v)).collect();
        self.b.finish(results)
    }
}

/// For every instruction, whether a result of the graph depends on it.
pub fn live_insts(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.insts.len()];
    for &v in &graph.results {
        live[graph.def(v).0 as usize] = true;
    }
    for i in (0..graph.insts.len()).rev() {
        if live[i] {
            for &v in &graph.insts[i].operands {
                live[graph.def(v).0 as usize] = true;
            }
        }
    }
    live
}

/// Live instructions other than parameters, in order: what a rewriting pass visits.
pub fn live_order(graph: &Graph) -> Vec<InstId> {
    let live = live_insts(graph);
    graph.iter().filter(|(id, inst)| live[id.0 as usize] && inst.kind != OpKind::Parameter).map(|(id, _)| id).collect()
}
