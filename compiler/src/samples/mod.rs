//! Sample programs: for every op small graphs with arguments, and random graphs over the whole table.
//!
//! Generic tests draw on these: type rule against interpreter, text round trips, verifier, backends against the
//! interpreter. Everything is a function of fixed seeds.
mod arguments;
mod contraction;
mod elementwise;
mod library;
mod maker;
mod movement;
mod noise;
mod random;
mod random_shaped;
#[cfg(test)]
mod tests;

pub use arguments::{arguments, split_arguments};
pub use elementwise::gelu_tanh;
#[cfg(test)]
pub(crate) use maker::Rng;
pub use noise::with_rounding_noise;
pub use random::{NOISE, random_graph};

use crate::interp::Tensor;
use crate::ir::{Graph, OpKind};

/// A graph with arguments for it.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Names the op and what is special about this sample.
    pub name: String,
    pub graph: Graph,
    /// One per parameter; runtime scalars are 0-d tensors.
    pub args: Vec<Tensor>,
}

/// Samples of one op: element types with separate code, odd and zero sizes, 0-d tensors, NaN, infinities, -0, and the
/// variants of its attributes.
pub fn samples(kind: OpKind) -> Vec<Sample> {
    use OpKind as K;
    match kind {
        K::Parameter | K::Constant | K::Iota => movement::leaf(kind),
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
        | K::IsFinite => elementwise::unary(kind),
        K::Convert => elementwise::convert(),
        K::BitcastConvert => elementwise::bitcast(),
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
        | K::ShiftRight => elementwise::binary(kind),
        K::Compare => elementwise::compare(),
        K::Select => elementwise::select(),
        K::BroadcastInDim
        | K::Reshape
        | K::Transpose
        | K::Slice
        | K::Pad
        | K::Concatenate
        | K::Reverse
        | K::DynamicSlice
        | K::DynamicUpdateSlice => movement::movement(kind),
        K::Gather => movement::gather(),
        K::Scatter => movement::scatter(),
        K::Reduce => library::reduce(),
        K::ArgReduce => library::arg_reduce(),
        K::Cumulative => library::cumulative(),
        K::ReduceWindow | K::MaxPoolWithIndex => library::windows(kind),
        K::DotGeneral => contraction::dot_general(),
        K::Convolution => contraction::convolution(),
        K::Attention | K::AttentionBackward => contraction::attention(kind),
        K::Sort => library::sort(),
        K::TopK => library::top_k(),
        K::RngBits => library::rng_bits(),
        K::OptimizationBarrier => movement::barrier(),
        K::Fusion => movement::fusion(),
    }
}
