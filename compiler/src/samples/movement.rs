//! Samples of leaves, movement, indexing and structure.
use super::Sample;
use super::maker::{Fill, Maker, SMALL, sample};
use crate::ir::{Attrs, Builder, DType, Dims, FusionKind, Literal, OpKind, ParamKind, ScatterKind, TensorType, Value};
use std::sync::Arc;

/// One type per element size, and the 16-bit floats, which move like integers.
const MOVED: [DType; 5] = [DType::Bool, DType::BF16, DType::F32, DType::I64, DType::F64];

pub(super) fn leaf(kind: OpKind) -> Vec<Sample> {
    let mut out = Vec::new();
    for dtype in DType::ALL {
        for dims in [&[][..], &[5], &[3, 4], &[0, 2]] {
            let ty = TensorType::new(dtype, dims);
            let name = format!("{kind} {ty}");
            match kind {
                OpKind::Parameter => out.push(sample(name, |m| m.param(&ty, Fill::Special))),
                OpKind::Constant => {
                    out.push(sample(format!("{name} splat"), |m| m.b.splat(&ty, 1.0)));
                    out.push(sample(name, |m| {
                        let elements = super::maker::tensor(&ty, Fill::Special, &mut m.rng);
                        m.b.literal(Literal::from(&elements))
                    }));
                }
                _ if dtype == DType::Bool => {}
                _ => out.extend((0..dims.len()).map(|d| sample(format!("{name} {d}"), |m| m.b.iota(&ty, d)))),
            }
        }
    }
    if kind == OpKind::Parameter {
        out.push(sample("parameter scalar<f64>", |m| m.scalar_f64(0.1)));
        out.push(sample("parameter scalar<i64>", |m| m.scalar_i64(i64::MIN)));
    }
    out
}

type Build = Box<dyn Fn(&mut Maker, DType) -> Value>;

