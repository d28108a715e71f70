//! A GPT training step on the CPU device: time to compile, time of a step, and where it goes.
//!
//! `cargo run --release -p rsx-devices --example run_gpt [layers] [width] [batch] [time] [vocab]`; `RSX_UNPLANNED=1` leaves work
//! memory to the kernels, to compare.
#[path = "common/mod.rs"]
mod common;
#[path = "../../compiler/tests/models/mod.rs"]
mod models;

use rsx_compiler::ir::{DType, OpKind, ParamKind};
use rsx_compiler::program::Thunk;
use rsx_compiler::{CompileOptions, compile};
use rsx_devices::cpu::{CpuDevice, pool};
use rsx_devices::{Device, execute};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Name of a matrix product with its shape, where operands are read transposed and whether an epilogue consumes it,
/// and its flops; none for other thunks.
fn product(thunk: &Thunk) -> Option<(String, f64)> {
    let Thunk::Library { op: OpKind::DotGeneral, inputs, epilogue, .. } = thunk else { return None };
    let [a, b] = &inputs[..] else { return None };
    let r = a.dims.len().checked_sub(2)?;
    let (m, k, n) = (a.dims[r], a.dims[r + 1], b.dims[r + 1]);
    let batch: i64 = a.dims[..r].iter().product();
    let t = |v: &rsx_compiler::program::View| if v.strides[r + 1] == 1 { "" } else { "t" };
    let batch_text = if batch == 1 { String::new() } else { format!("{batch} x ") };
    let tail = if epilogue.is_some() { " + epilogue" } else { "" };
    let name = format!("dot {batch_text}{m}x{n}x{k} A{}·B{}{tail}", t(a), t(b));
    Some((name, 2.0 * (batch * m * n * k) as f64))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<i64>());
    let mut next = |default: i64| args.next().and_then(Result::ok).unwrap_or(default);
    let (layers, width, batch, time, vocab) = (next(4), next(256), next(8), next(128), next(4096));
    let layers = layers as usize;
    let graph = models::gpt(models::Gpt { layers, batch, time, width, heads: 4, vocab });
    let device = CpuDevice::new();
    let (mut params, mut scalars) = (Vec::new(), Vec::new());
    for (n, p) in graph.params.iter().enumerate() {
        if p.kind == ParamKind::Scalar {
            let value = [3e-4, 0.9, 0.999, 1e-8, 0.01].get(scalars.len()).copied().unwrap_or(1.0);
            scalars.push(if p.ty.dtype == DType::F64 { f64::to_bits(value) } else { value as u64 });
            continue;
        }
        let buffer = device.allocate(p.ty.bytes() as usize)?;
        buffer.zero();
        if p.ty.dtype == DType::F32 && p.ty.numel() > 1 {
            let values = (0..p.ty.numel()).map(|i| ((i * 7919 + n as i64 * 31) % 2001 - 1000) as f32 / 2e4);
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            buffer.write(0, &bytes)?;
        }
        params.push(buffer);
    }
    let begin = Instant::now();
    let planned = std::env::var_os("RSX_UNPLANNED").is_none();
    let compiled = compile(
        graph,
        &CompileOptions { verify: false, memory: device.plans().filter(|_| planned), ..CompileOptions::from_env() },
    )?;
    let middle = begin.elapsed();
    println!("{:?}", compiled.stats.memory);
    let program = Arc::new(compiled.program);
    let begin = Instant::now();
    let executable = device.compile(program.clone())?;
    let stats = executable.compile_stats();
    println!("middle end {middle:?}, code generation {:?}: {stats:?}", begin.elapsed());
    println!("{:?}, slab {} bytes, {} threads", executable.cost(), program.slab_bytes, pool::num_threads());
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    let mut runs = 0;
    while runs < 5 || begin.elapsed().as_secs_f64() < 3.0 {
        let t = Instant::now();
        execute(&device, &*executable, &params, &scalars)?;
        best = best.min(t.elapsed().as_secs_f64());
        runs += 1;
    }
    println!("pool {:?}", device.memory().stats());
    println!("step {:.3} ms (best of {runs})", best * 1e3);
    let results = execute(&device, &*executable, &params, &scalars)?;
    let mut least: Vec<u64> = vec![u64::MAX; program.thunks.len()];
    let mut names = Vec::new();
    for _ in 0..5 {
        let times = executable.profile(&params, &scalars, &results)?;
        least.iter_mut().zip(&times).for_each(|(l, t)| *l = t.ns.min(*l));
        names = times.into_iter().map(|t| t.name).collect::<Vec<_>>();
    }
    let peak = common::peak() * pool::num_threads() as f64;
    let mut by_name: BTreeMap<String, (u64, u64, f64)> = BTreeMap::new();
    for ((name, thunk), &ns) in names.iter().zip(&program.thunks).zip(&least) {
        let (name, flops) = product(thunk).unwrap_or((name.clone(), 0.0));
        let e = by_name.entry(name).or_default();
        *e = (e.0 + ns, e.1 + 1, e.2 + flops);
    }
    let mut list: Vec<_> = by_name.into_iter().collect();
    list.sort_by_key(|(_, (ns, ..))| std::cmp::Reverse(*ns));
    let total: u64 = least.iter().sum();
    let (dots, flops) = list.iter().filter(|(_, e)| e.2 > 0.0).fold((0, 0.0), |s, (_, e)| (s.0 + e.0, s.1 + e.2));
    let rate = |flops: f64, ns: u64| {
        let r = flops / ns as f64;
        format!("{r:6.1} GFLOP/s {:5.1} % of peak", r / peak * 100.0)
    };
    println!("products {:.1} of {:.1} ms: {}", dots as f64 / 1e6, total as f64 / 1e6, rate(flops, dots));
    for (name, (ns, count, flops)) in list.iter().take(40) {
        let share = *ns as f64 / total as f64 * 100.0;
        let rate = if *flops > 0.0 { rate(*flops, *ns) } else { String::new() };
        println!("{:9.1} us {share:5.1} % {count:4} x {name:40} {rate}", *ns as f64 / 1e3);
    }
    Ok(())
}
