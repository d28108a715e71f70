//! Storages: one allocation as PyTorch sees it, whose memory may not exist yet.
use crate::Fault;
use rsx_devices::Buffer;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// First token address. No allocator hands out addresses there (above the user half used by Linux mappings' usual
/// places, below the canonical hole).
const TOKEN_BASE: u64 = 0x5000_0000_0000;
/// Distance of token addresses: pointer arithmetic on a token (an offset view's `data_ptr`) stays within its slot for
/// small tensors, and alignment checks pass.
const TOKEN_STEP: u64 = 64;
const TOKEN_SLOTS: usize = 1 << 22;
/// Slots looked at before a storage does without one (it then cannot be found by its token).
const TOKEN_PROBES: usize = 4096;
/// Fills a slot between being taken and being published. Never dereferenced.
const TAKEN: *mut Storage = std::ptr::without_provenance_mut(1);

/// Weak table from token slot to storage, so that a storage is found by its fake address in O(1).
fn slots() -> &'static [AtomicPtr<Storage>] {
    static SLOTS: OnceLock<Vec<AtomicPtr<Storage>>> = OnceLock::new();
    SLOTS.get_or_init(|| (0..TOKEN_SLOTS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect())
}

static NEXT_SLOT: AtomicUsize = AtomicUsize::new(1);
/// Tokens past the table, for storages that found no slot.
static NEXT_BEYOND: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Memory and progress of a storage.
#[derive(Debug, Default)]
pub struct StorageState {
    /// The memory of the newest materialised version.
    pub buffer: Option<Buffer>,
    /// Why the value can never be had: what was to write it failed.
    pub poison: Option<Arc<Fault>>,
    /// The last write did not happen because of this fault; the contents are those before. Segments closed before the
    /// fault was raised may not compute from them.
    pub doubt: Option<Arc<Fault>>,
}

impl StorageState {
    /// Takes `buffer` as the whole new value.
    pub fn renew(&mut self, buffer: Buffer) {
        *self = StorageState { buffer: Some(buffer), ..StorageState::default() };
    }

    /// The fault that keeps segment `sequence` from reading the value.
    pub fn obstacle(&mut self, sequence: u64) -> Option<Arc<Fault>> {
        if self.doubt.as_ref().is_some_and(|f| !f.voids(sequence)) {
            self.doubt = None;
        }
        self.poison.clone().or_else(|| self.doubt.clone())
    }
}

/// One allocation as PyTorch sees it. In-place writes make new versions; only the newest can be read from outside.
#[derive(Debug)]
pub struct Storage {
    token: u64,
    nbytes: AtomicUsize,
    /// Handles held outside (PyTorch's `DataPtr`s). A storage with none left can be dropped or donated by a segment.
    external: AtomicU32,
    /// Sequence number of the last submitted segment that writes it; 0 if none.
    pending: AtomicU64,
    /// Sequence number of the last submitted segment that uses it at all.
    last_used: AtomicU64,
    /// Trace epoch (high half) and index in that trace (low half): see [`Storage::index_in`].
    epoch_index: AtomicU64,
    /// The address was handed out: the memory must stay where it is.
    exposed: AtomicBool,
    state: Mutex<StorageState>,
}

impl Storage {
    /// A storage of `nbytes` bytes without memory, with one external handle.
    pub fn new(nbytes: usize) -> Arc<Storage> {
        let slot = take_slot();
        LIVE.fetch_add(1, Relaxed);
        let storage = Arc::new(Storage::with_token(nbytes, TOKEN_BASE + TOKEN_STEP * slot as u64, 1));
        if let Some(entry) = slots().get(slot) {
            entry.store(Arc::as_ptr(&storage).cast_mut(), Release);
        }
        storage
    }

    /// A storage that only traces know: no token, no external handle. Stands for an old version, or in a copy of a
    /// trace that is only compiled.
    pub fn shadow(nbytes: usize) -> Arc<Storage> {
        Arc::new(Storage::with_token(nbytes, 0, 0))
    }

    fn with_token(nbytes: usize, token: u64, external: u32) -> Storage {
        Storage {
            token,
            nbytes: AtomicUsize::new(nbytes),
            external: AtomicU32::new(external),
            pending: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
            epoch_index: AtomicU64::new(u64::MAX),
            exposed: AtomicBool::new(false),
            state: Mutex::new(StorageState::default()),
        }
    }

