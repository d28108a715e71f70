//! The products of the domain: tiles × input features · input features × output features.
//!
//! Tiles lie as the transforms leave them, vectors of channels: `[vector of channels][tile][channel]`. Rows of the product
//! are then a constant distance apart, so one address serves all rows of a register tile (a general product needs one for
//! each, more than there are registers) and nothing is packed.

use crate::cpu::lib::conv::tile::Vector;
use crate::cpu::lib::gemm::kernel::{Lane, Portable};
use crate::cpu::lib::isa::{self, Isa};

/// `c[r][..] = Σ_v Σ_l a[v·a_step + r·N + l] · b[(v·N + l)·w..]` over `vectors` vectors of N channels, where w is the width of
/// a panel.
type Product = unsafe fn(vectors: usize, a: *const f32, a_step: usize, b: *const f32, c: *mut f32, ldc: usize);

/// The products of one instruction set; entry [v - 1][r - 1] covers v vectors of output features and r tiles.
pub(super) struct Products {
    pub(super) rows: usize,
    /// Output features of a panel.
    pub(super) width: usize,
    table: [&'static [Product]; 2],
}

impl Products {
    /// All tiles by `n` output features, whose panels follow each other in `b` (each `vectors` vectors of channels deep).
    ///
    /// # Safety
    /// The arrays cover the tiles and features; rows of `c` have room for whole vectors.
    pub(super) unsafe fn run(
        &self,
        vectors: usize,
        (a, a_step, tiles): (*const f32, usize, usize),
        b: *const f32,
        (c, ldc, n): (*mut f32, usize, usize),
    ) {
        let lanes = self.width / 2;
        for f in (0..n).step_by(self.width) {
            let table = self.table[(n - f).min(self.width).div_ceil(lanes) - 1];
            for t in (0..tiles).step_by(self.rows) {
                let rows = self.rows.min(tiles - t);
                let (a, b) = (a.wrapping_add(t * lanes), b.wrapping_add(f * vectors * lanes));
                // SAFETY: the caller's arrays.
                unsafe { table[rows - 1](vectors, a, a_step, b, c.wrapping_add(t * ldc + f), ldc) };
            }
        }
    }
}

#[inline(always)]
unsafe fn product<L: Vector, const R: usize, const V: usize>(
    vectors: usize,
    mut a: *const f32,
    a_step: usize,
    mut b: *const f32,
    c: *mut f32,
    ldc: usize,
) {
    // SAFETY: the caller's arrays cover every address formed below.
    unsafe {
        let mut s = [[L::zero(); V]; R];
        for _ in 0..vectors {
            for l in 0..L::N {
                let mut x = [L::load(b); V];
                for v in 1..V {
                    x[v] = L::load(b.add(v * L::N));
                }
                for r in 0..R {
                    let w = L::splat(a.add(r * L::N + l));
                    for v in 0..V {
                        s[r][v] = L::mac(s[r][v], w, x[v]);
                    }
                }
                b = b.add(2 * L::N);
            }
            a = a.wrapping_add(a_step);
        }
        for r in 0..R {
            for v in 0..V {
                L::store_acc(c.add(r * ldc + v * L::N), s[r][v]);
            }
        }
    }
}

macro_rules! products {
    ($name:ident, $lane:ty, [$($feat:literal)?], $rows:literal [$($r:literal)*]) => {
        mod $name {
            use super::*;
            $(#[target_feature(enable = $feat)])?
            unsafe fn f<const R: usize, const V: usize>(
                vectors: usize, a: *const f32, a_step: usize, b: *const f32, c: *mut f32, ldc: usize,
            ) {
                // SAFETY: same contract; the features are enabled here.
                unsafe { product::<$lane, R, V>(vectors, a, a_step, b, c, ldc) }
            }
            pub(super) static PRODUCTS: Products = Products {
                rows: $rows,
                width: 2 * <$lane as Lane>::N,
                table: [&[$(f::<$r, 1>),*], &[$(f::<$r, 2>),*]],
            };
        }
    };
}
products!(portable, Portable<f32>, [], 4 [1 2 3 4]);
#[cfg(target_arch = "x86_64")]
products!(avx2, crate::cpu::lib::gemm::kernel::x86::Ymm32, ["avx2,fma"], 6 [1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
products!(
    avx512,
    crate::cpu::lib::gemm::kernel::x86::Zmm32,
    ["avx512f"],
    14 [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
);

/// The products of the current instruction set level.
pub(super) fn products() -> &'static Products {
    match isa::current() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => &avx512::PRODUCTS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::PRODUCTS,
        _ => &portable::PRODUCTS,
    }
}
