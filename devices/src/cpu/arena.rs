//! Work memory that a program's buffer plan set aside for a library kernel.
//!
//! The executor lends the memory for the time of a call ([`with`]); the kernel's threads take pieces of it ([`take`]).
//! Where there is none, or not enough, pieces come from the process's pool: a plan that is too small costs memory,
//! nothing else.
use super::pool::CONTEXT;
use crate::memory::{ALIGN, Block, MemoryPool, OutOfMemory};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// Memory that pieces are taken from.
struct Arena {
    base: *mut u8,
    len: usize,
    /// Pieces that are in use: begin and end, in order.
    taken: Mutex<Vec<(usize, usize)>>,
}

impl Arena {
    /// Begin of a free piece, which is in use from now on.
    fn take(&self, bytes: usize) -> Option<usize> {
        let size = bytes.next_multiple_of(ALIGN);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        let mut n = 0;
        while let Some(&(from, to)) = taken.get(n).filter(|t| t.0 < at + size) {
            debug_assert!(from >= at);
            at = to;
            n += 1;
        }
        (at + size <= self.len).then(|| {
            taken.insert(n, (at, at + size));
            at
        })
    }

    fn give_back(&self, at: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|t| t.0 != at);
    }
}

/// Runs `f`, whose work memory is `len` bytes at `base` (aligned to [`ALIGN`]), on this thread and the pool's.
///
/// # Safety
/// Nobody else uses the memory meanwhile.
pub(super) unsafe fn with<R>(base: *mut u8, len: usize, f: impl FnOnce() -> R) -> R {
    /// Takes the arena away again, whatever happens.
    struct Reset(*const ());
    impl Drop for Reset {
        fn drop(&mut self) {
            CONTEXT.set(self.0);
        }
    }
    let arena = Arena { base, len, taken: Mutex::new(Vec::with_capacity(8)) };
    let _reset = Reset(CONTEXT.replace((&raw const arena).cast()));
    f()
}

/// A piece of work memory, given back when dropped. It must not outlive the call it was taken in.
pub(super) enum Piece {
    Arena { ptr: *mut u8, arena: *const (), at: usize },
    Block(Block),
}

impl Piece {
    pub(super) fn as_ptr(&self) -> *mut u8 {
        match self {
            Piece::Arena { ptr, .. } => *ptr,
            Piece::Block(b) => b.as_ptr(),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Piece::Arena { arena, at, .. } = self {
            // SAFETY: pieces live no longer than the call, whose frame owns the arena.
            unsafe { (*arena.cast::<Arena>()).give_back(*at) }
        }
    }
}

/// A piece of the current call's memory, if it has one and there is room.
pub(super) fn planned(bytes: usize) -> Option<Piece> {
    let arena = CONTEXT.with(Cell::get);
    if arena.is_null() {
        return None;
    }
    // SAFETY: a context is an arena that lives until the call ends, which waits for the threads that it was lent to.
    let a = unsafe { &*arena.cast::<Arena>() };
    a.take(bytes).map(|at| Piece::Arena { ptr: a.base.wrapping_add(at), arena, at })
}

/// A piece of the current call's memory, or of the process's pool.
pub(super) fn take(bytes: usize) -> Result<Piece, OutOfMemory> {
    take_or(MemoryPool::cpu(), bytes)
}

/// A piece of the current call's memory, or of `pool`.
pub(super) fn take_or(pool: &MemoryPool, bytes: usize) -> Result<Piece, OutOfMemory> {
    match planned(bytes) {
        Some(p) => Ok(p),
        None => Ok(Piece::Block(pool.alloc(bytes)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pool;

    #[test]
    fn pieces_are_apart_and_come_back() -> Result<(), OutOfMemory> {
        let memory = MemoryPool::cpu().alloc(1024)?;
        let base = memory.as_ptr();
        // SAFETY: the block is ours.
        unsafe {
            with(base, 1024, || {
                let (a, b) = (take(100)?, take(500)?);
                assert_eq!((a.as_ptr(), b.as_ptr()), (base, base.wrapping_add(128)));
                assert!(matches!(take(512)?, Piece::Block(_)), "no room");
                drop(a);
                let (c, d) = (take(128)?, take(384)?);
                assert_eq!((c.as_ptr(), d.as_ptr()), (base, base.wrapping_add(640)));
                Ok::<(), OutOfMemory>(())
            })?;
        }
        assert!(matches!(take(64)?, Piece::Block(_)), "the arena is gone");
        Ok(())
    }

    #[test]
    fn all_threads_of_a_job_take_from_it() -> Result<(), OutOfMemory> {
        let memory = MemoryPool::cpu().alloc(1 << 16)?;
        // SAFETY: the block is ours.
        unsafe {
            with(memory.as_ptr(), 1 << 16, || {
                pool::parallel_for(64, 10_000_000, &|_| {
                    assert!(matches!(take(256), Ok(Piece::Arena { .. })));
                    std::thread::sleep(std::time::Duration::from_micros(50));
                });
            });
        }
        Ok(())
    }
}
