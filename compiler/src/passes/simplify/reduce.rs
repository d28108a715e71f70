//! Rules for `reduce`.
use super::Simplifier;
use crate::ir::{Attrs, Dims, OpKind, ReduceKind, Value};
use crate::passes::fold::Num;

impl Simplifier<'_> {
    pub(super) fn reduction(&mut self, attrs: &Attrs, operands: &[Value]) -> Option<Value> {
        let Attrs::Reduce { kind, dims } = attrs else { return None };
        let x = operands[0];
        let from = self.ty(x);
        let rest: Dims = (0..from.rank()).filter(|&i| !dims.contains(&(i as i64))).map(|i| from.dims[i]).collect();
        // A single element is its own combination. (`i1` sums and the like keep their type, so nothing converts.)
        if dims.iter().any(|&d| from.dims[d as usize] == 1) {
            let kept: Vec<usize> =
                (0..from.rank()).filter(|&i| from.dims[i] != 1 || !dims.contains(&(i as i64))).collect();
            let sizes: Dims = kept.iter().map(|&i| from.dims[i]).collect();
            let new_dims: Dims =
                (0..kept.len()).filter(|&j| dims.contains(&(kept[j] as i64))).map(|j| j as i64).collect();
            let squeezed = self.reshape(x, &sizes);
            return Some(self.reduce(*kind, squeezed, new_dims));
        }
        if let Some(element) = self.splat(x) {
            let zero = matches!(element, Num::Int(0)) || matches!(element, Num::Float(f) if f.to_bits() == 0);
            let idempotent = !matches!(kind, ReduceKind::Sum | ReduceKind::Prod);
            if from.numel() > 0 && (idempotent || (*kind == ReduceKind::Sum && zero)) {
                return Some(self.splat_like(&from.with_dims(&rest), element));
            }
        }
        let inner = self.def(x).clone();
        match (inner.kind, &inner.attrs) {
            (OpKind::Reduce, Attrs::Reduce { kind: k0, dims: d0 }) if k0 == kind => {
                // Rounding in between is lost with narrow sums, which is only better; keep it out all the same.
                let exact = from.dtype.opmath() == from.dtype || !matches!(kind, ReduceKind::Sum | ReduceKind::Prod);
                if !exact {
                    return None;
                }
                let source = self.ty(inner.operands[0]);
                let kept: Vec<i64> = (0..source.rank() as i64).filter(|d| !d0.contains(d)).collect();
                let mut all: Dims = dims.iter().map(|&d| kept[d as usize]).chain(d0.iter().copied()).collect();
                all.sort_unstable();
                Some(self.reduce(*kind, inner.operands[0], all))
            }
            (OpKind::Transpose, Attrs::Dims(perm)) => {
                let mut moved: Dims = dims.iter().map(|&d| perm[d as usize]).collect();
                moved.sort_unstable();
                let r = self.reduce(*kind, inner.operands[0], moved.clone());
                // The kept dimensions in their old order, seen from the operand's.
                let old: Vec<i64> = (0..from.rank() as i64).filter(|d| !moved.contains(d)).collect();
                let order: Dims = perm
                    .iter()
                    .filter(|p| !moved.contains(p))
                    .map(|p| old.iter().position(|o| o == p).unwrap_or(0) as i64)
                    .collect();
                Some(self.transpose(r, &order))
            }
            _ => None,
        }
    }

    fn reduce(&mut self, kind: ReduceKind, x: Value, dims: Dims) -> Value {
        if dims.is_empty() {
            return x;
        }
        let from = self.ty(x);
        let rest: Dims = (0..from.rank()).filter(|&i| !dims.contains(&(i as i64))).map(|i| from.dims[i]).collect();
        self.emit(OpKind::Reduce, Attrs::Reduce { kind, dims }, &[x], &[from.with_dims(rest)])
    }
}
