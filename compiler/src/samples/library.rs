//! Samples of reductions, windows, sorts and random bits.
use super::Sample;
use super::maker::{Fill, SMALL, sample};
use crate::ir::{CumKind, DType, OpKind, ReduceKind, TensorType, WindowDim};

/// Types with separate code in reductions.
const REDUCED: [DType; 8] =
    [DType::Bool, DType::U8, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64];

/// Numbers whose products stay small; ordinary ones otherwise.
fn fill(kind: ReduceKind) -> Fill {
    if kind == ReduceKind::Prod { Fill::Range(-1.5, 1.5) } else { SMALL }
}

pub(super) fn reduce() -> Vec<Sample> {
    let shapes: [(&'static [i64], &'static [i64]); 9] = [
        (&[37], &[0]),
        (&[5, 33], &[1]),
        (&[33, 5], &[0]),
        (&[3, 4, 5], &[1]),
        (&[3, 4, 5], &[0, 2]),
        (&[2, 3, 4], &[0, 1, 2]),
        (&[3, 1], &[1]),
        (&[3, 0], &[1]),
        (&[0, 3], &[1]),
    ];
    use ReduceKind as R;
    let mut out = Vec::new();
    for kind in [R::Sum, R::Prod, R::Max, R::Min, R::And, R::Or] {
        for dtype in REDUCED {
            if matches!(kind, R::And | R::Or) && dtype != DType::Bool {
                continue;
            }
            for (dims, axes) in shapes {
                let ty = TensorType::new(dtype, dims);
                out.push(sample(format!("reduce {kind:?} {ty} over {axes:?}"), |m| {
                    let x = m.param(&ty, fill(kind));
                    m.b.reduce(kind, x, axes)
                }));
            }
            if dtype.is_float() {
                out.push(sample(format!("reduce {kind:?} {dtype} special"), |m| {
                    let x = m.param(&TensorType::new(dtype, [18, 1, 2]), Fill::Special);
                    m.b.reduce(kind, x, &[1, 2])
                }));
            }
        }
    }
    out
}

pub(super) fn arg_reduce() -> Vec<Sample> {
    let mut out = Vec::new();
    for (max, dtype) in [true, false].into_iter().flat_map(|max| REDUCED.map(|d| (max, d))) {
        for (dims, dim) in [(&[37][..], 0), (&[5, 33], 1), (&[33, 5], 0), (&[3, 4, 5], 1), (&[0, 4], 1)] {
            let ty = TensorType::new(dtype, dims);
            out.push(sample(format!("arg_reduce max={max} {ty} along {dim}"), |m| {
                // Few different numbers: ties.
                let x = m.param(&ty, SMALL);
                m.b.arg_reduce(max, x, dim)
            }));
        }
        out.push(sample(format!("arg_reduce max={max} {dtype} special"), |m| {
            let x = m.param(&TensorType::new(dtype, [3, 18]), Fill::Special);
            m.b.arg_reduce(max, x, 1)
        }));
    }
    out
}

pub(super) fn cumulative() -> Vec<Sample> {
    use CumKind as C;
    let mut out = Vec::new();
    for kind in [C::Sum, C::Prod, C::Max, C::Min, C::LogSumExp] {
        for dtype in REDUCED {
            if kind == C::LogSumExp && !dtype.is_float() {
                continue;
            }
            let fill = if kind == C::Prod { Fill::Range(-1.5, 1.5) } else { SMALL };
            for (dims, dim) in [(&[37][..], 0), (&[3, 17], 1), (&[17, 3], 0), (&[2, 4, 3], 1), (&[2, 0], 1)] {
                let ty = TensorType::new(dtype, dims);
                out.push(sample(format!("cumulative {kind:?} {ty} along {dim}"), |m| {
                    let x = m.param(&ty, fill);
                    m.b.cumulative(kind, x, dim)
                }));
            }
            out.push(sample(format!("cumulative {kind:?} {dtype} special"), |m| {
                let x = m.param(&TensorType::new(dtype, [18, 2]), Fill::Special);
                m.b.cumulative(kind, x, 1)
            }));
        }
    }
    out
}

/// A window of `size` with `stride` and equal padding on both sides.
fn dim(size: i64, stride: i64, pad: i64) -> WindowDim {
    WindowDim { size, stride, pad_lo: pad, pad_hi: pad, ..WindowDim::UNIT }
}

