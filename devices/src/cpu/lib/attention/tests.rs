//! Attention and its gradients against the formula in f64.

use super::*;
use crate::cpu::lib::isa::Isa;
use crate::cpu::lib::testing::{Lcg, at_levels, read_all, write_all};

#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    Bool,
    Float,
}

struct Shape {
    b: usize,
    h: usize,
    hk: usize,
    tq: usize,
    tk: usize,
    d: usize,
    dv: usize,
}

/// Strides of [b, h, t, d] stored as [b, t, h, d] (as a fused projection leaves it) or dense.
fn strides(h: usize, t: usize, d: usize, interleaved: bool) -> [isize; 4] {
    let (h, t, d) = (h as isize, t as isize, d as isize);
    if interleaved { [t * h * d, d, h * d, 1] } else { [h * t * d, t * d, d, 1] }
}

fn check(s: &Shape, elem: Elem, mask: Mask, causal: bool, interleaved: bool) {
    let mut rng = Lcg(9);
    let Shape { b, h, hk, tq, tk, d, dv } = *s;
    let mut make =
        |n: usize| -> Vec<f64> { read_all(elem, &write_all(elem, &(0..n).map(|_| rng.uniform()).collect::<Vec<_>>())) };
    let (q, k, v, go) = (make(b * h * tq * d), make(b * hk * tk * d), make(b * hk * tk * dv), make(b * h * tq * dv));
    let bytes: Vec<Vec<u8>> = [&q, &k, &v, &go].iter().map(|x| write_all(elem, x)).collect();
    let (sq, sk, sv, so) = (
        strides(h, tq, d, interleaved),
        strides(hk, tk, d, interleaved),
        strides(hk, tk, dv, interleaved),
        strides(h, tq, dv, interleaved),
    );
    let heads = |p: *const u8, elem, strides| Heads { ptr: p.cast_mut(), elem, strides };
    // The mask is shared by batches and heads; its first row masks everything.
    let bias: Vec<f64> = (0..tq * tk)
        .map(|i| if mask == Mask::Bool { (i >= tk && rng.below(3) > 0) as u8 as f64 } else { rng.uniform() })
        .collect();
    let me = if mask == Mask::Bool { Elem::Bool } else { Elem::F32 };
    let mb = write_all(me, &bias);
    let scale = 0.37;
    let a = Attention {
        batch: b,
        heads: h,
        kv_heads: hk,
        q_len: tq,
        kv_len: tk,
        dim: d,
        v_dim: dv,
        q: heads(bytes[0].as_ptr(), elem, sq),
        k: heads(bytes[1].as_ptr(), elem, sk),
        v: heads(bytes[2].as_ptr(), elem, sv),
        bias: (mask != Mask::None).then(|| heads(mb.as_ptr(), me, [0, 0, tk as isize, 1])),
        causal,
        scale,
    };
    let zero = |n: usize| write_all(elem, &vec![7.0; n]);
    let (mut ob, mut dqb, mut dkb, mut dvb) = (zero(go.len()), zero(q.len()), zero(k.len()), zero(v.len()));
    let mut lse = vec![0f32; b * h * tq];
    let o = heads(ob.as_mut_ptr(), elem, so);
    let lp = LogSumExp(lse.as_mut_ptr());
    let g = Gradients {
        dq: heads(dqb.as_mut_ptr(), elem, sq),
        dk: heads(dkb.as_mut_ptr(), elem, sk),
        dv: heads(dvb.as_mut_ptr(), elem, sv),
    };
    // SAFETY: buffers cover the arrays.
    unsafe {
        forward(&a, &o, Some(lp)).unwrap();
        backward(&a, &o, &heads(bytes[3].as_ptr(), elem, so), lp, &g).unwrap();
    }
    let (mut wo, mut wq, mut wk, mut wv) =
        (vec![0f64; go.len()], vec![0f64; q.len()], vec![0f64; k.len()], vec![0f64; v.len()]);
    for bi in 0..b {
        for hi in 0..h {
            let hki = hi / (h / hk);
            let at = |st: &[isize; 4], h: usize, t: usize, x: usize| {
                (bi as isize * st[0] + h as isize * st[1] + t as isize * st[2] + x as isize) as usize
            };
            for i in 0..tq {
                let scores: Vec<f64> = (0..tk)
                    .map(|j| {
                        let dot: f64 = (0..d).map(|x| q[at(&sq, hi, i, x)] * k[at(&sk, hki, j, x)]).sum();
                        let m = match mask {
                            Mask::None => 0.0,
                            Mask::Bool => {
                                if bias[i * tk + j] != 0.0 {
                                    0.0
                                } else {
                                    f64::NEG_INFINITY
                                }
                            }
                            Mask::Float => bias[i * tk + j],
                        };
                        if causal && j > i { f64::NEG_INFINITY } else { dot * scale as f64 + m }
                    })
                    .collect();
                let top = scores.iter().fold(f64::NEG_INFINITY, |a, &x| a.max(x));
                let sum: f64 = scores.iter().map(|x| if top.is_finite() { (x - top).exp() } else { 0.0 }).sum();
                let p: Vec<f64> = scores.iter().map(|x| if sum > 0.0 { (x - top).exp() / sum } else { 0.0 }).collect();
                let want = if sum > 0.0 { top + sum.ln() } else { 0.0 };
                assert!(
                    (lse[(bi * h + hi) * tq + i] as f64 - want).abs() < 1e-4,
                    "lse {} vs {want}",
                    lse[(bi * h + hi) * tq + i]
                );
                for x in 0..dv {
                    wo[at(&so, hi, i, x)] = (0..tk).map(|j| p[j] * v[at(&sv, hki, j, x)]).sum();
                }
                let dp: Vec<f64> =
                    (0..tk).map(|j| (0..dv).map(|x| go[at(&so, hi, i, x)] * v[at(&sv, hki, j, x)]).sum()).collect();
                let delta: f64 = (0..tk).map(|j| p[j] * dp[j]).sum();
                for j in 0..tk {
                    let ds = p[j] * (dp[j] - delta) * scale as f64;
                    for x in 0..d {
                        wq[at(&sq, hi, i, x)] += ds * k[at(&sk, hki, j, x)];
                        wk[at(&sk, hki, j, x)] += ds * q[at(&sq, hi, i, x)];
                    }
                    for x in 0..dv {
                        wv[at(&sv, hki, j, x)] += p[j] * go[at(&so, hi, i, x)];
                    }
                }
            }
        }
    }
    let tol = if elem == Elem::F32 { 2e-5 } else { 3e-2 };
    for (name, got, want) in [("out", &ob, &wo), ("dq", &dqb, &wq), ("dk", &dkb, &wk), ("dv", &dvb, &wv)] {
        for (i, (x, y)) in read_all(elem, got).iter().zip(want.iter()).enumerate() {
            assert!(
                (x - y).abs() <= tol * (1.0 + y.abs()),
                "{name}[{i}] {x} vs {y} (tq {tq} tk {tk} d {d} causal {causal})"
            );
        }
    }
}

