//! Samples of matrix products, convolutions and attention.
use super::Sample;
use super::maker::{Fill, Maker, SMALL, sample};
use crate::ir::{ConvDims, DType, Dims, DotDims, OpKind, TensorType, Value, WindowDim};

const UNITS: Fill = Fill::Range(-1.0, 1.0);

fn dims(d: &[i64]) -> Dims {
    Dims::from_slice(d)
}

pub(super) fn dot_general() -> Vec<Sample> {
    let numbers = |lb: &[i64], rb: &[i64], lc: &[i64], rc: &[i64]| DotDims {
        lhs_batch: dims(lb),
        rhs_batch: dims(rb),
        lhs_contract: dims(lc),
        rhs_contract: dims(rc),
    };
    let cases = [
        ("matrix", vec![5, 7], vec![7, 3], numbers(&[], &[], &[1], &[0])),
        ("transposed right", vec![17, 33], vec![35, 33], numbers(&[], &[], &[1], &[1])),
        ("transposed left", vec![7, 5], vec![7, 3], numbers(&[], &[], &[0], &[0])),
        ("vector", vec![5, 7], vec![7], numbers(&[], &[], &[1], &[0])),
        ("inner", vec![7], vec![7], numbers(&[], &[], &[0], &[0])),
        ("outer", vec![5], vec![3], numbers(&[], &[], &[], &[])),
        ("batch", vec![3, 5, 7], vec![3, 7, 2], numbers(&[0], &[0], &[2], &[1])),
        ("two batches, in the middle", vec![5, 2, 7, 3], vec![2, 3, 4, 7], numbers(&[1, 3], &[0, 1], &[2], &[3])),
        ("two contracted", vec![5, 2, 7], vec![7, 3, 2], numbers(&[], &[], &[1, 2], &[2, 0])),
        ("3-d by 2-d", vec![2, 5, 7], vec![7, 3], numbers(&[], &[], &[2], &[0])),
        ("no terms", vec![5, 0], vec![0, 3], numbers(&[], &[], &[1], &[0])),
        ("no rows", vec![0, 7], vec![7, 3], numbers(&[], &[], &[1], &[0])),
        ("one", vec![1, 1], vec![1, 1], numbers(&[], &[], &[1], &[0])),
    ];
    let mut out = Vec::new();
    let types = [
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
        (DType::BF16, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F16, DType::F16),
        (DType::I64, DType::I64),
        (DType::I32, DType::I32),
    ];
    for (dtype, result) in types {
        for (name, x, y, numbers) in &cases {
            out.push(sample(format!("dot_general {dtype} to {result} {name}"), |m| {
                let x = m.param(&TensorType::new(dtype, x), UNITS);
                let y = m.param(&TensorType::new(dtype, y), UNITS);
                m.b.dot_general(x, y, numbers.clone(), result)
            }));
        }
    }
    out
}

/// Dimension numbers of `spatial` dimensions: batch and features first, or last (as channels_last has them).
fn conv_dims(spatial: usize, last: bool) -> ConvDims {
    let n = spatial as i64;
    if last {
        let space: Dims = (1..=n).collect();
        return ConvDims {
            input_batch: 0,
            input_feature: n + 1,
            input_spatial: space.clone(),
            kernel_input_feature: n,
            kernel_output_feature: n + 1,
            kernel_spatial: (0..n).collect(),
            output_batch: 0,
            output_feature: n + 1,
            output_spatial: space,
        };
    }
    ConvDims::channels_first(spatial)
}

/// A convolution to sample: sizes are batch, input features, output features, and the spatial ones.
struct Conv {
    name: &'static str,
    batch: i64,
    features: (i64, i64),
    space: Vec<i64>,
    window: Vec<WindowDim>,
    groups: (i64, i64),
}

fn convs() -> Vec<Conv> {
    let w = |size, stride, pad| WindowDim { size, stride, pad_lo: pad, pad_hi: pad, ..WindowDim::UNIT };
    let conv = |name, batch, features, space: &[i64], window: &[WindowDim], groups| Conv {
        name,
        batch,
        features,
        space: space.to_vec(),
        window: window.to_vec(),
        groups,
    };
    vec![
        conv("1-d", 2, (3, 4), &[9], &[w(3, 1, 0)], (1, 1)),
        conv("2-d padded", 1, (3, 5), &[6, 7], &[w(3, 1, 1), w(3, 1, 1)], (1, 1)),
        conv("2-d strided", 2, (2, 3), &[7, 8], &[w(3, 2, 1), w(2, 3, 0)], (1, 1)),
        conv("1x1", 2, (5, 3), &[4, 3], &[w(1, 1, 0), w(1, 1, 0)], (1, 1)),
        conv("3-d", 1, (2, 2), &[4, 3, 5], &[w(2, 1, 0), w(2, 1, 1), w(3, 2, 0)], (1, 1)),
        conv("grouped", 2, (4, 6), &[5], &[w(3, 1, 1)], (2, 1)),
        conv("depthwise", 1, (4, 8), &[5, 5], &[w(3, 1, 1), w(3, 1, 1)], (4, 1)),
        conv("batch groups", 4, (3, 6), &[5], &[w(2, 1, 0)], (1, 2)),
        conv("dilated window", 1, (2, 3), &[9], &[WindowDim { window_dilation: 2, ..w(3, 1, 1) }], (1, 1)),
        conv("transposed", 1, (2, 3), &[4], &[WindowDim { base_dilation: 2, reversed: true, ..w(3, 1, 2) }], (1, 1)),
        conv("negative padding", 1, (2, 3), &[7], &[WindowDim { pad_lo: -1, pad_hi: -2, ..w(2, 1, 0) }], (1, 1)),
        conv("uneven padding", 1, (2, 3), &[5], &[WindowDim { pad_lo: 0, pad_hi: 3, ..w(3, 2, 0) }], (1, 1)),
        // Enough features for Winograd's form, forward, as an input gradient and as a weight gradient (whose features are
        // images).
        conv("3x3 of many features", 2, (16, 20), &[6, 7], &[w(3, 1, 1), w(3, 1, 1)], (1, 1)),
        conv("3x3 backwards", 2, (20, 16), &[6, 7], &[WindowDim { reversed: true, ..w(3, 1, 1) }; 2], (1, 1)),
        conv("3x3 weight gradient", 16, (6, 20), &[6, 7], &[w(6, 1, 1), w(7, 1, 1)], (1, 1)),
        conv("empty batch", 0, (2, 3), &[5], &[w(3, 1, 1)], (1, 1)),
    ]
}

