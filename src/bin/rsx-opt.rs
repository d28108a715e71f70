//! `rsx-opt`: reads graphs in text form, runs compiler passes, prints what became of them. Needs no framework.
mod common;

use clap::Parser;
use common::say;
use rsx_compiler::ir::Graph;
use rsx_compiler::passes::{self, RematOptions};
use rsx_compiler::samples::arguments;
use rsx_compiler::{Bisection, CompileOptions, bisect, compile, dump, verify};
use std::process::ExitCode;
use std::time::Instant;

/// Read graphs in text form, run compiler passes, print the result.
///
/// The file holds functions as `RSX_DUMP_TO` writes them (a `recorded` dump, say) and as the fixtures in `tests/ir` are
/// written. Without options the whole pipeline runs, fusion included, and the graph that is left is printed. Every pass's
/// output is verified. Exit status: 0, or 1 if a file does not parse, a graph is malformed or a pass fails.
///
/// Examples:
///   rsx-opt step.rsx                              the whole pipeline
///   rsx-opt --passes simplify,cse step.rsx        two passes, in this order
///   rsx-opt --until reshape_mover --each step.rsx everything up to a pass, printing after each that changes something
///   rsx-opt --program step.rsx                    thunks, buffers and kernels
///   rsx-opt --bisect step.rsx                     which pass makes the program wrong
#[derive(Parser)]
#[command(name = "rsx-opt", version, verbatim_doc_comment)]
struct Args {
    /// File to read; `-` is standard input.
    #[arg(default_value = "-")]
    file: String,

    /// Run these passes in this order, comma-separated, instead of the pipeline. `--passes ''` only parses and verifies.
    #[arg(long, value_name = "NAMES", conflicts_with_all = ["until", "program", "bisect"])]
    passes: Option<String>,

    /// Run the pipeline up to and including the first run of this pass.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["program", "bisect"])]
    until: Option<String>,

    /// Print the graph after every pass that changes it, not only at the end.
    #[arg(long)]
    each: bool,

    /// Check the file and print nothing.
    #[arg(long, conflicts_with_all = ["each", "program", "bisect", "until"])]
    verify: bool,

    /// Compile and print the program: thunks, kernels, memory and cost.
    #[arg(long, conflicts_with = "bisect")]
    program: bool,

    /// Find the pass after which the program's results differ from the graph's, running both with the interpreter.
    #[arg(long)]
    bisect: bool,

    /// Switch passes off (`-cse`) or on, comma-separated, as `RSX_PASSES` does.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    switch: Option<String>,

    /// Bytes that arguments, results and intermediate values should fit in together.
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<u64>,

    /// Consider values of any size for rematerialisation, and any price (small examples otherwise stay as they are).
    #[arg(long)]
    remat_all: bool,

    /// Write dumps of the whole compilation to this directory, as `RSX_DUMP_TO` does; implies --program.
    #[arg(long, value_name = "DIR")]
    dump_to: Option<std::path::PathBuf>,

    /// Only the function of this name.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,

    /// Tell on standard error how long each pass took and how many instructions it left.
    #[arg(long)]
    time: bool,

    /// List the passes in the order they run and stop.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    common::exit("rsx-opt", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool, String> {
    if args.list {
        for name in passes::pipeline() {
            let pass = passes::PASSES.iter().find(|p| p.name == name);
            let doc = pass.map_or("which instructions run in one kernel", |p| p.doc);
            let required = if pass.is_some_and(|p| p.required) { " (required)" } else { "" };
            say!("{name:<14} {doc}{required}");
        }
        return Ok(true);
    }
    let mut graphs = common::read(&args.file)?;
    if let Some(name) = &args.function {
        graphs.retain(|g| g.name == *name);
        if graphs.is_empty() {
            return Err(format!("{}: there is no function @{name}", args.file));
        }
    }
    let options = options(args);
    let mut right = true;
    for graph in graphs {
        verify::check(&graph).map_err(|e| format!("@{}: {e}", graph.name))?;
        if args.verify {
            continue;
        }
        if args.bisect {
            right &= report_bisection(&graph, &options)?;
        } else if args.program || args.dump_to.is_some() {
            let c = compile(graph, &options).map_err(|e| e.to_string())?;
            say!("{}", dump::program_text(&c.program));
            say!("cost {:?}\nmemory {:?}", c.cost_analysis(), c.memory_analysis());
        } else {
            say!("{}", transform(graph, args, &options)?);
        }
    }
    Ok(right)
}

fn options(args: &Args) -> CompileOptions {
    let mut options = CompileOptions { verify: true, dump_to: args.dump_to.clone(), ..CompileOptions::default() };
    let list = args.switch.as_deref().unwrap_or_default();
    options.passes = list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
    if args.remat_all {
        options.remat = RematOptions { min_peak: 0, min_bytes: 0, slowdown: f64::INFINITY, memory_limit: None };
    }
    options.remat.memory_limit = args.memory_limit;
    options
}

fn transform(mut graph: Graph, args: &Args, options: &CompileOptions) -> Result<Graph, String> {
    let names: Vec<String> = match (&args.passes, &args.until) {
        (Some(list), _) => list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect(),
        (None, until) => {
            let mut all: Vec<String> =
                passes::pipeline().into_iter().filter(|n| options.enabled(n)).map(str::to_owned).collect();
            if let Some(until) = until {
                let at = all.iter().position(|n| n == until).ok_or_else(|| format!("no pass is named `{until}`"))?;
                all.truncate(at + 1);
            }
            all
        }
    };
    for name in names {
        let start = Instant::now();
        let next = passes::run_named(&name, &graph, options).map_err(|e| e.to_string())?;
        let micros = start.elapsed().as_micros();
        verify::check(&next).map_err(|e| format!("after {name}: {e}"))?;
        if args.time {
            eprintln!("{micros:>8} us  {name:<14} {} -> {}", graph.insts.len(), next.insts.len());
        }
        if args.each && next != graph {
            say!("// after {name}\n{next}\n");
        }
        graph = next;
    }
    Ok(graph)
}

fn report_bisection(graph: &Graph, options: &CompileOptions) -> Result<bool, String> {
    let found = bisect(graph, &arguments(graph, 1, 2), options)?;
    match &found {
        Bisection::Right => say!("@{}: the program agrees with the graph", graph.name),
        Bisection::WrongFromTheStart(d) => say!("@{}: wrong without any pass: {d}", graph.name),
        Bisection::Pass { name, passes, difference } => {
            say!("@{}: `{name}` (RSX_BISECT={passes}) breaks it: {difference}", graph.name);
        }
    }
    Ok(found == Bisection::Right)
}
