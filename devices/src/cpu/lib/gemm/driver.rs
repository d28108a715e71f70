//! The blocked product: packs blocks of A and B and runs register tiles over them.
//!
//! A task computes a rectangle of C for one batch index. Inside it, for a range of columns, all of
//! B's k is packed once (up to `K_OUTER`); then for each block of rows the k blocks follow one
//! another, so that a block of C is finished, seen by the epilogue and converted while in the cache.

use std::cell::Cell;
use std::sync::Mutex;

use super::kernel::{KC, Kernel, MAX_TILE};
use super::pack::{Pack, SLACK, Unit};
use super::{BatchDim, Epilogue, Output, Tile, batch_offset};
use crate::cpu::lib::elem::{Elem, Scalar};
use crate::cpu::lib::simd;
use crate::cpu::lib::view::{LibError, Ptr};
use crate::cpu::pool;
use crate::memory::{Block, MemoryPool, OutOfMemory};

/// Units of k for which B is packed at a time.
const K_OUTER: usize = 2048;
/// Bytes of packed B: shares the last-level cache with other tasks.
const B_BYTES: usize = 8 << 20;
/// Columns of a block when sums live in scratch.
const SCRATCH_COLS: usize = 512;
/// Columns of the blocks that the epilogue sees.
const TILE_COLS: usize = 128;

/// What happens to a finished block.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    pub(crate) out: Option<Output>,
    pub(crate) batch: &'a [BatchDim],
    pub(crate) accumulate: bool,
    pub(crate) epilogue: Option<Epilogue<'a>>,
}
// SAFETY: the output's address is written in disjoint blocks.
unsafe impl Sync for Finish<'_> {}

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

impl Finish<'_> {
    /// Address and row stride of C if sums of type T can be kept in C itself.
    pub(crate) fn direct<T: Scalar>(&self, batch: usize) -> Option<(*mut T, isize)> {
        let o = self.out.filter(|o| o.elem == T::ELEM)?;
        Some((Ptr(o.ptr).at::<T>(batch_offset(self.batch, batch, 2)), o.ld))
    }

    /// Loads the old C into scratch, for `accumulate`.
    pub(crate) unsafe fn preload<T: Scalar>(
        &self,
        dst: *mut T,
        ld: usize,
        batch: usize,
        row0: usize,
        rows: usize,
        col0: usize,
        cols: usize,
    ) {
        let Some(o) = self.out else { return };
        let off = batch_offset(self.batch, batch, 2) + col0 as isize;
        for r in 0..rows {
            let src = o.ptr.wrapping_offset((off + (row0 + r) as isize * o.ld) * o.elem.size() as isize);
            // SAFETY: the row lies within C; scratch has `ld >= cols` per row.
            unsafe {
                if T::ELEM == Elem::F32 {
                    simd::load_f32(o.elem, src, dst.add(r * ld).cast(), cols);
                } else {
                    for c in 0..cols {
                        *dst.add(r * ld + c) = T::from_f64(o.elem.load_f64(src.add(c * o.elem.size())));
                    }
                }
            }
        }
    }

    /// Runs the epilogue on a finished block and, if it lies in scratch, stores it to C.
    pub(crate) unsafe fn tile<T: Scalar>(
        &self,
        p: *mut T,
        ld: isize,
        in_scratch: bool,
        batch: usize,
        row0: usize,
        rows: usize,
        col0: usize,
        cols: usize,
    ) {
        if let Some(f) = self.epilogue {
            f(&Tile { ptr: p.cast(), ld, batch, row0, col0, rows, cols });
        }
        if !in_scratch {
            return;
        }
        let Some(o) = self.out else { return };
        let off = batch_offset(self.batch, batch, 2) + col0 as isize;
        for r in 0..rows {
            let dst = o.ptr.wrapping_offset((off + (row0 + r) as isize * o.ld) * o.elem.size() as isize);
            let src = p.wrapping_offset(r as isize * ld);
            // SAFETY: as in `preload`.
            unsafe {
                if T::ELEM == Elem::F32 {
                    simd::store_f32(o.elem, src.cast(), dst, cols);
                } else {
                    for c in 0..cols {
                        o.elem.store_f64(dst.add(c * o.elem.size()), (*src.add(c)).to_f64());
                    }
                }
            }
        }
    }
}

thread_local! {
    /// Pack and sum buffers, kept between calls.
    static BUFFERS: Cell<[Option<Block>; 3]> = const { Cell::new([None, None, None]) };
}

