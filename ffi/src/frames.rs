//! The user's Python frame: file, line and function of the nearest frame outside torch and rsx.

use crate::core::session;
use pyo3::ffi;
use pyo3::prelude::*;
use rsx_lazy::FrameId;
use std::sync::RwLock;

/// Directories whose frames are not the user's.
static SKIPPED: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// Frames of files below `directory` are skipped from now on.
pub(crate) fn skip(directory: String) {
    SKIPPED.write().unwrap_or_else(|e| e.into_inner()).push(directory);
}

fn is_users(file: &str) -> bool {
    let skipped = SKIPPED.read().unwrap_or_else(|e| e.into_inner());
    !file.starts_with("<frozen") && !skipped.iter().any(|d| file.starts_with(d.as_str()))
}

/// The calling thread's user frame; unknown (0) when this thread runs no Python.
///
/// Takes the GIL: not to be called under any lock of rsx.
pub(crate) fn current() -> FrameId {
    Python::try_attach(|py| walk(py).unwrap_or_default()).unwrap_or_default()
}

fn walk(py: Python<'_>) -> PyResult<FrameId> {
    // SAFETY: the GIL is held; the result is borrowed from the thread state, or null.
    let top = unsafe { ffi::PyEval_GetFrame() };
    if top.is_null() {
        return Ok(FrameId::default());
    }
    // SAFETY: a non-null borrowed reference to a frame object.
    let mut frame = unsafe { Bound::from_borrowed_ptr(py, top.cast()) };
    loop {
        let code = frame.getattr("f_code")?;
        let file: String = code.getattr("co_filename")?.extract()?;
        if is_users(&file) {
            let line = frame.getattr("f_lineno")?.extract::<Option<u32>>()?.unwrap_or(0);
            let function: String = code.getattr("co_name")?.extract()?;
            return Ok(session().map_or_else(|_| FrameId::default(), |s| s.frame(&file, line, &function)));
        }
        frame = frame.getattr("f_back")?;
        if frame.is_none() {
            return Ok(FrameId::default());
        }
    }
}
