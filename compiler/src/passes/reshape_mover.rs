//! `reshape_mover`: one iteration space between contractions, reshapes at its border.
//!
//! ```text
//! %d = dot_general ... : 32x768                 =>   %d = dot_general ... : 4x8x768   (m is 4 and 8)
//! %r = reshape %d : 4x8x768                          %g = tanh %d : 4x8x768
//! %g = tanh %r : 4x8x768                             %e = dot_general %g ... : 4x8x10
//! %s = reshape %g : 32x768
//! %e = dot_general %s ...
//! ```
//! Every reshape says how dimensions of one value are products of dimensions of another. Dimensions through which an
//! index passes unchanged are one *class* (union-find over [`relations`]); a class that some reshape splits is split
//! everywhere, and dimensions of size 1 are dropped everywhere but where a convolution's result has them
//! ([`Classes::keep`]). Afterwards all that is left of most reshapes is nothing;
//! the rest stand next to ops that take dimensions as recorded, where they rename memory and move nothing. Joining the
//! pieces that nobody tells apart is left to the kernels, one by one (`fusion::collapse`).
//!
//! Before that, slices, pads and concatenations are moved out of split dimensions where they cut at multiples
//! (`[.., 3*H*D]` cut in three becomes `[.., 3*H, D]` cut in three).
//!
//! Safety: row-major order is kept by every regrouping; an op whose dimensions cannot be regrouped consistently is
//! emitted as recorded, between reshapes.
use super::dimmap::{Grouping, Regrouped, Relation, relations};
use super::rewriter::{Rewriter, live_order};
use super::simplify::Simplifier;
use crate::ir::{Attrs, Dims, Graph, InstId, OpKind, TypeError, Value};
use smallvec::SmallVec;

pub(super) fn run(graph: &Graph) -> Result<Graph, TypeError> {
    let graph = &lift_cuts(graph)?;
    let order = live_order(graph);
    let groupings = Classes::new(graph, &order).groupings(graph);
    let mut r = Rewriter::new(graph);
    for &id in &order {
        Regrouped { r: &mut r, of: &groupings }.emit(graph.inst(id));
    }
    // Results and parameters keep their types.
    for &v in &graph.results {
        let (new, dims) = (r.get(v), graph.ty(v).dims.clone());
        let new = Simplifier { b: &mut r.b }.reshape(new, &dims);
        r.set(v, new);
    }
    r.finish()
}

/// A class of dimensions, by number; see [`Classes`].
type Class = u32;

/// Dimensions of all values, in classes of equal ones.
struct Classes {
    parent: Vec<Class>,
    size: Vec<i64>,
    /// How the class (a root) splits, if it does.
    factors: Vec<Option<SmallVec<[Class; 4]>>>,
    /// An op needs it whole.
    whole: Vec<bool>,
    /// Of size 1 and not dropped (by root).
    kept: Vec<bool>,
    /// Class of dimension 0 of every value; the others follow.
    base: Vec<Class>,
}

impl Classes {
    fn new(graph: &Graph, order: &[InstId]) -> Self {
        let mut c =
            Classes { parent: vec![], size: vec![], factors: vec![], whole: vec![], kept: vec![], base: vec![] };
        for v in 0..graph.n_values() {
            c.base.push(c.parent.len() as Class);
            for &n in &graph.ty(Value(v as u32)).dims {
                c.fresh(n);
            }
        }
        for &id in order {
            relations(graph, graph.inst(id), |rel| match rel {
                Relation::Same(a, b) => {
                    let (a, b) = (c.of(a), c.of(b));
                    c.unify(a, b);
                }
                Relation::Whole(v, i) => {
                    let k = c.of((v, i));
                    let k = c.find(k);
                    c.whole[k as usize] = true;
                }
            });
        }
        for &id in order {
            let inst = graph.inst(id);
            if inst.kind == OpKind::Reshape {
                let (from, to) = (inst.operands[0], inst.result());
                if graph.ty(from).numel() > 0 {
                    let side = |c: &Classes, v: Value| -> SmallVec<[Class; 6]> {
                        (0..graph.ty(v).rank()).map(|i| c.of((v, i))).filter(|&k| c.size[k as usize] != 1).collect()
                    };
                    let (a, b) = (side(&c, from), side(&c, to));
                    c.align(&a, &b);
                }
            }
        }
        c.keep(graph, order);
        c
    }

