//! Benchmarks of attention, convolution, sorting, scatter, copies, the pools.
//!
//! `cargo run --release -p rsx-devices --example library_bench [threads [name [part of a convolution's line]]]`

mod common;

use common::{now, peak};
use rsx_devices::cpu::lib::attention::{Attention, Gradients, Heads, LogSumExp, backward, forward};
use rsx_devices::cpu::lib::conv::{Conv, ConvArray, ConvDim, conv};
use rsx_devices::cpu::lib::scatter::ScatterKind;
use rsx_devices::cpu::lib::{Elem, View, copy, gather, scan, scatter, sort};
use rsx_devices::cpu::pool;
use rsx_devices::memory::{Block, MemoryPool};

/// Least seconds of up to `n` runs within about a second.
fn best(n: usize, mut f: impl FnMut()) -> f64 {
    let (mut least, mut sum) = (f64::INFINITY, 0.0);
    for _ in 0..n {
        let t = now();
        f();
        let s = now() - t;
        least = least.min(s);
        sum += s;
        if sum > 1.0 {
            break;
        }
    }
    least
}

fn filled(elem: Elem, n: usize) -> Block {
    let b = MemoryPool::cpu().alloc(n * elem.size()).unwrap();
    let mut x = 1u32;
    for i in 0..n {
        x = x.wrapping_mul(1664525).wrapping_add(1013904223);
        // SAFETY: within the block.
        unsafe { elem.store_f64(b.as_ptr().add(i * elem.size()), (x >> 8) as f64 / (1 << 23) as f64 - 1.0) };
    }
    b
}

/// `fused`: rows lie as one projection for Q, K and V leaves them, all heads of all three side by side.
fn attention(elem: Elem, b: usize, h: usize, t: usize, d: usize, causal: bool, fused: bool) {
    let parts = if fused { 3 } else { 1 };
    let n = b * h * t * d * parts;
    let blocks: Vec<Block> = (0..8).map(|_| filled(elem, n)).collect();
    let (head, row) = if fused { (d, 3 * h * d) } else { (t * d, d) };
    let st = [(h * t * d * parts) as isize, head as isize, row as isize, 1];
    let hd = |i: usize| Heads { ptr: blocks[i].as_ptr(), elem, strides: st };
    let mut lse = vec![0f32; b * h * t];
    let a = Attention {
        batch: b,
        heads: h,
        kv_heads: h,
        q_len: t,
        kv_len: t,
        dim: d,
        v_dim: d,
        q: hd(0),
        k: hd(1),
        v: hd(2),
        bias: None,
        causal,
        scale: 0.125,
    };
    let flops = 2.0 * (b * h * t * t * d) as f64 * if causal { 0.5 } else { 1.0 };
    // SAFETY: the blocks cover the arrays.
    let f = best(20, || unsafe { forward(&a, &hd(3), Some(LogSumExp::dense(lse.as_mut_ptr(), &a))).unwrap() });
    let g = Gradients { dq: hd(5), dk: hd(6), dv: hd(7) };
    // SAFETY: as above.
    let w = best(20, || unsafe { backward(&a, &hd(3), &hd(4), LogSumExp::dense(lse.as_mut_ptr(), &a), &g).unwrap() });
    println!(
        "attention {elem:?} b{b} h{h} t{t} d{d} causal {causal} fused {fused}: forward {:.2} ms {:.0} GFLOP/s, backward {:.2} ms {:.0} GFLOP/s",
        f * 1e3,
        2.0 * flops / f / 1e9,
        w * 1e3,
        5.0 * flops / w / 1e9
    );
}

/// Strides of [major, minor, y, x], channels last or first.
fn image(c: usize, h: usize, w: usize, last: bool) -> [isize; 4] {
    let (c, h, w) = (c as isize, h as isize, w as isize);
    if last { [c * h * w, 1, w * c, c] } else { [c * h * w, h * w, w, 1] }
}