pub(super) fn windows(kind: OpKind) -> Vec<Sample> {
    let unit = WindowDim::UNIT;
    let cases: [(&str, Vec<i64>, Vec<WindowDim>); 8] = [
        ("2x2", vec![2, 3, 6, 8], vec![unit, unit, dim(2, 2, 0), dim(2, 2, 0)]),
        ("3x3 padded", vec![1, 2, 7, 5], vec![unit, unit, dim(3, 2, 1), dim(3, 1, 1)]),
        ("channels last", vec![2, 7, 5, 3], vec![unit, dim(3, 2, 1), dim(2, 2, 0), unit]),
        ("dilated", vec![2, 11], vec![unit, WindowDim { window_dilation: 3, ..dim(3, 2, 1) }]),
        ("holes", vec![2, 5], vec![unit, WindowDim { base_dilation: 2, ..dim(3, 1, 1) }]),
        ("uneven and negative padding", vec![9], vec![WindowDim { pad_lo: -1, pad_hi: 2, ..dim(3, 2, 0) }]),
        ("does not fit", vec![2, 2], vec![unit, dim(3, 1, 0)]),
        ("3-d", vec![1, 4, 5, 3], vec![unit, dim(2, 1, 0), dim(3, 2, 1), dim(2, 2, 1)]),
    ];
    use ReduceKind as R;
    let (kinds, types): (&[R], &[DType]) = if kind == OpKind::ReduceWindow {
        (&[R::Sum, R::Prod, R::Max, R::Min], &[DType::I32, DType::BF16, DType::F32, DType::F64])
    } else {
        (&[R::Max], &[DType::U8, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64])
    };
    let mut out = Vec::new();
    for (&how, &dtype) in kinds.iter().flat_map(|h| types.iter().map(move |d| (h, d))) {
        for (name, dims, window) in &cases {
            out.push(sample(format!("{kind} {how:?} {dtype} {name}"), |m| {
                let x = m.param(&TensorType::new(dtype, dims), fill(how));
                if kind == OpKind::ReduceWindow {
                    m.b.reduce_window(how, x, window.clone())
                } else {
                    m.b.max_pool_with_index(x, window.clone()).0
                }
            }));
        }
        if dtype.is_float() {
            out.push(sample(format!("{kind} {how:?} {dtype} special"), |m| {
                let x = m.param(&TensorType::new(dtype, [20]), Fill::Special);
                if kind == OpKind::ReduceWindow {
                    m.b.reduce_window(how, x, vec![dim(2, 1, 1)])
                } else {
                    m.b.max_pool_with_index(x, vec![dim(2, 1, 1)]).0
                }
            }));
        }
    }
    out
}

pub(super) fn sort() -> Vec<Sample> {
    let mut out = Vec::new();
    for (descending, dtype) in [false, true].into_iter().flat_map(|down| DType::ALL.map(|d| (down, d))) {
        for (dims, dim) in [(&[37][..], 0), (&[3, 17], 1), (&[17, 3], 0), (&[2, 5, 3], 1), (&[3, 0], 1), (&[0, 3], 1)] {
            let ty = TensorType::new(dtype, dims);
            out.push(sample(format!("sort descending={descending} {ty} along {dim}"), |m| {
                let x = m.param(&ty, Fill::Special);
                m.b.sort(x, dim, descending).0
            }));
        }
    }
    out
}

pub(super) fn top_k() -> Vec<Sample> {
    let mut out = Vec::new();
    for (largest, dtype) in [false, true].into_iter().flat_map(|l| REDUCED.map(|d| (l, d))) {
        for (dims, k) in [(&[37][..], 5), (&[3, 17], 17), (&[3, 17], 1), (&[2, 4], 0), (&[0, 4], 2)] {
            let ty = TensorType::new(dtype, dims);
            out.push(sample(format!("top_k largest={largest} k={k} {ty}"), |m| {
                let x = m.param(&ty, Fill::Special);
                m.b.top_k(x, k, largest).0
            }));
        }
    }
    out
}

pub(super) fn rng_bits() -> Vec<Sample> {
    let cases: [(i64, i64, &[i64], u32); 6] = [
        (0, 0, &[37], 0),
        (-1, i64::MAX, &[5], 3),
        (0x1234_5678_9abc_def0, 0xffff_fffe, &[3, 5], 1),
        (7, -2, &[4], 2),
        (7, 0, &[], 0),
        (7, 0, &[0], 0),
    ];
    cases
        .into_iter()
        .map(|(seed, offset, dims, word)| {
            sample(format!("rng_bits seed={seed} offset={offset} {dims:?} word={word}"), |m| {
                let (seed, offset) = (m.scalar_i64(seed), m.scalar_i64(offset));
                m.b.rng_bits(seed, offset, dims, word)
            })
        })
        .collect()
}
