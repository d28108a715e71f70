//! 3×3 convolutions of stride 1 by Winograd's F(2×2, 3×3): 16 multiplications for four outputs instead of 36.
//!
//! Tiles of 4×4 pixels go to a domain where a convolution is 16 independent products (position p: tiles × input features ·
//! input features × output features) and come back as tiles of 2×2 outputs ([`kernels`]). Vectors run over channels, so
//! every size of image has full lanes; images that are channels first are turned while they are copied to pixels with
//! their padding written out ([`pixels`]). A task takes some rows of tiles through all of that while it is in the L2 cache.
//!
//! The transforms only add and halve: sums are as exact as a direct convolution's to a small factor. But a tile's outputs
//! share its inputs, and infinities would meet each other. A piece that is not finite is therefore computed again as a
//! plain product, which gives infinities and NaN exactly where the definition does.

mod gradient;
mod kernels;
mod pixels;
mod product;
#[cfg(test)]
mod tests;

use super::direct::{Rows, Then};
use super::{Conv, ConvArray, ConvDim, Geometry, one_stride};
use crate::cpu::lib::copy::copy;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::gemm::kernel;
use crate::cpu::lib::gemm::{Epilogue, Tile, room, scratch};
use crate::cpu::lib::view::{LibError, Ptr, View};
use crate::cpu::pool;
use crate::kept::{Form, Keep, Kept};
pub(super) use gradient::{fits as fits_gradient, run as run_gradient, work_bytes as gradient_bytes};
use kernels::{Kernels, kernels};
use pixels::{Layout, Pixels};
use product::{Products, products};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Positions of the domain.
const DOMAIN: usize = 16;
/// Tiles of a task if it can: eight panels of the widest products' rows.
const TILES: usize = 112;
/// Bytes of a task's tiles in the domain, and of as many output features' as are computed at a time: parts of the L2 cache.
const BYTES: usize = 256 << 10;
/// Input features whose weights are turned at a time, for panels of at most `MAX_NR` output features.
const TURNED: usize = 16;
const MAX_NR: usize = 32;
/// Elements (of f32) between positions beyond what they hold: 16 streams at a multiple of pages would share a few lines.
const STAGGER: usize = 16;

/// Where outputs go.
#[derive(Clone, Copy)]
pub(super) enum Sink<'a> {
    /// To the output.
    Store,
    /// To the caller, as rows of features.
    Rows(Then<'a>),
    /// To the caller, as blocks of positions × features, and to the output if it has an address.
    Tiles(Epilogue<'a>),
}

/// `RSX_WINOGRAD=0` leaves these convolutions to the direct forms.
fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("RSX_WINOGRAD").as_deref() != Ok("0"))
}

/// Whether `images` times `outputs`, as tiles of 2×2, with `i` and `o` features are worth it; `weights`: to be transformed.
/// Where they are kept they are not, but what a convolution computes must not depend on that: one image, which mostly is
/// inference, counts them for a quarter of what they take, so 7x7 images of 512 features are in (1.8 ms instead of 3.1 with
/// weights that are kept, 4.2 instead of 3.5 with others).
fn pays(images: usize, outputs: [usize; 2], i: usize, o: usize, weights: bool) -> bool {
    let lanes = kernels().lanes;
    let tiles = images * outputs.map(|n| n.div_ceil(2)).iter().product::<usize>();
    let (wide_i, wide_o) = (i.next_multiple_of(lanes), o.next_multiple_of(lanes));
    // Multiply-adds, and what else takes as long: a channel of a tile, and the weight of two features.
    let domain = tiles * (DOMAIN * i * wide_o + 80 * (wide_i + wide_o)) + if weights { 80 * i * o } else { 0 };
    let direct = images * outputs[0] * outputs[1] * 9 * i * o;
    let gains = 5 * domain < 4 * direct;
    #[cfg(test)]
    let gains = gains || tests::EVERYWHERE.load(std::sync::atomic::Ordering::Relaxed);
    is_on() && i >= 12 && o >= 12 && outputs.iter().all(|&n| n >= 3) && gains
}

