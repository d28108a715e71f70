//! Device memory held by reference count.
use std::sync::Arc;

/// Memory of a device. Cheap to clone; the memory lives as long as one clone does.
#[derive(Clone)]
pub struct Buffer(Arc<dyn Memory>);

/// What a buffer can be made of: a block of a pool, or memory that somebody else owns.
pub trait Memory: Send + Sync {
    fn ptr(&self) -> *mut u8;
    /// Size in bytes.
    fn len(&self) -> usize;
}

impl Buffer {
    pub fn new(memory: impl Memory + 'static) -> Self {
        Buffer(Arc::new(memory))
    }
    pub fn ptr(&self) -> *mut u8 {
        self.0.ptr()
    }
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// True if no other clone exists.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:p}, {} bytes)", self.ptr(), self.len())
    }
}
