//! Row kernels of softmax: written once, compiled for each instruction set.

use crate::cpu::lib::isa::{self, Isa};

/// e^x for x ≤ 0 (and a little above), within 2 ulp; 0 below -87.3; NaN stays. Cephes' polynomial;
/// no branch, so that loops over it become vectors.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let c = if x > 88.0 { 88.0 } else { x };
    let c = if c < -88.0 { -88.0 } else { c };
    let t = c * std::f32::consts::LOG2_E + MAGIC;
    let n = t - MAGIC;
    let r = c - n * 0.693_359_375;
    let r = r - n * -2.121_944_4e-4;
    let p = 1.987_569_15e-4;
    let p = p * r + 1.398_199_950_7e-3;
    let p = p * r + 8.333_451_907_3e-3;
    let p = p * r + 4.166_579_589_4e-2;
    let p = p * r + 1.666_666_545_9e-1;
    let p = p * r + 5.000_000_120_1e-1;
    let y = p * (r * r) + r + 1.0;
    let k = t.to_bits().wrapping_sub(MAGIC.to_bits());
    let s = f32::from_bits(k.wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { y * s }
}

const L: usize = 16;

#[inline(always)]
fn max2(a: f32, b: f32) -> f32 {
    // Written so that a NaN on either side stays.
    if b > a || b != b { b } else { a }
}

/// `s = s·scale + bias`; returns the greatest (NaN if there is one, -inf if empty).
#[inline(always)]
fn scale_max_body(s: &mut [f32], scale: f32, bias: Option<&[f32]>) -> f32 {
    let mut m = [f32::NEG_INFINITY; L];
    let n = s.len();
    match bias {
        Some(b) => s.iter_mut().zip(&b[..n]).for_each(|(x, b)| *x = *x * scale + b),
        None => s.iter_mut().for_each(|x| *x *= scale),
    }
    let mut chunks = s.chunks_exact(L);
    for c in &mut chunks {
        for l in 0..L {
            m[l] = if c[l] > m[l] || c[l] != c[l] { c[l] } else { m[l] };
        }
    }
    let tail = chunks.remainder().iter().fold(f32::NEG_INFINITY, |a, &x| max2(a, x));
    m.iter().fold(tail, |a, &x| max2(a, x))
}

/// `s = e^(s - m)`; returns the sum.
#[inline(always)]
fn exp_sum_body(s: &mut [f32], m: f32) -> f32 {
    let mut sum = [0f32; L];
    let mut chunks = s.chunks_exact_mut(L);
    for c in &mut chunks {
        for l in 0..L {
            c[l] = exp(c[l] - m);
            sum[l] += c[l];
        }
    }
    let mut total = 0.0;
    for x in chunks.into_remainder() {
        *x = exp(*x - m);
        total += *x;
    }
    // Pairwise, so that the order does not depend on the vector width.
    let mut w = L / 2;
    while w > 0 {
        for l in 0..w {
            sum[l] += sum[l + w];
        }
        w /= 2;
    }
    total + sum[0]
}

/// `s = e^(s·scale + bias - lse)` (the probabilities), `d = s·(d - delta)·scale` (their gradient
/// towards the scores).
#[inline(always)]
fn backward_body(s: &mut [f32], d: &mut [f32], scale: f32, bias: Option<&[f32]>, lse: f32, delta: f32) {
    let n = s.len();
    let d = &mut d[..n];
    match bias {
        Some(b) => {
            let b = &b[..n];
            for i in 0..n {
                s[i] = exp(s[i] * scale + b[i] - lse);
                d[i] = s[i] * (d[i] - delta) * scale;
            }
        }
        None => {
            for i in 0..n {
                s[i] = exp(s[i] * scale - lse);
                d[i] = s[i] * (d[i] - delta) * scale;
            }
        }
    }
}

macro_rules! versions {
    ($name:ident, $body:ident, ($($a:ident: $t:ty),*) $(-> $r:ty)?) => {
        #[inline]
        pub(super) fn $name($($a: $t),*) $(-> $r)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($a: $t),*) $(-> $r)? { $body($($a),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
                fn avx512($($a: $t),*) $(-> $r)? { $body($($a),*) }
                let isa = isa::current();
                if isa >= Isa::Avx512 {
                    // SAFETY: the processor has the features.
                    return unsafe { avx512($($a),*) };
                }
                if isa >= Isa::Avx2 {
                    // SAFETY: as above.
                    return unsafe { avx2($($a),*) };
                }
            }
            $body($($a),*)
        }
    };
}
versions!(scale_max, scale_max_body, (s: &mut [f32], scale: f32, bias: Option<&[f32]>) -> f32);
versions!(exp_sum, exp_sum_body, (s: &mut [f32], m: f32) -> f32);
versions!(backward_row, backward_body, (s: &mut [f32], d: &mut [f32], scale: f32, bias: Option<&[f32]>, lse: f32, delta: f32));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_special_values_hold() {
        let mut worst = 0f64;
        for i in 0..200_000 {
            let x = -(i as f32) * 87.0 / 200_000.0;
            let want = (x as f64).exp();
            worst = worst.max((exp(x) as f64 - want).abs() / want);
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
