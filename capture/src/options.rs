//! Options of a session.
use crate::FaultPoint;
use rsx_devices::store::DiskStore;
use rsx_lazy::record::Limits;
use std::str::FromStr;
use std::sync::Arc;

/// How segments are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Tier {
    /// Op by op through the eager engine, always.
    Eager = 0,
    /// Op by op at first; compiled on a background thread when a segment recurs.
    #[default]
    Auto = 1,
    /// Compiled before the first run, on the submitting thread.
    Compiled = 2,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Eager => "eager",
            Tier::Auto => "auto",
            Tier::Compiled => "compiled",
        }
    }
}

impl FromStr for Tier {
    type Err = String;
    fn from_str(s: &str) -> Result<Tier, String> {
        [Tier::Eager, Tier::Auto, Tier::Compiled]
            .into_iter()
            .find(|t| t.name() == s)
            .ok_or_else(|| format!("tier {s:?}: expected eager, auto or compiled"))
    }
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    pub tier: Tier,
    /// When a trace is cut by itself.
    pub limits: Limits,
    /// Segments that may be submitted and not yet finished before a cut waits.
    pub in_flight: usize,
    pub compile_threads: usize,
    /// Segments that may wait for a background compile; one more is tried again when it recurs.
    pub compile_queue: usize,
    /// Segments remembered; beyond, those not seen for longest are forgotten.
    pub cache_capacity: usize,
    /// Bytes of outside writes that may wait in the executor's queue before another one waits.
    pub queued_write_bytes: usize,
    /// Where programs outlive the process.
    pub store: Option<Arc<DiskStore>>,
    /// Who predicts outputs' metadata, with its version: an ingredient of keys.
    pub front_end: String,
    /// Compile again at every hit and compare: finds what keys leave out. Slow.
    pub check: bool,
    /// Faults to inject, for tests: the n-th occurrence (from 1) fails.
    pub faults: Vec<(FaultPoint, u64)>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tier: Tier::Auto,
            limits: Limits::default(),
            in_flight: 2,
            compile_threads: 1,
            compile_queue: 32,
            cache_capacity: 2048,
            queued_write_bytes: 1 << 30,
            store: None,
            front_end: String::new(),
            check: false,
            faults: Vec::new(),
        }
    }
}

impl Options {
    /// The user's disk cache, and defaults overridden by `RSX_TIER`, `RSX_CHECK` and `RSX_FAULT`. Errors name the
    /// variable.
    pub fn from_env() -> Result<Options, String> {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let mut options = Options { store: DiskStore::shared().cloned(), ..Options::default() };
        options.check = var("RSX_CHECK").is_some_and(|v| v.trim() != "0");
        if let Some(tier) = var("RSX_TIER") {
            options.tier = tier.trim().parse().map_err(|e| format!("RSX_TIER: {e}"))?;
        }
        if let Some(faults) = var("RSX_FAULT") {
            options.faults = crate::inject::parse(&faults).map_err(|e| format!("RSX_FAULT: {e}"))?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_parse() {
        assert_eq!("auto".parse(), Ok(Tier::Auto));
        assert!("fast".parse::<Tier>().is_err_and(|e| e.contains("eager, auto or compiled")));
    }
}
