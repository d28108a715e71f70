//! Forked children: the executor's threads do not exist there, and locks may be held by threads that are gone.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static USED: AtomicBool = AtomicBool::new(false);
static BAD: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

extern "C" fn in_child() {
    if USED.load(Relaxed) {
        crate::core::mark_forked();
    }
}

pub(crate) fn set_bad() {
    BAD.store(true, Relaxed);
}

/// Notes that the device is in use: a child forked from now on cannot use it.
pub(crate) fn note_use() {
    if !USED.swap(true, Relaxed) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler only reads and sets flags, which is async-signal-safe.
            unsafe { pthread_atfork(None, None, Some(in_child)) };
        });
    }
}

/// Whether this process is a child of one that had used the device.
pub(crate) fn is_bad() -> bool {
    BAD.load(Relaxed)
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_bad_fork() -> i32 {
    i32::from(is_bad())
}
