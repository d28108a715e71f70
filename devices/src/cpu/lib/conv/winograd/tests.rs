//! Winograd's form against the defining sum, the general product and, for rounding, f64.

use super::*;
use crate::cpu::lib::conv::tests::{check, layout, planar, swapped, three_forms};
use crate::cpu::lib::conv::{conv, conv_then, forwards};
use crate::cpu::lib::isa::Isa;
use crate::cpu::lib::testing::{Lcg, at_levels};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set: sizes too small to gain anything run in this form too.
pub(super) static EVERYWHERE: AtomicBool = AtomicBool::new(false);

const LEVELS: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

/// Sizes (height, width), padding, images, features in and out.
const CASES: [((usize, usize), isize, usize, usize, usize); 8] = [
    ((8, 8), 1, 2, 16, 16),
    ((7, 7), 1, 5, 20, 16),
    ((4, 9), 1, 4, 13, 33),
    ((8, 14), 0, 2, 16, 12),
    ((9, 6), 2, 2, 16, 16),
    ((10, 10), -1, 3, 12, 20),
    ((4, 4), 1, 17, 16, 16),
    // Two blocks of k.
    ((4, 4), 1, 1, 520, 12),
];

type Order = fn(&mut Lcg, &[usize]) -> Vec<isize>;

#[test]
fn forward_and_gradients_of_all_layouts_and_types() {
    at_levels(&LEVELS, || {
        EVERYWHERE.store(true, Ordering::Relaxed);
        let mut rng = Lcg(11);
        for (i, &((h, w), pad, n, gi, go)) in CASES.iter().enumerate() {
            let forms = |n: usize| three_forms(n, 3, 1, 1, pad);
            let (y, x) = (forms(h), forms(w));
            let (e, o) = [(Elem::F32, Elem::F32), (Elem::BF16, Elem::F32), (Elem::F16, Elem::F16)][i % 3];
            for (e, o, order, gradient) in
                [(Elem::F32, Elem::F32, planar as Order, swapped as Order), (e, o, layout as Order, layout as Order)]
            {
                check(&mut rng, &[y[0], x[0]], (1, 1), (n, gi, go), e, o, order);
                check(&mut rng, &[y[1], x[1]], (1, 1), (n, go, gi), e, o, order);
                check(&mut rng, &[y[2], x[2]], (1, 1), (gi, n, go), e, o, gradient);
            }
            if i == 1 {
                check(&mut rng, &[y[0], x[0]], (2, 1), (n, gi, go), Elem::F32, Elem::F32, planar);
            }
        }
    });
}

/// A convolution of f32 arrays of its own; channels last or first.
struct Problem {
    dims: [ConvDim; 2],
    n: usize,
    gi: usize,
    go: usize,
    last: bool,
    x: Vec<f32>,
    w: Vec<f32>,
}

/// Strides of [major, minor, line, column].
fn strides(features: usize, h: usize, w: usize, last: bool) -> [isize; 4] {
    let (c, h, w) = (features as isize, h as isize, w as isize);
    if last { [c * h * w, 1, w * c, c] } else { [c * h * w, h * w, w, 1] }
}

impl Problem {
    fn new(rng: &mut Lcg, form: usize, (h, w): (usize, usize), n: usize, gi: usize, go: usize, last: bool) -> Problem {
        let dims = [h, w].map(|s| three_forms(s, 3, 1, 1, 1)[form]);
        let input = dims[0].input * dims[1].input;
        let window = dims[0].window * dims[1].window;
        let mut some = |n: usize| (0..n).map(|_| rng.uniform() as f32).collect();
        Problem { dims, n, gi, go, last, x: some(n * gi * input), w: some(go * gi * window) }
    }

    fn outputs(&self) -> usize {
        self.n * self.go * self.dims[0].output * self.dims[1].output
    }

