//! Register tiles of the convolutions over planes: a table of offsets says where each step reads, so that one loop
//! serves every window, stride and layout of rows.

use crate::cpu::lib::gemm::kernel::{Lane, Portable, prefetch_write};
use crate::cpu::lib::isa::{self, Isa};

/// Features of a tile.
pub(super) const ROWS: usize = 4;
/// Vectors of outputs (or taps of a weight gradient) of a tile: 4·3 sums, 3 vectors and a broadcast fill 16 registers.
pub(super) const COLS: usize = 3;

/// What the tiles need of a vector of f32 besides the products' needs.
pub(super) trait Vector: Lane<Unit = f32, Acc = f32, In = <Self as Lane>::V> {
    /// The first `n` numbers at `p`, zeros behind.
    unsafe fn part(p: *const f32, n: usize) -> Self::V;
    /// The sum of all lanes.
    unsafe fn total(v: Self::V) -> f32;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
}

impl Vector for Portable<f32> {
    #[inline(always)]
    unsafe fn part(p: *const f32, n: usize) -> [f32; 4] {
        // SAFETY: the caller's `n` numbers.
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn total(v: [f32; 4]) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] - b[i])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use crate::cpu::lib::gemm::kernel::x86::{Ymm32, Zmm32};
    use std::arch::x86_64::*;

    static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    impl Vector for Ymm32 {
        #[inline(always)]
        unsafe fn part(p: *const f32, n: usize) -> __m256 {
            // SAFETY: instantiated only under AVX2; masked lanes are not read; `n <= 8`.
            unsafe { _mm256_maskload_ps(p, _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast())) }
        }
        #[inline(always)]
        unsafe fn total(v: __m256) -> f32 {
            // SAFETY: register arithmetic only.
            unsafe {
                let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
                _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
            }
        }
        #[inline(always)]
        unsafe fn sub(a: __m256, b: __m256) -> __m256 {
            // SAFETY: register arithmetic only.
            unsafe { _mm256_sub_ps(a, b) }
        }
    }

    impl Vector for Zmm32 {
        #[inline(always)]
        unsafe fn part(p: *const f32, n: usize) -> __m512 {
            // SAFETY: instantiated only under AVX-512; masked lanes are not read.
            unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p) }
        }
        #[inline(always)]
        unsafe fn total(v: __m512) -> f32 {
            // SAFETY: register arithmetic only.
            unsafe { _mm512_reduce_add_ps(v) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m512, b: __m512) -> __m512 {
            // SAFETY: register arithmetic only.
            unsafe { _mm512_sub_ps(a, b) }
        }
    }
}

/// Sums of `k` steps: `c[v] + r·row = Σ_i a[4i + r] · x[v] + offs[i]`; offsets in bytes.
pub(super) type Tile =
    unsafe fn(k: usize, a: *const f32, offs: *const isize, x: &[*const u8; COLS], c: &[*mut f32; COLS], row: isize);

/// Adds dot products: `c[r·row + v] += Σ_i dy[r] + steps[i].0 · x[v] + steps[i].1`, first over `whole` full vectors, then
/// over `parts` vectors of `tail` numbers.
pub(super) type Dots = unsafe fn(
    steps: *const (isize, isize),
    whole: usize,
    parts: usize,
    tail: usize,
    dy: &[*const u8; ROWS],
    x: &[*const u8; COLS],
    c: *mut f32,
    row: usize,
);

/// The vectors of one step.
#[inline(always)]
unsafe fn load<L: Vector, const V: usize>(x: &[*const u8; COLS], at: isize) -> [L::V; V] {
    // SAFETY: the caller's addresses.
    unsafe {
        let mut xv = [L::load(x[0].wrapping_offset(at).cast()); V];
        for v in 1..V {
            xv[v] = L::load(x[v].wrapping_offset(at).cast());
        }
        xv
    }
}

/// Adds a multiple of the vectors to a row of sums.
#[inline(always)]
unsafe fn add<L: Vector, const V: usize>(s: &mut [L::V; V], by: L::V, x: &[L::V; V]) {
    for v in 0..V {
        // SAFETY: register arithmetic only.
        s[v] = unsafe { L::mac(s[v], by, x[v]) };
    }
}

#[inline(always)]
unsafe fn step<L: Vector, const R: usize, const V: usize>(
    s: &mut [[L::V; V]; R],
    a: *const f32,
    x: &[*const u8; COLS],
    at: isize,
) {
    // SAFETY: the caller's addresses.
    unsafe {
        let xv = load::<L, V>(x, at);
        for r in 0..R {
            add::<L, V>(&mut s[r], L::splat(a.add(r)), &xv);
        }
    }
}