/// Forward, input gradient and weight gradient of a square convolution.
/// `peak`: GFLOP/s of all threads.
fn convolution(peak: f64, n: usize, ci: usize, co: usize, hw: usize, k: usize, s: usize, groups: usize, last: bool) {
    let pad = (k / 2) as isize;
    let mut d = ConvDim { stride: s, pad_lo: pad, pad_hi: pad, ..ConvDim::plain(hw, k) };
    d.output = d.outputs();
    let o = d.output;
    let (x, w, y) = (
        filled(Elem::F32, n * ci * hw * hw),
        filled(Elem::F32, co * ci / groups * k * k),
        filled(Elem::F32, n * co * o * o),
    );
    let (xs, ws, ys) = (image(ci, hw, hw, last), image(ci / groups, k, k, last), image(co, o, o, last));
    fn arr<'a>(b: &Block, major: isize, minor: isize, st: &'a [isize; 4]) -> ConvArray<'a> {
        ConvArray { ptr: b.as_ptr(), elem: Elem::F32, major, minor, spatial: &st[2..] }
    }
    let flops = 2.0 * (n * co * o * o * (ci / groups) * k * k) as f64;
    let name = format!("conv n{n} {ci}->{co} {hw}x{hw} k{k} s{s} g{groups} {}", if last { "nhwc" } else { "nchw" });
    let part = std::env::args().nth(3).unwrap_or_default();
    let run = |what: &str, c: &Conv| {
        if !format!("{name} {what}").contains(&part) {
            return;
        }
        // SAFETY: the blocks cover the arrays.
        let t = best(10, || unsafe { conv(c, None).unwrap() });
        let rate = flops / t / 1e9;
        println!("{name} {what}: {:.3} ms {rate:.1} GFLOP/s {:.0} % of peak", t * 1e3, rate / peak * 100.0);
    };
    let dims = [d, d];
    run(
        "forward",
        &Conv {
            batch: n,
            in_features: ci,
            out_features: co,
            feature_groups: groups,
            batch_groups: 1,
            dims: &dims,
            input: arr(&x, xs[0], xs[1], &xs),
            weight: arr(&w, ws[0], ws[1], &ws),
            output: arr(&y, ys[0], ys[1], &ys),
            keep: None,
        },
    );
    if groups != 1 {
        return;
    }
    // dx: dy dilated by the stride, window reversed, features swapped.
    let lo = k as isize - 1 - pad;
    let extra = hw as isize - ((o as isize - 1) * s as isize + 1 + 2 * lo - k as isize + 1);
    let g = ConvDim {
        input: o,
        window: k,
        output: hw,
        stride: 1,
        pad_lo: lo,
        pad_hi: lo + extra,
        lhs_dilation: s,
        rhs_dilation: 1,
        reverse: true,
    };
    run(
        "input gradient",
        &Conv {
            batch: n,
            in_features: co,
            out_features: ci,
            feature_groups: 1,
            batch_groups: 1,
            dims: &[g, g],
            input: arr(&y, ys[0], ys[1], &ys),
            weight: arr(&w, ws[1], ws[0], &ws),
            output: arr(&x, xs[0], xs[1], &xs),
            keep: None,
        },
    );
    // dw: the images are the features, dy is the window.
    let over = (o as isize - 1) * s as isize + k as isize - hw as isize - pad;
    let g = ConvDim {
        input: hw,
        window: o,
        output: k,
        stride: 1,
        pad_lo: pad,
        pad_hi: over,
        lhs_dilation: 1,
        rhs_dilation: s,
        reverse: false,
    };
    run(
        "weight gradient",
        &Conv {
            batch: ci,
            in_features: n,
            out_features: co,
            feature_groups: 1,
            batch_groups: 1,
            dims: &[g, g],
            input: arr(&x, xs[1], xs[0], &xs),
            weight: arr(&y, ys[1], ys[0], &ys),
            output: arr(&w, ws[1], ws[0], &ws),
            keep: None,
        },
    );
}

