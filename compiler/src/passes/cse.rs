//! `cse`: one instruction for all that compute the same from the same operands.
//!
//! ```text
//! %a = exponential %x          =>    %a = exponential %x
//! %b = exponential %x                %c = add %a, %a
//! %c = add %a, %b                    return %c
//! return %c
//! ```
//! Values that an elementwise op or a reduction computes anew after a contraction or library op are left alone: their
//! first instance is dead by then in the recorded program (a backward pass recomputes from what was saved), and merging
//! the two would keep it in memory in between. Recomputing costs no more than it was recorded to.
//!
//! Safety: ops are pure and equal keys (op, attributes, operands, result types) mean equal bits. Results of an
//! `optimization_barrier` are values of their own and barriers themselves are never merged, so that recomputation the
//! user asked for (activation checkpoints) survives.
use super::rewriter::{Rewriter, Values, live_order};
use crate::ir::{Attrs, Class, Graph, OpKind, TensorType, TypeError, Value};
use ahash::AHashMap;
use smallvec::SmallVec;

/// Op, attributes, operands, result types, and the epoch where that matters.
type Key = (OpKind, Attrs, Values, SmallVec<[TensorType; 2]>, u32);

/// Instructions already emitted, by what they compute.
#[derive(Default)]
pub(super) struct ValueNumbers {
    seen: AHashMap<Key, Value>,
    /// Number of contractions and library ops so far.
    epoch: u32,
}

impl ValueNumbers {
    /// The first result of an equal instruction, or `None` after noting that `first` (given by `emit`) is it.
    pub(super) fn get_or_emit(
        &mut self,
        kind: OpKind,
        attrs: &Attrs,
        operands: &[Value],
        types: &[TensorType],
        emit: impl FnOnce() -> Value,
    ) -> Value {
        if kind == OpKind::OptimizationBarrier {
            return emit();
        }
        let heavy = matches!(kind.class(), Class::Contraction | Class::Library);
        let computed = matches!(kind.class(), Class::Elementwise | Class::Reduction | Class::Random | Class::Indexed);
        let large = types.iter().any(|t| t.rank() > 0);
        let epoch = if computed && large { self.epoch } else { 0 };
        self.epoch += u32::from(heavy);
        let mut operands = Values::from_slice(operands);
        // Commutative ops: one order for both.
        if commutes(kind) {
            operands.sort_unstable();
        }
        *self.seen.entry((kind, attrs.clone(), operands, types.iter().cloned().collect(), epoch)).or_insert_with(emit)
    }
}

/// True where swapping the operands cannot change a bit of the result (which NaN of two survives is not specified).
pub(super) fn commutes(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Add | OpKind::Multiply | OpKind::Maximum | OpKind::Minimum | OpKind::And | OpKind::Or | OpKind::Xor
    )
}

pub(super) fn run(graph: &Graph) -> Result<Graph, TypeError> {
    let mut r = Rewriter::new(graph);
    let mut numbers = ValueNumbers::default();
    for id in live_order(graph) {
        let inst = graph.inst(id);
        let operands = r.operands(inst);
        let types = r.types(inst);
        r.b.loc = inst.loc;
        let b = &mut r.b;
        let first = numbers.get_or_emit(inst.kind, &inst.attrs, &operands, &types, || {
            b.op(inst.kind, inst.attrs.clone(), &operands, &types)
        });
        r.set_results(inst, first);
    }
    r.finish()
}
