//! The primitive-level IR: types, ops, the SSA graph and its builder.
//!
//! Ops mean what StableHLO's ops of the same name mean, unless their row says otherwise.
//! Values are row-major logical tensors; every op is pure.
mod attrs;
mod builder;
mod dtype;
mod graph;
mod infer;
mod literal;
mod op;
mod types;

pub use attrs::{Attrs, CmpDir, ConvDims, CumKind, DotDims, FusionKind, ReduceKind, ScatterKind, WindowDim};
pub use builder::Builder;
pub use dtype::DType;
pub use graph::{Graph, Inst, InstId, Param, ParamKind, Value};
pub use infer::infer;
pub use literal::{Literal, decode_f64, encode_f64, encode_i64};
pub use op::{Class, OpKind};
pub use types::{Dims, TensorType, TypeError, row_major_strides};
