//! Compiled segments: a list of steps, each a compiled piece or a call of the eager engine.
use crate::cache::Entry;
use crate::metrics::Counters;
use crate::schedule::Schedule;
use crate::shared::{Shared, panic_text};
use crate::timeline::{self, Lane};
use crate::{FaultPoint, Runnable};
use rsx_lazy::lower::{self, Piece};
use rsx_lazy::{FrameId, ScalarSource, Trace};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A compiled segment. All indices are those of a trace with the segment's key.
#[derive(Debug)]
pub(crate) struct CompiledSegment {
    pub(crate) steps: Vec<Step>,
    /// It has run before.
    pub(crate) started: AtomicBool,
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

/// Compiles the segment of `entry` and settles the entry. `trace` may be a skeleton.
pub(crate) fn compile(shared: &Shared, entry: &Entry, trace: &Trace, live: &[bool], why: &str) {
    let started = Instant::now();
    let span = tracing::debug_span!(target: "rsx::compile", "compile", nodes = trace.nodes.len());
    let mut event = timeline::span(Lane::Compiler, || "compile".into());
    event.fact("ops", trace.nodes.len());
    event.fact("why", why);
    let built = span.in_scope(|| {
        let build = || build(shared, entry, trace, live);
        catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|panic| Err(failure(trace, None, panic_text(&*panic))))
    });
    drop(event);
    let seconds = started.elapsed();
    Counters::add(&shared.counters.compiles, 1);
    Counters::add(&shared.counters.compile_nanos, seconds.as_nanos() as u64);
    shared.foresight.compiled(trace.nodes.len(), seconds);
    let place = |frame: FrameId| shared.report.frames().text(frame.0);
    match built {
        Ok(program) => {
            let first = trace.nodes.first();
            let (op, at) = first.map_or(("-", String::new()), |n| (n.sig.op.name.as_str(), place(n.frame)));
            let (ms, steps, nodes) = (seconds.as_secs_f64() * 1e3, program.steps.len(), trace.nodes.len());
            tracing::info!(target: "rsx::compiles", nodes, steps, ms, op, at, why, "compiled a segment");
            entry.settle(Some(program));
        }
        // Nobody waits for it any more.
        Err(_) if shared.is_closed() => entry.settle(None),
        Err(f) => {
            Counters::add(&shared.counters.compile_failures, 1);
            let at = place(f.frame);
            tracing::warn!(
                target: "rsx::compiles",
                "compiling a segment of {} ops failed in {} at {at}: {}; it runs op by op, which is slower and gives \
                 the same results",
                trace.nodes.len(), f.op, f.message
            );
            entry.settle(None);
        }
    }
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
