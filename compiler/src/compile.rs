//! The middle end in one call: recorded graph in, program out.
use crate::buffers::{self, MemoryAnalysis};
use crate::cost::{self, CostAnalysis, DeviceModel};
use crate::dump::Dump;
use crate::fusion::{self, Decision, FusionLimits};
use crate::ir::{Graph, TypeError};
use crate::passes::{self, LedgerEntry, RematOptions};
use crate::program::{Program, Thunk, View, emit};
use std::path::PathBuf;
use std::time::Instant;

/// What a device says about memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    /// Bytes of work memory that a library thunk wants in the slab ([`Thunk::Library`]'s `work`); 0 for none.
    pub work: fn(&Thunk) -> u64,
    /// What an allocation of so many bytes takes.
    pub rounded: fn(u64) -> u64,
}

/// How to compile. The default is what production uses.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Passes switched off (`-name`) or back on (`+name` or `name`), in order; the value of `RSX_PASSES`. `fusion` counts
    /// as one.
    pub passes: Vec<String>,
    /// Only the first so many passes that change anything run (required ones always do): half the number again and again
    /// finds the pass that breaks a program. The value of `RSX_BISECT`.
    pub bisect: Option<usize>,
    /// Check every stage's output; on in debug builds.
    pub verify: bool,
    /// Directory for dumps of every stage as text; the value of `RSX_DUMP_TO`.
    pub dump_to: Option<PathBuf>,
    pub model: DeviceModel,
    pub limits: FusionLimits,
    pub remat: RematOptions,
    /// What the device says about memory; by default kernels need none of their own.
    pub memory: Option<DeviceMemory>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            passes: Vec::new(),
            bisect: None,
            verify: cfg!(debug_assertions),
            dump_to: None,
            model: DeviceModel::default(),
            limits: FusionLimits::default(),
            remat: RematOptions::default(),
            memory: None,
        }
    }
}

impl CompileOptions {
    /// The default changed by `RSX_PASSES` (comma-separated), `RSX_BISECT` (a number of passes), `RSX_DUMP_TO` (a
    /// directory), `RSX_MEMORY_LIMIT` (bytes, or with a suffix K, M or G).
    pub fn from_env() -> Self {
        let list = std::env::var("RSX_PASSES").unwrap_or_default();
        CompileOptions {
            remat: RematOptions { memory_limit: memory_limit(), ..RematOptions::default() },
            bisect: std::env::var("RSX_BISECT").ok().and_then(|v| v.trim().parse().ok()),
            passes: list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect(),
            dump_to: dump_directory(),
            ..CompileOptions::default()
        }
    }

    /// Whether pass `name` runs: the last mention of it counts.
    pub fn enabled(&self, name: &str) -> bool {
        let mention = self.passes.iter().rev().find(|p| p.trim_start_matches(['-', '+']) == name);
        mention.is_none_or(|p| !p.starts_with('-'))
    }
}

/// Where dumps go: `RSX_DUMP_TO`.
pub fn dump_directory() -> Option<PathBuf> {
    std::env::var_os("RSX_DUMP_TO").filter(|s| !s.is_empty()).map(PathBuf::from)
}

/// The device's memory limit, bytes: `RSX_MEMORY_LIMIT`, a number with a suffix K, M or G or without.
pub fn memory_limit() -> Option<u64> {
    parse_size(&std::env::var("RSX_MEMORY_LIMIT").ok()?)
}

/// Bytes from text such as `1500000`, `512M` or `8G`.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['b', 'B']);
    let (number, unit) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 1u64 << 10),
        'M' => (&text[..text.len() - 1], 1 << 20),
        'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

/// Why compilation failed. Always a bug of the compiler or of the code that recorded the graph.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    #[error("no pass is named `{0}`")]
    UnknownPass(String),
    #[error("{pass}: {error}")]
    Pass { pass: &'static str, error: TypeError },
    #[error("the buffer plan is wrong: {0}")]
    Buffers(String),
}

/// Counts of what was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub insts: usize,
    pub thunks: usize,
    /// Calls of generated kernels, epilogues not among them.
    pub kernel_calls: usize,
    /// Different generated kernels, epilogues among them.
    pub kernels: usize,
    pub library_calls: usize,
    pub epilogues: usize,
    pub copies: usize,
    pub cost: CostAnalysis,
    pub memory: MemoryAnalysis,
}

/// A compiled graph.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub program: Program,
    pub stats: Stats,
    /// What every pass did, in order.
    pub ledger: Vec<LedgerEntry>,
}

impl Compiled {
    /// Floating-point operations, transcendental functions and bytes moved by one run.
    pub fn cost_analysis(&self) -> &CostAnalysis {
        &self.stats.cost
    }

    /// Bytes of arguments, outputs, aliases, intermediates and constants.
    pub fn memory_analysis(&self) -> &MemoryAnalysis {
        &self.stats.memory
    }
}

/// What passes aim at under a memory limit, as parts of it. Their estimate is off by a tenth either way, and what they choose
/// to compute again depends on the aim by leaps: a lower one may cost less.
#[rustfmt::skip]
const AIMS: &[f64] = &[
    1.2, 1.15, 1.12, 1.1, 1.08, 1.07, 1.06, 1.05, 1.04, 1.03, 1.02, 1.0, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.0,
];

/// Stack that a thread needs to compile on, bytes: kernels are built recursively, as deep as `FusionLimits::max_nesting`.
pub const STACK_BYTES: usize = 16 << 20;

