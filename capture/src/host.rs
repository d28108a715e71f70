//! Storages as the host uses them: reading, writing, addresses, sizes.
use crate::executor::{Job, replace};
use crate::metrics::Counters;
use crate::{CutCause, MemoryStats, Session, SessionError};
use rsx_devices::Buffer;
use rsx_lazy::{FrameId, Storage};
use std::sync::Arc;

impl Session {
    /// The memory of the newest value of `storage`, which is waited for; made if there is none yet (its contents are
    /// then undefined). With `for_write`, pending readers are waited for too.
    ///
    /// The buffer keeps the memory alive; a later segment may give the storage other memory unless it is exposed.
    pub fn materialize(
        &self,
        storage: &Storage,
        for_write: bool,
        cause: CutCause,
        frame: FrameId,
    ) -> Result<Buffer, SessionError> {
        if for_write {
            self.wait_for_users(storage, cause, frame)?;
        }
        self.wait_for(storage, cause, frame)?;
        if let Some(buffer) = &storage.state().buffer {
            return Ok(buffer.clone());
        }
        let made = self.allocate(storage.nbytes(), "a storage", frame)?;
        if cfg!(debug_assertions) {
            made.zero();
        }
        let mut state = storage.state();
        Ok(state.buffer.get_or_insert(made).clone())
    }

    /// As [`Session::materialize`], and the memory stays at this address for as long as the storage lives and is not
    /// resized. Writes through the address are ordered like the user's own threads, not like recorded ops.
    pub fn expose(&self, storage: &Storage, cause: CutCause, frame: FrameId) -> Result<*mut u8, SessionError> {
        let buffer = self.materialize(storage, true, cause, frame)?;
        storage.set_exposed();
        Ok(buffer.expose())
    }

    /// Replaces the whole contents of `storage` by `src`, which must be as long. Never cuts: what is recorded or in
    /// flight goes on reading the old contents. `src` may be reused on return.
    pub fn upload(&self, storage: &Arc<Storage>, src: &[u8], frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        if src.len() != storage.nbytes() {
            let (have, want) = (src.len(), storage.nbytes());
            return Err(SessionError::Usage(format!("upload of {have} bytes into a storage of {want}")));
        }
        let shared = self.shared();
        if shared.completion.queued_bytes() > shared.max_queued_bytes && !shared.on_executor() {
            let ready = || {
                shared.completion.queued_bytes() <= shared.max_queued_bytes || shared.is_closed() || shared.is_forked()
            };
            shared.blocking(&mut || shared.completion.wait(&ready));
        }
        let buffer = self.allocate(src.len(), "a copy from the host", frame)?;
        buffer.write(0, src).map_err(|e| SessionError::Internal(e.to_string()))?;
        Counters::add(&shared.counters.bytes_moved, src.len() as u64);
        // Nobody uses it: the new value is there at once.
        if !self.recorder.is_used(storage) && shared.completion.done() >= storage.last_used() {
            replace(storage, buffer);
            return Ok(());
        }
        self.recorder.write_from_outside(storage, |write| {
            shared.completion.write_queued(buffer.len());
            // An executor that is gone means a closed session: waiting gives that error.
            let _ = self.core.queue.send(Job::Write { storage: storage.clone(), buffer, write });
        });
        Ok(())
    }

    /// Waits for the value and copies `dst.len()` bytes from byte `offset` on into `dst`. Memory that nobody has written
    /// reads as zero.
    pub fn read(
        &self,
        storage: &Storage,
        offset: usize,
        dst: &mut [u8],
        cause: CutCause,
        frame: FrameId,
    ) -> Result<(), SessionError> {
        self.wait_for(storage, cause, frame)?;
        if offset.checked_add(dst.len()).is_none_or(|end| end > storage.nbytes()) {
            let (len, size) = (dst.len(), storage.nbytes());
            return Err(SessionError::Usage(format!("read of {len} bytes at {offset} from a storage of {size}")));
        }
        let buffer = storage.state().buffer.clone();
        let Some(buffer) = buffer else {
            dst.fill(0);
            return Ok(());
        };
        Counters::add(&self.shared().counters.bytes_moved, dst.len() as u64);
        buffer.read(offset, dst).map_err(|e| SessionError::Internal(e.to_string()))
    }

    /// Sets the size of `storage` to `nbytes`, keeping the contents as far as they fit. Waits for all users unless the
    /// storage has no memory and no user yet. An exposed storage that grows moves: expose it again.
    pub fn resize(&self, storage: &Storage, nbytes: usize, frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        let old = storage.nbytes();
        if nbytes == old {
            return Ok(());
        }
        self.wait_for_users(storage, CutCause::Resize, frame)?;
        let present = storage.state().buffer.clone();
        let fits = present.as_ref().is_none_or(|b| nbytes <= b.len() && nbytes > 0);
        if !fits {
            let moved = match present.filter(|_| nbytes > 0) {
                None => None,
                Some(from) => {
                    let to = self.allocate(nbytes, "a resized storage", frame)?;
                    to.copy_from(&from, old.min(nbytes)).map_err(|e| SessionError::Internal(e.to_string()))?;
                    Some(to)
                }
            };
            storage.state().buffer = moved;
        }
        storage.set_nbytes(nbytes);
        Ok(())
    }

    /// Waits until nothing recorded or in flight reads or writes `storage`.
    fn wait_for_users(&self, storage: &Storage, cause: CutCause, frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        if self.recorder.is_used(storage) {
            self.recorder.cut(cause.name(), frame);
        }
        self.wait_sequence(storage.last_used(), cause, frame)
    }

    /// Memory for the host's own use. When short: waits for everything in flight, gives cached memory back, tries again.
    pub fn allocate(&self, bytes: usize, what: &'static str, frame: FrameId) -> Result<Buffer, SessionError> {
        let shared = self.shared();
        if let Ok(buffer) = shared.allocate(bytes) {
            return Ok(buffer);
        }
        if !shared.on_executor() {
            self.cut(CutCause::ByteLimit, frame)?;
            let (sequence, _) = self.recorder.position();
            self.wait_sequence(sequence, CutCause::ByteLimit, frame)?;
        }
        shared.backend.release_cached();
        shared.allocate(bytes).map_err(|e| SessionError::OutOfMemory { what, bytes, message: e.message })
    }

    /// Counters of device memory.
    pub fn memory(&self) -> MemoryStats {
        self.shared().backend.memory()
    }

    /// Starts a new peak at the present use.
    pub fn reset_peak(&self) {
        self.shared().backend.reset_peak();
    }

    /// Gives cached memory back to the system.
    pub fn release_cached(&self) {
        self.shared().backend.release_cached();
    }
}
