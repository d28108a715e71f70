//! `dots`: every `dot_general` in its one form, operands `[batch.., m.., k..]` and `[batch.., k.., n..]`.
//!
//! ```text
//! %d = dot_general %x, %y {contract 0 with 1}   =>   %xt = transpose %x, [1, 0]
//!                                                    %yt = transpose %y, [1, 0]
//!                                                    %d = dot_general %xt, %yt {contract 1 with 0}
//! %t = transpose %d, [1, 0]                     =>   the dot computes %t: operands exchanged
//! ```
//! The transposes cost nothing: buffer assignment turns those that feed only contractions into strides. So "is the
//! operand transposed" is a question about strides alone, everywhere after this pass.
//!
//! Integer dots become a product and a sum (no device has integer matrix kernels; nothing about them is hot).
//!
//! Safety: dimension numbers are only renamed; exchanging the operands exchanges factors of products, which commute.
use super::rewriter::{Rewriter, live_order};
use super::simplify::Simplifier;
use crate::ir::{Attrs, Builder, Dims, DotDims, Graph, Inst, InstId, OpKind, ReduceKind, TensorType, TypeError, Value};

pub(super) fn run(graph: &Graph) -> Result<Graph, TypeError> {
    let mut r = Rewriter::new(graph);
    let users = graph.users();
    for id in live_order(graph) {
        let inst = graph.inst(id);
        let (OpKind::DotGeneral, Attrs::Dot(dims)) = (inst.kind, &inst.attrs) else {
            r.copy(inst);
            continue;
        };
        let (x, y) = (r.get(inst.operands[0]), r.get(inst.operands[1]));
        let ty = graph.ty(inst.result()).clone();
        r.b.loc = inst.loc;
        let swap = swapping_users(graph, inst, dims, &users[inst.first.0 as usize]);
        let canonical = Canonical::new(&mut r.b, x, y, dims);
        let new = if let Some(perm) = swap {
            let swapped = canonical.exchanged(&mut r.b);
            let d = swapped.emit(&mut r.b, &ty);
            // The inverse of the users' permutation: they cancel.
            Simplifier { b: &mut r.b }.transpose(d, &inverse(&perm))
        } else {
            canonical.emit(&mut r.b, &ty)
        };
        r.set(inst.result(), new);
    }
    r.finish()
}

/// Canonical operands and the number of dimensions of each kind.
struct Canonical {
    lhs: Value,
    rhs: Value,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
}

impl Canonical {
    fn new(b: &mut Builder, x: Value, y: Value, dims: &DotDims) -> Self {
        let free = |rank: usize, batch: &Dims, contract: &Dims| -> Dims {
            (0..rank as i64).filter(|d| !batch.contains(d) && !contract.contains(d)).collect()
        };
        let m = free(b.rank(x), &dims.lhs_batch, &dims.lhs_contract);
        let n = free(b.rank(y), &dims.rhs_batch, &dims.rhs_contract);
        let lhs_perm: Dims = dims.lhs_batch.iter().chain(&m).chain(&dims.lhs_contract).copied().collect();
        let rhs_perm: Dims = dims.rhs_batch.iter().chain(&dims.rhs_contract).chain(&n).copied().collect();
        let mut s = Simplifier { b };
        Canonical {
            lhs: s.transpose(x, &lhs_perm),
            rhs: s.transpose(y, &rhs_perm),
            batch: dims.lhs_batch.len(),
            m: m.len(),
            n: n.len(),
            k: dims.lhs_contract.len(),
        }
    }

    /// The product with the operands exchanged: its result is `[batch.., n.., m..]`.
    fn exchanged(self, b: &mut Builder) -> Self {
        let rotate = |first: usize, second: usize, batch: usize| -> Dims {
            let start = batch as i64;
            let (first, second) = (first as i64, second as i64);
            (0..start).chain(start + first..start + first + second).chain(start..start + first).collect()
        };
        let mut s = Simplifier { b };
        Canonical {
            lhs: s.transpose(self.rhs, &rotate(self.k, self.n, self.batch)),
            rhs: s.transpose(self.lhs, &rotate(self.m, self.k, self.batch)),
            batch: self.batch,
            m: self.n,
            n: self.m,
            k: self.k,
        }
    }

    fn emit(&self, b: &mut Builder, ty: &TensorType) -> Value {
        if !ty.dtype.is_float() || !b.dtype(self.lhs).is_float() {
            return self.emit_integer(b, ty);
        }
        let range = |from: usize, n: usize| -> Dims { (from as i64..(from + n) as i64).collect() };
        let dims = DotDims {
            lhs_batch: range(0, self.batch),
            rhs_batch: range(0, self.batch),
            lhs_contract: range(self.batch + self.m, self.k),
            rhs_contract: range(self.batch, self.k),
        };
        b.dot_general(self.lhs, self.rhs, dims, ty.dtype)
    }

    /// sum over k of lhs[batch.., m.., 1, k..] * rhs[batch.., 1, n.., k..].
    fn emit_integer(&self, b: &mut Builder, ty: &TensorType) -> Value {
        let start = self.batch;
        let rhs_perm: Dims = (0..start)
            .chain(start + self.k..start + self.k + self.n)
            .chain(start..start + self.k)
            .map(|d| d as i64)
            .collect();
        let mut s = Simplifier { b };
        let rhs = s.transpose(self.rhs, &rhs_perm);
        let (ld, rd) = (s.b.dims(self.lhs), s.b.dims(rhs));
        let full: Dims = ld[..start + self.m]
            .iter()
            .chain(&rd[start..start + self.n])
            .chain(&ld[start + self.m..])
            .copied()
            .collect();
        let lhs_map: Dims = (0..full.len() as i64)
            .filter(|&d| !(start + self.m..start + self.m + self.n).contains(&(d as usize)))
            .collect();
        let rhs_map: Dims =
            (0..full.len() as i64).filter(|&d| !(start..start + self.m).contains(&(d as usize))).collect();
        let x = s.broadcast(self.lhs, &full, &lhs_map);
        let y = s.broadcast(rhs, &full, &rhs_map);
        let (x, y) = (b.convert(x, ty.dtype), b.convert(y, ty.dtype));
        let product = b.mul(x, y);
        let k: Dims = (full.len() as i64 - self.k as i64..full.len() as i64).collect();
        b.reduce(ReduceKind::Sum, product, &k)
    }
}

/// The permutation, if every user of the dot is a transpose that exchanges its m and n dimensions.
fn swapping_users(graph: &Graph, inst: &Inst, dims: &DotDims, users: &[InstId]) -> Option<Dims> {
    let batch = dims.lhs_batch.len();
    let rank = graph.ty(inst.result()).rank();
    let m = graph.ty(inst.operands[0]).rank() - batch - dims.lhs_contract.len();
    let swap: Dims = (0..batch).chain(batch + m..rank).chain(batch..batch + m).map(|d| d as i64).collect();
    let swaps = |u: &InstId| {
        let user = graph.inst(*u);
        user.kind == OpKind::Transpose && matches!(&user.attrs, Attrs::Dims(p) if *p == swap)
    };
    let trivial = m == 0 || m + batch == rank;
    (!trivial && !users.is_empty() && users.iter().all(swaps) && !graph.results.contains(&inst.result()))
        .then_some(swap)
}

fn inverse(perm: &[i64]) -> Dims {
    let mut inv = Dims::from_elem(0, perm.len());
    for (i, &p) in perm.iter().enumerate() {
        inv[p as usize] = i as i64;
    }
    inv
}
