//! Values as strided views of others: what the movement ops on the way are worth when nothing is moved.
use crate::ir::{Attrs, Dims, Graph, OpKind, Value, row_major_strides};

/// `value` as elements of `root`: element i of it is at `offset + sum(i * strides)` of the row-major `root`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    pub(crate) root: Value,
    pub(crate) dims: Dims,
    pub(crate) strides: Dims,
    pub(crate) offset: i64,
}

impl Strided {
    /// The value itself.
    pub(crate) fn whole(graph: &Graph, v: Value) -> Self {
        let dims = graph.ty(v).dims.clone();
        Strided { root: v, strides: row_major_strides(&dims), dims, offset: 0 }
    }

    /// `graph`'s value `v`, following movement ops up to a value for which `stop` holds (or that no view can express).
    pub(crate) fn of(graph: &Graph, v: Value, stop: &dyn Fn(Value) -> bool) -> Self {
        if stop(v) {
            return Strided::whole(graph, v);
        }
        let inst = graph.def_inst(v);
        let operand = |i: usize| Strided::of(graph, inst.operands[i], stop);
        let dims = &graph.ty(v).dims;
        let moved = match (inst.kind, &inst.attrs) {
            (OpKind::Reshape, _) => operand(0).reshape(dims),
            (OpKind::Transpose, Attrs::Dims(p)) => Some(operand(0).transpose(p)),
            (OpKind::BroadcastInDim, Attrs::Dims(d)) => Some(operand(0).broadcast(dims, d)),
            (OpKind::Slice, Attrs::Slice { start, stride, .. }) => Some(operand(0).slice(dims, start, stride)),
            (OpKind::Reverse, Attrs::Dims(d)) => Some(operand(0).reverse(d)),
            _ => None,
        };
        moved.unwrap_or_else(|| Strided::whole(graph, v))
    }

    pub(crate) fn transpose(mut self, perm: &[i64]) -> Self {
        self.strides = perm.iter().map(|&p| self.strides[p as usize]).collect();
        self.dims = perm.iter().map(|&p| self.dims[p as usize]).collect();
        self
    }

    pub(crate) fn broadcast(mut self, to: &[i64], map: &[i64]) -> Self {
        let mut strides = Dims::from_elem(0, to.len());
        for (i, &d) in map.iter().enumerate() {
            if self.dims[i] == to[d as usize] {
                strides[d as usize] = self.strides[i];
            }
        }
        self.dims = Dims::from_slice(to);
        self.strides = strides;
        self
    }

    pub(crate) fn slice(mut self, to: &[i64], start: &[i64], stride: &[i64]) -> Self {
        for i in 0..to.len() {
            self.offset += start[i] * self.strides[i];
            self.strides[i] *= stride[i];
        }
        self.dims = Dims::from_slice(to);
        self
    }

    pub(crate) fn reverse(mut self, dims: &[i64]) -> Self {
        for &d in dims {
            let d = d as usize;
            self.offset += (self.dims[d] - 1).max(0) * self.strides[d];
            self.strides[d] = -self.strides[d];
        }
        self
    }

    /// Dimensions `i` and `i + 1` can be walked as one.
    pub(crate) fn joins(&self, i: usize) -> bool {
        self.dims[i] == 1 || self.dims[i + 1] == 1 || self.strides[i] == self.strides[i + 1] * self.dims[i + 1]
    }

    /// Other sizes of the same elements in the same order, if strides can express them.
    pub(crate) fn reshape(self, to: &[i64]) -> Option<Self> {
        if self.dims[..] == *to {
            return Some(self);
        }
        if to.contains(&0) {
            return Some(Strided { dims: Dims::from_slice(to), strides: row_major_strides(to), ..self });
        }
        // Join what can be joined, then cut at the new sizes.
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for i in 0..self.dims.len() {
            let (n, s) = (self.dims[i], self.strides[i]);
            if n == 1 {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.1 == s * n => *last = (last.0 * n, s),
                _ => runs.push((n, s)),
            }
        }
        let mut strides = Dims::from_elem(0, to.len());
        let mut left = runs.pop().unwrap_or((1, 1));
        for j in (0..to.len()).rev() {
            if to[j] == 1 {
                continue;
            }
            if left.0 == 1 {
                left = runs.pop()?;
            }
            if left.0 % to[j] != 0 {
                return None;
            }
            strides[j] = left.1;
            left = (left.0 / to[j], left.1 * to[j]);
        }
        Some(Strided { dims: Dims::from_slice(to), strides, ..self })
    }
}
