//! Speed of generated kernels against the memory bandwidth measured in the same run.
//!
//! `cargo run --release -p rsx-devices --example kernel_bench [name part]`; `RSX_NUM_THREADS` sets the threads.
use rsx_compiler::ir::*;
use rsx_compiler::program::KernelSpec;
use rsx_compiler::samples::gelu_tanh;
use rsx_devices::cpu::extern_math::Fault;
use rsx_devices::cpu::kernel::Kernel;
use rsx_devices::cpu::{pool, target::Target};
use rsx_devices::memory::{Block, MemoryPool};
use std::sync::Arc;
use std::time::Instant;

struct Case {
    name: String,
    spec: KernelSpec,
    /// Result r is written into parameter p.
    alias: Vec<(usize, usize)>,
    /// Bytes that must be read and written.
    bytes: u64,
}

fn case(name: &str, kind: FusionKind, bytes: u64, build: impl FnOnce(&mut Builder) -> Vec<Value>) -> Case {
    let mut b = Builder::new(name);
    let results = build(&mut b);
    let body = Arc::new(b.finish(results).expect("the body is well typed"));
    Case { name: name.to_owned(), spec: KernelSpec { name: name.into(), kind, body }, alias: Vec::new(), bytes }
}

fn param(b: &mut Builder, dims: &[i64]) -> Value {
    b.parameter(TensorType::new(DType::F32, dims), ParamKind::Tensor)
}

fn copy(n: i64) -> Case {
    case(&format!("copy {n}"), FusionKind::Loop, 8 * n as u64, |b| {
        let x = param(b, &[n]);
        vec![b.unary(OpKind::Negate, x)]
    })
}

/// tanh-gelu of x + bias, as PyTorch decomposes it.
fn bias_gelu(rows: i64, c: i64) -> Case {
    case(&format!("bias+gelu {rows}x{c}"), FusionKind::Loop, 8 * (rows * c) as u64, |b| {
        let (x, bias) = (param(b, &[rows, c]), param(b, &[c]));
        let bias = b.broadcast_to(bias, [rows, c]);
        let x = b.add(x, bias);
        vec![gelu_tanh(b, x)]
    })
}

fn layer_norm(rows: i64, c: i64) -> Case {
    case(&format!("layer norm {rows}x{c}"), FusionKind::Row, 8 * (rows * c) as u64, |b| {
        let x = param(b, &[rows, c]);
        vec![norm(b, x, rows, c)]
    })
}

/// The tail of benches/workloads.py: bias, tanh-gelu, layer norm.
fn tail(rows: i64, c: i64) -> Case {
    case(&format!("tail {rows}x{c}"), FusionKind::Row, 8 * (rows * c) as u64, |b| {
        let (x, bias) = (param(b, &[rows, c]), param(b, &[c]));
        let bias = b.broadcast_to(bias, [rows, c]);
        let x = b.add(x, bias);
        let x = gelu_tanh(b, x);
        vec![norm(b, x, rows, c)]
    })
}

/// Layer norm of `x`, with weight and bias as further parameters.
fn norm(b: &mut Builder, x: Value, rows: i64, c: i64) -> Value {
    let (w, bias) = (param(b, &[c]), param(b, &[c]));
    let spread = |b: &mut Builder, v: Value| b.broadcast_in_dim(v, [rows, c], [0]);
    let mean = |b: &mut Builder, v: Value| {
        let s = b.reduce(ReduceKind::Sum, v, &[1]);
        let n = b.full_like(s, 1.0 / c as f64);
        b.mul(s, n)
    };
    let m = mean(b, x);
    let m = spread(b, m);
    let d = b.sub(x, m);
    let sq = b.mul(d, d);
    let v = mean(b, sq);
    let eps = b.full_like(v, 1e-5);
    let v = b.add(v, eps);
    let r = b.unary(OpKind::Rsqrt, v);
    let r = spread(b, r);
    let y = b.mul(d, r);
    let (w, bias) = (b.broadcast_to(w, [rows, c]), b.broadcast_to(bias, [rows, c]));
    let y = b.mul(y, w);
    b.add(y, bias)
}

