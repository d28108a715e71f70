//! Sampling of images at the points of a grid (`GridSampler.h`).
use super::expr::Ex;
use super::{KEEP, Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{DType, OpKind, ScatterKind};

type Res<T> = Result<T, super::Unsupported>;

/// What happens outside the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// The static arguments, and how fast pixels pass when a grid coordinate moves.
struct Mode {
    nearest: bool,
    padding: Padding,
    align: bool,
}

impl Mode {
    /// Interpolation, padding and `align_corners` from argument `at` on.
    fn read(cx: &Cx, at: usize) -> Res<Mode> {
        let nearest = match cx.int(at)? {
            0 => false,
            1 => true,
            _ => return cx.decline("cubic sampling"),
        };
        let padding = match cx.int(at + 1)? {
            0 => Padding::Zeros,
            1 => Padding::Border,
            _ => Padding::Reflection,
        };
        Ok(Mode { nearest, padding, align: cx.bool(at + 2)? })
    }

    /// Pixel coordinate of a grid coordinate over `n` pixels, and d pixel / d grid.
    fn pixel<'a>(&self, c: Ex<'a>, n: i64) -> (Ex<'a>, Ex<'a>) {
        let n = n as f64;
        let (at, rate) = if self.align {
            ((c + 1.0) * ((n - 1.0) / 2.0), (n - 1.0) / 2.0)
        } else {
            (((c + 1.0) * n - 1.0) / 2.0, n / 2.0)
        };
        let rate = c.lit(rate);
        match self.padding {
            Padding::Zeros => (at, rate),
            Padding::Border => (clipped(at, n), inside(at, rate, n)),
            Padding::Reflection => {
                let (mirrored, rate) = self.reflected(at, rate, n);
                (clipped(mirrored, n), inside(mirrored, rate, n))
            }
        }
    }

    /// Reflected at the first and last pixel's centre (or outer edge, unless corners are aligned).
    fn reflected<'a>(&self, at: Ex<'a>, rate: Ex<'a>, n: f64) -> (Ex<'a>, Ex<'a>) {
        let (low, span) = if self.align { (0.0, n - 1.0) } else { (-0.5, n) };
        if span == 0.0 {
            return (at.lit(0.0), at.lit(0.0));
        }
        let from = at - low;
        let sign = at.lit(-1.0).when(from.lt(0.0), 1.0);
        let from = from.abs();
        let extra = from.rem(span);
        let odd = (from / span).floor().rem(2.0).eq(1.0);
        let at = (span - extra + low).when(odd, extra + low);
        (at, (-(rate * sign)).when(odd, rate * sign))
    }
}

fn clipped(at: Ex, n: f64) -> Ex {
    at.max(0.0).min(n - 1.0)
}

/// The rate where clipping to 0..n - 1 changes nothing, else 0.
fn inside<'a>(at: Ex<'a>, rate: Ex<'a>, n: f64) -> Ex<'a> {
    rate.lit(0.0).when(at.le(0.0).or(at.ge(n - 1.0)), rate)
}

/// A pixel next to each point: indices, weight, derivative of the weight by the pixel coordinates; all [N, Ho, Wo].
struct Corner<'a> {
    at: [Ex<'a>; 3],
    weight: Ex<'a>,
    slope: [Ex<'a>; 2],
}

/// Points in pixels and their rates for image `x` [N, C, H, W] and grid [N, Ho, Wo, (x, y)].
struct Points<'a> {
    y: (Ex<'a>, Ex<'a>),
    x: (Ex<'a>, Ex<'a>),
}

fn points<'a>(mode: &Mode, image: Ex<'a>, grid: Ex<'a>) -> Points<'a> {
    let coordinate = |k: i64| grid.slice(3, k, k + 1, 1).squeeze(3);
    Points { y: mode.pixel(coordinate(1), image.size(2)), x: mode.pixel(coordinate(0), image.size(3)) }
}

