//! Sorting along a dimension, and the k greatest or least.
//!
//! Numbers are mapped to unsigned keys that order as PyTorch orders (NaN greatest, -0 equal to +0)
//! and sorted together with their positions: equal keys keep their order, so every sort is stable.

use super::elem::{Elem, Scalar};
use super::view::{LibError, Ptr, View, Walk, without};
use crate::cpu::pool;
use crate::dispatch_elem;

/// An unsigned key with the element's order.
trait Key: Scalar {
    /// Key in the low `BITS` bits.
    const BITS: u32 = 8 * std::mem::size_of::<Self>() as u32;
    fn key(self) -> u64;
}

macro_rules! int_key {
    ($($t:ty, $u:ty);*) => {$(impl Key for $t {
        #[inline(always)]
        fn key(self) -> u64 {
            // Moves the least value to 0.
            (self as $u).wrapping_sub(<$t>::MIN as $u) as u64
        }
    })*};
}
int_key!(u8, u8; i8, u8; i16, u16; u16, u16; i32, u32; u32, u32; i64, u64; u64, u64);

impl Key for super::elem::Bool {
    #[inline(always)]
    fn key(self) -> u64 {
        (self.0 != 0) as u64
    }
}

#[inline(always)]
fn float_key(bits: u64, sign: u64, all: u64, nan: bool) -> u64 {
    if nan {
        all
    } else if bits == sign {
        sign
    } else if bits & sign != 0 {
        !bits & all
    } else {
        bits | sign
    }
}

impl Key for f32 {
    #[inline(always)]
    fn key(self) -> u64 {
        float_key(self.to_bits() as u64, 1 << 31, u32::MAX as u64, self.is_nan())
    }
}
impl Key for f64 {
    #[inline(always)]
    fn key(self) -> u64 {
        float_key(self.to_bits(), 1 << 63, u64::MAX, self.is_nan())
    }
}
impl Key for super::elem::F16 {
    #[inline(always)]
    fn key(self) -> u64 {
        float_key(self.0 as u64, 1 << 15, u16::MAX as u64, self.is_nan())
    }
}
impl Key for super::elem::BF16 {
    #[inline(always)]
    fn key(self) -> u64 {
        float_key(self.0 as u64, 1 << 15, u16::MAX as u64, self.is_nan())
    }
}

/// Sorts `src` along `dim` into `values` and, if given, the source positions into `indices` (i64).
///
/// All views have the same shape. Stable in both directions; NaN counts as greatest.
/// Errors if shapes or types differ, or `dim` is no dimension (a 0-d view sorts as one element).
///
/// # Safety
/// Views cover live memory and do not overlap.
pub unsafe fn sort(
    values: &View,
    indices: Option<&View>,
    src: &View,
    dim: usize,
    descending: bool,
) -> Result<(), LibError> {
    let n = src.dims.get(dim).copied().unwrap_or(1);
    // SAFETY: the caller's contract.
    unsafe { select("sort", values, indices, src, dim, n, descending) }
}

/// The `k` greatest (or least) of each lane along `dim`, in order, and their positions.
///
/// `values` and `indices` have `src`'s shape with `k` along `dim`. Among equals the first come
/// first. NaN counts as greatest. Errors as [`sort`], or if `k` exceeds the lane.
///
/// # Safety
/// As [`sort`].
pub unsafe fn topk(
    values: &View,
    indices: Option<&View>,
    src: &View,
    dim: usize,
    k: usize,
    largest: bool,
) -> Result<(), LibError> {
    // SAFETY: the caller's contract.
    unsafe { select("topk", values, indices, src, dim, k, largest) }
}

unsafe fn select(
    name: &'static str,
    values: &View,
    indices: Option<&View>,
    src: &View,
    dim: usize,
    k: usize,
    descending: bool,
) -> Result<(), LibError> {
    src.check(name)?;
    if src.rank() == 0 {
        let one = |v: &View| View { dims: &[1], strides: &[1], ..*v };
        let i = indices.map(|v| View { ptr: v.ptr, elem: v.elem, dims: &[1], strides: &[1] });
        // SAFETY: a 0-d view covers one element.
        return unsafe { select(name, &one(values), i.as_ref(), &one(src), 0, k, descending) };
    }
    let fits = |v: &View| {
        v.rank() == src.rank()
            && v.strides.len() == v.rank()
            && v.dims.iter().enumerate().all(|(d, &n)| n == if d == dim { k } else { src.dims[d] })
    };
    if dim >= src.rank()
        || k > src.dims[dim]
        || !fits(values)
        || values.elem != src.elem
        || indices.is_some_and(|i| !fits(i) || i.elem != Elem::I64)
    {
        return Err(LibError::shape(name, format!("dim {dim}, k {k} of {:?} into {:?}", src.dims, values.dims)));
    }
    dispatch_elem!(src.elem, T => {
        // SAFETY: the caller's contract.
        unsafe { lanes::<T>(values, indices, src, dim, k, descending) }
    });
    Ok(())
}

