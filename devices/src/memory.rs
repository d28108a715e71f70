//! Caching memory pools.
//!
//! Freed blocks stay with the pool, by size class, and are handed out again: in the steady state of
//! a training loop no call reaches the system and no page faults. Where sizes change from step to step
//! (sequence lengths), memory for the time of a run may lie in a block of up to twice the size, and cached large
//! blocks go back to the system before the pool holds more than twice what was ever in use. Blocks are 64-byte
//! aligned; from 4 MiB on they are aligned to 2 MiB and advised to use huge pages.
//!
//! Above 600 lines with its tests, which look inside.

use crate::kept::Registry;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Alignment of every block, bytes: one cache line, one 512-bit vector.
pub const ALIGN: usize = 64;
const HUGE: usize = 2 << 20;
/// Blocks of this many bytes and more use huge pages.
const HUGE_FROM: usize = 4 << 20;
/// Size classes: four steps to each power of two, from 64 bytes up; sixteen from [`HUGE_FROM`] up, where a quarter is much.
const CLASSES: usize = 4 * 16 + 1 + 16 * 41;
// Steps to a power of two, and the power from which on there are more.
const STEPS: usize = 4;
const MORE_STEPS: usize = 16;
const MORE_FROM: usize = HUGE_FROM.ilog2() as usize;

/// A block could not be had within the limit (or from the system). Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: wanted {wanted} bytes with {in_use} in use{}", limit_text(*.limit))]
pub struct OutOfMemory {
    pub wanted: usize,
    pub in_use: usize,
    /// `usize::MAX` when no limit is set: the system refused.
    pub limit: usize,
}

fn limit_text(limit: usize) -> String {
    if limit == usize::MAX { "; the system has no more".into() } else { format!(", limit {limit}") }
}

/// Counters of a pool, bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStats {
    /// Held by live blocks (rounded up to their size class).
    pub in_use: usize,
    /// Greatest `in_use` since the start or the last `reset_peak`.
    pub peak: usize,
    /// Held from the system: live and cached blocks.
    pub reserved: usize,
    /// Number of allocations that reached the system.
    pub system_allocations: usize,
    /// Number of blocks handed out.
    pub allocations: usize,
    /// Held by packed copies of arguments that kernels keep from run to run; not part of `in_use`.
    pub packed: usize,
    /// Number of operands that a kernel found packed.
    pub prepack_hits: u64,
}

struct Inner {
    free: Vec<Mutex<Vec<NonNull<u8>>>>,
    in_use: AtomicUsize,
    peak: AtomicUsize,
    /// Greatest `in_use` ever.
    most: AtomicUsize,
    reserved: AtomicUsize,
    system: AtomicUsize,
    count: AtomicUsize,
    limit: AtomicUsize,
    kept: Registry,
}

// SAFETY: the free lists own their blocks; the addresses are not tied to a thread.
unsafe impl Send for Inner {}
// SAFETY: as above; lists are behind mutexes.
unsafe impl Sync for Inner {}

/// A caching allocator. Cloning shares the pool.
#[derive(Clone)]
pub struct MemoryPool(Arc<Inner>);

/// The size class that holds `bytes`, and the class's size.
fn class_of(bytes: usize) -> (usize, usize) {
    let b = bytes.max(64);
    if b == 64 {
        return (0, 64);
    }
    // Linear steps within (2^p, 2^(p+1)].
    let p = (usize::BITS - 1 - (b - 1).leading_zeros()) as usize;
    let (steps, before) = if p < MORE_FROM {
        (STEPS, (p - 6) * STEPS)
    } else {
        (MORE_STEPS, (MORE_FROM - 6) * STEPS + (p - MORE_FROM) * MORE_STEPS)
    };
    let step = (1usize << p) / steps;
    let s = (b - 1 - (1 << p)) / step;
    (1 + before + s, (1 << p) + (s + 1) * step)
}

/// Bytes that an allocation of `bytes` takes.
pub fn rounded(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { class_of(bytes).1 }
}

