//! Layer, group, batch, RMS and weight normalisation and their gradients.
//!
//! All statistics are computed in the opmath type, variances as the mean of squared deviations.
use super::expr::Ex;
use super::{KEEP, Lowered, Row};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims};

type Res<T> = Result<T, super::Unsupported>;

/// Opmath type of the first tensor argument in `indices`.
fn opmath(cx: &mut Cx, i: usize) -> Res<DType> {
    Ok(cx.x(i)?.dtype().opmath())
}

/// Mean and 1 / sqrt(var + eps) along `dims`, of kept sizes, and the variance.
fn moments<'a>(x: Ex<'a>, dims: &[i64], eps: Ex<'a>) -> (Ex<'a>, Ex<'a>, Ex<'a>) {
    let n = count(x, dims);
    let mean = x.sum_keep(dims) / n;
    let deviation = x - mean;
    let var = (deviation * deviation).sum_keep(dims) / n;
    (mean, (var + eps).rsqrt(), var)
}

fn count(x: Ex, dims: &[i64]) -> f64 {
    dims.iter().map(|&d| x.size(d as usize) as f64).product()
}

/// dx of y = (x - mean) * rstd along `dims`, from the gradient `g` of y and `normal` = y.
fn center_gradient<'a>(g: Ex<'a>, normal: Ex<'a>, rstd: Ex<'a>, dims: &[i64]) -> Ex<'a> {
    let n = count(g, dims);
    (g - g.sum_keep(dims) / n - normal * ((g * normal).sum_keep(dims) / n)) * rstd
}

fn affine<'a>(y: Ex<'a>, weight: Option<Ex<'a>>, bias: Option<Ex<'a>>) -> Ex<'a> {
    let y = weight.map_or(y, |w| y * w);
    bias.map_or(y, |b| y + b)
}

/// Values of those results that are wanted.
fn wanted<'a, const N: usize>(cx: &Cx<'a>, results: [&dyn Fn() -> Ex<'a>; N]) -> Lowered {
    Ok(results.iter().enumerate().map(|(k, f)| if cx.wants(k) { f().v } else { KEEP }).collect())
}

/// The last `k` dimensions, and the ones before.
fn last_dims(x: Ex, k: usize) -> (Dims, Dims) {
    let split = x.rank() - k;
    ((split as i64..x.rank() as i64).collect(), (0..split as i64).collect())
}

fn layer_norm(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 0)?;
    let x = cx.x_as(0, d)?;
    let (inner, _) = last_dims(x, cx.ints(1)?.len());
    let eps = cx.x_as(4, d)?;
    let (mean, rstd, _) = moments(x, &inner, eps);
    let (w, b) = (cx.opt_as(2, d)?, cx.opt_as(3, d)?);
    let y = affine((x - mean) * rstd, w, b);
    Ok(vec![y.v, mean.v, rstd.v])
}

fn layer_norm_backward(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 1)?;
    let (dy, x) = (cx.x_as(0, d)?, cx.x_as(1, d)?);
    let (mean, rstd, w) = (cx.x_as(3, d)?, cx.x_as(4, d)?, cx.opt_as(5, d)?);
    let (inner, outer) = last_dims(x, cx.ints(2)?.len());
    let normal = (x - mean) * rstd;
    wanted(
        cx,
        [&|| center_gradient(affine(dy, w, None), normal, rstd, &inner), &|| (dy * normal).sum(&outer), &|| {
            dy.sum(&outer)
        }],
    )
}

fn rms_norm(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 0)?;
    let x = cx.x_as(0, d)?;
    let (inner, _) = last_dims(x, cx.ints(1)?.len());
    let epsilon = if d == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let eps = cx.num_or(3, d, epsilon)?;
    let rstd = ((x * x).sum_keep(&inner) / count(x, &inner) + eps).rsqrt();
    let y = affine(x * rstd, cx.opt_as(2, d)?, None);
    Ok(vec![y.v, rstd.v])
}

fn rms_norm_backward(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 1)?;
    let (dy, x, rstd, w) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.x_as(3, d)?, cx.opt_as(4, d)?);
    let (inner, outer) = last_dims(x, cx.ints(2)?.len());
    let normal = x * rstd;
    let g = affine(dy, w, None);
    wanted(
        cx,
        [&|| (g - normal * ((g * normal).sum_keep(&inner) / count(x, &inner))) * rstd, &|| (dy * normal).sum(&outer)],
    )
}

/// x of sizes [N, C, ..] as [N, groups, C / groups, rest].
fn grouped<'a>(x: Ex<'a>, n: i64, c: i64, groups: i64) -> Ex<'a> {
    let rest = if n * c == 0 { 0 } else { x.numel() / (n * c) };
    x.reshape(&[n, groups, c / groups.max(1), rest])
}

