//! The steps at each instruction set level.

use super::gradient_step::{GradientStep, gradient_step};
use super::lane::{self, Real};
use super::step::{Step, step};
use crate::cpu::lib::gemm::kernel::{Lane, Portable};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lib::gemm::kernel::{
    Pair,
    x86::{Ymm32, Zmm32, ZmmPair},
};
use crate::cpu::lib::isa::{self, Isa};

/// A lane of both products with the vectors of its sums.
pub(super) trait Weights: Lane<Acc = f32, V = <Self::R as Real>::V> {
    type R: Real;
    /// Keys that one unit of the second product holds.
    const KEYS: usize;
    /// Whether queries come multiplied by the scale.
    const SCALED: bool;
    /// Stores the weights of a unit's keys.
    unsafe fn put(p: *mut Self::Unit, w: [Self::V; 2]);
    /// Stores one key's weights, side by side: a vector of them takes `Self::N / Self::KEYS` units.
    unsafe fn put_row(p: *mut Self::Unit, w: Self::V);
}

macro_rules! real_weights {
    ($lane:ty) => {
        impl Weights for $lane {
            type R = $lane;
            const KEYS: usize = 1;
            const SCALED: bool = true;
            #[inline(always)]
            unsafe fn put(p: *mut f32, w: [<$lane as Lane>::V; 2]) {
                // SAFETY: the caller's memory and instruction set.
                unsafe { <$lane as Real>::store(p, w[0]) }
            }
            #[inline(always)]
            unsafe fn put_row(p: *mut f32, w: <$lane as Lane>::V) {
                // SAFETY: as above.
                unsafe { <$lane as Real>::store(p, w) }
            }
        }
    };
}
real_weights!(Portable<f32>);
#[cfg(target_arch = "x86_64")]
real_weights!(Ymm32);
#[cfg(target_arch = "x86_64")]
real_weights!(Zmm32);

/// Weights of two keys as a pair of bf16, as PyTorch's flash attention rounds them; scores and sums stay f32.
#[cfg(target_arch = "x86_64")]
impl Weights for ZmmPair {
    type R = Zmm32;
    const KEYS: usize = 2;
    const SCALED: bool = false;
    #[inline(always)]
    unsafe fn put(p: *mut Pair, w: [std::arch::x86_64::__m512; 2]) {
        use std::arch::x86_64::*;
        // SAFETY: the caller's memory and instruction set; both types are 512 plain bits.
        unsafe {
            // All of the first key, then all of the second.
            let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(w[1], w[0]));
            let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            // Word 2i is the first key's word i, word 2i + 1 the second's.
            let order = _mm512_or_si512(lane, _mm512_slli_epi32::<16>(_mm512_add_epi32(lane, _mm512_set1_epi32(16))));
            _mm512_storeu_si512(p.cast(), _mm512_permutexvar_epi16(order, halves));
        }
    }
    #[inline(always)]
    unsafe fn put_row(p: *mut Pair, w: std::arch::x86_64::__m512) {
        use std::arch::x86_64::*;
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(w))) }
    }
}

/// The functions of one instruction set.
pub(super) struct Stepper {
    /// Queries of a block: two vectors.
    pub(super) queries: usize,
    /// The step of f32; its contract is `step`'s.
    pub(super) run: unsafe fn(&Step),
    /// The step of bf16 pairs, where the processor multiplies them.
    pub(super) pairs: Option<unsafe fn(&Step)>,
    /// [`lane::transpose`].
    pub(super) transpose: Transpose,
    /// Its contract is [`gradient_step`]'s.
    pub(super) gradients: unsafe fn(&GradientStep),
    /// The same for bf16 pairs.
    pub(super) pair_gradients: Option<unsafe fn(&GradientStep)>,
}

pub(super) type Transpose = unsafe fn(*const f32, isize, usize, usize, *const f32, usize, *mut f32, isize);

macro_rules! stepper {
    ($name:ident, $lane:ty, $mr:literal, [$($feat:literal)?]) => {
        const $name: Stepper = {
            $(#[target_feature(enable = $feat)])?
            unsafe fn run(c: &Step) {
                // SAFETY: same contract; the features are enabled here.
                unsafe { step::<$lane, $mr>(c) }
            }
            $(#[target_feature(enable = $feat)])?
            unsafe fn transpose(
                src: *const f32, src_row: isize, rows: usize, cols: usize, by: *const f32, by_step: usize, dst: *mut f32,
                dst_row: isize,
            ) {
                // SAFETY: as above.
                unsafe { lane::transpose::<$lane>(src, src_row, rows, cols, by, by_step, dst, dst_row) }
            }
            $(#[target_feature(enable = $feat)])?
            unsafe fn gradients(c: &GradientStep) {
                // SAFETY: as above.
                unsafe { gradient_step::<$lane, $mr>(c) }
            }
            Stepper {
                queries: 2 * <$lane as Lane>::N, run, pairs: None, transpose, gradients, pair_gradients: None,
            }
        };
    };
}
stepper!(PORTABLE, Portable<f32>, 4, []);
#[cfg(target_arch = "x86_64")]
stepper!(AVX2, Ymm32, 4, ["avx2,fma"]);
#[cfg(target_arch = "x86_64")]
stepper!(AVX512, Zmm32, 8, ["avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"]);
#[cfg(target_arch = "x86_64")]
const AVX512_BF16: Stepper = {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
    unsafe fn pairs(c: &Step) {
        // SAFETY: same contract; the features are enabled here.
        unsafe { step::<ZmmPair, 8>(c) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
    unsafe fn pair_gradients(c: &GradientStep) {
        // SAFETY: as above.
        unsafe { gradient_step::<ZmmPair, 8>(c) }
    }
    Stepper { pairs: Some(pairs), pair_gradients: Some(pair_gradients), ..AVX512 }
};

/// The functions of the current instruction set level.
pub(super) fn stepper() -> &'static Stepper {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => &AVX512_BF16,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2,
        _ => &PORTABLE,
    }
}
