//! Attention over blocks of queries in lanes: packs what a task needs and runs the steps of `step`.

use super::levels::{Stepper, stepper};
use super::step::{KEYS, Step};
use super::{Attention, Elem, Heads, LogSumExp, Work, pack_by_row, round, rows, store_row};
use crate::cpu::lib::gemm::kernel::Pair;
use crate::cpu::lib::gemm::pack::{Matrix, Unit, pack_matrix};
use crate::cpu::lib::simd;
use crate::memory::OutOfMemory;

/// Floats of K and V together that a task works on before it takes the next keys: they stay in the L2 cache while all
/// its queries pass.
const CHUNK: usize = 64 << 10;

/// Keys of a chunk, a multiple of the step's.
fn chunk(a: &Attention) -> usize {
    (CHUNK / (a.dim + a.v_dim).max(1) / KEYS * KEYS).max(KEYS)
}

/// Queries of a block.
pub(super) fn queries() -> usize {
    stepper().queries
}

/// Work memory of a task of `n` queries, floats.
pub(super) fn floats(a: &Attention, n: usize) -> usize {
    let lanes = queries();
    let n = n.next_multiple_of(lanes);
    let keys = chunk(a).min(a.kv_len);
    round(n * a.dim)
        + round(n * a.v_dim)
        + 2 * round(n)
        + 2 * round(KEYS * lanes)
        + round(keys * a.dim)
        + round(keys * a.v_dim)
        + round(lanes * a.v_dim.next_multiple_of(8))
}

/// Rows of f32: where they begin and the distance between them.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) p: *const f32,
    pub(super) step: isize,
}

impl Default for Rows {
    /// None.
    fn default() -> Rows {
        Rows { p: std::ptr::null(), step: 0 }
    }
}

/// Rows `t..t+n` of one head, each `wide` numbers long, zeros at the end: in place if they are dense f32, else copied to
/// `room`.
///
/// # Safety
/// The rows lie within `x`; the room has space for them.
pub(super) unsafe fn rows_of(
    x: &Heads,
    b: usize,
    h: usize,
    t: usize,
    n: usize,
    dim: usize,
    wide: usize,
    room: *mut f32,
) -> Rows {
    if x.elem == Elem::F32 && x.strides[3] == 1 && x.strides[2] >= 0 && wide == dim {
        return Rows { p: x.at(b, h, t).cast_const().cast(), step: x.strides[2] };
    }
    for i in 0..n {
        let to = room.wrapping_add(i * wide);
        // SAFETY: the caller's rows and room.
        unsafe {
            if x.elem == Elem::F32 && x.strides[3] == 1 {
                simd::copy_short(x.at(b, h, t + i).cast_const().cast(), to, dim);
            } else {
                x.load_row(b, h, t + i, to, dim);
            }
            to.add(dim).write_bytes(0, wide - dim);
        }
    }
    Rows { p: room, step: wide as isize }
}

/// Rows `t..t+n` of one bf16 head as pairs of neighbours, the last one filled up with 0: in place if they lie so, else
/// copied to `room`. Distances count pairs.
///
/// # Safety
/// As [`rows_of`].
pub(super) unsafe fn pair_rows_of(
    x: &Heads,
    b: usize,
    h: usize,
    t: usize,
    n: usize,
    dim: usize,
    room: *mut f32,
) -> Rows {
    if x.strides[3] == 1 && x.strides[2] % 2 == 0 && dim.is_multiple_of(2) {
        return Rows { p: x.at(b, h, t).cast_const().cast(), step: x.strides[2] / 2 };
    }
    let units = dim.div_ceil(2);
    let step = x.strides[3] * 2;
    for i in 0..n {
        let row = x.at(b, h, t + i);
        for u in 0..units {
            // SAFETY: the caller's rows and room; the second element is read only if it exists.
            unsafe {
                let pair = Pair::read(x.elem, row.wrapping_offset(2 * u as isize * step), step, 2.min(dim - 2 * u));
                *room.cast::<Pair>().add(i * units + u) = pair;
            }
        }
    }
    Rows { p: room, step: units as isize }
}

/// Rows `t..t+n` of one bf16 head, each `wide` units long, as pairs of an element and the one in the next row, copied to
/// `room`; 0 where there is none.
///
/// # Safety
/// As [`rows_of`].
pub(super) unsafe fn row_pairs_of(
    x: &Heads,
    b: usize,
    h: usize,
    t: usize,
    n: usize,
    dim: usize,
    wide: usize,
    room: *mut f32,
) -> Rows {
    // SAFETY: the caller's contract.
    unsafe { pack_matrix::<Pair>(&x.features_matrix(b, h, t), dim, n, wide, room.cast()) };
    Rows { p: room, step: wide as isize }
}

