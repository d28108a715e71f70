//! Vectors of f32 scores: what softmax needs beyond multiply-add, for each instruction set.

use crate::cpu::lib::gemm::kernel::Portable;
#[cfg(target_arch = "x86_64")]
use crate::cpu::lib::gemm::kernel::x86::{Ymm32, Zmm32};

/// A vector of f32. Methods may be called only where the instruction set is present.
pub(super) trait Real {
    type V: Copy;
    const N: usize;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a·b + c`, in one step where the instruction set has one.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater; `b` if one of them is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a` from lane `first` on, `b` before it.
    unsafe fn from_lane(first: i32, a: Self::V, b: Self::V) -> Self::V;
    /// `a` where `x` is not -inf, else `b`.
    unsafe fn unless_lowest(x: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// The nearest integer, ties to even.
    unsafe fn round(x: Self::V) -> Self::V;
    /// `y·2^n` for an integer `n` >= -126 and y about 1; 0 where `x < LOWEST`.
    unsafe fn scale(y: Self::V, n: Self::V, x: Self::V) -> Self::V;
    /// Writes N rows of N numbers, multiplied by `by` lane by lane, as columns; strides count numbers.
    unsafe fn transpose(src: *const f32, src_row: isize, by: Self::V, dst: *mut f32, dst_row: isize);
}

/// Writes a matrix as its transpose, each column multiplied by its own factor (`by_step` = 1) or all by the same
/// vector's (0). `rows` and `cols` are multiples of a vector.
///
/// # Safety
/// The matrices and the factors are live memory, and do not overlap; the processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn transpose<R: Real>(
    src: *const f32,
    src_row: isize,
    rows: usize,
    cols: usize,
    by: *const f32,
    by_step: usize,
    dst: *mut f32,
    dst_row: isize,
) {
    for j in (0..cols).step_by(R::N) {
        // SAFETY: the caller's contract.
        unsafe {
            let by = R::load(by.add(j * by_step));
            for i in (0..rows).step_by(R::N) {
                let src = src.wrapping_offset(i as isize * src_row).wrapping_add(j);
                let dst = dst.wrapping_offset(j as isize * dst_row).wrapping_add(i);
                R::transpose(src, src_row, by, dst, dst_row);
            }
        }
    }
}

/// Powers of two below this are taken for 0: their products with finite values are nothing beside a row's greatest
/// weight, which is 1, and numbers below the normal ones are slow.
pub(super) const LOWEST: f32 = -125.0;

/// 2^x within 1.5 ulp for x <= 127; exactly 1 for 0, 0 below [`LOWEST`]; NaN stays.
///
/// The polynomial has the least greatest relative error (2.6e-9) of all with degree 6 and constant 1 on [-1/2, 1/2].
#[inline(always)]
pub(super) unsafe fn exp2<R: Real>(x: R::V) -> R::V {
    // SAFETY: register arithmetic; the caller has the instruction set.
    unsafe {
        let n = R::round(x);
        let r = R::sub(x, n);
        let mut y = R::splat(1.559_467_8e-4);
        y = R::fma(y, r, R::splat(1.340_664_3e-3));
        y = R::fma(y, r, R::splat(9.617_693e-3));
        y = R::fma(y, r, R::splat(5.550_310_4e-2));
        y = R::fma(y, r, R::splat(2.402_265_2e-1));
        y = R::fma(y, r, R::splat(6.931_472_4e-1));
        y = R::fma(y, r, R::splat(1.0));
        R::scale(y, n, x)
    }
}