unsafe fn lanes<T: Key>(values: &View, indices: Option<&View>, src: &View, dim: usize, k: usize, descending: bool) {
    let n = src.dims[dim];
    let outer = without(src.dims, dim);
    let count: usize = outer.iter().product();
    if k == 0 || count == 0 {
        return;
    }
    let ix = indices.unwrap_or(values);
    let strides = [without(src.strides, dim), without(values.strides, dim), without(ix.strides, dim)];
    let (sp, vp, ip, has_index) = (Ptr(src.ptr), Ptr(values.ptr), Ptr(ix.ptr), indices.is_some());
    let (ss, vs, is) = (src.strides[dim], values.strides[dim], ix.strides[dim]);
    let cost = (count * n) as u64 * (10 + n.max(2).ilog2() as u64 * 2);
    pool::parallel_range(count, 1, cost, &|begin, end| {
        let mut w = Walk::new(&outer, [&strides[0], &strides[1], &strides[2]], begin);
        let mut narrow: Vec<u64> = Vec::new();
        let mut wide: Vec<u128> = Vec::new();
        for _ in begin..end {
            let put = |at: usize, from: usize| {
                // SAFETY: `at < k` and `from < n` are positions of the lane.
                unsafe {
                    *vp.at::<T>(w.off[1] + at as isize * vs) = *sp.at::<T>(w.off[0] + from as isize * ss);
                    if has_index {
                        *ip.at::<i64>(w.off[2] + at as isize * is) = from as i64;
                    }
                }
            };
            // SAFETY: `i < n`.
            let key = |i: usize| unsafe { (*sp.at::<T>(w.off[0] + i as isize * ss)).key() };
            if T::BITS <= 32 && n <= u32::MAX as usize {
                let flip = if descending { u32::MAX } else { 0 };
                narrow.clear();
                narrow.extend((0..n).map(|i| ((key(i) as u32 ^ flip) as u64) << 32 | i as u64));
                order(&mut narrow, k);
                narrow[..k].iter().enumerate().for_each(|(at, &x)| put(at, (x & u32::MAX as u64) as usize));
            } else {
                let flip = if descending { u64::MAX } else { 0 };
                wide.clear();
                wide.extend((0..n).map(|i| ((key(i) ^ flip) as u128) << 64 | i as u128));
                order(&mut wide, k);
                wide[..k].iter().enumerate().for_each(|(at, &x)| put(at, x as u64 as usize));
            }
            w.step();
        }
    });
}

/// Puts the `k` least to the front, in order. Elements are distinct (they end in their position).
fn order<X: Ord>(v: &mut [X], k: usize) {
    if k < v.len() {
        v.select_nth_unstable(k - 1);
    }
    v[..k].sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::testing::{Lcg, read_all, write_all};
    use crate::cpu::lib::view::dense_strides;

    #[test]
    fn all_types_both_ways_against_a_stable_sort() {
        let mut rng = Lcg(11);
        for e in Elem::ALL {
            for (dims, dim) in
                [(vec![4usize, 33, 3], 1usize), (vec![5, 1], 1), (vec![300], 0), (vec![0, 3], 1), (vec![2, 0], 1)]
            {
                for descending in [false, true] {
                    let n: usize = dims.iter().product();
                    let v: Vec<f64> = (0..n)
                        .map(|_| {
                            if e.is_float() && rng.below(9) == 0 {
                                [f64::NAN, f64::INFINITY, -0.0, f64::NEG_INFINITY][rng.below(4)]
                            } else {
                                rng.below(20) as f64
                                    - if matches!(e, Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64 | Elem::Bool) {
                                        0.0
                                    } else {
                                        10.0
                                    }
                            }
                        })
                        .collect();
                    let src = write_all(e, &v);
                    let v = read_all(e, &src);
                    let st = dense_strides(&dims);
                    let (mut out, mut idx) = (write_all(e, &vec![0.0; n]), vec![-1i64; n]);
                    let view = |p: *mut u8, e| View::new(p, e, &dims, &st);
                    // SAFETY: buffers cover the views.
                    unsafe {
                        sort(
                            &view(out.as_mut_ptr(), e),
                            Some(&view(idx.as_mut_ptr().cast(), Elem::I64)),
                            &view(src.as_ptr().cast_mut(), e),
                            dim,
                            descending,
                        )
                        .unwrap()
                    };
                    let got = read_all(e, &out);
                    let outer = without(&dims, dim);
                    let mut w = Walk::new(&outer, [&without(&st, dim)], 0);
                    for _ in 0..outer.iter().product::<usize>() {
                        let at = |i: usize| (w.off[0] + i as isize * st[dim]) as usize;
                        let mut want: Vec<usize> = (0..dims[dim]).collect();
                        want.sort_by(|&a, &b| {
                            let o = v[at(a)].order(v[at(b)]);
                            if descending { o.reverse() } else { o }
                        });
                        for (i, &p) in want.iter().enumerate() {
                            assert_eq!(idx[at(i)], p as i64, "{e:?} {dims:?}");
                            assert!(got[at(i)].to_bits() == v[at(p)].to_bits() || v[at(p)].is_nan());
                        }
                        w.step();
                    }
                }
            }
        }
    }

    #[test]
    fn topk_is_a_prefix_of_the_sort() {
        let v = [3f32, f32::NAN, 1.0, 7.0, 7.0, -2.0];
        let (mut out, mut idx) = ([0f32; 3], [0i64; 3]);
        let src = View::new(v.as_ptr().cast_mut().cast(), Elem::F32, &[6], &[1]);
        let o = View::new(out.as_mut_ptr().cast(), Elem::F32, &[3], &[1]);
        let i = View::new(idx.as_mut_ptr().cast(), Elem::I64, &[3], &[1]);
        // SAFETY: buffers cover the views.
        unsafe {
            topk(&o, Some(&i), &src, 0, 3, true).unwrap();
            assert_eq!(idx, [1, 3, 4]);
            assert!(out[0].is_nan() && out[1] == 7.0);
            topk(&o, Some(&i), &src, 0, 3, false).unwrap();
            assert_eq!((idx, out), ([5, 2, 0], [-2.0, 1.0, 3.0]));
            assert!(topk(&o, None, &src, 1, 3, true).is_err());
        }
    }
}
