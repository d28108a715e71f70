//! Gradients of attention, block by block, from the output and its log-sum-exp.

use super::{
    Attention, Elem, Heads, KV_BLOCK, LibError, LogSumExp, Work, by_row, pack_by_feature, pack_by_row, packed, q_block,
    round, rows, store_row, tasks,
};
use crate::cpu::lib::gemm::kernel::f32_kernel;
use crate::cpu::lib::gemm::{Panels, block};
use crate::cpu::lib::simd;
use crate::cpu::pool;
use crate::memory::OutOfMemory;

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
    if pairs >= pool::num_threads() || a.kv_len <= KV_BLOCK {
        // Enough heads: each is one task, and the scores are computed once.
        return tasks(pairs, a.cost(5), &|t| {
            // SAFETY: heads are disjoint.
            unsafe { p.head(t / a.kv_heads, t % a.kv_heads, 0..a.q_len, 0..a.kv_len, true, true) }
        });
    }
    // Few heads: one pass divides the keys (for dk, dv), the other the queries (for dq).
    let cut = |len: usize| len.div_ceil(2 * pool::num_threads()).next_multiple_of(KV_BLOCK);
    let (kc, qc) = (cut(a.kv_len), cut(a.q_len));
    let (kn, qn) = (a.kv_len.div_ceil(kc), a.q_len.div_ceil(qc));
    tasks(pairs * (kn + qn), a.cost(7), &|t| {
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
    })
}