    /// Keeps dimensions of size 1 of convolutions' results (a batch of one, one feature): a convolution is emitted as
    /// recorded, and across a reshape that drops a dimension no op on its result could be its epilogue. Not where a
    /// reduction reads the values without such a dimension (as `simplify` has it if it is reduced): of a batch of one,
    /// statistics over whole rows and what is made of them share a kernel, which is worth more.
    fn keep(&mut self, graph: &Graph, order: &[InstId]) {
        self.kept = vec![false; self.parent.len()];
        let ones = |v: Value| (0..graph.ty(v).rank()).filter(move |&i| graph.ty(v).dims[i] == 1);
        for inst in order.iter().map(|&id| graph.inst(id)).filter(|i| i.kind == OpKind::Convolution) {
            for i in ones(inst.result()) {
                let k = self.of((inst.result(), i));
                let k = self.find(k);
                self.kept[k as usize] = true;
            }
        }
        for inst in order.iter().map(|&id| graph.inst(id)) {
            if inst.kind != OpKind::Reduce || graph.def_inst(inst.operands[0]).kind != OpKind::Reshape {
                continue;
            }
            let (without, with) = (inst.operands[0], graph.def_inst(inst.operands[0]).operands[0]);
            for i in ones(with).filter(|_| ones(with).count() > ones(without).count()) {
                let k = self.of((with, i));
                let k = self.find(k);
                self.kept[k as usize] = false;
            }
        }
    }

    fn fresh(&mut self, size: i64) -> Class {
        let k = self.parent.len() as Class;
        self.parent.push(k);
        self.size.push(size);
        self.factors.push(None);
        self.whole.push(false);
        k
    }

    fn of(&self, (v, i): (Value, usize)) -> Class {
        self.base[v.0 as usize] + i as Class
    }

    fn find(&mut self, mut k: Class) -> Class {
        while self.parent[k as usize] != k {
            let up = self.parent[self.parent[k as usize] as usize];
            self.parent[k as usize] = up;
            k = up;
        }
        k
    }

    fn unify(&mut self, a: Class, b: Class) {
        let (a, b) = (self.find(a), self.find(b));
        if a == b || self.size[a as usize] != self.size[b as usize] {
            return;
        }
        let (fa, fb) = (self.factors[a as usize].take(), self.factors[b as usize].take());
        self.parent[b as usize] = a;
        self.whole[a as usize] |= self.whole[b as usize];
        if self.whole[a as usize] {
            return;
        }
        self.factors[a as usize] = fa;
        if let Some(f) = fb {
            self.split(a, &f);
        }
    }

    /// Declares that `k` is the product of `parts`. If that contradicts another split, `k` stays whole.
    fn split(&mut self, k: Class, parts: &[Class]) {
        let k = self.find(k);
        if let [one] = *parts {
            self.unify(k, one);
            return;
        }
        if self.whole[k as usize] {
            return;
        }
        match self.factors[k as usize].take() {
            None => self.factors[k as usize] = Some(parts.iter().copied().collect()),
            Some(old) => {
                if self.align(&old, parts) {
                    let k = self.find(k);
                    self.factors[k as usize].get_or_insert(old);
                } else {
                    let k = self.find(k);
                    self.whole[k as usize] = true;
                    self.factors[k as usize] = None;
                }
            }
        }
    }

    /// Makes two lists of classes with equal products the same list of pieces, block by block; false if some block has no
    /// common refinement (such a block is left alone).
    fn align(&mut self, a: &[Class], b: &[Class]) -> bool {
        let (mut i, mut j) = (0, 0);
        let mut all = true;
        while i < a.len() && j < b.len() {
            let (i0, j0) = (i, j);
            let (mut pa, mut pb) = (self.size[a[i] as usize], self.size[b[j] as usize]);
            while pa != pb {
                if pa < pb {
                    i += 1;
                    let Some(&k) = a.get(i) else { return false };
                    pa *= self.size[k as usize];
                } else {
                    j += 1;
                    let Some(&k) = b.get(j) else { return false };
                    pb *= self.size[k as usize];
                }
            }
            (i, j) = (i + 1, j + 1);
            all &= self.align_block(&a[i0..i], &b[j0..j]);
        }
        all
    }

    fn align_block(&mut self, a: &[Class], b: &[Class]) -> bool {
        match (a, b) {
            ([x], _) => self.split(*x, b),
            (_, [y]) => self.split(*y, a),
            _ => {
                // Ends of dimensions, as products from the block's start; each must divide the next.
                let ends = |c: &Self, list: &[Class]| -> Vec<i64> {
                    list.iter()
                        .scan(1, |p, &k| {
                            *p *= c.size[k as usize];
                            Some(*p)
                        })
                        .collect()
                };
                let (ea, eb) = (ends(self, a), ends(self, b));
                let mut cuts: Vec<i64> = ea.iter().chain(&eb).copied().collect();
                cuts.sort_unstable();
                cuts.dedup();
                if cuts.windows(2).any(|w| w[1] % w[0] != 0) {
                    return false;
                }
                let mut at = 1;
                let pieces: Vec<(i64, Class)> = cuts
                    .into_iter()
                    .map(|end| {
                        let piece = self.fresh(end / at);
                        at = end;
                        (end, piece)
                    })
                    .collect();
                for (list, ends) in [(a, ea), (b, eb)] {
                    let mut from = 1;
                    for (&k, end) in list.iter().zip(ends) {
                        let parts: SmallVec<[Class; 4]> =
                            pieces.iter().filter(|p| p.0 > from && p.0 <= end).map(|p| p.1).collect();
                        self.split(k, &parts);
                        from = end;
                    }
                }
            }
        }
        true
    }

