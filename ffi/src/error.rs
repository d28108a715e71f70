//! Failures on their way to C++: a status, and the text in a thread-local slot.

use rsx_lazy::{EngineError, EngineErrorKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// `RsxStatus` of `rsx_abi.h`.
pub(crate) fn status_of(kind: EngineErrorKind) -> i32 {
    match kind {
        EngineErrorKind::User => -1,
        EngineErrorKind::Unsupported => -2,
        EngineErrorKind::Internal => -3,
        EngineErrorKind::OutOfMemory => -4,
        EngineErrorKind::Index => -5,
    }
}

/// The inverse of [`status_of`].
pub(crate) fn kind_of(status: i32) -> EngineErrorKind {
    match status {
        -1 => EngineErrorKind::User,
        -2 => EngineErrorKind::Unsupported,
        -4 => EngineErrorKind::OutOfMemory,
        -5 => EngineErrorKind::Index,
        _ => EngineErrorKind::Internal,
    }
}

fn keep(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|l| *l.borrow_mut() = text);
}

/// Runs the body of an entry called from C++: errors and panics become a status.
pub(crate) fn guard(body: impl FnOnce() -> Result<i32, EngineError>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            keep(&error.message);
            status_of(error.kind)
        }
        Err(panic) => {
            keep(&panic_text(&*panic));
            status_of(EngineErrorKind::Internal)
        }
    }
}

/// As [`guard`] for entries without a status: a panic is logged and `fallback` returned.
pub(crate) fn shield<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        tracing::error!("{}", panic_text(&*panic));
        fallback
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let what = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!(
        "rsx: internal error: {}. Please report it with the output of `python -m rsx info`",
        what.unwrap_or("panic")
    )
}

/// The text of this thread's last failure; valid until its next failure.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_take_error() -> *const c_char {
    LAST.with(|l| l.borrow().as_ptr())
}
