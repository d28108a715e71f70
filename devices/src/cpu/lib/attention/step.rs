//! Softmax-weighted values for a block of queries over a block of keys, queries in lanes.
//!
//! Scores are computed transposed, as Sᵀ = K·Qᵀ, and so are the outputs, Oᵀ = Vᵀ·Pᵀ: one vector holds the scores of one
//! key for many queries. Then the greatest score and the sum of each query are sums of vectors, never over a vector's
//! lanes; the weights are written in the order in which the second product reads them; and K and V, whose numbers are
//! broadcast one at a time, are read where they lie.

use super::lane::{self, Real};
use super::levels::Weights;
use super::tile::{self, product};

/// Keys of a block: its scores stay in the L1 cache beside a block of K or V.
pub(super) const KEYS: usize = 64;

/// One block of queries and one of keys. Strides count units of the product's lane.
pub(super) struct Step {
    /// Row of K and units between rows; units of a row.
    pub(super) k: *const u8,
    pub(super) k_row: isize,
    pub(super) dim: usize,
    /// Row of V (of pairs of rows, for pairs) and units between rows; features.
    pub(super) v: *const u8,
    pub(super) v_row: isize,
    pub(super) v_dim: usize,
    /// Queries, `dim` rows of lanes.
    pub(super) q: *const u8,
    /// Sums of weighted values, `v_dim` rows of lanes.
    pub(super) o: *mut f32,
    /// Greatest score so far and sum of weights of each query.
    pub(super) m: *mut f32,
    pub(super) l: *mut f32,
    /// Room for the scores, `KEYS` rows of lanes.
    pub(super) s: *mut f32,
    /// What is added to the scores, a row for each key, or null.
    pub(super) bias: *const f32,
    /// Number of keys, 1..=KEYS.
    pub(super) keys: usize,
    /// Vectors of queries: 1 or 2.
    pub(super) vectors: usize,
    /// Key r is seen by the lanes from `first + r` on.
    pub(super) first: isize,
    /// Of scores towards powers of 2.
    pub(super) scale: f32,
}

impl Step {
    /// Keys that vector 0 has to do with: those after them are seen by vector 1 only.
    #[inline(always)]
    fn both(&self, lanes: usize) -> usize {
        both(self.vectors, self.keys, self.first, lanes)
    }
}

/// Keys that vector 0 of so many has to do with, if key r is seen by the lanes from `first + r` on.
#[inline(always)]
pub(super) fn both(vectors: usize, keys: usize, first: isize, lanes: usize) -> usize {
    if vectors == 1 { keys } else { (lanes as isize - first).clamp(0, keys as isize) as usize }
}

/// Scores of MR keys from `r` on for NV vectors from `v0` on; `top`: their greatest.
#[inline(always)]
unsafe fn scores<P: Weights, const MR: usize, const NV: usize>(c: &Step, r: usize, v0: usize, top: &mut [P::V; 2]) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        let mut acc = [[P::zero(); NV]; MR];
        let k = c.k.cast::<P::Unit>().wrapping_offset(r as isize * c.k_row);
        let q = c.q.cast::<P::Unit>().wrapping_add(v0 * n);
        product::<P, MR, NV, { tile::ROWS }>(&mut acc, c.dim, k, c.k_row, q, 2 * n);
        if !P::SCALED {
            for row in &mut acc {
                for x in row {
                    *x = P::R::mul(*x, P::R::splat(c.scale));
                }
            }
        }
        if !c.bias.is_null() {
            for i in 0..MR {
                for v in 0..NV {
                    let b = P::R::load(c.bias.add((r + i) * 2 * n + (v0 + v) * n));
                    acc[i][v] = P::R::fma(b, P::R::splat(std::f32::consts::LOG2_E), acc[i][v]);
                }
            }
        }
        if c.first + ((r + MR - 1) as isize) > (v0 * n) as isize {
            for i in 0..MR {
                for v in 0..NV {
                    let first = c.first + (r + i) as isize - ((v0 + v) * n) as isize;
                    acc[i][v] = P::R::from_lane(first as i32, acc[i][v], P::R::splat(f32::NEG_INFINITY));
                }
            }
        }
        for i in 0..MR {
            for v in 0..NV {
                // A NaN does not count here: its weight and its row's sum become NaN whatever the greatest is.
                top[v0 + v] = P::R::max(acc[i][v], top[v0 + v]);
                P::R::store(c.s.add((r + i) * 2 * n + (v0 + v) * n), acc[i][v]);
            }
        }
    }
}

/// Weights of the keys `from..to` for NV vectors from `v0` on, in place of the scores; adds to their sums.
#[inline(always)]
unsafe fn weights<P: Weights, const NV: usize>(
    c: &Step,
    from: usize,
    to: usize,
    v0: usize,
    m: &[P::V; 2],
    l: &mut [P::V; 2],
) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        let mut r = from;
        while r < to {
            for v in v0..v0 + NV {
                let mut w = [P::zero(); 2];
                for i in 0..P::KEYS.min(to - r) {
                    let x = P::R::load(c.s.add((r + i) * 2 * n + v * n));
                    w[i] = lane::exp2::<P::R>(P::R::sub(x, m[v]));
                    l[v] = P::R::add(l[v], w[i]);
                }
                // Units of pairs take half as many rows: those written are read already.
                P::put(c.s.cast::<P::Unit>().add(r / P::KEYS * 2 * n + v * n), w);
            }
            r += P::KEYS;
        }
    }
}

