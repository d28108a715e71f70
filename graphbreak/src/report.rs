//! Counts of cuts, fallbacks and host waits by cause and user frame.
use crate::text::Table;
use crate::{CutCause, FallbackKind, Frame, FrameTable};
use ahash::AHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Cuts of one cause at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct CutRow {
    pub cause: CutCause,
    pub frame: Option<Frame>,
    pub count: u64,
}

/// Fallbacks of one op for one reason at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct FallbackRow {
    pub op: Arc<str>,
    pub reason: Arc<str>,
    pub kind: FallbackKind,
    pub frame: Option<Frame>,
    pub count: u64,
}

/// Host waits of one cause at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitRow {
    pub cause: CutCause,
    pub frame: Option<Frame>,
    pub count: u64,
    /// Time the host stood still.
    pub waited: Duration,
}

/// Everything counted so far; each list most frequent first, then by name and place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub cuts: Vec<CutRow>,
    pub fallbacks: Vec<FallbackRow>,
    pub waits: Vec<WaitRow>,
}

#[derive(Debug, Default)]
struct Inner {
    cuts: AHashMap<(CutCause, u32), u64>,
    fallbacks: AHashMap<FallbackKey, u64>,
    waits: AHashMap<(CutCause, u32), (u64, Duration)>,
    /// Ops that have been warned of. Survives a reset: a warning comes once in a process.
    warned: AHashMap<Arc<str>, ()>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FallbackKey {
    op: Arc<str>,
    reason: Arc<str>,
    kind: FallbackKind,
    frame: u32,
}

/// The counters of one device with the frame table they speak of.
#[derive(Debug, Default)]
pub struct Report {
    inner: Mutex<Inner>,
    frames: FrameTable,
}

impl Report {
    pub fn frames(&self) -> &FrameTable {
        &self.frames
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Counters have no invariant that a panic could break.
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts a cut.
    pub fn cut(&self, cause: CutCause, frame: u32) {
        *self.lock().cuts.entry((cause, frame)).or_default() += 1;
    }

    /// Counts a time when the host waited for the device.
    pub fn wait(&self, cause: CutCause, frame: u32, waited: Duration) {
        let mut inner = self.lock();
        let entry = inner.waits.entry((cause, frame)).or_default();
        entry.0 += 1;
        entry.1 += waited;
    }

    /// Counts a fallback; warns the first time an op falls back.
    pub fn fallback(&self, op: &str, reason: &str, kind: FallbackKind, frame: u32) {
        let warn = {
            let mut inner = self.lock();
            let key = FallbackKey { op: op.into(), reason: reason.into(), kind, frame };
            let first = inner.warned.insert(key.op.clone(), ()).is_none();
            *inner.fallbacks.entry(key).or_default() += 1;
            first
        };
        if warn {
            let (place, help) = (self.frames.text(frame), kind.help());
            tracing::warn!(target: "rsx::fallback", op, reason, "{op} at {place} is not compiled: {reason}; {help}");
        }
    }

    /// Cuts per cause.
    pub fn cuts_by_cause(&self) -> BTreeMap<&'static str, u64> {
        let mut out = BTreeMap::new();
        for ((cause, _), n) in &self.lock().cuts {
            *out.entry(cause.name()).or_default() += n;
        }
        out
    }

    /// Fallbacks per op, those of `kinds` only.
    pub fn fallbacks_by_op(&self, kinds: &[FallbackKind]) -> BTreeMap<String, u64> {
        let mut out = BTreeMap::new();
        for (key, n) in self.lock().fallbacks.iter().filter(|(k, _)| kinds.contains(&k.kind)) {
            *out.entry(key.op.to_string()).or_default() += n;
        }
        out
    }

    /// Number of host waits and the time spent in them.
    pub fn total_waits(&self) -> (u64, Duration) {
        self.lock().waits.values().fold((0, Duration::ZERO), |(n, t), (m, d)| (n + m, t + *d))
    }

