//! Padded planes: channels copied so that every tap of every output is at a fixed offset.
//!
//! A plane is one channel of one image (or some of its rows) with its padding written out. Where outputs are `step`
//! elements apart, a row is stored by phases (elements 0, s, 2s, … then 1, s+1, …): neighbouring outputs are neighbours
//! in memory under every tap, so a vector of outputs is one load. Phases and rows that no output meets are left out.

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

    /// The remainders modulo `step` of the padded positions that outputs meet.
    fn met(&self) -> SmallVec<[usize; 4]> {
        let mut list: SmallVec<[usize; 4]> = (0..self.taps).map(|t| t * self.tap % self.step).collect();
        list.sort_unstable();
        list.dedup();
        list
    }
}

/// A phase of a row: where it begins, its places `lo..hi` that are elements of the input, and the first of these.
#[derive(Clone, Copy, Debug)]
struct Phase {
    at: usize,
    lo: usize,
    hi: usize,
    from: isize,
}

/// Layout of a channel's padded rows, in elements (f32).
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) y: Axis,
    pub(super) x: Axis,
    /// Remainders of the rows that are stored, and of the phases of each.
    rows: SmallVec<[usize; 4]>,
    columns: SmallVec<[usize; 4]>,
    phases: SmallVec<[Phase; 4]>,
    /// Elements of a row's phase, and of a row.
    phase: usize,
    row: usize,
}

impl Planes {
    /// Rows have room for lanes rounded up to vectors of `vector`.
    pub(super) fn new(y: Axis, x: Axis, vector: usize) -> Planes {
        let phase = x.lanes.next_multiple_of(vector) + (x.taps - 1) * x.tap / x.step;
        let (rows, columns) = (y.met(), x.met());
        let (s, n, len) = (x.step as isize, x.input as isize, phase as isize);
        let each = |(i, &p): (usize, &usize)| {
            let p = p as isize;
            // Places j of this phase that lie in the input: 0 <= p + s·j - pad < n.
            let lo = ((x.pad - p + s - 1).div_euclid(s)).clamp(0, len);
            let hi = ((n + x.pad - p + s - 1).div_euclid(s)).clamp(lo, len);
            Phase { at: i * phase, lo: lo as usize, hi: hi as usize, from: p + s * lo - x.pad }
        };
        let phases = columns.iter().enumerate().map(each).collect();
        let row = phase * columns.len();
        Planes { y, x, rows, columns, phases, phase, row }
    }

    /// The number of padded row `at`, one that outputs meet, among those that are stored.
    fn number(&self, at: usize) -> usize {
        at / self.y.step * self.rows.len() + self.rows.partition_point(|&r| r < at % self.y.step)
    }

    /// Rows that `lanes` rows of outputs meet.
    fn count(&self, lanes: usize) -> usize {
        (lanes - 1) * self.rows.len() + self.number((self.y.taps - 1) * self.y.tap) + 1
    }

    /// Elements of `lanes` rows of outputs.
    pub(super) fn plane(&self, lanes: usize) -> usize {
        self.count(lanes) * self.row
    }

    /// Offset of tap (ty, tx) from an output's own place.
    pub(super) fn tap(&self, ty: usize, tx: usize) -> usize {
        let at = tx * self.x.tap;
        let phase = self.columns.partition_point(|&p| p < at % self.x.step);
        self.number(ty * self.y.tap) * self.row + phase * self.phase + at / self.x.step
    }

    /// Offset of output (y, x), `y` counted from the plane's first.
    pub(super) fn lane(&self, y: usize, x: usize) -> usize {
        y * self.rows.len() * self.row + x
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
        let mut base = (y0 * self.y.step) as isize - self.y.pad;
        let mut which = 0;
        for r in 0..self.count(lanes) {
            let out = dst.wrapping_add(r * self.row);
            let y = base + self.rows[which] as isize;
            which += 1;
            if which == self.rows.len() {
                (base, which) = (base + self.y.step as isize, 0);
            }
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
        let s = self.x.step as isize;
        // SAFETY: `lo..hi` of each phase lie in the input, and each phase in the row.
        unsafe {
            for p in &self.phases {
                simd::zero_ends(out.add(p.at), p.lo, p.hi, self.phase);
            }
            if let ([p, q], Elem::F32, 2) = (&self.phases[..], elem, s) {
                // Neighbours: both at once.
                let (a, b) = if p.from < q.from { (p, q) } else { (q, p) };
                if b.from == a.from + 1 {
                    let from = src.cast::<f32>().wrapping_offset(a.from);
                    return simd::split(from, (out.add(a.at + a.lo), a.hi - a.lo), (out.add(b.at + b.lo), b.hi - b.lo));
                }
            }
            for p in &self.phases {
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
