//! What keeping weights packed gains: programs run alternately on a device that keeps them and on one that does not.
//!
//! `cargo run --release -p rsx-devices --example prepack_bench [threads [graph in text form [bound of integers]]]`: without
//! a graph, linear layers and convolutions of inference.
use rsx_compiler::ir::{Builder, ConvDims, DType, Dims, DotDims, Graph, ParamKind, TensorType, WindowDim};
use rsx_compiler::samples::{arguments, split_arguments};
use rsx_compiler::{CompileOptions, compile, text};
use rsx_devices::cpu::target::Target;
use rsx_devices::cpu::{CpuDevice, pool};
use rsx_devices::memory::MemoryPool;
use rsx_devices::{Buffer, Device, Executable};
use std::sync::Arc;
use std::time::Instant;

/// A program with arguments and results in place.
struct Ready {
    executable: Arc<dyn Executable>,
    params: Vec<Buffer>,
    scalars: Vec<u64>,
    results: Vec<Buffer>,
}

impl Ready {
    fn new(graph: &Graph, pool: MemoryPool, bound: i64) -> Ready {
        let device = CpuDevice::with(pool, Target::host());
        let options = CompileOptions { memory: device.plans(), ..CompileOptions::default() };
        let program = Arc::new(compile(graph.clone(), &options).unwrap().program);
        let values = arguments(graph, 1, bound);
        let (tensors, scalars) = split_arguments(graph, &values);
        let buffer = |bytes: &[u8]| {
            let b = device.allocate(bytes.len()).unwrap();
            b.write(0, bytes).unwrap();
            b
        };
        let params: Vec<Buffer> = tensors.iter().map(|t| buffer(&t.bytes)).collect();
        let result = |r: &rsx_compiler::program::ResultSpec| match r.alias {
            Some(p) => params[p as usize].clone(),
            None => device.allocate(r.ty.bytes() as usize).unwrap(),
        };
        let results = program.results.iter().map(result).collect();
        let scalars = scalars.iter().map(|t| rsx_compiler::kernel::bits(&t.bytes)).collect();
        Ready { executable: device.compile(program).unwrap(), params, scalars, results }
    }

    fn run(&self) -> f64 {
        // The input, a float in layers alone, is new in every run.
        if self.params.len() == 2 {
            self.params[0].write(0, &[]).unwrap();
        }
        let start = Instant::now();
        self.executable.run(&self.params, &self.scalars, &self.results).unwrap();
        start.elapsed().as_secs_f64() * 1e6
    }
}

fn measure(name: &str, graph: &Graph, bound: i64) {
    let pool = MemoryPool::new(None);
    let kept = Ready::new(graph, pool.clone(), bound);
    let plain = Ready::new(graph, MemoryPool::new(Some(1 << 40)), bound);
    let first = (0..3).map(|_| (plain.run(), kept.run())).fold(f64::INFINITY, |best, t| best.min(t.0));
    let runs = ((0.4e6 / first) as usize).clamp(15, 2000);
    let (mut a, mut b): (Vec<f64>, Vec<f64>) = (0..runs).map(|_| (plain.run(), kept.run())).unzip();
    let median = |t: &mut Vec<f64>| {
        t.sort_by(f64::total_cmp);
        (t[t.len() / 2], t[0])
    };
    let ((a, a0), (b, b0)) = (median(&mut a), median(&mut b));
    let gain = |a: f64, b: f64| (a / b - 1.0) * 100.0;
    println!(
        "{name:<34} packed each time {a:9.1} us (best {a0:9.1}), kept {b:9.1} us (best {b0:9.1}): {:+5.1} % ({:+5.1} %), {} KiB kept",
        gain(a, b),
        gain(a0, b0),
        pool.stats().packed >> 10,
    );
}

fn graph(build: impl FnOnce(&mut Builder) -> rsx_compiler::ir::Value) -> Graph {
    let mut b = Builder::new("bench");
    let result = build(&mut b);
    b.finish(vec![result]).unwrap()
}

fn tensor(b: &mut Builder, dtype: DType, dims: &[i64]) -> rsx_compiler::ir::Value {
    b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor)
}

fn linear(dtype: DType, m: i64, n: i64, k: i64) {
    let graph = graph(|b| {
        let one = |d: i64| Dims::from_slice(&[d]);
        let (x, w) = (tensor(b, dtype, &[m, k]), tensor(b, dtype, &[n, k]));
        b.dot_general(x, w, DotDims { lhs_contract: one(1), rhs_contract: one(1), ..DotDims::default() }, dtype)
    });
    measure(&format!("linear {dtype} {m}x{n}x{k}"), &graph, 2);
}

fn convolution(n: i64, ci: i64, co: i64, hw: i64, k: i64, stride: i64) {
    let window = vec![WindowDim { size: k, stride, pad_lo: k / 2, pad_hi: k / 2, ..WindowDim::UNIT }; 2];
    let graph = graph(|b| {
        let (x, w) = (tensor(b, DType::F32, &[n, ci, hw, hw]), tensor(b, DType::F32, &[co, ci, k, k]));
        b.convolution(x, w, window, ConvDims::channels_first(2), 1, 1)
    });
    measure(&format!("conv n{n} {ci}->{co} {hw}x{hw} k{k} s{stride}"), &graph, 2);
}

fn main() {
    let mut args = std::env::args().skip(1);
    pool::set_num_threads(args.next().and_then(|s| s.parse().ok()).unwrap_or(1));
    if let Some(file) = args.next() {
        let bound = args.next().and_then(|s| s.parse().ok()).unwrap_or(2);
        for graph in text::parse_module(&std::fs::read_to_string(&file).unwrap()).unwrap() {
            measure(&graph.name, &graph, bound);
        }
        return;
    }
    for m in [1, 16, 32, 64, 128, 256, 1024] {
        for (n, k) in [(256, 256), (768, 256), (1024, 256), (256, 1024), (1024, 1024)] {
            linear(DType::F32, m, n, k);
        }
    }
    for m in [16, 64, 256] {
        linear(DType::F32, m, 4096, 4096);
        linear(DType::BF16, m, 1024, 1024);
    }
    for n in [1, 8] {
        convolution(n, 64, 64, 56, 3, 1);
        convolution(n, 64, 256, 56, 1, 1);
        convolution(n, 128, 128, 28, 3, 1);
        convolution(n, 256, 256, 14, 3, 1);
        convolution(n, 512, 512, 7, 3, 1);
    }
}
