//! The program: what the compiler hands to a device for one graph.
//!
//! A list of thunks over one buffer plan. Every tensor has a place ([`Place`]); thunks name the places they read and
//! write, with the strides to walk them, so that a device needs no graph to run a program.
use crate::ir::{Attrs, DType, Dims, Graph, OpKind, TensorType};
use std::sync::Arc;

/// Where a tensor lives while the program runs. Offsets are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Tensor input number n (index into [`Program::params`]).
    Param(u32),
    /// Result number n: memory the caller gives, or a donated parameter.
    Result(u32),
    /// In the program's slab.
    Slab { offset: u64 },
    /// In the constant pool.
    Constant { offset: u64 },
}

/// A strided tensor at a place; `offset` and `strides` are in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelCall {
    pub kernel: KernelId,
    pub inputs: Vec<View>,
    pub outputs: Vec<View>,
    /// Which runtime scalars (index into the program's scalars) the kernel's scalar parameters are, in order.
    pub scalars: Vec<u32>,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Thunk {
    /// A generated kernel.
    Kernel(KernelCall),
    /// A library kernel for one primitive op (contractions, sorts, scans, scatters, windows, ...), possibly with a
    /// generated elementwise epilogue that is applied to each finished block of the (first) output.
    Library {
        op: OpKind,
        attrs: Attrs,
        inputs: Vec<View>,
        outputs: Vec<View>,
        /// Runtime scalars the op reads (attention's scale, dynamic starts), as indices into the program's scalars.
        scalars: Vec<u32>,
        /// The epilogue's first input is the block of the op's own result; the others are `inputs[1..]` of the call.
        epilogue: Option<KernelCall>,
    },
    /// Copies (with conversion if the element types differ) between equal sizes.
    Copy { from: View, to: View },
}

/// A generated kernel: the fusion it computes. Structurally equal bodies are stored once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    pub name: String,
    /// The body with its kind; the device lowers it through [`crate::kernel`].
    pub kind: crate::ir::FusionKind,
    pub body: Arc<Graph>,
}

/// A result of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResultSpec {
    pub ty: TensorType,
    /// The result is written into this parameter's memory (donation was taken up).
    pub alias: Option<u32>,
}

/// The compiled form of a graph, before a device generates code for its kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
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
