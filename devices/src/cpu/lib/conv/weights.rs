//! Weight gradients whose images have contiguous rows (channels first): dot products of rows.
//!
//! As a convolution the gradient has the images as features and the output's gradient as window. Each number is a dot
//! product over all output positions of all images, and positions are neighbours in memory: tiles of 4 output features ×
//! 3 taps multiply vectors of the gradient with vectors of padded planes ([`super::planes`]) and add lanes up at the end.
//! Nothing is transposed, and what is read is read in order.

use super::planes::{Axis, Planes};
use super::tile::{COLS, ROWS, tiles};
use super::{Conv, Geometry};
use crate::cpu::lib::copy::copy;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::gemm::scratch;
use crate::cpu::lib::simd;
use crate::cpu::lib::view::{LibError, Ptr, View};
use crate::cpu::pool;

/// Numbers of each dot product before its lanes are added up: the four rows of the gradient stay in the L1 cache.
const NUMBERS: usize = 1024;
/// Numbers of the gradient's rows and of a plane together, where a part of the sum has several images.
const BOTH: usize = 6 << 10;
/// Fewest input features of a task if it is one of many.
const FEATURES: usize = 8;

/// Whether this form is the one to use.
pub(super) fn fits(c: &Conv, g: &Geometry) -> bool {
    let [_, y, x] = &g.dims;
    c.output.elem != Elem::F64
        && g.groups == 1
        && g.is_flat()
        && g.dims.iter().all(|d| d.lhs_dilation == 1 && !d.reverse)
        && (g.in_spatial[2] == 1 || x.input == 1)
        && (g.w_spatial[2] == 1 || x.window == 1)
        && c.input.minor != 1
        && c.weight.minor != 1
        && x.window >= 4
        && x.window * y.window > x.output * y.output
        && x.output * y.output <= 128
}

