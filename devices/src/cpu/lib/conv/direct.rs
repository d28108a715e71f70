//! Convolutions whose rows of outputs are contiguous (channels first): sums over taps read straight from padded planes.
//!
//! A task takes some output rows of an image (or a few small images), copies the planes they meet into its own cache
//! ([`super::planes`]) and sums tiles of 4 features × 3 vectors of outputs. Against a product with gathered patches this
//! saves the patches: an element is copied once, not once for each tap.
//!
//! Where the input is dilated by s (the input gradient of a strided convolution), outputs p ≡ r (mod s) meet only some
//! of the taps, at inputs that are neighbours: each r is a *part* with taps of its own over the same planes, and no
//! product with the zeros between elements is computed.

use super::planes::{Axis, Planes};
use super::tile::{COLS, ROWS, Tiles, tiles};
use super::{Conv, ConvDim, Geometry};
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::gemm::scratch;
use crate::cpu::lib::simd;
use crate::cpu::lib::view::{LibError, Ptr};
use crate::cpu::pool;
use crate::kept::{Form, Keep, Kept};
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes of the planes of a task: a part of the L2 cache.
const PLANES: usize = 256 << 10;
/// Vectors of outputs that a task has if it can: they share what is read of the weights.
const VECTORS: usize = 24;
/// Bytes of weights that all tiles of a task pass over in turn; more are taken in several passes.
const WEIGHTS: usize = 128 << 10;

/// Whether this form is the one to use.
pub(super) fn fits(c: &Conv, g: &Geometry) -> bool {
    let [_, y, x] = &g.dims;
    let outputs = x.output.div_ceil(x.lhs_dilation);
    let lanes = tiles(outputs).lanes;
    // Images of which a task takes one, and that are too small to share what it reads of the weights.
    let (lines, wide) = (y.output.div_ceil(y.lhs_dilation), outputs.next_multiple_of(lanes));
    let padded = (lines * y.stride + y.window - 1) * (wide * x.stride + x.window - 1);
    let small = lines * wide < 4 * COLS * lanes && 2 * 4 * g.gi * padded > PLANES;
    c.output.elem != Elem::F64
        && c.batch_groups == 1
        && g.is_flat()
        && g.dims.iter().all(|d| !d.reverse && (d.lhs_dilation == 1 || (d.stride == 1 && d.rhs_dilation == 1)))
        && (g.in_spatial[2] == 1 || x.input == 1)
        && c.input.minor != 1
        // Few lanes idle, and enough features to share what is copied.
        && 3 * outputs >= 2 * outputs.next_multiple_of(lanes)
        && g.go >= 4
        && g.taps <= 128
        && !small
}

/// The outputs of one remainder along a dimension: `first + s·j` for `j < count`, taps `tap, tap + s, …` (`taps` of
/// them), the first at padded position `at` from j.
#[derive(Clone, Copy)]
struct Class {
    first: usize,
    count: usize,
    tap: usize,
    taps: usize,
    at: usize,
}

/// The classes of a dimension, and its axis.
fn classes(d: &ConvDim) -> (Vec<Class>, Axis) {
    let s = d.lhs_dilation;
    if s == 1 {
        return (vec![Class { first: 0, count: d.output, tap: 0, taps: d.window, at: 0 }], Axis::outputs(d));
    }
    let n = s as isize;
    let each = |first: usize| {
        let off = d.pad_lo - first as isize;
        let tap = off.rem_euclid(n) as usize;
        // Padding before the inputs that this class meets.
        let pad = (off - tap as isize) / n;
        let taps = (d.window + s - 1).saturating_sub(tap) / s;
        (Class { first, count: (d.output + s - 1 - first) / s, tap, taps, at: 0 }, pad)
    };
    let list: Vec<(Class, isize)> = (0..s.min(d.output)).map(each).collect();
    let pad = list.iter().map(|c| c.1).max().unwrap_or(0);
    let list: Vec<Class> = list.into_iter().map(|(c, p)| Class { at: (pad - p) as usize, ..c }).collect();
    let taps = list.iter().map(|c| c.at + c.taps).max().unwrap_or(1).max(1);
    (list, Axis { input: d.input, lanes: d.output.div_ceil(s), step: 1, taps, tap: 1, pad })
}

/// Outputs of one class in both dimensions.
struct Part {
    y: Class,
    x: Class,
    /// Steps of a sum, and their offsets in bytes.
    offs: Vec<isize>,
    /// Where its weights [group][block of features][step][4] begin.
    weights: usize,
}

