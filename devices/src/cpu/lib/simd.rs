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

    /// Transposes a 16×16 block of f32 in registers.
    #[inline(always)]
    pub(crate) unsafe fn transpose16(r: &mut [__m512; 16]) {
        // SAFETY: register moves only; the caller has AVX-512.
        unsafe {
            // 4×4 squares within 128-bit parts: row 4g + j then has column j of each part, of rows 4g to 4g + 3.
            for g in (0..16).step_by(4) {
                let (a, b) = (_mm512_unpacklo_ps(r[g], r[g + 1]), _mm512_unpackhi_ps(r[g], r[g + 1]));
                let (c, d) = (_mm512_unpacklo_ps(r[g + 2], r[g + 3]), _mm512_unpackhi_ps(r[g + 2], r[g + 3]));
                r[g] = _mm512_shuffle_ps::<0x44>(a, c);
                r[g + 1] = _mm512_shuffle_ps::<0xEE>(a, c);
                r[g + 2] = _mm512_shuffle_ps::<0x44>(b, d);
                r[g + 3] = _mm512_shuffle_ps::<0xEE>(b, d);
            }
            // Then the parts: a 4×4 transpose of 128-bit numbers for each j.
            for j in 0..4 {
                let (a, b) = (r[j], r[j + 4]);
                let (c, d) = (r[j + 8], r[j + 12]);
                let (ab0, ab1) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
                let (cd0, cd1) = (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
                r[j] = _mm512_shuffle_f32x4::<0x88>(ab0, cd0);
                r[j + 4] = _mm512_shuffle_f32x4::<0xDD>(ab0, cd0);
                r[j + 8] = _mm512_shuffle_f32x4::<0x88>(ab1, cd1);
                r[j + 12] = _mm512_shuffle_f32x4::<0xDD>(ab1, cd1);
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

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy_short(src: *const f32, dst: *mut f32, n: usize) {
        let mut i = 0;
        // SAFETY: the caller's `n` numbers; the last vector begins where the one before may not have ended.
        unsafe {
            while i + 8 <= n {
                _mm256_storeu_ps(dst.add(i), _mm256_loadu_ps(src.add(i)));
                i += 8;
            }
            if i < n && n >= 8 {
                i = n - 8;
                _mm256_storeu_ps(dst.add(i), _mm256_loadu_ps(src.add(i)));
                i = n;
            }
            while i < n {
                *dst.add(i) = *src.add(i);
                i += 1;
            }
        }
    }

    /// Zeros at both ends of at least 8 numbers, none longer than 8.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn zero_ends(p: *mut f32, n: usize) {
        // SAFETY: the caller's `n >= 8` numbers.
        unsafe {
            _mm256_storeu_ps(p, _mm256_setzero_ps());
            _mm256_storeu_ps(p.add(n - 8), _mm256_setzero_ps());
        }
    }

    /// Numbers 0, 2, 4, ... and 1, 3, 5, ... of 16.
    #[target_feature(enable = "avx2")]
    fn halves(a: __m256, b: __m256) -> (__m256, __m256) {
        // Pairs of 4 numbers are in order, but for the middle ones.
        let order = |v: __m256| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(v)));
        (order(_mm256_shuffle_ps::<0b10_00_10_00>(a, b)), order(_mm256_shuffle_ps::<0b11_01_11_01>(a, b)))
    }

    /// The last `n` of at least 8 pairs, if they are no whole vector, are done with some of those before.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn split(src: *const f32, even: *mut f32, odd: *mut f32, n: usize) {
        let mut i = 0;
        // SAFETY: the caller's `n` pairs.
        unsafe {
            while i < n {
                let at = i.min(n - 8);
                let (e, o) = halves(_mm256_loadu_ps(src.add(2 * at)), _mm256_loadu_ps(src.add(2 * at + 8)));
                _mm256_storeu_ps(even.add(at), e);
                _mm256_storeu_ps(odd.add(at), o);
                i += 8;
            }
        }
    }

    /// As [`split`], for the even numbers only; the last odd one need not exist.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn every_second(src: *const f32, dst: *mut f32, n: usize) {
        let mut i = 0;
        // SAFETY: the caller's elements; the second read ends one short of them.
        unsafe {
            while i < n {
                let at = i.min(n - 8);
                let (a, b) = (_mm256_loadu_ps(src.add(2 * at)), _mm256_loadu_ps(src.add(2 * at + 7)));
                // a: 0 2 4 6 at even places, b: 8 10 12 14 at odd ones (b begins at 7).
                let a = _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
                let b = _mm256_permutevar8x32_ps(b, _mm256_setr_epi32(0, 0, 0, 0, 1, 3, 5, 7));
                _mm256_storeu_ps(dst.add(at), _mm256_blend_ps::<0xF0>(a, b));
                i += 8;
            }
        }
    }

    /// Interleaves `n` numbers of each; the last of at least 8, if they are no whole vector, with some of those before.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn interleave(a: *const f32, b: *const f32, dst: *mut f32, n: usize) {
        let mut i = 0;
        // SAFETY: the caller's numbers.
        unsafe {
            while i < n {
                let at = i.min(n - 8);
                let (a, b) = (_mm256_loadu_ps(a.add(at)), _mm256_loadu_ps(b.add(at)));
                let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                _mm256_storeu_ps(dst.add(2 * at), _mm256_permute2f128_ps::<0x20>(low, high));
                _mm256_storeu_ps(dst.add(2 * at + 8), _mm256_permute2f128_ps::<0x31>(low, high));
                i += 8;
            }
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

/// Asks for the lines of `bytes` bytes in the L2 cache; any address will do.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        // SAFETY: a prefetch never faults.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, bytes);
}

