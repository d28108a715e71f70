//! Which dimensions of which values are the same dimension, and re-emission of a graph with its dimensions regrouped.
//!
//! Splitting dimensions so that reshapes disappear (`reshape_mover`) and joining those that are never told apart (fusion
//! bodies) both need to know, for every op, through which of its dimensions indices pass unchanged. That knowledge is
//! [`relations`]; what an op looks like when its dimensions are split or joined is [`Regrouped::emit`].
use super::rewriter::Rewriter;
use super::simplify::Simplifier;
use crate::ir::{Attrs, Class, Dims, DotDims, Graph, Inst, Literal, OpKind, TensorType, Value};
use smallvec::SmallVec;
use std::ops::Range;

/// What an op says about a dimension (value, number).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Relation {
    /// The two run over the same index.
    Same((Value, usize), (Value, usize)),
    /// The op does index arithmetic on this dimension as a whole: it can be neither split nor joined.
    Whole(Value, usize),
}

/// Tells `f` all relations of `inst`; false for ops that know their dimensions only as recorded.
pub(crate) fn relations(graph: &Graph, inst: &Inst, mut f: impl FnMut(Relation)) -> bool {
    use Relation::{Same, Whole};
    let rank = |v: Value| graph.ty(v).rank();
    let size = |v: Value, i: usize| graph.ty(v).dims[i];
    let x = inst.operands.first().copied();
    match (inst.kind, &inst.attrs, x) {
        (OpKind::Constant, Attrs::Literal(l), _) => l.is_splat(),
        (OpKind::Iota, Attrs::Dim(d), _) => {
            f(Whole(inst.result(), *d as usize));
            true
        }
        (OpKind::RngBits, ..) => true,
        (kind, ..) if kind.class() == Class::Elementwise => {
            for &v in &inst.operands {
                for i in 0..rank(v) {
                    f(Same((v, i), (inst.result(), i)));
                }
            }
            true
        }
        (OpKind::OptimizationBarrier, ..) => {
            for (&v, r) in inst.operands.iter().zip(inst.results()) {
                for i in 0..rank(v) {
                    f(Same((v, i), (r, i)));
                }
            }
            true
        }
        (OpKind::BroadcastInDim, Attrs::Dims(dims), Some(x)) => {
            for (i, &d) in dims.iter().enumerate() {
                if size(x, i) == size(inst.result(), d as usize) {
                    f(Same((x, i), (inst.result(), d as usize)));
                }
            }
            true
        }
        (OpKind::Transpose, Attrs::Dims(perm), Some(x)) => {
            for (i, &p) in perm.iter().enumerate() {
                f(Same((x, p as usize), (inst.result(), i)));
            }
            true
        }
        (OpKind::Reverse, Attrs::Dims(dims), Some(x)) => {
            for i in 0..rank(x) {
                f(Same((x, i), (inst.result(), i)));
                if dims.contains(&(i as i64)) {
                    f(Whole(x, i));
                }
            }
            true
        }
        (OpKind::Slice | OpKind::DynamicSlice, _, Some(x)) => {
            for i in 0..rank(x) {
                touch(graph, (x, i), (inst.result(), i), &mut f);
            }
            true
        }
        (OpKind::DynamicUpdateSlice, _, Some(x)) => {
            for i in 0..rank(x) {
                f(Same((x, i), (inst.result(), i)));
                touch(graph, (inst.operands[1], i), (inst.result(), i), &mut f);
            }
            true
        }
        (OpKind::Pad, Attrs::Pad { lo, hi, interior }, Some(x)) => {
            for i in 0..rank(x) {
                if lo[i] == 0 && hi[i] == 0 && interior[i] == 0 {
                    f(Same((x, i), (inst.result(), i)));
                } else {
                    f(Whole(x, i));
                    f(Whole(inst.result(), i));
                }
            }
            true
        }
        (OpKind::Concatenate, Attrs::Dim(d), _) => {
            for &v in &inst.operands {
                for i in 0..rank(v) {
                    if i as i64 == *d {
                        f(Whole(v, i));
                        f(Whole(inst.result(), i));
                    } else {
                        f(Same((v, i), (inst.result(), i)));
                    }
                }
            }
            true
        }
        (OpKind::Gather, Attrs::Dims(dims), Some(x)) => {
            let n = rank(inst.operands[1]);
            for &index in &inst.operands[1..] {
                for i in 0..n {
                    f(Same((index, i), (inst.result(), i)));
                }
            }
            let mut next = n;
            for i in 0..rank(x) {
                if dims.contains(&(i as i64)) {
                    f(Whole(x, i));
                } else {
                    f(Same((x, i), (inst.result(), next)));
                    next += 1;
                }
            }
            true
        }
        (OpKind::Reduce, Attrs::Reduce { dims, .. }, Some(x)) => {
            let kept = (0..rank(x)).filter(|i| !dims.contains(&(*i as i64)));
            for (j, i) in kept.enumerate() {
                f(Same((x, i), (inst.result(), j)));
            }
            true
        }
        (OpKind::DotGeneral, Attrs::Dot(d), Some(x)) => match DotShape::canonical(graph, inst, d) {
            Some(s) => {
                let (y, out) = (inst.operands[1], inst.result());
                for i in 0..s.batch {
                    f(Same((x, i), (y, i)));
                    f(Same((x, i), (out, i)));
                }
                for i in 0..s.m {
                    f(Same((x, s.batch + i), (out, s.batch + i)));
                }
                for i in 0..s.k {
                    f(Same((x, s.batch + s.m + i), (y, s.batch + i)));
                }
                for i in 0..s.n {
                    f(Same((y, s.batch + s.k + i), (out, s.batch + s.m + i)));
                }
                true
            }
            None => false,
        },
        _ => false,
    }
}

