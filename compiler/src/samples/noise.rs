//! Other correct backends: the interpreter with rounding errors of its own.
use super::Sample;
use super::maker::Rng;
use crate::interp::{InterpError, Num, Tensor, eval_op};
use crate::ir::{Attrs, Class, CumKind, DType, OpKind, ReduceKind, ScatterKind, TensorType};
use std::borrow::Cow;

/// Evaluates a graph without fusions, moving every float that an op computes (rather than copies or chooses), and every
/// operand of a sum of products, by one to `most` (of its type) neighbours, up or down at random: another correct backend,
/// if its ops may be off by as much.
pub fn with_rounding_noise(
    sample: &Sample,
    seed: u64,
    most: impl Fn(DType) -> usize,
) -> Result<Vec<Tensor>, InterpError> {
    let graph = &sample.graph;
    let mut rng = Rng::new(seed);
    let mut values: Vec<Tensor> = Vec::new();
    for inst in &graph.insts {
        if let Attrs::Index(i) = inst.attrs {
            values.push(sample.args[i as usize].clone());
            continue;
        }
        let mut operands: Vec<Cow<Tensor>> =
            inst.operands.iter().map(|v| Cow::Borrowed(&values[v.0 as usize])).collect();
        if inst.kind.class() == Class::Contraction {
            // What is rounded on the way in a sum of products (scores, in attention's) may be far larger than the result:
            // as if the operands were off.
            for t in operands.iter_mut().filter(|t| t.ty.dtype.is_float() && t.ty.rank() > 0) {
                *t = Cow::Owned(neighbours(t, &mut rng, most(t.ty.dtype))?);
            }
        }
        let operands: Vec<&Tensor> = operands.iter().map(|t| &**t).collect();
        let types: Vec<TensorType> = inst.results().map(|v| graph.ty(v).clone()).collect();
        let mut results = eval_op(inst.kind, &inst.attrs, &operands, &types)?;
        if !is_exact(inst.kind, &inst.attrs) {
            for t in results.iter_mut().filter(|t| t.ty.dtype.is_float()) {
                *t = neighbours(t, &mut rng, most(t.ty.dtype))?;
            }
        }
        values.extend(results);
    }
    Ok(graph.results.iter().map(|v| values[v.0 as usize].clone()).collect())
}

/// `t` with every element moved, by one neighbour to `most`.
fn neighbours(t: &Tensor, rng: &mut Rng, most: usize) -> Result<Tensor, InterpError> {
    let up = t.nums().map(|_| Num::F(if rng.once_in(2) { 100.0 } else { -100.0 }));
    let towards = Tensor::from_nums(&t.ty, up.collect::<Vec<_>>());
    let mut moved = t.clone();
    for _ in 0..1 + rng.below(most) {
        moved = eval_op(OpKind::NextAfter, &Attrs::None, &[&moved, &towards], &[])?.remove(0);
    }
    Ok(moved)
}

/// Ops whose float results are the same bits whatever the order and the functions a backend uses.
fn is_exact(kind: OpKind, attrs: &Attrs) -> bool {
    use OpKind as K;
    match attrs {
        Attrs::Reduce { kind, .. } | Attrs::Window { kind, .. } => {
            *kind != ReduceKind::Sum && *kind != ReduceKind::Prod
        }
        Attrs::Cumulative { kind, .. } => matches!(kind, CumKind::Max | CumKind::Min),
        Attrs::Scatter { kind, .. } => !matches!(kind, ScatterKind::Add | ScatterKind::Mul),
        _ => match kind.class() {
            Class::Leaf | Class::Movement | Class::Indexed | Class::Random | Class::Structural | Class::Library => true,
            Class::Reduction => true,
            Class::Contraction => false,
            Class::Elementwise => matches!(
                kind,
                K::Abs
                    | K::Negate
                    | K::Sign
                    | K::Floor
                    | K::Ceil
                    | K::RoundEven
                    | K::Trunc
                    | K::Convert
                    | K::BitcastConvert
                    | K::Maximum
                    | K::Minimum
                    | K::Select
                    | K::Remainder
                    | K::NextAfter
            ),
        },
    }
}
