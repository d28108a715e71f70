//! What the Python package calls to record, compare and replay calls.

use crate::core::session;
use crate::py::exception;
use crate::replay::{self, recordings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rsx_capture::{CutCause, Operand, Recording, Replay};
use rsx_lazy::OpId;
use rsx_lazy::words::DataKind;
use std::ffi::{CString, c_char};
use std::sync::Arc;

/// Starts recording a call on this thread.
#[pyfunction]
pub(crate) fn record_begin(py: Python<'_>) -> PyResult<()> {
    replay::begin().map_err(|e| exception(py, e))
}

/// Ends it: the recording's number (0: none), and why it cannot be replayed.
#[pyfunction]
pub(crate) fn record_end(py: Python<'_>) -> PyResult<(u64, Vec<String>)> {
    replay::end().map_err(|e| exception(py, e))
}

/// Adds a reason why the call being recorded cannot be replayed.
#[pyfunction]
pub(crate) fn record_refuse(reason: String) {
    replay::refuse(|| reason);
}

/// A call is being recorded.
#[pyfunction]
pub(crate) fn is_recording() -> bool {
    replay::active()
}

#[pyfunction]
pub(crate) fn recording_drop(id: u64) {
    let dropped = recordings().remove(&id);
    drop(dropped);
}

/// Number of ops of a recording.
#[pyfunction]
pub(crate) fn recording_nodes(id: u64) -> usize {
    recordings().get(&id).map_or(0, |r| r.nodes())
}

/// (word, is a float, can be set, value before, value after, op, user's line)
type Difference = (u32, bool, bool, f64, f64, String, String);

/// Operands that differ between two recordings of equal structure; `None` if the structure differs.
#[pyfunction]
pub(crate) fn recording_compare(py: Python<'_>, before: u64, after: u64) -> PyResult<Option<Vec<Difference>>> {
    let frames = session().map_err(|e| exception(py, e))?.frames();
    let recordings = recordings();
    let (Some(b), Some(a)) = (recordings.get(&before), recordings.get(&after)) else { return Ok(None) };
    if !a.is_like(b) {
        return Ok(None);
    }
    let value = |o: &Operand, bits: u64| if o.kind.is_float() { f64::from_bits(bits) } else { bits as i64 as f64 };
    // Numbers, also as PyTorch wraps them: 0-d tensors of f64 and i64.
    let number = |o: &Operand| match o.kind {
        DataKind::Int | DataKind::Double => true,
        DataKind::Bool => false,
        DataKind::Raw(t) => matches!(t.0, 4 | 7),
    };
    let row = |o: Operand| {
        let (before, after) = (value(&o, o.before), value(&o, o.after));
        (o.word, o.kind.is_float(), number(&o), before, after, o.op.clone(), frames.text(o.frame.0))
    };
    Ok(Some(a.differences(b).into_iter().map(row).collect()))
}

/// Makes a replay of recording `id`. `before`: the recording of the call before, or 0. `seed`, `offset`:
/// the default generator's state before the call; `advance`: numbers drawn. Gives the replay's address, a reference of the
/// caller's. Raises ValueError with the reason if there is no replay to be had.
#[pyfunction]
pub(crate) fn replay_new(
    py: Python<'_>,
    before: u64,
    id: u64,
    seed: u64,
    offset: u64,
    advance: u64,
) -> PyResult<usize> {
    let session = session().map_err(|e| exception(py, e))?;
    let recordings = recordings();
    let recording = recordings.get(&id).ok_or_else(|| PyValueError::new_err("no such recording"))?.clone();
    let replay = Replay::new(session, recording, recordings.get(&before), seed, offset, advance);
    let replay = replay.map_err(|u| PyValueError::new_err(u.0))?;
    Ok(Arc::into_raw(Arc::new(replay)) as usize)
}

fn with<T>(address: usize, f: impl FnOnce(&Replay) -> T) -> T {
    let replay = address as *const Replay;
    // SAFETY: an address given by `replay_new` whose reference the caller (`rsx._jit`) still holds.
    f(unsafe { &*replay })
}

/// Sets number operands of a replay: (word, is a float, value).
#[pyfunction]
pub(crate) fn replay_set_words(address: usize, words: Vec<(u32, bool, f64)>) {
    let bits = |(w, float, v): (u32, bool, f64)| (w, if float { v.to_bits() } else { v as i64 as u64 });
    let words: Vec<(u32, u64)> = words.into_iter().map(bits).collect();
    with(address, |r| r.set_words(&words));
}

/// Whether the program of a replay is ready.
#[pyfunction]
pub(crate) fn replay_is_compiled(address: usize) -> bool {
    with(address, Replay::is_compiled)
}

unsafe extern "C" {
    /// Number of the op with this full name, or -1.
    fn rsx_cpp_op(name: *const c_char) -> i64;
}

/// A recording's structure as bytes.
#[pyfunction]
pub(crate) fn recording_export(py: Python<'_>, id: u64) -> PyResult<Bound<'_, PyBytes>> {
    let recordings = recordings();
    let recording = recordings.get(&id).ok_or_else(|| PyValueError::new_err("no such recording"))?;
    if recording.has_loop() {
        return Err(PyValueError::new_err("a program with a while_loop in it cannot be saved"));
    }
    Ok(PyBytes::new(py, &recording.to_bytes()))
}

/// Inverse of `recording_export`: a recording's number. Raises ValueError if the bytes are not good here.
#[pyfunction]
pub(crate) fn recording_import(py: Python<'_>, bytes: &[u8]) -> PyResult<u64> {
    let session = session().map_err(|e| exception(py, e))?;
    let mut op = |name: &str| {
        let name = CString::new(name).ok()?;
        // SAFETY: a C string that outlives the call.
        let id = unsafe { rsx_cpp_op(name.as_ptr()) };
        crate::core::ops().get(OpId(u32::try_from(id).ok()?))
    };
    Recording::from_bytes(session, bytes, &mut op).map(replay::keep).map_err(PyValueError::new_err)
}

/// Storages that belong to the program: (number, contents). Waits for them. Raises ValueError if it writes one of them.
#[pyfunction]
pub(crate) fn recording_captured(py: Python<'_>, id: u64) -> PyResult<Vec<(u32, Bound<'_, PyBytes>)>> {
    let session = session().map_err(|e| exception(py, e))?;
    let found = {
        let recordings = recordings();
        let recording = recordings.get(&id).ok_or_else(|| PyValueError::new_err("no such recording"))?;
        let captured = recording.captured().map_err(PyValueError::new_err)?;
        captured.into_iter().map(|i| (i, recording.storage(i))).collect::<Vec<_>>()
    };
    let mut out = Vec::with_capacity(found.len());
    for (i, storage) in found {
        let storage = storage.ok_or_else(|| PyValueError::new_err("a tensor that the program reads is gone"))?;
        let mut bytes = vec![0; storage.nbytes()];
        let read = session.read(&storage, 0, &mut bytes, CutCause::CopyToHost, Default::default());
        read.map_err(|e| exception(py, e.into()))?;
        out.push((i, PyBytes::new(py, &bytes)));
    }
    Ok(out)
}
