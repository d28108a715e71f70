//! The reference interpreter: what every op means, as plain loops.
//!
//! It is the oracle of all backends, so it is written to be read, not to be fast. Elements are computed as `f64`,
//! `i128` or `bool` ([`Num`]) and rounded or wrapped to the declared element type after each op; reductions and
//! contractions round once, at their end. Ops that only move elements move their bytes. Results are the same on every
//! machine: the transcendental functions are those of the `libm` crate.
mod compare;
mod contraction;
mod elementwise;
mod index;
mod math;
mod movement;
pub mod philox;
mod reduction;
mod sort;
mod tensor;
#[cfg(test)]
mod tests;
mod window;

/// The functions of one and two floats, for backends that have no code of their own for the rarer ones.
pub mod scalar {
    pub use super::elementwise::{float, float2};
}

pub use compare::{Tolerance, mismatch};
pub use tensor::{Num, Tensor};

use crate::ir::{Attrs, Graph, Inst, OpKind, TensorType, infer};
use crate::{text, verify};

/// Why a graph could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpError {
    /// The graph is broken.
    #[error("{0}")]
    Invalid(#[from] verify::Faults),
    /// Number, types or sizes of the arguments do not match the parameters.
    #[error("arguments: {0}")]
    Arguments(String),
    /// An op that has no meaning on these values (an index into a dimension without elements).
    #[error("{op}: {message}")]
    Op { op: String, message: String },
}

/// An error of one op, without its instruction.
type OpResult = Result<Vec<Tensor>, String>;

/// Results of `graph` on `args`, one per parameter; runtime scalars are 0-d tensors.
pub fn eval(graph: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    verify::check(graph)?;
    if args.len() != graph.params.len() {
        return Err(InterpError::Arguments(format!("{} for {} parameters", args.len(), graph.params.len())));
    }
    for (i, (arg, param)) in args.iter().zip(&graph.params).enumerate() {
        if arg.ty != param.ty || arg.bytes.len() as u64 != arg.ty.bytes() {
            let message = format!("argument {i} is {} ({} bytes), expected {}", arg.ty, arg.bytes.len(), param.ty);
            return Err(InterpError::Arguments(message));
        }
    }
    run(graph, args)
}

/// Results of one op on operands that obey its type rule. `declared` as for [`infer`].
pub fn eval_op(
    kind: OpKind,
    attrs: &Attrs,
    operands: &[&Tensor],
    declared: &[TensorType],
) -> Result<Vec<Tensor>, InterpError> {
    let error = |message: String| InterpError::Op { op: kind.name().into(), message };
    let types: Vec<&TensorType> = operands.iter().map(|t| &t.ty).collect();
    let results = infer(kind, attrs, &types, declared).map_err(|e| error(e.to_string()))?;
    op(kind, attrs, operands, &results).map_err(error)
}

/// Evaluates a graph that has been verified.
fn run(graph: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.n_values());
    for (id, inst) in graph.iter() {
        let results = inst_results(graph, inst, args, &values).map_err(|e| match e {
            // The innermost instruction is the one to name.
            Failed::Inner(e) => e,
            Failed::Here(message) => InterpError::Op { op: text::print_inst(graph, id), message },
        })?;
        values.extend(results);
    }
    Ok(graph.results.iter().map(|v| values[v.0 as usize].clone()).collect())
}

enum Failed {
    Here(String),
    Inner(InterpError),
}

fn inst_results(graph: &Graph, inst: &Inst, args: &[Tensor], values: &[Tensor]) -> Result<Vec<Tensor>, Failed> {
    let operands: Vec<&Tensor> = inst.operands.iter().map(|v| &values[v.0 as usize]).collect();
    match &inst.attrs {
        Attrs::Index(i) => Ok(vec![args[*i as usize].clone()]),
        Attrs::Fusion { body, .. } => {
            let inputs: Vec<Tensor> = operands.into_iter().cloned().collect();
            run(body, &inputs).map_err(Failed::Inner)
        }
        attrs => {
            let types: Vec<TensorType> = inst.results().map(|v| graph.ty(v).clone()).collect();
            op(inst.kind, attrs, &operands, &types).map_err(Failed::Here)
        }
    }
}

