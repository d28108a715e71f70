//! Kernels of many sizes share code: results against the interpreter and, bit for bit, against code for the exact size;
//! and how often code is generated.
//!
//! One test, since what is known of other sizes is the process's own.
mod common;

use rsx_compiler::interp::eval;
use rsx_compiler::ir::*;
use rsx_compiler::program::KernelSpec;
use rsx_devices::cpu::generic;
use rsx_devices::cpu::jit::Origin;
use rsx_devices::cpu::kernel::Kernel;
use rsx_devices::cpu::target::{Level, Target};
use rsx_devices::store::DiskStore;
use std::sync::Arc;

fn param(b: &mut Builder, dtype: DType, dims: &[i64]) -> Value {
    b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor)
}

/// A body for a size.
type Body = fn(&mut Builder, i64) -> Vec<Value>;

fn flat(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[n]), param(b, DType::F32, &[n]));
    let s = b.mul(x, y);
    vec![b.unary(OpKind::Tanh, s)]
}

/// Elements narrower and wider than most.
fn mixed(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::BF16, &[n]), param(b, DType::F64, &[n]));
    let x = b.convert(x, DType::F64);
    let s = b.add(x, y);
    let zero = b.full_like(s, 0.0);
    let positive = b.compare(CmpDir::Gt, s, zero);
    let half = b.convert(s, DType::F16);
    vec![positive, half]
}

fn bias(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[5, n]), param(b, DType::F32, &[n]));
    let y = b.broadcast_in_dim(y, [5, n], [1]);
    vec![b.add(x, y)]
}

fn rows(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[n, 24]), param(b, DType::F32, &[24]));
    let y = b.broadcast_in_dim(y, [n, 24], [1]);
    vec![b.add(x, y)]
}

/// Few rows, so long that each is cut into blocks.
fn long_rows(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[3, n]), param(b, DType::F32, &[n]));
    let y = b.broadcast_in_dim(y, [3, n], [1]);
    vec![b.mul(x, y)]
}

fn softmax(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 3 * n]);
    let m = b.reduce(ReduceKind::Max, x, &[1]);
    let m = b.broadcast_in_dim(m, [n, 3 * n], [0]);
    let d = b.sub(x, m);
    let e = b.unary(OpKind::Exp, d);
    let s = b.reduce(ReduceKind::Sum, e, &[1]);
    let s = b.broadcast_in_dim(s, [n, 3 * n], [0]);
    vec![b.div(e, s)]
}

/// Rows of two loops.
fn row_norm(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[4, n, 24]);
    let y = param(b, DType::F32, &[24, n]);
    let y = b.transpose(y, [1, 0]);
    let y = b.broadcast_in_dim(y, [4, n, 24], [1, 2]);
    let x = b.add(x, y);
    let q = b.mul(x, x);
    let s = b.reduce(ReduceKind::Sum, q, &[1, 2]);
    let s = b.unary(OpKind::Sqrt, s);
    let s = b.broadcast_in_dim(s, [4, n, 24], [0]);
    vec![b.div(x, s)]
}

fn any(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::I32, &[6, n]);
    let nine = b.full_like(x, 8.0);
    let c = b.compare(CmpDir::Ge, x, nine);
    vec![b.reduce(ReduceKind::Or, c, &[1]), b.reduce(ReduceKind::And, c, &[1])]
}

/// The mean of each column, whose divisor is a constant of the body.
fn column_mean(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 24]);
    let s = b.reduce(ReduceKind::Sum, x, &[0]);
    let k = b.full_like(s, 1.0 / n as f64);
    vec![b.mul(s, k)]
}

/// Sums over rows of any length, with what is summed.
fn columns(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[9, n]);
    let e = b.unary(OpKind::Exp, x);
    vec![b.reduce(ReduceKind::Sum, e, &[0]), b.reduce(ReduceKind::Max, e, &[0]), e]
}

/// Enough points for several parts: 2 to 32 of them.
fn parts(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 48]);
    let s = b.reduce(ReduceKind::Sum, x, &[0]);
    let k = b.full_like(s, 1.0 / n as f64);
    vec![b.mul(s, k)]
}

