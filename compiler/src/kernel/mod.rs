//! Target-free kernel IR: loops over index expressions, built from the body of a fusion.
//!
//! [`lower`] turns a body into a [`Kernel`]: an iteration space (a nest of counted loops, some of which reduce),
//! scalar expressions that say what one point computes, reductions and stores. Movement ops leave nothing but index
//! arithmetic. How the loops are walked (vectors, unrolling, threads, scratch memory) is the printer's business.
mod build;
mod expr;
mod index;
mod shape;
mod space;

pub use expr::{Expr, ExprId, ExprOp, Exprs, Source};
pub use index::{Affine, Atom, AtomId, Indices};
pub use shape::{Assumed, Shape};

use crate::ir::{DType, FusionKind, Graph, Literal, OpKind, ReduceKind, TensorType};
use std::sync::Arc;

/// A body that no kernel can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    #[error("{0} cannot be part of a generated kernel")]
    Op(OpKind),
    #[error("{kind:?} kernel: {reason}")]
    Shape { kind: FusionKind, reason: &'static str },
}

/// One loop of the iteration space; loops are numbered from the outermost and loop n counts variable n.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    pub extent: i64,
    /// The reductions combine along this loop.
    pub reduced: bool,
}

/// A reduction over all reduced loops.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    pub kind: ReduceKind,
    pub value: ExprId,
    /// Element type of operand and result; accumulation is in its `opmath` type.
    pub dtype: DType,
    /// 0 if the value needs no other reduction, else one more than the highest it needs.
    pub level: u32,
}

/// A value written to memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// Number of the argument (see [`Kernel::args`]).
    pub arg: u32,
    pub offset: Affine,
    pub value: ExprId,
    /// Written once per point of the whole space; otherwise once per point of the kept loops.
    pub full: bool,
}

/// A kernel: see the module's documentation.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub kind: FusionKind,
    /// Tensor arguments, dense row-major: the inputs, then the outputs.
    pub args: Vec<TensorType>,
    pub n_inputs: usize,
    /// Element types of the runtime scalars.
    pub scalars: Vec<DType>,
    pub literals: Vec<Arc<Literal>>,
    pub ix: Indices,
    pub exprs: Exprs,
    pub loops: Vec<Loop>,
    pub reductions: Vec<Reduction>,
    pub stores: Vec<Store>,
}

/// What the target prefers.
#[derive(Clone, Copy, Debug)]
pub struct LowerOptions {
    /// Innermost loops shorter than this are merged with the loops around them, at the price of divisions.
    pub min_inner: i64,
}

/// Builds the kernel of a fusion body.
///
/// Adjacent loops are merged where every access allows it. Fails for ops that are no part of generated kernels and
/// for bodies whose shape is not that of `kind`.
pub fn lower(kind: FusionKind, body: &Graph, options: LowerOptions) -> Result<Kernel, LowerError> {
    let space = space::Space::of(kind, body)?;
    let first = build::build(kind, body, &space, &space.separate())?;
    let groups = space.merge(&first, options.min_inner);
    if groups == space.separate() { Ok(first) } else { build::build(kind, body, &space, &groups) }
}

impl Kernel {
    /// Roots of all computation.
    pub fn roots(&self) -> Vec<ExprId> {
        self.stores.iter().map(|s| s.value).chain(self.reductions.iter().map(|r| r.value)).collect()
    }

    /// Points of the kept loops.
    pub fn kept(&self) -> i64 {
        self.loops.iter().filter(|l| !l.reduced).map(|l| l.extent).product()
    }

    /// Points of the reduced loops.
    pub fn reduced(&self) -> i64 {
        self.loops.iter().filter(|l| l.reduced).map(|l| l.extent).product()
    }
}

/// The value a reduction starts from, as raw bits of `dtype`.
pub fn identity(kind: ReduceKind, dtype: DType) -> u64 {
    let value = match kind {
        ReduceKind::Sum | ReduceKind::Or => return 0,
        ReduceKind::Prod | ReduceKind::And if dtype == DType::Bool => return 1,
        ReduceKind::And => return bits(&crate::ir::encode_i64(dtype, -1)),
        ReduceKind::Prod => 1.0,
        ReduceKind::Max | ReduceKind::Min => {
            let least = kind == ReduceKind::Max;
            if dtype.is_float() {
                return bits(&crate::ir::encode_f64(dtype, if least { f64::NEG_INFINITY } else { f64::INFINITY }));
            }
            let width = dtype.size() as u32 * 8;
            let ones = u64::MAX >> (64 - width);
            return match (dtype, least) {
                (DType::Bool, least) => !least as u64,
                (d, true) if d.is_signed() => 1 << (width - 1),
                (d, false) if d.is_signed() => ones >> 1,
                (_, true) => 0,
                (_, false) => ones,
            };
        }
    };
    bits(&crate::ir::encode_f64(dtype, value))
}

/// Little-endian bytes of one element as an integer.
pub fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}
