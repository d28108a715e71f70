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
    // Stored by queries, or by heads.
    let ls = if interleaved { [h * tq, 1, h] } else { [h * tq, tq, 1] };
    let lp = LogSumExp { ptr: lse.as_mut_ptr(), strides: ls.map(|s| s as isize) };
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
                    (lse[bi * ls[0] + hi * ls[1] + i * ls[2]] as f64 - want).abs() < 1e-4,
                    "lse {} vs {want}",
                    lse[bi * ls[0] + hi * ls[1] + i * ls[2]]
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
            // Few queries, one more than few, whole blocks, groups of heads over several blocks, several chunks of keys.
            Shape { b: 2, h: 2, hk: 1, tq: 6, tk: 40, d: 32, dv: 32 },
            Shape { b: 1, h: 2, hk: 2, tq: 7, tk: 7, d: 3, dv: 5 },
            Shape { b: 1, h: 2, hk: 2, tq: 96, tk: 96, d: 32, dv: 32 },
            Shape { b: 1, h: 4, hk: 1, tq: 49, tk: 131, d: 32, dv: 24 },
            Shape { b: 1, h: 1, hk: 1, tq: 64, tk: 700, d: 96, dv: 64 },
            // Nothing to see.
            Shape { b: 1, h: 2, hk: 2, tq: 9, tk: 0, d: 8, dv: 8 },
        ];
        for s in &shapes {
            for mask in [Mask::None, Mask::Bool, Mask::Float] {
                for causal in [false, true] {
                    check(s, Elem::F32, mask, causal, mask == Mask::Bool);
                }
            }
            check(s, Elem::F32, Mask::None, true, true);
            check(s, Elem::BF16, Mask::None, true, true);
            check(s, Elem::BF16, Mask::Bool, true, false);
            check(s, Elem::BF16, Mask::Float, false, true);
            check(s, Elem::F16, Mask::Float, false, false);
        }
    });
}

/// One dense head of f32.
struct Head {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d: usize,
}

impl Head {
    fn new(tq: usize, tk: usize, d: usize) -> Head {
        let mut rng = Lcg(5);
        let mut make = |n: usize| (0..n * d).map(|_| rng.uniform() as f32).collect();
        Head { q: make(tq), k: make(tk), v: make(tk), d }
    }

    /// Outputs and log-sum-exps.
    fn forward(&self, bias: Option<&[f32]>, causal: bool, scale: f32) -> (Vec<f32>, Vec<f32>) {
        let (d, tq, tk) = (self.d, self.q.len() / self.d, self.k.len() / self.d);
        let heads =
            |p: *const f32, t| Heads { ptr: p.cast_mut().cast(), elem: Elem::F32, strides: strides(1, t, d, false) };
        let a = Attention {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            q_len: tq,
            kv_len: tk,
            dim: d,
            v_dim: d,
            q: heads(self.q.as_ptr(), tq),
            k: heads(self.k.as_ptr(), tk),
            v: heads(self.v.as_ptr(), tk),
            bias: bias.map(|b| Heads {
                ptr: b.as_ptr().cast_mut().cast(),
                elem: Elem::F32,
                strides: [0, 0, tk as isize, 1],
            }),
            causal,
            scale,
        };
        let (mut out, mut lse) = (vec![0f32; tq * d], vec![0f32; tq]);
        // SAFETY: buffers cover the arrays.
        unsafe { forward(&a, &heads(out.as_mut_ptr(), tq), Some(LogSumExp::dense(lse.as_mut_ptr(), &a))).unwrap() };
        (out, lse)
    }
}

/// As many queries as each of the ways to compute them takes, and a ragged number of keys.
const SIZES: [(usize, usize); 4] = [(3, 70), (13, 70), (32, 64), (50, 130)];

#[test]
fn what_is_not_finite_spoils_its_rows_only() {
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512Bf16], || {
        for (tq, tk) in SIZES {
            for bad in [f32::NAN, f32::INFINITY] {
                for causal in [false, true] {
                    let mut x = Head::new(tq, tk, 8);
                    // An infinite query has a score of +inf then, and not of -inf alone, which would mask all.
                    x.k[2] = 0.5;
                    let clean = x.forward(None, causal, 0.3);
                    // A query: its row alone.
                    x.q[8 * (tq - 1) + 2] = bad;
                    let (out, lse) = x.forward(None, causal, 0.3);
                    assert!(out[8 * (tq - 1)..].iter().all(|x| x.is_nan()), "{tq} {bad} {causal}: {out:?}");
                    assert_eq!(out[..8 * (tq - 1)], clean.0[..8 * (tq - 1)]);
                    assert!(!lse[tq - 1].is_finite());
                    assert_eq!(lse[..tq - 1], clean.1[..tq - 1]);
                }
            }
            // A value of NaN under a causal mask: from its query on.
            let mut x = Head::new(tq, tk, 8);
            let clean = x.forward(None, true, 0.3);
            x.v[8 * (tq - 1) + 2] = f32::NAN;
            let (out, lse) = x.forward(None, true, 0.3);
            assert!(out[8 * (tq - 1) + 2].is_nan());
            assert_eq!(out[8 * (tq - 1)..][..2], clean.0[8 * (tq - 1)..][..2]);
            assert_eq!(lse, clean.1);
        }
    });
}