/// Work memory of one head with `n` queries, floats; `q`: with their gradients.
pub(super) fn floats(a: &Attention, n: usize, q: bool) -> usize {
    let kn = f32_kernel();
    let (bq, nr, mr) = (q_block(kn), kn.nr, kn.mr);
    let (ldq, ldv) = (a.dim.next_multiple_of(nr), a.v_dim.next_multiple_of(nr));
    let group = a.group();
    let rows = packed(bq, a.dim, mr) + packed(bq, a.v_dim, mr);
    let per_block = rows + packed(a.dim, bq, nr) + packed(a.v_dim, bq, nr);
    group * n.div_ceil(bq) * per_block
        + round(group * n)
        + round(if q { group * n * ldq } else { 0 })
        + 2 * round(bq * KV_BLOCK)
        + packed(bq, KV_BLOCK, mr)
        + packed(KV_BLOCK, a.dim, nr)
        + packed(KV_BLOCK, a.v_dim, nr)
        + packed(a.dim, KV_BLOCK, nr)
        + round(KV_BLOCK * ldq)
        + round(KV_BLOCK * ldv)
        + KV_BLOCK
        + 2 * round(a.v_dim)
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
        qs: std::ops::Range<usize>,
        ks: std::ops::Range<usize>,
        kv: bool,
        q: bool,
    ) -> Result<(), OutOfMemory> {
        let a = &self.a;
        let kn = f32_kernel();
        let (bq, nr, mr) = (q_block(kn), kn.nr, kn.mr);
        let (group, n) = (a.group(), qs.len());
        let (ldq, ldv) = (a.dim.next_multiple_of(nr), a.v_dim.next_multiple_of(nr));
        let blocks = n.div_ceil(bq);
        // Query-side blocks, packed once for all keys: Q and dO as rows, Q and dO as columns.
        let (q_row, o_row) = (packed(bq, a.dim, mr), packed(bq, a.v_dim, mr));
        let (q_col, o_col) = (packed(a.dim, bq, nr), packed(a.v_dim, bq, nr));
        let per_block = q_row + o_row + q_col + o_col;
        let mut w = Work::new(floats(a, n, q))?;
        let qside = w.take(group * blocks * per_block);
        let delta = w.take(group * n);
        let dq = w.take(if q { group * n * ldq } else { 0 });
        let (s, d) = (w.take(bq * KV_BLOCK), w.take(bq * KV_BLOCK));
        let copy = w.take(packed(bq, KV_BLOCK, mr));
        let k_row = w.take(packed(KV_BLOCK, a.dim, nr));
        let v_row = w.take(packed(KV_BLOCK, a.v_dim, nr));
        let k_col = w.take(packed(a.dim, KV_BLOCK, nr));
        let (dk, dv) = (w.take(KV_BLOCK * ldq), w.take(KV_BLOCK * ldv));
        let bias = w.take(KV_BLOCK);
        let (r0, r1) = (w.take(a.v_dim), w.take(a.v_dim));
        // SAFETY: all blocks lie within the work memory laid out above and the caller's arrays.
        unsafe {
            for gi in 0..group {
                let h = hk * group + gi;
                for blk in 0..blocks {
                    let i0 = blk * bq;
                    let rows = bq.min(n - i0);
                    let p = qside.add((gi * blocks + blk) * per_block);
                    pack_by_row(&a.q, b, h, qs.start + i0, rows, a.dim, mr, p);
                    pack_by_row(&self.dout, b, h, qs.start + i0, rows, a.v_dim, mr, p.add(q_row));
                    if kv {
                        pack_by_feature(&a.q, b, h, qs.start + i0, rows, a.dim, nr, p.add(q_row + o_row));
                        pack_by_feature(
                            &self.dout,
                            b,
                            h,
                            qs.start + i0,
                            rows,
                            a.v_dim,
                            nr,
                            p.add(q_row + o_row + q_col),
                        );
                    }
                }
                for i in 0..n {
                    *delta.add(gi * n + i) = self.delta(b, h, qs.start + i, r0, r1);
                }
            }
            if q {
                dq.write_bytes(0, group * n * ldq);
            }
            for kv0 in ks.clone().step_by(KV_BLOCK) {
                let bk = KV_BLOCK.min(ks.end - kv0);
                pack_by_row(&a.k, b, hk, kv0, bk, a.dim, nr, k_row);
                pack_by_row(&a.v, b, hk, kv0, bk, a.v_dim, nr, v_row);
                if q {
                    pack_by_feature(&a.k, b, hk, kv0, bk, a.dim, nr, k_col);
                }
                if kv {
                    dk.write_bytes(0, KV_BLOCK * ldq);
                    dv.write_bytes(0, KV_BLOCK * ldv);
                }
                for gb in 0..group * blocks {
                    let (gi, i0) = (gb / blocks, gb % blocks * bq);
                    let h = hk * group + gi;
                    let rows = bq.min(n - i0);
                    // The keys that any of these queries sees: the last one sees the most.
                    let cols = a.visible(qs.start + i0 + rows - 1, kv0, bk);
                    if cols == 0 {
                        continue;
                    }
                    let p = qside.add(gb * per_block);
                    let row = |a: *mut f32, b: *mut f32, k| Panels {
                        a: a.cast_const(),
                        packed: true,
                        a_r: 1,
                        a_k: 0,
                        b: b.cast_const(),
                        b_len: k,
                        k,
                    };
                    // Where rows see more and more, a few at a time: what none of them sees is not computed.
                    let part = a.part(kn, qs.start + i0, kv0, cols, rows);
                    for p0 in (0..rows).step_by(part) {
                        let some = part.min(rows - p0);
                        let width = a.visible(qs.start + i0 + p0 + some - 1, kv0, cols);
                        let (s, d) = (s.add(p0 * KV_BLOCK), d.add(p0 * KV_BLOCK));
                        if width > 0 {
                            block(kn, &row(p.add(p0 * a.dim), k_row, a.dim), some, width, s, KV_BLOCK, false);
                            let o = p.add(q_row + p0 * a.v_dim);
                            block(kn, &row(o, v_row, a.v_dim), some, width, d, KV_BLOCK, false);
                        }
                        for r in 0..some {
                            let i = qs.start + i0 + p0 + r;
                            let seen = a.visible(i, kv0, width);
                            // Whole chunks; rows have room for them.
                            let long = seen.next_multiple_of(rows::L);
                            let (sr, dr) = (s.add(r * KV_BLOCK), d.add(r * KV_BLOCK));
                            sr.add(long).write_bytes(0, cols - long.min(cols));
                            dr.add(long).write_bytes(0, cols - long.min(cols));
                            let (sr, dr) =
                                (std::slice::from_raw_parts_mut(sr, long), std::slice::from_raw_parts_mut(dr, long));
                            let bias_row = a.bias.map(|_| {
                                a.bias_row(b, h, i, kv0, std::slice::from_raw_parts_mut(bias, seen));
                                std::slice::from_raw_parts(bias, long)
                            });
                            let lse = *self.lse.0.add((b * a.heads + h) * a.q_len + i);
                            let delta = *delta.add(gi * n + i0 + p0 + r);
                            rows::backward_row(sr, dr, seen, a.scale, bias_row, lse, delta);
                        }
                        if q && width > 0 {
                            let by_query =
                                Panels { b: k_col.cast_const(), b_len: bk, ..by_row(kn, d, some, width, copy) };
                            block(kn, &by_query, some, a.dim, dq.add((gi * n + i0 + p0) * ldq), ldq, true);
                        }
                    }
                    if kv {
                        // Keys that only the later queries see, a few at a time too.
                        let part = if part < rows { part } else { cols };
                        for j0 in (0..cols).step_by(part) {
                            let some = part.min(cols - j0);
                            // The first query that sees the first of these keys.
                            let r0 = if a.causal { (kv0 + j0).saturating_sub(qs.start + i0).min(rows) } else { 0 };
                            // Transposed reads of the score blocks: lanes are keys, k runs over queries.
                            let by_key = |x: *mut f32, y: *mut f32| Panels {
                                a: x.add(r0 * KV_BLOCK + j0).cast_const(),
                                packed: false,
                                a_r: 1,
                                a_k: KV_BLOCK as isize,
                                b: y.add(r0 * nr).cast_const(),
                                b_len: rows,
                                k: rows - r0,
                            };
                            let o = p.add(q_row + o_row + q_col);
                            block(kn, &by_key(s, o), some, a.v_dim, dv.add(j0 * ldv), ldv, true);
                            block(kn, &by_key(d, p.add(q_row + o_row)), some, a.dim, dk.add(j0 * ldq), ldq, true);
                        }
                    }
                }
                if kv {
                    for j in 0..bk {
                        store_row(&self.g.dk, b, hk, kv0 + j, dk.add(j * ldq), a.dim);
                        store_row(&self.g.dv, b, hk, kv0 + j, dv.add(j * ldv), a.v_dim);
                    }
                }
            }
            if q {
                for gi in 0..group {
                    for i in 0..n {
                        store_row(&self.g.dq, b, hk * group + gi, qs.start + i, dq.add((gi * n + i) * ldq), a.dim);
                    }
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
            for (src, dst) in [(&self.out, x), (&self.dout, y)] {
                if src.strides[3] == 1 {
                    simd::load_f32(src.elem, src.at(b, h, t), dst, n);
                } else {
                    for i in 0..n {
                        *dst.add(i) = src.elem.load_f64(
                            src.at(b, h, t).wrapping_offset(i as isize * src.strides[3] * src.elem.size() as isize),
                        ) as f32;
                    }
                }
            }
            rows::dot(std::slice::from_raw_parts(x, n), std::slice::from_raw_parts(y, n))
        }
    }
}
