//! Gradients of attention for a block of queries and a block of keys, queries in lanes as in `step`.
//!
//! Weights Pᵀ and their gradients dSᵀ are computed transposed, from rows of K and V where they lie. All that follows reads
//! them in rows: dV += Pᵀ·dO and dK += dSᵀ·Q broadcast their numbers, dQᵀ += Kᵀ·dSᵀ their vectors.

use super::lane::{self, Real};
use super::levels::Weights;
use super::step::{both, over_keys};
use super::tile::{self, product};

/// One block of queries, an even number for pairs, and one of keys. Rows of lanes hold the block's queries. Pointers
/// without a type are to units of the product's lane, and distances count units; a pair is of neighbours along what a
/// product sums over.
pub(super) struct GradientStep {
    /// Rows of K and V and the distance between them; units of a row.
    pub(super) k: *const u8,
    pub(super) k_row: isize,
    pub(super) v: *const u8,
    pub(super) v_row: isize,
    pub(super) k_units: usize,
    pub(super) v_units: usize,
    /// Features of K.
    pub(super) dim: usize,
    /// Q, scaled towards powers of 2 unless of pairs, and dO: `k_units` and `v_units` rows of lanes.
    pub(super) q_lanes: *const u8,
    pub(super) o_lanes: *const u8,
    /// Rows of K (pairs of rows), to be summed over keys.
    pub(super) k_keys: *const u8,
    pub(super) k_keys_row: isize,
    /// Rows of Q and dO (pairs of rows), of whole vectors, and the distance between them, to be summed over queries.
    pub(super) q: *const u8,
    pub(super) q_row: usize,
    pub(super) o: *const u8,
    pub(super) o_row: usize,
    /// Of each query: log-sum-exp in powers of 2, and what all its weights have in common in their gradients.
    pub(super) lse: *const f32,
    pub(super) delta: *const f32,
    /// What is added to the scores, a row of lanes for each key, or null.
    pub(super) bias: *const f32,
    /// Room for P as f32, a row of lanes for each key.
    pub(super) p: *mut f32,
    /// Room for dS as `Weights::put` stores it.
    pub(super) ds: *mut u8,
    /// Room for P and dS as `Weights::put_row` stores them; for f32, these are `p` and `ds`.
    pub(super) p_rows: *mut u8,
    pub(super) ds_rows: *mut u8,
    /// Sums: dQ in `dim` rows of lanes; dK and dV in rows of whole vectors. Null: not wanted.
    pub(super) dq: *mut f32,
    pub(super) dk: *mut f32,
    pub(super) dk_row: usize,
    pub(super) dv: *mut f32,
    pub(super) dv_row: usize,
    pub(super) keys: usize,
    pub(super) queries: usize,
    /// Key r is seen by the lanes from `first + r` on.
    pub(super) first: isize,
    /// Of scores towards powers of 2.
    pub(super) scale: f32,
}

