//! Strided copies with conversion, and fills.

use super::elem::{Elem, Scalar, cast};
use super::view::{LibError, Ptr, View};
use crate::cpu::pool;
use crate::dispatch_elem;
use smallvec::SmallVec;

/// A dimension of the simplified problem: size, source stride, destination stride (elements).
type Dim = (usize, isize, isize);
type Dims = SmallVec<[Dim; 8]>;

/// Copies `src` to `dst`, converting element types (see [`cast`]); any strides on both sides.
///
/// Errors if the shapes differ. Size-1 and stride-0 dimensions of `src` broadcast only if the caller
/// has expanded the view.
///
/// # Safety
/// Both views cover live memory; `dst` has no two elements at one address and does not overlap `src`.
pub unsafe fn copy(dst: &View, src: &View) -> Result<(), LibError> {
    dst.check("copy")?;
    src.check("copy")?;
    if dst.dims != src.dims {
        return Err(LibError::shape("copy", format!("{:?} into {:?}", src.dims, dst.dims)));
    }
    if dst.count() == 0 {
        return Ok(());
    }
    let dims = simplify(dst.dims, src.strides, dst.strides);
    let moves = kind(src.elem, dst.elem);
    // SAFETY: the caller's contract; the functions are those of the two element types.
    unsafe { run(&dims, &moves, src.ptr, dst.ptr) };
    Ok(())
}

/// `n` elements from `s` to `d`; strides in elements.
type Row = unsafe fn(s: *const u8, ss: isize, d: *mut u8, ds: isize, n: usize);
/// `d[i, x] = s[i, x]` for i < h, x < w; see `transpose_block`.
type Across = unsafe fn(s: *const u8, si: isize, d: *mut u8, di: isize, dx: isize, h: usize, w: usize);

/// How elements of one type pair move. Function pointers rather than generic loops around them:
/// 169 pairs of types would otherwise each get their own copy of everything here.
struct Moves {
    row: Row,
    /// Only for pairs of the same bits.
    across: Option<Across>,
    from: usize,
    to: usize,
}

fn kind(src: Elem, dst: Elem) -> Moves {
    let (row, across): (Row, Option<Across>) = if src == dst {
        match dst.size() {
            1 => (row::<u8, u8>, Some(transpose_block::<u8>)),
            2 => (row::<u16, u16>, Some(transpose_block::<u16>)),
            4 => (row::<u32, u32>, Some(transpose_words())),
            _ => (row::<u64, u64>, Some(transpose_block::<u64>)),
        }
    } else {
        (dispatch_elem!(src, S => dispatch_elem!(dst, D => row::<S, D> as Row)), None)
    };
    Moves { row, across, from: src.size(), to: dst.size() }
}

/// Sets every element to `value`, converted to the element type: integers from `Value::Int`
/// exactly, anything else through f64.
///
/// # Safety
/// As [`copy`] for `dst`.
pub unsafe fn fill(dst: &View, value: Value) -> Result<(), LibError> {
    dst.check("fill")?;
    let zero = vec![0isize; dst.rank()];
    let mut one = [0u8; 8];
    // SAFETY: the scalar fits in 8 bytes; the view of it has stride 0 everywhere.
    unsafe {
        match value {
            Value::Int(v) => dst.elem.store_i64(one.as_mut_ptr(), v),
            Value::Float(v) => dst.elem.store_f64(one.as_mut_ptr(), v),
        }
        copy(dst, &View::new(one.as_mut_ptr(), dst.elem, dst.dims, &zero))
    }
}

/// A fill value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Int(i64),
    Float(f64),
}

/// Orders dimensions by destination stride (outermost first), drops size 1, merges neighbours that
/// are one dimension in both arrays.
fn simplify(dims: &[usize], src: &[isize], dst: &[isize]) -> Dims {
    let mut v: Dims = (0..dims.len()).filter(|&d| dims[d] != 1).map(|d| (dims[d], src[d], dst[d])).collect();
    v.sort_by_key(|d| std::cmp::Reverse((d.2.unsigned_abs(), d.1.unsigned_abs())));
    let mut out = Dims::new();
    for d in v {
        match out.last_mut() {
            Some(o) if o.1 == d.1 * d.0 as isize && o.2 == d.2 * d.0 as isize => *o = (o.0 * d.0, d.1, d.2),
            _ => out.push(d),
        }
    }
    if out.is_empty() {
        out.push((1, 1, 1));
    }
    out
}