    /// Calls `f` with the convolution to `out`.
    fn with<R>(&self, out: *mut f32, f: impl FnOnce(&Conv) -> R) -> R {
        let [y, x] = &self.dims;
        let xs = strides(self.gi, y.input, x.input, self.last);
        let ws = strides(self.gi, y.window, x.window, self.last);
        let os = strides(self.go, y.output, x.output, self.last);
        fn arr<'a>(p: *const f32, s: &'a [isize; 4]) -> ConvArray<'a> {
            ConvArray { ptr: p.cast_mut().cast(), elem: Elem::F32, major: s[0], minor: s[1], spatial: &s[2..] }
        }
        let c = Conv {
            batch: self.n,
            in_features: self.gi,
            out_features: self.go,
            feature_groups: 1,
            batch_groups: 1,
            dims: &self.dims,
            input: arr(self.x.as_ptr(), &xs),
            weight: arr(self.w.as_ptr(), &ws),
            output: arr(out, &os),
            keep: None,
        };
        forwards(&c, f)
    }

    /// The result, after asserting that it is this form that gives it.
    fn run(&self) -> Vec<f32> {
        let mut out = vec![99f32; self.outputs()];
        self.with(out.as_mut_ptr(), |c| {
            let g = Geometry::new(c).unwrap();
            assert!(fits(c, &g) || fits_gradient(c, &g));
            // SAFETY: the vectors cover the arrays.
            unsafe { conv(c, None).unwrap() }
        });
        out
    }

    /// The result of the general product.
    fn product(&self) -> Vec<f32> {
        let mut out = vec![99f32; self.outputs()];
        self.with(out.as_mut_ptr(), |c| {
            let g = Geometry::new(c).unwrap();
            // SAFETY: as above.
            unsafe { crate::cpu::lib::conv::product::<f32, f32>(c, &g, kernel::f32_kernel(), None).unwrap() }
        });
        out
    }
}

#[test]
fn rounding_is_that_of_a_direct_sum_to_a_small_factor() {
    at_levels(&LEVELS, || {
        EVERYWHERE.store(true, Ordering::Relaxed);
        let mut rng = Lcg(5);
        for (form, size, n, gi, go) in [
            (0, (16, 16), 2, 64, 64),
            (1, (16, 16), 2, 64, 64),
            (0, (8, 8), 2, 512, 32),
            (2, (32, 32), 32, 16, 16),
            (2, (8, 8), 64, 32, 32),
        ] {
            // Of a gradient, features are images.
            let p = if form == 2 {
                Problem::new(&mut rng, form, size, gi, n, go, false)
            } else {
                Problem::new(&mut rng, form, size, n, gi, go, false)
            };
            let (x, w): (Vec<f64>, Vec<f64>) =
                (p.x.iter().map(|&v| v as f64).collect(), p.w.iter().map(|&v| v as f64).collect());
            let mut exact = vec![0f64; p.outputs()];
            p.with(std::ptr::null_mut(), |c| {
                let as_f64 = |a: &ConvArray<'_>, p: *const f64, base: *const f32| {
                    // The first element's distance: a window read backwards begins at its end.
                    // SAFETY: both addresses belong to one array.
                    let first = unsafe { a.ptr.cast::<f32>().cast_const().offset_from(base) };
                    (p.wrapping_offset(first).cast_mut().cast::<u8>(), Elem::F64)
                };
                let ((xp, xe), (wp, we)) =
                    (as_f64(&c.input, x.as_ptr(), p.x.as_ptr()), as_f64(&c.weight, w.as_ptr(), p.w.as_ptr()));
                let wide = Conv {
                    input: ConvArray { ptr: xp, elem: xe, ..c.input },
                    weight: ConvArray { ptr: wp, elem: we, ..c.weight },
                    output: ConvArray { ptr: exact.as_mut_ptr().cast(), elem: Elem::F64, ..c.output },
                    ..*c
                };
                // SAFETY: the vectors cover the arrays.
                unsafe { conv(&wide, None).unwrap() };
            });
            let scale = exact.iter().map(|v| v * v).sum::<f64>().sqrt();
            let error =
                |got: &[f32]| got.iter().zip(&exact).map(|(g, e)| (*g as f64 - e).powi(2)).sum::<f64>().sqrt() / scale;
            let (ours, direct) = (error(&p.run()), error(&p.product()));
            println!("{form} {size:?} {gi}->{go}: {ours:.2e}, direct {direct:.2e}");
            assert!(ours < 3.0 * direct, "{ours:e} {direct:e}");
        }
    });
}

