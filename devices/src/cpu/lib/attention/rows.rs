//! Row kernels of softmax: written once, compiled for each instruction set.

use crate::cpu::lib::isa::{self, Isa};

/// `a·b + c`, in one step where the instruction set has one.
#[inline(always)]
fn mac<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// e^x for x ≤ 0 (and a little above), within 2 ulp; 0 below -87.3; NaN stays. Cephes' polynomial;
/// no branch, so that loops over it become vectors.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let t = mac::<FMA>(x, std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = mac::<FMA>(n, -0.693_359_375, x);
    let r = mac::<FMA>(n, 2.121_944_4e-4, r);
    let p = mac::<FMA>(1.987_569_15e-4, r, 1.398_199_950_7e-3);
    let p = mac::<FMA>(p, r, 8.333_451_907_3e-3);
    let p = mac::<FMA>(p, r, 4.166_579_589_4e-2);
    let p = mac::<FMA>(p, r, 1.666_666_545_9e-1);
    let p = mac::<FMA>(p, r, 5.000_000_120_1e-1);
    let y = mac::<FMA>(p, r * r, r) + 1.0;
    let k = t.to_bits().wrapping_sub(MAGIC.to_bits());
    let s = f32::from_bits(k.wrapping_add(127) << 23);
    // Far below, what was computed is garbage.
    if x < -87.3 { 0.0 } else { y * s }
}

/// Rows are handled in chunks of so many numbers, a whole number of vectors of any width.
pub(super) const L: usize = 16;

#[inline(always)]
fn max2(a: f32, b: f32) -> f32 {
    // Written so that a NaN on either side stays.
    if b > a || b != b { b } else { a }
}

/// All lanes as one, pairwise, so that the order does not depend on the vector width.
#[inline(always)]
fn across(mut x: [f32; L], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut w = L / 2;
    while w > 0 {
        for l in 0..w {
            x[l] = f(x[l], x[l + w]);
        }
        w /= 2;
    }
    x[0]
}

/// The first `seen` numbers: `s = s·scale + bias`; those behind them, in the last chunk: -inf. Returns the greatest (NaN
/// if there is one, -inf if empty). `s` is of whole chunks, and `bias` as long.
#[inline(always)]
fn scale_max_body<const FMA: bool>(s: &mut [f32], seen: usize, scale: f32, bias: Option<&[f32]>) -> f32 {
    let mut m = [f32::NEG_INFINITY; L];
    let (whole, last) = s.split_at_mut(seen / L * L);
    match bias {
        Some(b) => {
            for (c, b) in whole.chunks_exact_mut(L).zip(b.chunks_exact(L)) {
                for l in 0..L {
                    c[l] = mac::<FMA>(c[l], scale, b[l]);
                    m[l] = max2(m[l], c[l]);
                }
            }
        }
        None => {
            for c in whole.chunks_exact_mut(L) {
                for l in 0..L {
                    c[l] *= scale;
                    m[l] = max2(m[l], c[l]);
                }
            }
        }
    }
    if let Some(c) = last.first_chunk_mut::<L>() {
        let zeros = [0f32; L];
        let b = bias.map_or(&zeros[..], |b| &b[seen / L * L..][..L]);
        let left = (seen % L) as i32;
        for l in 0..L {
            let x = mac::<FMA>(c[l], scale, b[l]);
            c[l] = if (l as i32) < left { x } else { f32::NEG_INFINITY };
            m[l] = max2(m[l], c[l]);
        }
    }
    across(m, max2)
}

/// `s = e^(s - m)`; returns the sum. `s` is of whole chunks.
#[inline(always)]
fn exp_sum_body<const FMA: bool>(s: &mut [f32], m: f32) -> f32 {
    let mut sum = [0f32; L];
    for c in s.chunks_exact_mut(L) {
        for l in 0..L {
            c[l] = exp::<FMA>(c[l] - m);
            sum[l] += c[l];
        }
    }
    across(sum, |a, b| a + b)
}

/// `Σ x·y`.
#[inline(always)]
fn dot_body<const FMA: bool>(x: &[f32], y: &[f32]) -> f32 {
    let mut sum = [0f32; L];
    let (xs, ys) = (x.chunks_exact(L), y.chunks_exact(L));
    let tail = xs.remainder().iter().zip(ys.remainder()).fold(0.0, |s, (a, b)| mac::<FMA>(*a, *b, s));
    for (x, y) in xs.zip(ys) {
        for l in 0..L {
            sum[l] = mac::<FMA>(x[l], y[l], sum[l]);
        }
    }
    across(sum, |a, b| a + b) + tail
}

/// `x *= by`.
#[inline(always)]
fn multiply_body<const FMA: bool>(x: &mut [f32], by: f32) {
    x.iter_mut().for_each(|x| *x *= by);
}