/// Queries `q0..q0+n` of one head; `q0` is a multiple of a block's queries.
///
/// # Safety
/// Arrays cover live memory; the rows of the outputs are this task's.
pub(super) unsafe fn forward_block(
    a: &Attention,
    out: &Heads,
    lse: Option<LogSumExp>,
    b: usize,
    h: usize,
    q0: usize,
    n: usize,
) -> Result<(), OutOfMemory> {
    let Stepper { queries: lanes, mut run, pairs, .. } = *stepper();
    let is_bf16 = [&a.q, &a.k, &a.v].iter().all(|x| x.elem == Elem::BF16);
    let pairs = pairs.filter(|_| is_bf16);
    if let Some(step) = pairs {
        run = step;
    }
    // Units of 4 bytes in a row of queries or keys.
    let units = if pairs.is_some() { a.dim.div_ceil(2) } else { a.dim };
    let vector = lanes / 2;
    let hk = h / a.group();
    let blocks = n.div_ceil(lanes);
    let scale = a.scale * std::f32::consts::LOG2_E;
    let keys = chunk(a).min(a.kv_len);
    let mut w = Work::new(floats(a, n))?;
    let q = w.take(blocks * lanes * a.dim);
    let o = w.take(blocks * lanes * a.v_dim);
    let (m, l) = (w.take(blocks * lanes), w.take(blocks * lanes));
    let s = w.take(KEYS * lanes);
    let bias = w.take(KEYS * lanes);
    let k_room = w.take(keys * a.dim);
    let v_room = w.take(keys * a.v_dim);
    let row = w.take(lanes * a.v_dim.next_multiple_of(8));
    // SAFETY: all blocks lie within the work memory laid out above and the caller's arrays.
    unsafe {
        std::slice::from_raw_parts_mut(o, blocks * lanes * a.v_dim).fill(0.0);
        std::slice::from_raw_parts_mut(m, blocks * lanes).fill(f32::NEG_INFINITY);
        std::slice::from_raw_parts_mut(l, blocks * lanes).fill(0.0);
        let end = a.visible(q0 + n - 1, 0, a.kv_len);
        for c0 in (0..end).step_by(keys.max(1)) {
            let some = keys.min(end - c0);
            let (k, v) = if pairs.is_some() {
                let v = row_pairs_of(&a.v, b, hk, c0, some, a.v_dim, a.v_dim, v_room);
                (pair_rows_of(&a.k, b, hk, c0, some, a.dim, k_room), v)
            } else {
                let k = rows_of(&a.k, b, hk, c0, some, a.dim, a.dim, k_room);
                (k, rows_of(&a.v, b, hk, c0, some, a.v_dim, a.v_dim, v_room))
            };
            // Rows of V that one row of units stands for.
            let per = if pairs.is_some() { 2 } else { 1 };
            for block in 0..blocks {
                let i0 = q0 + block * lanes;
                let here = lanes.min(q0 + n - i0);
                if c0 == 0 {
                    let to = q.add(block * lanes * units);
                    if pairs.is_some() {
                        pack_matrix::<Pair>(&a.q.rows_matrix(b, h, i0), here, a.dim, lanes, to.cast());
                    } else {
                        load_transposed(&a.q, b, h, i0, here, a.dim, scale, to);
                    }
                    a.q.fetch(b, h, i0 + lanes, lanes, q0 + n, a.dim);
                }
                if c0 + some == end {
                    out.fetch_to_write(b, h, i0, lanes, q0 + n, a.v_dim);
                }
                // The last query sees the most.
                let seen = a.visible(i0 + here - 1, c0, some);
                for j in (0..seen).step_by(KEYS) {
                    let j0 = c0 + j;
                    let count = KEYS.min(seen - j);
                    if a.bias.is_some() {
                        pack_bias(a, b, h, i0, here, j0, count, lanes, bias);
                    }
                    run(&Step {
                        k: k.p.wrapping_offset(j as isize * k.step).cast(),
                        k_row: k.step,
                        dim: units,
                        v: v.p.wrapping_offset((j / per) as isize * v.step).cast(),
                        v_row: v.step,
                        v_dim: a.v_dim,
                        q: q.wrapping_add(block * lanes * units).cast_const().cast(),
                        o: o.wrapping_add(block * lanes * a.v_dim),
                        m: m.wrapping_add(block * lanes),
                        l: l.wrapping_add(block * lanes),
                        s,
                        bias: if a.bias.is_some() { bias.cast_const() } else { std::ptr::null() },
                        keys: count,
                        vectors: here.div_ceil(vector),
                        first: if a.causal { j0 as isize - i0 as isize } else { -(KEYS as isize) },
                        scale,
                    });
                }
            }
        }
        for block in 0..blocks {
            let i0 = block * lanes;
            let here = lanes.min(n - i0);
            let l = std::slice::from_raw_parts_mut(l.add(i0), lanes);
            let m = std::slice::from_raw_parts_mut(m.add(i0), lanes);
            rows::finish(m, l);
            if let Some(lse) = lse {
                m[..here].iter().enumerate().for_each(|(i, &v)| *lse.at(b, h, q0 + i0 + i) = v);
            }
            store_transposed(out, b, h, q0 + i0, here, a.v_dim, o.add(i0 * a.v_dim), l, row);
        }
    }
    Ok(())
}

