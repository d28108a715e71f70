//! The work on one range of columns and one chunk of k: packing what is shared, then rectangles of C.

use std::ops::Range;

use super::driver::{Job, cost_ns};
use super::kernel::UNROLL;
use super::pack::Unit;
use super::plan::Task;
use super::scratch::scratch;
use super::strip::{Ahead, Strip, strip_rows};
use super::whole::Packed;
use crate::cpu::lib::elem::Scalar;
use crate::cpu::lib::view::Ptr;
use crate::cpu::pool;
use crate::memory::OutOfMemory;

/// Columns of the blocks that the epilogue sees, and of B that a flat product's task packs at once.
pub(super) const GROUP: usize = 128;

/// Where a task finds an operand.
pub(super) enum Source<U> {
    /// Where it lies: element (lane, k) at `p + lane·lane_stride + k·k_stride`.
    Place { p: *const U, lane: isize, k: isize },
    /// Packed before the tasks began.
    Shared(*mut U),
    /// Packed in an earlier call, all of it.
    Ready(Packed<U>),
    /// The task packs it, a block at a time.
    Own,
}

impl<U> Clone for Source<U> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<U> Copy for Source<U> {}

/// Rows of A in a block of k.
pub(super) struct Rows<U> {
    p: *const U,
    lane: isize,
    k: isize,
    packed: bool,
}

/// Columns `g..g + n` of a block `blk` of k.
pub(super) struct Columns {
    pub(super) blk: usize,
    pub(super) g: usize,
    pub(super) n: usize,
}

/// The work on one range of columns and one chunk of k.
pub(super) struct Pass<'a, U: 'static, T: 'static> {
    pub(super) job: &'a Job<'a, U, T>,
    pub(super) batch: usize,
    pub(super) jc: usize,
    pub(super) nc: usize,
    /// First unit of k and number of units; `blocks` blocks of `kc` (the last may be shorter).
    pub(super) u0: usize,
    pub(super) cu: usize,
    pub(super) kc: usize,
    pub(super) blocks: usize,
    pub(super) a: Source<U>,
    pub(super) b: Source<U>,
    /// Sums in C itself: its address and row stride.
    pub(super) direct: Option<(Ptr, isize)>,
    /// The first block adds to what is there.
    pub(super) acc: bool,
    /// Sums are complete after this pass.
    pub(super) last: bool,
}

// SAFETY: addresses of operands, which are only read, and of buffers and C, which tasks write in
// disjoint parts.
unsafe impl<U, T> Sync for Pass<'_, U, T> {}