/// A per-channel tensor beside a grouped one.
fn per_channel<'a>(w: Option<Ex<'a>>, c: i64, groups: i64) -> Option<Ex<'a>> {
    w.map(|w| w.reshape(&[1, groups, c / groups.max(1), 1]))
}

fn group_norm(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 0)?;
    let x = cx.x_as(0, d)?;
    let (n, c, groups) = (cx.int(3)?, cx.int(4)?, cx.int(6)?);
    let eps = cx.x_as(7, d)?;
    let g = grouped(x, n, c, groups);
    let (mean, rstd, _) = moments(g, &[2, 3], eps);
    let (w, b) = (cx.opt_as(1, d)?, cx.opt_as(2, d)?);
    let y = affine((g - mean) * rstd, per_channel(w, c, groups), per_channel(b, c, groups));
    Ok(vec![y.reshape(&x.dims()).v, mean.reshape(&[n, groups]).v, rstd.reshape(&[n, groups]).v])
}

fn group_norm_backward(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 1)?;
    let (n, c, groups) = (cx.int(5)?, cx.int(6)?, cx.int(8)?);
    let (x, dy) = (cx.x_as(1, d)?, cx.x_as(0, d)?);
    let (gx, gy) = (grouped(x, n, c, groups), grouped(dy, n, c, groups));
    let stat = [n, groups, 1, 1];
    let (mean, rstd) = (cx.x_as(2, d)?.reshape(&stat), cx.x_as(3, d)?.reshape(&stat));
    let w = per_channel(cx.opt_as(4, d)?, c, groups);
    let normal = (gx - mean) * rstd;
    wanted(
        cx,
        [
            &|| center_gradient(affine(gy, w, None), normal, rstd, &[2, 3]).reshape(&x.dims()),
            &|| (gy * normal).sum(&[0, 3]).reshape(&[c]),
            &|| gy.sum(&[0, 3]).reshape(&[c]),
        ],
    )
}

/// All dimensions but the channels'.
fn batch_dims(x: Ex) -> Dims {
    (0..x.rank() as i64).filter(|&d| d != 1).collect()
}

/// What batch normalisation makes: the output, batch mean and 1 / std (0-sized in evaluation if so predicted), and
/// the new running mean and variance where they are given and trained.
struct BatchNorm<'a> {
    out: Ex<'a>,
    saved: [Ex<'a>; 2],
    running: [Option<Ex<'a>>; 2],
}

/// Arguments: input, weight, bias at 0..3; running statistics at 3 and 4 if `stats`; then momentum and eps.
fn batch_norm_of<'a>(cx: &mut Cx<'a>, training: bool, stats: bool, momentum: usize) -> Res<BatchNorm<'a>> {
    let d = opmath(cx, 0)?;
    let x = cx.x_as(0, d)?;
    let eps = cx.x_as(momentum + 1, d)?;
    let (w, b) = (cx.opt_as(1, d)?, cx.opt_as(2, d)?);
    let channels = |v: Ex<'a>| v.along(1, x.rank());
    let old = if stats { [cx.opt_as(3, d)?, cx.opt_as(4, d)?] } else { [None, None] };
    let (w, b) = (w.map(channels), b.map(channels));
    if !training {
        let [Some(mean), Some(var)] = old else { return cx.decline("evaluation without running statistics") };
        let rstd = (var + eps).rsqrt();
        let out = affine((x - channels(mean)) * channels(rstd), w, b);
        let saved = match cx.out(1) {
            Ok(t) if t.numel() == 0 => [cx.fill(t.dtype, &t.dims, 0.0); 2],
            _ => [mean, rstd],
        };
        return Ok(BatchNorm { out, saved, running: [None, None] });
    }
    let dims = batch_dims(x);
    let n = count(x, &dims);
    let (mean, rstd, var) = moments(x, &dims, eps);
    let out = affine((x - mean) * rstd, w, b);
    let (mean, rstd, unbiased) = (mean.flatten(), rstd.flatten(), (var * (n / (n - 1.0))).flatten());
    let m = cx.x_as(momentum, d)?;
    let moved = |old: Option<Ex<'a>>, new: Ex<'a>| old.map(|old| m * new + (1.0 - m) * old);
    let running = [moved(old[0], mean), moved(old[1], unbiased)];
    Ok(BatchNorm { out, saved: [mean, rstd], running })
}

