//! Memory that an eager engine made and handed over.
use crate::Claim;
use rsx_devices::{Buffer, Memory};

/// Memory somebody else owns, given back by a closure.
struct Foreign {
    /// Kept as a number: the memory is not tied to a thread.
    address: usize,
    len: usize,
    drop: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// Counted as the device's for as long.
    _claim: Claim,
}

impl Memory for Foreign {
    fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(give_back) = self.drop.take() {
            give_back();
        }
    }
}

/// A buffer over `len` bytes at `ptr`, which stay valid until `drop` is called.
pub(crate) fn adopt(ptr: *mut u8, len: usize, drop: Box<dyn FnOnce() + Send + Sync>, claim: Claim) -> Buffer {
    Buffer::new(Foreign { address: ptr.expose_provenance(), len, drop: Some(drop), _claim: claim })
}
