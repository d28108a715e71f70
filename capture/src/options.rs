//! Options of a session.
use crate::FaultPoint;
use rsx_compiler::parse_size;
use rsx_compiler::passes::PASSES;
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
    /// variable; variables that other crates read are checked as well, so that a typo is not a default.
    pub fn from_env() -> Result<Options, String> {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        check(&var)?;
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

/// Variables read where they are used, with what a value has to be.
const VALUES: [(&str, fn(&str) -> bool, &str); 10] = [
    ("RSX_LOG", crate::log::is_filter, crate::log::FILTERS),
    ("RSX_CHECK", |v| ["0", "1"].contains(&v), "0 or 1"),
    ("RSX_MEMORY_LIMIT", |v| parse_size(v).is_some_and(|b| b > 0), "a number of bytes, with or without K, M or G"),
    ("RSX_CACHE_LIMIT", |v| v.parse::<u64>().is_ok(), "a number of MiB"),
    (
        "RSX_NUM_THREADS",
        |v| v.parse().is_ok_and(|n: u32| (1..=1024).contains(&n)),
        "a number of threads, from 1 to 1024",
    ),
    ("RSX_BISECT", |v| v.parse::<u32>().is_ok(), "a number of passes"),
    ("RSX_PASSES", are_passes, "pass names, each with or without a minus in front, with commas between"),
    ("RSX_CPU_LEVEL", |v| ISA[..3].contains(&v), "portable, avx2 or avx512"),
    ("RSX_CPU_ISA", |v| ISA.contains(&v), "portable, avx2, avx512 or avx512bf16"),
    ("RSX_WINOGRAD", |v| ["0", "1"].contains(&v), "0 or 1"),
];

const ISA: [&str; 4] = ["portable", "avx2", "avx512", "avx512bf16"];

fn are_passes(list: &str) -> bool {
    let known = |name: &str| PASSES.iter().any(|p| p.name == name);
    list.split(',').map(str::trim).filter(|n| !n.is_empty()).all(|n| known(n.trim_start_matches(['-', '+'])))
}

fn check(var: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    for (name, is_value, expected) in VALUES {
        if let Some(v) = var(name).filter(|v| !is_value(v.trim())) {
            return Err(format!("{name}={v}: expected {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let with = |name: &'static str, value: &'static str| check(&|n| (n == name).then(|| value.into()));
        for (name, good, bad) in [
            ("RSX_LOG", "compiles,rsx::wait=debug", "loud"),
            ("RSX_MEMORY_LIMIT", "512M", "abc"),
            ("RSX_MEMORY_LIMIT", "1", "0"),
            ("RSX_CACHE_LIMIT", "0", "1G"),
            ("RSX_NUM_THREADS", " 2 ", "0"),
            ("RSX_CHECK", "1", "yes"),
            ("RSX_BISECT", "0", "-1"),
            ("RSX_PASSES", "-cse, dce,", "-cs"),
            ("RSX_CPU_LEVEL", "avx2", "avx512bf16"),
            ("RSX_CPU_ISA", "portable", "sse"),
            ("RSX_WINOGRAD", "0", "off"),
        ] {
            assert_eq!(with(name, good), Ok(()));
            let e = with(name, bad).unwrap_err();
            assert!(e.starts_with(&format!("{name}={bad}: expected ")), "{e}");
        }
    }

    #[test]
    fn tiers_parse() {
        assert_eq!("auto".parse(), Ok(Tier::Auto));
        assert!("fast".parse::<Tier>().is_err_and(|e| e.contains("eager, auto or compiled")));
    }
}
