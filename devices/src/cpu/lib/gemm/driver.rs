//! The blocked product: how C is divided among tasks, and who packs what when.
//!
//! A packed operand is packed once, not once per task. Two forms:
//! - *tall* (many rows): B is packed for everybody first; then tasks are blocks of rows, which pack
//!   their own rows of A (or read them where they lie).
//! - *flat* (no more rows than a task's block, or some more that need no packing): A is packed for
//!   everybody; then tasks are ranges of columns, which pack their own columns of B a few strips at a
//!   time, just before use.
//!
//! If rows are few for the threads, a tall product packs both operands first and divides the columns
//! too. Tasks are claimed one by one, large ones first, so that threads end together.
//! Where B is packed before the tasks begin, several threads work as a [`team`](super::team) instead.
//! k is blocked alike in all forms: the result does not depend on the number of threads.
//!
//! An operand that is the same in every call (weights) is packed once, as a whole, where its owner keeps it ([`ready`]).

use std::sync::Arc;

use super::finish::Finish;
use super::kernel::Kernel;
use super::pack::{Pack, Unit};
use super::pass::{GROUP, Pass, Source};
use super::plan::{Limits, Task, even};
use super::scratch::{room, shared};
use super::team::Plan;
use super::whole::{Packed, Whole};
use crate::cpu::lib::elem::Scalar;
use crate::cpu::lib::view::{LibError, Ptr};
use crate::cpu::pool;
use crate::kept::Kept;
use crate::memory::{MemoryPool, OutOfMemory};

/// Units of k that are packed at a time for all tasks.
const K_OUTER: usize = 4096;
/// Bytes of an operand packed for all tasks: a part of the last-level cache.
const SHARED_BYTES: usize = 8 << 20;
/// The same under a memory limit: it is a part of every program's memory.
const SHARED_BYTES_UNDER_LIMIT: usize = 512 << 10;
/// How much of it there is does not change the order of sums.
fn shared_bytes() -> usize {
    if MemoryPool::cpu().limit().is_some() { SHARED_BYTES_UNDER_LIMIT } else { SHARED_BYTES }
}
/// Bytes of A's rows, a block of k, that a flat product reads for every strip of columns: a part of the L2 cache.
pub(super) fn flat_bytes<U, T>(kn: &Kernel<U, T>) -> usize {
    if kn.is_wide() { 576 << 10 } else { 288 << 10 }
}
/// Columns of a pass whose sums live in scratch over several blocks of k.
const SCRATCH_COLS: usize = 1024;

/// A product over packing sources.
pub(crate) struct Job<'a, U: 'static, T: 'static> {
    pub(crate) kernel: &'static Kernel<U, T>,
    pub(crate) m: usize,
    pub(crate) n: usize,
    /// Elements of k.
    pub(crate) k: usize,
    pub(crate) batches: usize,
    /// Lanes are the rows.
    pub(crate) a: &'a dyn Pack<U>,
    /// Lanes are the columns.
    pub(crate) b: &'a dyn Pack<U>,
    pub(crate) finish: Finish<'a>,
}

/// Runs the product. See [`super::gemm`] for the contract.
///
/// # Safety
/// The packing sources' and the output's memory is live and C overlaps neither source.
pub(crate) unsafe fn run<U: Unit, T: Scalar>(job: &Job<U, T>) -> Result<(), LibError> {
    let threads = pool::num_threads();
    let flops = 2.0 * job.m as f64 * job.n as f64 * job.k.max(1) as f64;
    // SAFETY: the caller's contract; batch indices own disjoint parts of C.
    unsafe {
        let apart = side_by_side(job, threads);
        let kept = ready(job, if apart { 1 } else { threads });
        if !apart {
            for batch in 0..job.batches {
                product(job, batch, threads, &kept)?;
            }
            return Ok(());
        }
        let cost = cost_ns(flops * job.batches as f64);
        pool::try_for(job.batches, cost, &|batch| product(job, batch, 1, &kept))?;
    }
    Ok(())
}

pub(super) fn cost_ns(flops: f64) -> u64 {
    (flops / 60.0) as u64
}

/// An operand that is kept packed. `shared`: by all products of the batch.
struct Ready<U> {
    packed: Packed<U>,
    shared: bool,
    _kept: Arc<Kept>,
}

impl<U> Ready<U> {
    fn of(&self, batch: usize) -> Packed<U> {
        self.packed.product(if self.shared { 0 } else { batch })
    }
}

/// The operands, A and B, that are kept packed: of those that a product would pack.
unsafe fn ready<U: Unit, T: Scalar>(job: &Job<U, T>, threads: usize) -> [Option<Ready<U>>; 2] {
    let keeps = [job.a.keep(), job.b.keep()];
    if keeps.iter().all(Option::is_none) {
        return [None, None];
    }
    let blocks = Blocks::new(job, 0, threads, [None, None]);
    let kn = job.kernel;
    let of = [(blocks.a, job.m, kn.mr, job.a), (blocks.b, job.n, kn.nr, job.b)];
    let mut each = keeps.into_iter().zip(of).map(|(keep, (source, lanes, width, pack))| {
        let (keep, false) = (keep?, matches!(source, Source::Place { .. })) else { return None };
        let products = if keep.shared { 1 } else { job.batches };
        let whole = Whole { products, lanes, k: job.k, width, kc: blocks.kc };
        let shared = keep.shared;
        // SAFETY: the caller's contract.
        let kept = unsafe { whole.kept(pack, keep) }?;
        Some(Ready { packed: whole.packed(kept.ptr().cast()), shared, _kept: kept })
    });
    [each.next().flatten(), each.next().flatten()]
}

