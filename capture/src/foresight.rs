//! When to compile before a segment has recurred, and when to wait for a compile instead of running op by op.
//!
//! The end of a training step that is not the loop's first one (the first one makes the optimizer's state) will come
//! again: it is compiled at its first sighting. How far that is trusted depends on how often it came true: of loops
//! whose shapes change with every step few segments recur.
//!
//! A run op by op beside a compile of the same segment takes both cores, the memory of both, and mostly longer than the
//! rest of the compile: then the executor waits. It never waits longer than the run would have taken, so that the
//! wait costs at most what it could have saved (ski rental).
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Of a compile, before one was measured.
const COMPILE_NS_PER_NODE: u64 = 300_000;
/// Compiles ahead of a recurrence beyond two for each that came true.
///
/// Of a loop over many sizes the first is compiled exactly, the second and third make code for all: from then on a new
/// size is cheap, and the next ones are compiled for that reason.
const CREDIT: u64 = 3;

/// What the session has seen of its segments so far.
#[derive(Debug)]
pub(crate) struct Foresight {
    /// Segments that end a step.
    steps: AtomicU64,
    /// Compiled at their first sighting.
    foreseen: AtomicU64,
    /// Of those, came again.
    recurred: AtomicU64,
    /// Running means; 0 before the first run op by op.
    eager_ns: AtomicU64,
    compile_ns: AtomicU64,
}

impl Default for Foresight {
    fn default() -> Foresight {
        Foresight {
            steps: AtomicU64::new(0),
            foreseen: AtomicU64::new(0),
            recurred: AtomicU64::new(0),
            eager_ns: AtomicU64::new(0),
            compile_ns: AtomicU64::new(COMPILE_NS_PER_NODE),
        }
    }
}

impl Foresight {
    /// A segment is seen for the first time: will it come again?
    ///
    /// A segment of `nodes` ops that is compiled in half the time of a run op by op (new sizes of known kernels are)
    /// need not come again to be worth it.
    pub(crate) fn expects(&self, ends_step: bool, nodes: usize) -> bool {
        if !ends_step || self.steps.fetch_add(1, Relaxed) == 0 {
            return false;
        }
        let cheap = estimate(&self.compile_ns, 2 * nodes) < estimate(&self.eager_ns, nodes);
        if !cheap && self.foreseen.load(Relaxed) >= 2 * self.recurred.load(Relaxed) + CREDIT {
            return false;
        }
        self.foreseen.fetch_add(1, Relaxed);
        true
    }

    /// A segment that was compiled at its first sighting is seen for the second time.
    pub(crate) fn came_true(&self) {
        self.recurred.fetch_add(1, Relaxed);
    }

    /// A segment of `nodes` ops ran op by op.
    pub(crate) fn ran(&self, nodes: usize, took: Duration) {
        mean(&self.eager_ns, nodes, took);
    }

    /// A segment of `nodes` ops was compiled.
    pub(crate) fn compiled(&self, nodes: usize, took: Duration) {
        mean(&self.compile_ns, nodes, took);
    }

    /// How long to wait for the compile of a segment of `nodes` ops that began `since` ago. None: not at all.
    pub(crate) fn patience(&self, nodes: usize, since: Duration) -> Option<Duration> {
        let run = estimate(&self.eager_ns, nodes);
        let rest = estimate(&self.compile_ns, nodes).saturating_sub(since);
        (rest <= run && !run.is_zero()).then_some(run)
    }
}

/// What `nodes` ops take at a mean.
fn estimate(mean: &AtomicU64, nodes: usize) -> Duration {
    Duration::from_nanos(mean.load(Relaxed).saturating_mul(nodes as u64))
}

fn mean(of: &AtomicU64, nodes: usize, took: Duration) {
    let now = (took.as_nanos() / nodes.max(1) as u128).clamp(1, u64::MAX as u128) as u64;
    let old = of.load(Relaxed);
    // Most weight to the newest: new sizes of known code cost a fraction, machines get busier and idle again.
    of.store(if old == 0 { now } else { old / 4 + now / 4 * 3 + 1 }, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_trusted_while_they_recur() {
        let f = Foresight::default();
        // Not a step, the first step, the second one.
        assert!(!f.expects(false, 9) && !f.expects(true, 9));
        assert!((0..CREDIT).all(|_| f.expects(true, 9)));
        // A new shape in every step: no more.
        assert!((0..10).all(|_| !f.expects(true, 9)));
        f.came_true();
        assert!(f.expects(true, 9) && f.expects(true, 9) && !f.expects(true, 9));
    }

    #[test]
    fn waits_are_no_longer_than_the_run_they_replace() {
        let ms = Duration::from_millis;
        let f = Foresight::default();
        assert_eq!(f.patience(1000, ms(0)), None, "nothing is known of runs");
        f.ran(1000, ms(350));
        assert_eq!(f.patience(1000, ms(0)), Some(ms(350)));
        f.ran(1000, ms(10));
        assert_eq!(f.patience(1000, ms(0)), None, "95 ms for 300");
        assert!(f.patience(1000, ms(220)).is_some(), "80 are left");
    }
}
