//! The program cache in memory: what is known of every segment seen.
use crate::key::Key;
use crate::schedule::Schedule;
use crate::segment::CompiledSegment;
use ahash::AHashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Where a segment stands on its way to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    /// Seen, nothing started.
    Seen = 0,
    /// Queued for or in compilation.
    Compiling = 1,
    /// There is a program.
    Ready = 2,
    /// It cannot be compiled: tier 0 for good.
    Failed = 3,
}

/// One segment. Shared with jobs in flight, so that forgetting it never disturbs them.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    sightings: AtomicU32,
    status: AtomicU8,
    last_seen: AtomicU64,
    /// It was compiled before it recurred.
    foreseen: AtomicBool,
    /// When the compile was claimed.
    claimed: Mutex<Option<Instant>>,
    /// The compile ended, or was given up.
    settled: Condvar,
    schedule: OnceLock<Schedule>,
    program: OnceLock<CompiledSegment>,
}

impl Entry {
    fn new(key: Key) -> Entry {
        Entry {
            key,
            sightings: AtomicU32::new(0),
            status: AtomicU8::new(Status::Seen as u8),
            last_seen: AtomicU64::new(0),
            foreseen: AtomicBool::new(false),
            claimed: Mutex::new(None),
            settled: Condvar::new(),
            schedule: OnceLock::new(),
            program: OnceLock::new(),
        }
    }

    /// The program, once there is one.
    pub(crate) fn program(&self) -> Option<&CompiledSegment> {
        self.program.get()
    }

    pub(crate) fn schedule(&self, make: impl FnOnce() -> Schedule) -> &Schedule {
        self.schedule.get_or_init(make)
    }

    /// Times the segment was submitted, this one included.
    pub(crate) fn sightings(&self) -> u32 {
        self.sightings.load(Relaxed)
    }

    /// Claims the compilation: true for one caller only.
    pub(crate) fn start(&self) -> bool {
        let claimed =
            self.status.compare_exchange(Status::Seen as u8, Status::Compiling as u8, AcqRel, Acquire).is_ok();
        if claimed {
            *self.claim() = Some(Instant::now());
        }
        claimed
    }

    fn claim(&self) -> MutexGuard<'_, Option<Instant>> {
        self.claimed.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// How long the compile has been going on, if one is.
    pub(crate) fn compiling_since(&self) -> Option<Duration> {
        let since = (*self.claim())?;
        (self.status.load(Acquire) == Status::Compiling as u8).then(|| since.elapsed())
    }

    /// Waits for the end of the compile, at most `limit`, and while `go_on` says so.
    pub(crate) fn await_program(&self, limit: Duration, go_on: impl Fn() -> bool) {
        let deadline = Instant::now() + limit;
        let mut guard = self.claim();
        while self.status.load(Acquire) == Status::Compiling as u8 && go_on() {
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(20));
            if left.is_zero() {
                return;
            }
            guard = self.settled.wait_timeout(guard, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    pub(crate) fn foresee(&self) {
        self.foreseen.store(true, Relaxed);
    }

    pub(crate) fn is_foreseen(&self) -> bool {
        self.foreseen.load(Relaxed)
    }

    /// Gives a claim back.
    pub(crate) fn give_up(&self) {
        let _ = self.status.compare_exchange(Status::Compiling as u8, Status::Seen as u8, AcqRel, Acquire);
        self.settled.notify_all();
    }

    /// Ends a compilation; nothing means that it failed for good.
    pub(crate) fn settle(&self, program: Option<CompiledSegment>) {
        let status = match program {
            Some(p) => {
                // Compiled twice at once (the tier was changed meanwhile): the first one stays.
                let _ = self.program.set(p);
                Status::Ready
            }
            None => Status::Failed,
        };
        self.status.store(status as u8, Release);
        self.settled.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.status.load(Acquire) == Status::Failed as u8
    }
}

/// All entries, bounded.
#[derive(Debug)]
pub(crate) struct ProgramCache {
    entries: Mutex<AHashMap<Key, Arc<Entry>>>,
    clock: AtomicU64,
    capacity: usize,
}

impl ProgramCache {
    pub(crate) fn new(capacity: usize) -> ProgramCache {
        ProgramCache { entries: Mutex::default(), clock: AtomicU64::new(0), capacity: capacity.max(4) }
    }

    fn lock(&self) -> MutexGuard<'_, AHashMap<Key, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The entry of `key`, made if missing; counts a sighting.
    pub(crate) fn see(&self, key: Key) -> Arc<Entry> {
        let now = self.clock.fetch_add(1, Relaxed) + 1;
        let mut entries = self.lock();
        let entry = match entries.get(&key) {
            Some(e) => e.clone(),
            None => {
                if entries.len() >= self.capacity {
                    evict(&mut entries);
                }
                let entry = Arc::new(Entry::new(key));
                entries.insert(key, entry.clone());
                entry
            }
        };
        drop(entries);
        entry.last_seen.store(now, Relaxed);
        entry.sightings.fetch_add(1, Relaxed);
        entry
    }

    /// The entry of `key`, if there is one.
    pub(crate) fn peek(&self, key: &Key) -> Option<Arc<Entry>> {
        self.lock().get(key).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Forgets everything. Jobs in flight keep what they use.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }
}

/// Forgets the quarter not seen for longest.
fn evict(entries: &mut AHashMap<Key, Arc<Entry>>) {
    let mut seen: Vec<u64> = entries.values().map(|e| e.last_seen.load(Relaxed)).collect();
    let quarter = seen.len() / 4;
    let (_, &mut limit, _) = seen.select_nth_unstable(quarter);
    entries.retain(|_, e| e.last_seen.load(Relaxed) > limit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Environment, Identity};
    use rsx_lazy::Trace;

    fn key(n: u128) -> Key {
        let trace = Trace { refs: vec![n as u32], ..Trace::default() };
        Key::of(&trace, &[], Environment::new(&Identity::default()))
    }

    #[test]
    fn oldest_are_forgotten() {
        let cache = ProgramCache::new(8);
        for n in 0..100 {
            cache.see(key(1000));
            cache.see(key(n));
            assert!(cache.len() <= 8);
        }
        // Seen all the time, so never forgotten.
        assert_eq!(cache.see(key(1000)).sightings(), 101);
    }

    #[test]
    fn one_claim_at_a_time() {
        let cache = ProgramCache::new(8);
        let e = cache.see(key(1));
        assert!(e.start() && !e.start());
        e.give_up();
        assert!(e.start());
        e.settle(None);
        assert!(e.has_failed() && !e.start());
    }
}
