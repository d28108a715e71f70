//! Work memory: blocks that threads keep between calls, the call's own where a program planned some, else the pool's.

use std::cell::Cell;

use crate::cpu::arena;
use crate::memory::{Block, MemoryPool, OutOfMemory};

thread_local! {
    static OWN: Cell<Option<Block>> = const { Cell::new(None) };
    static SHARED: Cell<Option<Block>> = const { Cell::new(None) };
}

/// Pieces begin at odd multiples of this: equal positions of two pieces then lie in different cache
/// sets and pages' halves.
const STAGGER: usize = 2176;
/// Larger blocks go back to the pool, where everybody finds them.
const KEPT: usize = 256 << 10;

/// Bytes that pieces of these sizes take.
pub(crate) fn room(bytes: &[usize]) -> usize {
    bytes.iter().filter(|&&b| b > 0).map(|b| b.next_multiple_of(64) + STAGGER).sum()
}

/// Lends pieces of the block in `slot`, which is grown to hold them.
///
/// A nested call finds nothing and takes a fresh block from the pool, so lending is re-entrant.
fn lend<const N: usize, R>(
    slot: &'static std::thread::LocalKey<Cell<Option<Block>>>,
    bytes: [usize; N],
    f: impl FnOnce([*mut u8; N]) -> R,
) -> Result<R, OutOfMemory> {
    let mut at = [0; N];
    let mut total = 0;
    for (a, want) in at.iter_mut().zip(bytes) {
        *a = total;
        if want > 0 {
            total += want.next_multiple_of(64) + STAGGER;
        }
    }
    if total == 0 {
        return Ok(f([std::ptr::null_mut(); N]));
    }
    let pool = MemoryPool::cpu();
    // Under a limit nobody keeps memory that another could want.
    let kept = if pool.limit().is_some() { 0 } else { KEPT };
    let block = slot.take().filter(|b| b.capacity() >= total);
    // A block of the thread's own is in its cache. Without one, a program's plan has room: which thread works when for the
    // first time makes no difference to what the system is asked for.
    if block.is_none()
        && let Some(piece) = arena::planned(total)
    {
        return Ok(f(at.map(|a| piece.as_ptr().wrapping_add(a))));
    }
    let block = match block {
        Some(b) => b,
        None => pool.alloc(total)?,
    };
    let r = f(at.map(|a| block.as_ptr().wrapping_add(a)));
    if block.capacity() <= kept {
        slot.set(Some(block));
    }
    Ok(r)
}

/// Lends three pieces of this thread's own work memory.
pub(crate) fn scratch<R>(bytes: [usize; 3], f: impl FnOnce([*mut u8; 3]) -> R) -> Result<R, OutOfMemory> {
    lend(&OWN, bytes, f)
}

/// Lends two pieces that all threads of a product read.
pub(super) fn shared<R>(bytes: [usize; 2], f: impl FnOnce([*mut u8; 2]) -> R) -> Result<R, OutOfMemory> {
    lend(&SHARED, bytes, f)
}
