//! Sums and extrema over sliding windows (pooling).

use super::elem::{Elem, Scalar};
use super::view::{LibError, Ptr, View, Walk};
use crate::cpu::pool;
use crate::dispatch_elem;
use smallvec::SmallVec;

/// The window along one dimension. `WindowDim::ONE` leaves a dimension alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowDim {
    /// Elements in the window.
    pub size: usize,
    pub stride: usize,
    /// Positions added before and after (negative: cut off); they hold the reduction's identity.
    pub pad_lo: isize,
    pub pad_hi: isize,
    /// Distance between the window's elements.
    pub dilation: usize,
}

impl WindowDim {
    pub const ONE: WindowDim = WindowDim { size: 1, stride: 1, pad_lo: 0, pad_hi: 0, dilation: 1 };

    /// Windows that fit over `n` elements.
    pub fn outputs(&self, n: usize) -> usize {
        let padded = n as isize + self.pad_lo + self.pad_hi;
        let span = (self.size.max(1) - 1) as isize * self.dilation as isize + 1;
        if self.size == 0 || self.stride == 0 || padded < span { 0 } else { (padded - span) as usize / self.stride + 1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// 16-bit floats sum in f32.
    Sum,
    /// NaN wins.
    Max,
    Min,
}

/// Reduces each window of `src` to one element of `dst`.
///
/// `window`: one entry for each dimension; `dst.dims[d]` = `window[d].outputs(src.dims[d])` or less
/// (PyTorch's `ceil_mode` is expressed by a larger `pad_hi`). `indices` (i64, shape of `dst`), for
/// `Max` and `Min`: the row-major position of the chosen element within `src`'s dimensions from
/// `spatial_from` on, as PyTorch's max_pool: first of equals, last NaN. A window wholly in the
/// padding gives the identity and, as index, its first in-range corner clamped to the input.
/// Errors on mismatching ranks, shapes or types.
///
/// # Safety
/// Views cover live memory; outputs overlap nothing.
pub unsafe fn reduce_window(
    kind: WindowKind,
    dst: &View,
    indices: Option<(&View, usize)>,
    src: &View,
    window: &[WindowDim],
) -> Result<(), LibError> {
    dst.check("reduce_window")?;
    src.check("reduce_window")?;
    let rank = src.rank();
    let ok = window.len() == rank
        && dst.rank() == rank
        && dst.elem == src.elem
        && (0..rank).all(|d| dst.dims[d] <= window[d].outputs(src.dims[d]))
        && indices.is_none_or(|(i, from)| {
            kind != WindowKind::Sum
                && i.elem == Elem::I64
                && i.dims == dst.dims
                && i.strides.len() == rank
                && from <= rank
        });
    if !ok {
        return Err(LibError::shape(
            "reduce_window",
            format!("{kind:?} over {:?} with {window:?} into {:?}", src.dims, dst.dims),
        ));
    }
    if dst.count() == 0 {
        return Ok(());
    }
    dispatch_elem!(src.elem, T => {
        // SAFETY: the caller's contract.
        unsafe { run::<T>(kind, dst, indices, src, window) }
    });
    Ok(())
}

unsafe fn run<T: Scalar>(
    kind: WindowKind,
    dst: &View,
    indices: Option<(&View, usize)>,
    src: &View,
    window: &[WindowDim],
) {
    let rank = src.rank();
    // SAFETY: the caller's contract.
    if unsafe { by_rows::<T>(kind, dst, indices, src, window) } {
        return;
    }
    // Loop only over dimensions with a window; the others follow the output.
    let over: SmallVec<[usize; 4]> = (0..rank).filter(|&d| window[d].size != 1).collect();
    let mut flat: SmallVec<[isize; 8]> = smallvec::smallvec![0; rank];
    if let Some((_, from)) = indices {
        let mut s = 1;
        for d in (from..rank).rev() {
            flat[d] = s;
            s *= src.dims[d] as isize;
        }
    }
    let per: usize = window.iter().map(|w| w.size).product();
    let total = dst.count();
    let ist = indices.map_or(dst.strides, |(i, _)| i.strides);
    let (sp, dp, ip) = (Ptr(src.ptr), Ptr(dst.ptr), indices.map(|(i, _)| Ptr(i.ptr)));
    pool::parallel_range(total, 64, (total * (per * 2 + 8)) as u64, &|begin, end| {
        let mut w = Walk::new(dst.dims, [dst.strides, ist], begin);
        let mut lo: SmallVec<[usize; 4]> = smallvec::smallvec![0; over.len()];
        let mut hi = lo.clone();
        for _ in begin..end {
            // First element of the window, and the part of the window inside the input.
            let (mut base, mut pos, mut empty) = (0isize, 0isize, false);
            for d in 0..rank {
                let wd = &window[d];
                let start = (w.at(d) * wd.stride) as isize - wd.pad_lo;
                base += start * src.strides[d];
                pos += start * flat[d];
                if wd.size == 1 {
                    empty |= start < 0 || start >= src.dims[d] as isize;
                }
            }
            for (i, &d) in over.iter().enumerate() {
                let (dil, n) = (window[d].dilation.max(1) as isize, src.dims[d] as isize);
                let start = (w.at(d) * window[d].stride) as isize - window[d].pad_lo;
                lo[i] = if start < 0 { ((-start + dil - 1) / dil) as usize } else { 0 };
                hi[i] = if start >= n { 0 } else { window[d].size.min(((n - 1 - start) / dil + 1).max(0) as usize) };
                empty |= lo[i] >= hi[i];
            }
            let mut acc = match kind {
                WindowKind::Sum => T::Acc::zero(),
                WindowKind::Max => T::lowest().to_acc(),
                WindowKind::Min => T::highest().to_acc(),
            };
            let mut at = pos.max(0);
            if !empty {
                let mut first = true;
                let mut visit = |off: isize, p: isize| {
                    // SAFETY: `lo..hi` keeps the position inside the input.
                    let x = unsafe { *sp.at::<T>(base + off) }.to_acc();
                    match kind {
                        WindowKind::Sum => acc = acc.add(x),
                        _ => {
                            let better = if kind == WindowKind::Max { acc.lt(x) } else { x.lt(acc) };
                            if first || better || x.is_nan() {
                                // A NaN already held stays unless another NaN comes.
                                acc = x;
                                at = pos + p;
                            }
                        }
                    }
                    first = false;
                };
                let step = |i: usize| {
                    let d = over[i];
                    let dil = window[d].dilation.max(1) as isize;
                    (dil * src.strides[d], dil * flat[d])
                };
                match over.len() {
                    0 => visit(0, 0),
                    1 => {
                        let (s, f) = step(0);
                        (lo[0] as isize..hi[0] as isize).for_each(|x| visit(x * s, x * f));
                    }
                    2 => {
                        let ((s0, f0), (s1, f1)) = (step(0), step(1));
                        for y in lo[0] as isize..hi[0] as isize {
                            for x in lo[1] as isize..hi[1] as isize {
                                visit(y * s0 + x * s1, y * f0 + x * f1);
                            }
                        }
                    }
                    n => {
                        let mut k = lo.clone();
                        'odometer: loop {
                            let (mut o, mut p) = (0, 0);
                            for i in 0..n {
                                let (s, f) = step(i);
                                o += k[i] as isize * s;
                                p += k[i] as isize * f;
                            }
                            visit(o, p);
                            for i in (0..n).rev() {
                                k[i] += 1;
                                if k[i] < hi[i] {
                                    continue 'odometer;
                                }
                                k[i] = lo[i];
                            }
                            break;
                        }
                    }
                }
            }
            // SAFETY: the output position is inside both views.
            unsafe {
                *dp.at::<T>(w.off[0]) = T::from_acc(acc);
                if let Some(ip) = ip {
                    *ip.at::<i64>(w.off[1]) = at as i64;
                }
            }
            w.step();
        }
    });
}

/// Windows over the last two dimensions, a row of outputs at a time: a pass over the row for each place of the window, in
/// the order in which one window would be walked, so that results are the same. False, and nothing is done, for others.
unsafe fn by_rows<T: Scalar>(
    kind: WindowKind,
    dst: &View,
    indices: Option<(&View, usize)>,
    src: &View,
    window: &[WindowDim],
) -> bool {
    let rank = src.rank();
    if rank < 2
        || window[..rank - 2].iter().any(|w| *w != WindowDim::ONE)
        || src.strides[rank - 1] != 1
        || indices.is_some_and(|(_, from)| from != rank - 2)
    {
        return false;
    }
    let [wy, wx] = [&window[rank - 2], &window[rank - 1]];
    let ([ih, iw], [oh, ow]) = ([src.dims[rank - 2], src.dims[rank - 1]], [dst.dims[rank - 2], dst.dims[rank - 1]]);
    // Input under place k of output o's window.
    let at = |w: &WindowDim, o: usize, k: usize| (o * w.stride + k * w.dilation) as isize - w.pad_lo;
    // Outputs whose place k is in the input.
    let range = |w: &WindowDim, k: usize, outputs: usize, n: usize| {
        let first = at(w, 0, k);
        let (s, n) = (w.stride as isize, n as isize);
        let lo = if first >= 0 { 0 } else { (-first + s - 1) / s };
        let hi = if first >= n { 0 } else { (n - 1 - first) / s + 1 };
        let hi = hi.clamp(0, outputs as isize);
        (lo.min(hi) as usize, hi as usize)
    };
    // Every window meets an element.
    let meets = |w: &WindowDim, outputs: usize, n: usize| {
        (0..outputs).all(|o| (0..w.size).any(|k| (0..n as isize).contains(&at(w, o, k))))
    };
    if !meets(wy, oh, ih) || !meets(wx, ow, iw) || ih * iw > i32::MAX as usize {
        return false;
    }
    let columns: SmallVec<[(usize, usize); 8]> = (0..wx.size).map(|k| range(wx, k, ow, iw)).collect();
    let rows: usize = dst.dims[..rank - 1].iter().product();
    let per = wy.size * wx.size;
    let ist = indices.map_or(dst.strides, |(i, _)| i.strides);
    let (sp, dp, ip) = (Ptr(src.ptr), Ptr(dst.ptr), indices.map(|(i, _)| Ptr(i.ptr)));
    let outer = &dst.dims[..rank - 1];
    let start = match kind {
        WindowKind::Sum => T::Acc::zero(),
        WindowKind::Max => T::lowest().to_acc(),
        WindowKind::Min => T::highest().to_acc(),
    };
    // The first element that each output of a row meets.
    let first: Vec<i32> =
        (0..ow).map(|o| (0..wx.size).map(|k| at(wx, o, k)).find(|&x| x >= 0).unwrap_or(0) as i32).collect();
    pool::parallel_range(rows, 1, (rows * ow * (per + 2)) as u64, &|begin, end| {
        let mut walk = Walk::new(outer, [&dst.strides[..rank - 1], &ist[..rank - 1]], begin);
        let mut acc = vec![start; ow];
        let (mut chosen, mut elements) = (vec![0i32; ow], acc.clone());
        for _ in begin..end {
            let oy = walk.at(rank - 2);
            let base: isize = (0..rank - 2).map(|d| walk.at(d) as isize * src.strides[d]).sum();
            acc.fill(start);
            let mut none = true;
            for ky in 0..wy.size {
                let y = at(wy, oy, ky);
                if y < 0 || y >= ih as isize {
                    continue;
                }
                let line = y as i32 * iw as i32;
                if std::mem::take(&mut none) {
                    chosen.iter_mut().zip(&first).for_each(|(c, f)| *c = line + f);
                }
                for (kx, &(lo, hi)) in columns.iter().enumerate() {
                    if lo >= hi {
                        continue;
                    }
                    let x0 = at(wx, lo, kx);
                    // Side by side first: the loops below then work on vectors.
                    let (acc, elements) = (&mut acc[lo..hi], &mut elements[..hi - lo]);
                    for (i, e) in elements.iter_mut().enumerate() {
                        let at = base + y * src.strides[rank - 2] + x0 + (i * wx.stride) as isize;
                        // SAFETY: outputs `lo..hi` meet elements of the row.
                        *e = unsafe { *sp.at::<T>(at) }.to_acc();
                    }
                    if kind == WindowKind::Sum {
                        acc.iter_mut().zip(elements).for_each(|(a, x)| *a = a.add(*x));
                        continue;
                    }
                    let (places, from) = (&mut chosen[lo..hi], (line + x0 as i32, wx.stride as i32));
                    if kind == WindowKind::Max {
                        select(acc, elements, places, from, |a, x| a.lt(x));
                    } else {
                        select(acc, elements, places, from, |a, x| x.lt(a));
                    }
                }
            }
            for o in 0..ow {
                // SAFETY: the output position is inside both views.
                unsafe {
                    *dp.at::<T>(walk.off[0] + o as isize * dst.strides[rank - 1]) = T::from_acc(acc[o]);
                    if let Some(ip) = ip {
                        *ip.at::<i64>(walk.off[1] + o as isize * ist[rank - 1]) = i64::from(chosen[o]);
                    }
                }
            }
            walk.step();
        }
    });
    true
}

/// Takes every element that is better than what an output holds, or NaN, and its place: `first`, `first + step`, ...
fn select<A: Scalar>(
    acc: &mut [A],
    elements: &[A],
    places: &mut [i32],
    (first, step): (i32, i32),
    better: impl Fn(A, A) -> bool,
) {
    for (i, ((a, &x), c)) in acc.iter_mut().zip(elements).zip(places).enumerate() {
        // Which is better is as good as random: without branches, on vectors.
        let take = better(*a, x) | x.is_nan();
        *a = std::hint::select_unpredictable(take, x, *a);
        *c = std::hint::select_unpredictable(take, first + i as i32 * step, *c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::testing::Lcg;
    use crate::cpu::lib::view::dense_strides;

    /// Every attribute against a loop over padded coordinates.
    #[test]
    fn against_a_plain_loop() {
        let mut rng = Lcg(2);
        for round in 0..120 {
            let dims = [2, 1 + rng.below(9), 1 + rng.below(9), 1 + rng.below(5)];
            let mut window = [WindowDim::ONE; 4];
            for w in &mut window[1..] {
                *w = WindowDim {
                    size: 1 + rng.below(3),
                    stride: 1 + rng.below(3),
                    pad_lo: rng.below(3) as isize - 1,
                    pad_hi: rng.below(3) as isize - 1,
                    dilation: 1 + rng.below(2),
                };
            }
            if round % 2 == 0 {
                window[1] = WindowDim::ONE;
            }
            let out: Vec<usize> = (0..4).map(|d| window[d].outputs(dims[d])).collect();
            let v: Vec<f32> = (0..dims.iter().product())
                .map(|_| if rng.below(30) == 0 { f32::NAN } else { rng.small() as f32 })
                .collect();
            let n: usize = out.iter().product();
            let (ss, ds) = (dense_strides(&dims), dense_strides(&out));
            for kind in [WindowKind::Sum, WindowKind::Max, WindowKind::Min] {
                let (mut got, mut idx) = (vec![0f32; n], vec![0i64; n]);
                let iv = View::new(idx.as_mut_ptr().cast(), Elem::I64, &out, &ds);
                // SAFETY: buffers cover the views.
                unsafe {
                    reduce_window(
                        kind,
                        &View::new(got.as_mut_ptr().cast(), Elem::F32, &out, &ds),
                        (kind != WindowKind::Sum).then_some((&iv, 2)),
                        &View::new(v.as_ptr().cast_mut().cast(), Elem::F32, &dims, &ss),
                        &window,
                    )
                    .unwrap()
                };
                let mut w = Walk::new(&out, [&ds], 0);
                for o in 0..n {
                    let mut acc = match kind {
                        WindowKind::Sum => 0.0,
                        WindowKind::Max => f32::NEG_INFINITY,
                        WindowKind::Min => f32::INFINITY,
                    };
                    let mut at = None;
                    let sizes: Vec<usize> = window.iter().map(|w| w.size).collect();
                    let zero = [0isize; 4];
                    let mut k = Walk::new(&sizes, [&zero], 0);
                    for _ in 0..sizes.iter().product::<usize>() {
                        let p: Vec<isize> = (0..4)
                            .map(|d| {
                                (w.at(d) * window[d].stride + k.at(d) * window[d].dilation) as isize - window[d].pad_lo
                            })
                            .collect();
                        if (0..4).all(|d| p[d] >= 0 && p[d] < dims[d] as isize) {
                            let x = v[(0..4).map(|d| p[d] * ss[d]).sum::<isize>() as usize];
                            let better = match kind {
                                WindowKind::Sum => {
                                    acc += x;
                                    false
                                }
                                WindowKind::Max => x > acc,
                                WindowKind::Min => x < acc,
                            };
                            if kind != WindowKind::Sum && (at.is_none() || better || x.is_nan()) {
                                acc = x;
                                at = Some(p[2] * dims[3] as isize + p[3]);
                            }
                        }
                        k.step();
                    }
                    assert!(got[o] == acc || got[o].is_nan() && acc.is_nan(), "{kind:?}");
                    if let Some(at) = at {
                        assert_eq!(idx[o], at as i64);
                    }
                    w.step();
                }
            }
        }
    }
}
