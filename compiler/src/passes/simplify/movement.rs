//! Rules for ops that only move elements: each ends with fewer or smaller of them.
use super::Simplifier;
use crate::ir::{Attrs, Dims, Literal, OpKind, TensorType, Value};

/// Largest non-splat constant that is copied to fold a reshape into it, in bytes.
const FOLDED_BYTES: usize = 4096;

impl Simplifier<'_> {
    pub(super) fn movement(
        &mut self,
        kind: OpKind,
        attrs: &Attrs,
        operands: &[Value],
        ty: &TensorType,
    ) -> Option<Value> {
        let x = *operands.first()?;
        match (kind, attrs) {
            (OpKind::Reshape, _) => self.simplify_reshape(x, ty),
            (OpKind::BroadcastInDim, Attrs::Dims(dims)) => self.simplify_broadcast(x, ty, dims),
            (OpKind::Transpose, Attrs::Dims(perm)) => self.simplify_transpose(x, ty, perm),
            (OpKind::Slice, Attrs::Slice { start, limit, stride }) => self.simplify_slice(x, ty, start, limit, stride),
            (OpKind::Pad, Attrs::Pad { lo, hi, interior }) => self.simplify_pad(operands, ty, lo, hi, interior),
            (OpKind::Concatenate, Attrs::Dim(dim)) => self.simplify_concatenate(operands, ty, *dim as usize),
            (OpKind::Reverse, Attrs::Dims(dims)) => self.simplify_reverse(x, ty, dims),
            _ => None,
        }
    }

    /// A splat constant keeps its element through any movement.
    fn moved_splat(&mut self, x: Value, ty: &TensorType) -> Option<Value> {
        let element = self.splat(x)?;
        Some(self.splat_like(ty, element))
    }

    fn simplify_reshape(&mut self, x: Value, ty: &TensorType) -> Option<Value> {
        if self.b.ty(x) == ty {
            return Some(x);
        }
        if let Some(v) = self.moved_splat(x, ty) {
            return Some(v);
        }
        if let Some(inner) = self.defined_by(x, OpKind::Reshape) {
            return Some(self.reshape(inner.operands[0], &ty.dims));
        }
        if let Some(l) = self.constant(x).filter(|l| l.bytes.len() <= FOLDED_BYTES) {
            return Some(self.b.literal(Literal { ty: ty.clone(), bytes: l.bytes.clone() }));
        }
        if let Some(inner) = self.defined_by(x, OpKind::BroadcastInDim) {
            let y = inner.operands[0];
            if self.b.ty(y).numel() == 1 {
                let scalar = self.reshape(y, &[]);
                return Some(self.broadcast(scalar, &ty.dims, &[]));
            }
        }
        // Only size-1 dimensions come or go: the counting dimension keeps its size.
        if let Some(d) = self.iota_dim(x)
            && let Some(map) = unit_map(&self.b.ty(x).dims, &ty.dims)
            && let Some(to) = map[d]
        {
            return Some(self.b.iota(ty, to));
        }
        None
    }

    fn simplify_broadcast(&mut self, x: Value, ty: &TensorType, dims: &Dims) -> Option<Value> {
        let from = self.ty(x);
        if from == *ty {
            return Some(x);
        }
        if let Some(v) = self.moved_splat(x, ty) {
            return Some(v);
        }
        if from.numel() == ty.numel() && from.numel() != 0 {
            return Some(self.reshape(x, &ty.dims));
        }
        // The operand of a broadcast has no dimensions of size 1.
        if from.dims.contains(&1) {
            let kept = (0..from.rank()).filter(|&i| from.dims[i] != 1);
            let (sizes, map): (Dims, Dims) = kept.map(|i| (from.dims[i], dims[i])).unzip();
            let squeezed = self.reshape(x, &sizes);
            return Some(self.broadcast(squeezed, &ty.dims, &map));
        }
        if let Some(inner) = self.defined_by(x, OpKind::BroadcastInDim) {
            let Attrs::Dims(first) = &inner.attrs else { return None };
            let map: Dims = first.iter().map(|&d| dims[d as usize]).collect();
            return Some(self.broadcast(inner.operands[0], &ty.dims, &map));
        }
        if let Some(d) = self.iota_dim(x) {
            return Some(self.b.iota(ty, dims[d] as usize));
        }
        None
    }

    fn simplify_transpose(&mut self, x: Value, ty: &TensorType, perm: &Dims) -> Option<Value> {
        let from = self.ty(x);
        if perm.iter().copied().eq(0..perm.len() as i64) {
            return Some(x);
        }
        if let Some(v) = self.moved_splat(x, ty) {
            return Some(v);
        }
        if let Some(inner) = self.defined_by(x, OpKind::Transpose) {
            let Attrs::Dims(first) = &inner.attrs else { return None };
            let composed: Dims = perm.iter().map(|&p| first[p as usize]).collect();
            return Some(self.transpose(inner.operands[0], &composed));
        }
        // Dimensions of size 1 are the only ones that move.
        if perm.iter().filter(|&&p| from.dims[p as usize] != 1).is_sorted() {
            return Some(self.reshape(x, &ty.dims));
        }
        if let Some(inner) = self.defined_by(x, OpKind::BroadcastInDim) {
            // Permute the small tensor instead.
            let Attrs::Dims(dims) = &inner.attrs else { return None };
            let place = |d: i64| perm.iter().position(|&p| p == d).unwrap_or(0) as i64;
            let mut order: Vec<(i64, i64)> = dims.iter().enumerate().map(|(i, &d)| (place(d), i as i64)).collect();
            order.sort_unstable();
            let (map, inner_perm): (Dims, Dims) = order.into_iter().unzip();
            let small = self.transpose(inner.operands[0], &inner_perm);
            return Some(self.broadcast(small, &ty.dims, &map));
        }
        if let Some(d) = self.iota_dim(x) {
            let to = perm.iter().position(|&p| p == d as i64)?;
            return Some(self.b.iota(ty, to));
        }
        None
    }

    fn simplify_slice(
        &mut self,
        x: Value,
        ty: &TensorType,
        start: &Dims,
        limit: &Dims,
        stride: &Dims,
    ) -> Option<Value> {
        let from = self.ty(x);
        let rank = from.rank();
        if ty.dims == from.dims {
            return Some(x);
        }
        if let Some(v) = self.moved_splat(x, ty) {
            return Some(v);
        }
        if ty.numel() == 0 {
            return None;
        }
        // One spelling: the limit ends with the last element taken.
        let tight: Dims = (0..rank).map(|i| start[i] + (ty.dims[i] - 1) * stride[i] + 1).collect();
        let strides: Dims = (0..rank).map(|i| if ty.dims[i] == 1 { 1 } else { stride[i] }).collect();
        if tight != *limit || strides != *stride {
            return Some(self.slice(x, start.clone(), tight, strides));
        }
        let inner = self.def(x).clone();
        match (inner.kind, &inner.attrs) {
            (OpKind::Slice, Attrs::Slice { start: s0, stride: st0, .. }) => {
                let s: Dims = (0..rank).map(|i| s0[i] + start[i] * st0[i]).collect();
                let l: Dims = (0..rank).map(|i| s0[i] + (limit[i] - 1) * st0[i] + 1).collect();
                let st: Dims = (0..rank).map(|i| stride[i] * st0[i]).collect();
                Some(self.slice(inner.operands[0], s, l, st))
            }
            (OpKind::BroadcastInDim, Attrs::Dims(dims)) => {
                let pick = |of: &Dims| -> Dims { dims.iter().map(|&d| of[d as usize]).collect() };
                let small = self.slice(inner.operands[0], pick(start), pick(limit), pick(stride));
                Some(self.broadcast(small, &ty.dims, dims))
            }
            (OpKind::Pad, Attrs::Pad { lo, interior, .. }) => {
                let source = self.ty(inner.operands[0]);
                let dense = (0..rank).all(|i| interior[i] == 0);
                let inside = |i: usize| start[i] >= lo[i] && limit[i] <= lo[i] + source.dims[i];
                let outside = |i: usize| limit[i] <= lo[i] || start[i] >= lo[i] + source.dims[i];
                if dense && (0..rank).all(inside) {
                    let s: Dims = (0..rank).map(|i| start[i] - lo[i]).collect();
                    let l: Dims = (0..rank).map(|i| limit[i] - lo[i]).collect();
                    return Some(self.slice(inner.operands[0], s, l, stride.clone()));
                }
                if dense && (0..rank).any(outside) {
                    return Some(self.broadcast(inner.operands[1], &ty.dims, &[]));
                }
                None
            }
            (OpKind::Concatenate, Attrs::Dim(dim)) => {
                let d = *dim as usize;
                let mut offset = 0;
                for &part in &inner.operands {
                    let size = self.b.ty(part).dims[d];
                    if start[d] >= offset && limit[d] <= offset + size {
                        let (mut s, mut l) = (start.clone(), limit.clone());
                        s[d] -= offset;
                        l[d] -= offset;
                        return Some(self.slice(part, s, l, stride.clone()));
                    }
                    offset += size;
                }
                None
            }
            (OpKind::Iota, Attrs::Dim(d)) if start[*d as usize] == 0 && stride[*d as usize] == 1 => {
                Some(self.b.iota(ty, *d as usize))
            }
            _ => None,
        }
    }

    fn simplify_pad(
        &mut self,
        operands: &[Value],
        ty: &TensorType,
        lo: &Dims,
        hi: &Dims,
        interior: &Dims,
    ) -> Option<Value> {
        let (x, value) = (operands[0], operands[1]);
        let from = self.ty(x);
        if lo.iter().chain(hi).chain(interior).all(|&p| p == 0) {
            return Some(x);
        }
        if from.numel() == 0 {
            return Some(self.broadcast(value, &ty.dims, &[]));
        }
        if let (Some(a), Some(b)) = (self.splat(x), self.splat(value))
            && a.encode(ty.dtype) == b.encode(ty.dtype)
        {
            return Some(self.splat_like(ty, a));
        }
        // Only removes: a slice.
        if interior.iter().all(|&p| p == 0) && lo.iter().chain(hi).all(|&p| p <= 0) && ty.numel() > 0 {
            let start: Dims = lo.iter().map(|&p| -p).collect();
            let limit: Dims = (0..from.rank()).map(|i| from.dims[i] + hi[i]).collect();
            let stride = Dims::from_elem(1, from.rank());
            return Some(self.slice(x, start, limit, stride));
        }
        None
    }

    fn simplify_concatenate(&mut self, operands: &[Value], ty: &TensorType, dim: usize) -> Option<Value> {
        let kept: Vec<Value> = operands.iter().copied().filter(|&v| self.b.ty(v).dims[dim] != 0).collect();
        if kept.is_empty() {
            return Some(operands[0]);
        }
        if let [one] = kept[..] {
            return Some(one);
        }
        if kept.len() < operands.len() {
            return Some(self.concatenate(&kept, dim));
        }
        // Nested along the same dimension: one.
        let nested =
            |s: &Self, v: Value| s.defined_by(v, OpKind::Concatenate).filter(|i| i.attrs == Attrs::Dim(dim as i64));
        if operands.iter().any(|&v| nested(self, v).is_some()) {
            let mut flat = Vec::new();
            for &v in operands {
                match nested(self, v) {
                    Some(inner) => flat.extend(inner.operands.iter().copied()),
                    None => flat.push(v),
                }
            }
            return Some(self.concatenate(&flat, dim));
        }
        // Neighbouring slices of one tensor, put back together.
        let mut merged: Vec<Value> = Vec::new();
        let mut changed = false;
        for &v in operands {
            match merged.last().copied().and_then(|last| self.join_slices(last, v, dim)) {
                Some(joined) => {
                    *merged.last_mut()? = joined;
                    changed = true;
                }
                None => merged.push(v),
            }
        }
        if changed {
            return Some(if let [one] = merged[..] { one } else { self.concatenate(&merged, dim) });
        }
        let first = self.splat(operands[0])?;
        let bytes = first.encode(ty.dtype);
        let equal = operands.iter().all(|&v| self.splat(v).is_some_and(|s| s.encode(ty.dtype) == bytes));
        equal.then(|| self.splat_like(ty, first))
    }

    /// The slice that covers `a` and then `b` along `dim`, if they are neighbouring slices of one tensor.
    fn join_slices(&mut self, a: Value, b: Value, dim: usize) -> Option<Value> {
        let (a, b) = (self.defined_by(a, OpKind::Slice)?, self.defined_by(b, OpKind::Slice)?);
        let (Attrs::Slice { start: s0, limit: l0, stride: t0 }, Attrs::Slice { start: s1, limit: l1, stride: t1 }) =
            (&a.attrs, &b.attrs)
        else {
            return None;
        };
        let others = (0..s0.len()).all(|i| i == dim || (s0[i] == s1[i] && l0[i] == l1[i]));
        if a.operands != b.operands || t0 != t1 || t0[dim] != 1 || l0[dim] != s1[dim] || !others {
            return None;
        }
        let mut limit = l0.clone();
        limit[dim] = l1[dim];
        Some(self.slice(a.operands[0], s0.clone(), limit, t0.clone()))
    }

    fn simplify_reverse(&mut self, x: Value, ty: &TensorType, dims: &Dims) -> Option<Value> {
        if let Some(v) = self.moved_splat(x, ty) {
            return Some(v);
        }
        let kept: Dims = dims.iter().copied().filter(|&d| ty.dims[d as usize] > 1).collect();
        if kept.is_empty() {
            return Some(x);
        }
        if let Some(inner) = self.defined_by(x, OpKind::Reverse) {
            let Attrs::Dims(first) = &inner.attrs else { return None };
            let odd: Dims = (0..ty.rank() as i64).filter(|d| kept.contains(d) != first.contains(d)).collect();
            return Some(if odd.is_empty() {
                inner.operands[0]
            } else {
                self.emit(OpKind::Reverse, Attrs::Dims(odd), &[inner.operands[0]], std::slice::from_ref(ty))
            });
        }
        (kept.len() < dims.len()).then(|| self.emit(OpKind::Reverse, Attrs::Dims(kept), &[x], std::slice::from_ref(ty)))
    }
}

/// If `to` differs from `from` only by dimensions of size 1: where each dimension of `from` goes (`None` for size 1).
fn unit_map(from: &[i64], to: &[i64]) -> Option<Vec<Option<usize>>> {
    let mut targets = (0..to.len()).filter(|&j| to[j] != 1);
    let mut map = Vec::with_capacity(from.len());
    for &n in from {
        map.push(if n == 1 { None } else { Some(targets.next().filter(|&j| to[j] == n)?) });
    }
    targets.next().is_none().then_some(map)
}
