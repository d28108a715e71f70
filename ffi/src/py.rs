//! What the Python package calls.

use crate::core::core;
use crate::eager::rsx_cpp_free;
use crate::{abi, fork, frames, gil};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
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
fn mark_step() {
    abi::rsx_cut(0);
}

#[pyfunction]
fn synchronize() {
    gil::released(|| abi::rsx_synchronize(8));
}

#[pyfunction]
fn cut_before_next() {
    core().recorder.cut_before_next(abi::cause_name(1));
}

#[pyfunction]
fn is_bad_fork() -> bool {
    fork::is_bad()
}

#[pymodule]
#[allow(non_snake_case, reason = "the name of the module")]
fn _C(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("TORCH_VERSION", env!("RSX_TORCH_VERSION"))?;
    m.add_function(wrap_pyfunction!(init, m)?)?;
    m.add_function(wrap_pyfunction!(mark_step, m)?)?;
    m.add_function(wrap_pyfunction!(synchronize, m)?)?;
    m.add_function(wrap_pyfunction!(cut_before_next, m)?)?;
    m.add_function(wrap_pyfunction!(is_bad_fork, m)?)?;
    Ok(())
}