/// Copies over the simplified dimensions: rows, or tiles when the source runs across the rows.
unsafe fn run(dims: &Dims, mv: &Moves, src: *mut u8, dst: *mut u8) {
    let (src, dst) = (Ptr(src), Ptr(dst));
    let total: usize = dims.iter().map(|d| d.0).product();
    let cost = (total * (mv.from + mv.to)) as u64 / 10;
    let (from, to) = (mv.from as isize, mv.to as isize);
    let (inner, outer) = (dims[dims.len() - 1], &dims[..dims.len() - 1]);
    // The dimension along which the source is contiguous, if that is not the innermost.
    let cross = if inner.1 != 1 { outer.iter().rposition(|d| d.1 == 1) } else { None };
    if let Some(x) = cross {
        let col = outer[x];
        let rest: Dims = outer.iter().enumerate().filter(|&(i, _)| i != x).map(|(_, &d)| d).collect();
        let (ti, tx) = (inner.0.div_ceil(BLOCK), col.0.div_ceil(BLOCK));
        let planes: usize = rest.iter().map(|d| d.0).product();
        return pool::parallel_range(planes * ti * tx, 1, cost * 2, &|b, e| {
            for t in b..e {
                let (so, d_o) = offsets(&rest, t / (ti * tx));
                let (i0, x0) = (t % ti * BLOCK, t / ti % tx * BLOCK);
                let (h, w) = (BLOCK.min(inner.0 - i0), BLOCK.min(col.0 - x0));
                let s = src.at::<u8>((so + i0 as isize * inner.1 + x0 as isize) * from);
                let d = dst.at::<u8>((d_o + i0 as isize * inner.2 + x0 as isize * col.2) * to);
                // SAFETY: the block lies within both views.
                unsafe {
                    match mv.across {
                        Some(f) => f(s, inner.1, d, inner.2, col.2, h, w),
                        None => (0..h as isize).for_each(|i| {
                            (mv.row)(
                                s.wrapping_offset(i * inner.1 * from),
                                1,
                                d.wrapping_offset(i * inner.2 * to),
                                col.2,
                                w,
                            )
                        }),
                    }
                }
            }
        });
    }
    let rows = total / inner.0;
    // Long single rows are cut so that they spread over threads.
    let (cut, pieces) = if rows < 64 {
        (inner.0.div_ceil(64).max(4096), inner.0.div_ceil(inner.0.div_ceil(64).max(4096)))
    } else {
        (inner.0, 1)
    };
    pool::parallel_range(rows * pieces, 1, cost, &|b, e| {
        for t in b..e {
            let (so, d_o) = offsets(outer, t / pieces);
            let i0 = t % pieces * cut;
            let n = cut.min(inner.0 - i0);
            // SAFETY: the piece lies within both views.
            unsafe {
                (mv.row)(
                    src.at::<u8>((so + i0 as isize * inner.1) * from),
                    inner.1,
                    dst.at::<u8>((d_o + i0 as isize * inner.2) * to),
                    inner.2,
                    n,
                )
            };
        }
    });
}

/// Side of the blocks that transposing copies work in: 64 source lines of up to 512 bytes.
const BLOCK: usize = 64;

fn offsets(dims: &[Dim], flat: usize) -> (isize, isize) {
    let (mut rest, mut s, mut d) = (flat, 0, 0);
    for &(n, a, b) in dims.iter().rev() {
        let i = (rest % n) as isize;
        rest /= n;
        s += i * a;
        d += i * b;
    }
    (s, d)
}

unsafe fn row<S: Scalar, D: Scalar>(s: *const u8, ss: isize, d: *mut u8, ds: isize, n: usize) {
    let (s, d) = (s.cast::<S>(), d.cast::<D>());
    // SAFETY: the caller's `n` elements on both sides.
    unsafe {
        if ds == 1 && ss == 1 {
            if S::ELEM == D::ELEM && S::ELEM != Elem::Bool {
                return std::ptr::copy_nonoverlapping(s, d.cast::<S>(), n);
            }
            if D::ELEM == Elem::F32 {
                return super::simd::load_f32(S::ELEM, s.cast(), d.cast(), n);
            }
            if S::ELEM == Elem::F32 {
                return super::simd::store_f32(D::ELEM, s.cast(), d.cast(), n);
            }
            for i in 0..n {
                *d.add(i) = cast::<S, D>(*s.add(i));
            }
        } else if ds == 1 && ss == 0 {
            let v = cast::<S, D>(*s);
            for i in 0..n {
                *d.add(i) = v;
            }
        } else {
            for i in 0..n as isize {
                *d.wrapping_offset(i * ds) = cast::<S, D>(*s.wrapping_offset(i * ss));
            }
        }
    }
}

