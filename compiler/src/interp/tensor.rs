//! Tensors of the interpreter and their elements.
use crate::ir::{DType, Literal, TensorType, decode_f64, encode_f64, encode_i64};

/// A tensor: raw little-endian elements in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub ty: TensorType,
    /// `ty.bytes()` bytes.
    pub bytes: Vec<u8>,
}

/// An element while it is computed with: floats as `f64`, integers as `i128`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Num {
    F(f64),
    I(i128),
    B(bool),
}

impl Num {
    /// The element stored in `bytes`.
    pub fn decode(dtype: DType, bytes: &[u8]) -> Num {
        if dtype.is_float() {
            return Num::F(decode_f64(dtype, bytes));
        }
        if dtype == DType::Bool {
            return Num::B(bytes[0] != 0);
        }
        let unsigned = bytes.iter().rev().fold(0u64, |acc, &b| acc << 8 | u64::from(b));
        let shift = 64 - 8 * dtype.size() as u32;
        // Shifting up and down again extends the sign.
        Num::I(if dtype.is_signed() { i128::from(((unsigned << shift) as i64) >> shift) } else { i128::from(unsigned) })
    }

    /// The bytes of this number as an element of type `dtype`: the meaning of `convert`.
    ///
    /// Floats round to nearest (f16 and bf16 by way of f32, as PyTorch does) and truncate to integers; values outside
    /// of `i64` saturate, then integers wrap to their width. Anything to `i1` is `x != 0`.
    pub fn encode(self, dtype: DType) -> Box<[u8]> {
        match (self, dtype) {
            // Which NaN an operation gives differs from machine to machine; here it is always the positive quiet one.
            (Num::F(v), _) if v.is_nan() => canonical_nan(dtype),
            (Num::F(v), DType::F16 | DType::BF16) => encode_16(dtype, v as f32),
            (Num::I(v), DType::F16 | DType::BF16) => encode_16(dtype, v as f32),
            (Num::F(v), _) => encode_f64(dtype, v),
            // Directly, for rounding once.
            (Num::I(v), DType::F32) => (v as f32).to_le_bytes().into(),
            (Num::I(v), DType::F64) => (v as f64).to_le_bytes().into(),
            (Num::I(v), DType::Bool) => [(v != 0) as u8].into(),
            (Num::I(v), _) => encode_i64(dtype, v as i64),
            (Num::B(v), DType::F16 | DType::BF16) => encode_16(dtype, f32::from(v as u8)),
            (Num::B(v), _) => encode_i64(dtype, i64::from(v)),
        }
    }

    /// The value as a float.
    pub fn to_f64(self) -> f64 {
        match self {
            Num::F(v) => v,
            Num::I(v) => v as f64,
            Num::B(v) => f64::from(v as u8),
        }
    }

    /// The value as an integer, truncated.
    pub fn to_i128(self) -> i128 {
        match self {
            Num::F(v) => v as i128,
            Num::I(v) => v,
            Num::B(v) => i128::from(v),
        }
    }

    /// Whether this is not 0.
    pub fn to_bool(self) -> bool {
        match self {
            Num::F(v) => v != 0.0,
            Num::I(v) => v != 0,
            Num::B(v) => v,
        }
    }

    pub fn is_nan(self) -> bool {
        matches!(self, Num::F(v) if v.is_nan())
    }
}

fn canonical_nan(dtype: DType) -> Box<[u8]> {
    match dtype {
        DType::F16 => 0x7e00u16.to_le_bytes().into(),
        DType::BF16 => 0x7fc0u16.to_le_bytes().into(),
        DType::F32 => 0x7fc0_0000u32.to_le_bytes().into(),
        DType::F64 => 0x7ff8_0000_0000_0000u64.to_le_bytes().into(),
        integer => encode_f64(integer, f64::NAN),
    }
}

fn encode_16(dtype: DType, v: f32) -> Box<[u8]> {
    match dtype {
        DType::F16 => half::f16::from_f32(v).to_le_bytes().into(),
        _ => half::bf16::from_f32(v).to_le_bytes().into(),
    }
}

impl Tensor {
    /// A tensor of the elements `nums`, in row-major order, each rounded to the element type of `ty`.
    ///
    /// There must be `ty.numel()` of them.
    pub fn from_nums(ty: &TensorType, nums: impl IntoIterator<Item = Num>) -> Tensor {
        let mut bytes = Vec::with_capacity(ty.bytes() as usize);
        for num in nums {
            bytes.extend_from_slice(&num.encode(ty.dtype));
        }
        debug_assert_eq!(bytes.len() as u64, ty.bytes());
        Tensor { ty: ty.clone(), bytes }
    }

    /// A tensor of the elements `values`, in row-major order, each rounded to the element type of `ty`.
    pub fn from_f64(ty: &TensorType, values: &[f64]) -> Tensor {
        Tensor::from_nums(ty, values.iter().map(|&v| Num::F(v)))
    }

    /// A tensor of the elements `values`, in row-major order, each wrapped to the element type of `ty`.
    pub fn from_i64(ty: &TensorType, values: &[i64]) -> Tensor {
        Tensor::from_nums(ty, values.iter().map(|&v| Num::I(i128::from(v))))
    }

    /// A 0-d f64 tensor: a runtime scalar.
    pub fn scalar_f64(value: f64) -> Tensor {
        Tensor::from_f64(&TensorType::scalar(DType::F64), &[value])
    }

    /// A 0-d i64 tensor: a runtime scalar.
    pub fn scalar_i64(value: i64) -> Tensor {
        Tensor::from_i64(&TensorType::scalar(DType::I64), &[value])
    }

    /// A tensor of zeros.
    pub fn zeros(ty: &TensorType) -> Tensor {
        Tensor { ty: ty.clone(), bytes: vec![0; ty.bytes() as usize] }
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.ty.numel() as usize
    }

    /// The bytes of element `i` in row-major order.
    pub fn element(&self, i: usize) -> &[u8] {
        let size = self.ty.dtype.size();
        &self.bytes[i * size..(i + 1) * size]
    }

    pub(super) fn element_mut(&mut self, i: usize) -> &mut [u8] {
        let size = self.ty.dtype.size();
        &mut self.bytes[i * size..(i + 1) * size]
    }

    /// Element `i` in row-major order.
    pub fn num(&self, i: usize) -> Num {
        Num::decode(self.ty.dtype, self.element(i))
    }

    /// All elements in row-major order.
    pub fn nums(&self) -> impl Iterator<Item = Num> + '_ {
        (0..self.numel()).map(|i| self.num(i))
    }

    /// All elements as floats (inexact above 2^53 for 64-bit integers).
    pub fn to_f64(&self) -> Vec<f64> {
        self.nums().map(Num::to_f64).collect()
    }

    /// All elements as integers, truncated and wrapped.
    pub fn to_i64(&self) -> Vec<i64> {
        self.nums().map(|n| n.to_i128() as i64).collect()
    }
}

impl From<&Literal> for Tensor {
    fn from(literal: &Literal) -> Tensor {
        let bytes = (0..literal.ty.numel() as usize).flat_map(|i| literal.element(i).iter().copied()).collect();
        Tensor { ty: literal.ty.clone(), bytes }
    }
}

impl From<&Tensor> for Literal {
    /// All elements, none folded into a splat (but one element is one either way).
    fn from(tensor: &Tensor) -> Literal {
        Literal { ty: tensor.ty.clone(), bytes: tensor.bytes.clone().into_boxed_slice() }
    }
}
