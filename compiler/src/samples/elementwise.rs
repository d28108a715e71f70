//! Samples of elementwise ops. Which element types an op takes is asked of its type rule.
use super::Sample;
use super::maker::{Fill, SMALL, sample};
use crate::ir::{Attrs, Builder, CmpDir, DType, OpKind, TensorType, Value, infer};

/// Sizes: 0-d, odd, more than a vector with a remainder, none.
const SIZES: [&[i64]; 4] = [&[], &[37], &[3, 1, 7], &[2, 0]];

fn accepts(kind: OpKind, dtype: DType, n: usize) -> bool {
    let ty = TensorType::new(dtype, [1]);
    infer(kind, &Attrs::None, &vec![&ty; n], std::slice::from_ref(&ty)).is_ok()
}

/// Ordinary arguments inside of the domain of a function of floats.
pub(super) fn domain(kind: OpKind) -> (f64, f64) {
    use OpKind as K;
    match kind {
        K::Log | K::Sqrt | K::Rsqrt | K::Lgamma | K::Digamma => (0.25, 8.0),
        K::Log1p => (-0.5, 8.0),
        K::Acosh => (1.25, 8.0),
        K::Asin | K::Acos | K::Atanh | K::ErfInv => (-0.75, 0.75),
        K::Tan => (-1.0, 1.0),
        K::Exp | K::Expm1 | K::Sinh | K::Cosh => (-2.0, 2.0),
        _ => (-8.0, 8.0),
    }
}

pub(super) fn unary(kind: OpKind) -> Vec<Sample> {
    let mut out = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|&d| accepts(kind, d, 1)) {
        let (lo, hi) = domain(kind);
        let fills = [("special", Fill::Special), ("domain", Fill::Range(lo, hi))];
        for (dims, (label, fill)) in SIZES.iter().flat_map(|s| fills.map(|f| (s, f))) {
            let ty = TensorType::new(dtype, dims);
            out.push(sample(format!("{kind} {ty} {label}"), |m| {
                let x = m.param(&ty, fill);
                m.b.unary(kind, x)
            }));
        }
    }
    out
}

pub(super) fn binary(kind: OpKind) -> Vec<Sample> {
    let mut out = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|&d| accepts(kind, d, 2)) {
        for dims in SIZES {
            let ty = TensorType::new(dtype, dims);
            out.push(sample(format!("{kind} {ty} small"), |m| {
                let (x, y) = (m.param(&ty, SMALL), m.param(&ty, SMALL));
                m.b.binary(kind, x, y)
            }));
        }
        // Every special value against every other.
        let ty = TensorType::new(dtype, [18, 18]);
        out.push(sample(format!("{kind} {ty} special pairs"), |m| {
            let (x, y) = special_pairs(m, dtype);
            m.b.binary(kind, x, y)
        }));
    }
    out
}

/// All pairs of the first 18 special elements, as two tensors of sizes [18, 18].
fn special_pairs(m: &mut super::maker::Maker, dtype: DType) -> (crate::ir::Value, crate::ir::Value) {
    let line = TensorType::new(dtype, [18]);
    let (x, y) = (m.param(&line, Fill::Special), m.param(&line, Fill::Special));
    (m.b.broadcast_in_dim(x, [18, 18], [0]), m.b.broadcast_in_dim(y, [18, 18], [1]))
}

pub(super) fn compare() -> Vec<Sample> {
    let mut out = Vec::new();
    for dir in [CmpDir::Eq, CmpDir::Ne, CmpDir::Lt, CmpDir::Le, CmpDir::Gt, CmpDir::Ge] {
        for dtype in DType::ALL {
            out.push(sample(format!("compare {dir:?} {dtype} special pairs"), |m| {
                let (x, y) = special_pairs(m, dtype);
                m.b.compare(dir, x, y)
            }));
        }
        out.push(sample(format!("compare {dir:?} empty"), |m| {
            let ty = TensorType::new(DType::F32, [0, 3]);
            let (x, y) = (m.param(&ty, SMALL), m.param(&ty, SMALL));
            m.b.compare(dir, x, y)
        }));
    }
    out
}

pub(super) fn select() -> Vec<Sample> {
    let mut out = Vec::new();
    for dtype in DType::ALL {
        for dims in SIZES {
            let ty = TensorType::new(dtype, dims);
            out.push(sample(format!("select {ty}"), |m| {
                let p = m.param(&ty.with_dtype(DType::Bool), SMALL);
                let (x, y) = (m.param(&ty, Fill::Special), m.param(&ty, SMALL));
                m.b.select(p, x, y)
            }));
        }
    }
    out
}

/// All pairs of types. Floats that become integers stay in every integer type's range: outside, PyTorch's own result
/// depends on the machine.
pub(super) fn convert() -> Vec<Sample> {
    let mut out = Vec::new();
    for from in DType::ALL {
        for to in DType::ALL {
            let fill = match (from.is_float(), to.is_int(), to.is_signed()) {
                (true, true, true) => Fill::Range(-100.0, 100.0),
                (true, true, false) => Fill::Range(0.0, 100.0),
                _ => Fill::Special,
            };
            let ty = TensorType::new(from, [37]);
            out.push(sample(format!("convert {from} to {to}"), |m| {
                let x = m.param(&ty, fill);
                // Not Builder::convert, which leaves out the identity.
                m.b.op(OpKind::Convert, Attrs::None, &[x], &[ty.with_dtype(to)])
            }));
        }
    }
    out
}

pub(super) fn bitcast() -> Vec<Sample> {
    let mut out = Vec::new();
    let types = DType::ALL.into_iter().filter(|&d| d != DType::Bool);
    for (from, to) in types.clone().flat_map(|a| types.clone().map(move |b| (a, b))) {
        if from.size() == to.size() {
            let ty = TensorType::new(from, [37]);
            out.push(sample(format!("bitcast_convert {from} to {to}"), |m| {
                let x = m.param(&ty, Fill::Special);
                m.b.bitcast(x, to)
            }));
        }
    }
    out
}

/// `gelu(x, approximate="tanh")` op by op, in the order in which PyTorch computes it.
pub fn gelu_tanh(b: &mut Builder, x: Value) -> Value {
    let k = |b: &mut Builder, v: f64| b.full_like(x, v);
    let (a, s, one, half) = (k(b, 0.044715), k(b, 0.797_884_560_802_865_4), k(b, 1.0), k(b, 0.5));
    let t = b.mul(x, a);
    let t = b.mul(t, x);
    let t = b.mul(t, x);
    let t = b.add(x, t);
    let t = b.mul(t, s);
    let t = b.unary(OpKind::Tanh, t);
    let t = b.add(t, one);
    let h = b.mul(x, half);
    b.mul(h, t)
}
