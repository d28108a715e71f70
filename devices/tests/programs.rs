//! Whole programs against the interpreter: samples of every op and random graphs through the compiler and the CPU device.
mod common;

use common::{targets, tolerance, ulps};
use rsx_compiler::interp::{Num, Tensor, eval};
use rsx_compiler::ir::{Attrs, Builder, ConvDims, DType, Graph, OpKind, ParamKind, TensorType, WindowDim, decode_f64};
use rsx_compiler::kernel::bits;
use rsx_compiler::samples::{Sample, arguments, random_graph, samples, with_rounding_noise};
use rsx_compiler::{CompileOptions, compile, dump};
use rsx_devices::cpu::target::Target;
use rsx_devices::cpu::{CpuDevice, pool};
use rsx_devices::memory::MemoryPool;
use rsx_devices::{Buffer, Device, DeviceError, execute};
use std::sync::Arc;
use std::time::Instant;

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

/// The first element that differs by more than rounding does; `spread`: how far it may be off in any case.
fn difference(got: &[u8], want: &Tensor, spread: Option<&[f64]>) -> Option<String> {
    let dtype = want.ty.dtype;
    let size = dtype.size();
    for i in 0..want.ty.numel() as usize {
        let (g, w) = (&got[i * size..(i + 1) * size], &want.bytes[i * size..(i + 1) * size]);
        if g == w {
            continue;
        }
        let (gv, wv) = (decode_f64(dtype, g), decode_f64(dtype, w));
        let near = gv.is_finite() && wv.is_finite() && (gv - wv).abs() <= scale(dtype) * (wv.abs() + 0.25);
        let near = near || spread.is_some_and(|s| (gv - wv).abs() <= s[i]);
        if !dtype.is_float() || (!near && ulps(dtype, gv, wv) > tolerance(dtype)) {
            return Some(format!("element {i} of {}: {gv:e}, expected {wv:e}", want.ty));
        }
    }
    None
}

/// How far each element of result `n` moves when every op is off by up to what kernels are tested to: some graphs magnify
/// the rounding of their ops, and only those elements may be off by more.
fn spread(s: &Sample, n: usize, want: &Tensor) -> Vec<f64> {
    let want = want.to_f64();
    let mut most = vec![0f64; want.len()];
    for seed in 0..24 {
        let Ok(noisy) = with_rounding_noise(s, seed, |dtype| tolerance(dtype) as usize) else { break };
        for (m, (x, w)) in most.iter_mut().zip(noisy[n].to_f64().iter().zip(&want)) {
            *m = m.max((x - w).abs());
        }
    }
    most
}

fn buffer(device: &dyn Device, bytes: &[u8]) -> Buffer {
    let b = device.allocate(bytes.len()).unwrap();
    b.write(0, bytes).unwrap();
    b
}

fn run(
    device: &dyn Device,
    graph: &Graph,
    args: &[Tensor],
    options: &CompileOptions,
) -> Result<(Vec<Vec<u8>>, String), String> {
    let compiled = compile(graph.clone(), options).map_err(|e| e.to_string())?;
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
    check_with(s, targets, &CompileOptions::default(), failures);
}

