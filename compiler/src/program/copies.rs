//! Copies in a program, and the rule that put each there.
//!
//! ```text
//! thunk 0: copy(param0:64xf32) -> result0:64xf32 // the result is a parameter or a constant
//! thunk 1: loop_transpose_0(param0:4x8xf32) -> slab+0:8x4xf32 // output 0 is a copy: a library kernel reads it and ..
//! ```
//! There are two forms: [`super::Thunk::Copy`], and kernels with outputs that only hold elements of their inputs, in
//! another order, repeated, put together or converted. Neither exists without its rule: that of a thunk is a part of it,
//! and the kernels' are read off the graph that thunks are made from, by who reads the output. What library kernels pack
//! for themselves is their work memory, no copy.
use crate::buffers::is_alias;
use crate::ir::{Attrs, Class, Graph, Inst, InstId, OpKind, ParamKind, Value};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// What puts a copy into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CopyRule {
    /// Thunk: the result is a parameter or a constant of the graph.
    GivenResult,
    /// Thunk: the value is another result already.
    SharedResult,
    /// Thunk: the result is a part of a larger storage, or its elements are stored in another order.
    PartialResult,
    /// Thunk: an op that works in place would overwrite an operand that somebody still needs.
    InPlace,
    /// Kernel: the result's elements are elsewhere in memory, in another order or type: it needs memory of its own.
    Result,
    /// Kernel: a library kernel reads it, and no strides describe it as a view of what is in memory.
    Strides,
    /// Kernel: a library kernel reads it in another type than it has in memory.
    Type,
    /// Kernel: other kernels read it, and fusion made it part of none (the decisions say why).
    Apart,
}

impl std::fmt::Display for CopyRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CopyRule::GivenResult => "the result is a parameter or a constant",
            CopyRule::SharedResult => "the value is another result already",
            CopyRule::PartialResult => "the result is a part of a larger storage or stored in another order",
            CopyRule::InPlace => "the op works in place and its operand is needed later, or is no memory of its own",
            CopyRule::Result => "it is a result, which needs memory of its own",
            CopyRule::Strides => "a library kernel reads it and no strides describe it as a view",
            CopyRule::Type => "a library kernel reads it in another type than it has in memory",
            CopyRule::Apart => "kernels read it that fusion did not make it part of (see the decisions)",
        })
    }
}

/// What a value of a body is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Made {
    /// Constants, scalars and positions: a fill.
    FromNothing,
    /// Elements of the kernel's inputs, where and as they are.
    Moved,
    /// The same in another type.
    Converted,
    Computed,
}

/// The results of `inst`, the fusion of `body`, that are copies, by number, each with its rule. `users` are those of the
/// values of `graph`.
pub(crate) fn copied(
    graph: &Graph,
    users: &[SmallVec<[InstId; 4]>],
    inst: &Inst,
    body: &Graph,
) -> Vec<(u32, CopyRule)> {
    let mut made: Vec<Made> = Vec::with_capacity(body.n_values());
    for inst in &body.insts {
        let what = what(body, inst, &made);
        made.extend(inst.results().map(|_| what));
    }
    let mut out = Vec::new();
    for (n, (v, inner)) in inst.results().zip(&body.results).enumerate() {
        let converted = match made[inner.0 as usize] {
            Made::FromNothing | Made::Computed => continue,
            Made::Moved => false,
            Made::Converted => true,
        };
        let mut readers = Readers::default();
        readers.of(graph, users, v);
        let rule = match readers {
            Readers { result: true, .. } => CopyRule::Result,
            Readers { library: true, .. } if converted => CopyRule::Type,
            Readers { library: true, .. } => CopyRule::Strides,
            Readers { .. } => CopyRule::Apart,
        };
        out.push((n as u32, rule));
    }
    out
}

fn what(body: &Graph, inst: &Inst, made: &[Made]) -> Made {
    let of = |operands: &[Value]| operands.iter().map(|v| made[v.0 as usize]).max().unwrap_or(Made::FromNothing);
    match (inst.kind, &inst.attrs) {
        (OpKind::Parameter, Attrs::Index(i)) => match body.params[*i as usize].kind {
            ParamKind::Tensor if body.ty(inst.first).rank() > 0 => Made::Moved,
            ParamKind::Tensor | ParamKind::Scalar => Made::FromNothing,
        },
        // The rest of the operands are positions.
        (OpKind::DynamicSlice, _) => of(&inst.operands[..1]),
        (OpKind::DynamicUpdateSlice, _) => of(&inst.operands[..2]),
        (OpKind::Convert | OpKind::BitcastConvert, _) => match of(&inst.operands) {
            Made::Moved => Made::Converted,
            other => other,
        },
        (kind, _) => match kind.class() {
            Class::Leaf | Class::Movement => of(&inst.operands),
            // Arithmetic on scalars is a fill's value.
            Class::Elementwise if of(&inst.operands) == Made::FromNothing => Made::FromNothing,
            _ => Made::Computed,
        },
    }
}

/// Who reads a value, directly or as a view.
#[derive(Default)]
struct Readers {
    result: bool,
    library: bool,
}

impl Readers {
    fn of(&mut self, graph: &Graph, users: &[SmallVec<[InstId; 4]>], v: Value) {
        self.result |= graph.results.contains(&v);
        for &id in &users[v.0 as usize] {
            let inst = graph.inst(id);
            match (inst.kind, &inst.attrs) {
                (OpKind::OptimizationBarrier, _) => {
                    let through = inst.operands.iter().zip(inst.results()).filter(|(o, _)| **o == v);
                    through.for_each(|(_, r)| self.of(graph, users, r));
                }
                _ if is_alias(inst) => self.of(graph, users, inst.first),
                // Operands of an epilogue's contraction come first.
                (OpKind::Fusion, Attrs::Fusion { body, .. }) => {
                    self.library |= body.insts.iter().any(|i| {
                        i.kind.class() == Class::Contraction
                            && (inst.operands.iter().zip(0..i.operands.len())).any(|(&o, _)| o == v)
                    });
                }
                _ => self.library = true,
            }
        }
    }
}
