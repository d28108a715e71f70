//! The user's Python frame: file, line and function of the nearest frame outside torch and rsx.

use pyo3::ffi;
use pyo3::prelude::*;
use rsx_lazy::FrameId;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

/// A place in the user's program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

#[derive(Default)]
struct Table {
    frames: Vec<Frame>,
    ids: HashMap<Frame, u32>,
    /// Directories whose frames are not the user's.
    skipped: Vec<String>,
}

fn table() -> std::sync::MutexGuard<'static, Table> {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner())
}

/// Frames of files below `directory` are skipped from now on.
pub(crate) fn skip(directory: String) {
    table().skipped.push(directory);
}

/// The frame behind an id.
pub(crate) fn get(id: FrameId) -> Option<Frame> {
    let index = (id.0 as usize).checked_sub(1)?;
    table().frames.get(index).cloned()
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
        let mut t = table();
        if !file.starts_with("<frozen") && !t.skipped.iter().any(|d| file.starts_with(d.as_str())) {
            drop(t);
            let line = frame.getattr("f_lineno")?.extract::<Option<u32>>()?.unwrap_or(0);
            let function = code.getattr("co_name")?.extract()?;
            t = table();
            return Ok(intern(&mut t, Frame { file, line, function }));
        }
        drop(t);
        frame = frame.getattr("f_back")?;
        if frame.is_none() {
            return Ok(FrameId::default());
        }
    }
}

fn intern(t: &mut Table, frame: Frame) -> FrameId {
    if let Some(&id) = t.ids.get(&frame) {
        return FrameId(id);
    }
    t.frames.push(frame.clone());
    let id = t.frames.len() as u32;
    t.ids.insert(frame, id);
    FrameId(id)
}