/// How one product is divided: depends on sizes and strides only.
struct Blocks<U> {
    /// Units of k, and of a block of them.
    units: usize,
    kc: usize,
    /// Units of k and columns that are packed at a time.
    chunk: usize,
    nc: usize,
    flat: bool,
    a: Source<U>,
    b: Source<U>,
    limits: Limits,
    /// How several threads share the work, if they do it as a team.
    team: Option<Plan>,
    /// Bytes of the operands packed for all tasks.
    shared: [usize; 2],
}

impl<U: Unit> Blocks<U> {
    /// `kept`: the operands that are packed already.
    fn new<T: Scalar>(job: &Job<U, T>, batch: usize, threads: usize, kept: [Option<Packed<U>>; 2]) -> Blocks<U> {
        let kn = job.kernel;
        let (mr, nr, unit) = (kn.mr, kn.nr, size_of::<U>());
        let (m, n) = (job.m, job.n);
        let mc = kn.mc;
        let units = job.k.div_ceil(U::K);
        // Blocks of k, and so the order of the sums, depend on nothing but k.
        let kc = units.div_ceil(units.div_ceil(kn.kc).max(1)).max(1);
        let direct = job.finish.direct::<T>(batch);
        let in_place = job.a.direct(batch).filter(|&(_, lane, k)| a_in_place(kn, m, n, units, unit, lane, k));
        // More rows too, as long as a block of A stays in the L2 cache: no waiting for B's packing. With a small L2 cache
        // that pays only if A needs no packing either.
        let flat = m <= mc || ((in_place.is_some() || kn.is_wide()) && m * kc * unit <= flat_bytes(kn));
        let a = match in_place {
            Some((p, lane, k)) => Source::Place { p, lane, k },
            None if let Some(packed) = kept[0] => Source::Ready(packed),
            // With rows for everybody, tasks have rows of their own, packed into their own caches; else they divide the
            // columns too.
            None if threads > 1 && (flat || m < 16 * mr * threads) => Source::Shared(std::ptr::null_mut()),
            None => Source::Own,
        };
        let b = match job.b.direct(batch) {
            Some((p, lane, k)) if lane == 1 && (m <= 3 * mr || units * n * unit <= 32 << 10) => {
                Source::Place { p, lane, k }
            }
            _ if let Some(packed) = kept[1] => Source::Ready(packed),
            _ if flat => Source::Own,
            _ => Source::Shared(std::ptr::null_mut()),
        };
        let ahead = match b {
            // All threads read all of B: columns of many are divided instead.
            Source::Ready(_) => !flat || n * units * unit <= SHARED_BYTES,
            Source::Shared(_) => true,
            Source::Own | Source::Place { .. } => false,
        };
        let team = match a {
            // Under a memory limit less is packed at a time.
            _ if MemoryPool::cpu().limit().is_some() => None,
            Source::Shared(_) | Source::Own | Source::Ready(_) if ahead => Plan::new(kn, threads, m, units),
            _ => None,
        };
        let a = if team.is_some() && matches!(a, Source::Shared(_)) { Source::Own } else { a };
        // Units of k packed at a time. Sums in scratch stay there until they are complete.
        let bound = if let Source::Shared(_) = a { (shared_bytes() / (m * unit)).max(2 * kc) } else { K_OUTER };
        let chunk =
            if direct.is_some() && team.is_none() { (bound.min(K_OUTER) / kc).max(1) * kc } else { units.max(1) };
        let nc = if flat || (team.is_some() && matches!(b, Source::Ready(_))) {
            n
        } else {
            let max = (shared_bytes() / (chunk * unit)).max(nr);
            let max = if direct.is_none() && units > kn.kc && team.is_none() { max.min(SCRATCH_COLS) } else { max };
            even(n, max / nr * nr, nr)
        };
        let limits = Limits {
            threads,
            flops: 2.0 * job.k.max(1) as f64,
            mr,
            nr,
            max_rows: mc,
            max_cols: if flat { 8 * GROUP } else { nc },
            min_cols: if let Source::Own = a { 16 * nr } else { 4 * nr },
        };
        // No more units than there are: a chunk may be longer than k.
        let packed = chunk.min(units.next_multiple_of(kc));
        let (lanes_a, lanes_b) = (m.next_multiple_of(mr), nc.next_multiple_of(nr));
        let room = |s: &Source<U>, lanes| if matches!(s, Source::Shared(_)) { lanes * packed * unit } else { 0 };
        let panels = match (&team, &a) {
            (Some(plan), Source::Own) => plan.rows() * units.next_multiple_of(kc) * unit,
            _ => room(&a, lanes_a),
        };
        let shared = [panels, room(&b, lanes_b)];
        Blocks { units, kc, chunk, nc, flat, a, b, limits, team, shared }
    }

