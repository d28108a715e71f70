//! The input's patches as a packing source: lanes are output positions, k runs over the window's
//! taps and the group's input features.

use super::{Conv, ConvDim, Geometry};
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::gemm::pack::{Pack, Unit, pack_rows};
use crate::cpu::lib::view::Ptr;

/// Which way memory runs contiguously, which decides the order of k and how patches are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Run {
    /// Features are contiguous (channels last): k = (tap, feature), runs along features.
    Feature,
    /// The window is long and contiguous (weight gradients): k = (feature, tap), runs along taps.
    Tap,
    /// k = (feature, tap), runs along output positions (or images, if these are inner).
    Position,
}

/// See the module's text.
pub(super) struct Patches<'a> {
    ptr: Ptr,
    elem: Elem,
    /// Byte strides.
    major: isize,
    minor: isize,
    spatial: [isize; 3],
    g: &'a Geometry,
    feature_grouped: bool,
    run: Run,
}

/// Longest panel of any kernel.
const WIDTH: usize = 32;

impl<'a> Patches<'a> {
    pub(super) fn new(c: &Conv, g: &'a Geometry) -> Patches<'a> {
        let size = c.input.elem.size() as isize;
        let d = &g.dims[2];
        let run = if g.images_inner {
            Run::Position
        } else if c.input.minor == 1 && g.gi >= 4 {
            Run::Feature
        } else if d.window >= 8 && d.lhs_dilation == 1 && !d.reverse && g.in_spatial[2] * d.rhs_dilation as isize == 1 {
            Run::Tap
        } else {
            Run::Position
        };
        Patches {
            ptr: Ptr(c.input.ptr),
            elem: c.input.elem,
            major: c.input.major * size,
            minor: c.input.minor * size,
            spatial: g.in_spatial.map(|s| s * size),
            g,
            feature_grouped: c.feature_groups > 1,
            run,
        }
    }

    /// True if k = (tap, feature), false if k = (feature, tap).
    pub(super) fn feature_inner(&self) -> bool {
        self.run == Run::Feature
    }

    /// Byte offset of a group's first image and feature.
    fn group_base(&self, group: usize) -> isize {
        if self.feature_grouped {
            (group * self.g.gi) as isize * self.minor
        } else {
            (group * self.g.n) as isize * self.major
        }
    }

    /// Image and window origin (before dilation) of a lane: byte offset of the image, origins.
    fn lane(&self, lane: usize) -> (isize, [isize; 3]) {
        let d = &self.g.dims;
        let (n, p) = if self.g.images_inner {
            (lane % self.g.n, lane / self.g.n)
        } else {
            (lane / self.g.positions, lane % self.g.positions)
        };
        let o = [p / (d[1].output * d[2].output), p / d[2].output % d[1].output, p % d[2].output];
        (n as isize * self.major, std::array::from_fn(|i| (o[i] * d[i].stride) as isize - d[i].pad_lo))
    }

    /// Distance of a tap from the window's origin.
    fn tap(&self, tap: usize) -> [isize; 3] {
        let d = &self.g.dims;
        let k = [tap / (d[1].window * d[2].window), tap / d[2].window % d[1].window, tap % d[2].window];
        std::array::from_fn(|i| (if d[i].reverse { d[i].window - 1 - k[i] } else { k[i] } * d[i].rhs_dilation) as isize)
    }
}

/// The input index at dilated position `t`, if there is an element.
#[inline(always)]
fn index(d: &ConvDim, t: isize) -> Option<isize> {
    if t < 0 {
        return None;
    }
    let i = if d.lhs_dilation == 1 {
        t
    } else if t % d.lhs_dilation as isize == 0 {
        t / d.lhs_dilation as isize
    } else {
        return None;
    };
    (i < d.input as isize).then_some(i)
}

/// The input index that output `o` meets under tap `k`, if there is an element.
#[inline(always)]
pub(super) fn input_index(d: &ConvDim, o: usize, k: usize) -> Option<isize> {
    index(d, (o * d.stride + k * d.rhs_dilation) as isize - d.pad_lo)
}

impl<U: Unit> Pack<U> for Patches<'_> {
    unsafe fn pack(&self, group: usize, lane0: usize, lanes: usize, k0: usize, kc: usize, width: usize, dst: *mut U) {
        let base = self.group_base(group);
        for (panel, l0) in (0..lanes).step_by(width).enumerate() {
            let w = width.min(lanes - l0);
            let mut at = [(0isize, [0isize; 3]); WIDTH];
            for (l, a) in at.iter_mut().enumerate().take(w) {
                *a = self.lane(lane0 + l0 + l);
                a.0 += base;
            }
            let out = dst.wrapping_add(panel * kc * width);
            // SAFETY: the caller's buffer; positions are checked against the input.
            unsafe {
                match self.run {
                    Run::Feature => self.by_feature(&at[..w], k0, kc, width, out),
                    Run::Tap => self.by_tap(&at[..w], k0, kc, width, out),
                    Run::Position => self.by_position(&at[..w], k0, kc, width, out),
                }
            }
        }
    }
}

type Lanes<'b> = &'b [(isize, [isize; 3])];