impl Real for Portable<f32> {
    type V = [f32; 4];
    const N: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: the caller's numbers.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // SAFETY: as above.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn from_lane(first: i32, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if i as i32 >= first { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn unless_lowest(x: [f32; 4], a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if x[i] == f32::NEG_INFINITY { b[i] } else { a[i] })
    }
    #[inline(always)]
    unsafe fn round(x: [f32; 4]) -> [f32; 4] {
        // Adding this leaves no bits below 1. What has none already, or is far from 0, is not used.
        const MAGIC: f32 = 12_582_912.0;
        x.map(|x| (x + MAGIC) - MAGIC)
    }
    #[inline(always)]
    unsafe fn scale(y: [f32; 4], n: [f32; 4], x: [f32; 4]) -> [f32; 4] {
        // The exponent's bits, by the same addition as in `round`: no conversion that saturates.
        const MAGIC: f32 = 12_582_912.0;
        std::array::from_fn(|i| {
            let k = (n[i] + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
            let s = f32::from_bits(k.wrapping_add(127) << 23);
            if x[i] < LOWEST { 0.0 } else { y[i] * s }
        })
    }
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_row: isize, by: [f32; 4], dst: *mut f32, dst_row: isize) {
        for i in 0..4 {
            for j in 0..4 {
                // SAFETY: the caller's 4 rows and 4 columns.
                unsafe {
                    let x = *src.wrapping_offset(i as isize * src_row).add(j);
                    *dst.wrapping_offset(j as isize * dst_row).add(i) = x * by[j];
                }
            }
        }
    }
}

