//! Constant values.
use super::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// A dense constant: one element repeated (`splat`), or all elements in row-major order.
///
/// Elements are stored as their raw little-endian bytes, so that equality and hashing are exact (NaN payloads, -0).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Literal {
    pub ty: TensorType,
    /// `ty.dtype.size()` bytes for a splat, `ty.bytes()` otherwise.
    pub bytes: Box<[u8]>,
}

impl Literal {
    /// A tensor of type `ty` filled with `value`, rounded (floats) or truncated (integers) to its element type.
    pub fn splat(ty: TensorType, value: f64) -> Self {
        let bytes = encode_f64(ty.dtype, value);
        Literal { ty, bytes }
    }

    /// As [`Literal::splat`] for integers, exact for all 64-bit values.
    pub fn splat_i64(ty: TensorType, value: i64) -> Self {
        let bytes = encode_i64(ty.dtype, value);
        Literal { ty, bytes }
    }

    pub fn is_splat(&self) -> bool {
        self.bytes.len() == self.ty.dtype.size()
    }

    /// The bytes of element `i` in row-major order.
    pub fn element(&self, i: usize) -> &[u8] {
        let size = self.ty.dtype.size();
        if self.is_splat() { &self.bytes } else { &self.bytes[i * size..(i + 1) * size] }
    }

    /// The repeated element as a float, for a splat.
    pub fn splat_f64(&self) -> Option<f64> {
        self.is_splat().then(|| decode_f64(self.ty.dtype, &self.bytes))
    }
}

/// Rounds `value` to `dtype` and returns its bytes.
pub fn encode_f64(dtype: DType, value: f64) -> Box<[u8]> {
    match dtype {
        DType::F64 => value.to_le_bytes().into(),
        DType::F32 => (value as f32).to_le_bytes().into(),
        DType::BF16 => half::bf16::from_f64(value).to_le_bytes().into(),
        DType::F16 => half::f16::from_f64(value).to_le_bytes().into(),
        DType::Bool => [(value != 0.0) as u8].into(),
        DType::U64 => (value as u64).to_le_bytes().into(),
        _ => encode_i64(dtype, value as i64),
    }
}

/// Wraps `value` to `dtype` and returns its bytes.
pub fn encode_i64(dtype: DType, value: i64) -> Box<[u8]> {
    match dtype {
        DType::Bool => [(value != 0) as u8].into(),
        DType::U8 | DType::I8 => [value as u8].into(),
        DType::I16 | DType::U16 => (value as i16).to_le_bytes().into(),
        DType::I32 | DType::U32 => (value as i32).to_le_bytes().into(),
        DType::I64 | DType::U64 => value.to_le_bytes().into(),
        _ => encode_f64(dtype, value as f64),
    }
}

/// The element in `bytes` as a float (inexact above 2^53 for 64-bit integers).
pub fn decode_f64(dtype: DType, bytes: &[u8]) -> f64 {
    fn take<const N: usize>(b: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&b[..N]);
        out
    }
    match dtype {
        DType::Bool | DType::U8 => f64::from(bytes[0]),
        DType::I8 => f64::from(bytes[0] as i8),
        DType::I16 => f64::from(i16::from_le_bytes(take(bytes))),
        DType::U16 => f64::from(u16::from_le_bytes(take(bytes))),
        DType::I32 => f64::from(i32::from_le_bytes(take(bytes))),
        DType::U32 => f64::from(u32::from_le_bytes(take(bytes))),
        DType::I64 => i64::from_le_bytes(take(bytes)) as f64,
        DType::U64 => u64::from_le_bytes(take(bytes)) as f64,
        DType::F16 => half::f16::from_le_bytes(take(bytes)).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(take(bytes)).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(take(bytes))),
        DType::F64 => f64::from_le_bytes(take(bytes)),
    }
}
