//! Copies of buffers in the form that a kernel reads: weights that are packed once instead of in every run.
//!
//! A kept form belongs to its buffer. [`Buffer::write_ptr`](crate::Buffer::write_ptr) is the only way to an address that
//! may be written, and it drops all of them; freeing the buffer does too. What is found here therefore always is the form
//! of the present contents, however they came about, and a buffer at the address of a freed one starts with nothing.
//! [`Buffer::expose`](crate::Buffer::expose) gives the address away for good: nothing is kept from then on.
//!
//! The rule of what is kept:
//! - A form is made at the second run that asks for it with no write in between; what a training step writes in every
//!   step is never copied.
//! - Each byte of a buffer is in one form at most, and a form is at most [`GROWTH`] times as large as what it stands for
//!   (16-bit weights as f32, panels filled up with zeros) or [`SMALL`] larger. What does not fit that is packed in every
//!   call.
//! - A form goes when the last program that used it does, with [`MemoryPool::empty_cache`], and thus before the system's
//!   memory runs out. Under a limit nothing is kept at all.
use crate::Buffer;
use crate::memory::{Block, MemoryPool};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A form's bytes for each byte that it stands for.
const GROWTH: usize = 9;
const GROWTH_PER: usize = 4;
/// Bytes that a form may be larger than that.
const SMALL: usize = 64 << 10;

/// Everything that decides a form's bytes besides the buffer's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form(pub(crate) SmallVec<[i64; 24]>);

/// Kept forms of all buffers of a pool.
#[derive(Default)]
pub(crate) struct Registry {
    sets: Mutex<Vec<Weak<KeptSet>>>,
    bytes: AtomicUsize,
    hits: AtomicU64,
}

/// The forms of one buffer.
#[derive(Default)]
pub(crate) struct KeptSet {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    never: bool,
}

struct Entry {
    form: Form,
    /// Bytes of the buffer that it stands for.
    source: usize,
    state: State,
    users: SmallVec<[Weak<()>; 1]>,
}

enum State {
    /// A run asked for it.
    Seen(u64),
    /// A run makes it: the number of the attempt.
    Making(u64),
    Made(Arc<Kept>),
}

/// A form, as long as somebody uses it.
pub(crate) struct Kept {
    block: Block,
    pool: MemoryPool,
}

impl Kept {
    pub(crate) fn ptr(&self) -> *const u8 {
        self.block.as_ptr()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.pool.kept().bytes.fetch_sub(self.block.capacity(), Ordering::Relaxed);
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change leaves the list whole.
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl KeptSet {
    /// The contents change.
    pub(crate) fn clear(&self) {
        lock(&self.list).entries.clear();
    }

    /// The contents may change at any time from now on.
    pub(crate) fn close(&self) {
        *lock(&self.list) = List { entries: Vec::new(), never: true };
    }

    /// Gives up forms: those that nobody uses any more, or all.
    fn release(&self, all: bool) {
        let mut list = lock(&self.list);
        for e in &mut list.entries {
            e.users.retain(|u| u.strong_count() > 0);
            if all && matches!(e.state, State::Made(_)) {
                // It was worth it: the next run makes it again.
                e.state = State::Seen(0);
            }
        }
        list.entries.retain(|e| !e.users.is_empty());
    }
}

impl Registry {
    /// Bytes that forms take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Operands that were found packed.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Gives up forms: those whose programs are gone, or all.
    pub(crate) fn release(&self, all: bool) {
        let sets: Vec<Arc<KeptSet>> = {
            let mut sets = lock(&self.sets);
            sets.retain(|s| s.strong_count() > 0);
            sets.iter().filter_map(Weak::upgrade).collect()
        };
        sets.iter().for_each(|s| s.release(all));
    }

    fn add(&self, set: &Arc<KeptSet>) {
        let mut sets = lock(&self.sets);
        if sets.iter().any(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(set))) {
            return;
        }
        if sets.len() == sets.capacity() {
            sets.retain(|s| s.strong_count() > 0);
        }
        sets.push(Arc::downgrade(set));
    }
}

/// A number that no run had before.
pub(crate) fn next_run() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An operand whose packed form may be kept: the buffer it lies in, which the run does not write, and who asks.
#[derive(Clone, Copy)]
pub struct Keep<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) pool: &'a MemoryPool,
    /// Lives as long as the program.
    pub(crate) user: &'a Arc<()>,
    pub(crate) run: u64,
}

impl std::fmt::Debug for Keep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keep({:?})", self.buffer)
    }
}

impl Keep<'_> {
    /// Where in the buffer an operand begins, bytes.
    pub(crate) fn offset(&self, ptr: *const u8) -> i64 {
        (ptr.addr() as i64).wrapping_sub(self.buffer.ptr().addr() as i64)
    }

    /// The form of `bytes` bytes that stands for `source` bytes of the buffer, if it is kept or worth it from now on:
    /// `make` then writes it. None: to be packed for this call.
    pub(crate) fn get(
        &self,
        form: impl FnOnce() -> Form,
        source: usize,
        bytes: usize,
        make: impl FnOnce(*mut u8),
    ) -> Option<Arc<Kept>> {
        if bytes > (source / GROWTH_PER).saturating_mul(GROWTH) + SMALL || self.pool.limit().is_some() {
            return None;
        }
        let (set, form) = (self.buffer.kept(), form());
        let attempt = next_run();
        {
            let mut list = lock(&set.list);
            if list.never {
                return None;
            }
            let Some(n) = list.entries.iter().position(|e| e.form == form) else {
                let users = SmallVec::from_elem(Arc::downgrade(self.user), 1);
                list.entries.push(Entry { form, source, state: State::Seen(self.run), users });
                return None;
            };
            let held = |e: &Entry| if let State::Seen(_) = e.state { 0 } else { e.source };
            let others: usize = list.entries.iter().map(held).sum();
            let e = &mut list.entries[n];
            if !e.users.iter().any(|u| std::ptr::eq(u.as_ptr(), Arc::as_ptr(self.user))) {
                e.users.push(Arc::downgrade(self.user));
            }
            match &e.state {
                State::Made(kept) => {
                    self.pool.kept().hits.fetch_add(1, Ordering::Relaxed);
                    return Some(kept.clone());
                }
                State::Seen(run) if *run != self.run && others + source <= self.buffer.len() => {
                    e.state = State::Making(attempt);
                }
                State::Seen(_) | State::Making(_) => return None,
            }
        }
        // Not under the lock: other threads meanwhile pack for themselves.
        let made = self.pool.alloc_kept(bytes).map(|block| {
            self.pool.kept().bytes.fetch_add(block.capacity(), Ordering::Relaxed);
            make(block.as_ptr());
            Arc::new(Kept { block, pool: self.pool.clone() })
        });
        let mut list = lock(&set.list);
        // Not there any more: the buffer was written meanwhile.
        let entry = list.entries.iter_mut().find(|e| matches!(e.state, State::Making(n) if n == attempt));
        match (&made, entry) {
            (Some(kept), Some(e)) => {
                e.state = State::Made(kept.clone());
                drop(list);
                self.pool.kept().add(&set);
            }
            (None, Some(e)) => e.state = State::Seen(self.run),
            (_, None) => {}
        }
        made
    }
}
