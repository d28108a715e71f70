//! Arithmetic on single elements: what constant folding of splats needs, and nothing that could round differently from
//! a device (no transcendental functions).
use crate::ir::{CmpDir, DType, Literal, OpKind, TensorType, decode_f64, encode_f64, encode_i64};

/// One element of a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Num {
    Float(f64),
    /// Integers and `i1`.
    Int(i128),
}

impl Num {
    /// The element in `bytes`.
    pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Num {
        if dtype.is_float() {
            return Num::Float(decode_f64(dtype, bytes));
        }
        let mut wide = [0u8; 8];
        wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        let raw = u64::from_le_bytes(wide);
        Num::Int(match dtype {
            DType::I8 => i128::from(raw as i8),
            DType::I16 => i128::from(raw as i16),
            DType::I32 => i128::from(raw as i32),
            DType::I64 => i128::from(raw as i64),
            _ => i128::from(raw),
        })
    }

    /// Bytes of the element of `dtype`: rounded, wrapped; conversion semantics are those of `convert`.
    pub(crate) fn encode(self, dtype: DType) -> Box<[u8]> {
        match (self, dtype) {
            (Num::Float(x), DType::Bool) => encode_i64(dtype, i64::from(x != 0.0)),
            (Num::Int(x), DType::Bool) => encode_i64(dtype, i64::from(x != 0)),
            (Num::Float(x), _) => encode_f64(dtype, x),
            (Num::Int(x), d) if d.is_float() => match d {
                // One rounding only.
                DType::F32 => (x as f32).to_le_bytes().into(),
                DType::F64 => (x as f64).to_le_bytes().into(),
                _ => encode_f64(d, f64::from(x as f32)),
            },
            (Num::Int(x), _) => encode_i64(dtype, x as i64),
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Num::Float(_))
    }
}

/// The repeated element of a splat (or one-element) literal.
pub(crate) fn splat_of(literal: &Literal) -> Option<Num> {
    (literal.is_splat() || literal.ty.numel() == 1).then(|| Num::decode(literal.ty.dtype, literal.element(0)))
}

/// A splat literal of type `ty`.
pub(crate) fn splat(ty: &TensorType, value: Num) -> Literal {
    Literal { ty: ty.clone(), bytes: value.encode(ty.dtype) }
}

