//! What the Python package calls.

use crate::core::core;
use crate::eager::rsx_cpp_free;
use crate::{abi, fork, frames};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_char};

unsafe extern "C" {
    fn rsx_cpp_init() -> *mut c_char;
}

/// Registers the device with PyTorch. `skip`: directories whose frames are not the user's.
#[pyfunction]
fn init(skip: Vec<String>) -> PyResult<()> {
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
    checked(py, abi::rsx_cut(0))
}

#[pyfunction]
fn synchronize(py: Python<'_>) -> PyResult<()> {
    checked(py, abi::rsx_synchronize(8))
}

#[pyfunction]
fn cut_before_next() {
    core().recorder.cut_before_next(abi::cause_name(1));
}

#[pyfunction]
fn is_bad_fork() -> bool {
    fork::is_bad()
}

#[pyfunction]
fn metrics(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let d = PyDict::new(py);
    d.set_item("records", core().recorder.stats().records)?;
    d.set_item("segments", core().sink.segments.load(std::sync::atomic::Ordering::Relaxed))?;
    for k in
        ["compiles", "host_waits", "cache_hits", "eager_runs", "kernels", "bytes_moved", "peak_bytes", "live_bytes"]
    {
        d.set_item(k, 0)?;
    }
    d.set_item("compile_seconds", 0.0)?;
    let cuts = PyDict::new(py);
    for (k, v) in core().sink.cuts.lock().unwrap_or_else(|e| e.into_inner()).iter() {
        cuts.set_item(k, v)?;
    }
    d.set_item("cuts", cuts)?;
    d.set_item("calls", PyDict::new(py))?;
    d.set_item("fallbacks", PyDict::new(py))?;
    Ok(d)
}

#[pyfunction]
fn reset_metrics() {}

#[pyfunction]
fn report() -> String {
    String::new()
}

#[pyfunction]
fn wait_for_compiles() {}

#[pyfunction]
fn set_tier(name: String) -> PyResult<String> {
    Ok(name)
}

#[pyfunction]
fn memory(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let d = PyDict::new(py);
    for k in ["allocated", "peak", "reserved", "peak_reserved", "allocations", "frees", "total"] {
        d.set_item(k, 0)?;
    }
    Ok(d)
}

#[pyfunction]
fn reset_peak_memory() {}

#[pyfunction]
fn empty_cache() {}

#[pyfunction]
fn shutdown() {}

/// Context manager: host waits of this thread inside the block have this cause.
#[pyclass]
struct HostCause {
    cause: String,
}

#[pymethods]
impl HostCause {
    fn __enter__(&self) {}
    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, pyo3::types::PyTuple>) -> bool {
        let _ = &self.cause;
        false
    }
}

#[pyfunction]
fn host_cause(cause: String) -> HostCause {
    HostCause { cause }
}

/// A status of the C entries as PyTorch's exception.
fn checked(_py: Python<'_>, status: i32) -> PyResult<()> {
    if status >= 0 {
        return Ok(());
    }
    // SAFETY: the text of this thread's last failure.
    let message = unsafe { CStr::from_ptr(crate::error::rsx_take_error()) }.to_string_lossy().into_owned();
    Err(PyRuntimeError::new_err(message))
}

#[pymodule]
#[allow(non_snake_case, reason = "the name of the module")]
fn _C(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("TORCH_VERSION", env!("RSX_TORCH_VERSION"))?;
    macro_rules! functions {
        ($($name:ident)*) => { $( m.add_function(wrap_pyfunction!($name, m)?)?; )* };
    }
    functions! {
        init mark_step synchronize cut_before_next is_bad_fork metrics reset_metrics report wait_for_compiles set_tier
        memory reset_peak_memory empty_cache shutdown host_cause
    }
    Ok(())
}
