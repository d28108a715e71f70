//! Scaled dot-product attention in blocks: softmax(scale·Q·Kᵀ + bias)·V and its gradients, without
//! ever holding the scores of more than one block.
//!
//! Semantics are those of PyTorch's CPU flash attention: causal masks are aligned at the top left,
//! a row whose every score is masked gives 0 (and log-sum-exp 0), and NaN spreads within its row.

mod backward;
mod few;
mod forward;
mod gradient_step;
mod lane;
mod levels;
mod rows;
mod step;
#[cfg(test)]
mod tests;
mod tile;

use super::elem::Elem;
use super::gemm::kernel::prefetch_write;
use super::gemm::pack::{Matrix, pack_matrix};
use super::simd;
use super::view::LibError;
use crate::cpu::arena::{self, Piece};
use crate::cpu::pool;
use crate::memory::OutOfMemory;

pub use backward::{Gradients, backward};

/// A [batch, heads, length, features] array; strides in elements, in that order.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub ptr: *mut u8,
    pub elem: Elem,
    pub strides: [isize; 4],
}
// SAFETY: an address and a layout; the kernels' contracts govern access.
unsafe impl Send for Heads {}
// SAFETY: as above.
unsafe impl Sync for Heads {}

impl Heads {
    fn at(&self, b: usize, h: usize, t: usize) -> *mut u8 {
        let s = &self.strides;
        self.ptr
            .wrapping_offset((b as isize * s[0] + h as isize * s[1] + t as isize * s[2]) * self.elem.size() as isize)
    }

    /// Rows of one head from row `t` on, as a packing source whose lanes are the rows.
    fn rows_matrix(&self, b: usize, h: usize, t: usize) -> Matrix {
        let size = self.elem.size() as isize;
        Matrix { p: self.at(b, h, t), elem: self.elem, lane: self.strides[2] * size, k: self.strides[3] * size }
    }

    /// The same with the features as lanes.
    fn features_matrix(&self, b: usize, h: usize, t: usize) -> Matrix {
        let m = self.rows_matrix(b, h, t);
        Matrix { lane: m.k, k: m.lane, ..m }
    }

    /// Asks for rows `t..t+n`, as far as they are below `end`, of `dim` features: they are read soon.
    fn fetch(&self, b: usize, h: usize, t: usize, n: usize, end: usize, dim: usize) {
        if self.strides[3] == 1 {
            (t..(t + n).min(end)).for_each(|t| simd::prefetch(self.at(b, h, t), dim * self.elem.size()));
        }
    }

    /// As `fetch`, for rows that are written soon.
    fn fetch_to_write(&self, b: usize, h: usize, t: usize, n: usize, end: usize, dim: usize) {
        if self.strides[3] == 1 {
            for t in t..(t + n).min(end) {
                let row = self.at(b, h, t);
                (0..dim * self.elem.size()).step_by(64).for_each(|at| prefetch_write(row.wrapping_add(at)));
            }
        }
    }

    /// Reads row `t`, `n` features, as f32.
    unsafe fn load_row(&self, b: usize, h: usize, t: usize, to: *mut f32, n: usize) {
        let p = self.at(b, h, t);
        let step = self.strides[3];
        // SAFETY: the row lies within the array; the caller's room.
        unsafe {
            if step == 1 {
                return simd::load_f32(self.elem, p, to, n);
            }
            for i in 0..n {
                let at = i as isize * step * self.elem.size() as isize;
                *to.add(i) = self.elem.load_f64(p.wrapping_offset(at)) as f32;
            }
        }
    }
}

/// Attention over `batch × heads` independent pairs of sequences.
///
/// Q [batch, heads, q_len, dim], K [batch, kv_heads, kv_len, dim], V [batch, kv_heads, kv_len,
/// v_dim], of f32, bf16 or f16 each. Query head h uses K and V of head h / (heads / kv_heads).
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub dim: usize,
    pub v_dim: usize,
    pub q: Heads,
    pub k: Heads,
    pub v: Heads,
    /// Added to the scaled scores, [batch, heads, q_len, kv_len] by strides (0 broadcasts). A float
    /// type is added; bool keeps where true.
    pub bias: Option<Heads>,
    /// Query i sees keys 0..=i only.
    pub causal: bool,
    pub scale: f32,
}

/// Greatest number of queries that `few` is faster for.
const FEW: usize = 6;

impl Attention {
    fn check(&self) -> Result<(), LibError> {
        let float = |e: Elem| matches!(e, Elem::F32 | Elem::BF16 | Elem::F16);
        let ok = float(self.q.elem)
            && float(self.k.elem)
            && float(self.v.elem)
            && self.bias.is_none_or(|b| float(b.elem) || b.elem == Elem::Bool)
            && self.kv_heads > 0
            && self.heads.is_multiple_of(self.kv_heads);
        if ok { Ok(()) } else { Err(LibError::shape("attention", format!("{self:?}"))) }
    }

    /// Query heads that share one head of K and V.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Estimated ns of `products` score-sized products on one thread.
    fn cost(&self, products: usize) -> u64 {
        let f = 2.0
            * (self.batch * self.heads * self.q_len) as f64
            * (self.kv_len * self.dim.max(self.v_dim)) as f64
            * products as f64;
        (f / 90.0) as u64
    }

    /// Keys `kv0..kv0+n` that query `i` may see: how many of them, from the first on.
    fn visible(&self, i: usize, kv0: usize, n: usize) -> usize {
        if self.causal { (i + 1).saturating_sub(kv0).min(n) } else { n }
    }
}

