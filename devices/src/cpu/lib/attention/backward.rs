//! Gradients of attention, block by block, from the output and its log-sum-exp.

use super::forward::{load_transposed, pack_bias, pair_rows_of, row_pairs_of, rows_of, store_transposed};
use super::gradient_step::GradientStep;
use super::levels::{Stepper, stepper};
use super::step::KEYS;
use super::{Attention, Elem, Heads, LibError, LogSumExp, Work, round, rows, store_row};
use crate::cpu::lib::gemm::kernel::Pair;
use crate::cpu::lib::gemm::pack::pack_matrix;
use crate::cpu::pool;
use crate::memory::OutOfMemory;
use std::ops::Range;

/// Fewer keys than this are one task; more may be divided at its multiples.
pub(super) const SPLIT: usize = 128;

/// Where the gradients go: shapes of Q, K and V, any strides, f32, bf16 or f16.
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    pub dq: Heads,
    pub dk: Heads,
    pub dv: Heads,
}

/// Gradients with respect to Q, K and V, given `out` and `lse` of [`super::forward`] and `dout`.
///
/// No gradient for the bias. Errors as [`super::forward`].
///
/// # Safety
/// Arrays cover live memory; the gradients overlap nothing.
pub unsafe fn backward(
    a: &Attention,
    out: &Heads,
    dout: &Heads,
    lse: LogSumExp,
    g: &Gradients,
) -> Result<(), LibError> {
    a.check()?;
    if ![out, dout, &g.dq, &g.dk, &g.dv].iter().all(|h| matches!(h.elem, Elem::F32 | Elem::BF16 | Elem::F16)) {
        return Err(LibError::shape("attention backward", "gradients of f32, bf16 or f16 only"));
    }
    let pairs = a.batch * a.kv_heads;
    if pairs == 0 {
        return Ok(());
    }
    let p = Problem { a: *a, out: *out, dout: *dout, lse, g: *g };
    if pairs >= pool::num_threads() || a.kv_len <= SPLIT {
        // Enough heads: each is one task, and the scores are computed once.
        pool::try_for(pairs, a.cost(5), &|t| {
            // SAFETY: heads are disjoint.
            unsafe { p.head(t / a.kv_heads, t % a.kv_heads, 0..a.q_len, 0..a.kv_len, true, true) }
        })?;
        return Ok(());
    }
    // Few heads: one pass divides the keys (for dk, dv), the other the queries (for dq).
    let cut = |len: usize| len.div_ceil(2 * pool::num_threads()).next_multiple_of(SPLIT);
    let (kc, qc) = (cut(a.kv_len), cut(a.q_len));
    let (kn, qn) = (a.kv_len.div_ceil(kc), a.q_len.div_ceil(qc));
    pool::try_for(pairs * (kn + qn), a.cost(7), &|t| {
        let (pair, part) = (t / (kn + qn), t % (kn + qn));
        let (b, h) = (pair / a.kv_heads, pair % a.kv_heads);
        // SAFETY: parts own disjoint rows of their gradients.
        unsafe {
            if part < kn {
                p.head(b, h, 0..a.q_len, part * kc..((part + 1) * kc).min(a.kv_len), true, false)
            } else {
                let q = part - kn;
                p.head(b, h, q * qc..((q + 1) * qc).min(a.q_len), 0..a.kv_len, false, true)
            }
        }
    })?;
    Ok(())
}

/// A row of `n` numbers in whole vectors.
fn whole(n: usize) -> usize {
    n.next_multiple_of(stepper().queries / 2)
}

/// Work memory of one head of K and V with `n` queries in each of its heads, floats; `q`: with their gradients.
pub(super) fn floats(a: &Attention, n: usize, q: bool) -> usize {
    let lanes = stepper().queries;
    let n = a.group() * n.next_multiple_of(lanes);
    let (wide, v_wide) = (whole(a.dim), whole(a.v_dim));
    round(n * a.dim)
        + round(n * a.v_dim)
        + round(n * wide)
        + round(n * v_wide)
        + 2 * round(n)
        + round(if q { n * a.dim } else { 0 })
        + 5 * round(KEYS * lanes)
        + 3 * round(KEYS * wide)
        + 2 * round(KEYS * v_wide)
        + 2 * round(a.v_dim)
        + round(lanes * a.dim.next_multiple_of(8))
}

struct Problem {
    a: Attention,
    out: Heads,
    dout: Heads,
    lse: LogSumExp,
    g: Gradients,
}