/// Copies a row of some tens of numbers: no call that would take as long as the copy.
///
/// # Safety
/// `src` and `dst` cover `n` numbers and do not overlap.
pub(crate) unsafe fn copy_short(src: *const f32, dst: *mut f32, n: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && n <= 256 {
        // SAFETY: AVX2 is present; the caller's numbers.
        return unsafe { x86::copy_short(src, dst, n) };
    }
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, n) }
}

/// Makes a row of `n` numbers zero outside `lo..hi`; what is inside may become zero too.
///
/// # Safety
/// `p` covers `n` numbers; `lo <= hi <= n`.
pub(crate) unsafe fn zero_ends(p: *mut f32, lo: usize, hi: usize, n: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && n >= 8 && lo <= 8 && n - hi <= 8 {
        // SAFETY: AVX is present; `n >= 8`.
        return unsafe { x86::zero_ends(p, n) };
    }
    // SAFETY: the caller's contract.
    unsafe {
        p.write_bytes(0, lo);
        p.add(hi).write_bytes(0, n - hi);
    }
}

/// Interleaves: `dst = a[0], b[0], a[1], b[1], …`, `n` numbers in all.
///
/// # Safety
/// `a` covers the first half of `n` numbers rounded up, `b` the rest, `dst` all.
pub(crate) unsafe fn interleave(a: *const f32, b: *const f32, dst: *mut f32, n: usize) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && n >= 16 {
        done = n / 2;
        // SAFETY: AVX2 is present; the caller's numbers.
        unsafe { x86::interleave(a, b, dst, done) };
    }
    // SAFETY: the caller's contract.
    unsafe {
        for i in done..n / 2 {
            dst.cast::<[f32; 2]>().add(i).write_unaligned([*a.add(i), *b.add(i)]);
        }
        if n % 2 == 1 {
            *dst.add(n - 1) = *a.add(n / 2);
        }
    }
}

/// Copies `src[0], src[2], …`, `n` numbers.
///
/// # Safety
/// `src` covers `2n - 1` numbers, `dst` covers `n`.
pub(crate) unsafe fn every_second(src: *const f32, dst: *mut f32, n: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && n >= 8 {
        // SAFETY: AVX2 is present; the caller's elements.
        return unsafe { x86::every_second(src, dst, n) };
    }
    for i in 0..n {
        // SAFETY: the caller's elements.
        unsafe { *dst.add(i) = *src.add(2 * i) };
    }
}

/// Copies `src[0], src[2], …` to one array and `src[1], src[3], …` to another, each as long as its size says.
///
/// # Safety
/// The arrays cover as many numbers, `src` all that are copied.
pub(crate) unsafe fn split(src: *const f32, (even, n): (*mut f32, usize), (odd, m): (*mut f32, usize)) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa::current() >= Isa::Avx2 && n.min(m) >= 8 {
        done = n.min(m);
        // SAFETY: AVX2 is present; the caller's numbers.
        unsafe { x86::split(src, even, odd, done) };
    }
    // SAFETY: the caller's contract.
    unsafe {
        for i in done..n {
            *even.add(i) = *src.add(2 * i);
        }
        for i in done..m {
            *odd.add(i) = *src.add(2 * i + 1);
        }
    }
}
