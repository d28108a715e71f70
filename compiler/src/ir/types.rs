//! Tensor types and the errors of type rules.
use super::DType;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// Sizes, strides, permutations: one `i64` per dimension.
pub type Dims = SmallVec<[i64; 6]>;

/// The type of a value: element type and static sizes, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub dims: Dims,
}

impl TensorType {
    pub fn new(dtype: DType, dims: impl AsRef<[i64]>) -> Self {
        TensorType { dtype, dims: Dims::from_slice(dims.as_ref()) }
    }

    /// A 0-dimensional type.
    pub fn scalar(dtype: DType) -> Self {
        TensorType { dtype, dims: Dims::new() }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.dims.iter().product()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.numel() as u64 * self.dtype.size() as u64
    }

    /// The same sizes with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        TensorType { dtype, dims: self.dims.clone() }
    }

    /// The same element type with other sizes.
    pub fn with_dims(&self, dims: impl AsRef<[i64]>) -> Self {
        TensorType::new(self.dtype, dims)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for d in &self.dims {
            write!(f, "{d}x")?;
        }
        write!(f, "{}>", self.dtype)
    }
}

/// Strides, in elements, of a row-major tensor of sizes `dims`.
pub fn row_major_strides(dims: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(1, dims.len());
    for i in (0..dims.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * dims[i + 1].max(1);
    }
    strides
}

/// A type rule that does not hold. Always a bug of the code that built the graph: users' shape errors are PyTorch's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

impl TypeError {
    pub fn new(message: impl Into<String>) -> Self {
        TypeError(message.into())
    }
}