impl MemoryPool {
    /// A pool of its own. `limit`: bytes it may hold from the system; none means no limit.
    pub fn new(limit: Option<usize>) -> MemoryPool {
        MemoryPool(Arc::new(Inner {
            free: (0..CLASSES).map(|_| Mutex::new(Vec::new())).collect(),
            in_use: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            system: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit.unwrap_or(usize::MAX)),
            kept: Registry::default(),
        }))
    }

    /// The CPU device's pool. `RSX_MEMORY_LIMIT` (bytes, or with a suffix K, M or G) bounds it.
    pub fn cpu() -> &'static MemoryPool {
        static POOL: OnceLock<MemoryPool> = OnceLock::new();
        POOL.get_or_init(|| {
            MemoryPool::new(rsx_compiler::memory_limit().map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
        })
    }

    /// A block of at least `bytes` bytes, contents unspecified.
    ///
    /// Errors with [`OutOfMemory`] if it does not fit the limit even after the cache is emptied.
    pub fn alloc(&self, bytes: usize) -> Result<Block, OutOfMemory> {
        let block = self.alloc_in(bytes, false)?;
        self.note_use(block.counted);
        Ok(block)
    }

    /// As [`MemoryPool::alloc`], for memory that is given back soon: it may lie in a larger cached block. (What lives long
    /// would keep the rest of that block from everybody; and under a limit that rest would count.)
    pub fn alloc_transient(&self, bytes: usize) -> Result<Block, OutOfMemory> {
        let block = self.alloc_in(bytes, self.limit().is_none())?;
        self.note_use(block.counted);
        Ok(block)
    }

    /// Memory for a form that is kept (`kept.rs`), which is counted there.
    pub(crate) fn alloc_kept(&self, bytes: usize) -> Option<Block> {
        let mut block = self.alloc_in(bytes, false).ok()?;
        block.counted = 0;
        Some(block)
    }

    /// What kernels keep of the pool's buffers.
    pub(crate) fn kept(&self) -> &Registry {
        &self.0.kept
    }

    fn alloc_in(&self, bytes: usize, in_larger: bool) -> Result<Block, OutOfMemory> {
        let p = &self.0;
        if bytes == 0 {
            return Ok(Block { ptr: dangling(), len: 0, class: 0, counted: 0, owner: Owner::None });
        }
        if bytes > isize::MAX as usize / 2 {
            return Err(self.refuse(bytes));
        }
        let (class, size) = class_of(bytes);
        let (ptr, class) = match self.cached(class, if in_larger { 2 * size } else { size }) {
            Some(hit) => hit,
            None => (self.from_system(size).ok_or_else(|| self.refuse(bytes))?, class),
        };
        p.count.fetch_add(1, Ordering::Relaxed);
        Ok(Block { ptr, len: bytes, class, counted: size, owner: Owner::Pool(self.clone()) })
    }

    /// As [`MemoryPool::alloc`], filled with zero bytes.
    pub fn alloc_zeroed(&self, bytes: usize) -> Result<Block, OutOfMemory> {
        let b = self.alloc(bytes)?;
        // SAFETY: the block is ours and `bytes` long.
        unsafe { b.as_ptr().write_bytes(0, bytes) };
        Ok(b)
    }

    /// Counts `bytes` as in use from now on.
    fn note_use(&self, bytes: usize) {
        let now = self.0.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        for greatest in [&self.0.peak, &self.0.most] {
            if now > greatest.load(Ordering::Relaxed) {
                greatest.fetch_max(now, Ordering::Relaxed);
            }
        }
    }

    /// A cached block of this class, or of the next one up to that of `most` bytes that has any, and its class.
    fn cached(&self, class: usize, most: usize) -> Option<(NonNull<u8>, usize)> {
        (class..=class_of(most).0).find_map(|c| lock(&self.0.free[c]).pop().map(|ptr| (ptr, c)))
    }

    /// Before a large block comes from the system: if the pool would then hold more than twice what was ever in use, gives
    /// cached large blocks back, smaller ones first. Streams of changing sizes leave them.
    fn make_way(&self, size: usize) {
        let p = &self.0;
        let most = 2 * p.most.load(Ordering::Relaxed).max(p.in_use.load(Ordering::Relaxed) + size) + p.kept.bytes();
        let too_much = || p.reserved.load(Ordering::Relaxed) + size > most;
        if size < HUGE_FROM || !too_much() {
            return;
        }
        let (first, own) = (class_of(HUGE_FROM).0, class_of(size).0);
        for class in (first..own).rev().chain(own + 1..CLASSES) {
            while too_much() {
                let Some(ptr) = lock(&p.free[class]).pop() else { break };
                system_free(ptr);
                p.reserved.fetch_sub(class_size(class), Ordering::Relaxed);
            }
        }
    }

    fn refuse(&self, wanted: usize) -> OutOfMemory {
        OutOfMemory {
            wanted,
            in_use: self.0.in_use.load(Ordering::Relaxed),
            limit: self.0.limit.load(Ordering::Relaxed),
        }
    }

    fn from_system(&self, size: usize) -> Option<NonNull<u8>> {
        self.make_way(size);
        for attempt in 0..2 {
            if attempt == 1 {
                self.empty_cache();
            }
            // Reserve first, so that two threads cannot pass the limit together.
            let before = self.0.reserved.fetch_add(size, Ordering::Relaxed);
            if before.saturating_add(size) <= self.0.limit.load(Ordering::Relaxed)
                && let Some(ptr) = system_alloc(size)
            {
                self.0.system.fetch_add(1, Ordering::Relaxed);
                return Some(ptr);
            }
            self.0.reserved.fetch_sub(size, Ordering::Relaxed);
        }
        None
    }

    /// Returns all cached blocks to the system, those of kept forms included; the number of bytes given back.
    pub fn empty_cache(&self) -> usize {
        self.0.kept.release(true);
        let mut freed = 0;
        for (class, list) in self.0.free.iter().enumerate() {
            for ptr in std::mem::take(&mut *lock(list)) {
                system_free(ptr);
                freed += class_size(class);
            }
        }
        self.0.reserved.fetch_sub(freed, Ordering::Relaxed);
        // The C library keeps what was freed in its arenas, and what other libraries freed there: hand that back too.
        #[cfg(target_env = "gnu")]
        // SAFETY: no memory in use is touched.
        unsafe {
            libc::malloc_trim(0)
        };
        freed
    }

    /// Counts `bytes` that somebody else allocated for this device as in use, until the claim is dropped.
    ///
    /// Errors with [`OutOfMemory`] if they do not fit the limit even after the cache is emptied.
    pub fn claim(&self, bytes: usize) -> Result<Claim, OutOfMemory> {
        let p = &self.0;
        for attempt in 0..2 {
            if attempt == 1 {
                self.empty_cache();
            }
            let before = p.reserved.fetch_add(bytes, Ordering::Relaxed);
            if before.saturating_add(bytes) <= p.limit.load(Ordering::Relaxed) {
                self.note_use(bytes);
                return Ok(Claim { pool: self.clone(), bytes });
            }
            p.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
        Err(self.refuse(bytes))
    }

    /// What the pool may hold from the system, bytes.
    pub fn limit(&self) -> Option<usize> {
        Some(self.0.limit.load(Ordering::Relaxed)).filter(|&l| l != usize::MAX)
    }

    /// Starts a new peak at the present use.
    pub fn reset_peak(&self) {
        self.0.peak.store(self.0.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bounds what the pool holds from the system, bytes; `None` lifts the bound.
    pub fn set_limit(&self, limit: Option<usize>) {
        self.0.limit.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
        if limit.is_some() {
            self.0.kept.release(true);
        }
    }

    pub fn stats(&self) -> MemoryStats {
        let p = &self.0;
        MemoryStats {
            in_use: p.in_use.load(Ordering::Relaxed),
            peak: p.peak.load(Ordering::Relaxed),
            reserved: p.reserved.load(Ordering::Relaxed),
            system_allocations: p.system.load(Ordering::Relaxed),
            allocations: p.count.load(Ordering::Relaxed),
            packed: p.kept.bytes(),
            prepack_hits: p.kept.hits(),
        }
    }
}

/// Memory from elsewhere that a pool counts: see [`MemoryPool::claim`].
pub struct Claim {
    pool: MemoryPool,
    bytes: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.pool.0.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
        self.pool.0.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for list in &self.free {
            for ptr in std::mem::take(&mut *lock(list)) {
                system_free(ptr);
            }
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic cannot leave a list half-changed; poison carries no meaning here.
    m.lock().unwrap_or_else(|e| e.into_inner())
}

fn class_size(class: usize) -> usize {
    if class == 0 {
        return 64;
    }
    let (n, few) = (class - 1, (MORE_FROM - 6) * STEPS);
    let (p, s, steps) = match n.checked_sub(few) {
        None => (n / STEPS + 6, n % STEPS, STEPS),
        Some(n) => (n / MORE_STEPS + MORE_FROM, n % MORE_STEPS, MORE_STEPS),
    };
    (1usize << p) + (s + 1) * ((1usize << p) / steps)
}

fn system_alloc(size: usize) -> Option<NonNull<u8>> {
    let align = if size >= HUGE_FROM { HUGE } else { ALIGN };
    let mut out = std::ptr::null_mut();
    // SAFETY: `out` is a valid place for the result; the alignment is a power of two.
    let rc = unsafe { libc::posix_memalign(&mut out, align, size) };
    if rc != 0 {
        return None;
    }
    if size >= HUGE_FROM {
        // SAFETY: advises on the range just allocated; a refusal changes nothing.
        unsafe { libc::madvise(out, size / HUGE * HUGE, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(out.cast())
}

/// Gives back a block from a free list.
fn system_free(ptr: NonNull<u8>) {
    // SAFETY: what is on a free list came from `system_alloc`, and nobody else has it once it is taken off.
    unsafe { libc::free(ptr.as_ptr().cast()) };
}

fn dangling() -> NonNull<u8> {
    // The alignment itself is a non-null, aligned address that nothing dereferences.
    NonNull::without_provenance(const { std::num::NonZeroUsize::new(ALIGN).unwrap() })
}

enum Owner {
    None,
    Pool(MemoryPool),
    Foreign(Option<Box<dyn FnOnce() + Send>>),
}

/// A piece of memory, given back when dropped.
pub struct Block {
    ptr: NonNull<u8>,
    len: usize,
    /// The size class of the memory, which may be larger than that of `len`.
    class: usize,
    /// Bytes it counts for.
    counted: usize,
    owner: Owner,
}

// SAFETY: a block is the sole owner of its memory, which is not tied to a thread.
unsafe impl Send for Block {}
// SAFETY: `&Block` gives out only the address; access through it is unsafe and the user's care.
unsafe impl Sync for Block {}

impl Block {
    /// Wraps memory that somebody else owns; `release` runs once when the block is dropped.
    ///
    /// # Safety
    /// `ptr` is valid for `len` bytes until `release` is called.
    pub unsafe fn foreign(ptr: *mut u8, len: usize, release: Box<dyn FnOnce() + Send>) -> Block {
        Block {
            ptr: NonNull::new(ptr).unwrap_or_else(dangling),
            len,
            class: 0,
            counted: 0,
            owner: Owner::Foreign(Some(release)),
        }
    }

    /// First byte; 64-byte aligned unless foreign. Never null.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length asked for, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes usable without a new block: the size class for pool blocks.
    pub fn capacity(&self) -> usize {
        match self.owner {
            Owner::Pool(_) => class_size(self.class),
            _ => self.len,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &mut self.owner {
            Owner::None => {}
            Owner::Pool(pool) => {
                pool.0.in_use.fetch_sub(self.counted, Ordering::Relaxed);
                lock(&pool.0.free[self.class]).push(self.ptr);
            }
            Owner::Foreign(release) => {
                if let Some(f) = release.take() {
                    f();
                }
            }
        }
    }
}

impl crate::Memory for Block {
    fn ptr(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        Block::len(self)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({:p}, {} bytes)", self.ptr, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_tight_and_consistent() {
        let mut last = 0;
        for bytes in (1..100_000).chain([
            1 << 20,
            (1 << 20) + 1,
            (4 << 20) + 1,
            (5 << 20) - 3,
            (8 << 20) - 1,
            8 << 20,
            1 << 40,
            usize::MAX >> 2,
        ]) {
            let (c, s) = class_of(bytes);
            assert!(s >= bytes && s == class_size(c) && c < CLASSES, "{bytes} {c} {s}");
            assert!(bytes < 64 || s <= bytes + bytes / 4 + 64);
            assert!(bytes < HUGE_FROM || s <= bytes + bytes / 16 + 1);
            assert_eq!(rounded(s), s);
            assert!(c >= last || bytes < 100_000);
            last = c;
        }
    }

    #[test]
    fn reuse_counts_and_alignment() {
        let pool = MemoryPool::new(None);
        let a = pool.alloc(1000).unwrap();
        let p = a.as_ptr();
        assert_eq!(p as usize % ALIGN, 0);
        drop(a);
        let b = pool.alloc(1010).unwrap();
        assert_eq!(b.as_ptr(), p);
        let s = pool.stats();
        assert_eq!((s.system_allocations, s.allocations, s.in_use), (1, 2, 1024));
        let big = pool.alloc(5 << 20).unwrap();
        assert_eq!(big.as_ptr() as usize % HUGE, 0);
        assert_eq!(pool.stats().peak, (5 << 20) + 1024);
        drop(big);
        pool.reset_peak();
        assert_eq!(pool.stats().peak, 1024);
        assert_eq!(pool.empty_cache(), 5 << 20);
        assert_eq!(pool.stats().reserved, 1024);
        assert_eq!(pool.alloc(0).unwrap().len(), 0);
    }

    #[test]
    fn changing_sizes_share_memory() {
        let pool = MemoryPool::new(None);
        let mib = |n: usize| n << 20;
        // Up to twice the size serves, and counts for what was asked.
        drop(pool.alloc(mib(40)).unwrap());
        let a = pool.alloc_transient(mib(20)).unwrap();
        let s = pool.stats();
        assert_eq!((s.system_allocations, s.in_use, s.reserved), (1, mib(20), mib(40)));
        assert_eq!((a.len(), a.capacity()), (mib(20), mib(40)));
        drop(a);
        drop(pool.alloc_transient(mib(19)).unwrap());
        assert_eq!((pool.stats().system_allocations, pool.stats().reserved), (2, mib(59)), "more than twice");
        // A larger one replaces smaller ones, if twice what was in use would not do.
        drop(pool.alloc(mib(48)).unwrap());
        assert_eq!((pool.stats().system_allocations, pool.stats().reserved), (3, mib(67)));
        // What stays, and what is bounded, has memory of its own size.
        assert_eq!(pool.alloc(mib(30)).unwrap().capacity(), mib(30));
        pool.set_limit(Some(mib(200)));
        assert_eq!(pool.alloc_transient(mib(25)).unwrap().capacity(), mib(25));
        pool.set_limit(None);
        // Thirty sizes in turn, with companions: no more is held than a few of the largest need.
        let mut x = 1usize;
        for _ in 0..300 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let n = 10 + (x >> 33) % 30;
            let _slab = pool.alloc_transient(mib(n * 3)).unwrap();
            let _live = [n, n, n / 2].map(|m| pool.alloc(mib(m)).unwrap());
        }
        let s = pool.stats();
        assert_eq!(s.in_use, 0);
        assert!(s.reserved <= 2 * s.peak, "{s:?}");
    }

    #[test]
    fn claims_count_and_are_bounded() {
        let pool = MemoryPool::new(Some(1 << 20));
        drop(pool.alloc(1 << 20).unwrap());
        let a = pool.claim(1000).unwrap();
        assert_eq!((pool.stats().in_use, pool.stats().reserved), (1000, 1000), "the cache went first");
        assert_eq!(pool.claim(1 << 20).err().unwrap().in_use, 1000);
        drop(a);
        assert_eq!((pool.stats().in_use, pool.stats().reserved, pool.stats().peak), (0, 0, 1 << 20));
    }

    #[test]
    fn limit_refuses_and_empties_the_cache_first() {
        let pool = MemoryPool::new(Some(1 << 20));
        let a = pool.alloc(600 << 10).unwrap();
        let e = pool.alloc(600 << 10).unwrap_err();
        assert_eq!((e.wanted, e.limit), (600 << 10, 1 << 20));
        drop(a);
        // Another class: fits only once the cached block went back.
        let b = pool.alloc(900 << 10).unwrap();
        assert_eq!(b.len(), 900 << 10);
        assert!(pool.alloc(usize::MAX / 2).is_err());
    }

    #[test]
    fn threads_and_foreign() {
        let pool = MemoryPool::new(None);
        std::thread::scope(|s| {
            for t in 0..4usize {
                let pool = &pool;
                s.spawn(move || {
                    for i in 0..1000 {
                        let n = 64 + (i * 37 + t * 11) % 5000;
                        let b = pool.alloc(n).unwrap();
                        // SAFETY: the block is `n` bytes long and ours.
                        unsafe {
                            b.as_ptr().write(t as u8);
                            b.as_ptr().add(n - 1).write(t as u8);
                            assert_eq!(b.as_ptr().read(), t as u8);
                        }
                    }
                });
            }
        });
        assert_eq!(pool.stats().in_use, 0);
        let flag = Arc::new(AtomicUsize::new(0));
        let f = flag.clone();
        let mut x = [0u8; 8];
        // SAFETY: `x` outlives the block.
        let b = unsafe { Block::foreign(x.as_mut_ptr(), 8, Box::new(move || _ = f.fetch_add(1, Ordering::Relaxed))) };
        drop(b);
        assert_eq!(flag.load(Ordering::Relaxed), 1);
    }
}
