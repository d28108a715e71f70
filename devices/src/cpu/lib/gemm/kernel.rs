//! Register-tile kernels: C[mr, nr] (+)= A[mr, k] · B[k, nr], one source for every vector width.
//!
//! `micro` is written once over the [`Lane`] trait and instantiated under each instruction set's
//! `#[target_feature]`. The tile sizes keep all accumulators, the B vectors of one step and one
//! broadcast in registers: 6×16 for 16 AVX2 registers, 14×32 for 32 AVX-512 registers.

use crate::cpu::lib::isa::{self, Isa};

/// A vector register's worth of multiply-add.
///
/// `Unit` is what one k step of one lane holds: a number, or a pair of bf16 for `vdpbf16ps`.
pub(crate) trait Lane {
    type Unit: Copy;
    type Acc: Copy;
    type In: Copy;
    type V: Copy;
    const N: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn load(p: *const Self::Unit) -> Self::In;
    unsafe fn splat(p: *const Self::Unit) -> Self::In;
    unsafe fn mac(acc: Self::V, a: Self::In, b: Self::In) -> Self::V;
    unsafe fn load_acc(p: *const Self::Acc) -> Self::V;
    unsafe fn store_acc(p: *mut Self::Acc, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
}

/// Two bf16 that are neighbours along k, as `vdpbf16ps` takes them.
#[repr(transparent)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Pair(pub(crate) u32);

/// One register tile. `a`: element (r, p) at `a + r·a_r + p·a_k`; `b`: vector p at `b + p·b_k`;
/// `c` row-major with row stride `ldc`; `acc`: add to C instead of overwriting it. Strides in units.
/// Meanwhile a cache line is fetched for later every `UNROLL` steps: at `next` and every `next_step` bytes.
pub(crate) type Micro<U, T> = unsafe fn(
    k: usize,
    a: *const U,
    a_k: isize,
    a_r: isize,
    b: *const U,
    b_k: isize,
    c: *mut T,
    ldc: isize,
    acc: bool,
    next: *const u8,
    next_step: isize,
);

/// The kernels of one instruction set and type.
pub(crate) struct Kernel<U: 'static, T: 'static> {
    pub(crate) mr: usize,
    pub(crate) nr: usize,
    /// Numbers in a vector.
    pub(crate) lanes: usize,
    /// Rows of A in a block, a multiple of `mr`: the packed block stays in the L2 cache.
    pub(crate) mc: usize,
    /// Units of k in a block: a B strip of `kc · nr` stays in the L1 cache, or, where that is small for the vectors, in
    /// the L2 cache, from which it is fetched ahead.
    pub(crate) kc: usize,
    /// For rows of A that are neighbours, rows contiguous along k, and any strides.
    tiles: [&'static [&'static [Micro<U, T>]]; 3],
}

impl<U, T> Kernel<U, T> {
    /// Its vectors fill cache lines: AVX-512, whose processors have an L2 cache of a megabyte or more.
    pub(crate) fn is_wide(&self) -> bool {
        self.lanes * size_of::<U>() == 64
    }

    /// The tiles of `vectors` vectors for A with these strides; entry r - 1 covers r rows.
    pub(super) fn tiles(&self, vectors: usize, a_k: isize, a_r: isize) -> &'static [Micro<U, T>] {
        let mode = if a_r == 1 {
            LANES
        } else if a_k == 1 {
            ROWS
        } else {
            ANY
        };
        self.tiles[mode as usize][vectors - 1]
    }
}

/// Greatest `mr · nr` of any kernel.
pub(crate) const MAX_TILE: usize = 14 * 32;

/// Asks for a cache line that will be written; any address will do. The line comes unshared: another core often wrote
/// it last.
#[inline(always)]
pub(crate) fn prefetch_write<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and is no operation on processors that do not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Asks for a cache line in the L2 cache.
#[inline(always)]
fn prefetch_l2<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Steps of k between two requests for lines of `next`.
pub(super) const UNROLL: usize = 4;

