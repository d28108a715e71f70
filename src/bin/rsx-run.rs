//! `rsx-run`: runs graphs in text form on the interpreter or the CPU device, compares and times. Needs no framework.
mod common;

use clap::{Parser, ValueEnum};
use common::say;
use rsx_compiler::interp::{Tensor, eval};
use rsx_compiler::ir::{Graph, Literal};
use rsx_compiler::program::reference;
use rsx_compiler::samples::{arguments, split_arguments};
use rsx_compiler::{CompileOptions, Compiled, compile, first_difference, text};
use rsx_devices::cpu::CpuDevice;
use rsx_devices::{Buffer, Device, Executable, execute};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Run graphs in text form: on the interpreter, as a compiled program on the interpreter, or on the CPU.
///
/// Arguments are made up from a seed unless given. Exit status: 0, or 1 if something fails or results differ.
///
/// Examples:
///   rsx-run step.rsx                         results from the CPU device
///   rsx-run --on interpreter step.rsx        what the graph means
///   rsx-run --compare step.rsx               interpreter, compiled program and CPU must agree
///   rsx-run --time 50 step.rsx               best and median of 50 runs, and time by thunk
///   rsx-run --args 'dense<[1.0, 2.0]> : tensor<2xf32>' add.rsx
#[derive(Parser)]
#[command(name = "rsx-run", version, verbatim_doc_comment)]
struct Args {
    /// File to read; `-` is standard input.
    #[arg(default_value = "-")]
    file: String,

    /// Where to run.
    #[arg(long, value_enum, default_value_t = On::Cpu)]
    on: On,

    /// Run everywhere and compare; prints nothing but the verdict.
    #[arg(long)]
    compare: bool,

    /// Run so many times on the CPU and tell times instead of results.
    #[arg(long, value_name = "RUNS")]
    time: Option<usize>,

    /// Arguments, comma-separated, in the text form of constants; the made-up ones otherwise.
    #[arg(long, value_name = "LITERALS")]
    args: Option<String>,

    /// Seed of made-up arguments.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Made-up integers are below this (indices must be in range); those of runtime scalars are 0.
    #[arg(long, default_value_t = 2)]
    bound: i64,

    /// Only the function of this name.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,

    /// Print results of up to so many elements in full; larger ones by their sizes and sums.
    #[arg(long, default_value_t = 64)]
    elements: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    /// The recorded graph, op by op.
    Interpreter,
    /// The compiled program, thunk by thunk, on the interpreter.
    Program,
    /// The compiled program on the CPU device.
    Cpu,
}