fn small_kernels() {
    let (r, c) = (1024usize, 4096usize);
    let (x, y, i) = (filled(Elem::F32, r * c), filled(Elem::F32, r * c), filled(Elem::I64, r * c));
    let (dims, dense, across) = ([r, c], [c as isize, 1], [1isize, r as isize]);
    fn v<'a>(b: &Block, e: Elem, dims: &'a [usize], st: &'a [isize]) -> View<'a> {
        View::new(b.as_ptr(), e, dims, st)
    }
    let n = (r * c) as f64;
    // SAFETY: the blocks cover the views, in each case below.
    let t =
        best(20, || unsafe { copy::copy(&v(&y, Elem::F32, &dims, &dense), &v(&x, Elem::F32, &dims, &dense)).unwrap() });
    println!("copy 1024x4096 f32: {:.2} ms {:.1} GB/s", t * 1e3, 8.0 * n / t / 1e9);
    // SAFETY: as above.
    let t = best(20, || unsafe {
        copy::copy(&v(&y, Elem::F32, &dims, &dense), &v(&x, Elem::F32, &dims, &across)).unwrap()
    });
    println!("transpose 1024x4096 f32: {:.2} ms {:.1} GB/s", t * 1e3, 8.0 * n / t / 1e9);
    // SAFETY: as above.
    let t = best(5, || unsafe {
        sort::sort(
            &v(&y, Elem::F32, &dims, &dense),
            Some(&v(&i, Elem::I64, &dims, &dense)),
            &v(&x, Elem::F32, &dims, &dense),
            1,
            false,
        )
        .unwrap()
    });
    println!("sort 1024 x 4096 f32: {:.2} ms {:.1} ns/element", t * 1e3, t / n * 1e9);
    let (kd, ks) = ([r, 50], [50isize, 1]);
    // SAFETY: as above.
    let t = best(5, || unsafe {
        sort::topk(
            &v(&y, Elem::F32, &kd, &ks),
            Some(&v(&i, Elem::I64, &kd, &ks)),
            &v(&x, Elem::F32, &dims, &dense),
            1,
            50,
            true,
        )
        .unwrap()
    });
    println!("topk 50 of 1024 x 4096 f32: {:.2} ms {:.1} ns/element", t * 1e3, t / n * 1e9);
    for dim in 0..2 {
        // SAFETY: as above.
        let t = best(5, || unsafe {
            scan::scan(scan::Scan::Sum, &v(&y, Elem::F32, &dims, &dense), None, &v(&x, Elem::F32, &dims, &dense), dim)
                .unwrap()
        });
        println!("cumsum dim {dim} 1024x4096 f32: {:.2} ms", t * 1e3);
    }
    let (rows, width) = (50_000usize, 768usize);
    let (table, up) = (filled(Elem::F32, rows * width), filled(Elem::F32, 4096 * width));
    let idx: Vec<i64> = (0..4096i64).map(|i| i * 7919 % rows as i64).collect();
    let iv = [View::new(idx.as_ptr().cast_mut().cast(), Elem::I64, &[4096], &[1])];
    let (td, ud, st) = ([rows, width], [4096, width], [width as isize, 1]);
    // SAFETY: as above.
    let t = best(20, || unsafe {
        _ = gather::gather(&v(&up, Elem::F32, &ud, &st), &v(&table, Elem::F32, &td, &st), &[0], &iv, false).unwrap()
    });
    println!("embedding 4096 of 50000 x 768: {:.3} ms {:.1} GB/s", t * 1e3, 8.0 * 4096.0 * 768.0 / t / 1e9);
    // SAFETY: as above.
    let t = best(20, || unsafe {
        _ = scatter::scatter(
            &v(&table, Elem::F32, &td, &st),
            &[0],
            &iv,
            &v(&up, Elem::F32, &ud, &st),
            ScatterKind::Add,
            false,
        )
        .unwrap()
    });
    println!("embedding backward: {:.3} ms {:.1} GB/s", t * 1e3, 12.0 * 4096.0 * 768.0 / t / 1e9);
    let t = best(20, || {
        for _ in 0..1000 {
            std::hint::black_box(MemoryPool::cpu().alloc(5000).unwrap());
        }
    });
    println!("pool alloc + free: {:.1} ns", t * 1e6);
    let t = best(200, || {
        for _ in 0..100 {
            pool::parallel_for(2, 1_000_000, &|i| {
                std::hint::black_box(i);
            });
        }
    });
    println!("fork-join of 2 empty chunks: {:.3} us", t * 1e4);
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1);
    let only = std::env::args().nth(2).unwrap_or_default();
    pool::set_num_threads(threads);
    println!("{:?}, {threads} thread(s)", rsx_devices::cpu::lib::isa::current());
    if "attention".contains(&only) {
        // The GPT of benches/workloads.py.
        attention(Elem::F32, 4, 8, 256, 32, true, false);
        attention(Elem::F32, 4, 8, 256, 32, true, true);
        attention(Elem::BF16, 4, 8, 256, 32, true, true);
        attention(Elem::F32, 4, 12, 512, 64, false, false);
        attention(Elem::F32, 4, 12, 512, 64, true, false);
        attention(Elem::BF16, 4, 12, 512, 64, true, false);
        attention(Elem::F32, 1, 12, 1024, 64, true, false);
        attention(Elem::F32, 1, 1, 2048, 128, true, false);
    }
    if "conv".contains(&only) {
        let peak = peak() * threads as f64;
        println!("multiply-add peak {peak:.1} GFLOP/s");
        for last in [false, true] {
            // The ResNet of benches/workloads.py.
            convolution(peak, 32, 1, 32, 32, 3, 1, 1, last);
            convolution(peak, 32, 32, 32, 32, 3, 1, 1, last);
            convolution(peak, 32, 32, 64, 32, 3, 2, 1, last);
            convolution(peak, 32, 32, 64, 32, 1, 2, 1, last);
            convolution(peak, 32, 64, 64, 16, 3, 1, 1, last);
            convolution(peak, 32, 64, 128, 16, 3, 2, 1, last);
            convolution(peak, 32, 64, 128, 16, 1, 2, 1, last);
            convolution(peak, 32, 128, 128, 8, 3, 1, 1, last);
            convolution(peak, 8, 3, 64, 224, 7, 2, 1, last);
            convolution(peak, 8, 64, 64, 56, 3, 1, 1, last);
            convolution(peak, 8, 64, 256, 56, 1, 1, 1, last);
            convolution(peak, 8, 128, 128, 56, 3, 2, 1, last);
            convolution(peak, 8, 256, 256, 14, 3, 1, 1, last);
            convolution(peak, 8, 512, 512, 7, 3, 1, 1, last);
            convolution(peak, 8, 96, 96, 56, 3, 1, 96, last);
        }
    }
    if "small".contains(&only) {
        small_kernels();
    }
}