/// Dimensions of which this form is possible.
fn plain(d: &ConvDim) -> bool {
    (d.stride, d.lhs_dilation, d.rhs_dilation, d.reverse) == (1, 1, 1, false)
}

/// Whether this form is the one to use.
pub(super) fn fits(c: &Conv, g: &Geometry) -> bool {
    let [_, y, x] = &g.dims;
    c.output.elem != Elem::F64
        && c.batch_groups == 1
        && g.is_flat()
        && [y, x].iter().all(|d| plain(d) && d.window == 3)
        && pays(g.n, [y.output, x.output], g.gi, g.go, true)
}

/// How the work is divided.
struct Plan<'a> {
    c: &'a Conv<'a>,
    g: &'a Geometry,
    products: &'static Products,
    ks: &'static Kernels,
    sink: Sink<'a>,
    /// Tiles of an image.
    ty: usize,
    tx: usize,
    /// Rows of tiles of a task.
    rows: usize,
    /// Input features with the last vector full, and output features of a pass.
    wide: usize,
    some: usize,
    /// Elements between positions of the tiles' inputs, of their outputs and of the weights.
    in_step: usize,
    out_step: usize,
    u_step: usize,
    u: *const f32,
}

// SAFETY: addresses of the caller's arrays and of weights that tasks read; outputs are disjoint.
unsafe impl Sync for Plan<'_> {}

/// Rows of tiles of one image.
#[derive(Clone, Copy)]
struct Piece {
    image: usize,
    first: usize,
    rows: usize,
    /// Rows that come before it in the range that it is a piece of.
    before: usize,
}

/// A range of the rows of all images, of `each` rows, by images.
fn pieces(range: Range<usize>, each: usize) -> impl Iterator<Item = Piece> {
    (range.start / each..range.end.div_ceil(each)).map(move |image| {
        let (from, to) = (range.start.max(image * each), range.end.min((image + 1) * each));
        Piece { image, first: from - image * each, rows: to - from, before: from - range.start }
    })
}

/// # Safety
/// The contract of `conv` or `conv_then`; [`fits`].
pub(super) unsafe fn run(c: &Conv, g: &Geometry, sink: Sink) -> Result<(), LibError> {
    let mut p = Plan::new(c, g, sink);
    let bytes = DOMAIN * p.u_step * g.groups * 4;
    // SAFETY: the buffer holds all weights.
    let kept = c.keep.and_then(|keep| p.kept(&keep, bytes, |w| unsafe { p.weights(Ptr(w)) }));
    if let Some(kept) = kept {
        p.u = kept.ptr().cast();
        // SAFETY: the caller's contract.
        return unsafe { p.tasks() };
    }
    scratch([bytes, 0, 0], |[w, _, _]| {
        p.u = w.cast();
        // SAFETY: the buffer holds all weights; the tasks' contract is the caller's.
        unsafe {
            p.weights(Ptr(w));
            p.tasks()
        }
    })?
}

/// Bytes of work memory that [`run`] takes on all threads.
pub(super) fn work_bytes(c: &Conv, g: &Geometry) -> usize {
    let p = Plan::new(c, g, Sink::Store);
    let (tasks, most) = (p.count(), pool::num_threads());
    room(&[DOMAIN * p.u_step * g.groups * 4]) + room(&p.task_bytes(true)) * most.min(tasks)
}

