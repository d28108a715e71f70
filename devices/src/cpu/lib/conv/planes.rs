//! Padded planes: channels copied so that every tap of every output is at a fixed offset.
//!
//! A plane is one channel of one image (or some of its rows) with its padding written out. Where outputs are `step`
//! elements apart, a row is stored by phases (elements 0, s, 2s, … then 1, s+1, …): neighbouring outputs are neighbours
//! in memory under every tap, so a vector of outputs is one load.

use super::ConvDim;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::simd;
use crate::cpu::lib::view::Ptr;
use smallvec::SmallVec;

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
        let phases = self.phases();
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
                    self.fill_row(elem, row, &phases, out);
                }
            }
        }
    }

    /// The phases that outputs meet: the same for all rows.
    fn phases(&self) -> SmallVec<[Phase; 4]> {
        let (s, n, len) = (self.x.step as isize, self.x.input as isize, self.phase as isize);
        let each = |p: isize| {
            // Places j of this phase that lie in the input: 0 <= p + s·j - pad < n.
            let lo = ((self.x.pad - p + s - 1).div_euclid(s)).clamp(0, len);
            let hi = ((n + self.x.pad - p + s - 1).div_euclid(s)).clamp(lo, len);
            let at = p as usize * self.phase;
            Phase { at, lo: lo as usize, hi: hi as usize, from: p + s * lo - self.x.pad }
        };
        (0..s).filter(|&p| s == 1 || self.x.meets(p as usize)).map(each).collect()
    }

    unsafe fn fill_row(&self, elem: Elem, src: *const u8, phases: &[Phase], out: *mut f32) {
        let s = self.x.step as isize;
        // SAFETY: `lo..hi` of each phase lie in the input, and each phase in the row.
        unsafe {
            for p in phases {
                simd::zero_ends(out.add(p.at), p.lo, p.hi, self.phase);
            }
            if let ([p, q], Elem::F32, 2) = (phases, elem, s) {
                // Neighbours: both at once.
                let (a, b) = if p.from < q.from { (p, q) } else { (q, p) };
                if b.from == a.from + 1 {
                    let from = src.cast::<f32>().wrapping_offset(a.from);
                    return simd::split(from, (out.add(a.at + a.lo), a.hi - a.lo), (out.add(b.at + b.lo), b.hi - b.lo));
                }
            }
            for p in phases {
                let from = src.wrapping_offset(p.from * elem.size() as isize);
                let (to, count) = (out.add(p.at + p.lo), p.hi - p.lo);
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

/// A phase of a row: where it begins, its places `lo..hi` that are elements of the input, and the first of these.
struct Phase {
    at: usize,
    lo: usize,
    hi: usize,
    from: isize,
}