/// Variants of a movement op, by name.
fn variants(kind: OpKind) -> Vec<(&'static str, Build)> {
    fn x(m: &mut Maker, dtype: DType, dims: &[i64]) -> Value {
        m.param(&TensorType::new(dtype, dims), Fill::Special)
    }
    fn op(
        name: &'static str,
        dims: &'static [i64],
        f: impl Fn(&mut Builder, Value) -> Value + 'static,
    ) -> (&'static str, Build) {
        (
            name,
            Box::new(move |m, dtype| {
                let v = x(m, dtype, dims);
                f(&mut m.b, v)
            }),
        )
    }
    use OpKind as K;
    match kind {
        K::BroadcastInDim => vec![
            op("rows", &[7], |b, v| b.broadcast_in_dim(v, [3, 7], [1])),
            op("columns", &[3], |b, v| b.broadcast_in_dim(v, [3, 7], [0])),
            op("stretch", &[3, 1], |b, v| b.broadcast_in_dim(v, [2, 3, 7], [1, 2])),
            op("0-d", &[], |b, v| b.broadcast_in_dim(v, [2, 3], [])),
            op("to empty", &[1], |b, v| b.broadcast_in_dim(v, [0, 3], [0])),
        ],
        K::Reshape => vec![
            op("split", &[12], |b, v| b.reshape(v, [3, 2, 2])),
            op("merge", &[3, 5], |b, v| b.reshape(v, [15])),
            op("0-d", &[1, 1], |b, v| b.reshape(v, [])),
            op("empty", &[0, 3], |b, v| b.reshape(v, [5, 0])),
        ],
        K::Transpose => vec![
            op("2-d", &[17, 35], |b, v| b.transpose(v, [1, 0])),
            op("inner", &[2, 5, 3], |b, v| b.transpose(v, [0, 2, 1])),
            op("rotate", &[2, 5, 3], |b, v| b.transpose(v, [2, 0, 1])),
            op("outer", &[4, 3, 5, 2], |b, v| b.transpose(v, [1, 0, 2, 3])),
            op("empty", &[0, 3], |b, v| b.transpose(v, [1, 0])),
        ],
        K::Slice => vec![
            op("offset", &[7, 9], |b, v| b.slice(v, &[1, 2], &[6, 8], &[1, 1])),
            op("stride", &[7, 9], |b, v| b.slice(v, &[0, 1], &[7, 9], &[2, 3])),
            op("one", &[5], |b, v| b.slice(v, &[4], &[5], &[1])),
            op("none", &[5], |b, v| b.slice(v, &[2], &[2], &[1])),
        ],
        K::Pad => {
            let pad = |name, dims: &'static [i64], lo: &'static [i64], hi: &'static [i64], interior: &'static [i64]| {
                let build: Build = Box::new(move |m, dtype| {
                    let (v, value) = (x(m, dtype, dims), m.param(&TensorType::scalar(dtype), SMALL));
                    m.b.pad(v, value, lo, hi, interior)
                });
                (name, build)
            };
            vec![
                pad("low and high", &[3, 5], &[1, 0], &[0, 2], &[0, 0]),
                pad("negative", &[5, 5], &[-1, 2], &[1, -3], &[0, 0]),
                pad("interior", &[3, 4], &[0, 1], &[1, 0], &[1, 2]),
                pad("interior and negative", &[4], &[-2], &[-1], &[2]),
                pad("of nothing", &[0, 2], &[2, 0], &[1, 1], &[3, 0]),
            ]
        }
        K::Concatenate => {
            let cat = |name, sizes: &'static [i64], dim: usize| {
                let build: Build = Box::new(move |m, dtype| {
                    let parts: Vec<Value> = sizes
                        .iter()
                        .map(|&n| if dim == 0 { x(m, dtype, &[n, 3]) } else { x(m, dtype, &[3, n]) })
                        .collect();
                    m.b.concatenate(&parts, dim)
                });
                (name, build)
            };
            vec![cat("rows", &[2, 5], 0), cat("columns", &[3, 0, 1, 4], 1), cat("nothing", &[0, 0], 0)]
        }
        K::Reverse => vec![
            op("last", &[3, 5], |b, v| b.reverse(v, &[1])),
            op("all", &[3, 5, 2], |b, v| b.reverse(v, &[0, 1, 2])),
            op("none", &[3], |b, v| b.reverse(v, &[])),
            op("empty", &[0, 2], |b, v| b.reverse(v, &[0])),
        ],
        K::DynamicSlice => {
            let at = |name, starts: &'static [i64]| {
                let build: Build = Box::new(move |m, dtype| {
                    let v = x(m, dtype, &[7, 9]);
                    let starts: Vec<Value> = starts.iter().map(|&s| m.scalar_i64(s)).collect();
                    m.b.dynamic_slice(v, &starts, &[3, 4])
                });
                (name, build)
            };
            vec![at("inside", &[2, 3]), at("clamped", &[-5, 8]), at("far", &[i64::MAX, i64::MIN])]
        }
        K::DynamicUpdateSlice => {
            let at = |name, starts: &'static [i64], update: &'static [i64]| {
                let build: Build = Box::new(move |m, dtype| {
                    let (v, u) = (x(m, dtype, &[7, 9]), x(m, dtype, update));
                    let starts: Vec<Value> = starts.iter().map(|&s| m.scalar_i64(s)).collect();
                    m.b.dynamic_update_slice(v, u, &starts)
                });
                (name, build)
            };
            vec![at("inside", &[2, 3], &[3, 4]), at("clamped", &[-5, 8], &[3, 4]), at("nothing", &[1, 1], &[0, 4])]
        }
        _ => vec![],
    }
}

pub(super) fn movement(kind: OpKind) -> Vec<Sample> {
    let each = |dtype: DType| variants(kind).into_iter().map(move |(name, build)| (dtype, name, build));
    let all = MOVED.into_iter().flat_map(each);
    all.map(|(dtype, name, build)| sample(format!("{kind} {dtype} {name}"), |m| build(m, dtype))).collect()
}