    /// Sizes of the pieces of a class.
    fn pieces(&mut self, k: Class, out: &mut Dims) {
        let k = self.find(k);
        match self.factors[k as usize].clone() {
            Some(parts) => parts.iter().for_each(|&p| self.pieces(p, out)),
            None => out.push(self.size[k as usize]),
        }
    }

    fn groupings(&mut self, graph: &Graph) -> Vec<Grouping> {
        (0..graph.n_values() as u32)
            .map(|v| {
                let ty = graph.ty(Value(v));
                if ty.numel() == 0 {
                    return Grouping::identity(&ty.dims);
                }
                let mut g = Grouping::default();
                for i in 0..ty.rank() {
                    let start = g.dims.len();
                    let k = self.of((Value(v), i));
                    let k = self.find(k);
                    if ty.dims[i] != 1 || self.kept[k as usize] {
                        self.pieces(k, &mut g.dims);
                    }
                    g.ranges.push(start..g.dims.len());
                }
                g
            })
            .collect()
    }
}

/// Moves cuts (slice, pad, concatenate) along a dimension that is then, or was before, split by a reshape to the outer
/// piece, where they cut at multiples of the inner ones:
/// `reshape(slice(x))` => `slice(reshape(x))`, `slice(reshape(x))` => `reshape(slice(reshape(x)))` on the pieces of x,
/// `concatenate(reshape(a), ..)` => `reshape(concatenate(a, ..))`.
fn lift_cuts(graph: &Graph) -> Result<Graph, TypeError> {
    let mut r = Rewriter::new(graph);
    for id in live_order(graph) {
        let inst = graph.inst(id);
        r.b.loc = inst.loc;
        let operands = r.operands(inst);
        let mut s = Simplifier { b: &mut r.b };
        let lifted = match inst.kind {
            OpKind::Reshape => lift_slice(&mut s, operands[0], &graph.ty(inst.result()).dims),
            OpKind::Slice => lower_slice(&mut s, operands[0], &inst.attrs),
            OpKind::Concatenate => lift_concatenate(&mut s, inst.attrs.clone(), &operands),
            OpKind::Pad => lift_pad(&mut s, &inst.attrs, &operands),
            _ => None,
        };
        match lifted {
            Some(v) => r.set(inst.result(), v),
            None => r.copy(inst),
        }
    }
    r.finish()
}

/// The run of `to` dimensions that `from[dim]` was split into: `from` and `to` are equal elsewhere, and the first piece
/// is returned with the size of the rest. `None` if the reshape does anything else.
fn split_at(from: &[i64], to: &[i64], dim: usize) -> Option<(usize, i64)> {
    let extra = to.len().checked_sub(from.len())?;
    let same = from[..dim] == to[..dim] && from[dim + 1..] == to[dim + 1 + extra..];
    let product: i64 = to[dim..=dim + extra].iter().product();
    (same && extra > 0 && product == from[dim] && product > 0).then(|| (extra, product / to[dim]))
}

fn lift_slice(s: &mut Simplifier<'_>, x: Value, to: &[i64]) -> Option<Value> {
    let inst = s.b.graph().def_inst(x).clone();
    let (OpKind::Slice, Attrs::Slice { start, limit, stride }) = (inst.kind, &inst.attrs) else { return None };
    let whole = s.b.dims(inst.operands[0]);
    let sliced = s.b.dims(x);
    let mut cut = (0..whole.len()).filter(|&i| whole[i] != sliced[i]);
    let (dim, None) = (cut.next()?, cut.next()) else { return None };
    let (extra, inner) = split_at(&sliced, to, dim)?;
    if stride[dim] != 1 || start[dim] % inner != 0 || limit[dim] % inner != 0 || whole[dim] % inner != 0 {
        return None;
    }
    let mut dims = Dims::from_slice(to);
    dims[dim] = whole[dim] / inner;
    let y = s.reshape(inst.operands[0], &dims);
    let (mut lo, mut hi) = (Dims::from_elem(0, to.len()), dims);
    lo[dim] = start[dim] / inner;
    hi[dim] = limit[dim] / inner;
    debug_assert!(extra > 0);
    Some(s.slice(y, lo, hi, Dims::from_elem(1, to.len())))
}