fn main() -> ExitCode {
    common::exit("rsx-run", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool, String> {
    let mut graphs = common::read(&args.file)?;
    if let Some(name) = &args.function {
        graphs.retain(|g| g.name == *name);
    }
    if graphs.is_empty() {
        return Err(format!("{}: no function to run", args.file));
    }
    let mut right = true;
    for graph in graphs {
        let values = values(&graph, args)?;
        if let Some(runs) = args.time {
            time(&graph, &values, runs)?;
        } else if args.compare {
            right &= compare(&graph, &values)?;
        } else {
            let results = results(&graph, &values, args.on)?;
            say!("@{}", graph.name);
            results.iter().for_each(|t| print(t, args.elements));
        }
    }
    Ok(right)
}

fn values(graph: &Graph, args: &Args) -> Result<Vec<Tensor>, String> {
    let Some(given) = &args.args else { return Ok(arguments(graph, args.seed, args.bound)) };
    let given: Vec<Tensor> =
        text::parse_literals(given).map_err(|e| format!("--args: {e}"))?.iter().map(Tensor::from).collect();
    let fits = given.len() == graph.params.len() && given.iter().zip(&graph.params).all(|(t, p)| t.ty == p.ty);
    if !fits {
        let want: Vec<String> = graph.params.iter().map(|p| p.ty.to_string()).collect();
        return Err(format!("--args: @{} takes ({})", graph.name, want.join(", ")));
    }
    Ok(given)
}

fn compiled(graph: &Graph) -> Result<Compiled, String> {
    let device = CpuDevice::new();
    let mut options = CompileOptions { memory: device.plans(), ..CompileOptions::from_env() };
    options.model.lanes = device.lanes().unwrap_or(options.model.lanes);
    compile(graph.clone(), &options).map_err(|e| e.to_string())
}

/// A program on the CPU with its arguments in place. Donated parameters are overwritten by every run.
struct OnCpu {
    device: CpuDevice,
    executable: Arc<dyn Executable>,
    params: Vec<Buffer>,
    scalars: Vec<u64>,
}

impl OnCpu {
    fn new(graph: &Graph, values: &[Tensor]) -> Result<OnCpu, String> {
        let device = CpuDevice::new();
        let program = Arc::new(compiled(graph)?.program);
        let executable = device.compile(program).map_err(|e| e.to_string())?;
        let (tensors, scalars) = split_arguments(graph, values);
        let mut params = Vec::new();
        for t in &tensors {
            let b = device.allocate(t.bytes.len()).map_err(|e| e.to_string())?;
            b.write(0, &t.bytes).map_err(|e| e.to_string())?;
            params.push(b);
        }
        let scalars = scalars.iter().map(|t| rsx_compiler::kernel::bits(&t.bytes)).collect();
        Ok(OnCpu { device, executable, params, scalars })
    }

    fn run(&self) -> Result<Vec<Buffer>, String> {
        execute(&self.device, &*self.executable, &self.params, &self.scalars).map_err(|e| e.to_string())
    }
}

fn results(graph: &Graph, values: &[Tensor], on: On) -> Result<Vec<Tensor>, String> {
    match on {
        On::Interpreter => eval(graph, values).map_err(|e| e.to_string()),
        On::Program => {
            let (tensors, scalars) = split_arguments(graph, values);
            reference::run(&compiled(graph)?.program, &tensors, &scalars).map_err(|e| e.to_string())
        }
        On::Cpu => {
            let buffers = OnCpu::new(graph, values)?.run()?;
            let read = |(b, ty): (&Buffer, &rsx_compiler::ir::TensorType)| {
                let mut bytes = vec![0; ty.bytes() as usize];
                b.read(0, &mut bytes).map_err(|e| e.to_string())?;
                Ok(Tensor { ty: ty.clone(), bytes })
            };
            buffers.iter().zip(&graph.result_types()).map(read).collect()
        }
    }
}

fn compare(graph: &Graph, values: &[Tensor]) -> Result<bool, String> {
    let want = results(graph, values, On::Interpreter)?;
    let mut right = true;
    for (on, name) in [(On::Program, "program"), (On::Cpu, "cpu")] {
        match first_difference(&results(graph, values, on)?, &want) {
            None => say!("@{}: {name} agrees with the interpreter on {} results", graph.name, want.len()),
            Some(d) => {
                say!("@{}: {name} differs: {d}", graph.name);
                right = false;
            }
        }
    }
    Ok(right)
}

fn time(graph: &Graph, values: &[Tensor], runs: usize) -> Result<(), String> {
    let start = Instant::now();
    let cpu = OnCpu::new(graph, values)?;
    say!("@{}: compiled in {:.1} ms", graph.name, start.elapsed().as_secs_f64() * 1e3);
    let mut times = Vec::new();
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        cpu.run()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    say!("best {:.1} us, median {:.1} us of {} runs", times[0], times[times.len() / 2], times.len());
    let buffers = cpu.run()?;
    let profile = cpu.executable.profile(&cpu.params, &cpu.scalars, &buffers).map_err(|e| e.to_string())?;
    let total: u64 = profile.iter().map(|t| t.ns).sum();
    let share = |ns: u64| format!("{:9.1} us {:5.1} %", ns as f64 / 1e3, ns as f64 * 100.0 / total.max(1) as f64);
    let mut kinds: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for t in &profile {
        let kind = kinds.entry(t.name.to_string()).or_default();
        *kind = (kind.0 + t.ns, kind.1 + 1);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    for (name, (ns, count)) in kinds.into_iter().take(20).filter(|(_, (_, count))| *count > 1) {
        say!("{}  {count} of {name}", share(ns));
    }
    let mut by_time: Vec<_> = profile.into_iter().enumerate().collect();
    by_time.sort_by_key(|(_, t)| std::cmp::Reverse(t.ns));
    for (n, t) in by_time.into_iter().take(20) {
        say!("{}  thunk {n} {}", share(t.ns), t.name);
    }
    Ok(())
}

fn print(t: &Tensor, elements: i64) {
    if t.ty.numel() <= elements {
        say!("  {}", text::print_literal(&Literal::from(t)));
    } else {
        let values = t.to_f64();
        say!(
            "  {} sum {:e}, first {:e}, last {:e}",
            t.ty,
            values.iter().sum::<f64>(),
            values[0],
            values[values.len() - 1]
        );
    }
}