/// Lends this thread's three buffers, grown to at least `bytes` each.
///
/// A nested call finds none and takes fresh ones from the pool, so lending is re-entrant.
pub(crate) fn scratch<R>(bytes: [usize; 3], f: impl FnOnce([*mut u8; 3]) -> R) -> Result<R, OutOfMemory> {
    let mut bufs = BUFFERS.take();
    for (buf, &want) in bufs.iter_mut().zip(&bytes) {
        if buf.as_ref().map_or(0, |b| b.capacity()) < want {
            *buf = None;
            *buf = Some(MemoryPool::cpu().alloc(want)?);
        }
    }
    let ptrs = std::array::from_fn(|i| bufs[i].as_ref().map_or(std::ptr::null_mut(), |b| b.as_ptr()));
    let r = f(ptrs);
    BUFFERS.set(bufs);
    Ok(r)
}

/// Splits C into tasks: (row blocks, column blocks) of every batch index.
fn split(m: usize, n: usize, flops: f64, batches: usize, mr: usize, nr: usize) -> (usize, usize) {
    let threads = pool::num_threads();
    let (mut tm, mut tn) = (1, 1);
    if threads == 1 || flops * (batches as f64) < 1e6 {
        return (1, 1);
    }
    // Three tasks to a thread even out threads that are held up; smaller tasks repeat packing.
    while batches * tm * tn < 3 * threads && flops / ((tm * tn) as f64) > 1e6 {
        let (rows, cols) = (m / tm, n / tn);
        if rows >= cols && rows >= 4 * mr {
            tm *= 2;
        } else if cols >= 4 * nr {
            tn *= 2;
        } else if rows >= 4 * mr {
            tm *= 2;
        } else {
            break;
        }
    }
    (tm, tn)
}

/// Runs the product. See [`super::gemm`] for the contract.
///
/// # Safety
/// The packing sources' and the output's memory is live and C overlaps neither source.
pub(crate) unsafe fn run<U: Unit, T: Scalar>(job: &Job<U, T>) -> Result<(), LibError> {
    let flops = 2.0 * job.m as f64 * job.n as f64 * job.k.max(1) as f64;
    let (mr, nr) = (job.kernel.mr, job.kernel.nr);
    let (tm, tn) = split(job.m, job.n, flops, job.batches, mr, nr);
    let rows = job.m.div_ceil(tm).next_multiple_of(mr);
    let cols = job.n.div_ceil(tn).next_multiple_of(nr);
    let (tm, tn) = (job.m.div_ceil(rows), job.n.div_ceil(cols));
    let failed = Mutex::new(None);
    let cost = (flops * job.batches as f64 / 60.0) as u64;
    pool::parallel_for(job.batches * tm * tn, cost, &|t| {
        let (batch, t) = (t / (tm * tn), t % (tm * tn));
        let (r0, c0) = (t / tn * rows, t % tn * cols);
        // SAFETY: tasks cover disjoint rectangles of C.
        let r = unsafe { task(job, batch, r0, rows.min(job.m - r0), c0, cols.min(job.n - c0)) };
        if let Err(e) = r {
            if let Ok(mut f) = failed.lock() {
                f.get_or_insert(e);
            }
        }
    });
    match failed.into_inner() {
        Ok(Some(e)) => Err(e.into()),
        _ => Ok(()),
    }
}