/// A dimension that may be cut: the same if it is not, whole on both sides if it is.
fn touch(graph: &Graph, a: (Value, usize), b: (Value, usize), f: &mut impl FnMut(Relation)) {
    if graph.ty(a.0).dims[a.1] == graph.ty(b.0).dims[b.1] {
        f(Relation::Same(a, b));
    } else {
        f(Relation::Whole(a.0, a.1));
        f(Relation::Whole(b.0, b.1));
    }
}

/// Numbers of batch, m, n and k dimensions of a canonical dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DotShape {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl DotShape {
    /// `None` if the dimension numbers are not in the form the `dots` pass gives.
    pub(crate) fn canonical(graph: &Graph, inst: &Inst, d: &DotDims) -> Option<DotShape> {
        let (batch, k) = (d.lhs_batch.len(), d.lhs_contract.len());
        let m = graph.ty(inst.operands[0]).rank().checked_sub(batch + k)?;
        let n = graph.ty(inst.operands[1]).rank().checked_sub(batch + k)?;
        let shape = DotShape { batch, m, n, k };
        (shape.dims() == *d).then_some(shape)
    }

    /// The dimension numbers of this form.
    pub(crate) fn dims(self) -> DotDims {
        let range = |from: usize, n: usize| -> Dims { (from as i64..(from + n) as i64).collect() };
        DotDims {
            lhs_batch: range(0, self.batch),
            rhs_batch: range(0, self.batch),
            lhs_contract: range(self.batch + self.m, self.k),
            rhs_contract: range(self.batch, self.k),
        }
    }
}

/// New dimensions of one value: the range of new ones that each old one became. Split dimensions have ranges longer than
/// one; dropped ones (size 1) have empty ranges; joined ones share their range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grouping {
    pub(crate) dims: Dims,
    pub(crate) ranges: SmallVec<[Range<usize>; 6]>,
}

impl Grouping {
    /// The dimensions as they are.
    pub(crate) fn identity(dims: &[i64]) -> Self {
        Grouping { dims: Dims::from_slice(dims), ranges: (0..dims.len()).map(|i| i..i + 1).collect() }
    }

