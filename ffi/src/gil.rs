//! Giving up the GIL while waiting.
//!
//! Entries are called with the GIL (from Python) or without it (backward runs without), so it is asked for at run time.
//! `PyGILState_Check` is missing from PyO3's stable-ABI bindings; every CPython exports it.

use pyo3::Python;

unsafe extern "C" {
    fn PyGILState_Check() -> i32;
}

/// Whether the calling thread holds the GIL.
pub(crate) fn held() -> bool {
    // SAFETY: callable from any thread at any time of the interpreter's life.
    unsafe { PyGILState_Check() == 1 }
}

/// Runs `wait` without the GIL, if this thread holds it.
pub(crate) fn released<T: Send>(wait: impl FnOnce() -> T + Send) -> T {
    if !held() {
        return wait();
    }
    // Attaching first tells PyO3 what is so already when we come from C++: it then gives up the very same state.
    Python::attach(|py| py.detach(wait))
}
