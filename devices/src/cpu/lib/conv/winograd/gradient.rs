//! The weight gradient by the same transforms, transposed: `Gᵀ[Σ (A dy Aᵀ) ⊙ (Bᵀ d B)]G`, summed over all tiles.
//!
//! As a convolution it has the images as features, the output's gradient as window and the taps as outputs. The 16 products
//! sum over tiles. A task takes a block of features of both sides and a part of the tiles, a few rows at a time; parts are
//! added up in order, and how many there are depends on sizes alone, so the result does not depend on the threads.

use super::kernels::{Kernels, kernels};
use super::pixels::{Layout, Pixels};
use super::{DOMAIN, STAGGER, pays, pieces, plain};
use crate::cpu::lib::conv::{Conv, Geometry};
use crate::cpu::lib::copy::copy;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::gemm::kernel::{self, Kernel};
use crate::cpu::lib::gemm::{Panels, block, room, scratch};
use crate::cpu::lib::view::{LibError, Ptr, View};
use crate::cpu::pool;
use std::sync::atomic::{AtomicBool, Ordering};

/// Output features of a block.
const OUTPUTS: usize = 64;
/// Tiles that are summed at a time, if they are not fewer than a row.
const TILES: usize = 64;
/// Tasks that the work is cut into if each then has `PART` tiles or more.
const TASKS: usize = 16;
const PART: usize = 256;

/// Whether this form is the one to use.
pub(in super::super) fn fits(c: &Conv, g: &Geometry) -> bool {
    let [_, y, x] = &g.dims;
    c.output.elem != Elem::F64
        && g.groups == 1
        && g.is_flat()
        && [y, x].iter().all(|d| plain(d) && d.output == 3)
        && pays(c.in_features, [y.window, x.window], c.batch, c.out_features, false)
        && c.in_features * y.window.div_ceil(2) * x.window.div_ceil(2) >= TILES
}

/// How the work is divided.
struct Plan<'a> {
    c: &'a Conv<'a>,
    g: &'a Geometry,
    kn: &'static Kernel<f32, f32>,
    ks: &'static Kernels,
    /// Tiles of an image, and rows of tiles that are summed at a time.
    ty: usize,
    tx: usize,
    rows: usize,
    /// Features of a block: of the input (a panel) and of the output.
    ci: usize,
    co: usize,
    /// Blocks of the two, and parts of the sum.
    blocks: [usize; 2],
    parts: usize,
    /// Elements between positions of the two sides' tiles.
    in_step: usize,
    out_step: usize,
}

