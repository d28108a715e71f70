//! Convolutions with one input feature to a group: no product worth packing for.

use super::{Conv, Geometry};
use crate::cpu::lib::elem::Scalar;
use crate::cpu::lib::view::{LibError, Ptr};
use crate::cpu::pool;
use crate::dispatch_elem;

/// # Safety
/// The contract of `conv`; `g.gi` is 1.
pub(super) unsafe fn run(c: &Conv, g: &Geometry) -> Result<(), LibError> {
    if c.input.elem != c.weight.elem || c.input.elem != c.output.elem {
        // Mixed types are rare here: the element-wise loop below reads anything.
        // SAFETY: the caller's contract.
        unsafe { rows::<f64, false>(c, g) };
        return Ok(());
    }
    dispatch_elem!(c.input.elem, T => {
        // SAFETY: the caller's contract.
        unsafe { vector::<T>(c, g) }
    });
    Ok(())
}

unsafe fn vector<T: Scalar>(c: &Conv, g: &Geometry) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2<T: Scalar>(c: &Conv, g: &Geometry, b: usize, e: usize) {
            // SAFETY: the same contract.
            unsafe { range::<T, true>(c, g, b, e) }
        }
        if crate::cpu::lib::isa::current() >= crate::cpu::lib::isa::Isa::Avx2 {
            return share(c, g, &|c, g, b, e| {
                // SAFETY: AVX2 is present; the caller's contract.
                unsafe { avx2::<T>(c, g, b, e) }
            });
        }
    }
    // SAFETY: the caller's contract.
    unsafe { rows::<T, true>(c, g) }
}

unsafe fn rows<T: Scalar, const SAME: bool>(c: &Conv, g: &Geometry) {
    share(c, g, &|c, g, b, e| {
        // SAFETY: the caller's contract; ranges are disjoint output rows.
        unsafe { range::<T, SAME>(c, g, b, e) }
    });
}

/// Shares out rows (image, outer positions) × feature blocks.
fn share(c: &Conv, g: &Geometry, f: &(dyn Fn(&Conv, &Geometry, usize, usize) + Sync)) {
    let rows = g.n * g.dims[0].output * g.dims[1].output * c.out_features.div_ceil(BLOCK);
    let cost = (g.n * g.positions * g.taps) as u64 * c.out_features as u64 / 4;
    pool::parallel_range(rows, 1, cost, &|b, e| f(c, g, b, e));
}

/// Features taken together; their sums of one position fit registers.
const BLOCK: usize = 32;

/// Rows `begin..end`: one output row of `BLOCK` features each.
#[inline(always)]
unsafe fn range<T: Scalar, const SAME: bool>(c: &Conv, g: &Geometry, begin: usize, end: usize) {
    let d = &g.dims;
    let blocks = c.out_features.div_ceil(BLOCK);
    let (ip, wp, op) = (Ptr(c.input.ptr), Ptr(c.weight.ptr), Ptr(c.output.ptr));
    for row in begin..end {
        let f0 = row % blocks * BLOCK;
        let fs = BLOCK.min(c.out_features - f0);
        let r = row / blocks;
        let (n, z, y) = (r / (d[0].output * d[1].output), r / d[1].output % d[0].output, r % d[1].output);
        let out = n as isize * c.output.major + z as isize * g.out_spatial[0] + y as isize * g.out_spatial[1];
        for x in 0..d[2].output {
            let mut acc = [T::Acc::zero(); BLOCK];
            for tap in 0..g.taps {
                let k = [tap / (d[1].window * d[2].window), tap / d[2].window % d[1].window, tap % d[2].window];
                let o = [z, y, x];
                let mut at = n as isize * c.input.major;
                let mut inside = true;
                for i in 0..3 {
                    let kk = if d[i].reverse { d[i].window - 1 - k[i] } else { k[i] };
                    let t = (o[i] * d[i].stride + kk * d[i].rhs_dilation) as isize - d[i].pad_lo;
                    let ld = d[i].lhs_dilation as isize;
                    inside &= t >= 0 && t % ld == 0 && t / ld < d[i].input as isize;
                    at += t.div_euclid(ld) * g.in_spatial[i];
                }
                if !inside {
                    continue;
                }
                let w =
                    k[0] as isize * g.w_spatial[0] + k[1] as isize * g.w_spatial[1] + k[2] as isize * g.w_spatial[2];
                // SAFETY: the position is inside the input, the tap inside the window.
                unsafe {
                    if SAME && g.go == 1 && c.input.minor == 1 && c.weight.major == 1 {
                        let (i, w) = (ip.at::<T>(at + f0 as isize), wp.at::<T>(w + f0 as isize));
                        for (f, a) in acc.iter_mut().enumerate().take(fs) {
                            *a = a.add((*i.add(f)).to_acc().mul((*w.add(f)).to_acc()));
                        }
                    } else {
                        for (f, a) in acc.iter_mut().enumerate().take(fs) {
                            let io = at + ((f0 + f) / g.go) as isize * c.input.minor;
                            let wo = w + (f0 + f) as isize * c.weight.major;
                            let (iv, wv) = if SAME {
                                ((*ip.at::<T>(io)).to_acc(), (*wp.at::<T>(wo)).to_acc())
                            } else {
                                let (a, b) = (c.input.elem, c.weight.elem);
                                (
                                    T::Acc::from_f64(a.load_f64(ip.at::<u8>(io * a.size() as isize))),
                                    T::Acc::from_f64(b.load_f64(wp.at::<u8>(wo * b.size() as isize))),
                                )
                            };
                            *a = a.add(iv.mul(wv));
                        }
                    }
                }
            }
            for (f, a) in acc.iter().enumerate().take(fs) {
                let o = out + x as isize * g.out_spatial[2] + (f0 + f) as isize * c.output.minor;
                // SAFETY: an element of this row of the output.
                unsafe {
                    if SAME {
                        *op.at::<T>(o) = T::from_acc(*a);
                    } else {
                        c.output.elem.store_f64(op.at::<u8>(o * c.output.elem.size() as isize), a.to_f64());
                    }
                }
            }
        }
    }
}