impl<U: Unit, T: Scalar> Pass<'_, U, T> {
    /// Block `blk` of k: first unit, units, elements.
    pub(super) fn block(&self, blk: usize) -> (usize, usize, usize) {
        let k0 = self.u0 + blk * self.kc;
        let len = self.kc.min(self.cu - blk * self.kc);
        (k0, len, (len * U::K).min(self.job.k - (k0 * U::K).min(self.job.k)))
    }

    /// Packs the shared operands, all threads together.
    pub(super) unsafe fn pack_shared(&self, threads: usize, a_too: bool) {
        let (mr, nr) = (self.job.kernel.mr, self.job.kernel.nr);
        let mut list = Vec::new();
        for (is_b, s, lanes, width) in [(false, self.a, self.job.m, mr), (true, self.b, self.nc, nr)] {
            let Source::Shared(p) = s else { continue };
            if !is_b && !a_too {
                continue;
            }
            let part = if threads == 1 { lanes } else { (lanes * self.blocks / (4 * threads)).max(4 * width) };
            let part = part.next_multiple_of(width);
            for blk in 0..self.blocks {
                list.extend((0..lanes).step_by(part).map(|l| (is_b, p, lanes, width, blk, l, part.min(lanes - l))));
            }
        }
        let cells: usize = list.iter().map(|t| t.6 * self.kc).sum();
        let list = List(list);
        pool::parallel_for(list.0.len(), cells as u64 / 3, &|t| {
            let (is_b, p, lanes, width, blk, l, count) = list.get(t);
            let (k0, len, elements) = self.block(blk);
            let dst = p.wrapping_add(blk * self.kc * lanes.next_multiple_of(width) + l * len);
            // SAFETY: parts of the buffer are disjoint; lanes and k lie within the operand.
            unsafe {
                if is_b {
                    self.job.b.pack(self.batch, self.jc + l, count, k0 * U::K, elements, width, dst)
                } else {
                    self.job.a.pack(self.batch, l, count, k0 * U::K, elements, width, dst)
                }
            };
        });
    }

    /// Runs the tasks; their columns count from `jc`.
    pub(super) unsafe fn tasks(&self, list: &[Task]) -> Result<(), OutOfMemory> {
        let flops = 2.0 * self.job.m as f64 * self.nc as f64 * (self.cu * U::K) as f64;
        pool::try_for(list.len(), cost_ns(flops), &|t| {
            // SAFETY: tasks cover disjoint rectangles of C.
            unsafe { self.task(list[t].rows.clone(), list[t].cols.clone()) }
        })
    }

    /// Columns of a group of strips.
    fn group(&self) -> usize {
        let nr = self.job.kernel.nr;
        // A flat product fetches the next group while it computes this one: a line of every row takes one tile.
        let own = if self.kc >= 256 { self.kc / UNROLL } else { GROUP };
        let group = if let Source::Own = self.b { own.min(GROUP) } else { GROUP };
        (group / nr).max(1) * nr
    }

    /// Row stride of sums in scratch: those that need several blocks of k are kept for all columns, else for one group.
    fn ld(&self, cols: &Range<usize>) -> usize {
        if self.blocks > 1 { cols.len().next_multiple_of(self.job.kernel.nr) } else { self.group() }
    }

    /// Bytes of a task's own work memory: of A, of B, of sums.
    pub(super) fn work(&self, rows: &Range<usize>, cols: &Range<usize>) -> [usize; 3] {
        let (kn, unit) = (self.job.kernel, size_of::<U>());
        let ragged = !cols.len().is_multiple_of(kn.lanes);
        [
            if let Source::Own = self.a { rows.len().next_multiple_of(kn.mr) * self.kc * unit } else { 0 },
            match self.b {
                Source::Own => self.group() * self.kc * unit,
                Source::Place { .. } if ragged => kn.nr * self.kc * unit,
                _ => 0,
            },
            if self.direct.is_none() { rows.len() * self.ld(cols) * size_of::<T>() } else { 0 },
        ]
    }

    /// One rectangle of C.
    unsafe fn task(&self, rows: Range<usize>, cols: Range<usize>) -> Result<(), OutOfMemory> {
        let job = self.job;
        let kn = job.kernel;
        let (mr, nr) = (kn.mr, kn.nr);
        let m = rows.len();
        let group = self.group();
        let in_scratch = self.direct.is_none();
        let ld = self.ld(&cols);
        let bytes = self.work(&rows, &cols);
        scratch(bytes, |[pa, pb, ps]| {
            let (pa, pb, ps) = (pa.cast::<U>(), pb.cast::<U>(), ps.cast::<T>());
            for blk in 0..self.blocks {
                let (k0, len, elements) = self.block(blk);
                if let Source::Own = self.a {
                    // SAFETY: the buffer holds the rows' panels.
                    unsafe { job.a.pack(self.batch, rows.start, m, k0 * U::K, elements, mr, pa) };
                }
                let a = self.rows(blk, rows.start, pa);
                let complete = self.last && blk + 1 == self.blocks;
                for g in cols.clone().step_by(group) {
                    let gc = group.min(cols.end - g);
                    let (c, ldc) = match self.direct {
                        Some((p, ld)) => (p.at::<T>(rows.start as isize * ld + (self.jc + g) as isize), ld),
                        None => (ps.wrapping_add(if self.blocks > 1 { g - cols.start } else { 0 }), ld as isize),
                    };
                    if in_scratch && self.acc && blk == 0 {
                        // SAFETY: the block lies within C and the scratch.
                        unsafe { job.finish.preload(c, ld, self.batch, rows.start, m, self.jc + g, gc) };
                    }
                    if let Source::Own = self.b {
                        // SAFETY: the buffer holds the group's panels.
                        unsafe { job.b.pack(self.batch, self.jc + g, gc, k0 * U::K, elements, nr, pb) };
                    }
                    let coming = match (&self.b, job.b.lines(self.batch)) {
                        (Source::Own, Some((p, lane, k, size))) => {
                            let same = g + group < cols.end;
                            let (l, k1) = if same { (g + group, k0) } else { (cols.start, k0 + self.kc) };
                            let at = (self.jc + l) as isize * lane + (k1 * U::K) as isize * k;
                            Some(Ahead::matrix(p.wrapping_offset(at), lane, k, size, gc, len * U::K))
                        }
                        _ => None,
                    };
                    // SAFETY: the rows, the columns and the block of C are this task's.
                    unsafe { self.strips(&a, m, &Columns { blk, g, n: gc }, c, ldc, pb, coming.as_ref()) };
                    if complete && (in_scratch || job.finish.epilogue.is_some()) {
                        let (r0, c0) = (rows.start, self.jc + g);
                        // SAFETY: the block is complete.
                        unsafe { job.finish.tile(c, ldc, in_scratch, self.batch, r0, m, c0, gc) };
                    }
                }
            }
        })
    }

    /// Block `blk` of A's rows from `row` on; `own`: where they are packed if not for all tasks.
    pub(super) fn rows(&self, blk: usize, row: usize, own: *const U) -> Rows<U> {
        let (k0, len, _) = self.block(blk);
        let mr = self.job.kernel.mr;
        let packed = |p: *const U| Rows { p, lane: 1, k: mr as isize, packed: true };
        match self.a {
            Source::Place { p, lane, k } => {
                Rows { p: p.wrapping_offset(row as isize * lane + k0 as isize * k), lane, k, packed: false }
            }
            Source::Shared(p) => {
                packed(p.wrapping_add(blk * self.kc * self.job.m.next_multiple_of(mr) + row * len).cast_const())
            }
            Source::Ready(p) => packed(p.at(0, k0, row, len)),
            Source::Own => packed(own),
        }
    }

    /// Adds the products of `m` rows of A in a block of k and columns of B to C, or puts them there.
    ///
    /// # Safety
    /// C covers the rows and columns and is nobody else's meanwhile; `pb`: the columns packed, if each task packs its
    /// own, and room for a panel, if B is read where it lies.
    pub(super) unsafe fn strips(
        &self,
        a: &Rows<U>,
        m: usize,
        cols: &Columns,
        c: *mut T,
        ldc: isize,
        pb: *mut U,
        coming: Option<&Ahead>,
    ) {
        let kn = self.job.kernel;
        let (nr, g) = (kn.nr, cols.g);
        let (k0, len, elements) = self.block(cols.blk);
        let strip_bytes = len * nr * size_of::<U>();
        let panels = m.div_ceil(kn.mr);
        for j in (0..cols.n).step_by(nr) {
            let w = nr.min(cols.n - j);
            let (b, b_k) = match self.b {
                Source::Place { p, k, .. } if w % kn.lanes == 0 => {
                    (p.wrapping_offset((self.jc + g + j) as isize + k0 as isize * k), k)
                }
                Source::Place { .. } => {
                    // The last columns, which no whole vector covers.
                    // SAFETY: the buffer holds one panel.
                    unsafe { self.job.b.pack(self.batch, self.jc + g + j, w, k0 * U::K, elements, nr, pb) };
                    (pb.cast_const(), nr as isize)
                }
                Source::Shared(p) => {
                    let at = cols.blk * self.kc * self.nc.next_multiple_of(nr) + (g + j) * len;
                    (p.wrapping_add(at).cast_const(), nr as isize)
                }
                Source::Ready(packed) => (packed.at(0, k0, self.jc + g + j, len), nr as isize),
                Source::Own => (pb.wrapping_add(j * len).cast_const(), nr as isize),
            };
            let (padded, acc) = (self.direct.is_none(), self.acc || cols.blk > 0);
            let strip = Strip { a: a.p, a_r: a.lane, a_k: a.k, packed: a.packed, b, b_k, len, w, padded, acc };
            // SAFETY: all panels of the strip lie in packed blocks (or the operands), and its rows in C (or the padded
            // scratch).
            unsafe {
                match coming {
                    Some(x) => strip_rows(kn, &strip, m, c.wrapping_add(j), ldc, x, j / nr * panels),
                    None => {
                        // The next strip of packed B lies behind this one.
                        let x = Ahead::line(b.cast::<u8>().wrapping_add(strip_bytes), strip_bytes, len);
                        strip_rows(kn, &strip, m, c.wrapping_add(j), ldc, &x, 0)
                    }
                }
            };
        }
    }
}

/// Packing tasks: B or A, its buffer, its lanes, panel width; block of k, first lane, lanes.
type PackTask<U> = (bool, *mut U, usize, usize, usize, usize, usize);
struct List<U>(Vec<PackTask<U>>);
// SAFETY: addresses of disjoint parts of a buffer.
unsafe impl<U> Sync for List<U> {}
impl<U> List<U> {
    fn get(&self, n: usize) -> PackTask<U> {
        self.0[n]
    }
}
