//! Several threads on one product whose B is packed before they begin.
//!
//! Most rows of C are in *blocks*, each computed by the thread that claims it. The last rows, about a share of the work
//! that a block is, are those of *homes*, one for a thread: it begins there and claims a few columns at a time; where
//! nothing is left it goes on with another home's columns. So threads end together whichever was held up, and none waits
//! for packing that another does: rows are packed by who uses them first, into memory that its own cache holds.
//!
//! Rows are packed along all of k: each block of columns is finished at once, while its sums are in the cache.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use super::driver::{cost_ns, flat_bytes};
use super::kernel::Kernel;
use super::pack::Unit;
use super::pass::{Columns, Pass, Source};
use super::scratch::scratch;
use crate::cpu::lib::elem::Scalar;
use crate::cpu::pool;
use crate::memory::OutOfMemory;

/// Fewest panels of rows in a home: they share what is read of B.
const LEAST_PANELS: usize = 4;
/// Bytes of sums that are finished at a time: the longer the rows, the less an epilogue spends on their ends.
const SUMS: usize = 160 << 10;
/// Columns of them, at least and at most.
const COLUMNS: Range<usize> = 128..512;
/// Fewest flops worth a claim.
const CLAIM_FLOPS: f64 = 5e5;

/// How rows are divided; in panels of `mr` rows.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    threads: usize,
    m: usize,
    mr: usize,
    /// Blocks, and panels of each.
    blocks: usize,
    per: usize,
    /// Homes; panels that are left for them.
    homes: usize,
    rest: usize,
}

/// Rows that a thread begins with.
struct Home<U> {
    rows: Range<usize>,
    state: AtomicU8,
    /// Strips of columns that are claimed.
    claimed: AtomicUsize,
    /// Where the rows are packed.
    panels: *mut U,
}

/// States of a home.
const RAW: u8 = 0;
const PACKING: u8 = 1;
const PACKED: u8 = 2;
const FAILED: u8 = 3;

// SAFETY: the panels are written by the thread that changes the state from RAW, and read after it is PACKED.
unsafe impl<U> Sync for Home<U> {}

/// Says when packing is done, or that it never will be.
struct Packing<'a>(&'a AtomicU8);
impl Drop for Packing<'_> {
    fn drop(&mut self) {
        self.0.store(if std::thread::panicking() { FAILED } else { PACKED }, Ordering::Release);
    }
}

impl Plan {
    /// None if one thread, or one row, is all there is, or k is too long for panels of a few rows in the L2 cache.
    pub(super) fn new<U, T>(kn: &Kernel<U, T>, threads: usize, m: usize, units: usize) -> Option<Plan> {
        let mr = kn.mr;
        let most = kn.mc.min(flat_bytes(kn) / (units.max(1) * size_of::<U>())) / mr;
        let panels = m.div_ceil(mr);
        if threads == 1 || most < LEAST_PANELS || panels < 2 * LEAST_PANELS {
            return None;
        }
        let rounds = panels.div_ceil(threads * most) - 1;
        let per = panels.div_ceil(threads * (rounds + 1));
        let blocks = (rounds * threads).min((panels - 1) / per);
        let rest = panels - blocks * per;
        let homes = (rest / LEAST_PANELS).clamp(rest.div_ceil(most), threads);
        Some(Plan { threads, m, mr, blocks, per, homes, rest })
    }

    /// Rows, with the last panel full, of all homes.
    pub(super) fn rows(&self) -> usize {
        self.rest * self.mr
    }

    fn block(&self, n: usize) -> Range<usize> {
        n * self.per * self.mr..(n + 1) * self.per * self.mr
    }

    fn home(&self, h: usize) -> Range<usize> {
        let at = |h: usize| ((self.blocks * self.per + self.rest * h / self.homes) * self.mr).min(self.m);
        at(h)..at(h + 1)
    }

    /// Most rows that are computed together.
    fn tallest(&self) -> usize {
        self.rest.div_ceil(self.homes).max(if self.blocks > 0 { self.per } else { 0 }) * self.mr
    }

