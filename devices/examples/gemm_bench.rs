//! Matrix product benchmark: GFLOP/s and the share of the multiply-add peak measured in this run.
//!
//! `cargo run --release -p rsx-devices --example gemm_bench [threads [f32|bf16|f64 [part of a name]]]`

#[path = "common/mod.rs"]
mod common;

use common::{best, peak};
use rsx_devices::cpu::lib::Elem;
use rsx_devices::cpu::lib::gemm::{BatchDim, Gemm, Operand, Output, gemm};
use rsx_devices::cpu::lib::isa;
use rsx_devices::cpu::pool;
use rsx_devices::memory::MemoryPool;

/// A product to measure; `at`: A is stored [k, m], `bt`: B is stored [n, k].
#[derive(Clone, Copy)]
struct Product {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    at: bool,
    bt: bool,
}

impl Product {
    fn name(&self) -> String {
        let Product { batch, m, n, k, at, bt } = *self;
        let batch = if batch == 1 { String::new() } else { format!("{batch} x ") };
        let t = |on: bool| if on { "t" } else { "" };
        format!("{batch}{m}x{n}x{k} A{}·B{}", t(at), t(bt))
    }

    /// Least seconds of a run.
    fn measure(&self, elem: Elem) -> f64 {
        let Product { batch, m, n, k, at, bt } = *self;
        let size = elem.size();
        let pool = MemoryPool::cpu();
        let out = if elem == Elem::F64 { Elem::F64 } else { Elem::F32 };
        let (a, b, c) = (
            pool.alloc_zeroed(batch * m * k * size).unwrap(),
            pool.alloc_zeroed(batch * n * k * size).unwrap(),
            pool.alloc_zeroed(batch * m * n * out.size()).unwrap(),
        );
        for (block, len) in [(&a, m * k), (&b, n * k)] {
            for i in 0..batch * len {
                // SAFETY: within the block.
                unsafe { elem.store_f64(block.as_ptr().add(i * size), (i % 13) as f64 / 8.0 - 0.75) };
            }
        }
        let dims = [BatchDim { size: batch, a: (m * k) as isize, b: (n * k) as isize, c: (m * n) as isize }];
        let strides = |t: bool, rows: usize, cols: usize| if t { (1, rows as isize) } else { (cols as isize, 1) };
        let ((a_row, a_col), (b_row, b_col)) = (strides(at, m, k), strides(bt, k, n));
        let g = Gemm {
            m,
            n,
            k,
            batch: &dims,
            a: Operand { ptr: a.as_ptr(), elem, row: a_row, col: a_col, keep: None },
            b: Operand { ptr: b.as_ptr(), elem, row: b_row, col: b_col, keep: None },
            c: Some(Output { ptr: c.as_ptr(), elem: out, ld: n as isize }),
            accumulate: false,
            epilogue: None,
        };
        let inner = (5e6 / self.flops()).ceil() as usize;
        let runs = (1e10 / (self.flops() * inner as f64)).clamp(3.0, 300.0) as usize;
        best(runs, || {
            for _ in 0..inner {
                // SAFETY: the blocks cover the operands.
                unsafe { gemm(&g).unwrap() };
            }
        }) / inner as f64
    }

    fn flops(&self) -> f64 {
        2.0 * (self.batch * self.m * self.n * self.k) as f64
    }
}

/// The products that are measured: cubes, those of a transformer's training step (1024 tokens,
/// width 256), attention's, and those of few rows.
fn products() -> Vec<Product> {
    let p = |batch, m, n, k, at, bt| Product { batch, m, n, k, at, bt };
    let mut list: Vec<Product> = [128, 512, 1024, 2048].iter().map(|&s| p(1, s, s, s, false, false)).collect();
    list.push(p(1, 1024, 1024, 1024, false, true));
    for (n, k) in [(768, 256), (256, 256), (1024, 256), (256, 1024), (4096, 256), (8192, 256)] {
        // y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x.
        list.push(p(1, 1024, n, k, false, true));
        list.push(p(1, 1024, k, n, false, false));
        list.push(p(1, n, k, 1024, true, false));
    }
    // One sequence of 256 tokens, inference.
    for (n, k) in [(768, 256), (256, 256), (1024, 256), (256, 1024)] {
        list.push(p(1, 256, n, k, false, true));
    }
    list.push(p(1, 16, 64, 64, false, false));
    list.push(p(1, 16, 64, 64, false, true));
    list.push(p(96, 128, 128, 64, false, true));
    list.push(p(96, 128, 64, 128, false, false));
    for m in [1, 2, 4, 8, 16, 32, 64, 128] {
        list.push(p(1, m, 4096, 4096, false, true));
        list.push(p(1, m, 4096, 4096, false, false));
    }
    list.push(p(1, 4096, 1, 4096, false, false));
    list
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1);
    let only = std::env::args().nth(2);
    let part = std::env::args().nth(3).unwrap_or_default();
    pool::set_num_threads(threads);
    let peak = peak() * threads as f64;
    println!("{:?}, {threads} thread(s), f32 multiply-add peak {peak:.1} GFLOP/s", isa::current());
    for elem in [Elem::F32, Elem::BF16, Elem::F64] {
        if only.as_ref().is_some_and(|o| !format!("{elem:?}").eq_ignore_ascii_case(o)) {
            continue;
        }
        for p in products() {
            let name = format!("{elem:?} {}", p.name());
            if !name.contains(&part) {
                continue;
            }
            let secs = p.measure(elem);
            let rate = p.flops() / secs / 1e9;
            println!("{name:32} {:10.2} us {rate:8.1} GFLOP/s {:5.1} % of peak", secs * 1e6, rate / peak * 100.0);
        }
    }
}