    /// The work on columns from `jc` and units from `u0` on, with shared operands at `pa` and `pb`.
    fn pass<'a, T: Scalar>(
        &self,
        job: &'a Job<'a, U, T>,
        batch: usize,
        (jc, u0): (usize, usize),
        [pa, pb]: [*mut u8; 2],
    ) -> Pass<'a, U, T> {
        let place = |s: Source<U>, p: *mut u8| if let Source::Shared(_) = s { Source::Shared(p.cast()) } else { s };
        let cu = self.chunk.min(self.units - u0.min(self.units));
        Pass {
            job,
            batch,
            jc,
            nc: self.nc.min(job.n - jc),
            u0,
            cu,
            kc: self.kc,
            blocks: cu.div_ceil(self.kc).max(1),
            a: place(self.a, pa),
            b: place(self.b, pb),
            direct: job.finish.direct::<T>(batch).map(|(p, ld)| (Ptr(p.cast()), ld)),
            acc: u0 > 0 || job.finish.accumulate,
            last: u0 + cu >= self.units,
        }
    }

    fn list(&self, m: usize, columns: usize) -> Vec<Task> {
        if self.flat { self.limits.by_cols(m, columns) } else { self.limits.by_rows(m, columns) }
    }
}

/// Several products at a time, each on one thread; else one after the other, each on all.
fn side_by_side<U, T>(job: &Job<U, T>, threads: usize) -> bool {
    let flops = 2.0 * job.m as f64 * job.n as f64 * job.k.max(1) as f64;
    !(job.batches == 1 || threads == 1 || (job.batches < 2 * threads && flops >= 1e7))
}

/// Bytes of work memory that [`run`] takes at most, all threads together. Only sizes and strides count.
pub(crate) fn work_bytes<U: Unit, T: Scalar>(job: &Job<U, T>) -> usize {
    let threads = pool::num_threads();
    let (each, at_once) = if side_by_side(job, threads) { (1, threads.min(job.batches)) } else { (threads, 1) };
    let piece = |bytes: usize| bytes.next_multiple_of(64);
    // B may be kept packed, or not: that is known when it runs.
    let needs = [None, Some(Packed::nowhere())].map(|b| {
        let blocks = Blocks::new(job, 0, each, [None, b]);
        // The first pass is as large as any.
        let pass = blocks.pass(job, 0, (0, 0), [std::ptr::null_mut(); 2]);
        let own = match &blocks.team {
            Some(plan) => room(&plan.work(&pass)),
            None => blocks.list(job.m, pass.nc).iter().map(|t| room(&pass.work(&t.rows, &t.cols))).max().unwrap_or(0),
        };
        (piece(room(&blocks.shared)) + piece(own) * each) * at_once
    });
    needs[0].max(needs[1])
}

/// One product of the batch.
unsafe fn product<U: Unit, T: Scalar>(
    job: &Job<U, T>,
    batch: usize,
    threads: usize,
    kept: &[Option<Ready<U>>; 2],
) -> Result<(), OutOfMemory> {
    let blocks = Blocks::new(job, batch, threads, kept.each_ref().map(|r| r.as_ref().map(|r| r.of(batch))));
    shared(blocks.shared, |packed| {
        for jc in (0..job.n).step_by(blocks.nc) {
            for u0 in (0..blocks.units.max(1)).step_by(blocks.chunk) {
                let pass = blocks.pass(job, batch, (jc, u0), packed);
                // SAFETY: the buffers hold the pass's panels; the rest is the caller's contract.
                unsafe {
                    // A is packed for all columns once, B for each pass.
                    pass.pack_shared(threads, jc == 0 || blocks.units > blocks.chunk);
                    match &blocks.team {
                        Some(plan) => plan.run(&pass, packed[0].cast())?,
                        None => pass.tasks(&blocks.list(job.m, pass.nc))?,
                    }
                }
            }
        }
        Ok(())
    })?
}

/// Whether A's rows are best read where they lie.
fn a_in_place<U: Unit, T>(
    kn: &Kernel<U, T>,
    m: usize,
    n: usize,
    units: usize,
    unit: usize,
    lane: isize,
    k: isize,
) -> bool {
    // 512-bit multiply-adds, which are twice as fast as products of bf16 pairs, wait for numbers read from fourteen rows:
    // they run at two thirds of the speed that they have on packed ones.
    if kn.is_wide() && U::K == 1 && k == 1 {
        return n <= kn.nr;
    }
    if n <= 4 * kn.nr || units * m * unit <= 16 << 10 {
        return true;
    }
    // Short rows along k, read once per strip: a block of them stays in the caches as it is. Rows
    // further apart than they are long meet in few cache sets.
    k == 1 && units <= kn.kc && lane.unsigned_abs() <= 2 * units.max(16) && n <= 128 * kn.nr
}