/// Compiles a recorded graph.
///
/// With a memory limit, the graph is compiled with several aims ([`RematOptions::memory_limit`]) unless it fits the limit as
/// it is. Of the programs whose finished plan fits, the one that computes least is returned; if none fits, the smallest.
pub fn compile(graph: Graph, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let Some(limit) = options.remat.memory_limit.filter(|_| options.enabled("rematerialize")) else {
        return compile_once(graph, options);
    };
    // What else is in use beside the program's own: operands on their way, results of steps before.
    let limit = limit - limit / 64;
    let rounded = options.memory.map_or(std::convert::identity as fn(u64) -> u64, |m| m.rounded);
    let total = |c: &Compiled| c.stats.memory.total(&c.program, rounded);
    // Only the program that is taken leaves a dump.
    let mut trial = CompileOptions { dump_to: None, ..options.clone() };
    let mut aimed = |aim: Option<u64>| {
        trial.remat.memory_limit = aim;
        compile_once(graph.clone(), &trial)
    };
    let mut best = (None, aimed(None)?);
    if total(&best.1) > limit {
        // Less is better.
        let merit = |c: &Compiled| {
            let fits = total(c) <= limit;
            (!fits, if fits { c.stats.cost.flops } else { total(c) as f64 }, c.stats.cost.bytes)
        };
        for part in AIMS {
            let aim = Some((limit as f64 * part) as u64);
            let next = aimed(aim)?;
            if merit(&next) < merit(&best.1) {
                best = (aim, next);
            }
        }
    }
    if options.dump_to.is_none() {
        return Ok(best.1);
    }
    let mut last = options.clone();
    last.remat.memory_limit = best.0;
    compile_once(graph, &last)
}

fn compile_once(graph: Graph, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let mut dump = Dump::new(options.dump_to.as_deref(), &graph.name);
    let mut ledger = Vec::new();
    let insts = graph.insts.len();
    let mut left = options.bisect.unwrap_or(usize::MAX);
    let graph = passes::run_pipeline(graph, options, &mut left, &mut dump, &mut ledger)?;

    let fuses = options.enabled("fusion") && left > 0;
    let mut timed = |pass: &'static str, before: usize, after: usize, start: Instant| {
        let micros = start.elapsed().as_micros() as u64;
        let counted = pass == "fusion" && fuses;
        ledger.push(LedgerEntry { pass, micros, insts_before: before, insts_after: after, changed: true, counted });
    };
    let in_pass = |pass: &'static str| move |error| CompileError::Pass { pass, error };

    let start = Instant::now();
    let mut decisions: Vec<Decision> = Vec::new();
    let fused = if fuses {
        fusion::run(&graph, &options.model, &options.limits, &mut decisions)
    } else {
        fusion::run_unfused(&graph)
    }
    .map_err(in_pass("fusion"))?;
    passes::check("fusion", &graph, &fused, options)?;
    timed("fusion", graph.insts.len(), fused.insts.len(), start);
    dump.decisions(&graph, &decisions);
    dump.graph("fusion", &fused, None);

    let start = Instant::now();
    let mut plan = buffers::plan(&fused).map_err(in_pass("buffers"))?;
    timed("buffers", fused.insts.len(), fused.insts.len(), start);

    let start = Instant::now();
    let program = emit::emit(&fused, &mut plan, options.memory.map(|m| m.work)).map_err(in_pass("emit"))?;
    timed("emit", fused.insts.len(), program.thunks.len(), start);
    dump.plan(&fused, &plan);
    dump.program(&program);
    if options.verify {
        buffers::check::check(&program).map_err(CompileError::Buffers)?;
    }

    let stats = stats(insts, &graph, &program, plan.memory);
    dump.finish(&program, &ledger, &stats);
    Ok(Compiled { program, stats, ledger })
}

fn stats(insts: usize, graph: &Graph, program: &Program, memory: MemoryAnalysis) -> Stats {
    let mut s =
        Stats { insts, thunks: program.thunks.len(), kernels: program.kernels.len(), memory, ..Stats::default() };
    let live = passes::rewriter::live_insts(graph);
    for (id, inst) in graph.iter().filter(|(id, _)| live[id.0 as usize]) {
        let _ = id;
        let (flops, transcendentals) = cost::inst_flops(graph, inst);
        s.cost.flops += flops;
        s.cost.transcendentals += transcendentals;
    }
    // Distinct elements of a view: broadcast dimensions are read once.
    let bytes = |v: &View| -> f64 {
        let n: i64 = (0..v.dims.len()).filter(|&i| v.strides[i] != 0).map(|i| v.dims[i]).product();
        n as f64 * v.dtype.size() as f64
    };
    let total = |views: &[View]| views.iter().map(bytes).sum::<f64>();
    for thunk in &program.thunks {
        match thunk {
            Thunk::Kernel(call) => {
                s.kernel_calls += 1;
                s.cost.bytes += total(&call.inputs) + total(&call.outputs);
            }
            Thunk::Group(calls) => {
                s.kernel_calls += calls.len();
                s.cost.bytes += calls.iter().map(|c| total(&c.inputs) + total(&c.outputs)).sum::<f64>();
            }
            Thunk::Library { inputs, outputs, epilogue, .. } => {
                s.library_calls += 1;
                s.cost.bytes += total(inputs) + total(outputs);
                if let Some(call) = epilogue {
                    s.epilogues += 1;
                    s.cost.bytes += total(&call.inputs[1..]);
                }
            }
            Thunk::Copy { from, to, .. } => {
                s.copies += 1;
                s.cost.bytes += bytes(from) + bytes(to);
            }
        }
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_text() {
        assert_eq!(parse_size("512M"), Some(512 << 20));
        assert_eq!(parse_size(" 8GB "), Some(8 << 30));
        assert_eq!(parse_size("77"), Some(77));
        assert_eq!(parse_size("x"), None);
    }
}
