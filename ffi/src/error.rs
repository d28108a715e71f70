//! Failures on their way to C++: a status, and the text in a thread-local slot.

use rsx_capture::{ErrorKind, SessionError};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an entry failed with.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub kind: ErrorKind,
    pub message: String,
}

impl Failure {
    pub(crate) fn user(message: String) -> Failure {
        Failure { kind: ErrorKind::User, message }
    }
}

impl From<SessionError> for Failure {
    fn from(e: SessionError) -> Failure {
        Failure { kind: e.kind(), message: e.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// `RsxStatus` of `rsx_abi.h`.
pub(crate) fn status_of(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::User => -1,
        ErrorKind::Unsupported => -2,
        ErrorKind::Internal => -3,
        ErrorKind::OutOfMemory => -4,
        ErrorKind::Index => -5,
    }
}

/// The inverse of [`status_of`].
pub(crate) fn kind_of(status: i32) -> ErrorKind {
    match status {
        -1 => ErrorKind::User,
        -2 => ErrorKind::Unsupported,
        -4 => ErrorKind::OutOfMemory,
        -5 => ErrorKind::Index,
        _ => ErrorKind::Internal,
    }
}

fn keep(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|l| *l.borrow_mut() = text);
}

/// Runs the body of an entry called from C++: errors and panics become a status.
pub(crate) fn guard(body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure { kind: ErrorKind::Internal, message: panic_text(&*panic) },
    };
    keep(&failure.message);
    status_of(failure.kind)
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
    let what = what.unwrap_or("panic");
    format!("rsx: internal error: {what}. Please report it with the output of `python -m rsx info`")
}

/// The text of this thread's last failure.
pub(crate) fn last_text() -> String {
    LAST.with(|l| l.borrow().to_string_lossy().into_owned())
}

/// As C text; valid until this thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_take_error() -> *const c_char {
    LAST.with(|l| l.borrow().as_ptr())
}