pub(super) fn convolution() -> Vec<Sample> {
    let mut out = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for (case, last) in convs().into_iter().flat_map(|c| [(c, false)]).chain(convs().into_iter().map(|c| (c, true)))
        {
            let order = if last { "channels last" } else { "channels first" };
            out.push(sample(format!("convolution {dtype} {} {order}", case.name), |m| {
                let numbers = conv_dims(case.space.len(), last);
                let mut x = Dims::from_elem(0, case.space.len() + 2);
                let mut kernel = x.clone();
                x[numbers.input_batch as usize] = case.batch;
                x[numbers.input_feature as usize] = case.features.0;
                kernel[numbers.kernel_input_feature as usize] = case.features.0 / case.groups.0;
                kernel[numbers.kernel_output_feature as usize] = case.features.1;
                for (s, (&n, w)) in case.space.iter().zip(&case.window).enumerate() {
                    x[numbers.input_spatial[s] as usize] = n;
                    kernel[numbers.kernel_spatial[s] as usize] = w.size;
                }
                let x = m.param(&TensorType::new(dtype, x), UNITS);
                let kernel = m.param(&TensorType::new(dtype, kernel), UNITS);
                m.b.convolution(x, kernel, case.window.clone(), numbers, case.groups.0, case.groups.1)
            }));
        }
    }
    out
}

/// q, k, v of `sizes` (batch, heads, queries, keys, depth, depth of values), the scale, and a bias of sizes `bias`.
fn heads(m: &mut Maker, dtype: DType, sizes: [i64; 6], bias: Option<&[i64]>) -> ([Value; 3], Value, Option<Value>) {
    let [b, h, t, s, e, f] = sizes;
    let qkv = [[b, h, t, e], [b, h, s, e], [b, h, s, f]].map(|d| m.param(&TensorType::new(dtype, d), SMALL));
    let scale = m.scalar_f64(if e > 0 { 1.0 / (e as f64).sqrt() } else { 1.0 });
    let bias = bias.map(|d| m.param(&TensorType::new(dtype, d), UNITS));
    (qkv, scale, bias)
}

pub(super) fn attention(kind: OpKind) -> Vec<Sample> {
    type Case = (&'static str, [i64; 6], Option<&'static [i64]>);
    let cases: [Case; 9] = [
        ("square", [2, 3, 5, 5, 4, 4], None),
        ("more keys", [1, 2, 3, 7, 4, 6], None),
        ("more queries", [1, 2, 7, 3, 4, 4], None),
        ("bias", [2, 2, 5, 4, 3, 3], Some(&[2, 2, 5, 4])),
        ("broadcast bias", [2, 2, 5, 4, 3, 3], Some(&[5, 4])),
        ("bias per key", [2, 2, 5, 4, 3, 3], Some(&[2, 1, 1, 4])),
        ("no queries", [1, 2, 0, 3, 4, 4], None),
        // Several vectors of queries and blocks of keys, neither full.
        ("long", [1, 2, 37, 70, 20, 12], None),
        ("long with bias", [1, 2, 37, 70, 12, 20], Some(&[37, 70])),
    ];
    let mut out = Vec::new();
    for (dtype, causal) in [DType::F32, DType::F64, DType::BF16].into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for (name, sizes, bias) in cases {
            out.push(sample(format!("{kind} {dtype} causal={causal} {name}"), |m| {
                let (qkv, scale, bias) = heads(m, dtype, sizes, bias);
                let [b, h, t, _, _, f] = sizes;
                // Parameters come before all instructions.
                let backward = kind == OpKind::AttentionBackward;
                let dout = backward.then(|| m.param(&TensorType::new(dtype, [b, h, t, f]), UNITS));
                let (o, lse) = m.b.attention(qkv, scale, bias, causal);
                let Some(dout) = dout else { return o };
                m.b.attention_backward([qkv[0], qkv[1], qkv[2], scale, o, lse, dout], bias, causal)[0]
            }));
        }
    }
    out
}
