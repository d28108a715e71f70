//! Attention of few queries, keys in lanes: a vector of queries would be mostly empty.

use super::{Attention, Elem, Heads, LogSumExp, Work, pack_by_row, round, rows, store_row};
use crate::cpu::lib::gemm::kernel::{Kernel, f32_kernel};
use crate::cpu::lib::gemm::pack::{Matrix, pack_matrix};
use crate::cpu::lib::gemm::{Panels, block};
use crate::memory::OutOfMemory;

/// Keys of a block, a multiple of every kernel's column count.
const KV_BLOCK: usize = 128;

impl Attention {
    /// The bias of query `i` over keys `kv0..`, as f32; false means -inf.
    unsafe fn bias_row(&self, b: usize, h: usize, i: usize, kv0: usize, out: &mut [f32]) {
        let Some(bias) = &self.bias else { return };
        let from = kv0 as isize * bias.strides[3] * bias.elem.size() as isize;
        let bias = Heads { ptr: bias.ptr.wrapping_offset(from), ..*bias };
        // SAFETY: the caller's keys lie within the bias.
        unsafe {
            if bias.elem != Elem::Bool {
                return bias.load_row(b, h, i, out.as_mut_ptr(), out.len());
            }
            let p = bias.at(b, h, i);
            for (j, o) in out.iter_mut().enumerate() {
                *o = if *p.wrapping_offset(j as isize * bias.strides[3]) != 0 { 0.0 } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// A block of scores, row stride `KV_BLOCK`, as the left operand of a product over its keys.
///
/// 512-bit kernels wait for numbers read from many rows: they get a packed copy at `copy`, others read it in place.
unsafe fn by_row(kn: &Kernel<f32, f32>, s: *mut f32, rows: usize, keys: usize, copy: *mut f32) -> Panels<f32> {
    let panels = |a: *mut f32, packed| Panels {
        a: a.cast_const(),
        packed,
        a_r: if packed { 1 } else { KV_BLOCK as isize },
        a_k: 1,
        b: std::ptr::null(),
        b_len: 0,
        k: keys,
    };
    if !kn.is_wide() {
        return panels(s, false);
    }
    let m = Matrix { p: s.cast_const().cast(), elem: Elem::F32, lane: KV_BLOCK as isize * 4, k: 4 };
    // SAFETY: the caller's block, and room for its panels.
    unsafe { pack_matrix(&m, rows, keys, kn.mr, copy) };
    panels(copy, true)
}

/// Units of a packed block of `lanes` × `k`.
fn packed(lanes: usize, k: usize, width: usize) -> usize {
    round(lanes.next_multiple_of(width) * k)
}

/// Work memory of a task of `n` query rows, floats.
pub(super) fn floats(a: &Attention, n: usize) -> usize {
    let kn = f32_kernel();
    packed(n, a.dim, kn.mr)
        + round(n * a.v_dim.next_multiple_of(kn.nr))
        + round(n * KV_BLOCK)
        + packed(n, KV_BLOCK, kn.mr)
        + packed(KV_BLOCK, a.dim, kn.nr)
        + packed(a.v_dim, KV_BLOCK, kn.nr)
        + 2 * round(n)
        + KV_BLOCK
}

/// Queries `q0..q0+n` of one head.
///
/// # Safety
/// Arrays cover live memory; the rows of the outputs are this task's.
pub(super) unsafe fn forward_rows(
    a: &Attention,
    out: &Heads,
    lse: Option<LogSumExp>,
    b: usize,
    h: usize,
    q0: usize,
    n: usize,
) -> Result<(), OutOfMemory> {
    let kn = f32_kernel();
    let hk = h / a.group();
    let ldo = a.v_dim.next_multiple_of(kn.nr);
    let mut w = Work::new(floats(a, n))?;
    let qp = w.take(packed(n, a.dim, kn.mr));
    let o = w.take(n * ldo);
    let s = w.take(n * KV_BLOCK);
    let copy = w.take(packed(n, KV_BLOCK, kn.mr));
    let kp = w.take(packed(KV_BLOCK, a.dim, kn.nr));
    let vp = w.take(packed(a.v_dim, KV_BLOCK, kn.nr));
    let (m, l) = (w.take(n), w.take(n));
    let bias = w.take(KV_BLOCK);
    let kv_end = a.visible(q0 + n - 1, 0, a.kv_len);
    // SAFETY: all blocks lie within the work memory laid out above and the caller's arrays.
    unsafe {
        pack_by_row(&a.q, b, h, q0, n, a.dim, kn.mr, qp);
        o.write_bytes(0, n * ldo);
        let m = std::slice::from_raw_parts_mut(m, n);
        let l = std::slice::from_raw_parts_mut(l, n);
        m.fill(f32::NEG_INFINITY);
        l.fill(0.0);
        for kv0 in (0..kv_end).step_by(KV_BLOCK) {
            let bk = KV_BLOCK.min(a.kv_len - kv0);
            pack_by_row(&a.k, b, hk, kv0, bk, a.dim, kn.nr, kp);
            pack_matrix(&a.v.features_matrix(b, hk, kv0), a.v_dim, bk, kn.nr, vp);
            // The keys that any query sees: the last one sees the most.
            let cols = a.visible(q0 + n - 1, kv0, bk);
            let scores =
                Panels { a: qp.cast_const(), packed: true, a_r: 1, a_k: 0, b: kp.cast_const(), b_len: a.dim, k: a.dim };
            block(kn, &scores, n, cols, s, KV_BLOCK, false);
            for i in 0..n {
                let seen = a.visible(q0 + i, kv0, cols);
                // Whole chunks; rows have room for them.
                let (p, long) = (s.add(i * KV_BLOCK), seen.next_multiple_of(rows::L));
                p.add(long).write_bytes(0, cols - long.min(cols));
                let row = std::slice::from_raw_parts_mut(p, long);
                let bias_row = a.bias.map(|_| {
                    a.bias_row(b, h, q0 + i, kv0, std::slice::from_raw_parts_mut(bias, seen));
                    std::slice::from_raw_parts(bias, long)
                });
                let top = rows::scale_max(row, seen, a.scale, bias_row);
                let new = if top > m[i] || top != top { top } else { m[i] };
                if new == f32::NEG_INFINITY {
                    row.fill(0.0);
                    continue;
                }
                let sum = rows::exp_sum(row, new);
                if m[i] == f32::NEG_INFINITY {
                    l[i] = sum;
                } else {
                    let shrink = (m[i] - new).exp();
                    l[i] = l[i] * shrink + sum;
                    if shrink != 1.0 {
                        std::slice::from_raw_parts_mut(o.add(i * ldo), ldo).iter_mut().for_each(|x| *x *= shrink);
                    }
                }
                m[i] = new;
            }
            let weighted = Panels { b: vp.cast_const(), b_len: bk, ..by_row(kn, s, n, cols, copy) };
            block(kn, &weighted, n, a.v_dim, o, ldo, true);
        }
        for i in 0..n {
            let row = std::slice::from_raw_parts_mut(o.add(i * ldo), a.v_dim);
            // A row that saw nothing keeps its zeros.
            let inv = if l[i] == 0.0 { 0.0 } else { 1.0 / l[i] };
            row.iter_mut().for_each(|x| *x *= inv);
            store_row(out, b, h, q0 + i, row.as_ptr(), a.v_dim);
            if let Some(lse) = lse {
                *lse.at(b, h, q0 + i) = if l[i] == 0.0 { 0.0 } else { m[i] + l[i].ln() };
            }
        }
    }
    Ok(())
}
