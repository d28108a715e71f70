//! A GPT training step on the CPU device: time to compile, time of a step, and where it goes.
//!
//! `cargo run --release -p rsx-devices --example run_gpt [layers] [width] [batch] [time]`
#[path = "../../compiler/tests/models/mod.rs"]
mod models;

use rsx_compiler::ir::{DType, ParamKind};
use rsx_compiler::{CompileOptions, compile};
use rsx_devices::cpu::{CpuDevice, pool};
use rsx_devices::{Device, execute};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<i64>());
    let mut next = |default: i64| args.next().and_then(Result::ok).unwrap_or(default);
    let (layers, width, batch, time) = (next(4), next(256), next(8), next(128));
    let layers = layers as usize;
    let graph = models::gpt(models::Gpt { layers, batch, time, width, heads: 4, vocab: 4096 });
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
    let compiled = compile(graph, &CompileOptions { verify: false, ..CompileOptions::default() })?;
    let middle = begin.elapsed();
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
    println!("step {:.3} ms (best of {runs})", best * 1e3);
    let results = execute(&device, &*executable, &params, &scalars)?;
    let mut least: Vec<u64> = vec![u64::MAX; program.thunks.len()];
    let mut names = Vec::new();
    for _ in 0..5 {
        let times = executable.profile(&params, &scalars, &results)?;
        least.iter_mut().zip(&times).for_each(|(l, t)| *l = t.ns.min(*l));
        names = times.into_iter().map(|t| t.name).collect();
    }
    let mut by_name: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, &ns) in names.iter().zip(&least) {
        let e = by_name.entry(name).or_default();
        *e = (e.0 + ns, e.1 + 1);
    }
    let mut list: Vec<_> = by_name.into_iter().collect();
    list.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    let total: u64 = least.iter().sum();
    for (name, (ns, count)) in list.iter().take(30) {
        println!("{:9.1} us {:5.1} % {count:4} x {name}", *ns as f64 / 1e3, *ns as f64 / total as f64 * 100.0);
    }
    Ok(())
}
