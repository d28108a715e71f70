//! Injection of launch failures, for tests of what lies above.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Launches left until one fails; not positive: none will.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// Makes the `n`th kernel launch from now on fail (1: the next) before it writes anything; 0 calls it off. Programs count
/// all their launches: generated kernels, library kernels and copies. `RSX_FAULT=launch:<n>` does so at the start.
pub fn fail_launch(n: i64) {
    from_environment();
    LEFT.store(n, Ordering::Relaxed);
}

fn from_environment() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let n = std::env::var("RSX_FAULT").ok().and_then(|v| v.trim().strip_prefix("launch:")?.parse().ok());
        LEFT.store(n.unwrap_or(0), Ordering::Relaxed);
    });
}

/// True if this launch has to fail.
pub(super) fn launch_fails() -> bool {
    from_environment();
    LEFT.load(Ordering::Relaxed) > 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
}
