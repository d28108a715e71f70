//! Convolutions and their gradients as one primitive with permuted dimension numbers (the forms of XLA's
//! `ConvolutionBackwardFilter` / `ConvolutionBackwardInput` expansions).
use super::expr::Ex;
use super::{KEEP, Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{Attrs, ConvDims, DType, Dims, OpKind, TensorType, WindowDim};

type Res<T> = Result<T, super::Unsupported>;

/// Static parameters of a convolution, one entry per spatial dimension.
struct Params {
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    output_padding: Dims,
    transposed: bool,
    groups: i64,
}

impl Params {
    /// Reads stride, padding, dilation, transposed, output_padding, groups from argument `at` on.
    fn read(cx: &Cx, at: usize, n: usize) -> Res<Params> {
        Ok(Params {
            stride: cx.ints_n(at, n, 1)?,
            padding: cx.ints_n(at + 1, n, 0)?,
            dilation: cx.ints_n(at + 2, n, 1)?,
            transposed: cx.bool(at + 3)?,
            output_padding: cx.ints_n(at + 4, n, 0)?,
            groups: cx.int_or(at + 5, 1)?,
        })
    }
}

/// What the dimensions of a tensor are: (batch, feature), with spatial dimensions from 2 on.
#[derive(Clone, Copy)]
struct Roles(i64, i64);

const BATCH_FIRST: Roles = Roles(0, 1);
const FEATURE_FIRST: Roles = Roles(1, 0);

fn convolve<'a>(
    (x, xr): (Ex<'a>, Roles),
    (w, wr): (Ex<'a>, Roles),
    out: Roles,
    window: Vec<WindowDim>,
    feature_groups: i64,
    batch_groups: i64,
    dtype: DType,
) -> Ex<'a> {
    let spatial: Dims = (2..x.rank() as i64).collect();
    let dims = ConvDims {
        input_batch: xr.0,
        input_feature: xr.1,
        input_spatial: spatial.clone(),
        // For kernels `batch` is the output and `feature` the input feature.
        kernel_output_feature: wr.0,
        kernel_input_feature: wr.1,
        kernel_spatial: spatial.clone(),
        output_batch: out.0,
        output_feature: out.1,
        output_spatial: spatial,
    };
    let attrs = Attrs::Conv { window, dims, feature_groups, batch_groups };
    x.with(|b| b.op(OpKind::Convolution, attrs, &[x.v, w.v], &[TensorType::scalar(dtype)]))
}

/// Correlation of x [N, C, ..] with w [O, C / groups, ..].
fn forward<'a>(x: Ex<'a>, w: Ex<'a>, p: &Params, dtype: DType) -> Ex<'a> {
    let window = (0..x.rank() - 2).map(|k| WindowDim {
        size: w.size(k + 2),
        stride: p.stride[k],
        pad_lo: p.padding[k],
        pad_hi: p.padding[k],
        window_dilation: p.dilation[k],
        ..WindowDim::UNIT
    });
    convolve((x, BATCH_FIRST), (w, BATCH_FIRST), BATCH_FIRST, window.collect(), p.groups, 1, dtype)
}

/// The adjoint of [`forward`] in its first operand: from y [N, O, ..] and w [O, C / groups, ..] to [N, C, out..].
fn adjoint<'a>(y: Ex<'a>, w: Ex<'a>, p: &Params, out: &[i64], dtype: DType) -> Ex<'a> {
    let window = (0..y.rank() - 2).map(|k| {
        let (size, n) = (w.size(k + 2), y.size(k + 2));
        let span = p.dilation[k] * (size - 1);
        let pad_lo = span - p.padding[k];
        WindowDim {
            size,
            stride: 1,
            pad_lo,
            pad_hi: out[k] + span - ((n - 1) * p.stride[k] + 1) - pad_lo,
            base_dilation: p.stride[k],
            window_dilation: p.dilation[k],
            reversed: true,
        }
    });
    let (w, roles) = if p.groups == 1 {
        (w, FEATURE_FIRST)
    } else {
        // [g * O', C', ..] to [g * C', O', ..]: the groups belong to the output features now.
        let d = w.dims();
        let (o, c) = (d[0] / p.groups, d[1]);
        let mut split: Dims = Dims::from_slice(&[p.groups, o, c]);
        split.extend_from_slice(&d[2..]);
        let mut merged: Dims = Dims::from_slice(&[p.groups * c, o]);
        merged.extend_from_slice(&d[2..]);
        (w.reshape(&split).swap(1, 2).reshape(&merged), BATCH_FIRST)
    };
    convolve((y, BATCH_FIRST), (w, roles), BATCH_FIRST, window.collect(), p.groups, 1, dtype)
}

/// The adjoint of [`forward`] in its second operand, of spatial sizes `kernel`: from x [N, C, ..] and dy [N, O, ..].
fn weight_gradient<'a>(x: Ex<'a>, dy: Ex<'a>, p: &Params, kernel: &[i64], dtype: DType) -> Ex<'a> {
    let window = (0..x.rank() - 2).map(|k| {
        let (n, o) = (x.size(k + 2), dy.size(k + 2));
        WindowDim {
            size: o,
            stride: p.dilation[k],
            pad_lo: p.padding[k],
            pad_hi: p.dilation[k] * (kernel[k] - 1) + (o - 1) * p.stride[k] + 1 - n - p.padding[k],
            window_dilation: p.stride[k],
            ..WindowDim::UNIT
        }
    });
    // x plays input with batch C and feature N, dy the kernel with output feature O and input feature N.
    convolve((x, FEATURE_FIRST), (dy, FEATURE_FIRST), FEATURE_FIRST, window.collect(), 1, p.groups, dtype)
}

/// Spatial sizes of a transposed convolution.
fn transposed_sizes(x: Ex, w: Ex, p: &Params) -> Dims {
    (0..x.rank() - 2)
        .map(|k| {
            (x.size(k + 2) - 1) * p.stride[k] - 2 * p.padding[k]
                + p.dilation[k] * (w.size(k + 2) - 1)
                + p.output_padding[k]
                + 1
        })
        .collect()
}

fn floats_of_rank_3(cx: &Cx, x: Ex) -> Res<()> {
    if x.rank() < 3 || !x.dtype().is_float() {
        return cx.decline("convolution of integers or without batch");
    }
    Ok(())
}

fn convolution(cx: &mut Cx) -> Lowered {
    let (x, w) = (cx.x(0)?, cx.x(1)?);
    floats_of_rank_3(cx, x)?;
    let p = Params::read(cx, 3, x.rank() - 2)?;
    let d = if cx.is_none(2) { x.dtype() } else { x.dtype().opmath() };
    let y = if p.transposed { adjoint(x, w, &p, &transposed_sizes(x, w, &p), d) } else { forward(x, w, &p, d) };
    match cx.opt_as(2, d)? {
        None => one(y),
        Some(bias) => one(y + bias.along(1, y.rank())),
    }
}

/// `shift`: 1 if the argument `bias_sizes` is there.
fn convolution_backward(cx: &mut Cx, shift: usize) -> Lowered {
    let (dy, x, w) = (cx.x(0)?, cx.x(1)?, cx.x(2)?);
    floats_of_rank_3(cx, x)?;
    let p = Params::read(cx, 3 + shift, x.rank() - 2)?;
    let d = x.dtype();
    let mut out = vec![KEEP; 3];
    if cx.wants(0) {
        out[0] = if p.transposed { forward(dy, w, &p, d) } else { adjoint(dy, w, &p, &x.dims()[2..], d) }.v;
    }
    if cx.wants(1) {
        let kernel = &w.dims()[2..];
        out[1] =
            if p.transposed { weight_gradient(dy, x, &p, kernel, d) } else { weight_gradient(x, dy, &p, kernel, d) }.v;
    }
    if cx.wants(2) {
        let dims: Dims = (0..dy.rank() as i64).filter(|&k| k != 1).collect();
        out[2] = dy.opmath().sum(&dims).v;
    }
    Ok(out)
}

pub(super) static ROWS: &[Row] = rows![
    "convolution" "convolution.out" "convolution_overrideable" "convolution_overrideable.out" "_convolution"
        "_convolution.out" => convolution;
    "convolution_backward" "convolution_backward.out" => |cx| convolution_backward(cx, 1);
    "convolution_backward_overrideable" "convolution_backward_overrideable.out" => |cx| convolution_backward(cx, 0);
];
