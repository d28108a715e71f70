//! Generated kernels against the interpreter, at all levels: the samples of every op that kernels are made of.
mod common;

use common::{block, difference, run, sample, targets};
use rsx_compiler::interp::{self, Tensor};
use rsx_compiler::ir::{
    Attrs, Builder, Class, CmpDir, DType, FusionKind, Graph, OpKind, ParamKind, ReduceKind, TensorType, Value,
};
use rsx_compiler::program::KernelSpec;
use rsx_compiler::samples::{Sample, samples};
use rsx_devices::cpu::extern_math::Fault;
use rsx_devices::cpu::kernel::Kernel;
use rsx_devices::memory::{Block, MemoryPool};
use std::sync::Arc;

fn check(kind: FusionKind, s: &Sample, failures: &mut Vec<String>) {
    let want: Vec<Tensor> = match interp::eval(&s.graph, &s.args) {
        Ok(w) => w,
        Err(e) => return failures.push(format!("{}: interpreter: {e}", s.name)),
    };
    for target in targets() {
        let what = format!("{} {kind:?} {}/{}", s.name, target.level.name(), target.vector_bytes);
        match run(kind, s, target) {
            Err(e) => failures.push(format!("{what}: {e}")),
            Ok((_, got)) => {
                for (g, w) in got.iter().zip(&want) {
                    if let Some(d) = difference(g, w, 1.0) {
                        failures.push(format!("{what}: {d}"));
                    }
                }
            }
        }
    }
}

fn report(failures: Vec<String>) {
    let n = failures.len();
    let text: Vec<String> = failures.into_iter().take(40).collect();
    assert!(n == 0, "{n} failures\n{}", text.join("\n"));
}

fn is_loop(g: &Graph) -> bool {
    g.insts.iter().all(|i| match i.kind.class() {
        Class::Leaf | Class::Elementwise | Class::Movement | Class::Random => true,
        Class::Indexed => i.kind != OpKind::Scatter,
        _ => false,
    })
}

#[test]
fn samples_of_loop_ops() {
    let mut failures = Vec::new();
    let only = std::env::var("RSX_ONLY").ok();
    for &kind in OpKind::ALL {
        for s in samples(kind) {
            if is_loop(&s.graph) && only.as_ref().is_none_or(|o| s.name.contains(o.as_str())) {
                check(FusionKind::Loop, &s, &mut failures);
            }
        }
    }
    report(failures);
}

#[test]
fn samples_of_reduce() {
    let mut failures = Vec::new();
    for s in samples(OpKind::Reduce) {
        let trailing = s.graph.insts.iter().all(|i| match &i.attrs {
            Attrs::Reduce { dims, .. } => {
                let rank = s.graph.ty(i.operands[0]).rank() as i64;
                dims.iter().rev().zip((0..rank).rev()).all(|(&d, r)| d == r)
            }
            _ => true,
        });
        check(FusionKind::Column, &s, &mut failures);
        if trailing {
            check(FusionKind::Row, &s, &mut failures);
        }
    }
    report(failures);
}

fn param(b: &mut Builder, dtype: DType, dims: &[i64]) -> Value {
    b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor)
}

#[test]
fn transposed_reads() {
    let mut failures = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F64, DType::I8, DType::Bool] {
        for (n, m) in [(16, 16), (33, 70), (130, 17), (7, 300), (256, 64)] {
            let s = sample(&format!("a + b' {n}x{m} {dtype}"), |b| {
                let (x, y) = (param(b, dtype, &[n, m]), param(b, dtype, &[m, n]));
                let y = b.transpose(y, [1, 0]);
                vec![b.add(x, y)]
            });
            check(FusionKind::Loop, &s, &mut failures);
        }
        let s = sample(&format!("permutation {dtype}"), |b| {
            let (x, w) = (param(b, dtype, &[3, 20, 5, 40]), param(b, dtype, &[20]));
            let x = b.transpose(x, [3, 0, 2, 1]);
            let w = b.broadcast_to(w, [40, 3, 5, 20]);
            vec![b.mul(x, w)]
        });
        check(FusionKind::Loop, &s, &mut failures);
    }
    report(failures);
}

/// Rows and columns of many sizes: whole vectors, tails, less than a vector, several parts.
#[test]
fn rows_and_columns() {
    let mut failures = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for (n, c) in [(3, 128), (5, 77), (2, 3), (70, 16), (1, 1), (4, 1000)] {
            let s = sample(&format!("softmax {n}x{c} {dtype}"), |b| {
                let x = param(b, dtype, &[n, c]);
                let x = b.convert(x, dtype.opmath());
                let m = b.reduce(ReduceKind::Max, x, &[1]);
                let spread = b.broadcast_in_dim(m, [n, c], [0]);
                let d = b.sub(x, spread);
                let e = b.unary(OpKind::Exp, d);
                let s = b.reduce(ReduceKind::Sum, e, &[1]);
                let l = b.unary(OpKind::Log, s);
                let spread = b.broadcast_in_dim(s, [n, c], [0]);
                let p = b.div(e, spread);
                vec![b.convert(p, dtype), m, l]
            });
            check(FusionKind::Row, &s, &mut failures);
        }
    }
    for (dims, red) in [
        (&[40, 5, 64][..], &[0i64][..]),
        (&[6, 33, 10], &[0, 2]),
        (&[50_000], &[0]),
        (&[2, 40_000], &[1]),
        (&[900, 70], &[0]),
        (&[3, 900, 35], &[1]),
        (&[7, 5, 9, 11], &[1, 3]),
        (&[64, 8192], &[0]),
    ] {
        let s = sample(&format!("sums over {red:?} of {dims:?}"), |b| {
            let (x, i) = (param(b, DType::F32, dims), param(b, DType::I32, dims));
            let y = b.mul(x, x);
            let wide = b.convert(i, DType::I64);
            let zero = b.full_like(x, 0.0);
            let p = b.compare(CmpDir::Gt, x, zero);
            let sum = b.reduce(ReduceKind::Sum, y, red);
            let root = b.unary(OpKind::Sqrt, sum);
            let kinds = [(ReduceKind::Max, x), (ReduceKind::Sum, wide), (ReduceKind::Or, p), (ReduceKind::Min, i)];
            let mut out = vec![root, y];
            out.extend(kinds.map(|(k, v)| b.reduce(k, v, red)));
            out
        });
        check(FusionKind::Column, &s, &mut failures);
    }
    report(failures);
}