/// P and dS of MR keys from `r` on for NV vectors from `v0` on.
#[inline(always)]
unsafe fn weights<P: Weights, const MR: usize, const NV: usize>(c: &GradientStep, r: usize, v0: usize) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        let at = |i: usize, v: usize| (r + i) * 2 * n + (v0 + v) * n;
        let mut s = [[P::zero(); NV]; MR];
        let k = c.k.cast::<P::Unit>().wrapping_offset(r as isize * c.k_row);
        let q = c.q_lanes.cast::<P::Unit>().wrapping_add(v0 * n);
        product::<P, MR, NV, { tile::ROWS }>(&mut s, c.k_units, k, c.k_row, q, 2 * n);
        if !P::SCALED {
            for row in &mut s {
                for x in row {
                    *x = P::R::mul(*x, P::R::splat(c.scale));
                }
            }
        }
        if !c.bias.is_null() {
            for i in 0..MR {
                for v in 0..NV {
                    s[i][v] =
                        P::R::fma(P::R::load(c.bias.add(at(i, v))), P::R::splat(std::f32::consts::LOG2_E), s[i][v]);
                }
            }
        }
        // Lanes before this one do not see key r + i.
        let first = |i: usize, v: usize| (c.first + (r + i) as isize - ((v0 + v) * n) as isize) as i32;
        let masked = first(MR - 1, 0) > 0;
        for i in 0..MR {
            for v in 0..NV {
                let lse = P::R::load(c.lse.add((v0 + v) * n));
                let mut p = lane::exp2::<P::R>(P::R::sub(s[i][v], lse));
                if masked {
                    p = P::R::from_lane(first(i, v), p, P::zero());
                }
                P::R::store(c.p.add(at(i, v)), p);
                if P::KEYS > 1 {
                    P::put_row(c.p_rows.cast::<P::Unit>().add(at(i, v) / P::KEYS), p);
                }
            }
        }
        let mut d = [[P::zero(); NV]; MR];
        let v_rows = c.v.cast::<P::Unit>().wrapping_offset(r as isize * c.v_row);
        let o = c.o_lanes.cast::<P::Unit>().wrapping_add(v0 * n);
        product::<P, MR, NV, { tile::ROWS }>(&mut d, c.v_units, v_rows, c.v_row, o, 2 * n);
        for v in 0..NV {
            let delta = P::R::load(c.delta.add((v0 + v) * n));
            for i in (0..MR).step_by(P::KEYS) {
                let mut pair = [P::zero(); 2];
                for j in 0..P::KEYS.min(MR - i) {
                    let mut ds = P::R::mul(P::R::load(c.p.add(at(i + j, v))), P::R::sub(d[i + j][v], delta));
                    if masked {
                        ds = P::R::from_lane(first(i + j, v), ds, P::zero());
                    }
                    if P::KEYS > 1 {
                        P::put_row(c.ds_rows.cast::<P::Unit>().add(at(i + j, v) / P::KEYS), ds);
                    }
                    pair[j] = ds;
                }
                P::put(c.ds.cast::<P::Unit>().add((r + i) / P::KEYS * 2 * n + (v0 + v) * n), pair);
            }
        }
    }
}

/// P and dS of keys `from..to`, MR at a time and fewer at the end.
#[inline(always)]
unsafe fn all_weights<P: Weights, const MR: usize, const NV: usize>(
    c: &GradientStep,
    from: usize,
    to: usize,
    v0: usize,
) {
    let mut r = from;
    // SAFETY: passed on.
    unsafe {
        while r + MR <= to {
            weights::<P, MR, NV>(c, r, v0);
            r += MR;
        }
        while P::KEYS == 2 && r + 2 <= to {
            weights::<P, 2, NV>(c, r, v0);
            r += 2;
        }
        while r < to {
            weights::<P, 1, NV>(c, r, v0);
            r += 1;
        }
    }
}

/// dQ of MR features from `f` on.
#[inline(always)]
unsafe fn by_query<P: Weights, const MR: usize, const NV: usize>(c: &GradientStep, f: usize, both: usize) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        let dq = c.dq.wrapping_add(f * 2 * n);
        let mut acc = [[P::zero(); NV]; MR];
        for i in 0..MR {
            for v in 0..NV {
                acc[i][v] = P::R::load(dq.add(i * 2 * n + v * n));
            }
        }
        let k = c.k_keys.cast::<P::Unit>().wrapping_add(f);
        over_keys::<P, MR, NV>(&mut acc, both, c.keys, k, c.k_keys_row, c.ds.cast::<P::Unit>().cast_const());
        for i in 0..MR {
            for v in 0..NV {
                P::R::store(dq.add(i * 2 * n + v * n), acc[i][v]);
            }
        }
    }
}

#[inline(always)]
unsafe fn all_queries<P: Weights, const MR: usize, const NV: usize>(c: &GradientStep, both: usize) {
    let mut f = 0;
    // SAFETY: passed on.
    unsafe {
        while f + MR <= c.dim {
            by_query::<P, MR, NV>(c, f, both);
            f += MR;
        }
        while f < c.dim {
            by_query::<P, 1, NV>(c, f, both);
            f += 1;
        }
    }
}

