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

/// Runs `wait` without the GIL, if this thread holds it. `wait` must not touch Python objects.
pub(crate) fn released(wait: &mut dyn FnMut()) {
    struct Here<'a>(&'a mut dyn FnMut());
    // SAFETY: PyO3 asks for `Send` to keep Python references out; the closure runs on this very thread.
    unsafe impl Send for Here<'_> {}

    if !held() {
        return wait();
    }
    let here = Here(wait);
    // Attaching first tells PyO3 what is so already when we come from C++: it then gives up the very same state.
    Python::attach(|py| {
        py.detach(move || {
            let here = here; // the whole of it, not its field
            (here.0)();
        });
    });
}