/// Arguments 3 and 4 are the running statistics and written in training.
fn batch_norm(cx: &mut Cx) -> Lowered {
    let training = cx.bool(5)?;
    let r = batch_norm_of(cx, training, true, 6)?;
    let mut out = vec![r.out.v, r.saved[0].v, r.saved[1].v];
    // One result for each running statistic that is there.
    out.extend((3..5).filter(|&i| !cx.is_none(i)).map(|i| r.running[i - 3].map_or(KEEP, |e| e.v)));
    Ok(out)
}

fn batch_norm_no_stats(cx: &mut Cx) -> Lowered {
    let training = cx.bool(3)?;
    let r = batch_norm_of(cx, training, false, 4)?;
    Ok(vec![r.out.v, r.saved[0].v, r.saved[1].v])
}

fn batch_norm_functional(cx: &mut Cx) -> Lowered {
    let training = cx.bool(5)?;
    let r = batch_norm_of(cx, training, true, 6)?;
    let old = [cx.x(3)?, cx.x(4)?];
    let new = [r.running[0].unwrap_or(old[0]), r.running[1].unwrap_or(old[1])];
    Ok(vec![r.out.v, r.saved[0].v, r.saved[1].v, new[0].v, new[1].v])
}

fn batch_norm_no_training(cx: &mut Cx) -> Lowered {
    let r = batch_norm_of(cx, false, true, 5)?;
    Ok(vec![r.out.v, r.saved[0].v, r.saved[1].v])
}

fn batch_norm_backward(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 1)?;
    let (dy, x, w) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.opt_as(2, d)?);
    let train = cx.bool(7)?;
    let (mean, rstd) = if train {
        (cx.x_as(5, d)?, cx.x_as(6, d)?)
    } else {
        (cx.x_as(3, d)?, (cx.x_as(4, d)? + cx.x_as(8, d)?).rsqrt())
    };
    let channels = |v: Ex<'_>| v.along(1, x.rank()).v;
    let along = |v: Ex<'_>| Ex::new(x.ctx(), channels(v));
    let (mean, rstd, w) = (along(mean), along(rstd), w.map(along));
    let dims = batch_dims(x);
    let normal = (x - mean) * rstd;
    let g = affine(dy, w, None);
    wanted(
        cx,
        [
            &|| if train { center_gradient(g, normal, rstd, &dims) } else { g * rstd },
            &|| (dy * normal).sum(&dims),
            &|| dy.sum(&dims),
        ],
    )
}

/// All dimensions but argument `dim`'s.
fn other_dims(x: Ex, dim: i64) -> Dims {
    (0..x.rank() as i64).filter(|&d| d != dim).collect()
}

fn weight_norm(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 0)?;
    let (v, g) = (cx.x_as(0, d)?, cx.x_as(1, d)?);
    let dims = other_dims(v, cx.dim(2, v.rank())? as i64);
    let norms = (v * v).sum_keep(&dims).sqrt();
    Ok(vec![(v * (g / norms)).v, norms.v])
}

fn weight_norm_backward(cx: &mut Cx) -> Lowered {
    let d = opmath(cx, 1)?;
    let (dw, v, g, norms) = (cx.x_as(0, d)?, cx.x_as(1, d)?, cx.x_as(2, d)?, cx.x_as(3, d)?);
    let dims = other_dims(v, cx.dim(4, v.rank())? as i64);
    let sums = (dw * v).sum_keep(&dims);
    let dv = (g / norms) * (dw - v * (sums / (norms * norms)));
    Ok(vec![dv.v, (sums / norms).v])
}

pub(super) static ROWS: &[Row] = rows![
    "native_layer_norm" "native_layer_norm.out" => layer_norm;
    "native_layer_norm_backward" "native_layer_norm_backward.out" => layer_norm_backward;
    "_fused_rms_norm" => rms_norm;
    "_fused_rms_norm_backward" => rms_norm_backward;
    "native_group_norm" "native_group_norm.out" => group_norm;
    "native_group_norm_backward" "native_group_norm_backward.out" => group_norm_backward;
    "native_batch_norm" "_native_batch_norm_legit" => batch_norm;
    "_native_batch_norm_legit.no_stats" "_native_batch_norm_legit.no_stats_out" => batch_norm_no_stats;
    "_native_batch_norm_legit_functional" => batch_norm_functional;
    "_native_batch_norm_legit_no_training" "_native_batch_norm_legit_no_training.out" => batch_norm_no_training;
    "native_batch_norm_backward" "native_batch_norm_backward.out" => batch_norm_backward;
    "_weight_norm_interface" "_weight_norm_interface.out" => weight_norm;
    "_weight_norm_interface_backward" "_weight_norm_interface_backward.out" => weight_norm_backward;
];
