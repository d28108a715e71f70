//! Padded planes: channels copied so that every tap of every output is at a fixed offset.
//!
//! A plane is one channel of one image (or some of its rows) with its padding written out. Where outputs are `step`
//! elements apart, a row is stored by phases (elements 0, s, 2s, … then 1, s+1, …): neighbouring outputs are neighbours
//! in memory under every tap, so a vector of outputs is one load.

use super::ConvDim;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::simd;
use crate::cpu::lib::view::Ptr;

/// One spatial dimension: output `l` meets input `l·step + t·tap - pad` under tap `t`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) input: usize,
    pub(super) lanes: usize,
    pub(super) step: usize,
    pub(super) taps: usize,
    pub(super) tap: usize,
    pub(super) pad: isize,
}

impl Axis {
    /// Lanes are the outputs.
    pub(super) fn outputs(d: &ConvDim) -> Axis {
        Axis { input: d.input, lanes: d.output, step: d.stride, taps: d.window, tap: d.rhs_dilation, pad: d.pad_lo }
    }

    /// Lanes are the window's positions: the weight gradient, whose window is the output's gradient.
    pub(super) fn window(d: &ConvDim) -> Axis {
        Axis { input: d.input, lanes: d.window, step: d.rhs_dilation, taps: d.output, tap: d.stride, pad: d.pad_lo }
    }

    /// Whether any output meets padded position `at` under some tap.
    fn meets(&self, at: usize) -> bool {
        (0..self.taps).any(|t| t * self.tap % self.step == at % self.step)
    }

    /// Padded positions that the first `lanes` outputs meet.
    pub(super) fn extent(&self, lanes: usize) -> usize {
        (lanes - 1) * self.step + (self.taps - 1) * self.tap + 1
    }
}

/// Layout of a channel's padded rows, in elements (f32).
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    pub(super) y: Axis,
    pub(super) x: Axis,
    /// Elements of a row's phase, and of a row.
    phase: usize,
    pub(super) row: usize,
}

impl Planes {
    /// Rows have room for lanes rounded up to vectors of `vector`.
    pub(super) fn new(y: Axis, x: Axis, vector: usize) -> Planes {
        let phase = x.lanes.next_multiple_of(vector) + (x.taps - 1) * x.tap / x.step;
        Planes { y, x, phase, row: phase * x.step }
    }

    /// Elements of `lanes` rows of outputs.
    pub(super) fn plane(&self, lanes: usize) -> usize {
        self.y.extent(lanes) * self.row
    }

    /// Offset of tap (ty, tx) from an output's own place.
    pub(super) fn tap(&self, ty: usize, tx: usize) -> usize {
        let at = tx * self.x.tap;
        ty * self.y.tap * self.row + at % self.x.step * self.phase + at / self.x.step
    }

    /// Offset of output (y, x), `y` counted from the plane's first.
    pub(super) fn lane(&self, y: usize, x: usize) -> usize {
        y * self.y.step * self.row + x
    }

    /// Copies what outputs `y0..y0 + lanes` meet of a channel at `src` (byte stride `stride` between rows, elements
    /// side by side) to `dst`, and asks for the lines of the channel that lies `next` bytes further: a channel is often
    /// just a page, at whose end the processor's own prefetching stops.
    ///
    /// # Safety
    /// `src` covers the channel, `dst` holds `plane(lanes)` numbers.
    pub(super) unsafe fn fill(
        &self,
        elem: Elem,
        src: Ptr,
        stride: isize,
        y0: usize,
        lanes: usize,
        dst: *mut f32,
        next: isize,
    ) {
        let first = (y0 * self.y.step) as isize - self.y.pad;
        for r in (0..self.y.extent(lanes)).filter(|&r| self.y.step == 1 || self.y.meets(r)) {
            let out = dst.wrapping_add(r * self.row);
            let y = first + r as isize;
            // SAFETY: row `r` of the buffer, and an existing row of the channel.
            unsafe {
                if y < 0 || y >= self.y.input as isize {
                    out.write_bytes(0, self.row);
                } else {
                    let row = src.at::<u8>(y * stride).cast_const();
                    simd::prefetch(row.wrapping_offset(next), self.x.input * elem.size());
                    self.fill_row(elem, row, out);
                }
            }
        }
    }

    unsafe fn fill_row(&self, elem: Elem, src: *const u8, out: *mut f32) {
        let (s, n) = (self.x.step as isize, self.x.input as isize);
        for p in (0..s).filter(|&p| s == 1 || self.x.meets(p as usize)) {
            let out = out.wrapping_add(p as usize * self.phase);
            // Places j of this phase that lie in the input: 0 <= p + s·j - pad < n.
            let len = self.phase as isize;
            let lo = ((self.x.pad - p + s - 1).div_euclid(s)).clamp(0, len);
            let hi = ((n + self.x.pad - p + s - 1).div_euclid(s)).clamp(lo, len);
            // SAFETY: `lo..hi` of the phase lie in the input.
            unsafe {
                let from = src.wrapping_offset((p + s * lo - self.x.pad) * elem.size() as isize);
                let (to, count) = (out.offset(lo), (hi - lo) as usize);
                simd::zero_ends(out, lo as usize, hi as usize, self.phase);
                match (elem, s) {
                    (Elem::F32, 1) => simd::copy_short(from.cast(), to, count),
                    (_, 1) => simd::load_f32(elem, from, to, count),
                    (Elem::F32, 2) => simd::every_second(from.cast(), to, count),
                    _ => {
                        for j in 0..count {
                            *to.add(j) = elem.load_f64(from.offset(j as isize * s * elem.size() as isize)) as f32;
                        }
                    }
                }
            }
        }
    }
}
