//! The program: what the compiler hands to a device for one graph.
//!
//! A list of thunks over one buffer plan. Every tensor has a place ([`Place`]); thunks name the places they read and
//! write, with the strides to walk them, so that a device needs no graph to run a program.
use crate::ir::{Attrs, DType, Dims, Graph, OpKind, TensorType};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

mod copies;
pub mod depend;
pub(crate) mod emit;
pub mod reference;
mod waves;

pub use copies::CopyRule;

/// Where a tensor lives while the program runs. Offsets are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// Tensor input number n (index into [`Program::params`]).
    Param(u32),
    /// Result number n: memory the caller gives, or a donated parameter.
    Result(u32),
    /// In the program's slab.
    Slab { offset: u64 },
    /// In the constant pool.
    Constant { offset: u64 },
    /// Runtime scalar number n (8 bytes: f64 or i64). Only library thunks and copies read scalars as memory; generated
    /// kernels take them by value ([`KernelCall::scalars`]).
    Scalar(u32),
}

/// A strided tensor at a place; `offset` and `strides` are in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    pub place: Place,
    pub dtype: DType,
    pub dims: Dims,
    pub strides: Dims,
    pub offset: i64,
}

impl View {
    /// A row-major tensor of type `ty` at `place`.
    pub fn dense(place: Place, ty: &TensorType) -> Self {
        View {
            place,
            dtype: ty.dtype,
            dims: ty.dims.clone(),
            strides: crate::ir::row_major_strides(&ty.dims),
            offset: 0,
        }
    }
}

/// Index of a generated kernel in [`Program::kernels`].
pub type KernelId = u32;

/// A generated kernel applied to arguments: its inputs, then its outputs, in the order of the fusion's body.
///
/// All views are dense row-major and of exactly the types of the body's tensor parameters and results.
///
/// An output may have the place of an input of its type's size and dims if the kernel reads that input at no other index
/// than the one it writes. So each point has to read all its inputs before it writes any output, and nothing it has
/// written is read again: this holds for loop kernels; for epilogues (of the epilogue's inputs, never the contraction's
/// operands: sums must not be kept in the outputs); for column kernels (inputs of the reduced space that only ops of the
/// reduced space read); and for row kernels, where a point is a whole row: results are written in a last walk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelCall {
    pub kernel: KernelId,
    pub inputs: Vec<View>,
    pub outputs: Vec<View>,
    /// Which runtime scalars (index into the program's scalars) the kernel's scalar parameters are, in order.
    pub scalars: Vec<u32>,
    /// Outputs that are copies, by number, and why they are there: for dumps.
    pub copied: Vec<(u32, CopyRule)>,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Thunk {
    /// A generated kernel.
    Kernel(KernelCall),
    /// A library kernel for one primitive op (contractions, sorts, scans, scatters, windows, ...), possibly with a
    /// generated elementwise epilogue that is applied to each finished block of the (first) output.
    ///
    /// `inputs` has one view per operand, in order, with whatever strides (0 for broadcasts, negative for reversals) make
    /// it a view of memory that exists; runtime scalars and constants among the operands are views too.
    ///
    /// - `dot_general` is canonical: operands are `[batch.., m, k]` and `[batch.., k, n]`, one dimension each for m, k and
    ///   n, any number of batch dimensions, and the attributes say so. Batch dimensions may have stride 0 in either
    ///   operand. The output is `[batch.., m, n]`, n with stride 1, the other strides arbitrary but apart.
    /// - `scatter` and `dynamic_update_slice` work in place: `outputs[0]` is the memory of `inputs[0]`, which already
    ///   holds the operand (a copy comes before where it has to).
    /// - Outputs of attention and its gradient may be strided, and interleaved with each other; all others are dense.
    /// - Outputs never overlap inputs, in-place ops apart.
    Library {
        op: OpKind,
        attrs: Attrs,
        inputs: Vec<View>,
        /// What the thunk writes: the op's results, or the epilogue's where there is one (the op's own result is then
        /// never stored).
        outputs: Vec<View>,
        /// Runtime scalars among the operands, as indices into the program's scalars (for information).
        scalars: Vec<u32>,
        /// Applied to each finished block of the op's own result. The first parameter of its body is that result, of
        /// dims `[batch.., m, n]` (convolutions: the output's dims) and of the type sums are kept in: f32, or f64 for f64.
        /// `inputs[0]` of the call stands for it: a view of the place of `outputs[0]`, of which only dims and dtype count.
        /// The other inputs and all outputs of the call have the op's full dims or broadcast within the body, and
        /// `outputs` of the call equals `outputs` of the thunk. The body is elementwise and has no reductions.
        epilogue: Option<KernelCall>,
        /// Work memory: bytes of the slab that nobody else uses while the thunk runs, and that mean nothing before and
        /// after. None if the device asked for none.
        work: Option<View>,
    },
    /// Kernel calls that do not depend on each other, small enough that one fork-join should run them all (the update of
    /// many small parameters). No output of one overlaps anything of another.
    Group(Vec<KernelCall>),
    /// Copies (with conversion if the element types differ) between equal sizes.
    Copy { from: View, to: View, rule: CopyRule },
}

/// A generated kernel: the fusion it computes. Structurally equal bodies are stored once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelSpec {
    pub name: String,
    /// The body with its kind; the device lowers it through [`crate::kernel`].
    pub kind: crate::ir::FusionKind,
    pub body: Arc<Graph>,
}

/// A result of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResultSpec {
    pub ty: TensorType,
    /// The result is written into this parameter's memory (donation was taken up): [`Place::Result`] of this result and
    /// [`Place::Param`] of that parameter are the same memory. Index into [`Program::params`].
    pub alias: Option<u32>,
}

/// The compiled form of a graph, before a device generates code for its kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    /// Tensor inputs in order (runtime scalars are not among them).
    pub params: Vec<TensorType>,
    pub n_scalars: u32,
    pub results: Vec<ResultSpec>,
    pub slab_bytes: u64,
    /// Bytes of the constant pool.
    pub constants: Vec<u8>,
    pub kernels: Vec<KernelSpec>,
    pub thunks: Vec<Thunk>,
    /// Recorded op of each thunk (an index the recorder understands), for errors and profiles.
    pub locs: Vec<u32>,
}
