//! Products with few rows or columns: bound by reading the large operand, so it is never packed.
//!
//! - *dot*: both operands contiguous along k (x·Wᵀ, and A·x): tiles of dot products.
//! - *sweep*: B contiguous along n, few rows: each group of B's rows is read once, straight.

use super::{Finish, Gemm};
use crate::cpu::lib::view::LibError;

/// Runs the product if it is one of the small kinds; false if the blocked driver should.
///
/// # Safety
/// As [`super::gemm`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn try_small(g: &Gemm, batches: usize, finish: &Finish) -> Result<bool, LibError> {
    use crate::cpu::lib::isa::{self, Isa};
    let isa = isa::current();
    if isa < Isa::Avx2 || g.a.elem != g.b.elem || g.k == 0 {
        return Ok(false);
    }
    // SAFETY: the caller's contract; the instruction set was checked.
    unsafe {
        if g.a.col == 1 && g.b.row == 1 && (g.m <= 8 || g.n <= 4) && g.k >= 32 {
            x86::dots(g, batches, finish, isa)?;
            return Ok(true);
        }
        if g.b.col == 1 && g.m <= 8 && g.k * g.n > 32 << 10 && g.n >= 64 {
            x86::sweep(g, batches, finish, isa)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// No vectors known for this target: the blocked driver does everything.
///
/// # Safety
/// None needed; the signature is the x86 one's.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn try_small(_: &Gemm, _: usize, _: &Finish) -> Result<bool, LibError> {
    Ok(false)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::{Finish, Gemm, batch_offset, scratch};
    use crate::cpu::lib::elem::Elem;
    use crate::cpu::lib::isa::Isa;
    use crate::cpu::lib::simd::{Load8, LoadBf16, LoadF16, LoadF32};
    use crate::cpu::lib::view::{LibError, Ptr};
    use crate::cpu::pool;
    use std::arch::x86_64::*;

    /// A vector of dot-product terms of one element type.
    trait Dot {
        /// Elements in one load.
        const N: usize;
        const SIZE: usize;
        type In: Copy;
        type V: Copy;
        unsafe fn zero() -> Self::V;
        unsafe fn load(p: *const u8) -> Self::In;
        unsafe fn mac(s: Self::V, a: Self::In, b: Self::In) -> Self::V;
        unsafe fn sum(s: Self::V) -> f32;
        unsafe fn one(p: *const u8) -> f32;
    }

    struct Ymm<L>(std::marker::PhantomData<L>);
    impl<L: Load8> Dot for Ymm<L> {
        const N: usize = 8;
        const SIZE: usize = L::SIZE;
        type In = __m256;
        type V = __m256;
        #[inline(always)]
        unsafe fn zero() -> __m256 {
            // SAFETY: instantiated only under AVX2 and FMA, as everything in this impl.
            unsafe { _mm256_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> __m256 {
            // SAFETY: as above; the address is the caller's.
            unsafe { L::load8(p) }
        }
        #[inline(always)]
        unsafe fn mac(s: __m256, a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(a, b, s) }
        }
        #[inline(always)]
        unsafe fn sum(s: __m256) -> f32 {
            // SAFETY: as above.
            unsafe {
                let q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
                let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
                _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
            }
        }
        #[inline(always)]
        unsafe fn one(p: *const u8) -> f32 {
            // SAFETY: as above.
            unsafe { L::load1(p) }
        }
    }

    /// AVX-512 over f32.
    struct Zmm;
    impl Dot for Zmm {
        const N: usize = 16;
        const SIZE: usize = 4;
        type In = __m512;
        type V = __m512;
        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: instantiated only under AVX-512, as everything in this impl.
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> __m512 {
            // SAFETY: as above; the address is the caller's.
            unsafe { _mm512_loadu_ps(p.cast()) }
        }
        #[inline(always)]
        unsafe fn mac(s: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, s) }
        }
        #[inline(always)]
        unsafe fn sum(s: __m512) -> f32 {
            // SAFETY: as above.
            unsafe { _mm512_reduce_add_ps(s) }
        }
        #[inline(always)]
        unsafe fn one(p: *const u8) -> f32 {
            // SAFETY: as above.
            unsafe { p.cast::<f32>().read_unaligned() }
        }
    }

    /// AVX512_BF16: 32 products a step.
    struct ZmmBf16;
    impl Dot for ZmmBf16 {
        const N: usize = 32;
        const SIZE: usize = 2;
        type In = __m512i;
        type V = __m512;
        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: instantiated only under AVX512_BF16, as everything in this impl.
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> __m512i {
            // SAFETY: as above; the address is the caller's.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        unsafe fn mac(s: __m512, a: __m512i, b: __m512i) -> __m512 {
            // SAFETY: as above; both types are 512 plain bits.
            unsafe {
                _mm512_dpbf16_ps(
                    s,
                    std::mem::transmute::<__m512i, __m512bh>(a),
                    std::mem::transmute::<__m512i, __m512bh>(b),
                )
            }
        }
        #[inline(always)]
        unsafe fn sum(s: __m512) -> f32 {
            // SAFETY: as above.
            unsafe { _mm512_reduce_add_ps(s) }
        }
        #[inline(always)]
        unsafe fn one(p: *const u8) -> f32 {
            // SAFETY: as above.
            unsafe { LoadBf16::load1(p) }
        }
    }

    /// MR × NR dot products of length k; result (r, j) goes to `out + r·o_r + j·o_c`.
    #[inline(always)]
    unsafe fn dot_tile<D: Dot, const MR: usize, const NR: usize>(
        k: usize,
        a: *const u8,
        a_r: isize,
        b: *const u8,
        b_c: isize,
        out: *mut f32,
        o_r: isize,
        o_c: isize,
        acc: bool,
    ) {
        // SAFETY: the caller's operands cover MR and NR rows of k elements.
        unsafe {
            let mut s = [[D::zero(); NR]; MR];
            let mut p = 0;
            while p + D::N <= k {
                let mut av = [D::load(a.add(p * D::SIZE)); MR];
                for r in 1..MR {
                    av[r] = D::load(a.wrapping_offset(r as isize * a_r).add(p * D::SIZE));
                }
                for j in 0..NR {
                    let bv = D::load(b.wrapping_offset(j as isize * b_c).add(p * D::SIZE));
                    for r in 0..MR {
                        s[r][j] = D::mac(s[r][j], av[r], bv);
                    }
                }
                p += D::N;
            }
            for r in 0..MR {
                for j in 0..NR {
                    let mut v = D::sum(s[r][j]);
                    for q in p..k {
                        v += D::one(a.wrapping_offset(r as isize * a_r).add(q * D::SIZE))
                            * D::one(b.wrapping_offset(j as isize * b_c).add(q * D::SIZE));
                    }
                    let o = out.wrapping_offset(r as isize * o_r + j as isize * o_c);
                    *o = if acc { *o + v } else { v };
                }
            }
        }
    }

    /// Rows `m` × columns `n` of dot products; strides of `a` and `b` in bytes.
    struct Panel {
        k: usize,
        m: usize,
        n: usize,
        a: *const u8,
        a_r: isize,
        b: *const u8,
        b_c: isize,
        out: *mut f32,
        o_r: isize,
        o_c: isize,
        acc: bool,
    }

    /// One tile of a panel: rows from `i`, columns from `j`. A function, not a closure: only
    /// functions marked `inline(always)` surely land under the caller's target feature.
    #[inline(always)]
    unsafe fn tile<D: Dot, const MR: usize, const NR: usize>(q: &Panel, i: usize, j: usize) {
        let a = q.a.wrapping_offset(i as isize * q.a_r);
        let b = q.b.wrapping_offset(j as isize * q.b_c);
        let o = q.out.wrapping_offset(i as isize * q.o_r + j as isize * q.o_c);
        // SAFETY: the tile lies within the panel.
        unsafe { dot_tile::<D, MR, NR>(q.k, a, q.a_r, b, q.b_c, o, q.o_r, q.o_c, q.acc) }
    }

    /// Columns whose sums are kept while k goes on in blocks, and rows.
    const COLS: usize = 24;
    const ROWS: usize = 8;

    /// MR × 6 running sums gain `len` elements of k; with `ahead` it fetches what comes next (six rows from
    /// there, as long).
    #[inline(always)]
    unsafe fn run_tile<D: Dot, const MR: usize, const AHEAD: bool>(
        len: usize,
        a: *const u8,
        a_r: isize,
        b: *const u8,
        b_c: isize,
        ahead: *const u8,
        sums: &mut [[D::V; COLS]],
        col: usize,
    ) {
        // SAFETY: the caller's operands cover MR and six rows of `len` elements.
        unsafe {
            let mut s = [[D::zero(); 6]; MR];
            for r in 0..MR {
                for j in 0..6 {
                    s[r][j] = sums[r][col + j];
                }
            }
            let mut p = 0;
            while p < len {
                if AHEAD && p * D::SIZE % 64 == 0 {
                    for j in 0..6 {
                        let line = ahead.wrapping_offset(j * b_c).wrapping_add(p * D::SIZE);
                        _mm_prefetch::<_MM_HINT_T0>(line.cast());
                    }
                }
                let mut av = [D::load(a.add(p * D::SIZE)); MR];
                for r in 1..MR {
                    av[r] = D::load(a.wrapping_offset(r as isize * a_r).add(p * D::SIZE));
                }
                for j in 0..6 {
                    let bv = D::load(b.wrapping_offset(j as isize * b_c).add(p * D::SIZE));
                    for r in 0..MR {
                        s[r][j] = D::mac(s[r][j], av[r], bv);
                    }
                }
                p += D::N;
            }
            for r in 0..MR {
                for j in 0..6 {
                    sums[r][col + j] = s[r][j];
                }
            }
        }
    }

    /// `COLS` columns from `j0`: k in blocks whose part of A stays in the L1 cache, so that B is read once and A not
    /// from further away for every tile.
    #[inline(always)]
    unsafe fn dot_group<D: Dot>(q: &Panel, j0: usize) {
        let whole = q.k / D::N * D::N;
        let block = (16384 / (D::SIZE * ROWS)).max(D::N);
        // SAFETY: rows and columns of the panel; `whole` elements of k, the rest one by one.
        unsafe {
            let mut sums = [[D::zero(); COLS]; ROWS];
            let mut p0 = 0;
            while p0 < whole {
                let len = block.min(whole - p0);
                for t in 0..COLS / 6 {
                    let at = |j: usize, p: usize| q.b.wrapping_offset(j as isize * q.b_c).wrapping_add(p * D::SIZE);
                    let b = at(j0 + 6 * t, p0);
                    let ahead = if t + 1 < COLS / 6 {
                        at(j0 + 6 * t + 6, p0)
                    } else if p0 + len < whole {
                        at(j0, p0 + len)
                    } else {
                        at(j0 + COLS, 0)
                    };
                    let mut i = 0;
                    while i < q.m {
                        let a = q.a.wrapping_offset(i as isize * q.a_r).wrapping_add(p0 * D::SIZE);
                        let (sums, col) = (&mut sums[i..], 6 * t);
                        match (q.m - i, i) {
                            (2.., 0) => run_tile::<D, 2, true>(len, a, q.a_r, b, q.b_c, ahead, sums, col),
                            (2.., _) => run_tile::<D, 2, false>(len, a, q.a_r, b, q.b_c, ahead, sums, col),
                            (_, _) => run_tile::<D, 1, false>(len, a, q.a_r, b, q.b_c, ahead, sums, col),
                        }
                        i += if q.m - i >= 2 { 2 } else { 1 };
                    }
                }
                p0 += len;
            }
            for i in 0..q.m {
                for (j, s) in sums[i].iter().enumerate() {
                    let mut v = D::sum(*s);
                    for p in whole..q.k {
                        v += D::one(q.a.wrapping_offset(i as isize * q.a_r).add(p * D::SIZE))
                            * D::one(q.b.wrapping_offset((j0 + j) as isize * q.b_c).add(p * D::SIZE));
                    }
                    let o = q.out.wrapping_offset(i as isize * q.o_r + (j0 + j) as isize * q.o_c);
                    *o = if q.acc { *o + v } else { v };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_panel<D: Dot>(q: &Panel) {
        let mut j = 0;
        // Fewer rows are bound by reading B, which longer runs do best.
        if q.m > 4 && q.m <= ROWS {
            while j + COLS <= q.n {
                // SAFETY: a group of the panel's columns.
                unsafe { dot_group::<D>(q, j) };
                j += COLS;
            }
        }
        // SAFETY: tiles stay within the panel.
        unsafe {
            if q.m == 1 {
                // One row leaves registers for six columns, which also keeps six streams in flight.
                while j + 6 <= q.n {
                    tile::<D, 1, 6>(q, 0, j);
                    j += 6;
                }
            }
            while j < q.n {
                let three = q.n - j >= 3;
                let mut i = 0;
                while i < q.m {
                    match (q.m - i, three) {
                        (4.., true) => tile::<D, 4, 3>(q, i, j),
                        (4.., false) => tile::<D, 4, 1>(q, i, j),
                        (2..4, true) => tile::<D, 2, 3>(q, i, j),
                        (2..4, false) => tile::<D, 2, 1>(q, i, j),
                        (_, true) => tile::<D, 1, 3>(q, i, j),
                        (_, false) => tile::<D, 1, 1>(q, i, j),
                    }
                    i += if q.m - i >= 4 {
                        4
                    } else if q.m - i >= 2 {
                        2
                    } else {
                        1
                    };
                }
                j += if three { 3 } else { 1 };
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dot_avx2(elem: Elem, q: &Panel) {
        // SAFETY: the caller's contract.
        unsafe {
            match elem {
                Elem::F32 => dot_panel::<Ymm<LoadF32>>(q),
                Elem::BF16 => dot_panel::<Ymm<LoadBf16>>(q),
                _ => dot_panel::<Ymm<LoadF16>>(q),
            }
        }
    }
    #[target_feature(enable = "avx512f")]
    unsafe fn dot_avx512(q: &Panel) {
        // SAFETY: the caller's contract.
        unsafe { dot_panel::<Zmm>(q) }
    }
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn dot_bf16(q: &Panel) {
        // SAFETY: the caller's contract.
        unsafe { dot_panel::<ZmmBf16>(q) }
    }

    /// Splits C by columns (rows if there are few columns), gives each part to `f` with the sums'
    /// address and row stride, and finishes it.
    unsafe fn parts(
        g: &Gemm,
        batches: usize,
        finish: &Finish,
        f: &(dyn Fn(usize, [usize; 4], *mut f32, isize) + Sync),
    ) -> Result<(), LibError> {
        let tall = g.n <= 4 && g.m > g.n;
        let (len, other) = if tall { (g.m, g.n) } else { (g.n, g.m) };
        let bytes = (g.k * len) as u64 * g.b.elem.size() as u64 * batches as u64;
        let cost = (bytes / 10).max((2 * g.m * g.n * g.k * batches) as u64 / 60);
        // Multiples of every tile, small enough to spread.
        let part = (len / (4 * pool::num_threads())).clamp(120, 1008) / 24 * 24;
        let per = len.div_ceil(part);
        pool::try_for(batches * per, cost, &|t| {
            let (batch, p0) = (t / per, t % per * part);
            let w = part.min(len - p0);
            let [r0, rows, c0, cols] = if tall { [p0, w, 0, other] } else { [0, other, p0, w] };
            // SAFETY: parts are disjoint rectangles of C; scratch rows are `cols` long.
            unsafe {
                if let Some((c, ld)) = finish.direct::<f32>(batch) {
                    let p = c.wrapping_offset(r0 as isize * ld + c0 as isize);
                    f(batch, [r0, rows, c0, cols], p, ld);
                    finish.tile(p, ld, false, batch, r0, rows, c0, cols);
                    return Ok(());
                }
                scratch([0, 0, rows * cols * 4], |[_, _, s]| {
                    let p = s.cast::<f32>();
                    if finish.accumulate {
                        finish.preload(p, cols, batch, r0, rows, c0, cols);
                    }
                    f(batch, [r0, rows, c0, cols], p, cols as isize);
                    finish.tile(p, cols as isize, true, batch, r0, rows, c0, cols);
                })
            }
        })?;
        Ok(())
    }

    /// # Safety
    /// The contract of `gemm`; A contiguous along k, B too; `isa` is present.
    pub(super) unsafe fn dots(g: &Gemm, batches: usize, finish: &Finish, isa: Isa) -> Result<(), LibError> {
        let size = g.a.elem.size() as isize;
        let (pa, pb) = (Ptr(g.a.ptr.cast_mut()), Ptr(g.b.ptr.cast_mut()));
        let (a_row, b_col, elem, k, acc) = (g.a.row * size, g.b.col * size, g.a.elem, g.k, g.accumulate);
        // The short side of the tile is A's rows: swap the roles for a product with few columns.
        let swap = g.n <= 4 && g.m > g.n;
        let dims = g.batch;
        let body = move |batch: usize, [r0, rows, c0, cols]: [usize; 4], out: *mut f32, ld: isize| {
            let a = pa.at::<u8>(batch_offset(dims, batch, 0) * size + r0 as isize * a_row).cast_const();
            let b = pb.at::<u8>(batch_offset(dims, batch, 1) * size + c0 as isize * b_col).cast_const();
            let q = if swap {
                Panel { k, m: cols, n: rows, a: b, a_r: b_col, b: a, b_c: a_row, out, o_r: 1, o_c: ld, acc }
            } else {
                Panel { k, m: rows, n: cols, a, a_r: a_row, b, b_c: b_col, out, o_r: ld, o_c: 1, acc }
            };
            // SAFETY: the part lies within the operands; the instruction set was checked.
            unsafe {
                match (isa, elem) {
                    (Isa::Avx512Bf16, Elem::BF16) => dot_bf16(&q),
                    (Isa::Avx512 | Isa::Avx512Bf16, Elem::F32) => dot_avx512(&q),
                    _ => dot_avx2(elem, &q),
                }
            }
        };
        // SAFETY: as this function.
        unsafe { parts(g, batches, finish, &body) }
    }

    /// `out[m, n] (+)= A · B[k, n]` for rows of B read in order, four at a time.
    #[inline(always)]
    unsafe fn sweep_rows<L: Load8>(q: &Sweep) {
        // SAFETY: the caller's operands; columns beyond whole vectors go one by one.
        unsafe {
            if !q.acc {
                for r in 0..q.m {
                    q.out.wrapping_offset(r as isize * q.ld).write_bytes(0, q.n);
                }
            }
            for p in (0..q.k).step_by(4) {
                let depth = 4.min(q.k - p);
                // The four rows of B stay in the L1 cache while groups of rows of A pass.
                let mut r = 0;
                while r < q.m {
                    match (q.m - r, depth) {
                        (4.., 4) => sweep_group::<L, 4>(q, r, p),
                        (2.., 4) => sweep_group::<L, 2>(q, r, p),
                        (_, 4) => sweep_group::<L, 1>(q, r, p),
                        _ => sweep_tail::<L>(q, r, p, depth),
                    }
                    r += match q.m - r {
                        _ if depth < 4 => 1,
                        4.. => 4,
                        2.. => 2,
                        _ => 1,
                    };
                }
            }
        }
    }

    /// Rows `r..r + M` of C gain four rows of B, from `p` on.
    #[inline(always)]
    unsafe fn sweep_group<L: Load8, const M: usize>(q: &Sweep, r: usize, p: usize) {
        // SAFETY: rows of A, B and C that exist; columns beyond whole vectors go one by one.
        unsafe {
            let mut x = [[0f32; 4]; M];
            for i in 0..M {
                for d in 0..4 {
                    x[i][d] = L::load1(q.a.wrapping_offset((r + i) as isize * q.a_r + (p + d) as isize * q.a_k));
                }
            }
            let b0 = q.b.wrapping_offset(p as isize * q.b_k);
            let rows = [b0, b0.wrapping_offset(q.b_k), b0.wrapping_offset(2 * q.b_k), b0.wrapping_offset(3 * q.b_k)];
            let c = q.out.wrapping_offset(r as isize * q.ld);
            let mut j = 0;
            while j + 8 <= q.n {
                if r == 0 && j * L::SIZE % 64 == 0 {
                    // The next four rows: at their stride no stream is recognised.
                    for row in rows {
                        _mm_prefetch::<_MM_HINT_T0>(row.wrapping_offset(4 * q.b_k).wrapping_add(j * L::SIZE).cast());
                    }
                }
                let b = [
                    L::load8(rows[0].add(j * L::SIZE)),
                    L::load8(rows[1].add(j * L::SIZE)),
                    L::load8(rows[2].add(j * L::SIZE)),
                    L::load8(rows[3].add(j * L::SIZE)),
                ];
                for i in 0..M {
                    let o = c.wrapping_offset(i as isize * q.ld).add(j);
                    let mut s = _mm256_loadu_ps(o);
                    for d in 0..4 {
                        s = _mm256_fmadd_ps(_mm256_set1_ps(x[i][d]), b[d], s);
                    }
                    _mm256_storeu_ps(o, s);
                }
                j += 8;
            }
            while j < q.n {
                for i in 0..M {
                    let o = c.wrapping_offset(i as isize * q.ld).add(j);
                    for d in 0..4 {
                        *o = x[i][d].mul_add(L::load1(rows[d].add(j * L::SIZE)), *o);
                    }
                }
                j += 1;
            }
        }
    }

    /// Row `r` of C gains the last `depth` < 4 rows of B.
    #[inline(always)]
    unsafe fn sweep_tail<L: Load8>(q: &Sweep, r: usize, p: usize, depth: usize) {
        // SAFETY: as `sweep_group`.
        unsafe {
            for d in p..p + depth {
                let x = L::load1(q.a.wrapping_offset(r as isize * q.a_r + d as isize * q.a_k));
                let b = q.b.wrapping_offset(d as isize * q.b_k);
                let c = q.out.wrapping_offset(r as isize * q.ld);
                for j in 0..q.n {
                    *c.add(j) = x.mul_add(L::load1(b.add(j * L::SIZE)), *c.add(j));
                }
            }
        }
    }

    /// Operands of `sweep_rows`; strides in bytes, `ld` in elements; `m` ≤ 8.
    struct Sweep {
        m: usize,
        n: usize,
        k: usize,
        a: *const u8,
        a_r: isize,
        a_k: isize,
        b: *const u8,
        b_k: isize,
        out: *mut f32,
        ld: isize,
        acc: bool,
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn sweep_avx2(elem: Elem, q: &Sweep) {
        // SAFETY: the caller's contract.
        unsafe {
            match elem {
                Elem::F32 => sweep_rows::<LoadF32>(q),
                Elem::BF16 => sweep_rows::<LoadBf16>(q),
                _ => sweep_rows::<LoadF16>(q),
            }
        }
    }

    /// # Safety
    /// The contract of `gemm`; B contiguous along n; at most 8 rows; AVX2 is present.
    pub(super) unsafe fn sweep(g: &Gemm, batches: usize, finish: &Finish, _: Isa) -> Result<(), LibError> {
        let size = g.a.elem.size() as isize;
        let (pa, pb) = (Ptr(g.a.ptr.cast_mut()), Ptr(g.b.ptr.cast_mut()));
        let (a_r, a_k, b_k, elem, k, acc, dims) =
            (g.a.row * size, g.a.col * size, g.b.row * size, g.a.elem, g.k, g.accumulate, g.batch);
        let body = move |batch: usize, [r0, rows, c0, cols]: [usize; 4], out: *mut f32, ld: isize| {
            let a = pa.at::<u8>(batch_offset(dims, batch, 0) * size + r0 as isize * a_r).cast_const();
            let b = pb.at::<u8>((batch_offset(dims, batch, 1) + c0 as isize) * size).cast_const();
            // SAFETY: the part lies within the operands.
            unsafe { sweep_avx2(elem, &Sweep { m: rows, n: cols, k, a, a_r, a_k, b, b_k, out, ld, acc }) }
        };
        // SAFETY: as this function.
        unsafe { parts(g, batches, finish, &body) }
    }
}