fn softmax(rows: i64, c: i64) -> Case {
    case(&format!("softmax {rows}x{c}"), FusionKind::Row, 8 * (rows * c) as u64, |b| {
        let x = param(b, &[rows, c]);
        let m = b.reduce(ReduceKind::Max, x, &[1]);
        let m = b.broadcast_in_dim(m, [rows, c], [0]);
        let d = b.sub(x, m);
        let e = b.unary(OpKind::Exp, d);
        let s = b.reduce(ReduceKind::Sum, e, &[1]);
        let s = b.broadcast_in_dim(s, [rows, c], [0]);
        vec![b.div(e, s)]
    })
}

fn adamw(n: i64) -> Case {
    let mut case = case(&format!("AdamW {n}"), FusionKind::Loop, 28 * n as u64, |b| {
        let (p, g, m, v) = (param(b, &[n]), param(b, &[n]), param(b, &[n]), param(b, &[n]));
        let scalar = |b: &mut Builder| {
            let s = b.parameter(TensorType::scalar(DType::F64), ParamKind::Scalar);
            let s = b.convert(s, DType::F32);
            b.broadcast_to(s, [n])
        };
        let (decay, one_b1, b2, one_b2, step, c2, eps) =
            (scalar(b), scalar(b), scalar(b), scalar(b), scalar(b), scalar(b), scalar(b));
        let p = b.mul(p, decay);
        let d = b.sub(g, m);
        let d = b.mul(d, one_b1);
        let m = b.add(m, d);
        let g2 = b.mul(g, g);
        let g2 = b.mul(g2, one_b2);
        let v = b.mul(v, b2);
        let v = b.add(v, g2);
        let r = b.unary(OpKind::Sqrt, v);
        let r = b.div(r, c2);
        let r = b.add(r, eps);
        let q = b.div(m, r);
        let q = b.mul(q, step);
        let p = b.sub(p, q);
        vec![p, m, v]
    });
    case.alias = vec![(0, 0), (1, 2), (2, 3)];
    case
}

fn add_transposed(n: i64) -> Case {
    case(&format!("a + b' {n}x{n}"), FusionKind::Loop, 12 * (n * n) as u64, |b| {
        let (x, y) = (param(b, &[n, n]), param(b, &[n, n]));
        let y = b.transpose(y, [1, 0]);
        vec![b.add(x, y)]
    })
}

fn column_sum(rows: i64, c: i64) -> Case {
    case(&format!("column sum {rows}x{c}"), FusionKind::Column, 4 * (rows * c) as u64, |b| {
        let x = param(b, &[rows, c]);
        vec![b.reduce(ReduceKind::Sum, x, &[0])]
    })
}

fn channel_sum(n: i64, c: i64, hw: i64) -> Case {
    case(&format!("channel sum {n}x{c}x{hw}"), FusionKind::Column, 4 * (n * c * hw) as u64, |b| {
        let x = param(b, &[n, c, hw]);
        vec![b.reduce(ReduceKind::Sum, x, &[0, 2])]
    })
}

fn dropout(n: i64) -> Case {
    case(&format!("dropout {n}"), FusionKind::Loop, 8 * n as u64, |b| {
        let x = param(b, &[n]);
        let mut int = || b.parameter(TensorType::scalar(DType::I64), ParamKind::Scalar);
        let (seed, offset) = (int(), int());
        let bits = b.rng_bits(seed, offset, &[n], 0);
        let limit = b.full_like(bits, 429_496_729.0);
        let keep = b.compare(CmpDir::Ge, bits, limit);
        let (zero, scale) = (b.full_like(x, 0.0), b.full_like(x, 1.0 / 0.9));
        let y = b.mul(x, scale);
        vec![b.select(keep, y, zero)]
    })
}

fn bf16_gelu(n: i64) -> Case {
    case(&format!("bf16 gelu {n}"), FusionKind::Loop, 4 * n as u64, |b| {
        let x = b.parameter(TensorType::new(DType::BF16, [n]), ParamKind::Tensor);
        let x = b.convert(x, DType::F32);
        let y = gelu_tanh(b, x);
        vec![b.convert(y, DType::BF16)]
    })
}