fn corners<'a>(cx: &Cx<'a>, mode: &Mode, image: Ex<'a>, p: &Points<'a>) -> Vec<Corner<'a>> {
    let (y, x) = (p.y.0, p.x.0);
    let batch = cx.iota(&y.dims(), 0);
    let whole = |v: Ex<'a>| if mode.nearest { v.un(OpKind::RoundEven) } else { v.floor() };
    let (y0, x0) = (whole(y), whole(x));
    let (fy, fx) = (y - y0, x - x0);
    let mut list = Vec::new();
    for (dy, dx) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
        if mode.nearest && (dy, dx) != (0.0, 0.0) {
            break;
        }
        let (py, px) = (y0 + dy, x0 + dx);
        let (h, w) = (image.size(2) as f64, image.size(3) as f64);
        let within = py.ge(0.0).and(py.lt(h)).and(px.ge(0.0)).and(px.lt(w));
        let part = |f: Ex<'a>, d: f64| if d == 0.0 { 1.0 - f } else { f };
        let (wy, wx) = if mode.nearest { (y.lit(1.0), x.lit(1.0)) } else { (part(fy, dy), part(fx, dx)) };
        let index = |v: Ex<'a>, n: f64| clipped(v, n).to(DType::I64);
        let zero = |e: Ex<'a>| e.when(within, 0.0);
        let sign = |d: f64| if d == 0.0 { -1.0 } else { 1.0 };
        list.push(Corner {
            at: [batch, index(py, h), index(px, w)],
            weight: zero(wy * wx),
            slope: [zero(wx * sign(dy)), zero(wy * sign(dx))],
        });
    }
    list
}

/// Channels last: what indexing by batch, row and column gives.
fn channels_last(x: Ex) -> Ex {
    x.permute(&[0, 2, 3, 1])
}

fn forward(cx: &mut Cx) -> Lowered {
    let mode = Mode::read(cx, 2)?;
    let image = cx.math(0)?;
    let grid = cx.x_as(1, image.dtype())?;
    let p = points(&mode, image, grid);
    let mut sum: Option<Ex> = None;
    for c in corners(cx, &mode, image, &p) {
        let term = image.gather(&[0, 2, 3], &c.at) * c.weight.unsqueeze(3);
        sum = Some(sum.map_or(term, |s| s + term));
    }
    match sum {
        Some(s) => one(s.permute(&[0, 3, 1, 2])),
        None => cx.decline("no corners"),
    }
}

/// (gradient of the image, of the grid).
fn backward(cx: &mut Cx) -> Lowered {
    let mode = Mode::read(cx, 3)?;
    let image = cx.math(1)?;
    let grid = cx.x_as(2, image.dtype())?;
    let dy = channels_last(cx.x_as(0, image.dtype())?);
    let p = points(&mode, image, grid);
    let mut dimage = image.lit(0.0);
    let mut slopes: Option<[Ex; 2]> = None;
    for c in corners(cx, &mode, image, &p) {
        if cx.wants(0) {
            dimage = dimage.scatter(ScatterKind::Add, &[0, 2, 3], &c.at, dy * c.weight.unsqueeze(3));
        }
        // How much of the gradient this pixel's weight carries.
        let pull = (image.gather(&[0, 2, 3], &c.at) * dy).sum(&[3]);
        let term = c.slope.map(|s| s * pull);
        slopes = Some(slopes.map_or(term, |s| [s[0] + term[0], s[1] + term[1]]));
    }
    let dgrid = match slopes {
        Some([sy, sx]) if !mode.nearest => {
            let parts = [(sx * p.x.1).unsqueeze(3), (sy * p.y.1).unsqueeze(3)];
            Ex::concat(&parts, 3).unwrap_or(grid)
        }
        _ => grid.lit(0.0),
    };
    Ok(vec![if cx.wants(0) { dimage.v } else { KEEP }, if cx.wants(1) { dgrid.v } else { KEEP }])
}

pub(super) static ROWS: &[Row] = rows![
    "grid_sampler_2d" "grid_sampler_2d.out" => forward;
    "grid_sampler_2d_backward" "grid_sampler_2d_backward.out" => backward;
];
