//! Whole programs against the interpreter: samples of every op and random graphs through the compiler and the CPU device.
mod common;
#[path = "../../compiler/tests/models/mod.rs"]
mod models;

use common::{targets, tolerance, ulps};
use rsx_compiler::interp::{Tensor, eval};
use rsx_compiler::ir::{DType, Graph, OpKind, ParamKind, decode_f64};
use rsx_compiler::kernel::bits;
use rsx_compiler::samples::{Sample, random_graph, samples};
use rsx_compiler::{CompileOptions, compile, dump};
use rsx_devices::cpu::CpuDevice;
use rsx_devices::cpu::target::Target;
use rsx_devices::memory::MemoryPool;
use rsx_devices::{Buffer, Device, DeviceError, execute};
use std::sync::Arc;

/// Relative to the largest element: sums are rounded in another order than the interpreter's.
fn scale(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-14,
        DType::F32 => 4e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 0.0,
    }
}

fn difference(got: &[u8], want: &Tensor) -> Option<String> {
    let dtype = want.ty.dtype;
    let size = dtype.size();
    for i in 0..want.ty.numel() as usize {
        let (g, w) = (&got[i * size..(i + 1) * size], &want.bytes[i * size..(i + 1) * size]);
        if g == w {
            continue;
        }
        let (gv, wv) = (decode_f64(dtype, g), decode_f64(dtype, w));
        let near = gv.is_finite() && wv.is_finite() && (gv - wv).abs() <= scale(dtype) * (wv.abs() + 0.25);
        if !dtype.is_float() || (!near && ulps(dtype, gv, wv) > tolerance(dtype)) {
            return Some(format!("element {i} of {}: {gv:e}, expected {wv:e}", want.ty));
        }
    }
    None
}

fn buffer(device: &dyn Device, bytes: &[u8]) -> Buffer {
    let b = device.allocate(bytes.len()).unwrap();
    b.write(0, bytes).unwrap();
    b
}

fn run(device: &dyn Device, graph: &Graph, args: &[Tensor]) -> Result<(Vec<Vec<u8>>, String), String> {
    let compiled = compile(graph.clone(), &CompileOptions::default()).map_err(|e| e.to_string())?;
    let text = dump::program_text(&compiled.program);
    let program = Arc::new(compiled.program);
    let executable = device.compile(program.clone()).map_err(|e| format!("{e}\n{text}"))?;
    let (mut params, mut scalars) = (Vec::new(), Vec::new());
    for (p, a) in graph.params.iter().zip(args) {
        match p.kind {
            ParamKind::Tensor => params.push(buffer(device, &a.bytes)),
            ParamKind::Scalar => scalars.push(bits(&a.bytes)),
        }
    }
    let results = match execute(device, &*executable, &params, &scalars) {
        Ok(r) => r,
        // Samples have bad indices on purpose.
        Err(DeviceError::Index { index, size, .. }) if !(0..size).contains(&index) => return Ok((Vec::new(), text)),
        Err(e) => return Err(format!("{e}\n{text}")),
    };
    let types = graph.result_types();
    let read = |(b, t): (&Buffer, &rsx_compiler::ir::TensorType)| {
        let mut out = vec![0; t.bytes() as usize];
        b.read(0, &mut out).unwrap();
        out
    };
    Ok((results.iter().zip(&types).map(read).collect(), text))
}

fn check(s: &Sample, targets: &[Target], failures: &mut Vec<String>) {
    let Ok(want) = eval(&s.graph, &s.args) else { return };
    for &target in targets {
        let device = CpuDevice::with(MemoryPool::new(None), target);
        let what = format!("{} {}/{}", s.name, target.level.name(), target.vector_bytes);
        match run(&device, &s.graph, &s.args) {
            Err(e) => failures.push(format!("{what}: {e}\n{}", s.graph)),
            Ok((got, text)) => {
                for (n, (g, w)) in got.iter().zip(&want).enumerate() {
                    if let Some(d) = difference(g, w) {
                        failures.push(format!("{what}: result {n}: {d}\n{}\n{text}", s.graph));
                        break;
                    }
                }
            }
        }
    }
}

fn report(failures: Vec<String>) {
    let n = failures.len();
    let text: Vec<String> = failures.into_iter().take(8).collect();
    assert!(n == 0, "{n} failures\n{}", text.join("\n"));
}


use rsx_compiler::interp::{Num, Tensor as T2};
fn arguments(graph: &rsx_compiler::ir::Graph, bound: i64) -> Vec<T2> {
    let mut state = 1u64;
    let mut next = || { state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); state >> 33 };
    graph.params.iter().map(|p| {
        let nums: Vec<Num> = (0..p.ty.numel()).map(|_| match p.ty.dtype {
            d if d.is_float() => Num::F((next() % 1000) as f64 / 1000.0 + 0.05),
            DType::Bool => Num::B(next() % 2 == 0),
            _ => Num::I(i128::from(next() as i64 % bound)),
        }).collect();
        T2::from_nums(&p.ty, nums)
    }).collect()
}
#[test]
fn training_steps() {
    let mut failures = Vec::new();
    for (name, g) in [("mlp", models::mlp(3, 8, 16)), ("gpt", models::gpt(models::Gpt { layers: 2, batch: 2, time: 5, width: 8, heads: 2, vocab: 11 })), ("math", models::math_attention(2, 3, 8, 4)), ("math2", models::math_attention(2, 3, 32, 16)),("clip", models::clipped(&[&[64, 32], &[32], &[100,100]])),("gate", models::gated_mlp(16,32,64))] {
        let args = arguments(&g, 11);
        let s = Sample { name: name.into(), graph: g, args };
        check(&s, &[Target::host()], &mut failures);
    }
    for f in &mut failures { f.truncate(400); }
    report(failures);
}
