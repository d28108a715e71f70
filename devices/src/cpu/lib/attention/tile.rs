//! Products over a tile of registers: MR rows by NV vectors of queries.

use crate::cpu::lib::gemm::kernel::{Lane, step};

/// Each row is contiguous along k, rows lie `distance` apart.
pub(super) const ROWS: bool = true;
/// Rows are neighbours, steps of k lie `distance` apart.
pub(super) const LANES: bool = false;

/// Steps of k that are written out.
const UNROLL: usize = 4;

/// `acc += A·B` over `k` units: A by its mode, B of NV vectors, rows `ldb` apart.
///
/// # Safety
/// A covers MR rows of `k` units and B `k` rows of NV vectors; the processor has the lane's instruction set.
#[inline(always)]
pub(super) unsafe fn product<P: Lane, const MR: usize, const NV: usize, const MODE: bool>(
    acc: &mut [[P::V; NV]; MR],
    k: usize,
    a: *const P::Unit,
    distance: isize,
    mut b: *const P::Unit,
    ldb: usize,
) {
    let mut rows = [a; MR];
    for r in 1..MR {
        rows[r] = if MODE == ROWS { a.wrapping_offset(r as isize * distance) } else { a.wrapping_add(r) };
    }
    // SAFETY: the caller's promise covers every address formed below.
    unsafe {
        for _ in 0..k / UNROLL {
            for q in 0..UNROLL {
                if MODE == ROWS {
                    step::<P, MR, NV>(acc, &rows, q as isize, b);
                } else {
                    step::<P, MR, NV>(acc, &rows, 0, b);
                    for r in 0..MR {
                        rows[r] = rows[r].wrapping_offset(distance);
                    }
                }
                b = b.wrapping_add(ldb);
            }
            if MODE == ROWS {
                for r in 0..MR {
                    rows[r] = rows[r].wrapping_add(UNROLL);
                }
            }
        }
        for _ in 0..k % UNROLL {
            step::<P, MR, NV>(acc, &rows, 0, b);
            b = b.wrapping_add(ldb);
            for r in 0..MR {
                rows[r] = if MODE == ROWS { rows[r].wrapping_add(1) } else { rows[r].wrapping_offset(distance) };
            }
        }
    }
}
