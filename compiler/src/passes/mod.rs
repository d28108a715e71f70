//! Passes over the graph and the runner.
//!
//! A pass reads a graph and returns another; it lives in one file that opens with its before/after and safety contract.
//! Everything that crosses passes (order, switching on and off by name, timing, dumps, verification) is done here and
//! nowhere else.
mod channels;
mod cse;
mod dce;
pub(crate) mod dimmap;
mod dots;
pub(crate) mod fold;
mod layout;
mod rematerialize;
mod reshape_mover;
pub mod rewriter;
pub(crate) mod simplify;

use crate::compile::{CompileError, CompileOptions};
use crate::dump::Dump;
use crate::fusion;
use crate::ir::{Graph, TypeError};
use crate::verify;
pub use rematerialize::RematOptions;
use std::time::Instant;

/// One pass.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Name in `RSX_PASSES`, dumps, ledgers and fixtures; also the name of its file.
    pub name: &'static str,
    /// The program would be wrong, not only slow, without it: it cannot be switched off.
    pub required: bool,
    /// One line for lists of passes.
    pub doc: &'static str,
    run: fn(&Graph, &PassContext<'_>) -> Result<Graph, TypeError>,
}

/// What a pass may know besides the graph.
pub(crate) struct PassContext<'c> {
    pub(crate) options: &'c CompileOptions,
}

/// All passes, by name.
pub static PASSES: &[Pass] = &[
    Pass {
        name: "simplify",
        required: false,
        doc: "local rewrites that are exact for every input",
        run: |g, _| simplify::run(g),
    },
    Pass {
        name: "cse",
        required: false,
        doc: "one instruction for all that compute the same",
        run: |g, _| cse::run(g),
    },
    Pass { name: "dce", required: false, doc: "drops what no result depends on", run: |g, _| dce::run(g) },
    Pass {
        name: "reshape_mover",
        required: false,
        doc: "one iteration space between contractions: reshapes move out of the way",
        run: |g, _| reshape_mover::run(g),
    },
    Pass { name: "dots", required: true, doc: "contractions in their one form", run: |g, _| dots::run(g) },
    Pass {
        name: "channels",
        required: false,
        doc: "convolutions in the order of dimensions in which they are fastest",
        run: |g, c| channels::run(g, &c.options.model),
    },
    Pass {
        name: "layout",
        required: false,
        doc: "library results are stored in the order of their readers",
        run: |g, _| layout::run(g),
    },
    Pass {
        name: "rematerialize",
        required: false,
        doc: "computes again what would wait for long in memory",
        run: rematerialize::run,
    },
];

/// The order in which they run. A name may stand more than once; each position says why it is there.
static PIPELINE: &[&str] = &[
    // Recorded graphs are full of views on views, scalars as tensors and steps that do nothing: everything after this is
    // cheaper and sees more when they are gone.
    "simplify",
    // Forward and backward recompute each other's parts; merge them before shapes are moved, while they look equal.
    "cse",
    // Convolutions channels first or last: images still have all their dimensions, and what this adds at the border of
    // regions meets the recorded transposes in the next `simplify`.
    "channels",
    // Contractions get their one form, with explicit transposes for what was in dimension numbers, so that shapes can be
    // moved through them.
    "dots",
    // The new transposes meet the recorded ones.
    "simplify",
    // One iteration space between contractions. Needs merged reshapes (simplify) and canonical contractions (dots).
    "reshape_mover",
    // Reshapes are gone from between the movement ops: they merge further now.
    "simplify",
    // Library results are stored in the order their readers want. Last of the shape passes: it looks at final transposes.
    "layout",
    // What the moves made equal, and what nobody uses any more.
    "cse",
    // Last: an earlier `cse` would merge the copies with what they are copies of. Before fusion, which makes them part of
    // kernels that read the same operands.
    "rematerialize",
];

/// What one run of a pass did.
#[derive(Clone, Debug)]
pub struct LedgerEntry {
    pub pass: &'static str,
    pub micros: u64,
    pub insts_before: usize,
    pub insts_after: usize,
    pub changed: bool,
    /// One of the passes that `RSX_BISECT` counts.
    pub counted: bool,
}

fn by_name(name: &str) -> Option<&'static Pass> {
    PASSES.iter().find(|p| p.name == name)
}

/// Runs one pass (or `fusion`) by name: for fixtures and tools.
pub fn run_named(name: &str, graph: &Graph, options: &CompileOptions) -> Result<Graph, CompileError> {
    if name == "fusion" {
        return fusion::run(graph, &options.model, &options.limits, &mut Vec::new())
            .map_err(|error| CompileError::Pass { pass: "fusion", error });
    }
    let pass = by_name(name).ok_or_else(|| CompileError::UnknownPass(name.to_owned()))?;
    (pass.run)(graph, &PassContext { options }).map_err(|e| CompileError::Pass { pass: pass.name, error: e })
}

/// Names in the order they run, `fusion` last; those that run more than once are there more than once.
pub fn pipeline() -> Vec<&'static str> {
    PIPELINE.iter().copied().chain(["fusion"]).collect()
}

/// Runs the pipeline. `left`: of the passes that are not required, only the first so many that change anything run.
pub(crate) fn run_pipeline(
    mut graph: Graph,
    options: &CompileOptions,
    left: &mut usize,
    dump: &mut Dump,
    ledger: &mut Vec<LedgerEntry>,
) -> Result<Graph, CompileError> {
    for name in &options.passes {
        let bare = name.trim_start_matches(['-', '+']);
        // Fusion is a stage of its own, but switched like a pass.
        if bare != "fusion" && by_name(bare).is_none() {
            return Err(CompileError::UnknownPass(bare.to_owned()));
        }
    }
    dump.graph("recorded", &graph, None);
    for pass in PIPELINE.iter().filter_map(|name| by_name(name)) {
        if !pass.required && (!options.enabled(pass.name) || *left == 0) {
            continue;
        }
        let start = Instant::now();
        let next = (pass.run)(&graph, &PassContext { options })
            .map_err(|error| CompileError::Pass { pass: pass.name, error })?;
        let micros = start.elapsed().as_micros() as u64;
        check(pass.name, &graph, &next, options)?;
        let changed = next != graph;
        if changed {
            dump.graph(pass.name, &next, Some(&graph));
            *left -= usize::from(!pass.required);
        }
        ledger.push(LedgerEntry {
            pass: pass.name,
            micros,
            insts_before: graph.insts.len(),
            insts_after: next.insts.len(),
            changed,
            counted: changed && !pass.required,
        });
        graph = next;
    }
    Ok(graph)
}

/// What must hold after every pass: the interface is unchanged, and (in tests and on demand) the graph is well formed.
pub(crate) fn check(
    pass: &'static str,
    before: &Graph,
    after: &Graph,
    options: &CompileOptions,
) -> Result<(), CompileError> {
    let wrong = |what: &str| Err(CompileError::Pass { pass, error: TypeError::new(what) });
    if before.params != after.params {
        return wrong("the parameters changed");
    }
    if before.results.len() != after.results.len()
        || before.results.iter().zip(&after.results).any(|(&a, &b)| before.ty(a) != after.ty(b))
    {
        return wrong("the types of the results changed");
    }
    if options.verify {
        verify::check(after).map_err(|e| CompileError::Pass { pass, error: TypeError::new(e.to_string()) })?;
    }
    Ok(())
}
