//! Fork-join thread pool for kernels.
//!
//! One job at a time: the caller publishes a closure and a chunk count, takes chunks itself, and
//! returns when every chunk has run. Workers spin briefly for the next job, then park. The caller
//! waits only for workers that *entered* the job: one that is descheduled or still waking costs
//! nothing. A call from inside a job, or while another thread's job runs, executes serially: both
//! are right, and neither can deadlock.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;

/// Work below this many nanoseconds never leaves the calling thread.
const SERIAL_NS: u64 = 5_000;
/// Work below this many nanoseconds does not wake parked workers (a wake costs several µs).
const WAKE_NS: u64 = 20_000;
/// Polls before a worker parks: some tens of µs, about the gap between two kernels of a program.
const SPINS: u32 = 2_000;

/// `state`: bit 63 = open, low 16 bits = workers that entered, the rest = job number.
const OPEN: u64 = 1 << 63;
const ENTERED: u64 = 0xFFFF;
const JOB: u64 = 1 << 16;

type Body = dyn Fn(usize) + Sync;

thread_local! {
    /// What the thread's caller lends to the work: all threads of a job have the context of the one that started it. See
    /// [`super::arena`].
    pub(super) static CONTEXT: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

struct Worker {
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

struct Pool {
    state: AtomicU64,
    /// The open job's closure and context. Written by the owner while closed and empty, read after entering.
    body: UnsafeCell<Option<(*const Body, *const ())>>,
    chunks: AtomicUsize,
    next: AtomicUsize,
    left: AtomicUsize,
    /// Held by the thread whose job is open.
    owned: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    workers: Vec<Worker>,
}

// SAFETY: `body` is written only by the owner while no worker is inside a job, and read only by
// workers that entered through `state` (acquire) after the owner opened it (release).
unsafe impl Sync for Pool {}
// SAFETY: as above; the raw pointer is dereferenced only between open and close.
unsafe impl Send for Pool {}

thread_local! {
    /// True while this thread runs a chunk: nested calls stay serial.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Set in a forked child, which has no workers.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Threads a job may use, the caller included; 0 = not yet set.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

fn configured() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    match std::env::var("RSX_NUM_THREADS").ok().and_then(|v| v.trim().parse::<usize>().ok()) {
        Some(n) if n >= 1 => n.min(1024),
        _ => cores,
    }
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<&'static Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let n = configured().saturating_sub(1);
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            state: AtomicU64::new(0),
            body: UnsafeCell::new(None),
            chunks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            owned: AtomicBool::new(false),
            panic: Mutex::new(None),
            workers: (0..n).map(|_| Worker { parked: AtomicBool::new(false), thread: OnceLock::new() }).collect(),
        }));
        // SAFETY: registers a handler that only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
        for id in 0..n {
            // A thread that cannot start is missed by nobody: the caller does the work.
            let _ = std::thread::Builder::new().name(format!("rsx-cpu-{id}")).spawn(move || pool.work(id));
        }
        pool
    })
}

/// Threads that a job may use, the caller included (`RSX_NUM_THREADS`, default the cores).
pub fn num_threads() -> usize {
    if FORKED.load(Ordering::Relaxed) {
        return 1;
    }
    let n = LIMIT.load(Ordering::Relaxed);
    if n != 0 {
        return n;
    }
    let n = pool().workers.len() + 1;
    LIMIT.store(n, Ordering::Relaxed);
    n
}

/// Bounds the threads of later jobs, between 1 and the number started.
pub fn set_num_threads(n: usize) {
    LIMIT.store(n.clamp(1, pool().workers.len() + 1), Ordering::Relaxed);
}

/// Runs `body(0..chunks)`, each once, on any thread, in any order; returns when all are done.
///
/// `cost_ns`: estimated duration of the whole job on one thread, which decides whether to share it.
/// A panic in a chunk is raised again in the caller after all entered workers left.
pub fn parallel_for(chunks: usize, cost_ns: u64, body: &(dyn Fn(usize) + Sync)) {
    if chunks <= 1 || cost_ns < SERIAL_NS || INSIDE.get() || num_threads() == 1 || !pool().run(chunks, cost_ns, body) {
        for i in 0..chunks {
            body(i);
        }
    }
}