/// One of the sums by key: `to += W·X`, W a row of lanes for each key, X a row for each query.
#[derive(Clone, Copy)]
struct ByKey {
    w: *const u8,
    x: *const u8,
    x_row: usize,
    to: *mut f32,
    to_row: usize,
}

/// MR keys from `r` on, NV vectors of features from `f` on.
#[inline(always)]
unsafe fn by_key<P: Weights, const MR: usize, const NV: usize>(c: &GradientStep, s: &ByKey, r: usize, f: usize) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        // The first query that sees the first of these keys: the others do not see the rest either.
        let from = (c.first + r as isize).clamp(0, c.queries as isize) as usize / P::KEYS;
        let to = s.to.wrapping_add(r * s.to_row + f);
        let mut acc = [[P::zero(); NV]; MR];
        for i in 0..MR {
            for v in 0..NV {
                acc[i][v] = P::R::load(to.add(i * s.to_row + v * n));
            }
        }
        let row = 2 * n / P::KEYS;
        let w = s.w.cast::<P::Unit>().wrapping_add(r * row + from);
        let x = s.x.cast::<P::Unit>().wrapping_add(from * s.x_row + f);
        product::<P, MR, NV, { tile::ROWS }>(&mut acc, c.queries / P::KEYS - from, w, row as isize, x, s.x_row);
        for i in 0..MR {
            for v in 0..NV {
                P::R::store(to.add(i * s.to_row + v * n), acc[i][v]);
            }
        }
    }
}

/// All keys for NV vectors of features from `f` on.
#[inline(always)]
unsafe fn all_keys<P: Weights, const MR: usize, const NV: usize>(c: &GradientStep, s: &ByKey, f: usize) {
    let mut r = 0;
    // SAFETY: passed on.
    unsafe {
        while r + MR <= c.keys {
            by_key::<P, MR, NV>(c, s, r, f);
            r += MR;
        }
        while r < c.keys {
            by_key::<P, 1, NV>(c, s, r, f);
            r += 1;
        }
    }
}

/// All keys and features.
#[inline(always)]
unsafe fn sum_by_key<P: Weights, const MR: usize>(c: &GradientStep, s: &ByKey) {
    let n = P::R::N;
    let mut f = 0;
    // SAFETY: passed on.
    unsafe {
        while f + 2 * n <= s.to_row {
            all_keys::<P, MR, 2>(c, s, f);
            f += 2 * n;
        }
        if f < s.to_row {
            all_keys::<P, MR, 1>(c, s, f);
        }
    }
}

/// Adds the block's part to the gradients.
///
/// # Safety
/// The step's arrays cover its block; the processor has the lane's instruction set.
#[inline(always)]
pub(super) unsafe fn gradient_step<P: Weights, const MR: usize>(c: &GradientStep) {
    let n = P::R::N;
    let vectors = c.queries.div_ceil(n);
    let both = both(vectors, c.keys, c.first, n);
    // SAFETY: the caller's contract.
    unsafe {
        if vectors == 2 {
            all_weights::<P, MR, 2>(c, 0, both, 0);
            all_weights::<P, MR, 1>(c, both, c.keys, 1);
        } else {
            all_weights::<P, MR, 1>(c, 0, both, 0);
        }
        if !c.dq.is_null() {
            if vectors == 2 {
                all_queries::<P, MR, 2>(c, both);
            } else {
                all_queries::<P, MR, 1>(c, both);
            }
        }
        if !c.dk.is_null() {
            sum_by_key::<P, MR>(c, &ByKey { w: c.p_rows, x: c.o, x_row: c.o_row, to: c.dv, to_row: c.dv_row });
            sum_by_key::<P, MR>(c, &ByKey { w: c.ds_rows, x: c.q, x_row: c.q_row, to: c.dk, to_row: c.dk_row });
        }
    }
}
