//! Compiled segments: a list of steps, each a compiled piece or a call of the eager engine.
use crate::cache::Entry;
use crate::compiles::{CompileRecord, Source, reasons};
use crate::explain::{Difference, Outline};
use crate::metrics::Counters;
use crate::schedule::Schedule;
use crate::shared::{Shared, panic_text};
use crate::timeline::{self, Lane};
use crate::{FaultPoint, Runnable, stored};
use rsx_devices::store::EntryKind;
use rsx_lazy::lower::{self, Piece};
use rsx_lazy::{FrameId, ScalarSource, Trace};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A compiled segment. All indices are those of a trace with the segment's key.
#[derive(Debug)]
pub(crate) struct CompiledSegment {
    pub(crate) steps: Vec<Step>,
    /// It has run before.
    pub(crate) started: AtomicBool,
}

impl CompiledSegment {
    /// It has no machine code of its own: see [`Runnable::is_planned`].
    fn is_planned(&self) -> bool {
        let graphs = || self.steps.iter().filter_map(|s| if let StepKind::Graph(g) = &s.kind { Some(g) } else { None });
        graphs().next().is_some() && graphs().all(|g| g.runnable.is_planned())
    }
}

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kind: StepKind,
    /// The nodes it stands for.
    pub(crate) nodes: Range<usize>,
    /// Storages that nobody uses after it.
    pub(crate) frees: Vec<u32>,
}

#[derive(Debug)]
pub(crate) enum StepKind {
    Graph(GraphStep),
    /// The step's only node runs through the eager engine.
    Call {
        reason: String,
    },
}

/// A compiled piece with where its operands come from.
pub(crate) struct GraphStep {
    pub(crate) runnable: Arc<dyn Runnable>,
    /// Trace storage of each tensor input.
    pub(crate) inputs: Vec<u32>,
    pub(crate) scalars: Vec<ScalarSource>,
    /// Trace storage of each result.
    pub(crate) outputs: Vec<u32>,
}

impl std::fmt::Debug for GraphStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphStep")
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

/// Why a segment has no program.
#[derive(Debug)]
struct Failure {
    op: String,
    frame: FrameId,
    message: String,
}

/// Compiles the segment of `entry`, or takes it from disk, and settles the entry. `trace` may be a skeleton.
pub(crate) fn compile(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool]) {
    let started = Instant::now();
    if let Some(program) = from_disk(shared, entry, trace, live) {
        entry.settle(Some(program));
        let why = why(shared, entry, trace, live);
        return note(shared, entry, trace, Source::Disk, started.elapsed(), why);
    }
    let why = why(shared, entry, trace, live);
    let span = tracing::debug_span!(target: "rsx::compile", "compile", nodes = trace.nodes.len());
    let mut event = timeline::span(Lane::Compiler, || "compile".into());
    event.fact("ops", trace.nodes.len());
    event.fact("why", reasons(&why).join("; "));
    let built = span.in_scope(|| {
        let build = || build(shared, entry, trace, live);
        catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|panic| Err(failure(trace, None, panic_text(&*panic))))
    });
    drop(event);
    let source = match &built {
        Ok(program) if program.is_planned() => Source::Planned,
        Ok(_) => Source::Compiled,
        Err(_) => Source::Failed,
    };
    let planned = source == Source::Planned;
    Counters::add(if planned { &shared.counters.plans } else { &shared.counters.compiles }, 1);
    let took = started.elapsed();
    Counters::add(&shared.counters.compile_nanos, took.as_nanos() as u64);
    shared.foresight.compiled(trace.nodes.len(), took);
    match built {
        Ok(program) => {
            // The user's next step can have it while it is written.
            let bytes = shared.store.as_ref().and_then(|_| stored::to_bytes(&entry.key, &program));
            entry.settle(Some(program));
            if let (Some(store), Some(bytes)) = (&shared.store, bytes) {
                store.put(EntryKind::Program, entry.key.hash(), &label(shared, trace), &bytes);
            }
            note(shared, entry, trace, source, took, why);
        }
        // Nobody waits for it any more.
        Err(_) if shared.is_closed() => entry.settle(None),
        Err(f) => {
            Counters::add(&shared.counters.compile_failures, 1);
            let at = shared.report.frames().text(f.frame.0);
            tracing::warn!(
                target: "rsx::compiles",
                "compiling a segment of {} ops failed in {} at {at}: {}; it runs op by op, which is slower and gives \
                 the same results",
                trace.nodes.len(), f.op, f.message
            );
            entry.settle(None);
            note(shared, entry, trace, source, took, why);
        }
    }
}

/// Takes the claimed program of `entry` from disk; if that fails the claim is given back.
pub(crate) fn load(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool]) {
    let started = Instant::now();
    match from_disk(shared, entry, trace, live) {
        Some(program) => {
            entry.settle(Some(program));
            let took = started.elapsed();
            note(shared, entry, trace, Source::Disk, took, why(shared, entry, trace, live));
        }
        None => entry.give_up(),
    }
}

