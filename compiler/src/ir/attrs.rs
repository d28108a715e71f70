//! Attributes of ops: everything static that is not an operand.
use super::{Dims, Graph, Literal};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Direction of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CmpDir {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How a reduction combines elements. The identity is implied; `And` and `Or` take `i1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceKind {
    Sum,
    Prod,
    Max,
    Min,
    And,
    Or,
}

/// How a running combination combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CumKind {
    Sum,
    Prod,
    Max,
    Min,
    LogSumExp,
}

/// What a scatter does with the old element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScatterKind {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

/// Dimension numbers of `dot_general`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct DotDims {
    pub lhs_batch: Dims,
    pub rhs_batch: Dims,
    pub lhs_contract: Dims,
    pub rhs_contract: Dims,
}

/// One dimension of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WindowDim {
    pub size: i64,
    pub stride: i64,
    /// Padding before and after; may be negative.
    pub pad_lo: i64,
    pub pad_hi: i64,
    /// Holes between the elements of the input (transposed convolution); 1 is dense.
    pub base_dilation: i64,
    /// Holes between the elements of the window; 1 is dense.
    pub window_dilation: i64,
    /// The window is applied reversed (a convolution's gradient).
    pub reversed: bool,
}

impl WindowDim {
    /// A window of one element: the dimension passes through.
    pub const UNIT: WindowDim =
        WindowDim { size: 1, stride: 1, pad_lo: 0, pad_hi: 0, base_dilation: 1, window_dilation: 1, reversed: false };

    /// Number of window positions on an input of `n` elements.
    pub fn output_size(&self, n: i64) -> i64 {
        // Saturating: attributes may come from a text.
        let holes = if n == 0 { 0 } else { (n - 1).saturating_mul(self.base_dilation).saturating_add(1) };
        let dilated = holes.saturating_add(self.pad_lo).saturating_add(self.pad_hi);
        let span = (self.size - 1).saturating_mul(self.window_dilation).saturating_add(1);
        if dilated < span { 0 } else { (dilated - span) / self.stride + 1 }
    }
}

/// Dimension numbers of `convolution`: which dimension of each tensor is what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvDims {
    pub input_batch: i64,
    pub input_feature: i64,
    pub input_spatial: Dims,
    pub kernel_input_feature: i64,
    pub kernel_output_feature: i64,
    pub kernel_spatial: Dims,
    pub output_batch: i64,
    pub output_feature: i64,
    pub output_spatial: Dims,
}

impl ConvDims {
    /// Images of `spatial` dimensions, batch and features first; kernels as [output feature, input feature, ..]. PyTorch's.
    pub fn channels_first(spatial: usize) -> ConvDims {
        let space: Dims = (2..spatial as i64 + 2).collect();
        ConvDims {
            input_batch: 0,
            input_feature: 1,
            input_spatial: space.clone(),
            kernel_input_feature: 1,
            kernel_output_feature: 0,
            kernel_spatial: space.clone(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: space,
        }
    }
}

/// How the kernel of a fusion walks its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FusionKind {
    /// Every root has one element per point of one iteration space.
    Loop,
    /// Reductions over the trailing dimensions of one iteration space; each row is resident.
    Row,
    /// Reductions over leading (or middle) dimensions, with an elementwise prologue.
    Column,
    /// A contraction (first instruction) with an elementwise epilogue on its result.
    Epilogue,
}

/// Attributes of one instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Attrs {
    None,
    /// `parameter`.
    Index(u32),
    /// `constant`.
    Literal(Arc<Literal>),
    /// `iota`, `concatenate`, `arg_reduce` (with `max`), one dimension.
    Dim(i64),
    /// `broadcast_in_dim`, `transpose` (permutation), `reverse`, `gather`.
    Dims(Dims),
    Slice {
        start: Dims,
        limit: Dims,
        stride: Dims,
    },
    Pad {
        lo: Dims,
        hi: Dims,
        interior: Dims,
    },
    Compare(CmpDir),
    Reduce {
        kind: ReduceKind,
        dims: Dims,
    },
    ArgReduce {
        max: bool,
        dim: i64,
    },
    Cumulative {
        kind: CumKind,
        dim: i64,
    },
    Scatter {
        kind: ScatterKind,
        dims: Dims,
    },
    Window {
        kind: ReduceKind,
        window: Vec<WindowDim>,
    },
    Dot(DotDims),
    Conv {
        window: Vec<WindowDim>,
        dims: ConvDims,
        feature_groups: i64,
        batch_groups: i64,
    },
    Attention {
        causal: bool,
    },
    Sort {
        dim: i64,
        descending: bool,
    },
    TopK {
        k: i64,
        largest: bool,
    },
    /// `rng_bits`: which of the four words of a Philox block.
    Word(u32),
    Fusion {
        kind: FusionKind,
        body: Arc<Graph>,
    },
}