impl<'a> Plan<'a> {
    fn new(c: &'a Conv<'a>, g: &'a Geometry, sink: Sink<'a>) -> Plan<'a> {
        let (products, ks) = (products(), kernels());
        let (ty, tx) = (g.dims[1].output.div_ceil(2), g.dims[2].output.div_ceil(2));
        let wide = g.gi.next_multiple_of(ks.lanes);
        let most = TILES.min(BYTES / (DOMAIN * wide * 4)).max(products.rows);
        let share = (g.n * g.groups * ty * tx).div_ceil(4 * pool::num_threads()).max(products.rows);
        let rows = (most.min(share) / tx).clamp(1, g.n * ty);
        let tiles = rows * tx;
        let some = (BYTES / (DOMAIN * tiles * 4) / products.width).max(1) * products.width;
        let some = some.min(g.go.next_multiple_of(products.width));
        let u_step = g.go.next_multiple_of(products.width) * wide + STAGGER;
        let (in_step, out_step) = (tiles * wide + STAGGER, tiles * some + STAGGER);
        Plan { c, g, products, ks, sink, ty, tx, rows, wide, some, in_step, out_step, u_step, u: std::ptr::null() }
    }

    /// The weights in the domain, if they are kept.
    fn kept(&self, keep: &Keep, bytes: usize, make: impl FnOnce(*mut u8)) -> Option<Arc<Kept>> {
        let (w, g) = (&self.c.weight, self.g);
        let form = || {
            let strides = [w.major, w.minor, g.w_spatial[1], g.w_spatial[2]];
            let sizes = [g.groups, g.go, g.gi, self.products.width, DOMAIN];
            let mut form: SmallVec<[i64; 24]> = SmallVec::from_slice(&[2, keep.offset(w.ptr), w.elem as i64]);
            form.extend(strides.map(|s| s as i64));
            form.extend(sizes.map(|s| s as i64));
            Form(form)
        };
        keep.get(form, self.c.out_features * g.gi * g.taps * w.elem.size(), bytes, make)
    }

    /// The weights in the domain: [group][position][panel of output features][input feature][feature of the
    /// panel].
    unsafe fn weights(&self, to: Ptr) {
        let (g, w, nr) = (self.g, &self.c.weight, self.products.width);
        let panels = g.go.div_ceil(nr);
        let size = w.elem.size() as isize;
        // Read forwards; the kernel turns the window.
        let (mut taps, mut start, mut flip) = ([g.w_spatial[1], g.w_spatial[2]], 0, [false; 2]);
        for (s, f) in taps.iter_mut().zip(&mut flip).filter(|(s, _)| **s < 0) {
            start += 2 * *s;
            (*s, *f) = (-*s, true);
        }
        let cost = (g.groups * g.go * g.gi * 12) as u64;
        pool::parallel_for(g.groups * panels, cost, &|t| {
            let (group, panel) = (t / panels, t % panels);
            let some = nr.min(g.go - panel * nr);
            let mut tmp = [0f32; TURNED * 9 * MAX_NR];
            let u = to.at::<f32>((group * DOMAIN * self.u_step + panel * nr * self.wide) as isize);
            for p in 0..DOMAIN {
                // Features beyond the last meet zeros, and must not be NaN.
                let rest = u.wrapping_add(p * self.u_step + g.gi * nr);
                // SAFETY: as below.
                unsafe { rest.write_bytes(0, (self.wide - g.gi) * nr) };
            }
            for i0 in (0..g.gi).step_by(TURNED) {
                let first = ((group * g.go + panel * nr) as isize) * w.major + i0 as isize * w.minor + start;
                let from = Ptr(w.ptr).at::<u8>(first * size);
                let (dims, n) = ([TURNED.min(g.gi - i0), 3, 3, some], nr as isize);
                let (dst, src) = ([9 * n, 3 * n, n, 1], [w.minor, taps[0], taps[1], w.major]);
                // SAFETY: existing weights; the buffer holds them, `to` all positions.
                unsafe {
                    let to = View::new(tmp.as_mut_ptr().cast(), Elem::F32, &dims, &dst);
                    let done = copy(&to, &View::new(from, w.elem, &dims, &src));
                    debug_assert!(done.is_ok(), "equal sizes");
                    for i in 0..dims[0] {
                        for v in (0..nr).step_by(self.ks.lanes) {
                            let src = tmp.as_ptr().add(9 * i * nr + v);
                            (self.ks.filter)(src, nr, u.add((i0 + i) * nr + v), self.u_step, flip);
                        }
                    }
                }
            }
        });
    }

    /// Tasks of all groups.
    fn count(&self) -> usize {
        self.g.groups * (self.g.n * self.ty).div_ceil(self.rows)
    }

    /// Bytes of a task: pixels, tiles, sums; and where `rows` says so, the features' rows.
    fn task_bytes(&self, rows: bool) -> [usize; 3] {
        let (lines, columns) = (2 * self.rows.min(self.ty), 2 * self.tx);
        let input = (lines + 2) * (columns + 2) * self.wide;
        let output = lines * columns * self.some * if rows { 2 } else { 1 };
        [input.max(output) * 4, DOMAIN * self.in_step * 4, DOMAIN * self.out_step * 4]
    }

    unsafe fn tasks(&self) -> Result<(), LibError> {
        let g = self.g;
        let bytes = self.task_bytes(matches!(self.sink, Sink::Rows(_)));
        let all = g.n * self.ty;
        let bands = all.div_ceil(self.rows);
        let cost = (DOMAIN * all * self.tx * g.gi) as f64 * self.c.out_features as f64 / 30.0;
        pool::try_for(self.count(), cost as u64, &|t| {
            let (group, first) = (t / bands, t % bands * self.rows);
            let rows = first..(first + self.rows).min(all);
            scratch(bytes, |[pixels, tiles, sums]| {
                // SAFETY: tasks write disjoint outputs; the buffers have room.
                unsafe { self.task(group, rows, pixels.cast(), tiles.cast(), sums.cast()) }
            })?
        })
    }

    unsafe fn task(
        &self,
        group: usize,
        rows: Range<usize>,
        pixels: *mut f32,
        v: *mut f32,
        m: *mut f32,
    ) -> Result<(), LibError> {
        let (c, g, lanes) = (self.c, self.g, self.ks.lanes);
        let tiles = rows.len() * self.tx;
        let layout = Layout { tile: lanes, vector: tiles * lanes, position: self.in_step };
        let strides = [g.in_spatial[1], g.in_spatial[2], c.input.minor];
        for p in pieces(rows.clone(), self.ty) {
            let at = [2 * p.first as isize - g.dims[1].pad_lo, -g.dims[2].pad_lo];
            let offset = p.image as isize * c.input.major + (group * g.gi) as isize * c.input.minor;
            let image = Pixels::new(&c.input, offset, strides, [g.dims[1].input, g.dims[2].input], g.gi);
            let to = v.wrapping_add(p.before * self.tx * lanes);
            // SAFETY: the piece's pixels fit the buffer, and its tiles that of the tiles.
            unsafe { image.transform(self.ks.input, at, [p.rows, self.tx], 2, self.wide, pixels, to, &layout)? };
        }
        for f0 in (0..g.go).step_by(self.some) {
            let n = self.some.min(g.go - f0);
            for position in 0..DOMAIN {
                let b = self.u.wrapping_add((group * DOMAIN + position) * self.u_step + f0 * self.wide);
                let (a, c) =
                    (v.wrapping_add(position * self.in_step).cast_const(), m.wrapping_add(position * self.out_step));
                // SAFETY: the tiles' inputs, the panels of weights, and sums with room for whole panels.
                unsafe { self.products.run(self.wide / lanes, (a, layout.vector, tiles), b, (c, self.some, n)) };
            }
            for p in pieces(rows.clone(), self.ty) {
                // SAFETY: the piece's outputs; its pixels fit the buffer.
                unsafe { self.from_domain(group, &p, (f0, n), pixels, m)? };
            }
        }
        Ok(())
    }

    /// Transforms the sums of `n` features from `f0` on of a piece back and hands its outputs on.
    unsafe fn from_domain(
        &self,
        group: usize,
        p: &Piece,
        (f0, n): (usize, usize),
        pixels: *mut f32,
        m: *const f32,
    ) -> Result<(), LibError> {
        let (g, o) = (self.g, &self.c.output);
        let (height, width) = (g.dims[1].output, g.dims[2].output);
        let first = 2 * p.first;
        let lines = (2 * p.rows).min(height - first);
        let feature = group * g.go + f0;
        let at = p.image as isize * o.major + feature as isize * o.minor + first as isize * g.out_spatial[1];
        let out = Ptr(o.ptr).at::<u8>(at * o.elem.size() as isize);
        let out_strides = [g.out_spatial[1], g.out_spatial[2], o.minor];
        // Whole tiles and vectors of an array of the same kind: straight to it.
        let straight = matches!(self.sink, Sink::Store)
            && o.elem == Elem::F32
            && o.minor == 1
            && (lines, width) == (2 * p.rows, 2 * self.tx)
            && n.is_multiple_of(self.ks.lanes);
        let held = [(2 * self.tx * self.some) as isize, self.some as isize, 1];
        let (to, strides) = if straight { (out.cast::<f32>(), out_strides) } else { (pixels, held) };
        let mut finite = 0.0f32;
        for r in 0..p.rows {
            for f in (0..n).step_by(self.ks.lanes) {
                let from = m.wrapping_add((p.before + r) * self.tx * self.some + f);
                let to = to.wrapping_offset(2 * r as isize * strides[0] + f as isize);
                let (row, pixel) = (strides[0] as usize, strides[1] as usize);
                // SAFETY: the piece's sums, and its outputs or the buffer's pixels.
                finite += unsafe { (self.ks.output)(from, self.some, self.out_step, self.tx, to, row, pixel) };
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            if finite != 0.0 {
                self.exact(group, p, (f0, n), lines, to, strides)?;
            }
            let dims = [lines, width, n];
            let held = View::new(pixels.cast(), Elem::F32, &dims, &strides);
            match self.sink {
                Sink::Store if straight => {}
                Sink::Store => copy(&View::new(out, o.elem, &dims, &out_strides), &held)?,
                Sink::Rows(then) => {
                    let own = pixels.add(2 * p.rows * 2 * self.tx * self.some);
                    let rows = [width as isize, 1, (lines * width) as isize];
                    copy(&View::new(own.cast(), Elem::F32, &dims, &rows), &held)?;
                    for f in 0..n {
                        let ptr = own.add(f * lines * width).cast_const();
                        then(&Rows { ptr, image: p.image, feature: feature + f, first, rows: lines });
                    }
                }
                Sink::Tiles(epilogue) => {
                    // Lines without a gap are one block.
                    let whole = one_stride(&[(lines, strides[0]), (width, strides[1])]).is_some();
                    let (blocks, each) = if whole { (1, lines) } else { (lines, 1) };
                    for b in 0..blocks {
                        epilogue(&Tile {
                            ptr: pixels.wrapping_offset((b * each) as isize * strides[0]).cast(),
                            ld: self.some as isize,
                            batch: group,
                            row0: (p.image * height + first + b * each) * width,
                            col0: f0,
                            rows: each * width,
                            cols: n,
                        });
                    }
                    if !o.ptr.is_null() {
                        copy(&View::new(out, o.elem, &dims, &out_strides), &held)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A piece's outputs by the general product, to f32 with the given strides of line, column and feature.
    unsafe fn exact(
        &self,
        group: usize,
        p: &Piece,
        (f0, n): (usize, usize),
        lines: usize,
        to: *mut f32,
        strides: [isize; 3],
    ) -> Result<(), LibError> {
        let (c, g) = (self.c, self.g);
        let [_, y, x] = g.dims;
        let pad_lo = y.pad_lo - 2 * p.first as isize;
        let pad_hi = (lines + 2) as isize - pad_lo - y.input as isize;
        let dims = [ConvDim { output: lines, pad_lo, pad_hi, ..y }, x];
        let from = p.image as isize * c.input.major + (group * g.gi) as isize * c.input.minor;
        let weight = (group * g.go + f0) as isize * c.weight.major;
        let shifted = |a: &ConvArray, by: isize| Ptr(a.ptr).at::<u8>(by * a.elem.size() as isize);
        let part = Conv {
            batch: 1,
            in_features: g.gi,
            out_features: n,
            feature_groups: 1,
            batch_groups: 1,
            dims: &dims,
            input: ConvArray { ptr: shifted(&c.input, from), spatial: &g.in_spatial[1..], ..c.input },
            weight: ConvArray { ptr: shifted(&c.weight, weight), spatial: &g.w_spatial[1..], ..c.weight },
            output: ConvArray { ptr: to.cast(), elem: Elem::F32, major: 0, minor: strides[2], spatial: &strides[..2] },
            keep: None,
        };
        let g = Geometry::new(&part)?;
        // SAFETY: a part of the caller's convolution; its outputs are the piece's.
        unsafe { super::product::<f32, f32>(&part, &g, kernel::f32_kernel(), None) }
    }
}