fn from_disk(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool]) -> Option<CompiledSegment> {
    let store = shared.store.as_ref()?;
    let key = entry.key.hash();
    let bytes = store.get(EntryKind::Program, key)?;
    let schedule = entry.schedule(|| Schedule::new(trace, live));
    let read = || stored::from_bytes(&bytes, &entry.key, trace, schedule, &*shared.backend);
    match catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(panic_text(&*panic))) {
        Ok(program) => {
            Counters::add(&shared.counters.disk_hits, 1);
            Some(program)
        }
        Err(why) => {
            store.reject(EntryKind::Program, key, &why);
            None
        }
    }
}

/// Compiles again a segment that has a program, and compares: what a key leaves out shows as a difference.
pub(crate) fn check(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool]) {
    let Some(old) = entry.program().and_then(|p| stored::to_bytes(&entry.key, p)) else { return };
    let Ok(new) = build(shared, entry, trace, live) else { return };
    if stored::to_bytes(&entry.key, &new) != Some(old) {
        Counters::add(&shared.counters.check_failures, 1);
        tracing::error!(
            target: "rsx::cache",
            "RSX_CHECK: the program of {} is not what compiling gives now; key {}", label(shared, trace), entry.key
        );
    }
}

/// What a segment is, for listings.
fn label(shared: &Shared, trace: &Trace) -> String {
    let first = trace.nodes.first();
    let (op, frame) = first.map_or(("-", FrameId::default()), |n| (n.sig.op.name.as_str(), n.frame));
    format!("{} ops from {op} at {}", trace.nodes.len(), shared.report.frames().text(frame.0))
}

/// What differs from the closest segment known.
fn why(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool]) -> Option<Difference> {
    shared.compiles.why(Outline::new(entry.key, trace, live), shared.report.frames())
}

fn note(shared: &Shared, entry: &Entry, trace: &Trace, source: Source, took: Duration, why: Option<Difference>) {
    let first = trace.nodes.first();
    let record = CompileRecord {
        source,
        op: first.map_or_else(String::new, |n| n.sig.op.name.clone()),
        site: first.map_or_else(FrameId::default, |n| n.frame),
        ops: trace.nodes.len(),
        steps: entry.program().map_or(0, |p| p.steps.len()),
        took,
        why,
    };
    shared.compiles.note(record, shared.report.frames());
}

fn failure(trace: &Trace, node: Option<usize>, message: String) -> Failure {
    let node = node.and_then(|n| trace.nodes.get(n)).or(trace.nodes.first());
    let (op, frame) = node.map_or_else(Default::default, |n| (n.sig.op.name.clone(), n.frame));
    Failure { op, frame, message }
}

fn build(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool]) -> Result<CompiledSegment, Failure> {
    if shared.inject.hit(FaultPoint::Compile) {
        return Err(failure(trace, None, "injected failure of a compile".into()));
    }
    let lowered = tracing::debug_span!(target: "rsx::lower", "lower").in_scope(|| lower::lower(trace, live));
    let pieces = lowered.map_err(|e| {
        let node = trace.nodes.iter().find(|n| n.sig.op.name == e.op);
        Failure { frame: node.map_or_else(FrameId::default, |n| n.frame), message: e.to_string(), op: e.op }
    })?;
    let schedule = entry.schedule(|| Schedule::new(trace, live));
    let mut steps: Vec<Step> = Vec::with_capacity(pieces.len());
    let calls: Vec<usize> =
        pieces.iter().filter_map(|p| if let Piece::Call { node, .. } = p { Some(*node) } else { None }).collect();
    let mut next_call = calls.into_iter().peekable();
    let mut from = 0;
    for piece in pieces {
        if shared.is_closed() {
            return Err(failure(trace, None, "the device is shutting down".into()));
        }
        let (kind, to) = match piece {
            Piece::Call { node, why } => {
                next_call.next();
                // Nodes before the call that no piece stands for had no use for anybody.
                from = node;
                (StepKind::Call { reason: why.to_string() }, node + 1)
            }
            Piece::Graph(piece) => {
                let runnable = shared
                    .backend
                    .compile(&piece)
                    .map_err(|e| failure(trace, e.node.map(|n| n as usize), e.message))?;
                let to = next_call.peek().copied().unwrap_or(trace.nodes.len());
                let (inputs, scalars, outputs) = (piece.inputs, piece.scalars, piece.outputs);
                (StepKind::Graph(GraphStep { runnable, inputs, scalars, outputs }), to)
            }
        };
        steps.push(Step { kind, nodes: from..to, frees: schedule.frees_in(&(from..to)).to_vec() });
        from = to;
    }
    Ok(CompiledSegment { steps, started: AtomicBool::new(false) })
}
