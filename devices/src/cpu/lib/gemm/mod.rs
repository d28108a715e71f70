//! Matrix products: C[m, n] = A[m, k] · B[k, n], batched, over strided operands.
//!
//! f32, f64, bf16 and f16 inputs (mixed kinds are converted while packing); sums in f32, or f64 for
//! f64. An optional epilogue sees every finished block of C while it is in the cache.
//! The result does not depend on the number of threads: k is never split between them.

mod driver;
mod finish;
pub(crate) mod kernel;
pub(crate) mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_512;
#[cfg(target_arch = "x86_64")]
mod pack_x86;
mod pass;
mod plan;
mod scratch;
mod small;
mod strip;
mod team;
#[cfg(test)]
mod tests;
mod whole;

use super::elem::Elem;
use super::view::{LibError, Ptr};
use crate::kept::Keep;
use kernel::Pair;
use pack::Strided;

pub(crate) use driver::{Job, run};
pub(crate) use finish::Finish;
pub(crate) use scratch::{room, scratch};
pub(crate) use strip::{Panels, block};
pub(crate) use whole::{Packed, Whole};

/// An input matrix: element (i, j) at `ptr + size·(i·row + j·col)`. Strides count elements; any
/// sign, zero included, so a transpose or a broadcast costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub ptr: *const u8,
    pub elem: Elem,
    pub row: isize,
    pub col: isize,
    /// Where its packed form may be kept from call to call.
    pub keep: Option<Keep<'a>>,
}

/// Where C goes: row-major with row stride `ld` elements, of type f32, f64, bf16 or f16.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub ptr: *mut u8,
    pub elem: Elem,
    pub ld: isize,
}

/// One batch dimension and the element strides of A, B and C along it (0 shares an operand).
#[derive(Clone, Copy, Debug)]
pub struct BatchDim {
    pub size: usize,
    pub a: isize,
    pub b: isize,
    pub c: isize,
}

/// A finished block of C in the sum's type (f32, or f64 for f64 products), handed to the epilogue.
///
/// Row r, column c of the block is C[row0 + r, col0 + c] of batch `batch` (row-major index over the
/// batch dimensions) and lies at `ptr + size·(r·ld + c)`. The epilogue may change it in place.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub ptr: *mut u8,
    pub ld: isize,
    pub batch: usize,
    pub row0: usize,
    pub col0: usize,
    pub rows: usize,
    pub cols: usize,
}

/// Called once for each block; blocks cover C exactly, in any order, from several threads.
pub type Epilogue<'a> = &'a (dyn Fn(&Tile) + Sync);

/// A (batched) matrix product.
pub struct Gemm<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Outermost first; empty for a single product.
    pub batch: &'a [BatchDim],
    pub a: Operand<'a>,
    pub b: Operand<'a>,
    /// None: blocks go to the epilogue only and are not stored.
    pub c: Option<Output>,
    /// Add to what C holds instead of overwriting it.
    pub accumulate: bool,
    /// Runs after the sums (and the old C) are complete, before conversion to C's type.
    pub epilogue: Option<Epilogue<'a>>,
}

/// `$f` of the job that `$g` is, with the element types and the kernel that its operands ask for.
macro_rules! with_job {
    ($g:ident, $batches:ident, $finish:ident, $f:path) => {{
        let ((a, b), (m, n, k)) = (sources($g), ($g.m, $g.n, $g.k));
        let (batches, finish) = ($batches, $finish);
        if $g.a.elem == Elem::F64 || $g.b.elem == Elem::F64 {
            let kernel = kernel::f64_kernel();
            $f(&Job::<f64, f64> { kernel, m, n, k, batches, a: &a, b: &b, finish })
        } else {
            match kernel::bf16_kernel() {
                Some(kernel) if $g.a.elem == Elem::BF16 && $g.b.elem == Elem::BF16 => {
                    $f(&Job::<Pair, f32> { kernel, m, n, k, batches, a: &a, b: &b, finish })
                }
                _ => {
                    let kernel = kernel::f32_kernel();
                    $f(&Job::<f32, f32> { kernel, m, n, k, batches, a: &a, b: &b, finish })
                }
            }
        }
    }};
}

/// Runs the product.
///
/// Errors: [`LibError::Shape`] for element types it has no product for, or a sum type that does
/// not match (f64 inputs need an f64 C and the reverse); [`LibError::Memory`].
///
/// # Safety
/// A and B cover m×k and k×n elements for every batch index and C m×n; C overlaps neither A, B nor
/// itself (rows do not overlap, `c` batch strides keep batches apart).
pub unsafe fn gemm(g: &Gemm) -> Result<(), LibError> {
    let float = |e: Elem| e.is_float();
    let wide = g.a.elem == Elem::F64 || g.b.elem == Elem::F64;
    if !float(g.a.elem) || !float(g.b.elem) || g.c.is_some_and(|c| !float(c.elem) || (c.elem == Elem::F64) != wide) {
        return Err(LibError::shape(
            "gemm",
            format!("no product {:?} · {:?} → {:?}", g.a.elem, g.b.elem, g.c.map(|c| c.elem)),
        ));
    }
    if g.c.is_none() && g.accumulate {
        return Err(LibError::shape("gemm", "accumulate needs a C"));
    }
    let batches: usize = g.batch.iter().map(|d| d.size).product();
    if g.m == 0 || g.n == 0 || batches == 0 {
        return Ok(());
    }
    let finish = Finish { out: g.c, batch: g.batch, accumulate: g.accumulate, epilogue: g.epilogue };
    // SAFETY: the caller's contract, passed on.
    unsafe {
        if !wide && small::try_small(g, batches, &finish)? {
            return Ok(());
        }
        with_job!(g, batches, finish, run)
    }
}

/// Bytes of work memory that [`gemm`] takes at most, all threads together. Addresses do not count.
pub(crate) fn work_bytes(g: &Gemm) -> usize {
    let batches: usize = g.batch.iter().map(|d| d.size).product();
    if g.m == 0 || g.n == 0 || batches == 0 {
        return 0;
    }
    let finish = Finish { out: g.c, batch: g.batch, accumulate: g.accumulate, epilogue: g.epilogue };
    with_job!(g, batches, finish, driver::work_bytes)
}

/// The operands as packing sources.
fn sources<'a>(g: &'a Gemm) -> (Strided<'a>, Strided<'a>) {
    let source = |o: &Operand<'a>, lane, k, which| Strided {
        ptr: Ptr(o.ptr.cast_mut()),
        elem: o.elem,
        lane,
        k,
        batch: g.batch,
        which,
        keep: o.keep,
    };
    (source(&g.a, g.a.row, g.a.col, 0), source(&g.b, g.b.col, g.b.row, 1))
}

/// Element offsets of operand `which` (0 = A, 1 = B, 2 = C) for flat batch index `b`.
pub(crate) fn batch_offset(dims: &[BatchDim], b: usize, which: usize) -> isize {
    let mut rest = b;
    let mut off = 0;
    for d in dims.iter().rev() {
        let i = (rest % d.size) as isize;
        rest /= d.size;
        off += i * [d.a, d.b, d.c][which];
    }
    off
}