/// `d[i, x] = s[i, x]` for i < h, x < w, where `s` is contiguous along x. In sub-tiles whose lines
/// stay in the L1 cache on both sides.
unsafe fn transpose_block<T: Scalar>(s: *const u8, si: isize, d: *mut u8, di: isize, dx: isize, h: usize, w: usize) {
    let (s, d) = (s.cast::<T>(), d.cast::<T>());
    const N: usize = 16;
    for i0 in (0..h).step_by(N) {
        for x0 in (0..w).step_by(N) {
            let (hh, ww) = (N.min(h - i0), N.min(w - x0));
            // SAFETY: within the block.
            unsafe {
                if hh == N && ww == N && di == 1 {
                    let mut t = [[T::zero(); N]; N];
                    for i in 0..N {
                        let line = s.wrapping_offset((i0 + i) as isize * si + x0 as isize);
                        for x in 0..N {
                            t[x][i] = *line.add(x);
                        }
                    }
                    for (x, line) in t.iter().enumerate() {
                        d.wrapping_offset((x0 + x) as isize * dx + i0 as isize).cast::<[T; N]>().write_unaligned(*line);
                    }
                    continue;
                }
                for x in x0..x0 + ww {
                    for i in i0..i0 + hh {
                        *d.wrapping_offset(i as isize * di + x as isize * dx) =
                            *s.wrapping_offset(i as isize * si + x as isize);
                    }
                }
            }
        }
    }
}

/// The block transpose of 4-byte elements.
fn transpose_words() -> Across {
    #[cfg(target_arch = "x86_64")]
    {
        use super::isa::{Isa, current};
        if current() >= Isa::Avx512 {
            return transpose_avx512;
        }
        if current() >= Isa::Avx2 {
            return transpose_avx2;
        }
    }
    transpose_block::<u32>
}

/// [`transpose_block`] of 4-byte elements by 16×16 register transposes: whole cache lines on both sides, each touched once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_avx512(s: *const u8, si: isize, d: *mut u8, di: isize, dx: isize, h: usize, w: usize) {
    use std::arch::x86_64::*;
    // SAFETY: within the block; what the squares leave is done in smaller ones.
    unsafe {
        let (h16, w16) = if di == 1 { (h / 16 * 16, w / 16 * 16) } else { (0, 0) };
        let at = |p: *const u8, n: isize| p.wrapping_offset(4 * n);
        for x in (0..w16).step_by(16) {
            for i in (0..h16).step_by(16) {
                let mut r: [__m512; 16] =
                    std::array::from_fn(|q| _mm512_loadu_ps(at(s, (i + q) as isize * si + x as isize).cast()));
                super::simd::transpose16(&mut r);
                for (q, v) in r.iter().enumerate() {
                    _mm512_storeu_ps(at(d, (x + q) as isize * dx + i as isize).cast_mut().cast(), *v);
                }
            }
        }
        if w16 < w {
            let from = at(s, w16 as isize);
            transpose_avx2(from, si, at(d, w16 as isize * dx).cast_mut(), di, dx, h, w - w16);
        }
        if h16 < h && w16 > 0 {
            let from = at(s, h16 as isize * si);
            transpose_avx2(from, si, at(d, h16 as isize * di).cast_mut(), di, dx, h - h16, w16);
        }
    }
}