impl Problem {
    /// One head of K and V with all its query heads, over ranges of queries and keys; stores dk and
    /// dv of the keys (`kv`) and dq of the queries (`q`), each complete only over the full other range.
    unsafe fn head(
        &self,
        b: usize,
        hk: usize,
        qs: Range<usize>,
        ks: Range<usize>,
        kv: bool,
        q: bool,
    ) -> Result<(), OutOfMemory> {
        let a = &self.a;
        let Stepper { queries: lanes, mut gradients, pair_gradients, .. } = *stepper();
        let is_bf16 = [&a.q, &a.k, &a.v, &self.dout].iter().all(|x| x.elem == Elem::BF16);
        // An odd number of queries would need a last pair without a second one.
        let pairs = pair_gradients.filter(|_| is_bf16 && a.q_len.is_multiple_of(2));
        if let Some(step) = pairs {
            gradients = step;
        }
        // Elements in a unit.
        let per = if pairs.is_some() { 2 } else { 1 };
        let (k_units, v_units) = (a.dim.div_ceil(per), a.v_dim.div_ceil(per));
        let scale = a.scale * std::f32::consts::LOG2_E;
        let (group, n) = (a.group(), qs.len());
        let (wide, v_wide) = (whole(a.dim), whole(a.v_dim));
        let blocks = n.div_ceil(lanes);
        let padded = blocks * lanes;
        let mut w = Work::new(floats(a, n, q))?;
        let q_lanes = w.take(group * padded * a.dim);
        let o_lanes = w.take(group * padded * a.v_dim);
        let q_room = w.take(group * padded * wide);
        let o_room = w.take(group * padded * v_wide);
        let (lse, delta) = (w.take(group * padded), w.take(group * padded));
        let dq = w.take(if q { group * padded * a.dim } else { 0 });
        let (p, ds, bias) = (w.take(KEYS * lanes), w.take(KEYS * lanes), w.take(KEYS * lanes));
        let (p_rows, ds_rows, k_pairs) = (w.take(KEYS * lanes), w.take(KEYS * lanes), w.take(KEYS * wide));
        let (k_room, v_room) = (w.take(KEYS * wide), w.take(KEYS * v_wide));
        let (dk, dv) = (w.take(KEYS * wide), w.take(KEYS * v_wide));
        let (r0, r1) = (w.take(a.v_dim), w.take(a.v_dim));
        let row = w.take(lanes * a.dim.next_multiple_of(8));
        // SAFETY: all blocks lie within the work memory laid out above and the caller's arrays.
        unsafe {
            a.k.fetch(b, hk, ks.start, KEYS, ks.end, a.dim);
            a.v.fetch(b, hk, ks.start, KEYS, ks.end, a.v_dim);
            let mut q_rows = Vec::with_capacity(group);
            for gi in 0..group {
                let h = hk * group + gi;
                for i0 in (0..n).step_by(lanes) {
                    let (some, at) = (lanes.min(n - i0), gi * padded + i0);
                    let next = qs.start + i0 + lanes;
                    a.q.fetch(b, h, next, lanes, qs.end, a.dim);
                    self.dout.fetch(b, h, next, lanes, qs.end, a.v_dim);
                    self.out.fetch(b, h, next, lanes, qs.end, a.v_dim);
                    let (q_to, o_to) = (q_lanes.add(at * k_units), o_lanes.add(at * v_units));
                    if pairs.is_some() {
                        let m = a.q.rows_matrix(b, h, qs.start + i0);
                        pack_matrix::<Pair>(&m, some, a.dim, lanes, q_to.cast());
                        let m = self.dout.rows_matrix(b, h, qs.start + i0);
                        pack_matrix::<Pair>(&m, some, a.v_dim, lanes, o_to.cast());
                    } else {
                        load_transposed(&a.q, b, h, qs.start + i0, some, a.dim, scale, q_to);
                        load_transposed(&self.dout, b, h, qs.start + i0, some, a.v_dim, 1.0, o_to);
                    }
                    for i in 0..some {
                        let t = qs.start + i0 + i;
                        let lse_of = *self.lse.at(b, h, t);
                        *lse.add(at + i) = lse_of * std::f32::consts::LOG2_E;
                        *delta.add(at + i) = self.delta(b, h, t, r0, r1);
                    }
                    for i in some..lanes {
                        *lse.add(at + i) = 0.0;
                        *delta.add(at + i) = 0.0;
                    }
                }
                let at = gi * padded;
                let (q_to, o_to) = (q_room.add(at * wide), o_room.add(at * v_wide));
                q_rows.push(if !kv {
                    Default::default()
                } else if pairs.is_some() {
                    (
                        row_pairs_of(&a.q, b, h, qs.start, n, a.dim, wide, q_to),
                        row_pairs_of(&self.dout, b, h, qs.start, n, a.v_dim, v_wide, o_to),
                    )
                } else {
                    (
                        rows_of(&a.q, b, h, qs.start, n, a.dim, wide, q_to),
                        rows_of(&self.dout, b, h, qs.start, n, a.v_dim, v_wide, o_to),
                    )
                });
            }
            if q {
                dq.write_bytes(0, group * padded * a.dim);
            }
            for kv0 in ks.clone().step_by(KEYS) {
                a.k.fetch(b, hk, kv0 + KEYS, KEYS, ks.end, a.dim);
                a.v.fetch(b, hk, kv0 + KEYS, KEYS, ks.end, a.v_dim);
                let last = kv0 + KEYS >= ks.end;
                let bk = KEYS.min(ks.end - kv0);
                let (k, v, k_keys) = if pairs.is_some() {
                    (
                        pair_rows_of(&a.k, b, hk, kv0, bk, a.dim, k_room),
                        pair_rows_of(&a.v, b, hk, kv0, bk, a.v_dim, v_room),
                        row_pairs_of(&a.k, b, hk, kv0, bk, a.dim, a.dim, k_pairs),
                    )
                } else {
                    let k = rows_of(&a.k, b, hk, kv0, bk, a.dim, a.dim, k_room);
                    (k, rows_of(&a.v, b, hk, kv0, bk, a.v_dim, a.v_dim, v_room), k)
                };
                if kv {
                    self.g.dk.fetch_to_write(b, hk, kv0, KEYS, ks.end, a.dim);
                    self.g.dv.fetch_to_write(b, hk, kv0, KEYS, ks.end, a.v_dim);
                    dk.write_bytes(0, KEYS * wide);
                    dv.write_bytes(0, KEYS * v_wide);
                }
                for gb in 0..group * blocks {
                    let (gi, i0) = (gb / blocks, gb % blocks * lanes);
                    let (some, at) = (lanes.min(n - i0), gb * lanes);
                    if q && last {
                        self.g.dq.fetch_to_write(b, hk * group + gi, qs.start + i0, some, qs.end, a.dim);
                    }
                    // The keys that any of these queries sees: the last one sees the most.
                    let keys = a.visible(qs.start + i0 + some - 1, kv0, bk);
                    if keys == 0 {
                        continue;
                    }
                    if a.bias.is_some() {
                        pack_bias(a, b, hk * group + gi, qs.start + i0, some, kv0, keys, lanes, bias);
                    }
                    let (q_row, o_row) = &q_rows[gi];
                    gradients(&GradientStep {
                        k: k.p.cast(),
                        k_row: k.step,
                        v: v.p.cast(),
                        v_row: v.step,
                        k_units,
                        v_units,
                        dim: a.dim,
                        q_lanes: q_lanes.wrapping_add(at * k_units).cast_const().cast(),
                        o_lanes: o_lanes.wrapping_add(at * v_units).cast_const().cast(),
                        k_keys: k_keys.p.cast(),
                        k_keys_row: k_keys.step,
                        q: q_row.p.wrapping_offset((i0 / per) as isize * q_row.step).cast(),
                        q_row: q_row.step as usize,
                        o: o_row.p.wrapping_offset((i0 / per) as isize * o_row.step).cast(),
                        o_row: o_row.step as usize,
                        lse: lse.wrapping_add(at),
                        delta: delta.wrapping_add(at),
                        bias: if a.bias.is_some() { bias.cast_const() } else { std::ptr::null() },
                        p,
                        ds: ds.cast(),
                        p_rows: if pairs.is_some() { p_rows } else { p }.cast(),
                        ds_rows: if pairs.is_some() { ds_rows } else { ds }.cast(),
                        dq: if q { dq.wrapping_add(at * a.dim) } else { std::ptr::null_mut() },
                        dk: if kv { dk } else { std::ptr::null_mut() },
                        dk_row: wide,
                        dv,
                        dv_row: v_wide,
                        keys,
                        queries: some,
                        first: if a.causal { kv0 as isize - (qs.start + i0) as isize } else { -(KEYS as isize) },
                        scale,
                    });
                }
                if kv {
                    rows::multiply(std::slice::from_raw_parts_mut(dk, bk * wide), a.scale);
                    for j in 0..bk {
                        store_row(&self.g.dk, b, hk, kv0 + j, dk.add(j * wide), a.dim);
                        store_row(&self.g.dv, b, hk, kv0 + j, dv.add(j * v_wide), a.v_dim);
                    }
                }
            }
            if q {
                let by = [a.scale; 64];
                for gb in 0..group * blocks {
                    let (gi, i0) = (gb / blocks, gb % blocks * lanes);
                    let (h, some) = (hk * group + gi, lanes.min(n - i0));
                    let block = dq.add(gb * lanes * a.dim);
                    store_transposed(&self.g.dq, b, h, qs.start + i0, some, a.dim, block, &by[..lanes], row);
                }
            }
        }
        Ok(())
    }

    /// Σ out·dout over one row.
    unsafe fn delta(&self, b: usize, h: usize, t: usize, x: *mut f32, y: *mut f32) -> f32 {
        let n = self.a.v_dim;
        // SAFETY: the rows lie within the arrays; `x` and `y` hold `n` floats.
        unsafe {
            let row = |from: &Heads, room: *mut f32| {
                if from.elem == Elem::F32 && from.strides[3] == 1 {
                    return std::slice::from_raw_parts(from.at(b, h, t).cast_const().cast::<f32>(), n);
                }
                from.load_row(b, h, t, room, n);
                std::slice::from_raw_parts(room.cast_const(), n)
            };
            rows::dot(row(&self.out, x), row(&self.dout, y))
        }
    }
}
