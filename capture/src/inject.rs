//! Fault injection for tests: `RSX_FAULT=compile:1,launch:3,oom:7` makes the n-th occurrence fail.
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a fault can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultPoint {
    /// Compiling a segment.
    Compile,
    /// Starting a compiled piece.
    Launch,
    /// Allocating memory.
    Oom,
}

impl FaultPoint {
    const ALL: [FaultPoint; 3] = [FaultPoint::Compile, FaultPoint::Launch, FaultPoint::Oom];

    pub fn name(self) -> &'static str {
        match self {
            FaultPoint::Compile => "compile",
            FaultPoint::Launch => "launch",
            FaultPoint::Oom => "oom",
        }
    }
}

/// Reads a list such as `compile:1,oom:7`.
pub fn parse(text: &str) -> Result<Vec<(FaultPoint, u64)>, String> {
    let one = |part: &str| {
        let (name, n) = part.split_once(':')?;
        let point = FaultPoint::ALL.into_iter().find(|p| p.name() == name.trim())?;
        Some((point, n.trim().parse().ok().filter(|n| *n > 0)?))
    };
    let explain = |part: &str| format!("{part:?}: expected compile:N, launch:N or oom:N with N from 1");
    text.split(',').map(|part| one(part).ok_or_else(|| explain(part))).collect()
}

/// Occurrences left until the next injected fault of each kind; 0 means none is to come.
#[derive(Debug, Default)]
pub(crate) struct Injection {
    left: [AtomicU64; 3],
}

impl Injection {
    /// The `n`-th occurrence from now fails (0: none).
    pub(crate) fn set(&self, point: FaultPoint, n: u64) {
        self.left[point as usize].store(n, Ordering::Release);
    }

    /// Notes an occurrence; true if it has to fail.
    pub(crate) fn hit(&self, point: FaultPoint) -> bool {
        let left = &self.left[point as usize];
        if left.load(Ordering::Relaxed) == 0 {
            return false;
        }
        left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)) == Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nth_occurrence_fails_once() {
        let i = Injection::default();
        i.set(FaultPoint::Launch, 3);
        let hits: Vec<bool> = (0..5).map(|_| i.hit(FaultPoint::Launch)).collect();
        assert_eq!(hits, [false, false, true, false, false]);
        assert!(!i.hit(FaultPoint::Oom));
    }

    #[test]
    fn lists_parse() {
        assert_eq!(parse("compile:1, oom:7"), Ok(vec![(FaultPoint::Compile, 1), (FaultPoint::Oom, 7)]));
        assert!(parse("launch:0").is_err());
        assert!(parse("kernel:1").is_err());
    }
}