fn check_with(s: &Sample, targets: &[Target], options: &CompileOptions, failures: &mut Vec<String>) {
    let Ok(want) = eval(&s.graph, &s.args) else { return };
    for &target in targets {
        let device = CpuDevice::with(MemoryPool::new(None), target);
        let what = format!("{} {}/{}", s.name, target.level.name(), target.vector_bytes);
        match run(&device, &s.graph, &s.args, options) {
            Err(e) => failures.push(format!("{what}: {e}\n{}", s.graph)),
            Ok((got, text)) => {
                for (n, (g, w)) in got.iter().zip(&want).enumerate() {
                    let apart = difference(g, w, None).is_some();
                    if let Some(d) = apart.then(|| difference(g, w, Some(&spread(s, n, w)))).flatten() {
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

#[test]
fn samples_of_every_op() {
    let mut failures = Vec::new();
    let only = std::env::var("RSX_ONLY").ok();
    for &kind in OpKind::ALL {
        for s in samples(kind) {
            if only.as_ref().is_none_or(|o| s.name.contains(o.as_str())) {
                check(&s, &[Target::host()], &mut failures);
            }
        }
    }
    report(failures);
}

#[path = "../../compiler/tests/models/mod.rs"]
mod models;

/// Products and convolutions whose results have few elements or one, with what follows them fused.
#[test]
fn epilogues_of_small_results() {
    let mut failures = Vec::new();
    for (m, n) in [(1, 1), (1, 5), (5, 1), (3, 70)] {
        let mut b = Builder::new("small");
        let f32 = |d: &[i64]| TensorType::new(DType::F32, d);
        let x = b.parameter(f32(&[m, 40]), ParamKind::Tensor);
        let w = b.parameter(f32(&[40, n]), ParamKind::Tensor);
        let bias = b.parameter(f32(&[n]), ParamKind::Tensor);
        let y = b.matmul(x, w);
        let wide = b.broadcast_in_dim(bias, [m, n], [1]);
        let y = b.add(y, wide);
        let y = b.unary(OpKind::Logistic, y);
        let image = b.parameter(f32(&[1, 2, m, n]), ParamKind::Tensor);
        let point = b.parameter(f32(&[1, 2, 1, 1]), ParamKind::Tensor);
        let z = b.convolution(image, point, vec![WindowDim::UNIT; 2], ConvDims::channels_first(2), 1, 1);
        let z = b.unary(OpKind::Tanh, z);
        let graph = b.finish(vec![y, z]).unwrap();
        let args = arguments(&graph, 3, 4);
        let sample = Sample { name: format!("{m}x{n}"), graph, args };
        check(&sample, &targets(), &mut failures);
    }
    report(failures);
}

/// `RSX_COUNT` random graphs from number `RSX_SEED` on: 300 unless said, thousands by night. A long run tells on standard
/// error how far it is every few seconds, and each disagreement when it is found. Nearly all of the time goes to LLVM:
/// `RSX_LLVM_LEVEL=none` halves it.
#[test]
fn random_graphs() {
    let mut failures = Vec::new();
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (first, count) = (number("RSX_SEED", 0), number("RSX_COUNT", 300));
    let list = targets();
    let (begin, mut told) = (Instant::now(), Instant::now());
    for seed in first..first + count {
        let size = 4 + (seed % 40) as usize;
        let target = list[seed as usize % list.len()];
        // Some are squeezed into no memory at all.
        let mut options = CompileOptions::default();
        options.remat.memory_limit = (seed % 5 == 0).then_some(0);
        let known = failures.len();
        check_with(&random_graph(seed, size), &[target], &options, &mut failures);
        for f in &failures[known..] {
            eprintln!("seed {seed}: {f}");
        }
        if told.elapsed().as_secs() >= 5 {
            told = Instant::now();
            let (done, seconds) = (seed - first + 1, begin.elapsed().as_secs_f64());
            let rate = done as f64 / seconds;
            eprintln!("{done} of {count}, seed {seed}: {rate:.1}/s, {} failures, {seconds:.0} s", failures.len());
        }
    }
    report(failures);
}

/// A dump has LLVM IR and assembly of every kernel, and its page links them.
#[test]
fn dumps_show_machine_code() {
    let directory = std::env::temp_dir().join(format!("rsx-dump-{}", std::process::id()));
    let options = CompileOptions { dump_to: Some(directory.clone()), ..CompileOptions::default() };
    let device = CpuDevice::with(MemoryPool::new(None), Target::host());
    let program = compile(models::mlp(2, 4, 12), &options).unwrap().program;
    let program = Arc::new(program);
    device.compile(program.clone()).unwrap();
    let files: Vec<String> =
        std::fs::read_dir(&directory).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let page = files.iter().find(|f| f.ends_with(".html") && *f != "index.html").unwrap();
    let (page, index) = (read(page), (page.as_str(), read("index.html")));
    assert!(index.1.contains(&format!("href=\"{}\"", index.0)), "{}", index.1);
    for (n, spec) in program.kernels.iter().enumerate() {
        for (ext, text) in [("ll", "define void @"), ("s", ".text")] {
            let end = format!("kernel{n:02}.{}.{ext}", spec.name);
            let file = files.iter().find(|f| f.ends_with(&end)).unwrap_or_else(|| panic!("no {end} in {files:?}"));
            assert!(page.contains(&format!("href=\"{file}\"")), "{file} is not linked");
            let content = read(file);
            assert!(content.contains(text), "{file}: {content}");
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Arguments for a training step of one of the models; integers are below 100.
fn step_arguments(graph: &Graph) -> Vec<Tensor> {
    let mut state = 5u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut scalars = [1e-2, 0.9, 0.999, 1e-8, 0.01].into_iter();
    let value = |p: &rsx_compiler::ir::Param| -> Tensor {
        let numbers = (0..p.ty.numel()).map(|_| match (p.kind, p.ty.dtype) {
            (ParamKind::Scalar, _) => Num::F(scalars.next().unwrap_or(1.0)),
            (_, DType::I64) => Num::I((next() * 100.0) as i128),
            _ => Num::F(next() * 0.2 - 0.05),
        });
        Tensor::from_nums(&p.ty, numbers.collect::<Vec<_>>())
    };
    graph.params.iter().map(value).collect()
}

/// Whole training steps, with work memory planned and without: the same bits.
#[test]
fn planned_work_memory_changes_nothing() {
    let graph = models::gpt(models::Gpt { layers: 2, batch: 2, time: 192, width: 192, heads: 3, vocab: 101 });
    let device = CpuDevice::with(MemoryPool::new(None), Target::host());
    let args = step_arguments(&graph);
    let options = |memory| CompileOptions { memory, verify: true, ..CompileOptions::default() };
    let (without, _) = run(&device, &graph, &args, &options(None)).unwrap();
    let (with, text) = run(&device, &graph, &args, &options(device.plans())).unwrap();
    assert!(text.contains("// work slab+"), "{text}");
    assert!(with == without);
    let memory = |o: &CompileOptions| *compile(graph.clone(), o).unwrap().memory_analysis();
    let (with, without) = (memory(&options(device.plans())), memory(&options(None)));
    assert!(with.work_bytes > 0 && with.temp_bytes >= without.temp_bytes);
    // Most of it lies where values lay or will lie.
    assert!(with.temp_bytes <= without.temp_bytes + with.work_bytes, "{with:?} {without:?}");
}

/// Small thunks side by side and one after the other: the same bits.
#[test]
fn waves_change_nothing() {
    let graph = models::gpt(models::Gpt { layers: 3, batch: 2, time: 32, width: 64, heads: 2, vocab: 101 });
    let device = CpuDevice::with(MemoryPool::new(None), Target::host());
    let args = step_arguments(&graph);
    let threads = pool::num_threads();
    pool::set_num_threads(1);
    let (serial, _) = run(&device, &graph, &args, &CompileOptions::default()).unwrap();
    pool::set_num_threads(threads);
    for _ in 0..20 {
        let (parallel, _) = run(&device, &graph, &args, &CompileOptions::default()).unwrap();
        assert!(parallel == serial);
    }
}

/// Thousands of ops, each of the one before: nothing that handles them may nest as deep. 0-d ones took a thread's stack.
#[test]
fn long_chains_do_not_nest() {
    let mut failures = Vec::new();
    for dims in [&[][..], &[1], &[3, 40]] {
        let mut b = rsx_compiler::ir::Builder::new("chain");
        let ty = TensorType::new(DType::F32, dims);
        let (x, y) = (b.parameter(ty.clone(), ParamKind::Tensor), b.parameter(ty.clone(), ParamKind::Tensor));
        let mut z = x;
        for n in 0..6000 {
            let kind = if n % 2 == 0 { OpKind::Add } else { OpKind::Maximum };
            z = b.op(kind, Attrs::None, &[z, y], std::slice::from_ref(&ty));
        }
        let n = ty.numel() as usize;
        let args = [0.0, 1.0].map(|v| Tensor::from_f64(&ty, &vec![v; n])).to_vec();
        let sample = Sample { name: format!("chain {dims:?}"), graph: b.finish(vec![z]).unwrap(), args };
        check(&sample, &targets(), &mut failures);
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Whole training steps.
#[test]
fn models_train() {
    let mut failures = Vec::new();
    let gpt = models::gpt(models::Gpt { layers: 2, batch: 2, time: 9, width: 24, heads: 3, vocab: 37 });
    let mlp = models::mlp(3, 5, 20);
    for (name, graph) in [("gpt", gpt), ("mlp", mlp)] {
        let mut scalars = [1e-2, 0.9, 0.999, 1e-8, 0.01].into_iter();
        let mut state = 1u64;
        let args = graph
            .params
            .iter()
            .map(|p| {
                let n = p.ty.numel() as usize;
                let mut next = || {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 40) as f64 / (1u64 << 24) as f64
                };
                match p.kind {
                    ParamKind::Scalar => Tensor::from_f64(&p.ty, &[scalars.next().unwrap_or(1.0)]),
                    _ if p.ty.dtype.is_float() => Tensor::from_f64(&p.ty, &(0..n).map(|_| next()).collect::<Vec<_>>()),
                    _ => Tensor::from_i64(&p.ty, &(0..n).map(|_| (next() * 30.0) as i64).collect::<Vec<_>>()),
                }
            })
            .collect();
        let sample = Sample { name: name.to_owned(), graph, args };
        check(&sample, &targets(), &mut failures);
        let mut squeezed = CompileOptions::default();
        squeezed.remat.memory_limit = Some(0);
        check_with(&sample, &[Target::host()], &squeezed, &mut failures);
    }
    report(failures);
}