/// Finished rows of one feature of one image, f32, `width` apart without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub ptr: *const f32,
    pub image: usize,
    pub feature: usize,
    /// First output row, and how many.
    pub first: usize,
    pub rows: usize,
}

/// Called once for each piece of the output, in any order, from several threads.
pub type Then<'a> = &'a (dyn Fn(&Rows) + Sync);

/// Where a task's outputs go: its first image's first row, and strides in elements.
struct Target {
    ptr: Ptr,
    elem: Elem,
    image: isize,
    feature: isize,
    line: isize,
    x: isize,
}

/// How the work is divided.
struct Plan<'a> {
    c: &'a Conv<'a>,
    g: &'a Geometry,
    tiles: &'static Tiles,
    planes: Planes,
    /// Elements of one channel in a task's planes.
    plane: usize,
    /// Rows of places (each of one output per class) and images of a task.
    rows: usize,
    images: usize,
    /// Classes of y and x; parts in this order.
    parts: Vec<Part>,
    weights: *const f32,
    /// The input itself serves as planes.
    in_place: bool,
    then: Option<Then<'a>>,
}

// SAFETY: addresses of the caller's arrays and of packed weights, which tasks read; outputs are disjoint.
unsafe impl Sync for Plan<'_> {}

/// `then` (optional) gets the finished rows, which are not stored.
///
/// # Safety
/// The contract of `conv`; [`fits`].
pub(super) unsafe fn run(c: &Conv, g: &Geometry, then: Option<Then>) -> Result<(), LibError> {
    let [_, dy, dx] = &g.dims;
    let ((ys, y), (xs, x)) = (classes(dy), classes(dx));
    let tiles = tiles(x.lanes);
    let planes = Planes::new(y, x, tiles.lanes);
    let vectors = x.lanes.div_ceil(tiles.lanes);
    // As many rows as fit the cache, in even parts; several images if there is still room.
    let mut most = y.lanes;
    while g.gi * planes.plane(most) * 4 > PLANES && most * vectors > COLS {
        most = most.div_ceil(2);
    }
    let work = g.n * y.lanes * vectors;
    let share = (work / (4 * pool::num_threads())).max(1);
    let rows = most.min(share.div_ceil(vectors).max(COLS.div_ceil(vectors)));
    let rows = y.lanes.div_ceil(y.lanes.div_ceil(rows));
    let plane = planes.plane(rows);
    let images = if rows < y.lanes {
        1
    } else {
        let room = PLANES / (g.gi * plane * 4);
        room.min(VECTORS.min(share).div_ceil(rows * vectors)).clamp(1, g.n)
    };
    let in_place = c.input.elem == Elem::F32
        && g.taps == 1
        && x.lanes % tiles.lanes == 0
        && [dy, dx].iter().all(|d| d.stride == 1 && d.pad_lo == 0 && d.output.div_ceil(d.lhs_dilation) <= d.input);
    let blocks = g.groups * g.go.div_ceil(ROWS);
    let mut parts = Vec::new();
    let mut total = 0;
    for cy in &ys {
        for cx in &xs {
            let mut offs = Vec::with_capacity(g.gi * cy.taps * cx.taps);
            for i in 0..g.gi {
                let first = if in_place { i as isize * c.input.minor } else { (i * images * plane) as isize };
                for ty in 0..cy.taps {
                    let row = (0..cx.taps).map(|tx| planes.tap(cy.at + ty, cx.at + tx) as isize);
                    offs.extend(row.map(|t| 4 * (first + if in_place { 0 } else { t })));
                }
            }
            let weights = total;
            total += blocks * offs.len() * ROWS;
            parts.push(Part { y: *cy, x: *cx, offs, weights });
        }
    }
    let mut p = Plan { c, g, tiles, planes, plane, rows, images, parts, weights: std::ptr::null(), in_place, then };
    // SAFETY: the buffer holds all weights.
    let kept = c.keep.and_then(|keep| p.kept(&keep, total * 4, |w| unsafe { p.pack_weights(Ptr(w)) }));
    if let Some(kept) = kept {
        p.weights = kept.ptr().cast();
        // SAFETY: the caller's contract.
        return unsafe { p.tasks() };
    }
    scratch([total * 4, 0, 0], |[w, _, _]| {
        p.weights = w.cast();
        // SAFETY: the buffer holds all weights; the tasks' contract is the caller's.
        unsafe {
            p.pack_weights(Ptr(w));
            p.tasks()
        }
    })?
}

