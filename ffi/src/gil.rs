//! Giving up the GIL while waiting.
//!
//! Entries are called with the GIL (from Python) or without it (backward runs without), so it is asked for at run time.
//! The two functions that PyO3's stable-ABI bindings leave out are declared here; every CPython 3.9+ exports them.

use pyo3::ffi::{PyEval_RestoreThread, PyEval_SaveThread, PyThreadState};
use std::ptr;

unsafe extern "C" {
    fn PyGILState_Check() -> i32;
}

/// Whether the calling thread holds the GIL.
pub(crate) fn held() -> bool {
    // SAFETY: callable from any thread at any time of the interpreter's life.
    unsafe { PyGILState_Check() == 1 }
}

/// Runs `wait` without the GIL, if this thread holds it.
pub(crate) fn released<T>(wait: impl FnOnce() -> T) -> T {
    struct Restore(*mut PyThreadState);
    impl Drop for Restore {
        fn drop(&mut self) {
            if !self.0.is_null() {
                // SAFETY: the pointer comes from PyEval_SaveThread on this thread.
                unsafe { PyEval_RestoreThread(self.0) };
            }
        }
    }
    // SAFETY: this thread holds the GIL, so it has a thread state to save.
    let _restore = Restore(if held() { unsafe { PyEval_SaveThread() } } else { ptr::null_mut() });
    wait()
}