/// One sum of all, in several parts.
fn total(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[2, n]);
    let q = b.mul(x, x);
    vec![b.reduce(ReduceKind::Sum, q, &[1])]
}

/// Bias and a transposed read, in heads: indices that are taken apart.
fn heads(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 4, 16]);
    let y = param(b, DType::F32, &[4, n, 16]);
    let t = b.transpose(x, [1, 0, 2]);
    vec![b.add(t, y)]
}

/// A transposed read in tiles.
fn transposed(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[n, 40]), param(b, DType::F32, &[40, n]));
    let t = b.transpose(x, [1, 0]);
    vec![b.add(t, y)]
}

/// The same with tiles along the size that varies.
fn transposed_rows(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[40, n]), param(b, DType::F32, &[n, 40]));
    let t = b.transpose(x, [1, 0]);
    vec![b.add(t, y)]
}

/// Positions and a mask made of them.
fn causal(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, n]);
    let (r, c) = (b.iota(&TensorType::new(DType::I64, [n, n]), 0), b.iota(&TensorType::new(DType::I64, [n, n]), 1));
    let keep = b.compare(CmpDir::Ge, r, c);
    let minus = b.full_like(x, f64::NEG_INFINITY);
    vec![b.select(keep, x, minus)]
}

/// Bounds inside of rows.
fn joined(b: &mut Builder, n: i64) -> Vec<Value> {
    let (x, y) = (param(b, DType::F32, &[7, n]), param(b, DType::F32, &[7, 32]));
    let joined = b.concatenate(&[x, y], 1);
    let zero = b.scalar(DType::F32, 0.5);
    vec![b.pad(joined, zero, &[0, 8], &[0, n], &[0, 0])]
}

/// Every third element, backwards, of merged rows.
fn strided(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[6, 4 * n]);
    let r = b.reverse(x, &[1]);
    let s = b.slice_dim(r, 1, 1, 4 * n, 3);
    let n = b.dims(s)[1];
    let y = param(b, DType::F32, &[n, 6]);
    let y = b.reshape(y, [6, n]);
    vec![b.add(s, y)]
}

/// Compiles `body` for each of `sizes`, checks the results against the interpreter's, and returns them with the number of
/// kernels that needed code of their own.
fn run(name: &str, kind: FusionKind, body: Body, sizes: &[i64], target: Target) -> (Vec<Vec<Vec<u8>>>, usize) {
    let (mut count, mut all) = (0, Vec::new());
    for &n in sizes {
        let s = common::sample(name, |b| body(b, n));
        let want = eval(&s.graph, &s.args).expect("it evaluates");
        let (origin, got) = common::run(kind, &s, target).unwrap_or_else(|e| panic!("{name} of size {n}: {e}"));
        count += usize::from(origin == Origin::Compiled);
        for (g, w) in got.iter().zip(&want) {
            // Relative to the largest element: sums of many cancel.
            let largest = w.to_f64().iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
            let size = w.ty.dtype.size();
            for (i, want) in w.to_f64().into_iter().enumerate() {
                let got = decode_f64(w.ty.dtype, &g[i * size..(i + 1) * size]);
                let close = got == want || (got - want).abs() <= 1e-6 * largest;
                assert!(close, "{name} of size {n} for {target:?}: element {i} is {got}, not {want}");
            }
        }
        all.push(got);
    }
    (all, count)
}

/// Where the code of `body` for size `n` came from, in a process that knows what is in `store` only.
fn in_a_new_process(body: Body, n: i64, store: &Arc<DiskStore>) -> Origin {
    generic::forget();
    let s = common::sample("stored", |b| body(b, n));
    let spec = KernelSpec { name: s.name, kind: FusionKind::Row, body: Arc::new(s.graph) };
    Kernel::compile(&spec, Target::host(), false, Some(store)).expect("it compiles").origin
}