    /// Unique non-null address that stands for the memory until there is some.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The storage whose token `address` is, as a pointer that is only valid while somebody else keeps it alive.
    pub fn by_token(address: u64) -> Option<*const Storage> {
        let slot = address.checked_sub(TOKEN_BASE)? / TOKEN_STEP;
        let p = slots().get(slot as usize)?.load(Acquire);
        (!p.is_null() && p != TAKEN).then_some(p.cast_const())
    }

    /// Number of storages alive that somebody outside had a handle to. Shadows are not among them: how many there are
    /// says how many traces wait to be compiled, which is a matter of timing.
    pub fn live_count() -> usize {
        LIVE.load(Relaxed)
    }

    pub fn nbytes(&self) -> usize {
        self.nbytes.load(Relaxed)
    }

    /// Sets the size. The caller has seen to the contents.
    pub fn set_nbytes(&self, nbytes: usize) {
        self.nbytes.store(nbytes, Relaxed);
    }

    /// Notes that one more (`retain`) or one less (`release`) handle is held outside.
    pub fn retain_external(&self) {
        self.external.fetch_add(1, Relaxed);
    }

    /// See [`Storage::retain_external`].
    pub fn release_external(&self) {
        self.external.fetch_sub(1, Release);
    }

    /// Can somebody outside still read it?
    pub fn is_live_outside(&self) -> bool {
        self.external.load(Acquire) > 0
    }

    pub fn pending(&self) -> u64 {
        self.pending.load(Acquire)
    }

    /// Sequence number of the last submitted segment that reads or writes it; 0 if none.
    pub fn last_used(&self) -> u64 {
        self.last_used.load(Acquire)
    }

    /// Notes that segment `sequence` uses it, and perhaps writes it.
    pub fn note_use(&self, sequence: u64, written: bool) {
        self.last_used.store(sequence, Release);
        if written {
            self.pending.store(sequence, Release);
        }
    }

    pub fn is_exposed(&self) -> bool {
        self.exposed.load(Acquire)
    }

    pub fn set_exposed(&self) {
        self.exposed.store(true, Release);
    }

    pub fn state(&self) -> MutexGuard<'_, StorageState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Index given to this storage in the trace of epoch `epoch`, if it was seen there. Valid under the recorder's lock.
    pub fn index_in(&self, epoch: u32) -> Option<u32> {
        let e = self.epoch_index.load(Relaxed);
        (e >> 32 == u64::from(epoch)).then_some(e as u32)
    }

    /// See [`Storage::index_in`].
    pub fn set_index_in(&self, epoch: u32, index: u32) {
        self.epoch_index.store(u64::from(epoch) << 32 | u64::from(index), Relaxed);
    }

    /// Forgets the index: the next use in the open trace counts as a storage of its own.
    pub(crate) fn clear_index(&self) {
        self.epoch_index.store(u64::MAX, Relaxed);
    }
}

/// A slot that no live storage has, so that tokens are unique however many storages have come and gone.
fn take_slot() -> usize {
    let slots = slots();
    for _ in 0..TOKEN_PROBES {
        let slot = NEXT_SLOT.fetch_add(1, Relaxed) % TOKEN_SLOTS;
        if slot != 0 && slots[slot].compare_exchange(std::ptr::null_mut(), TAKEN, Acquire, Relaxed).is_ok() {
            return slot;
        }
    }
    TOKEN_SLOTS + NEXT_BEYOND.fetch_add(1, Relaxed)
}

impl Drop for Storage {
    fn drop(&mut self) {
        let Some(offset) = self.token.checked_sub(TOKEN_BASE) else { return };
        LIVE.fetch_sub(1, Relaxed);
        if let Some(entry) = slots().get((offset / TOKEN_STEP) as usize) {
            entry.store(std::ptr::null_mut(), Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_live_storages_are_unique_and_found() {
        let mut live: Vec<Arc<Storage>> = Vec::new();
        for round in 0..5000 {
            live.push(Storage::new(4));
            if round % 3 == 0 {
                live.swap_remove(round / 7 % live.len());
            }
        }
        let mut tokens: Vec<u64> = live.iter().map(|s| s.token()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), live.len());
        assert!(live.iter().all(|s| Storage::by_token(s.token() + 8) == Some(Arc::as_ptr(s))));
        let gone = live.pop().map(|s| s.token());
        assert!(gone.is_some_and(|t| Storage::by_token(t).is_none()));
        assert_eq!(Storage::by_token(Storage::shadow(4).token()), None);
    }
}