/// Results, of types `types`, of one op.
fn op(kind: OpKind, attrs: &Attrs, x: &[&Tensor], types: &[TensorType]) -> OpResult {
    use OpKind as K;
    let bad = || Err(format!("unexpected attributes {attrs:?}"));
    let undefined = || format!("not defined for {}", x[0].ty);
    let one = |t: Tensor| Ok(vec![t]);
    match kind {
        K::Parameter => Err("a parameter has no value of its own".into()),
        K::Fusion => match attrs {
            Attrs::Fusion { body, .. } => {
                let inputs: Vec<Tensor> = x.iter().map(|&t| t.clone()).collect();
                eval(body, &inputs).map_err(|e| e.to_string())
            }
            _ => bad(),
        },
        K::OptimizationBarrier => Ok(x.iter().map(|&t| t.clone()).collect()),
        K::Constant => match attrs {
            Attrs::Literal(literal) => one(Tensor::from(&**literal)),
            _ => bad(),
        },
        K::Iota => match attrs {
            Attrs::Dim(dim) => one(movement::iota(&types[0], *dim as usize)),
            _ => bad(),
        },

        K::Abs
        | K::Negate
        | K::Sign
        | K::Exp
        | K::Expm1
        | K::Log
        | K::Log1p
        | K::Sqrt
        | K::Rsqrt
        | K::Sin
        | K::Cos
        | K::Tan
        | K::Tanh
        | K::Logistic
        | K::Erf
        | K::Erfc
        | K::ErfInv
        | K::Lgamma
        | K::Digamma
        | K::Asin
        | K::Acos
        | K::Atan
        | K::Sinh
        | K::Cosh
        | K::Asinh
        | K::Acosh
        | K::Atanh
        | K::Floor
        | K::Ceil
        | K::RoundEven
        | K::Trunc
        | K::Not
        | K::IsFinite
        | K::Convert => {
            let nums: Option<Vec<Num>> = x[0].nums().map(|v| elementwise::unary(kind, v)).collect();
            one(Tensor::from_nums(&types[0], nums.ok_or_else(undefined)?))
        }
        K::BitcastConvert => one(Tensor { ty: types[0].clone(), bytes: x[0].bytes.clone() }),
        K::Add
        | K::Subtract
        | K::Multiply
        | K::Divide
        | K::Remainder
        | K::Power
        | K::Maximum
        | K::Minimum
        | K::Atan2
        | K::NextAfter
        | K::And
        | K::Or
        | K::Xor
        | K::ShiftLeft
        | K::ShiftRight => {
            let dtype = x[0].ty.dtype;
            let pairs = x[0].nums().zip(x[1].nums());
            let nums: Option<Vec<Num>> = pairs.map(|(a, b)| elementwise::binary(kind, dtype, a, b)).collect();
            one(Tensor::from_nums(&types[0], nums.ok_or_else(undefined)?))
        }
        K::Compare => match attrs {
            Attrs::Compare(dir) => {
                let pairs = x[0].nums().zip(x[1].nums());
                one(Tensor::from_nums(&types[0], pairs.map(|(a, b)| Num::B(elementwise::compare(*dir, a, b)))))
            }
            _ => bad(),
        },
        K::Select => one(movement::select(x[0], x[1], x[2])),

        K::Reshape => one(Tensor { ty: types[0].clone(), bytes: x[0].bytes.clone() }),
        K::BroadcastInDim => match attrs {
            Attrs::Dims(dims) => one(movement::broadcast_in_dim(&types[0], x[0], dims)),
            _ => bad(),
        },
        K::Transpose => match attrs {
            Attrs::Dims(perm) => one(movement::transpose(&types[0], x[0], perm)),
            _ => bad(),
        },
        K::Slice => match attrs {
            Attrs::Slice { start, stride, .. } => one(movement::slice(&types[0], x[0], start, stride)),
            _ => bad(),
        },
        K::Pad => match attrs {
            Attrs::Pad { lo, interior, .. } => one(movement::pad(&types[0], x[0], x[1], lo, interior)),
            _ => bad(),
        },
        K::Concatenate => match attrs {
            Attrs::Dim(dim) => one(movement::concatenate(&types[0], x, *dim as usize)),
            _ => bad(),
        },
        K::Reverse => match attrs {
            Attrs::Dims(dims) => one(movement::reverse(x[0], dims)),
            _ => bad(),
        },
        K::DynamicSlice => one(movement::dynamic_slice(&types[0], x[0], &x[1..])),
        K::DynamicUpdateSlice => one(movement::dynamic_update_slice(x[0], x[1], &x[2..])),
        K::Gather => match attrs {
            Attrs::Dims(dims) => movement::gather(&types[0], x[0], dims, &x[1..]).map(|t| vec![t]),
            _ => bad(),
        },
        K::Scatter => match attrs {
            Attrs::Scatter { kind, dims } => {
                let (updates, indices) = x[1..].split_last().ok_or("no updates")?;
                movement::scatter(*kind, x[0], dims, indices, updates).map(|t| vec![t])
            }
            _ => bad(),
        },

        K::Reduce => match attrs {
            Attrs::Reduce { kind, dims } => one(reduction::reduce(&types[0], *kind, x[0], dims)),
            _ => bad(),
        },
        K::ArgReduce => match attrs {
            Attrs::ArgReduce { max, dim } => one(reduction::arg_reduce(&types[0], *max, x[0], *dim as usize)),
            _ => bad(),
        },
        K::Cumulative => match attrs {
            Attrs::Cumulative { kind, dim } => one(reduction::cumulative(*kind, x[0], *dim as usize)),
            _ => bad(),
        },
        K::ReduceWindow => match attrs {
            Attrs::Window { kind, window } => one(window::reduce_window(&types[0], *kind, x[0], window)),
            _ => bad(),
        },
        K::MaxPoolWithIndex => match attrs {
            Attrs::Window { window, .. } => Ok(window::max_pool_with_index(types, x[0], window)),
            _ => bad(),
        },

        K::DotGeneral => match attrs {
            Attrs::Dot(dims) => one(contraction::dot_general(&types[0], x[0], x[1], dims)),
            _ => bad(),
        },
        K::Convolution => match attrs {
            Attrs::Conv { window, dims, feature_groups, batch_groups } => {
                one(contraction::convolution(&types[0], x[0], x[1], window, dims, *feature_groups, *batch_groups))
            }
            _ => bad(),
        },
        K::Attention => match attrs {
            Attrs::Attention { causal } => Ok(contraction::attention(types, x, *causal)),
            _ => bad(),
        },
        K::AttentionBackward => match attrs {
            Attrs::Attention { causal } => Ok(contraction::attention_backward(types, x, *causal)),
            _ => bad(),
        },

        K::Sort => match attrs {
            Attrs::Sort { dim, descending } => Ok(sort::sort(x[0], *dim as usize, *descending)),
            _ => bad(),
        },
        K::TopK => match attrs {
            Attrs::TopK { k, largest } => Ok(sort::top_k(types, x[0], *k as usize, *largest)),
            _ => bad(),
        },
        K::RngBits => match attrs {
            Attrs::Word(word) => {
                let scalar = |t: &Tensor| t.num(0).to_i128() as i64;
                let (seed, offset) = (scalar(x[0]), scalar(x[1]));
                let bits = (0..types[0].numel()).map(|i| philox::rng_bits(seed, offset, i, *word));
                one(Tensor::from_nums(&types[0], bits.map(|b| Num::I(i128::from(b)))))
            }
            _ => bad(),
        },
    }
}