/// [`parallel_for`] with a body that may fail: the first error, after all chunks have run.
pub fn try_for<E: Send>(chunks: usize, cost_ns: u64, body: &(dyn Fn(usize) -> Result<(), E> + Sync)) -> Result<(), E> {
    let failed = Mutex::new(None);
    parallel_for(chunks, cost_ns, &|t| {
        if let Err(e) = body(t) {
            failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
        }
    });
    failed.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

/// Runs `body(begin, end)` over disjoint ranges that cover `0..n`.
///
/// Ranges are multiples of `grain` (except the last), about four to a thread so that a thread that
/// is held up does not hold up the job. `cost_ns` as in [`parallel_for`].
pub fn parallel_range(n: usize, grain: usize, cost_ns: u64, body: &(dyn Fn(usize, usize) + Sync)) {
    if n == 0 {
        return;
    }
    let grain = grain.max(1);
    let units = n.div_ceil(grain);
    let threads = if cost_ns < SERIAL_NS || INSIDE.get() { 1 } else { num_threads() };
    let chunks = if threads == 1 { 1 } else { units.min(threads * 4) };
    if chunks <= 1 {
        return body(0, n);
    }
    parallel_for(chunks, cost_ns, &|c| {
        let begin = c * units / chunks * grain;
        let end = ((c + 1) * units / chunks * grain).min(n);
        if begin < end {
            body(begin, end);
        }
    });
}

impl Pool {
    /// Tries to run the job with workers' help; false if it must run serially.
    fn run(&self, chunks: usize, cost_ns: u64, body: &(dyn Fn(usize) + Sync)) -> bool {
        let want = (num_threads() - 1).min(chunks - 1);
        let awake = self.workers.iter().any(|w| !w.parked.load(Ordering::Relaxed));
        if !awake && cost_ns < WAKE_NS {
            return false;
        }
        if self.owned.swap(true, Ordering::Acquire) {
            return false;
        }
        // SAFETY: erases the lifetime only: `close` below waits until no worker can use `body`.
        let erased: *const Body =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Body>(body) };
        // SAFETY: we own the pool and the last owner waited for all workers to leave.
        unsafe { *self.body.get() = Some((erased, CONTEXT.get())) };
        self.chunks.store(chunks, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
        let job = self.state.load(Ordering::Relaxed) & !(OPEN | ENTERED);
        self.state.store((job.wrapping_add(JOB) & !OPEN) | OPEN, Ordering::Release);
        // Pairs with the fence in `work`: either the worker sees the job, or we see it parked.
        fence(Ordering::SeqCst);
        for w in self.workers.iter().take(want) {
            if w.parked.load(Ordering::Relaxed)
                && w.parked.swap(false, Ordering::AcqRel)
                && let Some(t) = w.thread.get()
            {
                t.unpark();
            }
        }
        self.chunks_loop(body);
        // Close: nobody enters from here on; wait for those inside.
        let entered = (self.state.fetch_and(!OPEN, Ordering::AcqRel) & ENTERED) as usize;
        let mut spins = 0u32;
        while self.left.load(Ordering::Acquire) != entered {
            spins += 1;
            if spins.is_multiple_of(4096) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let payload = self.panic.lock().ok().and_then(|mut p| p.take());
        self.owned.store(false, Ordering::Release);
        if let Some(p) = payload {
            resume_unwind(p);
        }
        true
    }

    fn chunks_loop(&self, body: &(dyn Fn(usize) + Sync)) {
        let chunks = self.chunks.load(Ordering::Relaxed);
        INSIDE.set(true);
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= chunks {
                break;
            }
            if let Err(p) = catch_unwind(AssertUnwindSafe(|| body(i))) {
                // The first panic is the one reported; the remaining chunks are dropped.
                self.next.store(chunks, Ordering::Relaxed);
                if let Ok(mut slot) = self.panic.lock() {
                    slot.get_or_insert(p);
                }
            }
        }
        INSIDE.set(false);
    }

    fn work(&self, id: usize) {
        let me = &self.workers[id];
        let _ = me.thread.set(std::thread::current());
        let mut seen = 0;
        loop {
            let mut spins = 0u32;
            let s = loop {
                let s = self.state.load(Ordering::Acquire);
                if s & OPEN != 0 && s & !(OPEN | ENTERED) != seen {
                    break s;
                }
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                    continue;
                }
                me.parked.store(true, Ordering::Relaxed);
                // Pairs with the fence in `run`.
                fence(Ordering::SeqCst);
                let s = self.state.load(Ordering::Relaxed);
                if !(s & OPEN != 0 && s & !(OPEN | ENTERED) != seen) {
                    while me.parked.load(Ordering::Acquire) {
                        std::thread::park();
                    }
                }
                me.parked.store(false, Ordering::Relaxed);
                spins = 0;
            };
            seen = s & !(OPEN | ENTERED);
            // The thread limit: late-comers beyond it leave the job alone.
            if (s & ENTERED) as usize + 1 >= LIMIT.load(Ordering::Relaxed) {
                continue;
            }
            if self.state.compare_exchange(s, s + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // Another worker entered first, or the job closed: look again.
                seen = seen.wrapping_sub(JOB);
                continue;
            }
            // SAFETY: we entered an open job, so its owner waits for our `left` before returning.
            let job = unsafe { (*self.body.get()).map(|(b, context)| (&*b, context)) };
            if let Some((body, context)) = job {
                CONTEXT.set(context);
                self.chunks_loop(body);
                CONTEXT.set(std::ptr::null());
            }
            self.left.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_chunk_once_many_times() {
        for n in [0usize, 1, 2, 7, 100] {
            for _ in 0..200 {
                let hits: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
                parallel_for(n, 1_000_000, &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn ranges_cover_and_keep_the_grain() {
        let hits: Vec<AtomicU32> = (0..1003).map(|_| AtomicU32::new(0)).collect();
        parallel_range(1003, 16, 1_000_000, &|a, b| {
            assert!(a % 16 == 0 && (b % 16 == 0 || b == 1003));
            hits[a..b].iter().for_each(|h| {
                h.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn nested_and_concurrent_callers() {
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..100 {
                        parallel_for(8, 1_000_000, &|_| {
                            parallel_for(4, 1_000_000, &|_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 100 * 32);
    }

    #[test]
    fn panic_reaches_the_caller_and_the_pool_survives() {
        let r = catch_unwind(|| parallel_for(16, 1_000_000, &|i| assert!(i != 5, "chunk five")));
        assert!(r.is_err());
        let n = AtomicUsize::new(0);
        parallel_for(16, 1_000_000, &|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.load(Ordering::Relaxed), 16);
    }

    #[test]
    fn after_idle_workers_are_woken() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let n = AtomicUsize::new(0);
        parallel_for(64, 10_000_000, &|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.load(Ordering::Relaxed), 64);
    }
}