impl<'a> Plan<'a> {
    fn new(c: &'a Conv<'a>, g: &'a Geometry) -> Plan<'a> {
        let (kn, ks) = (kernel::f32_kernel(), kernels());
        let (ty, tx) = (g.dims[1].window.div_ceil(2), g.dims[2].window.div_ceil(2));
        let all = c.in_features * ty;
        let rows = (TILES / tx).clamp(1, all);
        let (ci, co) = (kn.nr, OUTPUTS.min(c.out_features.next_multiple_of(ks.lanes)));
        let blocks = [c.batch.div_ceil(ci), c.out_features.div_ceil(co)];
        let parts = TASKS.div_ceil(blocks[0] * blocks[1]).min(all * tx / PART).clamp(1, all.div_ceil(rows));
        let (in_step, out_step) = (rows * tx * ci + STAGGER, rows * tx * co + STAGGER);
        Plan { c, g, kn, ks, ty, tx, rows, ci, co, blocks, parts, in_step, out_step }
    }

    /// Elements of a task's sums.
    fn sums(&self) -> usize {
        DOMAIN * self.co * self.ci
    }

    fn sums_bytes(&self) -> usize {
        self.blocks[0] * self.blocks[1] * self.parts * self.sums() * 4
    }

    /// Bytes of a task: pixels, the input's tiles and the gradient's.
    fn task_bytes(&self) -> [usize; 3] {
        let (lines, columns) = (2 * self.rows.min(self.ty), 2 * self.tx);
        let pixels = ((lines + 2) * (columns + 2) * self.ci).max(lines * columns * self.co);
        [pixels * 4, DOMAIN * self.in_step * 4, DOMAIN * self.out_step * 4]
    }

    /// Bytes that a block's weights take.
    fn weight_bytes(&self) -> usize {
        9 * self.co * self.ci * 4
    }

    /// Part `part` of the sums of a block.
    unsafe fn sum(&self, block_i: usize, block_o: usize, part: usize, sums: *mut f32) -> Result<(), LibError> {
        let (c, g) = (self.c, self.g);
        let all = c.in_features * self.ty;
        let (first, last) = (all * part / self.parts, all * (part + 1) / self.parts);
        let (i0, o0) = (block_i * self.ci, block_o * self.co);
        let (ni, no) = (self.ci.min(c.batch - i0), self.co.min(c.out_features - o0));
        let [_, y_dim, x_dim] = &g.dims;
        let (input, dy) = (i0 as isize * c.input.major, o0 as isize * c.weight.major);
        let x_strides = [g.in_spatial[1], g.in_spatial[2], c.input.major];
        let d_strides = [g.w_spatial[1], g.w_spatial[2], c.weight.major];
        let vector = self.ks.lanes;
        let v_layout = Layout { tile: self.ci, vector, position: self.in_step };
        let z_layout = Layout { tile: self.co, vector, position: self.out_step };
        scratch(self.task_bytes(), |[pixels, v, z]| {
            let (pixels, v, z) = (pixels.cast::<f32>(), v.cast::<f32>(), z.cast::<f32>());
            for r0 in (first..last).step_by(self.rows) {
                let r1 = last.min(r0 + self.rows);
                for p in pieces(r0..r1, self.ty) {
                    let (image, top) = (p.image as isize, 2 * p.first as isize);
                    let (tiles, before) = ([p.rows, self.tx], p.before * self.tx);
                    let (x0, d0) = (input + image * c.input.minor, dy + image * c.weight.minor);
                    let x = Pixels::new(&c.input, x0, x_strides, [y_dim.input, x_dim.input], ni);
                    let d = Pixels::new(&c.weight, d0, d_strides, [y_dim.window, x_dim.window], no);
                    let (v, z) = (v.wrapping_add(before * self.ci), z.wrapping_add(before * self.co));
                    let at = [top - y_dim.pad_lo, -x_dim.pad_lo];
                    // SAFETY: existing features and images; the buffers have room.
                    unsafe {
                        x.transform(self.ks.input, at, tiles, 2, self.ci, pixels, v, &v_layout)?;
                        d.transform(self.ks.gradient, [top, 0], tiles, 0, self.co, pixels, z, &z_layout)?;
                    }
                }
                for position in 0..DOMAIN {
                    let panels = Panels {
                        a: z.wrapping_add(position * self.out_step).cast_const(),
                        packed: false,
                        a_r: 1,
                        a_k: self.co as isize,
                        b: v.wrapping_add(position * self.in_step).cast_const(),
                        b_len: 0,
                        k: (r1 - r0) * self.tx,
                    };
                    let to = sums.wrapping_add(position * self.co * self.ci);
                    // SAFETY: one panel of tiles on each side; a block of sums.
                    unsafe { block(self.kn, &panels, no, self.ci, to, self.ci, r0 > first) };
                }
            }
            Ok(())
        })?
    }

    /// Adds the parts of a block up and stores its weights; false if one is not finite.
    unsafe fn finish(&self, block_i: usize, block_o: usize, sums: *const f32) -> Result<bool, LibError> {
        let (c, o) = (self.c, &self.c.output);
        let (i0, o0) = (block_i * self.ci, block_o * self.co);
        let (ni, no) = (self.ci.min(c.batch - i0), self.co.min(c.out_features - o0));
        scratch([self.weight_bytes(), 0, 0], |[tmp, _, _]| {
            let mut finite = 0.0;
            for f in 0..no {
                for v in (0..self.ci).step_by(self.ks.lanes) {
                    let from = sums.wrapping_add(f * self.ci + v);
                    let to = tmp.cast::<f32>().wrapping_add(9 * f * self.ci + v);
                    // SAFETY: the block's sums; the buffer holds its weights.
                    finite +=
                        unsafe { (self.ks.unfilter)(from, self.co * self.ci, self.parts, self.sums(), to, self.ci) };
                }
            }
            let n = self.ci as isize;
            let to = i0 as isize * o.major + o0 as isize * o.minor;
            let to = Ptr(o.ptr).at::<u8>(to * o.elem.size() as isize);
            let dims = [no, 3, 3, ni];
            let st = [o.minor, self.g.out_spatial[1], self.g.out_spatial[2], o.major];
            // SAFETY: the block's weights.
            unsafe {
                copy(&View::new(to, o.elem, &dims, &st), &View::new(tmp, Elem::F32, &dims, &[9 * n, 3 * n, n, 1]))?;
            }
            Ok(finite == 0.0)
        })?
    }
}

/// False: a weight is not finite, and all are to be computed in another way.
///
/// # Safety
/// The contract of `conv`; [`fits`].
pub(in super::super) unsafe fn run(c: &Conv, g: &Geometry) -> Result<bool, LibError> {
    let p = Plan::new(c, g);
    let [bi, bo] = p.blocks;
    let cost = (DOMAIN * c.in_features * p.ty * p.tx) as f64 * (c.batch * c.out_features) as f64 / 30.0;
    scratch([p.sums_bytes(), 0, 0], |[sums, _, _]| {
        let sums = Ptr(sums);
        let at = |block: usize, part: usize| sums.at::<f32>(((block * p.parts + part) * p.sums()) as isize);
        pool::try_for(bi * bo * p.parts, cost as u64, &|t| {
            let (part, b) = (t / (bi * bo), t % (bi * bo));
            // SAFETY: each task has its own sums.
            unsafe { p.sum(b / bo, b % bo, part, at(b, part)) }
        })?;
        let finite = AtomicBool::new(true);
        pool::try_for(bi * bo, (p.sums_bytes() / 8) as u64, &|b| {
            // SAFETY: blocks are disjoint parts of the output.
            if !unsafe { p.finish(b / bo, b % bo, at(b, 0)) }? {
                finite.store(false, Ordering::Relaxed);
            }
            Ok::<(), LibError>(())
        })?;
        Ok(finite.into_inner())
    })?
}

/// Bytes of work memory that [`run`] takes on all threads.
pub(in super::super) fn work_bytes(c: &Conv, g: &Geometry) -> usize {
    let p = Plan::new(c, g);
    let blocks = p.blocks[0] * p.blocks[1];
    let most = pool::num_threads();
    let task = room(&p.task_bytes()) * most.min(blocks * p.parts);
    room(&[p.sums_bytes()]) + task.max(room(&[p.weight_bytes()]) * most.min(blocks))
}
