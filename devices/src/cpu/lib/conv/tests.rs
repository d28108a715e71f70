//! Convolutions against the defining sum, over random attributes and layouts.

use super::*;
use crate::cpu::lib::isa::Isa;
use crate::cpu::lib::testing::{Lcg, at_levels, read_all, write_all};

/// Strides for logical dims `[major, minor, spatial..]` in a random memory order.
pub(super) fn layout(rng: &mut Lcg, dims: &[usize]) -> Vec<isize> {
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
    let go = [1, 3, 20][rng.below(3)];
    let n = 1 + rng.below(2);
    check(rng, &dims, (fg, bg), (n, gi, go), elem, out_elem, layout);
}

/// Runs one convolution on random numbers and compares with the defining sum. `sizes`: output batch, features of a group
/// in and out; `layout` gives each array's strides.
pub(super) fn check(
    rng: &mut Lcg,
    dims: &[ConvDim],
    (fg, bg): (usize, usize),
    (n, gi, go): (usize, usize, usize),
    elem: Elem,
    out_elem: Elem,
    layout: impl Fn(&mut Lcg, &[usize]) -> Vec<isize>,
) {
    let rank = dims.len();
    let groups = fg * bg;
    let (batch, fi, fo) = (bg * n, gi * fg, go * groups);
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
        dims,
        input: arr(ib.as_ptr(), elem, &is),
        weight: arr(wb.as_ptr(), elem, &ws),
        output: arr(ob.as_mut_ptr(), out_elem, &os),
        keep: None,
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

/// Row-major strides.
pub(super) fn planar(_: &mut Lcg, dims: &[usize]) -> Vec<isize> {
    crate::cpu::lib::view::dense_strides(dims).to_vec()
}

/// Strides of arrays whose first two dimensions are swapped in memory: images are the features of a weight gradient.
pub(super) fn swapped(_: &mut Lcg, dims: &[usize]) -> Vec<isize> {
    let order: Vec<usize> = [dims[1], dims[0]].into_iter().chain(dims[2..].iter().copied()).collect();
    let mut st = crate::cpu::lib::view::dense_strides(&order).to_vec();
    st.swap(0, 1);
    st
}

/// A forward convolution of `window` over `input` with padding of half a window, and its two gradients: the dimension
/// of each.
pub(super) fn three_forms(input: usize, window: usize, stride: usize, dilation: usize, pad: isize) -> [ConvDim; 3] {
    let mut f = ConvDim { stride, rhs_dilation: dilation, pad_lo: pad, pad_hi: pad, ..ConvDim::plain(input, window) };
    f.output = f.outputs();
    let span = (dilation * (window - 1)) as isize;
    let dy = ((f.output - 1) * stride + 1) as isize;
    let lo = span - pad;
    let dx = ConvDim {
        input: f.output,
        window,
        output: input,
        stride: 1,
        pad_lo: lo,
        pad_hi: input as isize + span - dy - lo,
        lhs_dilation: stride,
        rhs_dilation: dilation,
        reverse: true,
    };
    let dw = ConvDim {
        input,
        window: f.output,
        output: window,
        stride: dilation,
        pad_lo: pad,
        pad_hi: span + dy - input as isize - pad,
        lhs_dilation: 1,
        rhs_dilation: stride,
        reverse: false,
    };
    [f, dx, dw]
}

#[test]
fn rows_of_outputs_forward_and_gradients() {
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512], || {
        let mut rng = Lcg(7);
        // (height, width), window, stride, dilation, padding, features in and out, images.
        for (i, (size, window, stride, dilation, pad, gi, go, n)) in [
            ((8, 8), 3, 1, 1, 1, 5, 7, 3),
            ((4, 32), 3, 1, 1, 1, 2, 4, 2),
            ((14, 14), 3, 1, 1, 1, 3, 9, 2),
            ((7, 7), 3, 1, 1, 1, 4, 6, 9),
            ((16, 16), 3, 2, 1, 1, 3, 8, 2),
            ((17, 15), 3, 2, 1, 1, 2, 5, 2),
            ((16, 16), 1, 2, 1, 0, 6, 6, 3),
            ((16, 16), 1, 1, 1, 0, 6, 13, 3),
            ((20, 24), 5, 3, 1, 2, 1, 4, 1),
            ((20, 24), 3, 1, 2, 2, 2, 4, 1),
            ((24, 40), 7, 2, 1, 3, 1, 4, 1),
            ((9, 33), 2, 1, 1, -1, 2, 4, 2),
            ((24, 48), 3, 1, 1, 1, 64, 4, 1),
            // Input gradients that read the gradient in place, or not; rows that no tap meets.
            ((32, 32), 1, 2, 1, 0, 3, 6, 2),
            ((33, 31), 1, 2, 1, 0, 3, 6, 2),
            // Phases of rows with whole vectors and rests; only some of the phases and rows.
            ((9, 61), 3, 2, 1, 1, 2, 5, 2),
            ((8, 47), 2, 2, 1, 0, 2, 5, 2),
            ((22, 52), 3, 2, 2, 2, 2, 4, 2),
            ((20, 57), 2, 3, 2, 1, 2, 4, 2),
            ((25, 50), 1, 3, 1, 0, 2, 4, 2),
            // Gradients whose images are pages apart; small images of many features.
            ((8, 8), 3, 1, 1, 1, 3, 16, 20),
            ((16, 16), 3, 2, 1, 1, 2, 16, 12),
            ((7, 7), 3, 1, 1, 1, 400, 4, 2),
            // Products of points: several panels of features, lines that fill no vector, two blocks of k.
            ((14, 14), 1, 1, 1, 0, 40, 70, 2),
            ((28, 28), 1, 1, 1, 0, 12, 130, 2),
            ((9, 15), 1, 1, 1, 0, 9, 17, 2),
            ((4, 16), 1, 1, 1, 0, 700, 20, 2),
        ]
        .into_iter()
        .enumerate()
        {
            let forms = |n: usize| three_forms(n, window, stride, dilation, pad);
            let (y, x) = (forms(size.0), forms(size.1));
            let (e, o) = [(Elem::F32, Elem::F32), (Elem::BF16, Elem::F32), (Elem::BF16, Elem::BF16)][i % 3];
            check(&mut rng, &[y[0], x[0]], (1, 1), (n, gi, go), e, o, planar);
            check(&mut rng, &[y[0], x[0]], (2, 1), (n, gi, go), Elem::F32, Elem::F32, planar);
            check(&mut rng, &[y[1], x[1]], (1, 1), (n, go, gi.max(4)), e, o, planar);
            check(&mut rng, &[y[1], x[1]], (1, 1), (n, go, gi.max(4)), Elem::F32, Elem::F32, planar);
            check(&mut rng, &[y[2], x[2]], (1, 1), (gi, n, go), e, o, swapped);
            check(&mut rng, &[y[2], x[2]], (1, 1), (gi, n, go), Elem::F32, Elem::F32, swapped);
        }
    });
}

