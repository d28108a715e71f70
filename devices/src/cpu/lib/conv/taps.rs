//! Weights as a packing source where the steps of k, taps and input features, have no single stride.

use super::ConvArray;
use crate::cpu::lib::gemm::pack::{Kept, Matrix, Pack, Unit, pack_matrix};
use crate::cpu::lib::view::Ptr;
use crate::kept::Keep;

/// Lanes are output features, k the four dimensions of `order` (sizes and strides in elements), the last one innermost.
pub(super) struct Taps<'a> {
    pub(super) weight: ConvArray<'a>,
    pub(super) order: [(usize, isize); 4],
    /// Elements between groups.
    pub(super) step: isize,
    pub(super) keep: Option<Keep<'a>>,
}

impl<U: Unit> Pack<U> for Taps<'_> {
    unsafe fn pack(&self, group: usize, lane0: usize, lanes: usize, k0: usize, kc: usize, width: usize, dst: *mut U) {
        let w = &self.weight;
        let size = w.elem.size() as isize;
        let [a, b, c, d] = self.order;
        // Products of windows are in f32 or f64: a unit is one element.
        debug_assert_eq!(U::K, 1);
        let mut k = k0;
        while k < k0 + kc {
            let len = (d.0 - k % d.0).min(k0 + kc - k);
            let outer = k / d.0;
            let at = (outer / (c.0 * b.0) % a.0) as isize * a.1
                + (outer / c.0 % b.0) as isize * b.1
                + (outer % c.0) as isize * c.1
                + (k % d.0) as isize * d.1
                + group as isize * self.step;
            for (panel, l) in (0..lanes).step_by(width).enumerate() {
                let p = Ptr(w.ptr).at::<u8>((at + (lane0 + l) as isize * w.major) * size).cast_const();
                let src = Matrix { p, elem: w.elem, lane: w.major * size, k: d.1 * size };
                let to = dst.wrapping_add(panel * kc * width + (k - k0) * width);
                // SAFETY: existing weights; a part of the panel.
                unsafe { pack_matrix(&src, width.min(lanes - l), len, width, to) };
            }
            k += len;
        }
    }

    fn keep(&self) -> Option<Kept<'_>> {
        let keep = self.keep?;
        let w = &self.weight;
        let mut form: smallvec::SmallVec<[i64; 24]> =
            smallvec::SmallVec::from_slice(&[2, keep.offset(w.ptr), w.elem as i64, w.major as i64, self.step as i64]);
        form.extend(self.order.iter().flat_map(|&(n, s)| [n as i64, s as i64]));
        Some(Kept { keep, form, size: w.elem.size(), shared: false })
    }
}
