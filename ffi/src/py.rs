//! What the Python package calls.
#![allow(non_snake_case, reason = "the name of the Python module, which its macro repeats")]

use crate::control::{self, set_host_cause};
use crate::core::{session, started};
use crate::eager::rsx_cpp_free;
use crate::error::{Failure, last_text, status_of};
use crate::{fork, frames};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rsx_capture::{CutCause, ErrorKind, FaultPoint, timeline};
use rsx_devices::store::DiskStore;
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use std::time::Duration;

unsafe extern "C" {
    fn rsx_cpp_init() -> *mut c_char;
    fn rsx_cpp_bench(what: *const c_char, n: i64) -> f64;
}

/// How long the end of the process waits for work in flight.
const SHUTDOWN: Duration = Duration::from_secs(10);

pub(crate) fn exception(py: Python<'_>, failure: Failure) -> PyErr {
    let name = match failure.kind {
        ErrorKind::OutOfMemory => "OutOfMemoryError",
        _ => return PyRuntimeError::new_err(failure.message),
    };
    let class = py.import("torch").and_then(|t| t.getattr(name));
    match class.and_then(|c| c.call1((failure.message.clone(),))) {
        Ok(e) => PyErr::from_value(e),
        Err(_) => PyRuntimeError::new_err(failure.message),
    }
}

/// A status of the C entries as PyTorch's exception.
fn checked(py: Python<'_>, status: i32) -> PyResult<()> {
    if status >= 0 {
        return Ok(());
    }
    let kind = if status == status_of(ErrorKind::OutOfMemory) { ErrorKind::OutOfMemory } else { ErrorKind::User };
    Err(exception(py, Failure { kind, message: last_text() }))
}

/// Registers the device with PyTorch. `skip`: directories whose frames are not the user's.
#[pyfunction]
fn init(skip: Vec<String>) -> PyResult<()> {
    rsx_capture::log::init();
    skip.into_iter().for_each(frames::skip);
    // SAFETY: called once, by the package's import, under the GIL.
    let text = unsafe { rsx_cpp_init() };
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: a C string of malloc, freed once.
    let message = unsafe {
        let m = CStr::from_ptr(text).to_string_lossy().into_owned();
        rsx_cpp_free(text);
        m
    };
    Err(PyRuntimeError::new_err(message))
}

#[pyfunction]
fn mark_step(py: Python<'_>) -> PyResult<()> {
    checked(py, control::rsx_cut(0))
}

#[pyfunction]
fn synchronize(py: Python<'_>) -> PyResult<()> {
    checked(py, control::rsx_synchronize(8))
}

/// Cuts before the next recorded op, for an optimizer's step.
#[pyfunction]
fn cut_before_next(py: Python<'_>) -> PyResult<()> {
    let Some(session) = started() else { return Ok(()) };
    if fork::is_bad() || crate::replay::active() {
        return Ok(()); // a recorded call is one segment; or an optimizer of CPU tensors, in a child
    }
    let cut = session.cut_before_next(CutCause::OptimizerStep, frames::current());
    cut.map_err(|e| exception(py, e.into()))
}

#[pyfunction]
fn is_bad_fork() -> bool {
    fork::is_bad()
}

#[pyfunction]
fn metrics(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let m = session().map_err(|e| exception(py, e))?.metrics();
    let d = PyDict::new(py);
    macro_rules! items {
        ($($field:ident)*) => { $( d.set_item(stringify!($field), m.$field)?; )* };
    }
    items! {
        records signatures segments replays compiles plans compiling compile_failures compile_seconds cache_hits disk_hits disk_rejects
        check_failures eager_runs eager_ops calls
        fallbacks cuts host_waits wait_seconds throttles launch_failures loop_iterations faults kernels bytes_moved busy_seconds
        live_bytes peak_bytes reserved_bytes system_allocations packed_bytes prepack_hits live_storages cached_segments
    }
    Ok(d)
}

#[pyfunction]
fn reset_metrics(py: Python<'_>) -> PyResult<()> {
    session().map_err(|e| exception(py, e))?.reset_metrics();
    Ok(())
}

#[pyfunction]
fn report(py: Python<'_>) -> PyResult<String> {
    Ok(session().map_err(|e| exception(py, e))?.report().text())
}

/// Forbids or allows this thread to wait for the device; returns what was so before.
#[pyfunction]
fn forbid_host_wait(forbid: bool) -> bool {
    crate::watch::forbid_host_wait(forbid)
}

/// Starts collecting the timeline.
#[pyfunction]
fn timeline_start() {
    timeline::start();
}

/// (lane, name, start and duration in ns, facts)
type TimelineRow = (&'static str, String, u64, u64, Vec<(&'static str, String)>);

/// Ends collecting; what was collected, in order of start (ns since the epoch).
#[pyfunction]
fn timeline_stop() -> Vec<TimelineRow> {
    timeline::stop().into_iter().map(|e| (e.lane.name(), e.name, e.start, e.duration, e.facts)).collect()
}

/// All compiles with their reasons.
#[pyfunction]
fn explain(py: Python<'_>) -> PyResult<String> {
    Ok(session().map_err(|e| exception(py, e))?.explain())
}

fn store(directory: Option<std::path::PathBuf>) -> PyResult<Arc<DiskStore>> {
    let Some(directory) = directory else {
        let none =
            || PyRuntimeError::new_err("there is no disk cache: RSX_CACHE_DIR is empty, or the directory is unfit");
        return DiskStore::shared().cloned().ok_or_else(none);
    };
    DiskStore::open(&directory, u64::MAX).map(Arc::new).map_err(PyRuntimeError::new_err)
}