    /// Columns that are finished together.
    fn group<U: Unit, T: Scalar>(&self, pass: &Pass<U, T>) -> usize {
        let nr = pass.job.kernel.nr;
        let columns = SUMS / (self.tallest() * size_of::<T>());
        columns.clamp(COLUMNS.start, COLUMNS.end).min(pass.nc.next_multiple_of(nr)) / nr * nr
    }

    /// Bytes of a thread's own work memory: of a block's panels, nothing, of sums.
    pub(super) fn work<U: Unit, T: Scalar>(&self, pass: &Pass<U, T>) -> [usize; 3] {
        let packs = matches!(pass.a, Source::Own) && self.blocks > 0;
        let panels = if packs { self.per * self.mr * pass.cu.next_multiple_of(pass.kc) * size_of::<U>() } else { 0 };
        let sums = if pass.direct.is_none() { self.tallest() * self.group(pass) * size_of::<T>() } else { 0 };
        [panels, 0, sums]
    }

    /// Computes the pass. `panels`: room for [`Plan::rows`] rows of all units of k, the homes', if A is not packed yet.
    ///
    /// # Safety
    /// As [`super::driver::run`]; the shared operands are packed.
    pub(super) unsafe fn run<U: Unit, T: Scalar>(&self, pass: &Pass<U, T>, panels: *mut U) -> Result<(), OutOfMemory> {
        let wide = pass.cu.next_multiple_of(pass.kc);
        let homes: Vec<Home<U>> = (0..self.homes)
            .map(|h| Home {
                rows: self.home(h),
                state: AtomicU8::new(if let Source::Own = pass.a { RAW } else { PACKED }),
                claimed: AtomicUsize::new(0),
                panels: panels.wrapping_add(self.rest * h / self.homes * self.mr * wide),
            })
            .collect();
        let team = Team { plan: self, pass, homes };
        let flops = 2.0 * self.m as f64 * pass.nc as f64 * (pass.cu * U::K) as f64;
        pool::try_for(self.blocks + self.threads, cost_ns(flops), &|t| {
            scratch(self.work(pass), |[room, _, sums]| {
                // SAFETY: blocks and claims of homes cover disjoint rectangles of C.
                unsafe {
                    if t < self.blocks {
                        team.block(t, room.cast(), sums.cast());
                    } else {
                        team.join(t - self.blocks, sums.cast());
                    }
                }
            })
        })
    }
}

struct Team<'p, 'a, U: 'static, T: 'static> {
    plan: &'p Plan,
    pass: &'p Pass<'a, U, T>,
    homes: Vec<Home<U>>,
}

impl<U: Unit, T: Scalar> Team<'_, '_, U, T> {
    /// Block `n`, packed in `room`.
    unsafe fn block(&self, n: usize, room: *mut U, sums: *mut T) {
        let rows = self.plan.block(n);
        let group = self.plan.group(self.pass);
        // SAFETY: the room is this thread's, and the rows are this block's.
        unsafe {
            if let Source::Own = self.pass.a {
                self.pack(&rows, room);
            }
            for g in (0..self.pass.nc).step_by(group) {
                self.rectangle(&rows, room, g..self.pass.nc.min(g + group), sums);
            }
        }
    }

    /// What is left of all homes, from the `n`th on.
    unsafe fn join(&self, n: usize, sums: *mut T) {
        for h in 0..self.homes.len() {
            let home = &self.homes[(n + h) % self.homes.len()];
            // SAFETY: claims are disjoint, the panels complete.
            unsafe {
                while let Some(cols) = self.claim(home) {
                    if !self.packed(home) {
                        return;
                    }
                    self.rectangle(&home.rows, home.panels, cols, sums);
                }
            }
        }
    }