/// Rows of A are neighbours (`a_r` = 1), as in a packed block.
const LANES: u8 = 0;
/// Each row of A is contiguous along k (`a_k` = 1).
const ROWS: u8 = 1;
/// Any strides.
const ANY: u8 = 2;

/// One step of k: the outer product of MR numbers of A, number r at `a[r] + at`, and NV vectors of B.
///
/// # Safety
/// The addresses are live; the processor has the lane's instruction set.
#[inline(always)]
pub(crate) unsafe fn step<L: Lane, const MR: usize, const NV: usize>(
    s: &mut [[L::V; NV]; MR],
    a: &[*const L::Unit; MR],
    at: isize,
    b: *const L::Unit,
) {
    // SAFETY: the caller's promise covers every address formed below.
    unsafe {
        let mut bv = [L::load(b); NV];
        for v in 1..NV {
            bv[v] = L::load(b.add(v * L::N));
        }
        for r in 0..MR {
            let av = L::splat(a[r].wrapping_offset(at));
            for v in 0..NV {
                s[r][v] = L::mac(s[r][v], av, bv[v]);
            }
        }
    }
}

/// # Safety
/// Pointers cover the tile that `Micro` describes, for MR rows and NV vectors; the processor has
/// the lane's instruction set.
#[inline(always)]
unsafe fn micro<L: Lane, const MR: usize, const NV: usize, const MODE: u8>(
    k: usize,
    a: *const L::Unit,
    a_k: isize,
    a_r: isize,
    mut b: *const L::Unit,
    b_k: isize,
    c: *mut L::Acc,
    ldc: isize,
    acc: bool,
    mut next: *const u8,
    next_step: isize,
) {
    let (a_k, a_r) = match MODE {
        LANES => (a_k, 1),
        ROWS => (1, a_r),
        _ => (a_k, a_r),
    };
    // SAFETY: the caller's promise covers every address formed below.
    unsafe {
        // C is needed only at the end: fetch its lines while the sums run.
        for r in 0..MR {
            for v in 0..NV {
                let p = c.wrapping_offset(r as isize * ldc).wrapping_add(v * L::N);
                prefetch_write(p);
            }
        }
        let mut s = [[L::zero(); NV]; MR];
        let mut rows: [*const L::Unit; MR] = std::array::from_fn(|r| a.wrapping_offset(r as isize * a_r));
        for _ in 0..k / UNROLL {
            prefetch_l2(next);
            next = next.wrapping_offset(next_step);
            for q in 0..UNROLL {
                step::<L, MR, NV>(&mut s, &rows, q as isize * a_k, b);
                b = b.wrapping_offset(b_k);
            }
            rows = rows.map(|p| p.wrapping_offset(UNROLL as isize * a_k));
        }
        for q in 0..k % UNROLL {
            step::<L, MR, NV>(&mut s, &rows, q as isize * a_k, b);
            b = b.wrapping_offset(b_k);
        }
        for r in 0..MR {
            let row = c.wrapping_offset(r as isize * ldc);
            for v in 0..NV {
                let p = row.add(v * L::N);
                let x = if acc { L::add(s[r][v], L::load_acc(p)) } else { s[r][v] };
                L::store_acc(p, x);
            }
        }
    }
}

