//! The ledger of compiles: what was compiled, how long it took and why, for `rsx.explain()` and `RSX_LOG=compiles`.
use crate::explain::{Difference, Outline, closest};
use crate::key::Ingredient;
use ahash::AHashMap;
use rsx_graphbreak::FrameTable;
use rsx_lazy::FrameId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Segments that explanations compare with.
const MAX_KNOWN: usize = 64;
/// Their nodes, all together.
const MAX_KNOWN_NODES: usize = 200_000;
/// Compiles remembered; `explain` shows the last ones.
const MAX_RECORDS: usize = 256;
/// Compiles of one place from which on there is a warning.
const STORM: u64 = 8;
/// Places counted; beyond, all are forgotten and counted anew.
const MAX_SITES: usize = 4096;

/// Where a program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Compiled,
    /// All its kernels were known: new sizes of known code.
    Planned,
    Disk,
    Failed,
}

/// One compile.
#[derive(Clone, Debug)]
pub(crate) struct CompileRecord {
    pub(crate) source: Source,
    /// The segment's first op and where it was called.
    pub(crate) op: String,
    pub(crate) site: FrameId,
    pub(crate) ops: usize,
    /// Compiled pieces and calls between them.
    pub(crate) steps: usize,
    pub(crate) took: Duration,
    /// The difference from the closest segment; nothing for the first one.
    pub(crate) why: Option<Difference>,
}

/// A difference as lines for people.
pub(crate) fn reasons(why: &Option<Difference>) -> Vec<String> {
    match why {
        None => vec!["the first segment".into()],
        Some(d) if d.lines.is_empty() => {
            let names: Vec<&str> = d.ingredients.iter().map(|i| i.name()).collect();
            vec![format!("another {}", names.join(", "))]
        }
        Some(d) => d.lines.clone(),
    }
}

impl CompileRecord {
    /// One line without the reason.
    fn summary(&self, frames: &FrameTable) -> String {
        let what = match self.source {
            Source::Compiled => "compiled",
            Source::Planned => "planned (no new code):",
            Source::Disk => "from disk:",
            Source::Failed => "failed:",
        };
        let (n, op, place) = (self.ops, &self.op, frames.text(self.site.0));
        let parts = if self.steps > 1 { format!(" in {} parts", self.steps) } else { String::new() };
        let ms = self.took.as_secs_f64() * 1e3;
        format!("{what} {n} ops from {op} at {place}{parts}, {ms:.1} ms")
    }

    fn remedy(&self) -> &'static str {
        let has = |i| self.why.as_ref().is_some_and(|d| d.ingredients.contains(&i));
        if has(Ingredient::Ops) {
            "keep Python control flow that changes the ops out of the step, or put rsx.mark_step() before and after it"
        } else if has(Ingredient::DTypes) {
            "convert inputs to one dtype"
        } else if has(Ingredient::Geometry) || has(Ingredient::StorageSizes) {
            "pad inputs to a few sizes (powers of two, say), and drop the last incomplete batch"
        } else if has(Ingredient::LiveResults) {
            "keep the same tensors from step to step, as numbers (.item()) or not at all"
        } else if has(Ingredient::Arguments) {
            "pass the changing number as a tensor"
        } else {
            "run the step with the same tensors each time"
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    known: VecDeque<Arc<Outline>>,
    records: VecDeque<CompileRecord>,
    /// Records forgotten.
    forgotten: usize,
    /// Compiles by place.
    sites: AHashMap<FrameId, u64>,
    /// Places that have been warned of.
    warned: AHashMap<FrameId, ()>,
}

/// The ledger.
#[derive(Debug, Default)]
pub(crate) struct Compiles {
    inner: Mutex<Inner>,
}

impl Compiles {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What differs between `new` and the closest segment known; `new` is known from now on.
    pub(crate) fn why(&self, new: Arc<Outline>, frames: &FrameTable) -> Option<Difference> {
        let known: Vec<Arc<Outline>> = self.lock().known.iter().cloned().collect();
        let why = closest(&known, &new, frames);
        let mut inner = self.lock();
        inner.known.retain(|k| k.key != new.key);
        inner.known.push_back(new);
        let nodes = |k: &VecDeque<Arc<Outline>>| k.iter().map(|o| o.nodes.len()).sum::<usize>();
        while inner.known.len() > MAX_KNOWN || (inner.known.len() > 1 && nodes(&inner.known) > MAX_KNOWN_NODES) {
            inner.known.pop_front();
        }
        why
    }

    /// Notes a compile: logs it, and warns when one place compiles again and again.
    pub(crate) fn note(&self, record: CompileRecord, frames: &FrameTable) {
        let (summary, reasons) = (record.summary(frames), reasons(&record.why).join("; "));
        tracing::info!(target: "rsx::compiles", "{summary}: {reasons}");
        let mut inner = self.lock();
        let mut storm = None;
        if record.source == Source::Compiled {
            if inner.sites.len() >= MAX_SITES {
                inner.sites.clear();
            }
            let n = inner.sites.entry(record.site).or_default();
            *n += 1;
            let n = *n;
            if n > STORM && inner.warned.len() < MAX_SITES && inner.warned.insert(record.site, ()).is_none() {
                storm = Some((n, frames.text(record.site.0), record.remedy()));
            }
        }
        if inner.records.len() >= MAX_RECORDS {
            inner.records.pop_front();
            inner.forgotten += 1;
        }
        inner.records.push_back(record);
        drop(inner);
        if let Some((n, place, remedy)) = storm {
            tracing::warn!(
                target: "rsx::compiles",
                "the code at {place} has been compiled {n} times; the last time because of: {reasons}. To compile less: \
                 {remedy}. rsx.explain() lists all compiles"
            );
        }
    }

    /// All compiles as text, oldest first.
    pub(crate) fn text(&self, frames: &FrameTable) -> String {
        let inner = self.lock();
        let of = |s: Source| inner.records.iter().filter(move |r| r.source == s);
        let ms = of(Source::Compiled).map(|r| r.took).sum::<Duration>().as_secs_f64() * 1e3;
        let counts = [Source::Compiled, Source::Disk, Source::Failed].map(|s| of(s).count());
        let [compiled, disk, failed] = counts;
        let mut text = format!("Compiles: {compiled} ({ms:.1} ms), {disk} from disk, {failed} failed\n");
        if inner.forgotten > 0 {
            text.push_str(&format!("  ({} older ones are not shown)\n", inner.forgotten));
        }
        for (n, r) in inner.records.iter().enumerate() {
            text.push_str(&format!("  #{} {}\n", inner.forgotten + n + 1, r.summary(frames)));
            for reason in reasons(&r.why) {
                text.push_str(&format!("       {reason}\n"));
            }
        }
        text
    }

    /// Forgets records and counts; segments stay known, and places warned of are not warned of again.
    pub(crate) fn reset(&self) {
        let mut inner = self.lock();
        inner.records.clear();
        inner.sites.clear();
        inner.forgotten = 0;
    }
}
