//! Fusion: which instructions run in one kernel.
//!
//! ```text
//! %m = reduce max %x, [1]                       =>   %p = fusion row (%x) { ... }
//! %c = subtract %x, broadcast(%m)                    return %p
//! %e = exponential %c
//! %s = reduce sum %e, [1]
//! %p = divide %e, broadcast(%s)
//! return %p
//! ```
//! Every instruction that owns its result starts as a cluster (`cluster`); clusters merge in an order of priorities while
//! the iteration spaces agree and the graph between them stays acyclic (`merge`); then values that are cheaper to compute
//! again than to keep are dropped (`remat`). Movement of single operands, constants and 0-d arithmetic belong to nobody:
//! they are part of every reader (`analysis`). What is left becomes bodies (`body`), with dimensions joined (`collapse`).
//!
//! Every decision, taken or refused with its [`Reason`], is kept for the dump.
mod analysis;
mod body;
mod cluster;
mod collapse;
mod dot;
mod merge;
mod remat;
pub(crate) mod views;

use crate::cost::DeviceModel;
use crate::ir::{Attrs, FusionKind, Graph, InstId, OpKind, TensorType, TypeError, Value};
use crate::passes::rewriter::Rewriter;
use crate::passes::simplify::Simplifier;
use ahash::AHashSet;
use analysis::Analysis;
pub use cluster::Reason;
use cluster::{ClusterId, Clusters, Shape};
use std::sync::Arc;

/// What a device's generated kernels can hold.
#[derive(Clone, Debug, PartialEq)]
pub struct FusionLimits {
    /// Instructions in one body.
    pub max_insts: usize,
    /// Instructions that may nest in one expression, 0-d arithmetic that every reader repeats included: kernels are built
    /// recursively.
    pub max_nesting: usize,
    /// Tensors read and written by one kernel.
    pub max_operands: usize,
    /// Reductions in one kernel.
    pub max_reduces: usize,
    /// Results of an epilogue; 0 switches epilogues off.
    pub epilogue_results: usize,
    /// Column kernels may also write values of the whole space that do not depend on their reductions.
    pub column_full_results: bool,
}

impl Default for FusionLimits {
    fn default() -> Self {
        FusionLimits {
            max_insts: 160,
            max_nesting: 320,
            max_operands: 40,
            max_reduces: 10,
            epilogue_results: 4,
            column_full_results: true,
        }
    }
}

/// One decision of the fusion, for the dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// `producer`, `epilogue`, `sibling`, `scalars`, `recompute`, or `inline`: a movement op that is stored (a copy) instead
    /// of being part of its readers' index arithmetic.
    pub how: &'static str,
    /// An instruction of the one cluster (it is named after one of its instructions).
    pub from: InstId,
    /// An instruction of the other.
    pub into: InstId,
    pub merged: Result<(), Reason>,
}

/// The graph with every generated kernel as a `fusion`, and how it came about.
///
/// What holds for the result: operands of fusions are parameters, constants, results of fusions and library ops, or
/// reshapes of those; library ops may take movement ops on those; reshapes and barriers rename; nothing else is left.
pub fn run(g: &Graph, model: &DeviceModel, limits: &FusionLimits, log: &mut Vec<Decision>) -> Result<Graph, TypeError> {
    let analysis = Analysis::new(g);
    for &(v, into, reason) in &analysis.why_forced {
        log.push(Decision { how: "inline", from: g.def(v), into, merged: Err(reason) });
    }
    let mut clusters = Clusters::new(&analysis);
    merge::run(&mut clusters, limits, log);
    let remat = remat::run(&clusters, model, log);
    Emitter::new(&clusters, &remat)?.run()
}

/// As [`run`], with a kernel for every instruction: what fusion must not be slower, or give other results, than.
pub fn run_unfused(g: &Graph) -> Result<Graph, TypeError> {
    let analysis = Analysis::new(g);
    let clusters = Clusters::new(&analysis);
    Emitter::new(&clusters, &remat::Remat::default())?.run()
}

/// A cluster as it will be emitted.
struct Kernel {
    cluster: ClusterId,
    kind: FusionKind,
    body: body::Body,
    outputs: Vec<Value>,
}

struct Emitter<'e, 'a, 'g> {
    c: &'e Clusters<'a, 'g>,
    a: &'a Analysis<'g>,
    order: Vec<ClusterId>,
    kernels: Vec<Option<Kernel>>,
    r: Rewriter<'g>,
}

