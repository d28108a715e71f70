//! Shared vector helpers: loading 16-bit floats as f32, 8×8 transposes, row conversions.

use super::elem::{BF16, Elem, F16, cast};
use super::isa::{self, Isa};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BF16, F16};
    use std::arch::x86_64::*;

    /// Reads eight neighbouring elements as f32. Only under AVX2, FMA and F16C.
    pub(crate) trait Load8 {
        const SIZE: usize;
        unsafe fn load8(p: *const u8) -> __m256;
        unsafe fn load1(p: *const u8) -> f32;
    }
    pub(crate) struct LoadF32;
    pub(crate) struct LoadBf16;
    pub(crate) struct LoadF16;

    impl Load8 for LoadF32 {
        const SIZE: usize = 4;
        #[inline(always)]
        unsafe fn load8(p: *const u8) -> __m256 {
            // SAFETY: the caller has AVX and 32 readable bytes.
            unsafe { _mm256_loadu_ps(p.cast()) }
        }
        #[inline(always)]
        unsafe fn load1(p: *const u8) -> f32 {
            // SAFETY: the caller's contract.
            unsafe { p.cast::<f32>().read_unaligned() }
        }
    }
    impl Load8 for LoadBf16 {
        const SIZE: usize = 2;
        #[inline(always)]
        unsafe fn load8(p: *const u8) -> __m256 {
            // SAFETY: the caller has AVX2 and 16 readable bytes.
            unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
        }
        #[inline(always)]
        unsafe fn load1(p: *const u8) -> f32 {
            // SAFETY: the caller's contract.
            unsafe { p.cast::<BF16>().read_unaligned().to_f32() }
        }
    }
    impl Load8 for LoadF16 {
        const SIZE: usize = 2;
        #[inline(always)]
        unsafe fn load8(p: *const u8) -> __m256 {
            // SAFETY: the caller has F16C and 16 readable bytes.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load1(p: *const u8) -> f32 {
            // SAFETY: the caller's contract.
            unsafe { p.cast::<F16>().read_unaligned().to_f32() }
        }
    }

    /// Transposes an 8×8 block of f32 in registers.
    #[inline(always)]
    pub(crate) unsafe fn transpose8(r: &mut [__m256; 8]) {
        // SAFETY: register moves only; the caller has AVX.
        unsafe {
            let a: [__m256; 8] = [
                _mm256_unpacklo_ps(r[0], r[1]),
                _mm256_unpackhi_ps(r[0], r[1]),
                _mm256_unpacklo_ps(r[2], r[3]),
                _mm256_unpackhi_ps(r[2], r[3]),
                _mm256_unpacklo_ps(r[4], r[5]),
                _mm256_unpackhi_ps(r[4], r[5]),
                _mm256_unpacklo_ps(r[6], r[7]),
                _mm256_unpackhi_ps(r[6], r[7]),
            ];
            let b: [__m256; 8] = [
                _mm256_shuffle_ps::<0x44>(a[0], a[2]),
                _mm256_shuffle_ps::<0xEE>(a[0], a[2]),
                _mm256_shuffle_ps::<0x44>(a[1], a[3]),
                _mm256_shuffle_ps::<0xEE>(a[1], a[3]),
                _mm256_shuffle_ps::<0x44>(a[4], a[6]),
                _mm256_shuffle_ps::<0xEE>(a[4], a[6]),
                _mm256_shuffle_ps::<0x44>(a[5], a[7]),
                _mm256_shuffle_ps::<0xEE>(a[5], a[7]),
            ];
            for i in 0..4 {
                r[i] = _mm256_permute2f128_ps::<0x20>(b[i], b[i + 4]);
                r[i + 4] = _mm256_permute2f128_ps::<0x31>(b[i], b[i + 4]);
            }
        }
    }

    /// Rounds eight f32 to bf16 (nearest even, NaN to 0x7FC0).
    #[inline(always)]
    pub(crate) unsafe fn to_bf16(v: __m256) -> __m128i {
        // SAFETY: register arithmetic only; the caller has AVX2.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let lsb = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let r = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7FFF))));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7FC0), nan);
            let p = _mm256_packus_epi32(r, r);
            _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0x08>(p))
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn narrow_rows(bf: bool, src: *const f32, dst: *mut u16, n: usize) {
        let mut i = 0;
        // SAFETY: the caller's `n` elements.
        unsafe {
            while i + 8 <= n {
                let v = _mm256_loadu_ps(src.add(i));
                let h = if bf { to_bf16(v) } else { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) };
                _mm_storeu_si128(dst.add(i).cast(), h);
                i += 8;
            }
            while i < n {
                let v = *src.add(i);
                dst.add(i).write_unaligned(if bf { BF16::from_f32(v).0 } else { F16::from_f32(v).0 });
                i += 1;
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn widen_rows(bf: bool, src: *const u8, dst: *mut f32, n: usize) {
        let mut i = 0;
        // SAFETY: the caller's `n` elements.
        unsafe {
            while i + 8 <= n {
                let v = if bf { LoadBf16::load8(src.add(2 * i)) } else { LoadF16::load8(src.add(2 * i)) };
                _mm256_storeu_ps(dst.add(i), v);
                i += 8;
            }
            while i < n {
                *dst.add(i) = if bf { LoadBf16::load1(src.add(2 * i)) } else { LoadF16::load1(src.add(2 * i)) };
                i += 1;
            }
        }
    }
}
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

/// Writes `n` neighbouring f32 as `elem`, converting.
///
/// # Safety
/// `src` and `dst` cover `n` elements and do not overlap.
pub(crate) unsafe fn store_f32(elem: Elem, src: *const f32, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match elem {
            Elem::F32 => std::ptr::copy_nonoverlapping(src, dst.cast(), n),
            #[cfg(target_arch = "x86_64")]
            Elem::BF16 | Elem::F16 if isa::current() >= Isa::Avx2 => {
                narrow_rows(elem == Elem::BF16, src, dst.cast(), n)
            }
            _ => crate::dispatch_elem!(elem, T => for i in 0..n {
                dst.cast::<T>().add(i).write_unaligned(cast::<f32, T>(*src.add(i)));
            }),
        }
    }
}

/// Reads `n` neighbouring elements of type `elem` as f32.
///
/// # Safety
/// As [`store_f32`].
pub(crate) unsafe fn load_f32(elem: Elem, src: *const u8, dst: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match elem {
            Elem::F32 => std::ptr::copy_nonoverlapping(src.cast(), dst, n),
            #[cfg(target_arch = "x86_64")]
            Elem::BF16 | Elem::F16 if isa::current() >= Isa::Avx2 => widen_rows(elem == Elem::BF16, src, dst, n),
            _ => crate::dispatch_elem!(elem, T => for i in 0..n {
                *dst.add(i) = cast::<T, f32>(src.cast::<T>().add(i).read_unaligned());
            }),
        }
    }
}
