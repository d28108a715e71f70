//! Convolutions against the defining sum, over random attributes and layouts.

use super::*;
use crate::cpu::lib::isa::Isa;
use crate::cpu::lib::testing::{Lcg, at_levels, read_all, write_all};

/// Strides for logical dims `[major, minor, spatial..]` in a random memory order.
fn layout(rng: &mut Lcg, dims: &[usize]) -> Vec<isize> {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    match rng.below(3) {
        0 => {}
        1 => order.sort_by_key(|&d| if d == 1 { 100 } else { d }),
        _ => order.iter_mut().enumerate().for_each(|(i, o)| *o = dims.len() - 1 - i),
    }
    let mut st = vec![0isize; dims.len()];
    let mut s = 1;
    for &d in order.iter().rev() {
        st[d] = s;
        s *= dims[d] as isize;
    }
    st
}

fn case(rng: &mut Lcg, rank: usize, elem: Elem, out_elem: Elem, big: bool) {
    let dims: Vec<ConvDim> = (0..rank)
        .map(|_| {
            let mut d = ConvDim {
                input: 1 + rng.below(if big { 20 } else { 7 }),
                window: 1 + rng.below(if big { 12 } else { 3 }),
                output: 0,
                stride: 1 + rng.below(2),
                pad_lo: rng.below(4) as isize - 1,
                pad_hi: rng.below(4) as isize - 1,
                lhs_dilation: 1 + rng.below(2),
                rhs_dilation: 1 + rng.below(2),
                reverse: rng.below(2) == 1,
            };
            if big && rng.below(2) == 0 {
                (d.lhs_dilation, d.rhs_dilation, d.reverse) = (1, 1, false);
            }
            d.output = d.outputs();
            d
        })
        .collect();
    let (fg, bg) = [(1, 1), (3, 1), (1, 2)][rng.below(3)];
    let gi = [1, 2, 9][rng.below(3)];
    let groups = fg * bg;
    let go = [1, 3, 20][rng.below(3)];
    let (batch, fi, fo) = (bg * (1 + rng.below(2)), gi * fg, go * groups);
    let full = |a: usize, b: usize, f: &dyn Fn(&ConvDim) -> usize| -> Vec<usize> {
        [a, b].into_iter().chain(dims.iter().map(f)).collect()
    };
    let (id, wd, od) =
        (full(batch, fi, &|d| d.input), full(fo, gi, &|d| d.window), full(batch / bg, fo, &|d| d.output));
    let (is, ws, os) = (layout(rng, &id), layout(rng, &wd), layout(rng, &od));
    let count = |d: &[usize]| d.iter().product::<usize>();
    let input: Vec<f64> = (0..count(&id)).map(|_| rng.small()).collect();
    let weight: Vec<f64> = (0..count(&wd)).map(|_| rng.small()).collect();
    let (ib, wb) = (write_all(elem, &input), write_all(elem, &weight));
    let mut ob = write_all(out_elem, &vec![99.0; count(&od)]);
    fn arr<'a>(p: *const u8, elem: Elem, s: &'a [isize]) -> ConvArray<'a> {
        ConvArray { ptr: p.cast_mut(), elem, major: s[0], minor: s[1], spatial: &s[2..] }
    }
    let c = Conv {
        batch,
        in_features: fi,
        out_features: fo,
        feature_groups: fg,
        batch_groups: bg,
        dims: &dims,
        input: arr(ib.as_ptr(), elem, &is),
        weight: arr(wb.as_ptr(), elem, &ws),
        output: arr(ob.as_mut_ptr(), out_elem, &os),
    };
    // SAFETY: buffers cover the arrays.
    unsafe { conv(&c, None).unwrap() };
    let got = read_all(out_elem, &ob);
    let tol = if out_elem == Elem::BF16 {
        2e-2
    } else if out_elem == Elem::F16 {
        2e-3
    } else {
        1e-5
    };
    let spatial = |flat: usize, sizes: &[usize]| -> Vec<usize> {
        let mut r = flat;
        let mut v: Vec<usize> = sizes
            .iter()
            .rev()
            .map(|&n| {
                let i = r % n;
                r /= n;
                i
            })
            .collect();
        v.reverse();
        v
    };
    for n in 0..od[0] {
        for o in 0..fo {
            for p in 0..count(&od[2..]) {
                let pos = spatial(p, &od[2..]);
                let mut sum = 0.0;
                let group = o / go;
                for i in 0..gi {
                    'tap: for k in 0..count(&wd[2..]) {
                        let tap = spatial(k, &wd[2..]);
                        let nn = if bg > 1 { n + group * od[0] } else { n };
                        let ii = if fg > 1 { group * gi + i } else { i };
                        let mut at = nn as isize * is[0] + ii as isize * is[1];
                        let mut wt = o as isize * ws[0] + i as isize * ws[1];
                        for d in 0..rank {
                            let q = &dims[d];
                            let kk = if q.reverse { q.window - 1 - tap[d] } else { tap[d] };
                            let t = (pos[d] * q.stride + kk * q.rhs_dilation) as isize - q.pad_lo;
                            if t < 0
                                || t % q.lhs_dilation as isize != 0
                                || t / q.lhs_dilation as isize >= q.input as isize
                            {
                                continue 'tap;
                            }
                            at += t / q.lhs_dilation as isize * is[d + 2];
                            wt += tap[d] as isize * ws[d + 2];
                        }
                        sum += input[at as usize] * weight[wt as usize];
                    }
                }
                let at = n as isize * os[0]
                    + o as isize * os[1]
                    + pos.iter().enumerate().map(|(d, &x)| x as isize * os[d + 2]).sum::<isize>();
                let v = got[at as usize];
                assert!((v - sum).abs() <= tol * (1.0 + sum.abs()), "{elem:?} {c:?} [{n},{o},{pos:?}] {v} vs {sum}");
            }
        }
    }
}

#[test]
fn random_attributes_and_layouts() {
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16], || {
        let mut rng = Lcg(1);
        for i in 0..150 {
            let (e, o) =
                [(Elem::F32, Elem::F32), (Elem::F64, Elem::F64), (Elem::BF16, Elem::BF16), (Elem::F16, Elem::F32)]
                    [i % 4];
            case(&mut rng, 1 + i % 3, e, o, false);
        }
        for i in 0..60 {
            let (e, o) = [(Elem::F32, Elem::F32), (Elem::BF16, Elem::F32), (Elem::F64, Elem::F64)][i % 3];
            case(&mut rng, 1 + i % 2, e, o, true);
        }
    });
}

#[test]
fn refuses_inconsistent_attributes() {
    let mut d = [ConvDim::plain(4, 2)];
    d[0].output = 9;
    let mut x = [0f32; 64];
    let a = ConvArray { ptr: x.as_mut_ptr().cast(), elem: Elem::F32, major: 4, minor: 4, spatial: &[1] };
    let c = Conv {
        batch: 1,
        in_features: 1,
        out_features: 1,
        feature_groups: 1,
        batch_groups: 1,
        dims: &d,
        input: a,
        weight: a,
        output: a,
    };
    // SAFETY: refused before any access.
    assert!(unsafe { conv(&c, None) }.is_err());
}
