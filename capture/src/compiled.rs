//! Tier 1: the steps of a compiled segment.
use crate::looping;
use crate::metrics::Counters;
use crate::run::Run;
use crate::segment::{CompiledSegment, GraphStep, StepKind};
use crate::{FallbackKind, FaultPoint, RunError, eager};
use rsx_devices::Buffer;
use rsx_lazy::{EngineErrorKind, Fault};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What became of a graph step.
enum Outcome {
    Done,
    /// Nothing has been written; its nodes have to run one by one.
    OpByOp,
}

/// Runs a compiled segment.
pub(crate) fn run(run: &mut Run<'_>, program: &CompiledSegment) {
    let last = program.steps.len().saturating_sub(1);
    for (k, step) in program.steps.iter().enumerate() {
        match &step.kind {
            StepKind::Graph(graph) => match graph_step(run, graph, step.nodes.clone()) {
                Outcome::Done => {}
                Outcome::OpByOp => eager::nodes(run, step.nodes.clone()),
            },
            StepKind::Call { .. } if looping::is_loop(&run.trace.nodes[step.nodes.start]) => {
                looping::run(run, step.nodes.start);
            }
            StepKind::Call { reason } => {
                let node = &run.trace.nodes[step.nodes.start];
                let op = node.sig.op.name.as_str();
                run.shared.counters.call(op);
                run.shared.report.fallback(op, reason, FallbackKind::CallNode, node.frame.0);
                eager::node(run, step.nodes.start);
            }
        }
        // After the last step the trace itself goes, and all its memory with it.
        if k < last {
            run.free(&step.frees);
        }
    }
}

fn graph_step(run: &mut Run<'_>, graph: &GraphStep, nodes: Range<usize>) -> Outcome {
    let (trace, first_node) = (run.trace, nodes.start);
    let mut inputs: SmallVec<[Buffer; 32]> = SmallVec::with_capacity(graph.inputs.len());
    for &i in &graph.inputs {
        match run.buffer(i, first_node) {
            Ok(b) => inputs.push(b),
            // Op by op, only what depends on the lost value is lost.
            Err(_) => return Outcome::OpByOp,
        }
    }
    let mut results: SmallVec<[Buffer; 32]> = SmallVec::with_capacity(graph.outputs.len());
    for (r, &o) in graph.outputs.iter().enumerate() {
        let buffer = match graph.runnable.alias(r).and_then(|p| inputs.get(p)) {
            Some(b) => Ok(b.clone()),
            // Its address is fixed; what it holds is replaced, so that no earlier fault is in the way.
            None => {
                let own =
                    in_place_anyway(run, graph, o).then(|| trace.storages[o as usize].storage.state().buffer.clone());
                let bytes = trace.storages[o as usize].storage.nbytes();
                own.flatten().map_or_else(|| run.shared.allocate(bytes), Ok)
            }
        };
        match buffer {
            Ok(b) => results.push(b),
            Err(e) => {
                drop((inputs, results));
                return short(run, nodes, e.message);
            }
        }
    }
    let scalars: SmallVec<[u64; 32]> =
        graph.scalars.iter().map(|s| s.kind.value(trace.data[s.word as usize])).collect();
    let ran = if run.shared.inject.hit(FaultPoint::Launch) {
        Err(RunError::Launch("injected failure of a launch".into()))
    } else {
        graph.runnable.run(&inputs, &scalars, &results)
    };
    match ran {
        Ok(()) => {
            let cost = graph.runnable.cost();
            Counters::add(&run.shared.counters.kernels, cost.kernels);
            Counters::add(&run.shared.counters.bytes_moved, cost.bytes_moved);
            drop(inputs);
            for (r, (&o, buffer)) in graph.outputs.iter().zip(results).enumerate() {
                if let Some(&from) = graph.runnable.alias(r).and_then(|p| graph.inputs.get(p)).filter(|f| **f != o) {
                    // The memory moved from a dead storage to this one.
                    trace.storages[from as usize].storage.state().buffer = None;
                }
                run.assign(o, buffer);
            }
            Outcome::Done
        }
        Err(RunError::Launch(message)) if run.lacks(nodes.clone()).is_some() => {
            drop((inputs, results));
            short(run, nodes, message)
        }
        Err(RunError::Launch(message)) => {
            Counters::add(&run.shared.counters.launch_failures, 1);
            let node = &trace.nodes[first_node];
            let (op, at) = (&node.sig.op.name, run.shared.report.frames().text(node.frame.0));
            let text = format!("a compiled segment that starts with {op} at {at} could not be launched: {message}");
            // One warning is news, a thousand are noise: metrics count the others.
            if run.shared.counters.launch_failures.load(Relaxed) == 1 {
                tracing::warn!(target: "rsx::execute", "{text}; it runs op by op this time");
            } else {
                tracing::debug!(target: "rsx::execute", "{text}");
            }
            Outcome::OpByOp
        }
        Err(RunError::Failed { message, intact: true, .. }) => {
            tracing::debug!(target: "rsx::execute", message, "a compiled segment failed; it runs op by op");
            Outcome::OpByOp
        }
        Err(RunError::Failed { kind, message, node, .. }) => {
            let fault = run.fault(kind, node.map(|n| n as usize), message);
            lose(run, graph, &fault);
            Outcome::Done
        }
    }
}

/// Memory for the piece cannot be had; nothing has been written. Op by op it may need less; else that is the segment's
/// error, and its ops still run one by one as far as they can: fills of memory that has no value yet (an optimizer's
/// state) must not be lost.
fn short(run: &Run<'_>, nodes: Range<usize>, message: String) -> Outcome {
    let Some(need) = run.lacks(nodes.clone()) else { return Outcome::OpByOp };
    let message = format!("{message} (a program of {} ops; one by one they would take {need} bytes)", nodes.len());
    run.fault(EngineErrorKind::OutOfMemory, Some(nodes.start), message);
    Outcome::OpByOp
}

/// Result `o` goes straight into its storage's own memory: the address is fixed and the piece does not read it.
fn in_place_anyway(run: &Run<'_>, graph: &GraphStep, o: u32) -> bool {
    run.trace.storages[o as usize].storage.is_exposed() && !graph.inputs.contains(&o)
}

/// The piece failed on the way: memory it wrote in place holds garbage, everything else is as before.
fn lose(run: &Run<'_>, graph: &GraphStep, fault: &Arc<Fault>) {
    for (r, &o) in graph.outputs.iter().enumerate() {
        let in_place = graph.runnable.alias(r).is_some() || in_place_anyway(run, graph, o);
        if in_place {
            run.spoil(o, fault);
        } else {
            run.fail(o, fault);
        }
    }
}