/// `acc += A·W` over keys: A, MR features of each, from `a` on; weights W of keys up to `both` for all vectors, after them
/// for vector 1 only.
///
/// # Safety
/// A and W cover `keys` keys; the processor has the lane's instruction set.
#[inline(always)]
pub(super) unsafe fn over_keys<P: Weights, const MR: usize, const NV: usize>(
    acc: &mut [[P::V; NV]; MR],
    both: usize,
    keys: usize,
    a: *const P::Unit,
    row: isize,
    w: *const P::Unit,
) {
    let n = P::R::N;
    // SAFETY: the caller's contract.
    unsafe {
        product::<P, MR, NV, { tile::LANES }>(acc, both.div_ceil(P::KEYS), a, row, w, 2 * n);
        if NV == 2 && both < keys {
            let mut upper = [[P::zero(); 1]; MR];
            for i in 0..MR {
                upper[i][0] = acc[i][NV - 1];
            }
            let from = both.div_ceil(P::KEYS);
            let a = a.wrapping_offset(from as isize * row);
            let w = w.wrapping_add(from * 2 * n + n);
            product::<P, MR, 1, { tile::LANES }>(&mut upper, keys.div_ceil(P::KEYS) - from, a, row, w, 2 * n);
            for i in 0..MR {
                acc[i][NV - 1] = upper[i][0];
            }
        }
    }
}

/// Adds the weighted values of MR features from `f` on for the first NV vectors, after multiplying the old ones by `shrink`.
#[inline(always)]
unsafe fn weigh<P: Weights, const MR: usize, const NV: usize>(c: &Step, f: usize, both: usize, shrink: &[P::V; 2]) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        let o = c.o.wrapping_add(f * 2 * n);
        let mut acc = [[P::zero(); NV]; MR];
        for i in 0..MR {
            for v in 0..NV {
                acc[i][v] = P::R::mul(P::R::load(o.add(i * 2 * n + v * n)), shrink[v]);
            }
        }
        let v = c.v.cast::<P::Unit>().wrapping_add(f);
        over_keys::<P, MR, NV>(&mut acc, both, c.keys, v, c.v_row, c.s.cast::<P::Unit>().cast_const());
        for i in 0..MR {
            for v in 0..NV {
                P::R::store(o.add(i * 2 * n + v * n), acc[i][v]);
            }
        }
    }
}

/// The scores of keys `from..to`, MR at a time and fewer at the end.
#[inline(always)]
unsafe fn all_scores<P: Weights, const MR: usize, const NV: usize>(
    c: &Step,
    from: usize,
    to: usize,
    v0: usize,
    top: &mut [P::V; 2],
) {
    let mut r = from;
    // SAFETY: passed on.
    unsafe {
        while r + MR <= to {
            scores::<P, MR, NV>(c, r, v0, top);
            r += MR;
        }
        if MR > 4 && r + 4 <= to {
            scores::<P, 4, NV>(c, r, v0, top);
            r += 4;
        }
        while r < to {
            scores::<P, 1, NV>(c, r, v0, top);
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn all_features<P: Weights, const MR: usize, const NV: usize>(c: &Step, both: usize, shrink: &[P::V; 2]) {
    let mut f = 0;
    // SAFETY: passed on.
    unsafe {
        while f + MR <= c.v_dim {
            weigh::<P, MR, NV>(c, f, both, shrink);
            f += MR;
        }
        if MR > 4 && f + 4 <= c.v_dim {
            weigh::<P, 4, NV>(c, f, both, shrink);
            f += 4;
        }
        while f < c.v_dim {
            weigh::<P, 1, NV>(c, f, both, shrink);
            f += 1;
        }
    }
}

/// # Safety
/// The step's arrays cover its block; the processor has the lane's instruction set.
#[inline(always)]
pub(super) unsafe fn step<P: Weights, const MR: usize>(c: &Step) {
    // SAFETY: the caller's contract.
    unsafe {
        let n = P::R::N;
        let both = c.both(n);
        let lowest = P::R::splat(f32::NEG_INFINITY);
        let mut top = [lowest; 2];
        if c.vectors == 2 {
            all_scores::<P, MR, 2>(c, 0, both, 0, &mut top);
            all_scores::<P, MR, 1>(c, both, c.keys, 1, &mut top);
        } else {
            all_scores::<P, MR, 1>(c, 0, both, 0, &mut top);
        }
        let (mut shrink, mut base, mut l) = ([lowest; 2], [lowest; 2], [lowest; 2]);
        for v in 0..c.vectors {
            let old = P::R::load(c.m.add(v * n));
            let new = P::R::max(top[v], old);
            P::R::store(c.m.add(v * n), new);
            // Where nothing is seen yet, every weight is 2^(-inf - 0), and never 2^(-inf + inf).
            base[v] = P::R::unless_lowest(new, new, P::zero());
            shrink[v] = lane::exp2::<P::R>(P::R::sub(old, base[v]));
            l[v] = P::R::mul(P::R::load(c.l.add(v * n)), shrink[v]);
        }
        if c.vectors == 2 {
            weights::<P, 2>(c, 0, both, 0, &base, &mut l);
            weights::<P, 1>(c, both, c.keys, 1, &base, &mut l);
            all_features::<P, MR, 2>(c, both, &shrink);
        } else {
            weights::<P, 1>(c, 0, both, 0, &base, &mut l);
            all_features::<P, MR, 1>(c, both, &shrink);
        }
        for v in 0..c.vectors {
            P::R::store(c.l.add(v * n), l[v]);
        }
    }
}