#[test]
fn rows_handed_on_are_the_rows_stored() {
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512], || {
        let mut rng = Lcg(3);
        for (form, size, window, stride, n, gi, go) in [
            (0, (16, 16), 3, 1, 3, 5, 10),
            (0, (8, 8), 3, 1, 9, 2, 6),
            (1, (16, 16), 3, 2, 2, 6, 5),
            (1, (17, 15), 3, 2, 2, 3, 4),
            (0, (14, 14), 1, 1, 3, 20, 90),
            (1, (8, 16), 1, 1, 3, 20, 9),
        ] {
            let dims = [size.0, size.1].map(|s| three_forms(s, window, stride, 1, window as isize / 2)[form]);
            let taps = window * window;
            let (input, out) = ([dims[0].input, dims[1].input], [dims[0].output, dims[1].output]);
            let x: Vec<f32> = (0..n * gi * input[0] * input[1]).map(|_| rng.small() as f32).collect();
            let w: Vec<f32> = (0..go * gi * taps).map(|_| rng.small() as f32).collect();
            let area = out[0] * out[1];
            let mut stored = vec![0f32; n * go * area];
            fn arr<'a>(p: *const f32, major: usize, minor: usize, spatial: &'a [isize]) -> ConvArray<'a> {
                let (major, minor) = (major as isize, minor as isize);
                ConvArray { ptr: p.cast_mut().cast(), elem: Elem::F32, major, minor, spatial }
            }
            let (xs, ws, os) = ([input[1] as isize, 1], [window as isize, 1], [out[1] as isize, 1]);
            let mut c = Conv {
                batch: n,
                in_features: gi,
                out_features: go,
                feature_groups: 1,
                batch_groups: 1,
                dims: &dims,
                input: arr(x.as_ptr(), gi * input[0] * input[1], input[0] * input[1], &xs),
                weight: arr(w.as_ptr(), gi * taps, taps, &ws),
                output: arr(stored.as_mut_ptr(), go * area, area, &os),
                keep: None,
            };
            // SAFETY: the vectors cover the arrays.
            unsafe { conv(&c, None).unwrap() };
            let got = std::sync::Mutex::new(vec![f32::NAN; n * go * area]);
            let rows = |r: &Rows| {
                // SAFETY: rows without gaps.
                let from = unsafe { std::slice::from_raw_parts(r.ptr, r.rows * out[1]) };
                let at = (r.image * go + r.feature) * area + r.first * out[1];
                got.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
            };
            c.output.ptr = std::ptr::null_mut();
            // SAFETY: as above; nothing is stored.
            assert!(unsafe { conv_then(&c, &rows).unwrap() });
            assert_eq!(got.into_inner().unwrap(), stored);
        }
    });
}