    /// With a place of its own for each of the dropped dimensions `keep`.
    fn keeping(&self, old: &[i64], keep: impl Fn(usize) -> bool) -> Self {
        if (0..old.len()).all(|i| !(keep(i) && self.ranges[i].is_empty())) {
            return self.clone();
        }
        let mut out = Grouping::default();
        let mut copied = 0;
        for i in 0..old.len() {
            let r = &self.ranges[i];
            if r.is_empty() {
                let at = out.dims.len();
                if keep(i) {
                    out.dims.push(old[i]);
                }
                out.ranges.push(at..out.dims.len());
            } else if r.start >= copied {
                let at = out.dims.len();
                out.dims.extend_from_slice(&self.dims[r.clone()]);
                out.ranges.push(at..out.dims.len());
                copied = r.end;
            } else {
                // Joined with the one before.
                let last = out.ranges.last().cloned().unwrap_or(0..0);
                out.ranges.push(last);
            }
        }
        out
    }

    /// New dimensions of the old dimensions `old`, in that order, each once.
    fn map(&self, old: impl IntoIterator<Item = usize>) -> Dims {
        let mut out = Dims::new();
        for i in old {
            for j in self.ranges[i].clone() {
                if !out.contains(&(j as i64)) {
                    out.push(j as i64);
                }
            }
        }
        out
    }
}

/// A graph being re-emitted with new dimensions.
pub(crate) struct Regrouped<'r, 'g> {
    pub(crate) r: &'r mut Rewriter<'g>,
    /// The new dimensions of every value of the source.
    pub(crate) of: &'r [Grouping],
}

impl Regrouped<'_, '_> {
    fn group(&self, v: Value) -> &Grouping {
        &self.of[v.0 as usize]
    }