/// (name, operand sizes, indexed dimensions, index sizes); indices run from -2 to 7, so that some are clamped.
type Indexing = (&'static str, &'static [i64], &'static [i64], &'static [i64]);
const INDEXINGS: [Indexing; 7] = [
    ("rows", &[6, 3], &[0], &[4]),
    ("columns", &[3, 6], &[1], &[5]),
    ("middle, 2-d indices", &[2, 5, 3], &[1], &[2, 3]),
    ("points", &[5, 6], &[0, 1], &[7]),
    ("two of three, swapped", &[4, 3, 5], &[2, 0], &[3]),
    ("0-d indices", &[4, 3], &[0], &[]),
    ("no indices", &[4, 3], &[0], &[0]),
];

fn operand_and_indices(m: &mut Maker, dtype: DType, case: Indexing) -> (Value, Vec<Value>) {
    let (_, operand, dims, sizes) = case;
    let x = m.param(&TensorType::new(dtype, operand), SMALL);
    let indices = dims.iter().map(|_| m.param(&TensorType::new(DType::I64, sizes), Fill::Range(-2.0, 7.0)));
    (x, indices.collect())
}

pub(super) fn gather() -> Vec<Sample> {
    let all = MOVED.into_iter().flat_map(|dtype| INDEXINGS.map(|case| (dtype, case)));
    all.map(|(dtype, case)| {
        sample(format!("gather {dtype} {}", case.0), |m| {
            let (x, indices) = operand_and_indices(m, dtype, case);
            m.b.gather(x, case.2, &indices)
        })
    })
    .collect()
}

pub(super) fn scatter() -> Vec<Sample> {
    let mut out = Vec::new();
    for kind in [ScatterKind::Set, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min] {
        for dtype in [DType::Bool, DType::U8, DType::I32, DType::I64, DType::BF16, DType::F32, DType::F64] {
            for case in INDEXINGS {
                out.push(sample(format!("scatter {kind:?} {dtype} {}", case.0), |m| {
                    let (x, indices) = operand_and_indices(m, dtype, case);
                    // The updates have the type that the gather with the same indices has.
                    let rest = (0..case.1.len()).filter(|&d| !case.2.contains(&(d as i64))).map(|d| case.1[d]);
                    let dims: Dims = case.3.iter().copied().chain(rest).collect();
                    let updates = m.param(&TensorType::new(dtype, dims), SMALL);
                    m.b.scatter(kind, x, case.2, &indices, updates)
                }));
            }
        }
    }
    out
}

pub(super) fn barrier() -> Vec<Sample> {
    vec![sample("optimization_barrier", |m| {
        let x = m.param(&TensorType::new(DType::F32, [3]), Fill::Special);
        let y = m.param(&TensorType::new(DType::I64, [0]), SMALL);
        m.b.optimization_barrier(&[x, y])[0]
    })]
}

/// A fusion with two results over an elementwise body; kinds with structure are made by the fusion pass.
pub(super) fn fusion() -> Vec<Sample> {
    let make = |dtype: DType, dims: &'static [i64]| {
        let ty = TensorType::new(dtype, dims);
        sample(format!("fusion {ty}"), |m| {
            let mut body = Builder::new("body");
            let (x, y) = (body.parameter(ty.clone(), ParamKind::Tensor), body.parameter(ty.clone(), ParamKind::Tensor));
            let product = body.mul(x, y);
            let sum = body.add(product, x);
            let body = body.finish(vec![sum, product]).unwrap_or_default();
            let operands = [m.param(&ty, SMALL), m.param(&ty, SMALL)];
            let types = [ty.clone(), ty.clone()];
            m.b.op(OpKind::Fusion, Attrs::Fusion { kind: FusionKind::Loop, body: Arc::new(body) }, &operands, &types)
        })
    };
    vec![
        make(DType::F32, &[37]),
        make(DType::F64, &[3, 5]),
        make(DType::I64, &[4]),
        make(DType::F32, &[]),
        make(DType::F32, &[0]),
    ]
}
