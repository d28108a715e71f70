//! Progress of the executor by sequence number, and waiting for it.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a waiter spins before it sleeps: about what waking a thread costs.
const SPIN: Duration = Duration::from_micros(20);
/// A sleeping waiter looks for itself this often, so that a wake-up lost to a signal or a dead executor cannot hang it.
const NAP: Duration = Duration::from_millis(100);
/// Completion times kept for events.
const TIMES: usize = 1024;

/// What the executor has done.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    done: AtomicU64,
    /// Segments submitted and not finished.
    in_flight: AtomicUsize,
    /// Bytes of outside writes queued and not done.
    queued_bytes: AtomicUsize,
    waiters: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
    times: Mutex<Vec<(u64, Instant)>>,
}

impl Completion {
    /// Sequence number of the last finished job.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(SeqCst)
    }

    pub(crate) fn segment_queued(&self) {
        self.in_flight.fetch_add(1, SeqCst);
    }

    pub(crate) fn write_queued(&self, bytes: usize) {
        self.queued_bytes.fetch_add(bytes, SeqCst);
    }

    /// Job `sequence` is done: all its effects can be seen. `segment`: it was one; else it was a write of `bytes`.
    pub(crate) fn finish(&self, sequence: u64, segment: bool, bytes: usize) {
        {
            let mut times = self.times.lock().unwrap_or_else(|e| e.into_inner());
            if times.len() < TIMES {
                times.push((sequence, Instant::now()));
            } else {
                times[sequence as usize % TIMES] = (sequence, Instant::now());
            }
        }
        self.done.store(sequence, SeqCst);
        if segment {
            self.in_flight.fetch_sub(1, SeqCst);
        } else {
            self.queued_bytes.fetch_sub(bytes, SeqCst);
        }
        self.wake();
    }

    /// Lets every waiter look at its condition again.
    pub(crate) fn wake(&self) {
        if self.waiters.load(SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(|e| e.into_inner()));
            self.changed.notify_all();
        }
    }

    /// Waits until `ready` holds: spins shortly, then sleeps.
    pub(crate) fn wait(&self, ready: &dyn Fn() -> bool) {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiters.fetch_add(1, SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        while !ready() {
            guard = self.changed.wait_timeout(guard, NAP).map_or_else(|e| e.into_inner().0, |(g, _)| g);
        }
        drop(guard);
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// When job `sequence` finished, if it did and is among the last [`TIMES`].
    pub(crate) fn finished_at(&self, sequence: u64) -> Option<Instant> {
        let times = self.times.lock().unwrap_or_else(|e| e.into_inner());
        times.iter().find(|(s, _)| *s == sequence).map(|(_, t)| *t)
    }
}