/// A result that takes the place of an operand which another result, computed later, reads too (random graph 1164 and
/// others of `programs.rs`): at one point, in rows, and in row kernels that also have results per row.
#[test]
fn results_in_place_of_operands() {
    let pool = MemoryPool::new(None);
    for (kind, dims) in [
        (FusionKind::Loop, &[][..]),
        (FusionKind::Loop, &[1, 1]),
        (FusionKind::Loop, &[5, 37]),
        (FusionKind::Row, &[7, 1]),
        (FusionKind::Row, &[7, 33]),
    ] {
        let s = sample(&format!("in place {kind:?} {dims:?}"), |b| {
            let (x, y) = (param(b, DType::F32, dims), param(b, DType::F32, dims));
            let product = b.mul(x, y);
            let root = b.unary(OpKind::Tanh, x);
            let mut out = vec![product, root];
            if kind == FusionKind::Row {
                let sum = b.reduce(ReduceKind::Sum, y, &[1]);
                out.push(b.unary(OpKind::Exp, sum));
            }
            out
        });
        let want = interp::eval(&s.graph, &s.args).unwrap();
        for target in targets() {
            let spec = KernelSpec { name: s.name.clone(), kind, body: Arc::new(s.graph.clone()) };
            let kernel = Kernel::compile(&spec, target, true, None).unwrap();
            let mut blocks: Vec<Block> = s.args.iter().map(|a| block(&pool, &a.bytes)).collect();
            let types = s.graph.result_types();
            blocks.extend(types[1..].iter().map(|t| block(&pool, &vec![0xAA; t.bytes() as usize])));
            let mut args: Vec<*mut u8> = blocks.iter().map(Block::as_ptr).collect();
            // The first result lies where the first operand does.
            args.insert(2, args[0]);
            let fault = Fault::default();
            // SAFETY: the blocks are as large as the types say.
            unsafe { kernel.launch(&args, 2, &[], &pool, &fault) }.unwrap();
            for (w, p) in want.iter().zip(&args[2..]) {
                // SAFETY: as above.
                let got = unsafe { std::slice::from_raw_parts(*p, w.ty.bytes() as usize) };
                assert_eq!(difference(got, w, 4.0), None, "{} {target:?}", s.name);
            }
        }
    }
}

/// Epilogues on rectangles that cover the space unevenly.
#[test]
fn epilogues() {
    let (rows, columns) = (37i64, 101i64);
    let s = sample("epilogue", |b| {
        let (x, bias) = (param(b, DType::F32, &[rows, columns]), param(b, DType::BF16, &[columns]));
        let other = param(b, DType::F32, &[rows, columns]);
        let bias = b.convert(bias, DType::F32);
        let bias = b.broadcast_to(bias, [rows, columns]);
        let y = b.add(x, bias);
        let t = b.unary(OpKind::Tanh, y);
        let z = b.mul(t, other);
        vec![b.convert(z, DType::BF16), y]
    });
    let want = interp::eval(&s.graph, &s.args).unwrap();
    let pool = MemoryPool::new(None);
    for target in targets() {
        let spec = KernelSpec { name: s.name.clone(), kind: FusionKind::Epilogue, body: Arc::new(s.graph.clone()) };
        let kernel = Kernel::compile(&spec, target, false, None).unwrap();
        let mut blocks: Vec<Block> = s.args.iter().map(|a| block(&pool, &a.bytes)).collect();
        blocks.extend(s.graph.result_types().iter().map(|t| block(&pool, &vec![0xAA; t.bytes() as usize])));
        let args: Vec<*mut u8> = blocks.iter().map(Block::as_ptr).collect();
        let fault = Fault::default();
        for r in [(0, 6), (6, 7), (7, rows)] {
            for c in [(0, 16), (16, 21), (21, columns)] {
                let at = args[0].wrapping_add(((r.0 * columns + c.0) * 4) as usize);
                // SAFETY: the rectangle lies in the arguments.
                unsafe { kernel.epilogue(&args, &[], r, c, (at, columns), &fault) };
            }
        }
        for (w, b) in want.iter().zip(&blocks[s.args.len()..]) {
            // SAFETY: the block has as many bytes as its type.
            let got = unsafe { std::slice::from_raw_parts(b.as_ptr(), w.ty.bytes() as usize) };
            assert_eq!(difference(got, w, 1.0), None, "{target:?}");
        }
    }
}