impl<'e, 'a, 'g> Emitter<'e, 'a, 'g> {
    /// Builds all bodies, backwards: only what is needed later is an output.
    fn new(c: &'e Clusters<'a, 'g>, remat: &'e remat::Remat) -> Result<Self, TypeError> {
        let a = c.a;
        let order = c.order();
        let mut needed: AHashSet<Value> = AHashSet::new();
        let mut kernels: Vec<Option<Kernel>> = Vec::with_capacity(order.len());
        for &v in &a.g.results {
            need(a, v, &mut needed);
        }
        for &id in order.iter().rev() {
            let cluster = c.get(id);
            let g = a.g;
            let outputs: Vec<Value> =
                cluster.members.iter().flat_map(|&m| g.inst(m).results()).filter(|v| needed.contains(v)).collect();
            let contraction = match cluster.shape {
                Shape::Opaque => None,
                Shape::Epilogue { of } => Some(of),
                Shape::Loop | Shape::Row { .. } | Shape::Column { .. } => None,
            };
            let library = cluster.shape == Shape::Opaque || (contraction.is_some() && cluster.members.len() == 1);
            if outputs.is_empty() {
                kernels.push(None);
                continue;
            }
            if library {
                for &v in &g.inst(cluster.members[0]).operands {
                    need(a, v, &mut needed);
                }
                kernels.push(None);
                continue;
            }
            let inside = |i: InstId| c.find(i) == id && a.is_node(i) || remat.contains(id, g.inst(i).first);
            let body = body::build(a, &outputs, contraction, &inside)?;
            for &v in &body.operands {
                need(a, v, &mut needed);
            }
            let body = match contraction {
                Some(of) => {
                    let operands = body.operands.clone();
                    collapse::collapse(body, |p, i| !dot::operand_joins(a, &operands, g.inst(of), p, i))?
                }
                None => collapse::collapse(body, |_, _| false)?,
            };
            let kind = match cluster.shape {
                Shape::Row { .. } => FusionKind::Row,
                Shape::Column { .. } => FusionKind::Column,
                Shape::Epilogue { .. } => FusionKind::Epilogue,
                Shape::Loop | Shape::Opaque => FusionKind::Loop,
            };
            kernels.push(Some(Kernel { cluster: id, kind, body, outputs }));
        }
        kernels.reverse();
        // Dead library clusters are left out by the same set.
        let order: Vec<ClusterId> = order;
        let mut e = Emitter { c, a, order, kernels, r: Rewriter::new(a.g) };
        e.order
            .retain(|&id| c.get(id).members.iter().flat_map(|&m| a.g.inst(m).results()).any(|v| needed.contains(&v)));
        Ok(e)
    }

    fn run(mut self) -> Result<Graph, TypeError> {
        let mut kernels = std::mem::take(&mut self.kernels).into_iter().flatten().peekable();
        for id in std::mem::take(&mut self.order) {
            match kernels.next_if(|k| k.cluster == id) {
                Some(kernel) => self.emit_kernel(kernel),
                None => self.emit_library(self.c.get(id).members[0]),
            }
        }
        for &v in &self.a.g.results {
            self.reference(v);
        }
        self.r.finish()
    }

    fn emit_kernel(&mut self, kernel: Kernel) {
        let Kernel { kind, body, outputs, .. } = kernel;
        let g = self.a.g;
        let operands: Vec<Value> = body
            .operands
            .iter()
            .zip(&body.graph.params)
            .map(|(&v, p)| {
                let new = self.reference(v);
                Simplifier { b: &mut self.r.b }.reshape(new, &p.ty.dims)
            })
            .collect();
        let types: Vec<TensorType> = body.graph.result_types();
        self.r.b.loc = outputs.last().map_or(0, |&v| g.def_inst(v).loc);
        let attrs = Attrs::Fusion { kind, body: Arc::new(body.graph) };
        let first = self.r.b.op(OpKind::Fusion, attrs, &operands, &types);
        for (n, v) in outputs.into_iter().enumerate() {
            let dims = g.ty(v).dims.clone();
            let new = self.r.b.reshape(Value(first.0 + n as u32), &dims);
            self.r.set(v, new);
        }
    }

    fn emit_library(&mut self, id: InstId) {
        let inst = self.a.g.inst(id);
        for &v in &inst.operands {
            self.reference(v);
        }
        self.r.copy(inst);
    }

    /// The new value of `v`; inline values are emitted where they are first referred to.
    fn reference(&mut self, v: Value) -> Value {
        if !self.r.has(v) {
            let inst = self.a.g.def_inst(v);
            for &o in &inst.operands {
                self.reference(o);
            }
            self.r.copy(inst);
        }
        self.r.get(v)
    }
}

/// Marks the stored values behind `v` as needed in memory.
fn need(a: &Analysis<'_>, v: Value, needed: &mut AHashSet<Value>) {
    if a.is_stored(v) || a.is_side(v) {
        needed.insert(v);
        return;
    }
    for &o in &a.g.def_inst(v).operands {
        need(a, o, needed);
    }
}