/// One rectangle of C: rows `r0..r0+m`, columns `c0..c0+n`.
unsafe fn task<U: Unit, T: Scalar>(
    job: &Job<U, T>,
    batch: usize,
    r0: usize,
    m: usize,
    c0: usize,
    n: usize,
) -> Result<(), OutOfMemory> {
    let kn = job.kernel;
    let (mr, nr) = (kn.mr, kn.nr);
    let units = job.k.div_ceil(U::K);
    let direct_c = job.finish.direct::<T>(batch);
    let unit = std::mem::size_of::<U>();
    // B in place: its rows are vectors already and the strips it is read in fit the caches.
    let b_in_place =
        job.b.direct(batch).filter(|&(_, lane, _)| lane == 1 && (units * n * unit <= 128 << 10 || m <= 3 * mr));
    let a_in_place = job.a.direct(batch).filter(|_| n <= 4 * nr || units * m * unit <= 16 << 10);
    let k_outer = units.min(K_OUTER).max(1);
    let chunks = units.div_ceil(k_outer).max(1);
    let nc_max = (B_BYTES / (k_outer * unit) / nr * nr).max(nr);
    let nc_max = if direct_c.is_none() { nc_max.min(SCRATCH_COLS) } else { nc_max };
    // Even column and row blocks, so that no thin one is left over.
    let even = |total: usize, max: usize, of: usize| total.div_ceil(total.div_ceil(max)).next_multiple_of(of);
    let nc_step = even(n, nc_max, nr);
    let mc_step = even(m, kn.mc, mr);
    // Sums that do not fit C: one block of rows, or all rows when k comes in several chunks.
    let sum_rows = if direct_c.is_some() {
        0
    } else if chunks == 1 {
        mc_step
    } else {
        m
    };
    let kc_max = KC.min(units.max(1));
    let bytes = [
        if a_in_place.is_some() { 0 } else { (mc_step * kc_max + SLACK) * unit },
        (k_outer * if b_in_place.is_some() { nr } else { nc_step } + SLACK) * unit,
        sum_rows * nc_step * std::mem::size_of::<T>(),
    ];
    scratch(bytes, |[pa, pb, ps]| {
        let (pa, pb, ps) = (pa.cast::<U>(), pb.cast::<U>(), ps.cast::<T>());
        for jc in (0..n).step_by(nc_step) {
            let nc = nc_step.min(n - jc);
            for chunk in 0..chunks {
                let u0 = chunk * k_outer;
                let cu = k_outer.min(units - u0);
                let blocks = cu.div_ceil(KC).max(1);
                let kc = cu.div_ceil(blocks);
                let ncr = if b_in_place.is_some() { nr } else { nc.next_multiple_of(nr) };
                // Columns that must be packed: all, or the tail that no full vector covers.
                let tail = match b_in_place {
                    None => 0,
                    Some(_) if nc % kn.lanes == 0 => nc,
                    Some(_) => nc / nr * nr,
                };
                for blk in 0..blocks {
                    let (k0, len) = (u0 + blk * kc, kc.min(cu - blk * kc));
                    if tail < nc {
                        let el = (len * U::K).min(job.k - k0 * U::K);
                        // SAFETY: the buffer holds `k_outer · ncr` units and slack.
                        unsafe {
                            job.b.pack(batch, c0 + jc + tail, nc - tail, k0 * U::K, el, nr, pb.add(blk * kc * ncr))
                        };
                    }
                }
                for ic in (0..m).step_by(mc_step) {
                    let mc = mc_step.min(m - ic);
                    let (c, ldc) = match direct_c {
                        Some((p, ld)) => (p.wrapping_offset((r0 + ic) as isize * ld + (c0 + jc) as isize), ld),
                        None => (ps.wrapping_add(if chunks == 1 { 0 } else { ic * nc_step }), nc_step as isize),
                    };
                    let in_scratch = direct_c.is_none();
                    if in_scratch && job.finish.accumulate && chunk == 0 {
                        // SAFETY: the block lies within C and the scratch.
                        unsafe { job.finish.preload(c, nc_step, batch, r0 + ic, mc, c0 + jc, nc) };
                    }
                    for blk in 0..blocks {
                        let (k0, len) = (u0 + blk * kc, kc.min(cu - blk * kc));
                        let (ap, a_r, a_k) = match a_in_place {
                            Some((p, lane, k)) => {
                                (p.wrapping_offset((r0 + ic) as isize * lane + k0 as isize * k), lane, k)
                            }
                            None => {
                                let el = (len * U::K).min(job.k - k0 * U::K);
                                // SAFETY: the buffer holds `mc_step · kc_max` units and slack.
                                unsafe { job.a.pack(batch, r0 + ic, mc, k0 * U::K, el, mr, pa) };
                                (pa.cast_const(), 1, mr as isize)
                            }
                        };
                        let acc = chunk > 0 || blk > 0 || job.finish.accumulate;
                        let last = chunk + 1 == chunks && blk + 1 == blocks;
                        let group = (TILE_COLS / nr).max(1) * nr;
                        for g in (0..nc).step_by(group) {
                            let gc = group.min(nc - g);
                            for j in (g..g + gc).step_by(nr) {
                                let w = nr.min(nc - j);
                                let (bp, b_k) = match b_in_place {
                                    Some((p, _, k)) if j < tail => {
                                        (p.wrapping_offset((c0 + jc + j) as isize + k0 as isize * k), k)
                                    }
                                    _ => (pb.wrapping_add(blk * kc * ncr + (j - tail) * len).cast_const(), nr as isize),
                                };
                                let strip = Strip {
                                    a: ap,
                                    a_r,
                                    a_k,
                                    packed: a_in_place.is_none(),
                                    b: bp,
                                    b_k,
                                    len,
                                    w,
                                    padded: in_scratch,
                                    acc,
                                };
                                // SAFETY: all panels of the strip lie in the packed blocks (or the
                                // operands) and in C (or the padded scratch).
                                unsafe { strip_rows(kn, &strip, mc, c.wrapping_add(j), ldc) };
                            }
                            if last && (in_scratch || job.finish.epilogue.is_some()) {
                                // SAFETY: the block is complete.
                                unsafe {
                                    job.finish.tile(
                                        c.wrapping_add(g),
                                        ldc,
                                        in_scratch,
                                        batch,
                                        r0 + ic,
                                        mc,
                                        c0 + jc + g,
                                        gc,
                                    )
                                };
                            }
                        }
                    }
                }
            }
        }
    })
}