impl Patches<'_> {
    /// Byte offset of the element under a tap, if it exists.
    #[inline(always)]
    fn at(&self, lane: &(isize, [isize; 3]), tap: &[isize; 3]) -> Option<isize> {
        let d = &self.g.dims;
        let z = index(&d[0], lane.1[0] + tap[0])?;
        let y = index(&d[1], lane.1[1] + tap[1])?;
        let x = index(&d[2], lane.1[2] + tap[2])?;
        Some(lane.0 + z * self.spatial[0] + y * self.spatial[1] + x * self.spatial[2])
    }

    unsafe fn by_feature<U: Unit>(&self, lanes: Lanes, k0: usize, kc: usize, width: usize, out: *mut U) {
        let gi = self.g.gi;
        let mut k = k0;
        while k < k0 + kc {
            let (tap, f) = (k / gi, k % gi);
            let len = (gi - f).min(k0 + kc - k);
            let t = self.tap(tap);
            let mut rows = [std::ptr::null::<u8>(); WIDTH];
            for (r, lane) in rows.iter_mut().zip(lanes) {
                if let Some(o) = self.at(lane, &t) {
                    *r = self.ptr.at::<u8>(o + f as isize * self.minor);
                }
            }
            // SAFETY: each row has `len` features from `f` on.
            unsafe { pack_rows(self.elem, &rows[..lanes.len()], len, width, out.add((k - k0) * width)) };
            k += len;
        }
    }

    unsafe fn by_tap<U: Unit>(&self, lanes: Lanes, k0: usize, kc: usize, width: usize, out: *mut U) {
        let d = &self.g.dims[2];
        let (taps, size) = (self.g.taps, self.elem.size());
        // Rows that the padding cuts are completed with zeros here: 256 elements of up to 8 bytes.
        const CHUNK: usize = 256;
        let mut pad = [[0u64; CHUNK]; WIDTH];
        let mut k = k0;
        while k < k0 + kc {
            let (f, tap) = (k / taps, k % taps);
            let x = tap % d.window;
            let len = (d.window - x).min(k0 + kc - k).min(CHUNK);
            let t = self.tap(tap);
            let mut rows = [std::ptr::null::<u8>(); WIDTH];
            for ((r, lane), pad) in rows.iter_mut().zip(lanes).zip(&mut pad) {
                let (z, y) = (index(&self.g.dims[0], lane.1[0] + t[0]), index(&self.g.dims[1], lane.1[1] + t[1]));
                let (Some(z), Some(y)) = (z, y) else { continue };
                // Taps and elements run together: element `first + i` is under tap `tap + i`.
                let first = lane.1[2] + t[2];
                let lo = (-first).clamp(0, len as isize);
                let hi = (d.input as isize - first).clamp(lo, len as isize);
                if lo == hi {
                    continue;
                }
                let src = self
                    .ptr
                    .at::<u8>(
                        lane.0
                            + f as isize * self.minor
                            + z * self.spatial[0]
                            + y * self.spatial[1]
                            + (first + lo) * size as isize,
                    )
                    .cast_const();
                if lo == 0 && hi == len as isize {
                    *r = src;
                } else {
                    let p = pad.as_mut_ptr().cast::<u8>();
                    // SAFETY: `lo..hi` of `len <= CHUNK` elements are inside the input and the row.
                    unsafe {
                        p.write_bytes(0, len * size);
                        std::ptr::copy_nonoverlapping(src, p.add(lo as usize * size), (hi - lo) as usize * size);
                    }
                    *r = p.cast_const();
                }
            }
            // SAFETY: each row has `len` elements.
            unsafe { pack_rows(self.elem, &rows[..lanes.len()], len, width, out.add((k - k0) * width)) };
            k += len;
        }
    }

    unsafe fn by_position<U: Unit>(&self, lanes: Lanes, k0: usize, kc: usize, width: usize, out: *mut U) {
        let (taps, size) = (self.g.taps, self.elem.size() as isize);
        // Offsets depend on the tap only: compute them once and move along the features.
        for skip in 0..kc.min(taps) {
            let t = self.tap((k0 + skip) % taps);
            // Address under the tap for feature 0, and whether to move along features: a lane
            // without an element stays at a zero.
            static HOLE: [u64; 1] = [0];
            let hole = HOLE.as_ptr().cast::<u8>();
            let mut src = [hole; WIDTH];
            let mut moves = [0isize; WIDTH];
            let (mut dense, mut any) = (lanes.len() == width, false);
            for (l, lane) in lanes.iter().enumerate() {
                // Lanes at one position (of several images) meet the tap at the same place.
                if l > 0 && lane.1 == lanes[l - 1].1 {
                    if moves[l - 1] != 0 {
                        (src[l], moves[l]) = (src[l - 1].wrapping_offset(lane.0 - lanes[l - 1].0), -1);
                    }
                } else if let Some(o) = self.at(lane, &t) {
                    (src[l], moves[l], any) = (self.ptr.at::<u8>(o), -1, true);
                }
                dense &= moves[l] != 0 && src[l] == src[0].wrapping_offset(l as isize * size);
            }
            let same = U::same_as(self.elem);
            let mut k = skip;
            while k < kc {
                let f = ((k0 + k) / taps) as isize * self.minor;
                // SAFETY: addresses were checked against the input (a hole's is a constant of 8
                // bytes); `k < kc` of the panel.
                unsafe {
                    let o = out.add(k * width);
                    if !any {
                        (0..width).for_each(|l| *o.add(l) = U::ZERO);
                    } else if dense && same {
                        std::ptr::copy_nonoverlapping(src[0].wrapping_offset(f).cast::<U>(), o, width);
                    } else if same {
                        for l in 0..width {
                            *o.add(l) = *src[l].wrapping_offset(f & moves[l]).cast::<U>();
                        }
                    } else {
                        for l in 0..width {
                            *o.add(l) = U::read(self.elem, src[l].wrapping_offset(f & moves[l]), 0, 1);
                        }
                    }
                }
                k += taps;
            }
        }
    }
}