/// f32 work memory, cut into pieces.
struct Work {
    _piece: Piece,
    next: *mut f32,
    end: *mut f32,
}

impl Work {
    fn new(floats: usize) -> Result<Work, OutOfMemory> {
        let piece = arena::take((floats + 64) * 4)?;
        let next = piece.as_ptr().cast::<f32>();
        Ok(Work { next, end: next.wrapping_add(floats), _piece: piece })
    }
    /// The next `n` floats (rounded up to whole cache lines).
    fn take(&mut self, n: usize) -> *mut f32 {
        let p = self.next;
        self.next = p.wrapping_add(round(n));
        debug_assert!(self.next <= self.end, "more work memory than planned");
        p
    }
}

fn round(n: usize) -> usize {
    n.next_multiple_of(16)
}

/// Packs `n` rows of one head, from row `t`, as panels whose lanes are the rows (k = features).
unsafe fn pack_by_row(x: &Heads, b: usize, h: usize, t: usize, n: usize, dim: usize, width: usize, dst: *mut f32) {
    // SAFETY: the caller's rows and buffer.
    unsafe { pack_matrix(&x.rows_matrix(b, h, t), n, dim, width, dst) }
}

/// Writes a row of f32 to row `t` of `x`.
unsafe fn store_row(x: &Heads, b: usize, h: usize, t: usize, src: *const f32, n: usize) {
    let p = x.at(b, h, t);
    // SAFETY: the row lies within `x`.
    unsafe {
        if x.strides[3] == 1 {
            simd::store_f32(x.elem, src, p, n);
        } else {
            for i in 0..n {
                x.elem.store_f64(
                    p.wrapping_offset(i as isize * x.strides[3] * x.elem.size() as isize),
                    *src.add(i) as f64,
                );
            }
        }
    }
}

/// Log-sum-exp of each query's scores: [batch, heads, q_len] f32, with strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct LogSumExp {
    pub ptr: *mut f32,
    pub strides: [isize; 3],
}

impl LogSumExp {
    /// A dense array, for the sizes of `a`.
    pub fn dense(ptr: *mut f32, a: &Attention) -> LogSumExp {
        LogSumExp { ptr, strides: [(a.heads * a.q_len) as isize, a.q_len as isize, 1] }
    }

    fn at(&self, b: usize, h: usize, t: usize) -> *mut f32 {
        let [sb, sh, st] = self.strides;
        self.ptr.wrapping_offset(b as isize * sb + h as isize * sh + t as isize * st)
    }
}
// SAFETY: tasks write disjoint rows.
unsafe impl Send for LogSumExp {}
// SAFETY: as above.
unsafe impl Sync for LogSumExp {}

/// `out` [batch, heads, q_len, v_dim] (any strides and float type) = attention; `lse` optional.
///
/// Errors on element types other than f32, bf16, f16, on heads that are no multiple of kv_heads,
/// and when out of memory.
///
/// # Safety
/// Arrays cover live memory; outputs overlap nothing.
pub unsafe fn forward(a: &Attention, out: &Heads, lse: Option<LogSumExp>) -> Result<(), LibError> {
    a.check()?;
    if !matches!(out.elem, Elem::F32 | Elem::BF16 | Elem::F16) {
        return Err(LibError::shape("attention", format!("output {:?}", out.elem)));
    }
    let pairs = a.batch * a.heads;
    if pairs * a.q_len == 0 {
        return Ok(());
    }
    let rows = task_rows(a);
    let per = a.q_len.div_ceil(rows);
    pool::try_for(pairs * per, a.cost(2), &|t| {
        // The last rows of a causal head see the most keys: start with them.
        let (pair, r) = (t / per, per - 1 - t % per);
        let q0 = r * rows;
        let run = if is_few(a) { few::forward_rows } else { forward::forward_block };
        // SAFETY: tasks own disjoint rows of the outputs.
        unsafe { run(a, out, lse, pair / a.heads, pair % a.heads, q0, rows.min(a.q_len - q0)) }
    })?;
    Ok(())
}

/// So few queries that they would leave most of a vector's lanes empty.
fn is_few(a: &Attention) -> bool {
    a.q_len <= FEW
}

/// Query rows of a task: what of K and V is not read where it lies is packed once for all of them.
fn task_rows(a: &Attention) -> usize {
    let block = if is_few(a) { FEW } else { forward::queries() };
    let spread = (a.q_len * a.batch * a.heads).div_ceil(4 * pool::num_threads());
    spread.clamp(block, 384).div_ceil(block) * block
}

/// Work memory of [`forward`] or [`backward`] on all threads, bytes. Only sizes count.
pub(crate) fn work_bytes(a: &Attention, gradients: bool) -> usize {
    let heads = a.batch * if gradients { a.kv_heads } else { a.heads };
    if a.kv_heads == 0 || heads * a.q_len == 0 {
        return 0;
    }
    let rows = task_rows(a);
    let (floats, tasks) = if gradients {
        let split = heads < pool::num_threads() && a.kv_len > backward::SPLIT;
        (backward::floats(a, a.q_len, true), if split { usize::MAX } else { heads })
    } else {
        let floats = if is_few(a) { few::floats } else { forward::floats };
        (floats(a, rows.min(a.q_len)), heads * a.q_len.div_ceil(rows))
    };
    ((floats + 64) * 4).next_multiple_of(64) * tasks.min(pool::num_threads())
}