impl Plan<'_> {
    /// The packed weights of `bytes` bytes, if they are kept: what decides them is where and how they lie and which taps
    /// each part has.
    fn kept(&self, keep: &Keep, bytes: usize, make: impl FnOnce(*mut u8)) -> Option<Arc<Kept>> {
        let (w, g) = (&self.c.weight, self.g);
        let form = || {
            let strides = [w.major, w.minor, g.w_spatial[1], g.w_spatial[2]];
            let sizes = [g.groups, g.go, g.gi, g.dims[1].lhs_dilation, g.dims[2].lhs_dilation, ROWS];
            let mut form: SmallVec<[i64; 24]> = SmallVec::from_slice(&[1, keep.offset(w.ptr), w.elem as i64]);
            form.extend(strides.map(|s| s as i64));
            form.extend(sizes.map(|s| s as i64));
            form.extend(self.parts.iter().flat_map(|p| [p.y.tap, p.y.taps, p.x.tap, p.x.taps]).map(|n| n as i64));
            Form(form)
        };
        keep.get(form, self.c.out_features * g.gi * g.taps * w.elem.size(), bytes, make)
    }

    /// Packs the weights, features beyond the last as zeros.
    unsafe fn pack_weights(&self, to: Ptr) {
        let (c, g) = (self.c, self.g);
        let blocks = g.go.div_ceil(ROWS);
        let (w, size) = (&c.weight, c.weight.elem.size() as isize);
        pool::parallel_for(g.groups * blocks, (c.out_features * g.gi * g.taps) as u64, &|b| {
            let (group, f0) = (b / blocks, b % blocks * ROWS);
            for p in &self.parts {
                let out = to.at::<f32>((p.weights + b * p.offs.len() * ROWS) as isize);
                for r in 0..ROWS {
                    let mut at = r;
                    let f = (group * g.go + f0 + r) as isize * w.major;
                    for i in 0..g.gi as isize {
                        for ty in 0..p.y.taps {
                            for tx in 0..p.x.taps {
                                let ky = (p.y.tap + ty * g.dims[1].lhs_dilation) as isize;
                                let kx = (p.x.tap + tx * g.dims[2].lhs_dilation) as isize;
                                let src = f + i * w.minor + ky * g.w_spatial[1] + kx * g.w_spatial[2];
                                // SAFETY: an existing weight; a place of this block.
                                unsafe {
                                    *out.add(at) = if f0 + r >= g.go {
                                        0.0
                                    } else if w.elem == Elem::F32 {
                                        *Ptr(w.ptr).at::<f32>(src)
                                    } else {
                                        w.elem.load_f64(Ptr(w.ptr).at::<u8>(src * size)) as f32
                                    };
                                }
                                at += ROWS;
                            }
                        }
                    }
                }
            }
        });
    }

    unsafe fn tasks(&self) -> Result<(), LibError> {
        let (c, g) = (self.c, self.g);
        let lanes = self.planes.y.lanes;
        let (bands, packs) = (lanes.div_ceil(self.rows), g.n.div_ceil(self.images));
        let steps: usize = self.parts.iter().map(|p| p.y.count * p.x.count * p.offs.len()).sum();
        let flops = 2.0 * (g.n * steps) as f64 * c.out_features as f64;
        pool::try_for(g.groups * packs * bands, (flops / 60.0) as u64, &|t| {
            let (group, pack, band) = (t / (packs * bands), t / bands % packs, t % bands);
            let (n0, y0) = (pack * self.images, band * self.rows);
            let task = Task { group, n0, images: self.images.min(g.n - n0), y0, rows: self.rows.min(lanes - y0) };
            let planes = if self.in_place { 0 } else { g.gi * self.images * self.plane * 4 };
            let tile = ROWS * COLS * self.tiles.lanes * 4;
            let lines = task.images * self.lines(&task) * g.dims[2].output;
            let own = if self.then.is_some() { ROWS * lines * 4 } else { 0 };
            scratch([planes, tile * self.across(), own], |[p, s, o]| {
                // SAFETY: tasks write disjoint rows of outputs; the buffers hold planes and tiles.
                unsafe {
                    if !self.in_place {
                        self.fill(&task, p.cast());
                    }
                    self.sums(&task, p.cast(), s.cast(), o.cast());
                }
            })
        })?;
        Ok(())
    }

    /// Classes of x: parts of one class of y that follow each other.
    fn across(&self) -> usize {
        self.g.dims[2].lhs_dilation.min(self.g.dims[2].output)
    }

    /// Output rows of a task.
    fn lines(&self, t: &Task) -> usize {
        let d = &self.g.dims[1];
        (t.rows * d.lhs_dilation).min(d.output - t.y0 * d.lhs_dilation)
    }

    /// Copies the planes [channel][image] of a task.
    unsafe fn fill(&self, t: &Task, to: *mut f32) {
        let (c, g) = (self.c, self.g);
        let size = c.input.elem.size() as isize;
        for i in 0..g.gi {
            for n in 0..t.images {
                let at = (t.n0 + n) as isize * c.input.major + (t.group * g.gi + i) as isize * c.input.minor;
                let out = to.wrapping_add((i * self.images + n) * self.plane);
                // SAFETY: an existing channel; the buffer holds all planes.
                unsafe {
                    let src = Ptr(Ptr(c.input.ptr).at::<u8>(at * size));
                    let next = if n + 1 < t.images { c.input.major } else { c.input.minor };
                    self.planes.fill(c.input.elem, src, g.in_spatial[1] * size, t.y0, t.rows, out, next * size)
                };
            }
        }
    }

    /// All features' outputs of a task; `tmp` holds a tile for each class of x, `own` a block of features' rows.
    unsafe fn sums(&self, t: &Task, planes: *const f32, tmp: *mut f32, own: *mut f32) {
        let (c, g) = (self.c, self.g);
        let blocks = g.go.div_ceil(ROWS);
        let (width, lines) = (g.dims[2].output, self.lines(t));
        let line0 = t.y0 * g.dims[1].lhs_dilation;
        let steps: usize = self.parts.iter().map(|p| p.offs.len()).sum();
        let pass = if self.then.is_some() { 1 } else { (WEIGHTS / (steps * ROWS * 4).max(1)).max(1) };
        for b0 in (0..blocks).step_by(pass) {
            let some = b0..blocks.min(b0 + pass);
            let f0 = t.group * g.go + b0 * ROWS;
            let to = if self.then.is_some() {
                let (line, image) = (width as isize, (width * lines) as isize);
                let feature = image * t.images as isize;
                Target { ptr: Ptr(own.cast()), elem: Elem::F32, image, feature, line, x: 1 }
            } else {
                let o = &c.output;
                let (line, x) = (g.out_spatial[1], g.out_spatial[2]);
                let at = t.n0 as isize * o.major + f0 as isize * o.minor + line0 as isize * line;
                let ptr = Ptr(Ptr(o.ptr).at::<u8>(at * o.elem.size() as isize));
                Target { ptr, elem: o.elem, image: o.major, feature: o.minor, line, x }
            };
            for parts in self.parts.chunks(self.across()) {
                // SAFETY: the caller's contract; the target is the task's part of the output, or `own`.
                unsafe { self.tiles(t, parts, some.clone(), &to, planes, tmp) };
            }
            let Some(then) = self.then else { continue };
            for r in 0..ROWS.min(g.go - b0 * ROWS) {
                for n in 0..t.images {
                    let ptr = own.wrapping_add((r * t.images + n) * lines * width).cast_const();
                    then(&Rows { ptr, image: t.n0 + n, feature: f0 + r, first: line0, rows: lines });
                }
            }
        }
    }

    /// The outputs of one class of y (a part for each class of x) of some blocks of features.
    unsafe fn tiles(
        &self,
        t: &Task,
        parts: &[Part],
        some: std::ops::Range<usize>,
        to: &Target,
        planes: *const f32,
        tmp: *mut f32,
    ) {
        let (c, g) = (self.c, self.g);
        let (sy, sx) = (g.dims[1].lhs_dilation, g.dims[2].lhs_dilation);
        let y = parts[0].y;
        let rows = t.rows.min(y.count.saturating_sub(t.y0));
        if y.taps == 0 && to.x == 1 {
            // SAFETY: rows of the target.
            return unsafe { self.zeros(t, (rows, y.first), some, to) };
        }
        let lanes = self.tiles.lanes;
        let vectors = self.planes.x.lanes.div_ceil(lanes);
        let blocks = g.go.div_ceil(ROWS);
        let tile = ROWS * COLS * lanes;
        let direct = parts.len() == 1 && to.elem == Elem::F32 && (to.x == 1 || g.dims[2].output == 1);
        let count = t.images * rows * vectors;
        for v0 in (0..count).step_by(COLS) {
            let nv = COLS.min(count - v0);
            let mut from = [std::ptr::null::<u8>(); COLS];
            // A vector's first output, and its place in the row.
            let mut at = [(0isize, 0usize); COLS];
            for v in 0..nv {
                let v1 = v0 + v;
                let (x, r, n) = (v1 % vectors * lanes, v1 / vectors % rows, v1 / vectors / rows);
                from[v] = if self.in_place {
                    let at = (t.n0 + n) as isize * c.input.major
                        + (t.group * g.gi) as isize * c.input.minor
                        + (t.y0 + r) as isize * g.in_spatial[1]
                        + x as isize;
                    Ptr(c.input.ptr).at::<u8>(4 * at).cast_const()
                } else {
                    planes.wrapping_add(n * self.plane + self.planes.lane(r, x)).cast()
                };
                let first = n as isize * to.image + (r * sy + y.first) as isize * to.line + (x * sx) as isize * to.x;
                at[v] = (first, x);
            }
            // Partial vectors and other strides than 1 go through a temporary.
            let through = !direct || at[..nv].iter().any(|t| t.1 + lanes > parts[0].x.count);
            for (i, b) in some.clone().enumerate() {
                let nr = ROWS.min(g.go - b * ROWS);
                let feature = (i * ROWS) as isize * to.feature;
                for (i, p) in parts.iter().enumerate() {
                    let k = p.offs.len();
                    let a = self.weights.wrapping_add(p.weights + (t.group * blocks + b) * k * ROWS);
                    let row = if through { (COLS * lanes) as isize } else { to.feature };
                    let sums: [*mut f32; COLS] = std::array::from_fn(|v| {
                        if through {
                            tmp.wrapping_add(i * tile + v * lanes)
                        } else {
                            to.ptr.at::<f32>(feature + at[v].0)
                        }
                    });
                    // SAFETY: the tables and planes cover the tile; its outputs exist.
                    unsafe { self.tiles.sums[nr - 1][nv - 1](k, a, p.offs.as_ptr(), &from, &sums, row) };
                }
                if !through {
                    continue;
                }
                for r in 0..nr {
                    for v in 0..nv {
                        let src = tmp.wrapping_add(r * COLS * lanes + v * lanes);
                        let first = feature + r as isize * to.feature + at[v].0;
                        // SAFETY: as above.
                        unsafe { self.store(parts, src, to, first, at[v].1) };
                    }
                }
            }
        }
    }

    /// The outputs of a class of y that meets no taps.
    unsafe fn zeros(&self, t: &Task, (rows, first): (usize, usize), some: std::ops::Range<usize>, to: &Target) {
        let (dims, size) = (&self.g.dims, to.elem.size());
        let features = (some.len() * ROWS).min(self.g.go - some.start * ROWS);
        for f in 0..features as isize {
            for n in 0..t.images as isize {
                for r in 0..rows {
                    let line = (r * dims[1].lhs_dilation + first) as isize * to.line;
                    let at = (f * to.feature + n * to.image + line) * size as isize;
                    // SAFETY: the caller's row.
                    unsafe { to.ptr.at::<u8>(at).write_bytes(0, dims[2].output * size) };
                }
            }
        }
    }

    /// Stores a vector of sums of each class of x; `at`: the first output, `x` its place.
    unsafe fn store(&self, parts: &[Part], src: *const f32, to: &Target, at: isize, x: usize) {
        let (lanes, size) = (self.tiles.lanes, to.elem.size() as isize);
        let tile = ROWS * COLS * lanes;
        let have = |p: &Part| lanes.min(p.x.count.saturating_sub(x));
        let dst = to.ptr.at::<u8>(at * size);
        // SAFETY: the outputs exist; the temporary holds the tiles.
        unsafe {
            match (parts, self.g.dims[2].lhs_dilation) {
                ([p], 1) if to.x == 1 => simd::store_f32(to.elem, src, dst, have(p)),
                ([p, q], 2) if to.x == 1 && to.elem == Elem::F32 => {
                    simd::interleave(src, src.add(tile), dst.cast(), have(p) + have(q));
                }
                (_, s) => {
                    for (i, p) in parts.iter().enumerate() {
                        for j in 0..have(p) {
                            let o = (j * s + p.x.first) as isize * to.x;
                            to.elem.store_f64(dst.offset(o * size), *src.add(i * tile + j) as f64);
                        }
                    }
                }
            }
        }
    }
}

/// Rows of some images.
struct Task {
    group: usize,
    n0: usize,
    images: usize,
    y0: usize,
    rows: usize,
}