/// Seconds: with one thread those that this thread had the processor (so that others on the machine count less),
/// otherwise those on the clock.
fn now() -> f64 {
    if pool::num_threads() == 1 {
        return thread_time();
    }
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

fn thread_time() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the result is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// Fastest of several runs, seconds, and the compile's milliseconds of processor time.
fn measure(c: &Case, memory: &MemoryPool) -> (f64, f64) {
    let begin = thread_time();
    let kernel = Kernel::compile(&c.spec, Target::host(), !c.alias.is_empty(), None).expect("the kernel compiles");
    let compile = (thread_time() - begin) * 1e3;
    let body = &c.spec.body;
    let mut blocks: Vec<Block> = Vec::new();
    let mut scalars = Vec::new();
    for p in &body.params {
        match p.kind {
            ParamKind::Tensor => {
                let b = memory.alloc_zeroed(p.ty.bytes() as usize).expect("memory");
                let n = p.ty.numel() as usize;
                if p.ty.dtype == DType::F32 {
                    for i in 0..n {
                        // SAFETY: the block holds n floats.
                        unsafe { b.as_ptr().cast::<f32>().add(i).write(((i * 7919) % 1000) as f32 / 250.0 - 1.5) };
                    }
                }
                blocks.push(b);
            }
            ParamKind::Scalar if p.ty.dtype == DType::F64 => scalars.push(0.9f64.to_bits()),
            ParamKind::Scalar => scalars.push(7),
        }
    }
    let n_inputs = blocks.len();
    let mut args: Vec<*mut u8> = blocks.iter().map(Block::as_ptr).collect();
    for (r, ty) in body.result_types().iter().enumerate() {
        match c.alias.iter().find(|a| a.0 == r) {
            Some(&(_, p)) => args.push(args[p]),
            None => {
                blocks.push(memory.alloc_zeroed(ty.bytes() as usize).expect("memory"));
                args.push(blocks[blocks.len() - 1].as_ptr());
            }
        }
    }
    let fault = Fault::default();
    let (mut best, begin) = (f64::INFINITY, Instant::now());
    let mut runs = 0;
    while runs < 3 || (begin.elapsed().as_secs_f64() < 0.7 && runs < 20_000) {
        let t = now();
        // SAFETY: the blocks are as large as the types say.
        unsafe { kernel.launch(&args, n_inputs, &scalars, memory, &fault) }.expect("the kernel runs");
        best = best.min(now() - t);
        runs += 1;
    }
    (best, compile)
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let memory = MemoryPool::new(None);
    let cases = [
        copy(1 << 14),
        copy(1 << 25),
        bias_gelu(32, 4096),
        bias_gelu(8192, 4096),
        tail(64, 2048),
        tail(4096, 2048),
        layer_norm(32, 4096),
        layer_norm(8192, 4096),
        layer_norm(32768, 256),
        softmax(32, 4096),
        softmax(8192, 4096),
        softmax(65536, 128),
        adamw(1 << 20),
        adamw(1 << 24),
        add_transposed(1024),
        add_transposed(4096),
        column_sum(8192, 4096),
        column_sum(65536, 64),
        channel_sum(32, 64, 3136),
        dropout(1 << 20),
        bf16_gelu(1 << 20),
    ];
    println!("kernel_bench level {}, {} threads", Target::host().level.name(), pool::num_threads());
    let mut bandwidth = f64::NAN;
    for c in &cases {
        let is_copy = c.name.starts_with("copy");
        if !is_copy && !c.name.contains(&filter) {
            continue;
        }
        if let Some(directory) = rsx_compiler::dump_directory() {
            let module = rsx_devices::cpu::kernel::generate(&c.spec, Target::host()).expect("the kernel generates");
            let path = directory.join(format!("{}.ll", c.name.replace([' ', '\''], "_")));
            std::fs::write(path, module.text.replace("KEY", "k")).expect("the dump is written");
            continue;
        }
        let (seconds, compile) = measure(c, &memory);
        let rate = c.bytes as f64 / seconds / 1e9;
        if is_copy {
            // The last copy is the large one.
            bandwidth = rate;
        }
        println!(
            "{:24} {:10.1} us {:7.1} GB/s {:5.2} of copy   compile {:6.1} ms",
            c.name,
            seconds * 1e6,
            rate,
            rate / bandwidth,
            compile
        );
    }
}