/// [`transpose_block`] of 4-byte elements by 8×8 register transposes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn transpose_avx2(s: *const u8, si: isize, d: *mut u8, di: isize, dx: isize, h: usize, w: usize) {
    use std::arch::x86_64::*;
    let (s, d) = (s.cast::<f32>(), d.cast::<f32>());
    let (h8, w8) = if di == 1 { (h / 8 * 8, w / 8 * 8) } else { (0, 0) };
    // SAFETY: within the block; what the 8×8 squares leave is done one by one.
    unsafe {
        for x in (0..w8).step_by(8) {
            for i in (0..h8).step_by(8) {
                let mut r: [__m256; 8] =
                    std::array::from_fn(|q| _mm256_loadu_ps(s.wrapping_offset((i + q) as isize * si + x as isize)));
                super::simd::transpose8(&mut r);
                for (q, v) in r.iter().enumerate() {
                    _mm256_storeu_ps(d.wrapping_offset((x + q) as isize * dx + i as isize), *v);
                }
            }
        }
        for x in 0..w {
            for i in if x < w8 { h8 } else { 0 }..h {
                d.wrapping_offset(i as isize * di + x as isize * dx)
                    .cast::<u32>()
                    .write(s.wrapping_offset(i as isize * si + x as isize).cast::<u32>().read());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lib::testing::{Lcg, read_all, write_all};
    use crate::cpu::lib::view::{Walk, dense_strides};

    fn naive(dims: &[usize], ss: &[isize], s: &[f64], ds: &[isize], d: &mut [f64]) {
        let mut w = Walk::new(dims, [ss, ds], 0);
        for _ in 0..dims.iter().product::<usize>() {
            d[w.off[1] as usize] = s[w.off[0] as usize];
            w.step();
        }
    }

    #[test]
    fn permutations_and_types() {
        let mut rng = Lcg(5);
        for dims in [vec![3, 70, 5], vec![67, 33, 2], vec![1, 1, 1], vec![16, 4, 64], vec![130, 65, 1], vec![0, 3, 2]] {
            for perm in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
                for (se, de) in [
                    (Elem::F32, Elem::F32),
                    (Elem::F32, Elem::BF16),
                    (Elem::BF16, Elem::F32),
                    (Elem::I64, Elem::F16),
                    (Elem::F32, Elem::Bool),
                    (Elem::Bool, Elem::U8),
                    (Elem::U8, Elem::I64),
                    (Elem::F64, Elem::I8),
                ] {
                    let n: usize = dims.iter().product();
                    let vals: Vec<f64> = (0..n)
                        .map(|_| (rng.below(5) as f64) - if se == Elem::Bool || se == Elem::U8 { 0.0 } else { 2.0 })
                        .collect();
                    let src = write_all(se, &vals);
                    let vals = read_all(se, &src);
                    // Source is dense in permuted order.
                    let pd: Vec<usize> = perm.iter().map(|&p| dims[p]).collect();
                    let pst = dense_strides(&pd);
                    let mut ss = vec![0isize; 3];
                    for (i, &p) in perm.iter().enumerate() {
                        ss[p] = pst[i];
                    }
                    let ds = dense_strides(&dims);
                    let mut want = vec![0f64; n];
                    naive(&dims, &ss, &vals, &ds, &mut want);
                    let mut dst = write_all(de, &vec![0.0; n]);
                    // SAFETY: the buffers cover the views.
                    unsafe {
                        copy(
                            &View::new(dst.as_mut_ptr(), de, &dims, &ds),
                            &View::new(src.as_ptr().cast_mut(), se, &dims, &ss),
                        )
                        .unwrap()
                    };
                    let want = read_all(de, &write_all(de, &want));
                    assert_eq!(read_all(de, &dst), want, "{dims:?} {perm:?} {se:?} {de:?}");
                }
            }
        }
    }

    #[test]
    fn broadcast_negative_strides_and_fill() {
        let src: Vec<f32> = (0..6).map(|x| x as f32).collect();
        let mut dst = vec![0f32; 12];
        let dims = [2usize, 6];
        // SAFETY: the buffers cover the views; the source runs backwards from its last element.
        unsafe {
            let s = View::new(src.as_ptr().add(5).cast_mut().cast(), Elem::F32, &dims, &[0, -1]);
            copy(&View::new(dst.as_mut_ptr().cast(), Elem::F32, &dims, &[6, 1]), &s).unwrap();
            assert_eq!(dst[..6], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
            assert_eq!(dst[6..], dst[..6]);
            fill(&View::new(dst.as_mut_ptr().cast(), Elem::F32, &[3], &[4]), Value::Float(9.5)).unwrap();
            assert_eq!((dst[0], dst[4], dst[8], dst[1]), (9.5, 9.5, 9.5, 4.0));
            let mut q = [0i64; 3];
            fill(&View::new(q.as_mut_ptr().cast(), Elem::I64, &[3], &[1]), Value::Int(i64::MAX)).unwrap();
            assert_eq!(q, [i64::MAX; 3]);
            assert!(copy(&View::new(q.as_mut_ptr().cast(), Elem::I64, &[2], &[1]), &s).is_err());
        }
    }
}
