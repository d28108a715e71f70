//! Convolutions with a window of one point (channels first): products of the weights with the positions of an image.
//!
//! A task takes some lines of an image, packs its positions once for all features and multiplies register tiles, a few
//! panels of features at a time: what is read of the image stays in the L2 cache, and lines are handed on or stored while
//! they are there. ([`super::direct`] would read the positions where they lie, four features at a time.)

use super::direct::{Rows, Then};
use super::{Conv, Geometry, one_stride};
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::gemm::pack::{Pack, Strided};
use crate::cpu::lib::gemm::{BatchDim, Packed, Panels, Whole, block, kernel, scratch};
use crate::cpu::lib::simd;
use crate::cpu::lib::view::{LibError, Ptr};
use crate::cpu::pool;

/// Positions that a task has if it can.
const POSITIONS: usize = 384;
/// Bytes of a task's packed positions: a part of the L2 cache.
const BYTES: usize = 384 << 10;
/// Panels of features that are multiplied with all of a task's positions in turn.
const PANELS: usize = 4;

/// Whether this form is the one to use.
pub(super) fn fits(c: &Conv, g: &Geometry) -> bool {
    let [z, y, x] = &g.dims;
    let plain = |d: &super::ConvDim| {
        (d.window, d.stride, d.pad_lo, d.lhs_dilation, d.reverse) == (1, 1, 0, 1, false) && d.output <= d.input
    };
    let contiguous = |s: &[isize; 3]| one_stride(&[(y.output, s[1]), (x.output, s[2])]) == Some(1);
    let whole = y.output == 1 || x.output == x.input;
    c.output.elem != Elem::F64
        && c.batch_groups == 1
        && z.output == 1
        && g.dims.iter().all(plain)
        && whole
        && contiguous(&g.in_spatial)
        && contiguous(&g.out_spatial)
        && g.gi >= 8
        && g.go >= 8
        // Few lanes idle.
        && 8 * g.positions >= 7 * g.positions.next_multiple_of(kernel::f32_kernel().lanes)
}

/// `then` (optional) gets the finished rows, which are not stored.
///
/// # Safety
/// The contract of `conv`; [`fits`].
pub(super) unsafe fn run(c: &Conv, g: &Geometry, then: Option<Then>) -> Result<(), LibError> {
    let kn = kernel::f32_kernel();
    let (lanes, lines, width) = (kn.lanes, g.dims[1].output, g.dims[2].output);
    let groups = [BatchDim { size: g.groups, a: c.weight.major * g.go as isize, b: 0, c: 0 }];
    let weights = Strided {
        ptr: Ptr(c.weight.ptr),
        elem: c.weight.elem,
        lane: c.weight.major,
        k: c.weight.minor,
        batch: &groups,
        which: 0,
        keep: c.keep,
    };
    let kc = g.gi.div_ceil(g.gi.div_ceil(kn.kc));
    let whole = Whole { products: g.groups, lanes: g.go, k: g.gi, width: kn.mr, kc };
    // Lines of a task: whole vectors if that is possible.
    let most = (BYTES / (4 * g.gi)).min(POSITIONS) / width;
    let share = (g.n * lines).div_ceil(4 * pool::num_threads());
    let most = if pool::num_threads() > 1 { most.min(share) } else { most }.clamp(1, lines);
    let even = (most.div_ceil(2)..=most).rev().find(|l| (l * width).is_multiple_of(lanes));
    let per = even.unwrap_or(most);
    let bands = lines.div_ceil(per);
    let source = Strided {
        ptr: Ptr(c.input.ptr),
        elem: c.input.elem,
        lane: 1,
        k: c.input.minor,
        batch: &[],
        which: 1,
        keep: None,
    };
    let flops = 2.0 * (g.n * g.positions * g.gi) as f64 * c.out_features as f64;
    let body = |w: &Packed<f32>, t: usize| {
        let (group, n, l0) = (t / (g.n * bands), t / bands % g.n, t % bands * per);
        let rows = per.min(lines - l0);
        let count = rows * width;
        let wide = count.next_multiple_of(lanes);
        let panel = count.next_multiple_of(kn.nr);
        let straight = then.is_none() && c.output.elem == Elem::F32 && wide == count;
        let some = PANELS * kn.mr;
        let sums = if straight { 0 } else { some * wide * 4 };
        scratch([g.gi * panel * 4, sums, 0], |[pb, ps, _]| {
            let (pb, ps) = (pb.cast::<f32>(), ps.cast::<f32>());
            let from = n as isize * c.input.major + (group * g.gi) as isize * c.input.minor + (l0 * width) as isize;
            let from = Strided { ptr: Ptr(source.ptr.at::<u8>(from * source.elem.size() as isize)), ..source };
            for k0 in (0..g.gi).step_by(whole.kc) {
                // SAFETY: the task's positions; the buffer holds all blocks of k, one after the other.
                unsafe { from.pack(0, 0, count, k0, whole.kc.min(g.gi - k0), kn.nr, pb.add(k0 * panel)) };
            }
            let o = &c.output;
            let size = o.elem.size() as isize;
            let to = n as isize * o.major + (group * g.go) as isize * o.minor + (l0 * width) as isize;
            for f0 in (0..g.go).step_by(some) {
                let m = some.min(g.go - f0);
                let first = to + f0 as isize * o.minor;
                let (sums, ld) = if straight { (Ptr(o.ptr).at::<f32>(first), o.minor as usize) } else { (ps, wide) };
                for k0 in (0..g.gi).step_by(whole.kc) {
                    let len = whole.kc.min(g.gi - k0);
                    let a = w.at(group, k0, f0, len);
                    let panels = Panels {
                        a,
                        packed: true,
                        a_r: 1,
                        a_k: kn.mr as isize,
                        b: pb.wrapping_add(k0 * panel).cast_const(),
                        b_len: len,
                        k: len,
                    };
                    // SAFETY: the panels are packed; rows of sums have room for whole vectors.
                    unsafe { block(kn, &panels, m, count, sums, ld, k0 > 0) };
                }
                for f in 0..if straight { 0 } else { m } {
                    let ptr = ps.wrapping_add(f * wide).cast_const();
                    match then {
                        Some(then) => then(&Rows { ptr, image: n, feature: group * g.go + f0 + f, first: l0, rows }),
                        None => {
                            let at = (first + f as isize * o.minor) * size;
                            // SAFETY: the task's lines of the feature.
                            unsafe { simd::store_f32(o.elem, ptr, Ptr(o.ptr).at::<u8>(at), count) };
                        }
                    }
                }
            }
        })
    };
    // SAFETY: the caller's contract; tasks write disjoint lines.
    unsafe {
        whole.with(&weights, |w| pool::try_for(g.groups * g.n * bands, (flops / 60.0) as u64, &|t| body(w, t)))??;
    }
    Ok(())
}
