//! Injection of launch failures, for tests of what lies above. (`RSX_FAULT` belongs to the session, which fails whole
//! programs; this fails single launches.)
use std::sync::atomic::{AtomicI64, Ordering};

/// Launches left until one fails; not positive: none will.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// Makes the `n`th kernel launch from now on fail (1: the next) before it writes anything; 0 calls it off. Programs count
/// all their launches: generated kernels, library kernels and copies.
pub fn fail_launch(n: i64) {
    LEFT.store(n, Ordering::Relaxed);
}

/// True if this launch has to fail.
pub(super) fn launch_fails() -> bool {
    LEFT.load(Ordering::Relaxed) > 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
}