/// # Safety
/// The contract of `conv`; [`fits`].
pub(super) unsafe fn run(c: &Conv, g: &Geometry) -> Result<(), LibError> {
    let [_, y, x] = &g.dims;
    let tiles = tiles(x.window);
    let lanes = tiles.lanes;
    let (images, features, outputs) = (c.in_features, c.batch, c.out_features);
    let planes = Planes::new(Axis::window(y), Axis::window(x), lanes);
    let (full, parts) = (x.window / lanes, usize::from(x.window % lanes != 0));
    let tail = x.window % lanes;
    let vectors = full + parts;
    // A part of the sum: rows of an image, or several whole images.
    let steps = NUMBERS / lanes;
    let rows = y.window.div_ceil(y.window.div_ceil((steps / vectors).max(1)));
    let plane = planes.plane(rows);
    let group = if rows < y.window {
        1
    } else {
        (steps / (rows * vectors)).min(BOTH / (ROWS * rows * vectors * lanes + plane)).clamp(1, images)
    };
    let taps = g.positions;
    // The gradient where it lies, or a copy of four features' rows: converted, or because images a multiple of pages apart
    // would contend for the same few lines of the cache.
    // That costs more than it saves where few sums read it.
    let apart = group == 1 || !(c.weight.minor.unsigned_abs() * 4).is_multiple_of(4096);
    let in_place = c.weight.elem == Elem::F32 && (apart || taps == 1);
    let (dy_image, dy_row) = if in_place {
        (c.weight.minor, g.w_spatial[1])
    } else {
        ((rows * vectors * lanes) as isize, (vectors * lanes) as isize)
    };
    // Tasks divide the input's features, then the output's.
    let want = if pool::num_threads() == 1 { 1 } else { 4 * pool::num_threads() };
    let per = features.div_ceil(want).max(FEATURES).min(features);
    let splits = features.div_ceil(per);
    let o_per = outputs.div_ceil(want.div_ceil(splits)).next_multiple_of(ROWS);
    let o_splits = outputs.div_ceil(o_per);
    let flops = 2.0 * (images * y.window * x.window * features * taps) as f64 * outputs as f64;
    let body = |t: usize| -> Result<(), LibError> {
        let (f0, o0) = (t / o_splits * per, t % o_splits * o_per);
        let (nf, no) = (per.min(features - f0), o_per.min(outputs - o0));
        let sums = nf * taps;
        // What each sum reads, from its plane's start.
        let at: Vec<usize> =
            (0..sums).map(|r| r / taps * group * plane + planes.tap(r % taps / x.output, r % x.output)).collect();
        let bytes = [
            no * sums * 4,
            nf * group * plane * 4,
            if in_place { 0 } else { ROWS * group * rows * vectors * lanes * 4 },
        ];
        scratch(bytes, |[acc, px, pd]| {
            let (acc, px, pd) = (acc.cast::<f32>(), px.cast::<f32>(), pd.cast::<f32>());
            // SAFETY: the buffers hold sums and planes; the arrays are the caller's.
            unsafe {
                acc.write_bytes(0, no * sums);
                let mut steps = Vec::new();
                let mut shape = (0, 0);
                for n0 in (0..images).step_by(group) {
                    let ni = group.min(images - n0);
                    for y0 in (0..y.window).step_by(rows) {
                        let ny = rows.min(y.window - y0);
                        if shape != (ni, ny) {
                            shape = (ni, ny);
                            steps.clear();
                            let step = |n: usize, r: usize, v: usize| {
                                let d = n as isize * dy_image + r as isize * dy_row + (v * lanes) as isize;
                                (4 * d, 4 * (n * plane + planes.lane(r, v * lanes)) as isize)
                            };
                            for (from, to) in [(0, full), (full, vectors)] {
                                for n in 0..ni {
                                    for r in 0..ny {
                                        steps.extend((from..to).map(|v| step(n, r, v)));
                                    }
                                }
                            }
                        }
                        let size = c.input.elem.size() as isize;
                        for f in 0..nf {
                            for n in 0..ni {
                                let from = (f0 + f) as isize * c.input.major + (n0 + n) as isize * c.input.minor;
                                let src = Ptr(Ptr(c.input.ptr).at::<u8>(from * size));
                                let to = px.add((f * group + n) * plane);
                                let next = if n + 1 < ni { c.input.minor } else { c.input.major };
                                planes.fill(c.input.elem, src, g.in_spatial[1] * size, y0, ny, to, next * size);
                            }
                        }
                        let first = n0 as isize * c.weight.minor + y0 as isize * g.w_spatial[1];
                        for ob in (0..no).step_by(ROWS) {
                            let nr = ROWS.min(no - ob);
                            if !in_place {
                                convert(c, g, first, (o0 + ob, nr), (group, ni, rows, ny, vectors * lanes), pd);
                            }
                            let dy: [*const u8; ROWS] = std::array::from_fn(|r| {
                                let o = r.min(nr - 1);
                                let p = if in_place {
                                    Ptr(c.weight.ptr).at::<f32>(first + (o0 + ob + o) as isize * c.weight.major)
                                } else {
                                    pd.wrapping_add(o * group * rows * vectors * lanes)
                                };
                                p.cast_const().cast()
                            });
                            // The next block's rows: the first of many passes over them would wait for each line.
                            if in_place && ob + ROWS < no {
                                for r in 0..ROWS.min(no - ob - ROWS) {
                                    let p = dy[0].wrapping_offset((ROWS + r) as isize * c.weight.major * 4);
                                    for n in 0..ni as isize {
                                        for l in 0..ny as isize {
                                            let at = 4 * (n * c.weight.minor + l * g.w_spatial[1]);
                                            simd::prefetch(p.wrapping_offset(at), 4 * x.window);
                                        }
                                    }
                                }
                            }
                            for s in (0..sums).step_by(COLS) {
                                let nc = COLS.min(sums - s);
                                let xs: [*const u8; COLS] =
                                    std::array::from_fn(|v| px.wrapping_add(at[s + v.min(nc - 1)]).cast_const().cast());
                                let whole = ni * ny * full;
                                tiles.dots[nr - 1][nc - 1](
                                    steps.as_ptr(),
                                    whole,
                                    steps.len() - whole,
                                    tail,
                                    &dy,
                                    &xs,
                                    acc.add(ob * sums + s),
                                    sums,
                                );
                            }
                        }
                    }
                }
                let o = &c.output;
                let to = f0 as isize * o.major + o0 as isize * o.minor;
                let dims = [no, nf, y.output, x.output];
                let st = [o.minor, o.major, g.out_spatial[1], g.out_spatial[2]];
                let dense = [sums as isize, taps as isize, x.output as isize, 1];
                copy(
                    &View::new(Ptr(o.ptr).at::<u8>(to * o.elem.size() as isize), o.elem, &dims, &st),
                    &View::new(acc.cast(), Elem::F32, &dims, &dense),
                )
            }
        })?
    };
    pool::try_for(splits * o_splits, (flops / 60.0) as u64, &body)
}

/// Converts the gradient's rows `[feature][image][row]` to f32, `width` numbers apart.
unsafe fn convert(
    c: &Conv,
    g: &Geometry,
    first: isize,
    (o0, no): (usize, usize),
    (group, images, rows, ny, width): (usize, usize, usize, usize, usize),
    to: *mut f32,
) {
    let w = &c.weight;
    for o in 0..no {
        for n in 0..images {
            for r in 0..ny {
                let at = first + (o0 + o) as isize * w.major + n as isize * w.minor + r as isize * g.w_spatial[1];
                // SAFETY: an existing row; the buffer holds all rows.
                unsafe {
                    let src = Ptr(w.ptr).at::<u8>(at * w.elem.size() as isize);
                    simd::load_f32(w.elem, src, to.add(((o * group + n) * rows + r) * width), g.dims[2].window);
                }
            }
        }
    }
}
