//! Resampling: each dimension reads a few *taps* (source element and weight) per target element, all constants.
use super::expr::Ex;
use super::pad::{add_by_table, read_by_table};
use super::{Lowered, Row, one};
use crate::Cx;

type Res<T> = Result<T, super::Unsupported>;

#[derive(Clone, Copy)]
enum Mode {
    Nearest,
    NearestExact,
    Linear { align_corners: bool },
    Cubic { align_corners: bool },
}

/// One tap: for each target element, which source element and how much of it.
struct Tap {
    table: Vec<i64>,
    weights: Vec<f64>,
}

/// Source elements per target element (`area_pixel_compute_scale`); `factor` is the user's scale factor.
fn step(n: i64, out: i64, align_corners: bool, factor: Option<f64>) -> f64 {
    match factor {
        _ if align_corners => {
            if out > 1 {
                (n - 1) as f64 / (out - 1) as f64
            } else {
                0.0
            }
        }
        Some(f) if f > 0.0 => 1.0 / f,
        _ => n as f64 / out as f64,
    }
}

/// Cubic convolution weights for the fraction `t`, a = -0.75.
fn cubic(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

fn taps(n: i64, out: i64, mode: Mode, factor: Option<f64>) -> Vec<Tap> {
    let make = |count: usize, f: &dyn Fn(i64) -> Vec<(i64, f64)>| {
        let rows: Vec<Vec<(i64, f64)>> = (0..out).map(f).collect();
        (0..count)
            .map(|k| Tap {
                table: rows.iter().map(|r| r[k].0.clamp(0, n - 1)).collect(),
                weights: rows.iter().map(|r| r[k].1).collect(),
            })
            .collect()
    };
    match mode {
        // Eager computes these places in f32.
        Mode::Nearest => {
            let s = step(n, out, false, factor) as f32;
            make(1, &|o| vec![((o as f32 * s).floor() as i64, 1.0)])
        }
        Mode::NearestExact => {
            let s = step(n, out, false, factor) as f32;
            make(1, &|o| vec![(((o as f32 + 0.5) * s).floor() as i64, 1.0)])
        }
        Mode::Linear { align_corners } => {
            let s = step(n, out, align_corners, factor);
            make(2, &|o| {
                let at = if align_corners { o as f64 * s } else { ((o as f64 + 0.5) * s - 0.5).max(0.0) };
                let i = (at.floor() as i64).min(n - 1);
                let t = (at - i as f64).clamp(0.0, 1.0);
                vec![(i, 1.0 - t), (i + 1, t)]
            })
        }
        Mode::Cubic { align_corners } => {
            let s = step(n, out, align_corners, factor);
            make(4, &|o| {
                let at = if align_corners { o as f64 * s } else { (o as f64 + 0.5) * s - 0.5 };
                let i = at.floor();
                cubic(at - i).into_iter().zip(-1..).map(|(w, k)| (i as i64 + k, w)).collect()
            })
        }
    }
}

fn is_plain(t: &Tap) -> bool {
    t.weights.iter().all(|&w| w == 1.0)
}

fn weights<'a>(cx: &Cx<'a>, t: &Tap, like: Ex<'a>, d: usize) -> Ex<'a> {
    cx.table_f64(&t.weights).to(like.dtype()).along(d, like.rank())
}

/// The mode given by argument `align` (for linear and cubic).
fn mode(cx: &Cx, kind: fn(bool) -> Mode, align: Option<usize>) -> Res<Mode> {
    Ok(kind(align.map_or(Ok(false), |i| cx.bool(i))?))
}

/// Scale factors from argument `at` on, one per spatial dimension.
fn factors(cx: &Cx, at: usize, n: usize) -> Res<Vec<Option<f64>>> {
    (at..at + n).map(|i| if cx.is_none(i) { Ok(None) } else { cx.double(i).map(Some) }).collect()
}

fn upsample(cx: &mut Cx, n: usize, kind: fn(bool) -> Mode, align: bool) -> Lowered {
    let mut x = cx.math(0)?;
    let out = cx.out(0)?.dims.clone();
    let mode = mode(cx, kind, align.then_some(2))?;
    if align && !x.dtype().is_float() {
        return cx.decline("weights on integers");
    }
    let factors = factors(cx, 2 + usize::from(align), n)?;
    for (k, f) in factors.into_iter().enumerate() {
        let d = x.rank() - n + k;
        if x.size(d) == out[d] && matches!(mode, Mode::Nearest) && f.is_none() {
            continue;
        }
        let mut sum: Option<Ex> = None;
        for t in taps(x.size(d), out[d], mode, f) {
            let mut part = read_by_table(cx, x, d, &t.table);
            if !is_plain(&t) {
                part = part * weights(cx, &t, part, d);
            }
            sum = Some(sum.map_or(part, |s| s + part));
        }
        x = sum.unwrap_or(x);
    }
    one(x)
}

fn upsample_backward(cx: &mut Cx, n: usize, kind: fn(bool) -> Mode, align: bool) -> Lowered {
    let mut g = cx.math(0)?;
    let sizes = cx.ints(2)?;
    let mode = mode(cx, kind, align.then_some(3))?;
    let factors = factors(cx, 3 + usize::from(align), n)?;
    for (k, f) in factors.into_iter().enumerate() {
        let d = g.rank() - n + k;
        let mut sum: Option<Ex> = None;
        for t in taps(sizes[d], g.size(d), mode, f) {
            let part = if is_plain(&t) { g } else { g * weights(cx, &t, g, d) };
            let part = add_by_table(cx, part, d, &t.table, sizes[d]);
            sum = Some(sum.map_or(part, |s| s + part));
        }
        g = sum.unwrap_or(g);
    }
    one(g)
}

const NEAREST: fn(bool) -> Mode = |_| Mode::Nearest;
const EXACT: fn(bool) -> Mode = |_| Mode::NearestExact;
const LINEAR: fn(bool) -> Mode = |align_corners| Mode::Linear { align_corners };
const CUBIC: fn(bool) -> Mode = |align_corners| Mode::Cubic { align_corners };

macro_rules! resampling {
    ($($name:literal $dims:literal $kind:ident $align:literal;)*) => {
        &[ $(
            Row { names: &[$name, concat!($name, ".out")], lower: |cx| upsample(cx, $dims, $kind, $align) },
            Row {
                names: &[concat!($name, "_backward"), concat!($name, "_backward.grad_input")],
                lower: |cx| upsample_backward(cx, $dims, $kind, $align),
            },
        )* ]
    };
}

pub(super) static ROWS: &[Row] = resampling![
    "upsample_nearest1d" 1 NEAREST false;
    "upsample_nearest2d" 2 NEAREST false;
    "upsample_nearest3d" 3 NEAREST false;
    "_upsample_nearest_exact1d" 1 EXACT false;
    "_upsample_nearest_exact2d" 2 EXACT false;
    "_upsample_nearest_exact3d" 3 EXACT false;
    "upsample_linear1d" 1 LINEAR true;
    "upsample_bilinear2d" 2 LINEAR true;
    "upsample_trilinear3d" 3 LINEAR true;
    "upsample_bicubic2d" 2 CUBIC true;
];