    fn simple(&mut self) -> Simplifier<'_> {
        Simplifier { b: &mut self.r.b }
    }

    /// The new value of `v` (which has its new dimensions, or any others of the same elements) with sizes `dims`.
    fn operand(&mut self, v: Value, dims: &[i64]) -> Value {
        let new = self.r.get(v);
        self.simple().reshape(new, dims)
    }

    /// The new value of a rank-0 `v`: what it is a reshape of may have kept dimensions of size 1.
    fn scalar(&mut self, v: Value) -> Value {
        self.operand(v, &[])
    }

    /// Emits `inst` on the new dimensions where it can be, and as recorded otherwise.
    pub(crate) fn emit(&mut self, inst: &Inst) {
        self.r.b.loc = inst.loc;
        if inst.kind == OpKind::Reshape {
            // Same elements, same order: the uses reshape if they have to.
            let x = self.r.get(inst.operands[0]);
            let dims = self.group(inst.result()).dims.clone();
            let new = if self.group(inst.operands[0]).dims == dims { x } else { self.simple().reshape(x, &dims) };
            self.r.set(inst.result(), new);
            return;
        }
        if let Some((first, form)) = self.emit_regrouped(inst) {
            for (n, old) in inst.results().enumerate() {
                let new = Value(first.0 + n as u32);
                let dims = self.group(old).dims.clone();
                let new =
                    if form.as_ref().is_none_or(|f| f.dims == dims) { new } else { self.simple().reshape(new, &dims) };
                self.r.set(old, new);
            }
            return;
        }
        // As recorded.
        let operands: SmallVec<[Value; 4]> = inst
            .operands
            .iter()
            .map(|&v| {
                let dims = self.r.src.ty(v).dims.clone();
                self.operand(v, &dims)
            })
            .collect();
        let types = self.r.types(inst);
        let first = self.simple().emit(inst.kind, inst.attrs.clone(), &operands, &types);
        for (n, old) in inst.results().enumerate() {
            let dims = self.group(old).dims.clone();
            let new = self.simple().reshape(Value(first.0 + n as u32), &dims);
            self.r.set(old, new);
        }
    }

    /// The instruction on new dimensions, and the dimensions its result has if they are not the ones of its grouping.
    fn emit_regrouped(&mut self, inst: &Inst) -> Option<(Value, Option<Grouping>)> {
        let src = self.r.src;
        let result = inst.first;
        let out = self.group(result).clone();
        let old_out = &src.ty(result).dims;
        let ty = |g: &Grouping| src.ty(result).with_dims(&g.dims);
        let x = inst.operands.first().copied();
        match (inst.kind, &inst.attrs, x) {
            (OpKind::Constant, Attrs::Literal(l), _) if l.is_splat() => {
                Some((self.r.b.literal(Literal { ty: ty(&out), bytes: l.bytes.clone() }), None))
            }
            (OpKind::Iota, Attrs::Dim(d), _) => {
                let form = out.keeping(old_out, |i| i as i64 == *d);
                let [at] = form.map([*d as usize])[..] else { return None };
                let v = self.simple().emit(OpKind::Iota, Attrs::Dim(at), &[], &[ty(&form)]);
                Some((v, Some(form)))
            }
            (OpKind::RngBits, ..) => {
                let operands: SmallVec<[Value; 4]> = inst.operands.iter().map(|&v| self.scalar(v)).collect();
                Some((self.simple().emit(inst.kind, inst.attrs.clone(), &operands, &[ty(&out)]), None))
            }
            (kind, ..) if kind.class() == Class::Elementwise => {
                let operands: SmallVec<[Value; 4]> =
                    inst.operands.iter().map(|&v| self.operand(v, &out.dims)).collect();
                Some((self.simple().emit(kind, inst.attrs.clone(), &operands, &[ty(&out)]), None))
            }
            (OpKind::OptimizationBarrier, ..) => {
                let mut operands = SmallVec::<[Value; 4]>::new();
                let mut types = SmallVec::<[TensorType; 4]>::new();
                for (&v, r) in inst.operands.iter().zip(inst.results()) {
                    let dims = self.group(r).dims.clone();
                    operands.push(self.operand(v, &dims));
                    types.push(src.ty(r).with_dims(&dims));
                }
                Some((self.r.b.op(inst.kind, Attrs::None, &operands, &types), None))
            }
            (OpKind::BroadcastInDim, Attrs::Dims(dims), Some(x)) => {
                let from = self.group(x).clone();
                let mut map = Dims::new();
                for (i, &d) in dims.iter().enumerate() {
                    let (a, b) = (from.ranges[i].clone(), out.ranges[d as usize].clone());
                    if src.ty(x).dims[i] == 1 && a.len() != b.len() {
                        // A dropped dimension needs no place; a kept one takes the first.
                        if !a.is_empty() {
                            return None;
                        }
                        continue;
                    }
                    if a.len() != b.len() {
                        return None;
                    }
                    for (i, j) in a.zip(b) {
                        if i == map.len() {
                            map.push(j as i64);
                        }
                    }
                }
                let new = self.operand(x, &from.dims);
                let fits = map.len() == from.dims.len()
                    && map.iter().zip(&from.dims).all(|(&d, &n)| n == out.dims[d as usize] || n == 1);
                fits.then(|| (self.simple().broadcast(new, &out.dims, &map), None))
            }
            (OpKind::Transpose, Attrs::Dims(perm), Some(x)) => {
                let from = self.group(x).clone();
                let order = from.map(perm.iter().map(|&p| p as usize));
                let sizes: Dims = order.iter().map(|&p| from.dims[p as usize]).collect();
                if order.len() != from.dims.len() || sizes != out.dims {
                    return None;
                }
                let new = self.operand(x, &from.dims);
                Some((self.simple().transpose(new, &order), None))
            }
            (OpKind::Reverse, Attrs::Dims(dims), Some(x)) => {
                let at = out.map(dims.iter().map(|&d| d as usize));
                let new = self.operand(x, &out.dims);
                Some((self.simple().emit(inst.kind, Attrs::Dims(at), &[new], &[ty(&out)]), None))
            }
            (OpKind::Slice, Attrs::Slice { start, limit, stride }, Some(x)) => {
                let old_in = &src.ty(x).dims;
                let cut = |i: usize| old_in[i] != old_out[i];
                let (from, form) = (self.group(x).keeping(old_in, cut), out.keeping(old_out, cut));
                let (mut s, mut l, mut t) = (Dims::new(), Dims::new(), Dims::new());
                each_new(&from, old_in.len(), |i, n| {
                    let whole = !cut(i);
                    s.push(if whole { 0 } else { start[i] });
                    l.push(if whole { n } else { limit[i] });
                    t.push(if whole { 1 } else { stride[i] });
                });
                if !aligned(&from, &form, old_in.len(), cut) {
                    return None;
                }
                let new = self.operand(x, &from.dims);
                Some((self.simple().slice(new, s, l, t), Some(form)))
            }
            (OpKind::DynamicSlice | OpKind::DynamicUpdateSlice, _, Some(x)) => {
                let update = inst.kind == OpKind::DynamicUpdateSlice;
                // The smaller tensor: result of the one, update of the other.
                let (whole, part) = if update { (result, inst.operands[1]) } else { (x, result) };
                let (old_whole, old_part) = (&src.ty(whole).dims, &src.ty(part).dims);
                let cut = |i: usize| old_whole[i] != old_part[i];
                let big = self.group(whole).keeping(old_whole, cut);
                let small = self.group(part).keeping(old_part, cut);
                if !aligned(&big, &small, old_whole.len(), cut) {
                    return None;
                }
                let old_starts = &inst.operands[if update { 2 } else { 1 }..];
                let mut operands: SmallVec<[Value; 8]> = SmallVec::new();
                operands.push(self.operand(x, &big.dims));
                if update {
                    operands.push(self.operand(part, &small.dims));
                }
                let mut old_of = Vec::new();
                each_new(&big, old_whole.len(), |i, _| old_of.push(i));
                for i in old_of {
                    operands.push(if cut(i) {
                        self.scalar(old_starts[i])
                    } else {
                        self.r.b.splat_i64(&TensorType::scalar(crate::ir::DType::I64), 0)
                    });
                }
                let form = if update { big } else { small };
                Some((self.simple().emit(inst.kind, Attrs::None, &operands, &[ty(&form)]), Some(form)))
            }
            (OpKind::Pad, Attrs::Pad { lo, hi, interior }, Some(x)) => {
                let old_in = &src.ty(x).dims;
                let cut = |i: usize| lo[i] != 0 || hi[i] != 0 || interior[i] != 0;
                let (from, form) = (self.group(x).keeping(old_in, cut), out.keeping(old_out, cut));
                if !aligned(&from, &form, old_in.len(), cut) {
                    return None;
                }
                let (mut l, mut h, mut n) = (Dims::new(), Dims::new(), Dims::new());
                each_new(&from, old_in.len(), |i, _| {
                    l.push(lo[i]);
                    h.push(hi[i]);
                    n.push(interior[i]);
                });
                let new = self.operand(x, &from.dims);
                let value = self.scalar(inst.operands[1]);
                let attrs = Attrs::Pad { lo: l, hi: h, interior: n };
                Some((self.simple().emit(inst.kind, attrs, &[new, value], &[ty(&form)]), Some(form)))
            }
            (OpKind::Concatenate, Attrs::Dim(d), _) => {
                let cut = |i: usize| i as i64 == *d;
                let form = out.keeping(old_out, cut);
                let [at] = form.map([*d as usize])[..] else { return None };
                let mut operands = Vec::new();
                for &v in &inst.operands {
                    let old = &src.ty(v).dims;
                    let from = self.group(v).keeping(old, cut);
                    if !aligned(&from, &form, old.len(), cut) {
                        return None;
                    }
                    operands.push(self.operand(v, &from.dims));
                }
                Some((self.simple().emit(inst.kind, Attrs::Dim(at), &operands, &[ty(&form)]), Some(form)))
            }
            (OpKind::Gather, Attrs::Dims(dims), Some(x)) => {
                let old_in = &src.ty(x).dims;
                let from = self.group(x).keeping(old_in, |i| dims.contains(&(i as i64)));
                let at = from.map(dims.iter().map(|&d| d as usize));
                let index_rank = src.ty(inst.operands[1]).rank();
                let index_dims: Dims = out.map(0..index_rank).iter().map(|&d| out.dims[d as usize]).collect();
                let rest: Dims =
                    (0..from.dims.len()).filter(|&i| !at.contains(&(i as i64))).map(|i| from.dims[i]).collect();
                if at.len() != dims.len() || index_dims.iter().chain(&rest).ne(out.dims.iter()) {
                    return None;
                }
                let mut operands: SmallVec<[Value; 8]> = SmallVec::new();
                operands.push(self.operand(x, &from.dims));
                for &v in &inst.operands[1..] {
                    operands.push(self.operand(v, &index_dims));
                }
                Some((self.simple().emit(inst.kind, Attrs::Dims(at), &operands, &[ty(&out)]), None))
            }
            (OpKind::Reduce, Attrs::Reduce { kind, dims }, Some(x)) => {
                let from = self.group(x).clone();
                let at = from.map(dims.iter().map(|&d| d as usize));
                let rest = (0..from.dims.len()).filter(|&i| !at.contains(&(i as i64))).map(|i| from.dims[i]);
                if !rest.eq(out.dims.iter().copied()) {
                    return None;
                }
                let new = self.operand(x, &from.dims);
                if at.is_empty() {
                    return Some((new, None));
                }
                let attrs = Attrs::Reduce { kind: *kind, dims: at };
                Some((self.simple().emit(inst.kind, attrs, &[new], &[ty(&out)]), None))
            }
            (OpKind::DotGeneral, Attrs::Dot(d), Some(x)) => {
                let s = DotShape::canonical(src, inst, d)?;
                let y = inst.operands[1];
                let (gx, gy) = (self.group(x).clone(), self.group(y).clone());
                let sizes = |g: &Grouping, old: Range<usize>| -> Dims {
                    g.map(old).iter().map(|&i| g.dims[i as usize]).collect()
                };
                let (b, m) = (sizes(&gx, 0..s.batch), sizes(&gx, s.batch..s.batch + s.m));
                let (k, n) =
                    (sizes(&gx, s.batch + s.m..s.batch + s.m + s.k), sizes(&gy, s.batch + s.k..s.batch + s.k + s.n));
                let same = b == sizes(&gy, 0..s.batch)
                    && k == sizes(&gy, s.batch..s.batch + s.k)
                    && b.iter().chain(&m).chain(&n).eq(out.dims.iter())
                    && b.len() + m.len() + k.len() == gx.dims.len()
                    && b.len() + n.len() + k.len() == gy.dims.len();
                if !same {
                    return None;
                }
                let shape = DotShape { batch: b.len(), m: m.len(), n: n.len(), k: k.len() };
                let (nx, ny) = (self.operand(x, &gx.dims), self.operand(y, &gy.dims));
                let v = self.r.b.dot_general(nx, ny, shape.dims(), src.ty(result).dtype);
                Some((v, None))
            }
            _ => None,
        }
    }
}

/// Calls `f` with (old dimension, new size) for every new dimension in order.
fn each_new(g: &Grouping, rank: usize, mut f: impl FnMut(usize, i64)) {
    let mut next = 0;
    for i in 0..rank {
        for j in g.ranges[i].clone() {
            if j >= next {
                f(i, g.dims[j]);
                next = j + 1;
            }
        }
    }
}

/// Both have the same new dimensions outside of those that `cut` names, which have exactly one.
fn aligned(a: &Grouping, b: &Grouping, rank: usize, cut: impl Fn(usize) -> bool) -> bool {
    (0..rank).all(|i| {
        let (x, y) = (a.ranges[i].clone(), b.ranges[i].clone());
        if cut(i) { x.len() == 1 && y.len() == 1 } else { x.len() == y.len() && a.dims[x] == b.dims[y] }
    })
}