#[test]
fn masked_rows_and_extreme_scores() {
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512Bf16], || {
        for (tq, tk) in SIZES {
            let mut x = Head::new(tq, tk, 8);
            // The first row sees nothing, the second the last key only, the others every key from the 65th block on.
            let seen = |i: usize, j: usize| match i {
                0 => false,
                1 => j == tk - 1,
                _ => j >= tk / 64 * 64 - 1,
            };
            let bias: Vec<f32> =
                (0..tq * tk).map(|i| if seen(i / tk, i % tk) { 0.0 } else { f32::NEG_INFINITY }).collect();
            let (out, lse) = x.forward(Some(&bias), false, 0.3);
            assert!(out[..8].iter().all(|&x| x == 0.0) && lse[0] == 0.0);
            for (o, v) in out[8..16].iter().zip(&x.v[8 * (tk - 1)..]) {
                assert!((o - v).abs() <= 1e-6, "{o} {v}");
            }
            assert!(out.iter().chain(&lse).all(|x| x.is_finite()));
            // Scores far apart, of either sign: the greatest alone counts, nothing overflows.
            x.q.iter_mut().for_each(|x| *x *= 1e4);
            for scale in [1.0, -1.0] {
                let (out, _) = x.forward(None, false, scale);
                for i in 0..tq {
                    let score = |j: usize| -> f64 {
                        (0..8).map(|d| x.q[8 * i + d] as f64 * x.k[8 * j + d] as f64).sum::<f64>() * scale as f64
                    };
                    let mut order: Vec<usize> = (0..tk).collect();
                    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
                    if score(order[0]) - score(order[1]) > 30.0 {
                        for d in 0..8 {
                            assert!((out[8 * i + d] - x.v[8 * order[0] + d]).abs() < 1e-6);
                        }
                    }
                }
            }
            // No scale: the mean of the values.
            let (out, lse) = x.forward(None, false, 0.0);
            for i in 0..tq {
                let mean: f32 = (0..tk).map(|j| x.v[8 * j]).sum::<f32>() / tk as f32;
                assert!((out[8 * i] - mean).abs() < 1e-5 && (lse[i] - (tk as f32).ln()).abs() < 1e-5);
            }
        }
    });
}

#[test]
fn bf16_is_off_by_the_rounding_of_weights_and_result() {
    at_levels(&[Isa::Avx2, Isa::Avx512Bf16], || {
        for (t, d) in [(40, 32), (97, 20), (130, 33), (256, 64)] {
            let x = Head::new(t, t, d);
            let round = |x: &[f32]| write_all(Elem::BF16, &x.iter().map(|&x| x as f64).collect::<Vec<_>>());
            let [q, k, v] = [&x.q, &x.k, &x.v].map(|x| round(x));
            let back = |x: &[u8]| read_all(Elem::BF16, x).iter().map(|&x| x as f32).collect::<Vec<_>>();
            let exact = Head { q: back(&q), k: back(&k), v: back(&v), d };
            let (want, want_lse) = exact.forward(None, true, 0.4);
            let heads = |p: *const u8| Heads { ptr: p.cast_mut(), elem: Elem::BF16, strides: strides(1, t, d, false) };
            let mut out = round(&want);
            out.fill(0);
            let mut lse = vec![0f32; t];
            let a = Attention {
                batch: 1,
                heads: 1,
                kv_heads: 1,
                q_len: t,
                kv_len: t,
                dim: d,
                v_dim: d,
                q: heads(q.as_ptr()),
                k: heads(k.as_ptr()),
                v: heads(v.as_ptr()),
                bias: None,
                causal: true,
                scale: 0.4,
            };
            // SAFETY: buffers cover the arrays.
            unsafe { forward(&a, &heads(out.as_mut_ptr()), Some(LogSumExp::dense(lse.as_mut_ptr(), &a))).unwrap() };
            // Values are below 1: a weight's rounding is at most 2^-9 of it, the result's 2^-9 of that.
            for (got, want) in read_all(Elem::BF16, &out).iter().zip(&want) {
                assert!((got - *want as f64).abs() < 1.0 / 512.0 * (1.0 + want.abs() as f64), "{got} {want}");
            }
            for (got, want) in lse.iter().zip(&want_lse) {
                assert!((got - want).abs() < 1e-5);
            }
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
        let mut results = [500 * 40, 500 * 40, 257 * 40, 257 * 40, 500].map(|n| vec![0f32; n]);
        let [out, dq, dk, dv, lse] = &mut results;
        let to = |x: &mut Vec<f32>, t| Heads {
            ptr: x.as_mut_ptr().cast(),
            elem: Elem::F32,
            strides: strides(1, t, 40, false),
        };
        let (out, lse) = (to(out, 500), LogSumExp::dense(lse.as_mut_ptr(), &a));
        let g = Gradients { dq: to(dq, 500), dk: to(dk, 257), dv: to(dv, 257) };
        // SAFETY: buffers cover the arrays; the queries serve as the outputs' gradients.
        unsafe {
            forward(&a, &out, Some(lse)).unwrap();
            backward(&a, &out, &a.q, lse, &g).unwrap();
        }
        results
    };
    at_levels(&[Isa::Avx2, Isa::Avx512], || {
        let many = run(());
        // Inside a job nested work is serial.
        let one = std::sync::Mutex::new(Default::default());
        pool::parallel_for(2, 1_000_000_000, &|i| {
            if i == 0 {
                *one.lock().unwrap() = run(());
            }
        });
        assert_eq!(many, *one.lock().unwrap());
    });
}