    /// All counts, with frames resolved.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.lock();
        let frame = |id: &u32| self.frames.get(*id);
        let mut cuts: Vec<CutRow> =
            inner.cuts.iter().map(|((cause, f), n)| CutRow { cause: *cause, frame: frame(f), count: *n }).collect();
        let mut fallbacks: Vec<FallbackRow> = inner
            .fallbacks
            .iter()
            .map(|(k, n)| FallbackRow {
                op: k.op.clone(),
                reason: k.reason.clone(),
                kind: k.kind,
                frame: frame(&k.frame),
                count: *n,
            })
            .collect();
        let mut waits: Vec<WaitRow> = inner
            .waits
            .iter()
            .map(|((cause, f), (n, t))| WaitRow { cause: *cause, frame: frame(f), count: *n, waited: *t })
            .collect();
        drop(inner);
        cuts.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| (a.cause, &a.frame).cmp(&(b.cause, &b.frame))));
        fallbacks.sort_by(|a, b| {
            let name = |r: &FallbackRow| (r.op.clone(), r.kind, r.frame.clone(), r.reason.clone());
            b.count.cmp(&a.count).then_with(|| name(a).cmp(&name(b)))
        });
        waits.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| (a.cause, &a.frame).cmp(&(b.cause, &b.frame))));
        Snapshot { cuts, fallbacks, waits }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        self.snapshot().to_string()
    }

    /// Forgets all counts; frames keep their numbers.
    pub fn reset(&self) {
        let mut inner = self.lock();
        inner.cuts.clear();
        inner.fallbacks.clear();
        inner.waits.clear();
    }
}

fn place(frame: &Option<Frame>) -> String {
    frame.as_ref().map_or_else(|| "-".into(), Frame::to_string)
}

impl std::fmt::Display for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut cuts = Table::new("Cuts", &["count", "cause", "where", "remedy"]);
        for r in &self.cuts {
            cuts.row([r.count.to_string(), r.cause.name().into(), place(&r.frame), r.cause.help().into()]);
        }
        let mut fallbacks = Table::new("Fallbacks", &["count", "op", "kind", "where", "reason"]);
        for r in &self.fallbacks {
            let (op, reason) = (r.op.to_string(), r.reason.to_string());
            fallbacks.row([r.count.to_string(), op, r.kind.name().into(), place(&r.frame), reason]);
        }
        let mut waits = Table::new("Host waits", &["count", "cause", "where", "waited"]);
        for r in &self.waits {
            let ms = format!("{:.3} ms", r.waited.as_secs_f64() * 1e3);
            waits.row([r.count.to_string(), r.cause.name().into(), place(&r.frame), ms]);
        }
        write!(f, "{cuts}\n{fallbacks}\n{waits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_sort_and_reset() {
        let r = Report::default();
        let (a, b) = (r.frames().intern("a.py", 1, "f"), r.frames().intern("b.py", 22, "g"));
        r.cut(CutCause::Item, b);
        r.cut(CutCause::MarkStep, a);
        r.cut(CutCause::MarkStep, a);
        r.fallback("aten::nonzero", "shape depends on values", FallbackKind::Immediate, b);
        r.fallback("aten::erfinv", "no lowering", FallbackKind::CallNode, 0);
        r.wait(CutCause::Item, b, Duration::from_micros(1500));
        assert_eq!(r.cuts_by_cause().into_iter().collect::<Vec<_>>(), [("item", 1), ("mark_step", 2)]);
        assert_eq!(r.fallbacks_by_op(&[FallbackKind::Immediate]).len(), 1);
        assert_eq!(r.total_waits(), (1, Duration::from_micros(1500)));
        let text = r.text();
        let expected = "\
Cuts
  count  cause      where        remedy
  2      mark_step  a.py:1 (f)
  1      item       b.py:22 (g)  read it less often, or keep it on the device

Fallbacks
  count  op             kind       where        reason
  1      aten::erfinv   call       -            no lowering
  1      aten::nonzero  immediate  b.py:22 (g)  shape depends on values

Host waits
  count  cause  where        waited
  1      item   b.py:22 (g)  1.500 ms
";
        assert_eq!(text, expected);
        r.reset();
        assert_eq!(r.text(), "Cuts\n  none\n\nFallbacks\n  none\n\nHost waits\n  none\n");
        assert_eq!(r.frames().text(a), "a.py:1 (f)");
    }
}
