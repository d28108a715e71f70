//! Convolutions with one input feature to a group: no product worth packing for.
//!
//! A task computes output rows of a few features in the sum's type: for each tap the part of the
//! row that lies inside the input is one vector loop, along the row or along features.

use super::{Conv, ConvArray, Geometry};
use crate::cpu::lib::elem::{Elem, Scalar};
use crate::cpu::lib::isa::{self, Isa};
use crate::cpu::lib::simd;
use crate::cpu::lib::view::{LibError, Ptr};
use crate::cpu::pool;

/// # Safety
/// The contract of `conv`; `g.gi` is 1 and no dimension is reversed.
pub(super) unsafe fn run(c: &Conv, g: &Geometry) -> Result<(), LibError> {
    // SAFETY: the caller's contract.
    unsafe { if c.output.elem == Elem::F64 { rows::<f64>(c, g) } else { rows::<f32>(c, g) } }
    Ok(())
}

/// Features of a task when they are contiguous in all arrays.
const BLOCK: usize = 64;

unsafe fn rows<T: Scalar>(c: &Conv, g: &Geometry) {
    let d = &g.dims;
    // Features run innermost if they are contiguous in all arrays and each group has one.
    let across = g.go == 1 && c.input.minor == 1 && c.output.minor == 1;
    let fb = if across { BLOCK } else { 1 };
    let blocks = c.out_features.div_ceil(fb);
    let lines = d[0].output * d[1].output;
    let cost = (g.n * g.positions * g.taps) as u64 * c.out_features as u64 / 4;
    // Weights of the features, [tap][feature], as sums' type.
    pool::parallel_range(g.n * blocks, 1, cost, &|begin, end| {
        let mut w = vec![T::zero(); g.taps * fb];
        let mut acc = vec![T::zero(); d[2].output * fb];
        let mut line = vec![T::zero(); if across { fb } else { d[2].input }];
        for t in begin..end {
            let (n, f0) = (t / blocks, t % blocks * fb);
            let fs = fb.min(c.out_features - f0);
            for tap in 0..g.taps {
                let k = [tap / (d[1].window * d[2].window), tap / d[2].window % d[1].window, tap % d[2].window];
                let at: isize = (0..3).map(|i| k[i] as isize * g.w_spatial[i]).sum();
                for f in 0..fs {
                    // SAFETY: a weight of an existing feature and tap.
                    w[tap * fb + f] = unsafe { load(&c.weight, at + (f0 + f) as isize * c.weight.major) };
                }
            }
            for y in 0..lines {
                acc.fill(T::zero());
                let o = [y / d[1].output, y % d[1].output];
                for k01 in 0..d[0].window * d[1].window {
                    let k = [k01 / d[1].window, k01 % d[1].window];
                    let (Some(i0), Some(i1)) = (
                        super::patches::input_index(&d[0], o[0], k[0]),
                        super::patches::input_index(&d[1], o[1], k[1]),
                    ) else {
                        continue;
                    };
                    let at = n as isize * c.input.major
                        + i0 * g.in_spatial[0]
                        + i1 * g.in_spatial[1]
                        + (f0 / g.go) as isize * c.input.minor;
                    // SAFETY: the row lies inside the input.
                    unsafe {
                        if across {
                            for x in 0..d[2].output {
                                for k2 in 0..d[2].window {
                                    let Some(i2) = super::patches::input_index(&d[2], x, k2) else { continue };
                                    load_run(&c.input, at + i2 * g.in_spatial[2], 1, &mut line[..fs]);
                                    let tap = k01 * d[2].window + k2;
                                    multiply_add(&mut acc[x * fb..][..fs], &line[..fs], &w[tap * fb..][..fs]);
                                }
                            }
                        } else {
                            load_run(&c.input, at, g.in_spatial[2], &mut line);
                            for k2 in 0..d[2].window {
                                taps(&mut acc, &line, w[k01 * d[2].window + k2], &d[2], k2);
                            }
                        }
                    }
                }
                let base = n as isize * c.output.major
                    + o[0] as isize * g.out_spatial[0]
                    + o[1] as isize * g.out_spatial[1]
                    + f0 as isize * c.output.minor;
                for x in 0..d[2].output {
                    let at = base + x as isize * g.out_spatial[2];
                    // SAFETY: elements of this output row.
                    unsafe {
                        if !across && g.out_spatial[2] == 1 {
                            store_run(&c.output, at, &acc);
                            break;
                        }
                        store_run(&c.output, at, &acc[x * fb..][..fs]);
                    }
                }
            }
        }
    });
}

