//! Rules for ops that take run-time indices which turn out to be known.
use super::Simplifier;
use crate::ir::{Attrs, Dims, OpKind, ScatterKind, TensorType, Value};
use crate::passes::fold::Num;

impl Simplifier<'_> {
    pub(super) fn indexed(
        &mut self,
        kind: OpKind,
        attrs: &Attrs,
        operands: &[Value],
        ty: &TensorType,
    ) -> Option<Value> {
        let x = operands[0];
        match kind {
            OpKind::DynamicSlice => {
                let from = self.ty(x);
                if from == *ty {
                    return Some(x);
                }
                let start = self.constant_starts(&operands[1..], &from.dims, &ty.dims)?;
                let limit: Dims = (0..start.len()).map(|i| start[i] + ty.dims[i]).collect();
                let stride = Dims::from_elem(1, start.len());
                Some(self.slice(x, start, limit, stride))
            }
            // The update covers everything.
            OpKind::DynamicUpdateSlice if self.b.ty(operands[1]) == ty => Some(operands[1]),
            OpKind::DynamicUpdateSlice if self.b.ty(operands[1]).numel() == 0 => Some(x),
            OpKind::Gather => self.simplify_gather(attrs, operands, ty),
            _ => None,
        }
    }

    /// Starts of a slice of sizes `sizes` out of `of`, clamped into range, where all are constants (or can only be 0).
    fn constant_starts(&self, starts: &[Value], of: &[i64], sizes: &[i64]) -> Option<Dims> {
        (0..starts.len())
            .map(|i| match self.splat(starts[i]) {
                _ if of[i] == sizes[i] => Some(0),
                Some(Num::Int(s)) => Some(s.clamp(0, i128::from(of[i] - sizes[i])) as i64),
                _ => None,
            })
            .collect()
    }

    /// `gather` along one dimension by an index that counts: a slice, spread over the other index dimensions.
    fn simplify_gather(&mut self, attrs: &Attrs, operands: &[Value], ty: &TensorType) -> Option<Value> {
        let (Attrs::Dims(dims), [x, index]) = (attrs, operands) else { return None };
        let (d, from) = (dims[0] as usize, self.ty(*x));
        let index_dims = self.b.dims(*index);
        let counted = self.iota_dim(*index)?;
        let n = index_dims[counted];
        if n > from.dims[d] {
            return None;
        }
        let mut limit = from.dims.clone();
        limit[d] = n;
        let part = self.slice(*x, Dims::from_elem(0, from.rank()), limit, Dims::from_elem(1, from.rank()));
        // The indexed dimension comes first, then the others in order.
        let perm: Dims = std::iter::once(d as i64).chain((0..from.rank() as i64).filter(|&i| i != d as i64)).collect();
        let first = self.transpose(part, &perm);
        let shift = index_dims.len() as i64 - 1;
        let map: Dims = std::iter::once(counted as i64).chain((1..from.rank() as i64).map(|i| i + shift)).collect();
        Some(self.broadcast(first, &ty.dims, &map))
    }

    /// `scatter` along one dimension by an index that counts through all of it: elementwise.
    pub(super) fn simplify_scatter(&mut self, attrs: &Attrs, operands: &[Value], ty: &TensorType) -> Option<Value> {
        let (Attrs::Scatter { kind, dims }, [x, index, updates]) = (attrs, operands) else { return None };
        let d = dims[0];
        if self.iota_dim(*index)? != 0 || self.b.rank(*index) != 1 || self.b.dims(*index)[0] != ty.dims[d as usize] {
            return None;
        }
        // The indexed dimension goes back to its place.
        let perm: Dims = (0..ty.rank() as i64)
            .map(|i| {
                if i < d {
                    i + 1
                } else if i == d {
                    0
                } else {
                    i
                }
            })
            .collect();
        let u = self.transpose(*updates, &perm);
        match kind {
            ScatterKind::Set => Some(u),
            ScatterKind::Add => Some(self.binary(OpKind::Add, *x, u)),
            ScatterKind::Mul => Some(self.binary(OpKind::Multiply, *x, u)),
            ScatterKind::Max | ScatterKind::Min => None,
        }
    }
}