/// A strip of `w <= nr` columns over all row panels of a block.
struct Strip<U> {
    a: *const U,
    a_r: isize,
    a_k: isize,
    packed: bool,
    b: *const U,
    b_k: isize,
    len: usize,
    w: usize,
    /// C has room for whole vectors.
    padded: bool,
    acc: bool,
}

#[inline]
unsafe fn strip_rows<U: Unit, T: Scalar>(kn: &Kernel<U, T>, s: &Strip<U>, m: usize, c: *mut T, ldc: isize) {
    let nv = s.w.div_ceil(kn.lanes);
    let table = if s.packed { kn.packed[nv - 1] } else { kn.strided[nv - 1] };
    let ragged = s.w % kn.lanes != 0 && !s.padded;
    for i in (0..m).step_by(kn.mr) {
        let h = kn.mr.min(m - i);
        let a = if s.packed { s.a.wrapping_add(i * s.len) } else { s.a.wrapping_offset(i as isize * s.a_r) };
        let cp = c.wrapping_offset(i as isize * ldc);
        // SAFETY: the caller's contract; a ragged strip goes through a full-width temporary.
        unsafe {
            if !ragged {
                table[h - 1](s.len, a, s.a_k, s.a_r, s.b, s.b_k, cp, ldc, s.acc);
                continue;
            }
            let mut tmp = [T::zero(); MAX_TILE];
            table[h - 1](s.len, a, s.a_k, s.a_r, s.b, s.b_k, tmp.as_mut_ptr(), kn.nr as isize, false);
            for r in 0..h {
                let row = cp.wrapping_offset(r as isize * ldc);
                for (col, &x) in tmp[r * kn.nr..][..s.w].iter().enumerate() {
                    *row.add(col) = if s.acc { x.add(*row.add(col)) } else { x };
                }
            }
        }
    }
}

/// A block product on packed B: `C[m, n] (+)= A · B`, for kernels that schedule their own blocks.
pub(crate) struct Panels<U> {
    /// Packed panels of `mr` rows (`packed`), or element (r, p) at `a + r·a_r + p·a_k`.
    pub(crate) a: *const U,
    pub(crate) packed: bool,
    pub(crate) a_r: isize,
    pub(crate) a_k: isize,
    /// Packed panels of `nr` columns, each `k` units long.
    pub(crate) b: *const U,
    pub(crate) k: usize,
}

/// Runs a block product on the calling thread. Rows of C have room for `n` rounded up to vectors.
///
/// # Safety
/// The panels cover `m`, `n` and `k`; C covers `m` rows of stride `ldc`.
pub(crate) unsafe fn block<U: Unit, T: Scalar>(
    kn: &Kernel<U, T>,
    p: &Panels<U>,
    m: usize,
    n: usize,
    c: *mut T,
    ldc: usize,
    acc: bool,
) {
    let a_k = if p.packed { kn.mr as isize } else { p.a_k };
    for j in (0..n).step_by(kn.nr) {
        let w = kn.nr.min(n - j);
        let s = Strip {
            a: p.a,
            a_r: p.a_r,
            a_k,
            packed: p.packed,
            b: p.b.wrapping_add(j * p.k),
            b_k: kn.nr as isize,
            len: p.k,
            w,
            padded: true,
            acc,
        };
        // SAFETY: the caller's contract.
        unsafe { strip_rows(kn, &s, m, c.wrapping_add(j), ldc as isize) };
    }
}