unsafe fn load<T: Scalar>(a: &ConvArray, at: isize) -> T {
    // SAFETY: the caller's element.
    T::from_f64(unsafe { a.elem.load_f64(Ptr(a.ptr).at::<u8>(at * a.elem.size() as isize)) })
}

/// Reads a run of elements with stride `step`.
unsafe fn load_run<T: Scalar>(a: &ConvArray, at: isize, step: isize, out: &mut [T]) {
    let p = Ptr(a.ptr).at::<u8>(at * a.elem.size() as isize);
    // SAFETY: the caller's elements.
    unsafe {
        if step == 1 && T::ELEM == Elem::F32 {
            return simd::load_f32(a.elem, p, out.as_mut_ptr().cast(), out.len());
        }
        for (i, o) in out.iter_mut().enumerate() {
            *o = load(a, at + i as isize * step);
        }
    }
}

/// Writes neighbouring elements.
unsafe fn store_run<T: Scalar>(a: &ConvArray, at: isize, v: &[T]) {
    let size = a.elem.size();
    let p = Ptr(a.ptr).at::<u8>(at * size as isize);
    // SAFETY: the caller's elements.
    unsafe {
        if T::ELEM == Elem::F32 {
            return simd::store_f32(a.elem, v.as_ptr().cast(), p, v.len());
        }
        for (i, x) in v.iter().enumerate() {
            a.elem.store_f64(p.add(i * size), x.to_f64());
        }
    }
}

/// Adds tap `k` of weight `w` to every output of a row whose element lies in the input.
fn taps<T: Scalar>(acc: &mut [T], line: &[T], w: T, d: &super::ConvDim, k: usize) {
    if d.lhs_dilation != 1 {
        for (x, a) in acc.iter_mut().enumerate() {
            if let Some(i) = super::patches::input_index(d, x, k) {
                *a = a.add(line[i as usize].mul(w));
            }
        }
        return;
    }
    // Outputs x with 0 <= x·stride + off < input.
    let off = (k * d.rhs_dilation) as isize - d.pad_lo;
    let s = d.stride as isize;
    let lo = (-off + s - 1).div_euclid(s).max(0);
    let hi = (d.input as isize - off + s - 1).div_euclid(s).min(acc.len() as isize);
    if lo >= hi {
        return;
    }
    let first = (lo * s + off) as usize;
    scaled_add(&mut acc[lo as usize..hi as usize], &line[first..], d.stride, w);
}

macro_rules! vectorised {
    ($name:ident, $body:ident, ($($a:ident: $t:ty),*)) => {
        fn $name<T: Scalar>($($a: $t),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2<T: Scalar>($($a: $t),*) { $body($($a),*) }
                if isa::current() >= Isa::Avx2 {
                    // SAFETY: AVX2 and FMA are present.
                    return unsafe { avx2($($a),*) };
                }
            }
            $body($($a),*)
        }
    };
}

#[inline(always)]
fn scaled_add_body<T: Scalar>(acc: &mut [T], line: &[T], step: usize, w: T) {
    if step == 1 {
        acc.iter_mut().zip(line).for_each(|(a, x)| *a = a.add(x.mul(w)));
    } else {
        acc.iter_mut().zip(line.iter().step_by(step)).for_each(|(a, x)| *a = a.add(x.mul(w)));
    }
}
#[inline(always)]
fn multiply_add_body<T: Scalar>(acc: &mut [T], x: &[T], w: &[T]) {
    acc.iter_mut().zip(x).zip(w).for_each(|((a, x), w)| *a = a.add(x.mul(*w)));
}
vectorised!(scaled_add, scaled_add_body, (acc: &mut [T], line: &[T], step: usize, w: T));
vectorised!(multiply_add, multiply_add_body, (acc: &mut [T], x: &[T], w: &[T]));