/// Instantiates `micro` for a lane under a target feature and tabulates it.
macro_rules! kernel {
    ($name:ident, $lane:ty, [$($feat:literal)?], $mc:literal, $kc:literal, $mr:literal [$($r:literal)*], $nv:literal [$($v:tt)*]) => {
        pub(crate) mod $name {
            use super::*;
            type U = <$lane as Lane>::Unit;
            type T = <$lane as Lane>::Acc;
            $(#[target_feature(enable = $feat)])?
            unsafe fn f<const MR: usize, const NV: usize, const MODE: u8>(
                k: usize, a: *const U, a_k: isize, a_r: isize, b: *const U, b_k: isize, c: *mut T, ldc: isize, acc: bool, next: *const u8,
                next_step: isize,
            ) {
                // SAFETY: same contract; the features are enabled here.
                unsafe { micro::<$lane, MR, NV, MODE>(k, a, a_k, a_r, b, b_k, c, ldc, acc, next, next_step) }
            }
            kernel!(@rows T_LANES, LANES, [$($v)*], [$($r)*]);
            kernel!(@rows T_ROWS, ROWS, [$($v)*], [$($r)*]);
            kernel!(@rows T_ANY, ANY, [$($v)*], [$($r)*]);
            pub(crate) static KERNEL: Kernel<U, T> = Kernel {
                mr: $mr,
                nr: $nv * <$lane as Lane>::N,
                lanes: <$lane as Lane>::N,
                mc: $mc,
                kc: $kc,
                tiles: [T_LANES, T_ROWS, T_ANY],
            };
        }
    };
    (@rows $t:ident, $p:ident, [1 2], $r:tt) => {
        static $t: &[&[Micro<U, T>]] = &[kernel!(@row 1, $p, $r), kernel!(@row 2, $p, $r)];
    };
    (@row $v:literal, $p:ident, [$($r:literal)*]) => { &[$(f::<$r, $v, $p> as Micro<U, T>),*] };
}

/// Eight numbers in an array, for targets without a kernel of their own.
pub(crate) struct Portable<T>(std::marker::PhantomData<T>);
macro_rules! portable {
    ($t:ty, $n:literal) => {
        impl Lane for Portable<$t> {
            type Unit = $t;
            type Acc = $t;
            type In = [$t; $n];
            type V = [$t; $n];
            const N: usize = $n;
            #[inline(always)]
            unsafe fn zero() -> Self::V {
                [0.0; $n]
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self::In {
                // SAFETY: the kernel's contract.
                unsafe { p.cast::<[$t; $n]>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn splat(p: *const $t) -> Self::In {
                // SAFETY: the kernel's contract.
                unsafe { [*p; $n] }
            }
            #[inline(always)]
            unsafe fn mac(acc: Self::V, a: Self::In, b: Self::In) -> Self::V {
                std::array::from_fn(|i| acc[i] + a[i] * b[i])
            }
            #[inline(always)]
            unsafe fn load_acc(p: *const $t) -> Self::V {
                // SAFETY: the kernel's contract.
                unsafe { p.cast::<[$t; $n]>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store_acc(p: *mut $t, v: Self::V) {
                // SAFETY: the kernel's contract.
                unsafe { p.cast::<[$t; $n]>().write_unaligned(v) }
            }
            #[inline(always)]
            unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] + b[i])
            }
        }
    };
}
portable!(f32, 4);
portable!(f64, 2);

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::{Lane, Pair};
    use std::arch::x86_64::*;

    macro_rules! float_lane {
        ($name:ident, $t:ty, $v:ty, $n:literal, $zero:ident, $load:ident, $set1:ident, $fma:ident, $store:ident, $add:ident) => {
            pub(crate) struct $name;
            impl Lane for $name {
                type Unit = $t;
                type Acc = $t;
                type In = $v;
                type V = $v;
                const N: usize = $n;
                #[inline(always)]
                unsafe fn zero() -> $v {
                    // SAFETY: instantiated only under the lane's target feature.
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> $v {
                    // SAFETY: as above; the address is the kernel's contract.
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn splat(p: *const $t) -> $v {
                    // SAFETY: as above.
                    unsafe { $set1(*p) }
                }
                #[inline(always)]
                unsafe fn mac(acc: $v, a: $v, b: $v) -> $v {
                    // SAFETY: as above.
                    unsafe { $fma(a, b, acc) }
                }
                #[inline(always)]
                unsafe fn load_acc(p: *const $t) -> $v {
                    // SAFETY: as above.
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store_acc(p: *mut $t, v: $v) {
                    // SAFETY: as above.
                    unsafe { $store(p, v) }
                }
                #[inline(always)]
                unsafe fn add(a: $v, b: $v) -> $v {
                    // SAFETY: as above.
                    unsafe { $add(a, b) }
                }
            }
        };
    }
    float_lane!(
        Ymm32,
        f32,
        __m256,
        8,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_storeu_ps,
        _mm256_add_ps
    );
    float_lane!(
        Ymm64,
        f64,
        __m256d,
        4,
        _mm256_setzero_pd,
        _mm256_loadu_pd,
        _mm256_set1_pd,
        _mm256_fmadd_pd,
        _mm256_storeu_pd,
        _mm256_add_pd
    );
    float_lane!(
        Zmm32,
        f32,
        __m512,
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_storeu_ps,
        _mm512_add_ps
    );
    float_lane!(
        Zmm64,
        f64,
        __m512d,
        8,
        _mm512_setzero_pd,
        _mm512_loadu_pd,
        _mm512_set1_pd,
        _mm512_fmadd_pd,
        _mm512_storeu_pd,
        _mm512_add_pd
    );

    /// 16 lanes of bf16 pairs, summed in f32.
    pub(crate) struct ZmmPair;
    impl Lane for ZmmPair {
        type Unit = Pair;
        type Acc = f32;
        type In = __m512i;
        type V = __m512;
        const N: usize = 16;
        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: instantiated only under the lane's target feature.
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn load(p: *const Pair) -> __m512i {
            // SAFETY: as above; the address is the kernel's contract.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const Pair) -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn mac(acc: __m512, a: __m512i, b: __m512i) -> __m512 {
            // SAFETY: as above; both types are 512 plain bits.
            unsafe {
                _mm512_dpbf16_ps(
                    acc,
                    std::mem::transmute::<__m512i, __m512bh>(a),
                    std::mem::transmute::<__m512i, __m512bh>(b),
                )
            }
        }
        #[inline(always)]
        unsafe fn load_acc(p: *const f32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store_acc(p: *mut f32, v: __m512) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(a, b) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod instances {
    use super::x86::*;
    use super::*;
    kernel!(avx2_f32, Ymm32, ["avx2,fma"], 192, 320, 6 [1 2 3 4 5 6], 2 [1 2]);
    kernel!(avx2_f64, Ymm64, ["avx2,fma"], 72, 256, 6 [1 2 3 4 5 6], 2 [1 2]);
    kernel!(avx512_f32, Zmm32, ["avx512f"], 224, 512, 14 [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 2 [1 2]);
    kernel!(avx512_f64, Zmm64, ["avx512f"], 112, 256, 14 [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 2 [1 2]);
    kernel!(avx512_bf16, ZmmPair, ["avx512f,avx512bf16"], 224, 512, 14 [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 2 [1 2]);
}

mod portable_instances {
    use super::*;
    kernel!(f32x4, Portable<f32>, [], 64, 256, 4 [1 2 3 4], 2 [1 2]);
    kernel!(f64x2, Portable<f64>, [], 64, 256, 4 [1 2 3 4], 2 [1 2]);
}

/// The f32 kernel of the current instruction set level.
pub(crate) fn f32_kernel() -> &'static Kernel<f32, f32> {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => &instances::avx512_f32::KERNEL,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &instances::avx2_f32::KERNEL,
        _ => &portable_instances::f32x4::KERNEL,
    }
}

/// The f64 kernel of the current instruction set level.
pub(crate) fn f64_kernel() -> &'static Kernel<f64, f64> {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => &instances::avx512_f64::KERNEL,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &instances::avx2_f64::KERNEL,
        _ => &portable_instances::f64x2::KERNEL,
    }
}

/// The kernel over bf16 pairs, where the processor has one.
pub(crate) fn bf16_kernel() -> Option<&'static Kernel<Pair, f32>> {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => Some(&instances::avx512_bf16::KERNEL),
        _ => None,
    }
}
