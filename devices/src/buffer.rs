//! Device memory held by reference count.
use crate::kept::KeptSet;
use std::sync::{Arc, OnceLock};

/// Memory of a device. Cheap to clone; the memory lives as long as one clone does.
///
/// Forms of its contents that kernels keep (`kept.rs`) go with every access for writing: whoever writes asks for
/// [`Buffer::write_ptr`] just before, in the order of the device's work.
#[derive(Clone)]
pub struct Buffer(Arc<Shared<dyn Memory>>);

struct Shared<M: ?Sized> {
    kept: OnceLock<Arc<KeptSet>>,
    memory: M,
}

/// What a buffer can be made of: a block of a pool, or memory that somebody else owns.
///
/// `ptr` is valid for reads and writes of `len` bytes as long as the value lives, and both never change.
pub trait Memory: Send + Sync {
    fn ptr(&self) -> *mut u8;
    /// Size in bytes.
    fn len(&self) -> usize;
}

impl Buffer {
    pub fn new(memory: impl Memory + 'static) -> Self {
        Buffer(Arc::new(Shared { kept: OnceLock::new(), memory }))
    }

    /// The memory, for reading.
    pub fn ptr(&self) -> *const u8 {
        self.0.memory.ptr().cast_const()
    }

    /// The memory, to be written now: once the work that asked is over, the address is for reading.
    pub fn write_ptr(&self) -> *mut u8 {
        if let Some(kept) = self.0.kept.get() {
            kept.clear();
        }
        self.0.memory.ptr()
    }

    /// The memory, to be written by anybody at any time from now on.
    pub fn expose(&self) -> *mut u8 {
        self.kept().close();
        self.0.memory.ptr()
    }

    /// The forms that kernels keep of the contents.
    pub(crate) fn kept(&self) -> Arc<KeptSet> {
        self.0.kept.get_or_init(Arc::default).clone()
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `src` to byte offset `offset`. Errors if it does not fit.
    pub fn write(&self, offset: usize, src: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, src.len())?;
        // SAFETY: the range lies within memory that `self` keeps alive (`Memory`'s contract), and `src` is a live
        // slice. Device memory is shared bytes: who writes when is the caller's order of work, as on any device.
        unsafe { std::ptr::copy(src.as_ptr(), self.write_ptr().add(offset), src.len()) };
        Ok(())
    }

    /// Copies bytes from offset `offset` into `dst`. Errors if the range does not lie within the buffer.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(offset, dst.len())?;
        // SAFETY: as in `write`; `dst` is a live, exclusively borrowed slice.
        unsafe { std::ptr::copy(self.ptr().add(offset), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    /// Copies the first `len` bytes of `from`; the two may overlap.
    pub fn copy_from(&self, from: &Buffer, len: usize) -> Result<(), OutOfRange> {
        self.check(0, len)?;
        from.check(0, len)?;
        // SAFETY: both ranges lie within memory that the two buffers keep alive.
        unsafe { std::ptr::copy(from.ptr(), self.write_ptr(), len) };
        Ok(())
    }

    /// Fills it with zero bytes.
    pub fn zero(&self) {
        // SAFETY: the whole of memory that `self` keeps alive.
        unsafe { std::ptr::write_bytes(self.write_ptr(), 0, self.len()) };
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfRange> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len()) {
            return Ok(());
        }
        Err(OutOfRange { offset, len, size: self.len() })
    }

    /// True if no other clone exists.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// A range that does not lie within a buffer. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{offset}+{len} of a buffer of {size} bytes")]
pub struct OutOfRange {
    pub offset: usize,
    pub len: usize,
    pub size: usize,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:p}, {} bytes)", self.ptr(), self.len())
    }
}