/// The disk cache: directory, limit in bytes, and number and bytes of each kind of entry. Starts no session.
#[pyfunction]
#[pyo3(signature = (directory=None))]
fn cache_info(py: Python<'_>, directory: Option<std::path::PathBuf>) -> PyResult<Bound<'_, PyDict>> {
    let s = store(directory)?;
    let d = PyDict::new(py);
    d.set_item("directory", s.directory())?;
    d.set_item("limit", s.limit())?;
    for (kind, count, bytes) in s.totals() {
        d.set_item(kind.name(), (count, bytes))?;
    }
    Ok(d)
}

/// Entries of the disk cache, last used first: kind, key, bytes, seconds since the last use, label.
#[pyfunction]
#[pyo3(signature = (directory=None))]
fn cache_list(directory: Option<std::path::PathBuf>) -> PyResult<Vec<(&'static str, String, u64, f64, String)>> {
    let row = |e: rsx_devices::store::Listed| {
        let age = e.used.elapsed().map_or(0.0, |d| d.as_secs_f64());
        (e.kind.name(), format!("{:032x}", e.key), e.bytes, age, e.label)
    };
    Ok(store(directory)?.list().into_iter().map(row).collect())
}

/// Removes all entries of the disk cache; returns how many.
#[pyfunction]
#[pyo3(signature = (directory=None))]
fn cache_clear(directory: Option<std::path::PathBuf>) -> PyResult<u64> {
    Ok(store(directory)?.clear())
}

/// Pins the tier; returns the one before.
#[pyfunction]
fn set_tier(py: Python<'_>, name: &str) -> PyResult<&'static str> {
    let session = session().map_err(|e| exception(py, e))?;
    let before = session.tier();
    session.set_tier(name.parse().map_err(PyValueError::new_err)?);
    Ok(before.name())
}

#[pyfunction]
fn memory(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let m = control::memory();
    let d = PyDict::new(py);
    d.set_item("allocated", m.allocated)?;
    d.set_item("peak", m.peak)?;
    d.set_item("reserved", m.reserved)?;
    d.set_item("allocations", m.allocations)?;
    d.set_item("system_allocations", m.system_allocations)?;
    d.set_item("total", m.total)?;
    Ok(d)
}

#[pyfunction]
fn reset_peak_memory() {
    control::rsx_memory_reset_peak();
}

#[pyfunction]
fn empty_cache() {
    control::rsx_memory_trim();
}

/// Lets the `n`-th occurrence from now of `point` (`compile`, `launch`, `oom`) fail; 0 takes it back. For tests.
#[pyfunction]
fn inject(py: Python<'_>, point: &str, n: u64) -> PyResult<()> {
    let points = [FaultPoint::Compile, FaultPoint::Launch, FaultPoint::Oom];
    let found = points.into_iter().find(|p| p.name() == point);
    let point = found.ok_or_else(|| PyValueError::new_err(format!("no fault point {point:?}")))?;
    session().map_err(|e| exception(py, e))?.inject(point, n);
    Ok(())
}

/// Ends the executor's threads before the interpreter and libtorch are taken down. What is recorded but never cut is
/// dropped: nobody can read it any more.
#[pyfunction]
fn shutdown() {
    if let Some(session) = started() {
        session.shutdown(SHUTDOWN);
    }
}

/// Nanoseconds per call of a micro benchmark (`ffi/shim/bench.cpp`).
#[pyfunction]
fn microbench(what: &str, n: i64) -> PyResult<f64> {
    let name = std::ffi::CString::new(what)?;
    // SAFETY: a C string that outlives the call.
    let ns = unsafe { rsx_cpp_bench(name.as_ptr(), n) };
    if ns < 0.0 { Err(PyValueError::new_err(format!("no benchmark {what:?}"))) } else { Ok(ns) }
}

/// Context manager: copies to the host by this thread inside the block have this cause.
#[pyclass(unsendable)]
struct HostCause {
    cause: CutCause,
    before: Cell<Option<CutCause>>,
}

#[pymethods]
impl HostCause {
    fn __enter__(&self) {
        self.before.set(set_host_cause(Some(self.cause)));
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, PyTuple>) -> bool {
        set_host_cause(self.before.take());
        false
    }
}

#[pyfunction]
fn host_cause(name: &str) -> PyResult<HostCause> {
    let cause = CutCause::parse(name).ok_or_else(|| PyValueError::new_err(format!("no cause {name:?}")))?;
    Ok(HostCause { cause, before: Cell::new(None) })
}

#[pymodule]
fn _C(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("TORCH_VERSION", env!("RSX_TORCH_VERSION"))?;
    macro_rules! functions {
        ($($name:ident)*) => { $( m.add_function(wrap_pyfunction!($name, m)?)?; )* };
    }
    functions! {
        init mark_step synchronize cut_before_next is_bad_fork metrics reset_metrics report set_tier memory
        reset_peak_memory empty_cache inject shutdown microbench host_cause
        forbid_host_wait timeline_start timeline_stop explain cache_info cache_list cache_clear
    }
    use crate::looping::{loop_new, part_drop, scratch_abort, scratch_begin};
    functions! { scratch_begin scratch_abort part_drop loop_new }
    use crate::py_replay::*;
    functions! {
        record_begin record_end record_refuse is_recording recording_drop recording_nodes recording_compare replay_new
        replay_set_words replay_is_compiled recording_export recording_import recording_captured
    }
    Ok(())
}