    /// The next columns of a home: half of what is left, a group at most, so that the last ones are few.
    fn claim(&self, home: &Home<U>) -> Option<Range<usize>> {
        let (nr, nc) = (self.pass.job.kernel.nr, self.pass.nc);
        let strip = 2.0 * (home.rows.len() * nr * self.pass.cu.max(1) * U::K) as f64;
        let (total, least) = (nc.div_ceil(nr), (CLAIM_FLOPS / strip).ceil() as usize);
        let most = self.plan.group(self.pass) / nr;
        let take = |at: usize| ((total - at).div_ceil(2)).max(least).min(most);
        let next = |at: usize| (at < total).then(|| at + take(at));
        let at = home.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(at * nr..nc.min((at + take(at)) * nr))
    }

    /// Sees to it that a home's rows are packed; false if they cannot be.
    unsafe fn packed(&self, home: &Home<U>) -> bool {
        if home.state.compare_exchange(RAW, PACKING, Ordering::Acquire, Ordering::Acquire).is_ok() {
            let _done = Packing(&home.state);
            // SAFETY: the panels are this thread's until the state changes.
            unsafe { self.pack(&home.rows, home.panels) };
            return true;
        }
        let mut spins = 0u32;
        loop {
            match home.state.load(Ordering::Acquire) {
                PACKED => return true,
                FAILED => return false,
                _ => {}
            }
            spins += 1;
            if spins.is_multiple_of(1024) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Packs rows of A, all blocks of k one behind the other.
    unsafe fn pack(&self, rows: &Range<usize>, to: *mut U) {
        let (pass, mr) = (self.pass, self.plan.mr);
        for blk in 0..pass.blocks {
            let (k0, _, elements) = pass.block(blk);
            let to = self.panels(blk, rows, to);
            // SAFETY: the caller's room.
            unsafe { pass.job.a.pack(pass.batch, rows.start, rows.len(), k0 * U::K, elements, mr, to) };
        }
    }

    fn panels(&self, blk: usize, rows: &Range<usize>, at: *mut U) -> *mut U {
        at.wrapping_add(blk * self.pass.kc * rows.len().next_multiple_of(self.plan.mr))
    }

    /// One rectangle of C, from the first unit of k to the last.
    unsafe fn rectangle(&self, rows: &Range<usize>, panels: *mut U, cols: Range<usize>, sums: *mut T) {
        let pass = self.pass;
        let (m, n, col0) = (rows.len(), cols.len(), pass.jc + cols.start);
        let in_scratch = pass.direct.is_none();
        let (c, ldc) = match pass.direct {
            Some((p, ld)) => (p.at::<T>(rows.start as isize * ld + col0 as isize), ld),
            None => (sums, self.plan.group(pass) as isize),
        };
        let finish = &pass.job.finish;
        // SAFETY: the rectangle lies in C or its sums in scratch, which has room for a group of columns.
        unsafe {
            if in_scratch && pass.acc {
                finish.preload(c, ldc as usize, pass.batch, rows.start, m, col0, n);
            }
            for blk in 0..pass.blocks {
                let a = pass.rows(blk, rows.start, self.panels(blk, rows, panels));
                let cols = Columns { blk, g: cols.start, n };
                pass.strips(&a, m, &cols, c, ldc, std::ptr::null_mut(), None);
            }
            if in_scratch || finish.epilogue.is_some() {
                finish.tile(c, ldc, in_scratch, pass.batch, rows.start, m, col0, n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::gemm::kernel::f32_kernel;

    #[test]
    fn rows_are_covered_once() {
        let kn = f32_kernel();
        for threads in [2, 3, 7, 64] {
            for m in [1, 100, 112, 256, 1000, 1024, 1025, 5000, 100_001] {
                for units in [1, 256, 512, 1024] {
                    let Some(p) = Plan::new(kn, threads, m, units) else { continue };
                    let all = (0..p.blocks).map(|n| p.block(n)).chain((0..p.homes).map(|h| p.home(h)));
                    let mut at = 0;
                    for r in all {
                        assert!(r.start == at && r.end > at && r.start % kn.mr == 0, "{p:?} {r:?}");
                        assert!(r.len() <= p.tallest());
                        assert!(r.len().next_multiple_of(kn.mr) * units * 4 <= flat_bytes(kn));
                        at = r.end;
                    }
                    assert_eq!(at, m);
                }
            }
        }
    }
}