#[inline(always)]
unsafe fn tile<L: Vector, const R: usize, const V: usize>(
    k: usize,
    a: *const f32,
    offs: *const isize,
    x: &[*const u8; COLS],
    c: &[*mut f32; COLS],
    row: isize,
) {
    // SAFETY: the caller's tables and arrays cover every address formed below.
    unsafe {
        for r in 0..R {
            for p in c.iter().take(V) {
                prefetch_write(p.wrapping_offset(r as isize * row));
            }
        }
        let mut s = [[L::zero(); V]; R];
        let x = *x;
        let mut i = 0;
        while i + 2 <= k {
            step::<L, R, V>(&mut s, a.add(i * ROWS), &x, *offs.add(i));
            step::<L, R, V>(&mut s, a.add((i + 1) * ROWS), &x, *offs.add(i + 1));
            i += 2;
        }
        if i < k {
            step::<L, R, V>(&mut s, a.add(i * ROWS), &x, *offs.add(i));
        }
        for r in 0..R {
            for v in 0..V {
                L::store_acc(c[v].wrapping_offset(r as isize * row), s[r][v]);
            }
        }
    }
}

#[inline(always)]
unsafe fn dots<L: Vector, const R: usize, const V: usize>(
    steps: *const (isize, isize),
    whole: usize,
    parts: usize,
    tail: usize,
    dy: &[*const u8; ROWS],
    x: &[*const u8; COLS],
    c: *mut f32,
    row: usize,
) {
    // SAFETY: the caller's tables and arrays cover every address formed below.
    unsafe {
        let mut s = [[L::zero(); V]; R];
        let (dy, x) = (*dy, *x);
        for i in 0..whole {
            let (d, o) = *steps.add(i);
            let xv = load::<L, V>(&x, o);
            for r in 0..R {
                add::<L, V>(&mut s[r], L::load(dy[r].wrapping_offset(d).cast()), &xv);
            }
        }
        for i in whole..whole + parts {
            let (d, o) = *steps.add(i);
            // Both sides: what lies behind a row's end may be infinite.
            let mut xv = [L::zero(); V];
            for v in 0..V {
                xv[v] = L::part(x[v].wrapping_offset(o).cast(), tail);
            }
            for r in 0..R {
                add::<L, V>(&mut s[r], L::part(dy[r].wrapping_offset(d).cast(), tail), &xv);
            }
        }
        for r in 0..R {
            for v in 0..V {
                *c.add(r * row + v) += L::total(s[r][v]);
            }
        }
    }
}

/// The tiles of one instruction set; entry [r - 1][v - 1] covers r features and v vectors or taps.
pub(super) struct Tiles {
    pub(super) lanes: usize,
    pub(super) sums: [[Tile; COLS]; ROWS],
    pub(super) dots: [[Dots; COLS]; ROWS],
}

macro_rules! tiles {
    ($name:ident, $lane:ty, [$($feat:literal)?]) => {
        mod $name {
            use super::*;
            $(#[target_feature(enable = $feat)])?
            unsafe fn s<const R: usize, const V: usize>(
                k: usize, a: *const f32, offs: *const isize, x: &[*const u8; COLS], c: &[*mut f32; COLS], row: isize,
            ) {
                // SAFETY: same contract; the features are enabled here.
                unsafe { tile::<$lane, R, V>(k, a, offs, x, c, row) }
            }
            $(#[target_feature(enable = $feat)])?
            unsafe fn d<const R: usize, const V: usize>(
                steps: *const (isize, isize), whole: usize, parts: usize, tail: usize, dy: &[*const u8; ROWS],
                x: &[*const u8; COLS], c: *mut f32, row: usize,
            ) {
                // SAFETY: as above.
                unsafe { dots::<$lane, R, V>(steps, whole, parts, tail, dy, x, c, row) }
            }
            pub(super) static TILES: Tiles = Tiles {
                lanes: <$lane as Lane>::N,
                sums: [
                    [s::<1, 1>, s::<1, 2>, s::<1, 3>],
                    [s::<2, 1>, s::<2, 2>, s::<2, 3>],
                    [s::<3, 1>, s::<3, 2>, s::<3, 3>],
                    [s::<4, 1>, s::<4, 2>, s::<4, 3>],
                ],
                dots: [
                    [d::<1, 1>, d::<1, 2>, d::<1, 3>],
                    [d::<2, 1>, d::<2, 2>, d::<2, 3>],
                    [d::<3, 1>, d::<3, 2>, d::<3, 3>],
                    [d::<4, 1>, d::<4, 2>, d::<4, 3>],
                ],
            };
        }
    };
}

tiles!(portable, Portable<f32>, []);
#[cfg(target_arch = "x86_64")]
tiles!(avx2, crate::cpu::lib::gemm::kernel::x86::Ymm32, ["avx2,fma"]);
#[cfg(target_arch = "x86_64")]
tiles!(avx512, crate::cpu::lib::gemm::kernel::x86::Zmm32, ["avx512f"]);

/// The tiles of the current instruction set level for rows of `outputs`: not of wider vectors than what a row fills in as
/// few instructions.
pub(super) fn tiles(outputs: usize) -> &'static Tiles {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 if outputs > avx2::TILES.lanes => &avx512::TILES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => &avx2::TILES,
        _ => &portable::TILES,
    }
}