/// Reads `n` rows from row `t` on, times `scale`, as a block of queries in lanes; unused lanes are 0.
///
/// # Safety
/// The rows lie within `x`; `to` has room for `dim` rows of lanes.
pub(super) unsafe fn load_transposed(
    x: &Heads,
    b: usize,
    h: usize,
    t: usize,
    n: usize,
    dim: usize,
    scale: f32,
    to: *mut f32,
) {
    let Stepper { queries: lanes, transpose, .. } = *stepper();
    // SAFETY: the caller's contract.
    unsafe {
        if x.elem == Elem::F32 && x.strides[3] == 1 && n.is_multiple_of(lanes / 2) && dim.is_multiple_of(lanes / 2) {
            if n < lanes {
                to.write_bytes(0, lanes * dim);
            }
            let by = [scale; 16];
            return transpose(x.at(b, h, t).cast(), x.strides[2], n, dim, by.as_ptr(), 0, to, lanes as isize);
        }
        pack_by_row(x, b, h, t, n, dim, lanes, to);
        rows::multiply(std::slice::from_raw_parts_mut(to, lanes * dim), scale);
    }
}

/// Writes `n` rows from row `t` on of a block of queries in lanes, `dim` rows, each lane times its factor; `row` is room
/// for the rows.
///
/// # Safety
/// The rows lie within `x`; the block and the room are live.
pub(super) unsafe fn store_transposed(
    x: &Heads,
    b: usize,
    h: usize,
    t: usize,
    n: usize,
    dim: usize,
    block: *mut f32,
    by: &[f32],
    row: *mut f32,
) {
    let Stepper { queries: lanes, transpose, .. } = *stepper();
    let step = lanes as isize;
    // SAFETY: the caller's contract.
    unsafe {
        if x.elem == Elem::F32 && x.strides[3] == 1 && n.is_multiple_of(lanes / 2) && dim.is_multiple_of(lanes / 2) {
            return transpose(block, step, dim, n, by.as_ptr(), 1, x.at(b, h, t).cast(), x.strides[2]);
        }
        rows::multiply_rows(std::slice::from_raw_parts_mut(block, lanes * dim), by);
        // A packed panel as wide as a row is the transpose.
        let width = dim.next_multiple_of(8);
        pack_matrix(&Matrix { p: block.cast(), elem: Elem::F32, lane: step * 4, k: 4 }, dim, n, width, row);
        for i in 0..n {
            store_row(x, b, h, t + i, row.add(i * width), dim);
        }
    }
}

/// The bias of `n` queries from `i0` on for `keys` keys from `j0` on, as rows of lanes; unused lanes are finite or -inf.
///
/// # Safety
/// Queries and keys lie within the bias; `to` has room for all rows.
pub(super) unsafe fn pack_bias(
    a: &Attention,
    b: usize,
    h: usize,
    i0: usize,
    n: usize,
    j0: usize,
    keys: usize,
    lanes: usize,
    to: *mut f32,
) {
    let Some(x) = &a.bias else { return };
    let size = x.elem.size() as isize;
    let p = x.at(b, h, i0).wrapping_offset(j0 as isize * x.strides[3] * size);
    // SAFETY: the caller's queries and keys lie within the bias; `to` has room for all rows.
    unsafe {
        if x.elem != Elem::Bool {
            let m = Matrix { p, elem: x.elem, lane: x.strides[2] * size, k: x.strides[3] * size };
            return pack_matrix(&m, n, keys, lanes, to);
        }
        for j in 0..keys {
            let row = std::slice::from_raw_parts_mut(to.add(j * lanes), lanes);
            for (i, x_to) in row.iter_mut().enumerate() {
                let at = i.min(n - 1) as isize * x.strides[2] + j as isize * x.strides[3];
                *x_to = if *p.wrapping_offset(at) != 0 { 0.0 } else { f32::NEG_INFINITY };
            }
        }
    }
}