/// The methods that are one intrinsic each.
#[cfg(target_arch = "x86_64")]
macro_rules! plain {
    ($v:ty, $n:literal, $set1:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $fma:ident, $max:ident) => {
        type V = $v;
        const N: usize = $n;
        #[inline(always)]
        unsafe fn splat(x: f32) -> $v {
            // SAFETY: instantiated only under the lane's target feature.
            unsafe { $set1(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> $v {
            // SAFETY: as above; the caller's numbers.
            unsafe { $load(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: $v) {
            // SAFETY: as above; the caller's numbers.
            unsafe { $store(p, v) }
        }
        #[inline(always)]
        unsafe fn add(a: $v, b: $v) -> $v {
            // SAFETY: as above.
            unsafe { $add(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: $v, b: $v) -> $v {
            // SAFETY: as above.
            unsafe { $sub(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: $v, b: $v) -> $v {
            // SAFETY: as above.
            unsafe { $mul(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: $v, b: $v, c: $v) -> $v {
            // SAFETY: as above.
            unsafe { $fma(a, b, c) }
        }
        #[inline(always)]
        unsafe fn max(a: $v, b: $v) -> $v {
            // SAFETY: as above.
            unsafe { $max(a, b) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LOWEST, Real, Ymm32, Zmm32};
    use crate::cpu::lib::simd::{transpose8, transpose16};
    use std::arch::x86_64::*;

    impl Real for Ymm32 {
        plain!(
            __m256,
            8,
            _mm256_set1_ps,
            _mm256_loadu_ps,
            _mm256_storeu_ps,
            _mm256_add_ps,
            _mm256_sub_ps,
            _mm256_mul_ps,
            _mm256_fmadd_ps,
            _mm256_max_ps
        );
        #[inline(always)]
        unsafe fn from_lane(first: i32, a: __m256, b: __m256) -> __m256 {
            // SAFETY: instantiated only under AVX2 and FMA, as everything in this impl.
            unsafe {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane);
                _mm256_blendv_ps(a, b, _mm256_castsi256_ps(before))
            }
        }
        #[inline(always)]
        unsafe fn unless_lowest(x: __m256, a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_blendv_ps(a, b, _mm256_cmp_ps::<_CMP_EQ_OQ>(x, _mm256_set1_ps(f32::NEG_INFINITY))) }
        }
        #[inline(always)]
        unsafe fn round(x: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
        }
        #[inline(always)]
        unsafe fn scale(y: __m256, n: __m256, x: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let k = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n));
                let p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), k));
                _mm256_and_ps(p, _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(LOWEST)))
            }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, src_row: isize, by: __m256, dst: *mut f32, dst_row: isize) {
            // SAFETY: as above; the caller's 8 rows and 8 columns.
            unsafe {
                let mut r = [by; 8];
                for (i, r) in r.iter_mut().enumerate() {
                    *r = _mm256_mul_ps(*r, _mm256_loadu_ps(src.wrapping_offset(i as isize * src_row)));
                }
                transpose8(&mut r);
                for (i, r) in r.iter().enumerate() {
                    _mm256_storeu_ps(dst.wrapping_offset(i as isize * dst_row), *r);
                }
            }
        }
    }

    impl Real for Zmm32 {
        plain!(
            __m512,
            16,
            _mm512_set1_ps,
            _mm512_loadu_ps,
            _mm512_storeu_ps,
            _mm512_add_ps,
            _mm512_sub_ps,
            _mm512_mul_ps,
            _mm512_fmadd_ps,
            _mm512_max_ps
        );
        #[inline(always)]
        unsafe fn from_lane(first: i32, a: __m512, b: __m512) -> __m512 {
            // SAFETY: instantiated only under AVX-512, as everything in this impl.
            unsafe { _mm512_mask_mov_ps(b, (0xFFFFu32 << first.clamp(0, 16)) as u16, a) }
        }
        #[inline(always)]
        unsafe fn unless_lowest(x: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(x, _mm512_set1_ps(f32::NEG_INFINITY)), b) }
        }
        #[inline(always)]
        unsafe fn round(x: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
        }
        #[inline(always)]
        unsafe fn scale(y: __m512, n: __m512, x: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(LOWEST)), y, n) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, src_row: isize, by: __m512, dst: *mut f32, dst_row: isize) {
            // SAFETY: as above; the caller's 16 rows and 16 columns.
            unsafe {
                let mut r = [by; 16];
                for (i, r) in r.iter_mut().enumerate() {
                    *r = _mm512_mul_ps(*r, _mm512_loadu_ps(src.wrapping_offset(i as isize * src_row)));
                }
                transpose16(&mut r);
                for (i, r) in r.iter().enumerate() {
                    _mm512_storeu_ps(dst.wrapping_offset(i as isize * dst_row), *r);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::isa::{self, Isa};

    #[inline(always)]
    unsafe fn all<R: Real>(x: &mut [f32]) {
        for x in x.chunks_exact_mut(R::N) {
            // SAFETY: a chunk holds a vector; the caller has the instruction set.
            unsafe { R::store(x.as_mut_ptr(), exp2::<R>(R::load(x.as_ptr()))) };
        }
    }

    fn at(level: Isa, x: &mut [f32]) {
        match level {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
                unsafe fn f(x: &mut [f32]) {
                    // SAFETY: the features are enabled here.
                    unsafe { all::<Zmm32>(x) }
                }
                // SAFETY: the caller has the instruction set.
                unsafe { f(x) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                #[target_feature(enable = "avx2,fma")]
                unsafe fn f(x: &mut [f32]) {
                    // SAFETY: the features are enabled here.
                    unsafe { all::<Ymm32>(x) }
                }
                // SAFETY: the caller has the instruction set.
                unsafe { f(x) }
            }
            // SAFETY: no instruction set is asked for.
            _ => unsafe { all::<Portable<f32>>(x) },
        }
    }

    #[test]
    fn powers_are_close_and_special_values_hold() {
        for level in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            if level > isa::current() {
                continue;
            }
            let x: Vec<f32> = (0..1 << 18).map(|i| -125.0 + i as f32 * (250.0 / (1 << 18) as f32)).collect();
            let mut y = x.clone();
            at(level, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let want = (*x as f64).exp2();
                assert!((*y as f64 - want).abs() <= 1.5e-7 * want, "{level:?} {x} {y} {want}");
            }
            let mut x = [0f32; 16];
            x[..8].copy_from_slice(&[0.0, -0.0, 1.0, -125.5, -1e30, f32::NEG_INFINITY, f32::NAN, -125.0]);
            at(level, &mut x);
            assert_eq!(x[..6], [1.0, 1.0, 2.0, 0.0, 0.0, 0.0], "{level:?}");
            assert!(x[6].is_nan());
            assert_eq!(x[7], 2f32.powi(-125));
        }
    }
}
