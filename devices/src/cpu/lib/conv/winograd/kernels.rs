//! Transforms of Winograd's F(2×2, 3×3) between pixels and the 16 products' operands, a vector of channels at a time.
//!
//! With the matrices of Lavin and Gray (arXiv:1509.09308), an output tile is `Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A`. Points 0, 1, -1 and
//! ∞ make B and A of 0 and ±1 and G of halves: nothing is rounded but the sums themselves. Positions (i, j) of the 4×4
//! domain are numbered 4i + j.

use crate::cpu::lib::conv::tile::Vector;
use crate::cpu::lib::gemm::kernel::{Lane, Portable};
use crate::cpu::lib::isa::{self, Isa};

/// A row of tiles, from pixels to the domain: pixel (y, x) at `src + y·row + x·pixel`, tile t's position p at
/// `dst + t·tile + p·position`.
pub(super) type Into =
    unsafe fn(src: *const f32, row: usize, pixel: usize, tiles: usize, dst: *mut f32, tile: usize, position: usize);

/// A row of tiles, from the domain to two rows of pixels, with the strides of [`Into`]. What it returns is 0, or NaN if a
/// pixel is not finite.
pub(super) type Back = unsafe fn(
    src: *const f32,
    tile: usize,
    position: usize,
    tiles: usize,
    dst: *mut f32,
    row: usize,
    pixel: usize,
) -> f32;

/// Nine weights (stride `tap`) to the domain; the window is read backwards where `flip` says so.
pub(super) type Filter = unsafe fn(src: *const f32, tap: usize, dst: *mut f32, position: usize, flip: [bool; 2]);

/// The sum of `parts` gradients in the domain, `part` apart, to nine weights. What it returns is as in [`Back`].
pub(super) type Unfilter =
    unsafe fn(src: *const f32, position: usize, parts: usize, part: usize, dst: *mut f32, tap: usize) -> f32;

/// The transforms of one instruction set.
pub(super) struct Kernels {
    pub(super) lanes: usize,
    /// `Bᵀ d B` of the 4×4 pixels around each tile.
    pub(super) input: Into,
    /// `A y Aᵀ` of the 2×2 pixels of each tile.
    pub(super) gradient: Into,
    /// `Aᵀ m A`.
    pub(super) output: Back,
    /// `G g Gᵀ`.
    pub(super) filter: Filter,
    /// `Gᵀ s G`.
    pub(super) unfilter: Unfilter,
}

/// `Bᵀ d`.
#[inline(always)]
unsafe fn bt<L: Vector>(d: [L::V; 4]) -> [L::V; 4] {
    // SAFETY: register arithmetic only, here and in the functions below.
    unsafe { [L::sub(d[0], d[2]), L::add(d[1], d[2]), L::sub(d[2], d[1]), L::sub(d[1], d[3])] }
}

/// `Aᵀ m`.
#[inline(always)]
unsafe fn at<L: Vector>(m: [L::V; 4]) -> [L::V; 2] {
    // SAFETY: as in `bt`.
    unsafe { [L::add(L::add(m[0], m[1]), m[2]), L::sub(L::sub(m[1], m[2]), m[3])] }
}

/// `A y`.
#[inline(always)]
unsafe fn a<L: Vector>(y: [L::V; 2]) -> [L::V; 4] {
    // SAFETY: as in `bt`.
    unsafe { [y[0], L::add(y[0], y[1]), L::sub(y[0], y[1]), L::sub(L::zero(), y[1])] }
}

/// `G g`.
#[inline(always)]
unsafe fn gm<L: Vector>(g: [L::V; 3]) -> [L::V; 4] {
    // SAFETY: as in `bt`.
    unsafe {
        let half = L::splat(&0.5);
        let (ends, mid) = (L::add(g[0], g[2]), L::mac(L::zero(), half, g[1]));
        let ends = L::mac(L::zero(), half, ends);
        [g[0], L::add(ends, mid), L::sub(ends, mid), g[2]]
    }
}

/// `Gᵀ s`.
#[inline(always)]
unsafe fn gt<L: Vector>(s: [L::V; 4]) -> [L::V; 3] {
    // SAFETY: as in `bt`.
    unsafe {
        let half = L::splat(&0.5);
        let (sum, diff) = (L::add(s[1], s[2]), L::sub(s[1], s[2]));
        [L::mac(s[0], half, sum), L::mac(L::zero(), half, diff), L::mac(s[3], half, sum)]
    }
}

#[inline(always)]
unsafe fn input<L: Vector>(
    src: *const f32,
    row: usize,
    pixel: usize,
    tiles: usize,
    dst: *mut f32,
    tile: usize,
    position: usize,
) {
    // SAFETY: the caller's pixels and tiles.
    unsafe {
        let column = |x: usize| bt::<L>(std::array::from_fn(|y| L::load(src.add(y * row + x * pixel))));
        // Neighbouring tiles share two columns.
        let (mut c0, mut c1) = (column(0), column(1));
        for t in 0..tiles {
            let (c2, c3) = (column(2 * t + 2), column(2 * t + 3));
            for i in 0..4 {
                let v = bt::<L>([c0[i], c1[i], c2[i], c3[i]]);
                for (j, v) in v.into_iter().enumerate() {
                    L::store_acc(dst.add(t * tile + (4 * i + j) * position), v);
                }
            }
            (c0, c1) = (c2, c3);
        }
    }
}

