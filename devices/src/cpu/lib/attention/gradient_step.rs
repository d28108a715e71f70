//! Gradients of attention for a block of queries and a block of keys, queries in lanes as in `step`.
//!
//! Weights Pᵀ and their gradients dSᵀ are computed transposed, from rows of K and V where they lie. All that follows reads
//! them in rows: dV += Pᵀ·dO and dK += dSᵀ·Q broadcast their numbers, dQᵀ += Kᵀ·dSᵀ their vectors.

use super::lane::{self, Real};
use super::levels::Weights;
use super::step::{both, over_keys};
use super::tile::{self, product};

/// One block of queries and one of keys. Rows of lanes hold the block's queries.
pub(super) struct GradientStep {
    /// Rows of K and V and the distance between them.
    pub(super) k: *const f32,
    pub(super) k_row: isize,
    pub(super) v: *const f32,
    pub(super) v_row: isize,
    pub(super) dim: usize,
    pub(super) v_dim: usize,
    /// Q, scaled towards powers of 2, and dO: `dim` and `v_dim` rows of lanes.
    pub(super) q_lanes: *const f32,
    pub(super) o_lanes: *const f32,
    /// Rows of Q and dO, of whole vectors, and the distance between them.
    pub(super) q: *const f32,
    pub(super) q_row: usize,
    pub(super) o: *const f32,
    pub(super) o_row: usize,
    /// Of each query: log-sum-exp in powers of 2, and what all its weights have in common in their gradients.
    pub(super) lse: *const f32,
    pub(super) delta: *const f32,
    /// What is added to the scores, a row of lanes for each key, or null.
    pub(super) bias: *const f32,
    /// Room for P and dS, a row of lanes for each key.
    pub(super) p: *mut f32,
    pub(super) ds: *mut f32,
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
}

/// P and dS of MR keys from `r` on for NV vectors from `v0` on.
#[inline(always)]
unsafe fn weights<P: Weights<Unit = f32>, const MR: usize, const NV: usize>(c: &GradientStep, r: usize, v0: usize) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        let at = |i: usize, v: usize| (r + i) * 2 * n + (v0 + v) * n;
        let mut s = [[P::zero(); NV]; MR];
        let k = c.k.wrapping_offset(r as isize * c.k_row);
        product::<P, MR, NV, { tile::ROWS }>(&mut s, c.dim, k, c.k_row, c.q_lanes.wrapping_add(v0 * n), 2 * n);
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
            }
        }
        let mut d = [[P::zero(); NV]; MR];
        let v_rows = c.v.wrapping_offset(r as isize * c.v_row);
        product::<P, MR, NV, { tile::ROWS }>(&mut d, c.v_dim, v_rows, c.v_row, c.o_lanes.wrapping_add(v0 * n), 2 * n);
        for i in 0..MR {
            for v in 0..NV {
                let delta = P::R::load(c.delta.add((v0 + v) * n));
                let mut ds = P::R::mul(P::R::load(c.p.add(at(i, v))), P::R::sub(d[i][v], delta));
                if masked {
                    ds = P::R::from_lane(first(i, v), ds, P::zero());
                }
                P::R::store(c.ds.add(at(i, v)), ds);
            }
        }
    }
}

/// P and dS of keys `from..to`, MR at a time and fewer at the end.
#[inline(always)]
unsafe fn all_weights<P: Weights<Unit = f32>, const MR: usize, const NV: usize>(
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
        while r < to {
            weights::<P, 1, NV>(c, r, v0);
            r += 1;
        }
    }
}

/// dQ of MR features from `f` on.
#[inline(always)]
unsafe fn by_query<P: Weights<Unit = f32>, const MR: usize, const NV: usize>(c: &GradientStep, f: usize, both: usize) {
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
        over_keys::<P, MR, NV>(&mut acc, both, c.keys, c.k.wrapping_add(f), c.k_row, c.ds);
        for i in 0..MR {
            for v in 0..NV {
                P::R::store(dq.add(i * 2 * n + v * n), acc[i][v]);
            }
        }
    }
}

#[inline(always)]
unsafe fn all_queries<P: Weights<Unit = f32>, const MR: usize, const NV: usize>(c: &GradientStep, both: usize) {
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
    w: *const f32,
    x: *const f32,
    x_row: usize,
    to: *mut f32,
    to_row: usize,
}

/// MR keys from `r` on, NV vectors of features from `f` on.
#[inline(always)]
unsafe fn by_key<P: Weights<Unit = f32>, const MR: usize, const NV: usize>(
    c: &GradientStep,
    s: &ByKey,
    r: usize,
    f: usize,
) {
    // SAFETY: the step's contract covers every address formed below.
    unsafe {
        let n = P::R::N;
        // The first query that sees the first of these keys: the others do not see the rest either.
        let from = (c.first + r as isize).clamp(0, c.queries as isize) as usize;
        let to = s.to.wrapping_add(r * s.to_row + f);
        let mut acc = [[P::zero(); NV]; MR];
        for i in 0..MR {
            for v in 0..NV {
                acc[i][v] = P::R::load(to.add(i * s.to_row + v * n));
            }
        }
        let w = s.w.wrapping_add(r * 2 * n + from);
        let x = s.x.wrapping_add(from * s.x_row + f);
        product::<P, MR, NV, { tile::ROWS }>(&mut acc, c.queries - from, w, 2 * n as isize, x, s.x_row);
        for i in 0..MR {
            for v in 0..NV {
                P::R::store(to.add(i * s.to_row + v * n), acc[i][v]);
            }
        }
    }
}

/// All keys for NV vectors of features from `f` on.
#[inline(always)]
unsafe fn all_keys<P: Weights<Unit = f32>, const MR: usize, const NV: usize>(c: &GradientStep, s: &ByKey, f: usize) {
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
unsafe fn sum_by_key<P: Weights<Unit = f32>, const MR: usize>(c: &GradientStep, s: &ByKey) {
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
pub(super) unsafe fn gradient_step<P: Weights<Unit = f32>, const MR: usize>(c: &GradientStep) {
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
            sum_by_key::<P, MR>(c, &ByKey { w: c.p, x: c.o, x_row: c.o_row, to: c.dv, to_row: c.dv_row });
            sum_by_key::<P, MR>(c, &ByKey { w: c.ds, x: c.q, x_row: c.q_row, to: c.dk, to_row: c.dk_row });
        }
    }
}