#[test]
fn forward_and_backward() {
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512Bf16], || {
        let shapes = [
            Shape { b: 1, h: 1, hk: 1, tq: 1, tk: 1, d: 1, dv: 1 },
            Shape { b: 2, h: 2, hk: 2, tq: 33, tk: 70, d: 20, dv: 20 },
            Shape { b: 1, h: 4, hk: 2, tq: 61, tk: 50, d: 64, dv: 48 },
            Shape { b: 1, h: 1, hk: 1, tq: 150, tk: 300, d: 17, dv: 33 },
            Shape { b: 1, h: 1, hk: 1, tq: 300, tk: 150, d: 16, dv: 16 },
        ];
        for s in &shapes {
            for mask in [Mask::None, Mask::Bool, Mask::Float] {
                for causal in [false, true] {
                    check(s, Elem::F32, mask, causal, mask == Mask::Bool);
                }
            }
            check(s, Elem::BF16, Mask::None, true, true);
            check(s, Elem::F16, Mask::Float, false, false);
        }
    });
}

#[test]
fn one_thread_gives_the_same_bits() {
    // Wide heads, few of them: the split over queries must not show in the result.
    let run = |_: ()| {
        let s = Shape { b: 1, h: 1, hk: 1, tq: 500, tk: 257, d: 40, dv: 40 };
        let mut rng = Lcg(4);
        let x: Vec<f32> = (0..3 * 500 * 40).map(|_| rng.uniform() as f32).collect();
        let h = |o: usize, t: usize| Heads {
            ptr: x[o..].as_ptr().cast_mut().cast(),
            elem: Elem::F32,
            strides: strides(1, t, 40, false),
        };
        let a = Attention {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            q_len: s.tq,
            kv_len: s.tk,
            dim: 40,
            v_dim: 40,
            q: h(0, 500),
            k: h(20000, 257),
            v: h(40000, 257),
            bias: None,
            causal: true,
            scale: 0.2,
        };
        let mut out = vec![0f32; 500 * 40];
        // SAFETY: buffers cover the arrays.
        unsafe {
            forward(
                &a,
                &Heads { ptr: out.as_mut_ptr().cast(), elem: Elem::F32, strides: strides(1, 500, 40, false) },
                None,
            )
            .unwrap()
        };
        out
    };
    at_levels(&[Isa::Avx2], || {
        let many = run(());
        // Inside a job nested work is serial.
        let one = std::sync::Mutex::new(vec![]);
        pool::parallel_for(2, 1_000_000_000, &|i| {
            if i == 0 {
                *one.lock().unwrap() = run(());
            }
        });
        assert_eq!(many, *one.lock().unwrap());
    });
}