fn templates_are_stored() {
    let directory = std::env::temp_dir().join(format!("rsx-sizes-{}", std::process::id()));
    let store = Arc::new(DiskStore::open(&directory, 1 << 20).expect("a store"));
    let body: Body = |b, n| softmax(b, n + 100);
    assert_eq!(in_a_new_process(body, 3, &store), Origin::Compiled);
    // Another size in the same process makes code for all.
    let s = common::sample("stored", |b| body(b, 5));
    let spec = KernelSpec { name: s.name, kind: FusionKind::Row, body: Arc::new(s.graph) };
    let second = Kernel::compile(&spec, Target::host(), false, Some(&store)).expect("it compiles");
    assert_eq!((second.origin, second.is_sized()), (Origin::Compiled, true));
    // The first size is found as it is, a new one through the template.
    assert_ne!(in_a_new_process(body, 3, &store), Origin::Compiled);
    assert_eq!(in_a_new_process(body, 7, &store), Origin::Store);
    assert_eq!(store.stats().damaged, 0);
    std::fs::remove_dir_all(directory).expect("it goes");
}

#[test]
fn one_code_for_many_sizes() {
    templates_are_stored();
    use FusionKind::{Column, Loop, Row};
    // In an order in which neighbours have little in common.
    let shuffled = |from: i64, to: i64, step: usize| -> Vec<i64> {
        let n = to - from + 1;
        (0..n).map(|i| from + i * 37 % n).step_by(step).collect()
    };
    let small = shuffled(2, 70, 1);
    let lengths = shuffled(64, 464, 13);
    let (blocks, points) = (shuffled(9000, 9100, 9), shuffled(40_000, 100_000, 3001));
    // Classes: loops too short for vectors are merged with what is around them; loops shorter than two, and than four
    // vectors are unrolled less. Each has a first size and a second that makes code for all others.
    let cases: [(&str, FusionKind, Body, &[i64], usize); 21] = [
        ("flat", Loop, flat, &small, 6),
        ("flat", Loop, flat, &lengths, 2),
        ("mixed", Loop, mixed, &small, 6),
        ("bias", Loop, bias, &small, 12),
        ("bias", Loop, bias, &lengths, 2),
        ("rows", Loop, rows, &small, 2),
        ("long_rows", Loop, long_rows, &blocks, 2),
        ("softmax", Row, softmax, &small, 6),
        ("softmax", Row, softmax, &lengths[..8], 2),
        ("row_norm", Row, row_norm, &small, 2),
        ("any", Row, any, &small, 6),
        ("column_mean", Column, column_mean, &small, 2),
        ("columns", Column, columns, &small, 6),
        ("parts", Column, parts, &shuffled(400, 24_000, 2411), 2),
        ("total", Row, total, &points, 2),
        ("heads", Loop, heads, &small, 2),
        ("transposed", Loop, transposed, &small, 6),
        ("transposed_rows", Loop, transposed_rows, &small, 4),
        ("causal", Loop, causal, &small, 12),
        ("joined", Loop, joined, &lengths, 3),
        ("strided", Loop, strided, &lengths, 2),
    ];
    let mut targets = vec![Target::host()];
    if Level::detect() == Level::Avx2 {
        targets.push(Target { level: Level::Avx2, vector_bytes: 64 });
    }
    for target in targets {
        for (name, kind, body, sizes, most) in cases {
            generic::forget();
            let (shared, count) = run(name, kind, body, sizes, target);
            eprintln!("{name}: {count} kernels for {} sizes", sizes.len());
            // Tiles of four lanes are full, unrolled or not at more of these small sizes.
            let most = if target.level == Level::Portable { 2 * most } else { most };
            assert!(count <= most, "{name}: {count} kernels for {} sizes, {target:?}", sizes.len());
            // Code for exactly these sizes computes the same bits.
            for (n, want) in sizes.iter().zip(&shared).step_by(7) {
                generic::forget();
                let (exact, _) = run(name, kind, body, &[*n], target);
                assert!(exact[0] == *want, "{name} of size {n}: other bits");
            }
        }
    }
}