/// Natural logarithm of positive normal numbers within 1 ulp; +inf and NaN stay. Cephes' polynomial; no branch.
#[inline(always)]
fn ln<const FMA: bool>(x: f32) -> f32 {
    // The exponent for which the rest is in [√½, √2).
    let bits = x.to_bits();
    let e = (bits.wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let r = f32::from_bits(bits.wrapping_sub((e << 23) as u32)) - 1.0;
    let e = e as f32;
    let p = mac::<FMA>(7.037_683_6e-2, r, -1.151_461e-1);
    let p = mac::<FMA>(p, r, 1.167_699_9e-1);
    let p = mac::<FMA>(p, r, -1.242_014_1e-1);
    let p = mac::<FMA>(p, r, 1.424_932_3e-1);
    let p = mac::<FMA>(p, r, -1.666_805_8e-1);
    let p = mac::<FMA>(p, r, 2.000_071_5e-1);
    let p = mac::<FMA>(p, r, -2.499_999_4e-1);
    let p = mac::<FMA>(p, r, 3.333_333_1e-1);
    let z = r * r;
    let y = mac::<FMA>(p * r, z, e * -2.121_944_4e-4);
    let y = mac::<FMA>(z, -0.5, y) + r;
    let y = mac::<FMA>(e, 0.693_359_375, y);
    if x < f32::INFINITY { y } else { x }
}

/// Ends queries: their greatest scores `m`, in powers of 2, become log-sum-exps, and their sums of weights `l` become the
/// factors of their outputs. What saw nothing has l = 0, and becomes 0.
#[inline(always)]
fn finish_body<const FMA: bool>(m: &mut [f32], l: &mut [f32]) {
    for (m, l) in m.iter_mut().zip(l.iter_mut()) {
        let lse = mac::<FMA>(*m, std::f32::consts::LN_2, ln::<FMA>(*l));
        *m = if *l == 0.0 { 0.0 } else { lse };
        *l = if *l == 0.0 { 0.0 } else { 1.0 / *l };
    }
}

/// Multiplies rows, each as long as `by`, by it.
#[inline(always)]
fn multiply_rows_body<const FMA: bool>(x: &mut [f32], by: &[f32]) {
    for row in x.chunks_exact_mut(by.len()) {
        row.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
    }
}

macro_rules! versions {
    ($name:ident, $body:ident, ($($a:ident: $t:ty),*) $(-> $r:ty)?) => {
        #[inline]
        pub(super) fn $name($($a: $t),*) $(-> $r)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($a: $t),*) $(-> $r)? { $body::<true>($($a),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
                fn avx512($($a: $t),*) $(-> $r)? { $body::<true>($($a),*) }
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
            $body::<false>($($a),*)
        }
    };
}
versions!(scale_max, scale_max_body, (s: &mut [f32], seen: usize, scale: f32, bias: Option<&[f32]>) -> f32);
versions!(exp_sum, exp_sum_body, (s: &mut [f32], m: f32) -> f32);
versions!(multiply, multiply_body, (x: &mut [f32], by: f32));
versions!(finish, finish_body, (m: &mut [f32], l: &mut [f32]));
versions!(multiply_rows, multiply_rows_body, (x: &mut [f32], by: &[f32]));
versions!(dot, dot_body, (x: &[f32], y: &[f32]) -> f32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_special_values_hold() {
        fn check<const FMA: bool>() {
            let mut worst = 0f64;
            for i in 0..200_000 {
                let x = -(i as f32) * 87.0 / 200_000.0;
                let want = (x as f64).exp();
                worst = worst.max((exp::<FMA>(x) as f64 - want).abs() / want);
            }
            assert!(worst < 2.5e-7, "{worst}");
            assert_eq!(exp::<FMA>(f32::NEG_INFINITY), 0.0);
            assert_eq!(exp::<FMA>(-1e30), 0.0);
            assert_eq!(exp::<FMA>(0.0), 1.0);
            assert!(exp::<FMA>(f32::NAN).is_nan());
        }
        check::<true>();
        check::<false>();
    }

    #[test]
    fn what_is_not_seen_has_no_weight() {
        for seen in [0, 1, 15, 16, 17, 31, 32] {
            let mut s: Vec<f32> = (0..32).map(|i| if i < seen { i as f32 * 0.25 - 3.0 } else { f32::NAN }).collect();
            let top = scale_max(&mut s, seen, -2.0, None);
            assert_eq!(top, if seen == 0 { f32::NEG_INFINITY } else { 6.0 }, "{seen}");
            let sum = exp_sum(&mut s[..seen.next_multiple_of(L)], 6.0);
            let want: f64 = (0..seen).map(|i| (-0.5 * i as f64).exp()).sum();
            assert!((sum as f64 - want).abs() < 1e-6 * want.max(1.0), "{seen}: {sum} {want}");
            assert!(s[seen..seen.next_multiple_of(L)].iter().all(|&x| x == 0.0));
        }
    }
}
