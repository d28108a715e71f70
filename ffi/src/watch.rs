//! `rsx.guard`: host waits that the user has forbidden.

use crate::error::Failure;
use crate::replay::here;
use std::cell::Cell;

thread_local! {
    /// This thread must not wait for the device.
    static NO_HOST_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Forbids or allows host waits on this thread; returns what was so before.
pub(crate) fn forbid_host_wait(forbid: bool) -> bool {
    NO_HOST_WAIT.replace(forbid)
}

/// An error if this thread must not wait. `what` is what it does.
pub(crate) fn check_host_wait(what: impl std::fmt::Display) -> Result<(), Failure> {
    if !NO_HOST_WAIT.get() {
        return Ok(());
    }
    let text = format!("rsx.guard(no_host_wait=True): the host would wait for the device ({what}) at {}", here());
    Err(Failure::user(text))
}