#[inline(always)]
unsafe fn gradient<L: Vector>(
    src: *const f32,
    row: usize,
    pixel: usize,
    tiles: usize,
    dst: *mut f32,
    tile: usize,
    position: usize,
) {
    // SAFETY: the caller's pixels and tiles.
    unsafe {
        for t in 0..tiles {
            let column = |x: usize| a::<L>(std::array::from_fn(|y| L::load(src.add(y * row + (2 * t + x) * pixel))));
            let (c0, c1) = (column(0), column(1));
            for i in 0..4 {
                for (j, v) in a::<L>([c0[i], c1[i]]).into_iter().enumerate() {
                    L::store_acc(dst.add(t * tile + (4 * i + j) * position), v);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn output<L: Vector>(
    src: *const f32,
    tile: usize,
    position: usize,
    tiles: usize,
    dst: *mut f32,
    row: usize,
    pixel: usize,
) -> f32 {
    // SAFETY: the caller's tiles and pixels.
    unsafe {
        let mut finite = L::zero();
        for t in 0..tiles {
            let column =
                |j: usize| at::<L>(std::array::from_fn(|i| L::load(src.add(t * tile + (4 * i + j) * position))));
            let c = [column(0), column(1), column(2), column(3)];
            for y in 0..2 {
                let v = at::<L>(std::array::from_fn(|j| c[j][y]));
                for (x, v) in v.into_iter().enumerate() {
                    L::store_acc(dst.add(y * row + (2 * t + x) * pixel), v);
                    finite = L::mac(finite, v, L::zero());
                }
            }
        }
        L::total(finite)
    }
}

#[inline(always)]
unsafe fn filter<L: Vector>(src: *const f32, tap: usize, dst: *mut f32, position: usize, flip: [bool; 2]) {
    // SAFETY: the caller's weights and positions.
    unsafe {
        let column = |x: usize| gm::<L>(std::array::from_fn(|y| L::load(src.add((3 * y + x) * tap))));
        let c = [column(0), column(1), column(2)];
        // A window read backwards changes the first and the last row of G.
        let place = |n: usize, flip: bool| if flip && n.is_multiple_of(3) { 3 - n } else { n };
        for i in 0..4 {
            let v = gm::<L>(std::array::from_fn(|x| c[x][i]));
            for (j, v) in v.into_iter().enumerate() {
                L::store_acc(dst.add((4 * place(i, flip[0]) + place(j, flip[1])) * position), v);
            }
        }
    }
}

#[inline(always)]
unsafe fn unfilter<L: Vector>(
    src: *const f32,
    position: usize,
    parts: usize,
    part: usize,
    dst: *mut f32,
    tap: usize,
) -> f32 {
    // SAFETY: the caller's positions and weights.
    unsafe {
        let sum = |p: usize| {
            let first = L::load(src.add(p * position));
            (1..parts).fold(first, |s, n| L::add(s, L::load(src.add(n * part + p * position))))
        };
        let column = |j: usize| gt::<L>(std::array::from_fn(|i| sum(4 * i + j)));
        let c = [column(0), column(1), column(2), column(3)];
        let mut finite = L::zero();
        for y in 0..3 {
            let v = gt::<L>(std::array::from_fn(|j| c[j][y]));
            for (x, v) in v.into_iter().enumerate() {
                L::store_acc(dst.add((3 * y + x) * tap), v);
                finite = L::mac(finite, v, L::zero());
            }
        }
        L::total(finite)
    }
}

macro_rules! kernels {
    ($name:ident, $lane:ty, [$($feat:literal)?]) => {
        mod $name {
            use super::*;
            kernels!(@f [$($feat)?] $lane, input, (src: *const f32, row: usize, pixel: usize, tiles: usize, dst: *mut f32, tile: usize, position: usize));
            kernels!(@f [$($feat)?] $lane, gradient, (src: *const f32, row: usize, pixel: usize, tiles: usize, dst: *mut f32, tile: usize, position: usize));
            kernels!(@f [$($feat)?] $lane, output, (src: *const f32, tile: usize, position: usize, tiles: usize, dst: *mut f32, row: usize, pixel: usize) -> f32);
            kernels!(@f [$($feat)?] $lane, filter, (src: *const f32, tap: usize, dst: *mut f32, position: usize, flip: [bool; 2]));
            kernels!(@f [$($feat)?] $lane, unfilter, (src: *const f32, position: usize, parts: usize, part: usize, dst: *mut f32, tap: usize) -> f32);
            pub(super) static KERNELS: Kernels =
                Kernels { lanes: <$lane as Lane>::N, input, gradient, output, filter, unfilter };
        }
    };
    (@f [$($feat:literal)?] $lane:ty, $f:ident, ($($a:ident: $t:ty),*) $(-> $r:ty)?) => {
        $(#[target_feature(enable = $feat)])?
        unsafe fn $f($($a: $t),*) $(-> $r)? {
            // SAFETY: same contract; the features are enabled here.
            unsafe { super::$f::<$lane>($($a),*) }
        }
    };
}
kernels!(portable, Portable<f32>, []);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, crate::cpu::lib::gemm::kernel::x86::Ymm32, ["avx2,fma"]);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, crate::cpu::lib::gemm::kernel::x86::Zmm32, ["avx512f"]);

/// The transforms of the current instruction set level, as wide as its f32 products.
pub(super) fn kernels() -> &'static Kernels {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => &avx512::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::KERNELS,
        _ => &portable::KERNELS,
    }
}