/// Result of an elementwise op on constants of type `dtype` (of the first operand; `select`: of the branches), converted
/// to `out`; `None` where folding is not known to be exact.
pub(crate) fn elementwise(kind: OpKind, cmp: Option<CmpDir>, args: &[Num], dtype: DType, out: DType) -> Option<Num> {
    // f16 and bf16 compute in f32; the products, sums and quotients of two f32 in f64 round to f32 as if done in f32.
    let round = |x: f64| match dtype {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        d => decode_f64(d, &encode_f64(d, f64::from(x as f32))),
    };
    let wrap = |x: i128| Num::decode(dtype, &Num::Int(x).encode(dtype));
    use Num::{Float as F, Int as I};
    use OpKind as K;
    Some(match (kind, args) {
        (K::Convert, [x]) => {
            // Out-of-range conversions differ between machines; leave them to the device.
            if let (F(x), false) = (*x, out.is_float() || out == DType::Bool) {
                let fits = x.is_finite() && x.abs() < 9.0e15 && encode_round_trips(out, x.trunc());
                if !fits {
                    return None;
                }
            }
            Num::decode(out, &x.encode(out))
        }
        (K::Negate, [F(x)]) => F(-x),
        (K::Negate, [I(x)]) => wrap(-x),
        (K::Abs, [F(x)]) => F(x.abs()),
        (K::Abs, [I(x)]) => wrap(x.abs()),
        (K::Not, [I(x)]) if dtype == DType::Bool => I(i128::from(*x == 0)),
        (K::Not, [I(x)]) => wrap(!x),
        (K::Sqrt, [F(x)]) => F(round(x.sqrt())),
        (K::IsFinite, [F(x)]) => I(i128::from(x.is_finite())),
        (K::Add, [F(x), F(y)]) => F(round(x + y)),
        (K::Subtract, [F(x), F(y)]) => F(round(x - y)),
        (K::Multiply, [F(x), F(y)]) => F(round(x * y)),
        (K::Divide, [F(x), F(y)]) => F(round(x / y)),
        (K::Add | K::Or, [I(x), I(y)]) if dtype == DType::Bool => I(x | y),
        (K::Multiply | K::And, [I(x), I(y)]) if dtype == DType::Bool => I(x & y),
        (K::Add, [I(x), I(y)]) => wrap(x + y),
        (K::Subtract, [I(x), I(y)]) => wrap(x - y),
        (K::Multiply, [I(x), I(y)]) => wrap(x.checked_mul(*y)?),
        (K::And, [I(x), I(y)]) => wrap(x & y),
        (K::Or, [I(x), I(y)]) => wrap(x | y),
        (K::Xor, [I(x), I(y)]) => wrap(x ^ y),
        (K::Maximum, [I(x), I(y)]) => I(*x.max(y)),
        (K::Minimum, [I(x), I(y)]) => I(*x.min(y)),
        (K::Maximum, [F(x), F(y)]) if !x.is_nan() && !y.is_nan() && x != y => F(x.max(*y)),
        (K::Minimum, [F(x), F(y)]) if !x.is_nan() && !y.is_nan() && x != y => F(x.min(*y)),
        (K::Compare, [x, y]) if x.is_float() == y.is_float() => I(i128::from(match (x, y, cmp?) {
            (F(x), F(y), CmpDir::Eq) => x == y,
            (F(x), F(y), CmpDir::Ne) => x != y,
            (F(x), F(y), CmpDir::Lt) => x < y,
            (F(x), F(y), CmpDir::Le) => x <= y,
            (F(x), F(y), CmpDir::Gt) => x > y,
            (F(x), F(y), CmpDir::Ge) => x >= y,
            (I(x), I(y), d) => holds(d, *x, *y),
            _ => return None,
        })),
        (K::Select, [I(p), x, y]) => {
            if *p != 0 {
                *x
            } else {
                *y
            }
        }
        _ => return None,
    })
}

/// Whether `x dir y` holds.
pub(crate) fn holds(dir: CmpDir, x: i128, y: i128) -> bool {
    match dir {
        CmpDir::Eq => x == y,
        CmpDir::Ne => x != y,
        CmpDir::Lt => x < y,
        CmpDir::Le => x <= y,
        CmpDir::Gt => x > y,
        CmpDir::Ge => x >= y,
    }
}

fn encode_round_trips(dtype: DType, x: f64) -> bool {
    decode_f64(dtype, &encode_i64(dtype, x as i64)) == x
}

/// Every value of `from` is a value of `to`, so that converting there loses nothing.
pub(crate) fn widens(from: DType, to: DType) -> bool {
    use DType as D;
    if from == to {
        return true;
    }
    // Bits of magnitude an integer type needs, or the exact integer range of a float type.
    let int_bits = |d: DType| match d {
        D::Bool => 1,
        D::U8 => 8,
        D::I8 => 7,
        D::U16 => 16,
        D::I16 => 15,
        D::U32 => 32,
        D::I32 => 31,
        D::U64 => 64,
        D::I64 => 63,
        D::F16 => 11,
        D::BF16 => 8,
        D::F32 => 24,
        D::F64 => 53,
    };
    match (from.is_float(), to.is_float()) {
        (true, true) => matches!((from, to), (D::F16 | D::BF16, D::F32 | D::F64) | (D::F32, D::F64)),
        (true, false) => false,
        (false, true) => int_bits(from) <= int_bits(to),
        (false, false) => to != D::Bool && int_bits(from) <= int_bits(to) && (to.is_signed() || !from.is_signed()),
    }
}