/// A slice along a dimension that a reshape made of several, at multiples of the inner ones: along the outer one.
fn lower_slice(s: &mut Simplifier<'_>, x: Value, attrs: &Attrs) -> Option<Value> {
    let Attrs::Slice { start, limit, stride } = attrs else { return None };
    let inst = s.b.graph().def_inst(x).clone();
    if inst.kind != OpKind::Reshape || s.b.ty(x).numel() == 0 {
        return None;
    }
    let to = s.b.dims(x);
    let mut cut = (0..to.len()).filter(|&i| start[i] != 0 || limit[i] != to[i] || stride[i] != 1);
    let (dim, None) = (cut.next()?, cut.next()) else { return None };
    let before: i64 = to[..dim].iter().product();
    let size = to[dim];
    // Where the operand's dimensions end within this one, as the size of what lies outside.
    let mut end = 1;
    let mut inner = None;
    for &n in &s.b.dims(inst.operands[0]) {
        end *= n;
        let outer = end / before;
        if end % before == 0 && outer > 1 && outer < size && size % outer == 0 {
            let rest = size / outer;
            if stride[dim] == 1 && start[dim] % rest == 0 && limit[dim] % rest == 0 {
                inner = Some(rest);
                break;
            }
        }
    }
    let inner = inner?;
    let mut dims = to.clone();
    dims[dim] = size / inner;
    dims.insert(dim + 1, inner);
    let y = s.reshape(inst.operands[0], &dims);
    let (mut lo, mut hi) = (Dims::from_elem(0, dims.len()), dims);
    lo[dim] = start[dim] / inner;
    hi[dim] = limit[dim] / inner;
    let ones = Dims::from_elem(1, hi.len());
    let part = s.slice(y, lo, hi, ones);
    let mut dims = to;
    dims[dim] = limit[dim] - start[dim];
    Some(s.reshape(part, &dims))
}

fn lift_concatenate(s: &mut Simplifier<'_>, attrs: Attrs, parts: &[Value]) -> Option<Value> {
    let Attrs::Dim(dim) = attrs else { return None };
    let dim = dim as usize;
    let mut inner_dims: Option<Dims> = None;
    let mut sources = Vec::new();
    for &p in parts {
        let inst = s.b.graph().def_inst(p).clone();
        if inst.kind != OpKind::Reshape {
            return None;
        }
        let (to, from) = (s.b.dims(inst.operands[0]), s.b.dims(p));
        let (extra, _) = split_at(&from, &to, dim)?;
        let inner = Dims::from_slice(&to[dim + 1..=dim + extra]);
        if inner_dims.get_or_insert_with(|| inner.clone()) != &inner {
            return None;
        }
        sources.push(inst.operands[0]);
    }
    let whole = s.concatenate(&sources, dim);
    let inner: i64 = inner_dims?.iter().product();
    let mut dims = s.b.dims(parts[0]);
    dims[dim] = s.b.dims(whole)[dim] * inner;
    Some(s.reshape(whole, &dims))
}

fn lift_pad(s: &mut Simplifier<'_>, attrs: &Attrs, operands: &[Value]) -> Option<Value> {
    let Attrs::Pad { lo, hi, interior } = attrs else { return None };
    let inst = s.b.graph().def_inst(operands[0]).clone();
    if inst.kind != OpKind::Reshape || interior.iter().any(|&p| p != 0) {
        return None;
    }
    let mut cut = (0..lo.len()).filter(|&i| lo[i] != 0 || hi[i] != 0);
    let (dim, None) = (cut.next()?, cut.next()) else { return None };
    let (from, to) = (s.b.dims(operands[0]), s.b.dims(inst.operands[0]));
    let (extra, inner) = split_at(&from, &to, dim)?;
    if lo[dim] % inner != 0 || hi[dim] % inner != 0 {
        return None;
    }
    let widen = |p: &Dims| -> Dims {
        let mut out = p.clone();
        out[dim] /= inner;
        (0..extra).for_each(|_| out.insert(dim + 1, 0));
        out
    };
    let (lo2, hi2) = (widen(lo), widen(hi));
    let mut ty = s.b.ty(inst.operands[0]).clone();
    ty.dims[dim] += lo2[dim] + hi2[dim];
    let interior = Dims::from_elem(0, lo2.len());
    let mut dims = from;
    dims[dim] += lo[dim] + hi[dim];
    let padded =
        s.emit(OpKind::Pad, Attrs::Pad { lo: lo2, hi: hi2, interior }, &[inst.operands[0], operands[1]], &[ty]);
    Some(s.reshape(padded, &dims))
}