#[test]
fn numbers_behind_a_rows_end_do_not_reach_the_weight_gradient() {
    // Rows of 14: the last vector has 6 numbers, behind which the next row begins with an infinity. The single tap looks
    // at columns 1 to 14 of 15, so column 0 must not be seen.
    let (h, w) = (4usize, 15usize);
    let mut x = vec![1f32; 8 * h * w];
    x.iter_mut().step_by(w).for_each(|v| *v = f32::INFINITY);
    let dy = vec![1f32; 8 * h * 14];
    let mut out = vec![0f32; 4];
    let dims =
        [ConvDim { output: 1, ..ConvDim::plain(h, h) }, ConvDim { pad_lo: -1, output: 1, ..ConvDim::plain(w, 14) }];
    fn arr<'a>(p: *const f32, major: usize, minor: usize, spatial: &'a [isize]) -> ConvArray<'a> {
        ConvArray { ptr: p.cast_mut().cast(), elem: Elem::F32, major: major as isize, minor: minor as isize, spatial }
    }
    let (xs, ds) = ([w as isize, 1], [14isize, 1]);
    let c = Conv {
        batch: 2,
        in_features: 4,
        out_features: 2,
        feature_groups: 1,
        batch_groups: 1,
        dims: &dims,
        input: arr(x.as_ptr(), h * w, 2 * h * w, &xs),
        weight: arr(dy.as_ptr(), h * 14, 2 * h * 14, &ds),
        output: arr(out.as_mut_ptr(), 1, 2, &[1, 1]),
        keep: None,
    };
    // SAFETY: the vectors cover the arrays.
    unsafe { conv(&c, None).unwrap() };
    assert_eq!(out, [(4 * h * 14) as f32; 4]);
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
        keep: None,
    };
    // SAFETY: refused before any access.
    assert!(unsafe { conv(&c, None) }.is_err());
}