#[test]
fn infinities_and_nan_are_where_the_definition_has_them() {
    at_levels(&LEVELS, || {
        EVERYWHERE.store(true, Ordering::Relaxed);
        let mut rng = Lcg(9);
        for last in [false, true] {
            for form in 0..3 {
                let (n, gi) = if form == 2 { (16, 6) } else { (6, 16) };
                for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3e38] {
                    let mut p = Problem::new(&mut rng, form, (12, 10), n, gi, 16, last);
                    // Not the largest times a large one: whether that overflows is a matter of order.
                    let at = rng.below(p.x.len());
                    p.x[at] = bad;
                    let at = rng.below(p.w.len());
                    // (Of a gradient the weights meet the padding, where forms differ.)
                    p.w[at] = if form == 2 { 0.5 } else { bad.max(f32::INFINITY) };
                    let (got, want) = (p.run(), p.product());
                    let kind = |x: &f32| (x.is_nan(), *x == f32::INFINITY, *x == f32::NEG_INFINITY);
                    assert!(bad == 3e38 || want.iter().any(|x| !x.is_finite()));
                    let same = got.iter().zip(&want).all(|(g, w)| kind(g) == kind(w));
                    assert!(same, "form {form}, last {last}, {bad}");
                    let far = got.iter().zip(&want).filter(|(_, w)| w.is_finite()).map(|(g, w)| (g - w).abs());
                    let far = far.fold(0.0, f32::max);
                    // Sums of up to 720 terms.
                    assert!(bad == 3e38 || far < 3e-5, "form {form}, last {last}, {bad}: {far}");
                }
            }
        }
    });
}

#[test]
fn what_is_handed_on_is_what_is_stored() {
    at_levels(&LEVELS, || {
        EVERYWHERE.store(true, Ordering::Relaxed);
        let mut rng = Lcg(13);
        for (size, n, gi, go, last) in [
            ((16, 16), 3, 16, 40, false),
            ((8, 9), 5, 24, 32, false),
            ((16, 16), 3, 16, 40, true),
            ((8, 9), 5, 24, 32, true),
        ] {
            let mut p = Problem::new(&mut rng, 0, size, n, gi, go, last);
            for bad in [false, true] {
                if bad {
                    p.x[17] = f32::INFINITY;
                }
                let stored = p.run();
                let (area, width) = (size.0 * size.1, size.1);
                let got = Mutex::new(vec![7f32; p.outputs()]);
                if last {
                    let tile = |t: &Tile| {
                        for r in 0..t.rows {
                            for c in 0..t.cols {
                                // SAFETY: an element of the block.
                                let v = unsafe { *t.ptr.cast::<f32>().offset(r as isize * t.ld + c as isize) };
                                got.lock().unwrap()[(t.row0 + r) * go + t.col0 + c] = v;
                            }
                        }
                    };
                    // SAFETY: the vectors cover the arrays; nothing is stored.
                    p.with(std::ptr::null_mut(), |c| unsafe { conv(c, Some(&tile)).unwrap() });
                } else {
                    let rows = |r: &Rows| {
                        // SAFETY: rows without gaps.
                        let from = unsafe { std::slice::from_raw_parts(r.ptr, r.rows * width) };
                        let at = (r.image * go + r.feature) * area + r.first * width;
                        got.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
                    };
                    // SAFETY: as above.
                    assert!(p.with(std::ptr::null_mut(), |c| unsafe { conv_then(c, &rows).unwrap() }));
                }
                let bits = |v: &[f32]| v.iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect::<Vec<_>>();
                assert!(bits(&got.into_inner().unwrap()) == bits(&stored), "{size:?} {last} {bad}");
            }
        }
    });
}

#[test]
fn results_do_not_depend_on_the_threads() {
    at_levels(&LEVELS, || {
        EVERYWHERE.store(true, Ordering::Relaxed);
        let mut rng = Lcg(17);
        let all = pool::num_threads();
        for form in 0..3 {
            let (n, gi) = if form == 2 { (32, 40) } else { (40, 32) };
            let p = Problem::new(&mut rng, form, (14, 14), n, gi, 48, false);
            let many = p.run();
            pool::set_num_threads(1);
            let one = p.run();
            pool::set_num_threads(all);
            assert!(one == many, "{form}");
        }
    });
}
