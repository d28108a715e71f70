//! The iteration space of a body and which of its dimensions become one loop.
use super::{Affine, Atom, Kernel, LowerError};
use crate::ir::{Attrs, Dims, FusionKind, Graph, OpKind};

/// Sizes of the iteration space and which dimensions reduce.
pub(super) struct Space {
    pub(super) dims: Dims,
    pub(super) reduced: Vec<bool>,
}

/// Dimensions (adjacent, all kept or all reduced) that one loop walks.
pub(super) type Group = Vec<usize>;

impl Space {
    /// The space of `body`: the sizes of its first reduction's operand, or of its largest result.
    pub(super) fn of(kind: FusionKind, body: &Graph) -> Result<Space, LowerError> {
        let reduce = body.insts.iter().find_map(|i| match &i.attrs {
            Attrs::Reduce { dims, .. } if i.kind == OpKind::Reduce => Some((body.ty(i.operands[0]).dims.clone(), dims)),
            _ => None,
        });
        let (dims, red) = match (kind, reduce) {
            (FusionKind::Row | FusionKind::Column, Some((dims, red))) => (dims, red.clone()),
            (FusionKind::Loop | FusionKind::Epilogue, None) | (FusionKind::Row | FusionKind::Column, None) => {
                let largest = body.results.iter().map(|&r| body.ty(r)).max_by_key(|t| t.numel());
                let reason = "the body has no results";
                (largest.ok_or(LowerError::Shape { kind, reason })?.dims.clone(), Dims::new())
            }
            (FusionKind::Loop | FusionKind::Epilogue, Some(_)) => return Err(LowerError::Op(OpKind::Reduce)),
        };
        let reduced = (0..dims.len()).map(|d| red.contains(&(d as i64))).collect();
        Ok(Space { dims, reduced })
    }

    /// One loop for every dimension that is not of size 1.
    pub(super) fn separate(&self) -> Vec<Group> {
        (0..self.dims.len()).filter(|&d| self.dims[d] != 1).map(|d| vec![d]).collect()
    }

    pub(super) fn extent(&self, group: &Group) -> i64 {
        group.iter().map(|&d| self.dims[d]).product()
    }

    /// Merges adjacent loops of `kernel` (built from [`Space::separate`]) where every index expression allows it, and
    /// the trailing ones until the innermost has `min_inner` trips.
    pub(super) fn merge(&self, kernel: &Kernel, min_inner: i64) -> Vec<Group> {
        let separate = self.separate();
        let mut groups: Vec<Group> = Vec::new();
        let indices = index_expressions(kernel);
        // The rectangle of an epilogue is given as rows and columns, whatever else could be merged.
        let epilogue = kernel.kind == FusionKind::Epilogue;
        let last_dim = self.dims.len().wrapping_sub(1);
        for (n, dim) in separate.iter().enumerate() {
            let same = n > 0 && self.reduced[dim[0]] == self.reduced[separate[n - 1][0]];
            let wall = epilogue && dim[0] == last_dim;
            let free = n > 0 && {
                let (a, b) = (kernel.ix.var_atom(n as u32 - 1), kernel.ix.var_atom(n as u32));
                let of = |x: &Affine, v: Option<super::AtomId>| v.map_or(0, |v| x.coefficient(v));
                indices.iter().all(|x| of(x, a) == of(x, b) * self.dims[dim[0]])
            };
            match groups.last_mut() {
                Some(g) if same && !wall && (free || epilogue) => g.extend(dim),
                _ => groups.push(dim.clone()),
            }
        }
        while !epilogue && groups.len() > 1 {
            let last = &groups[groups.len() - 1];
            let before = &groups[groups.len() - 2];
            if self.extent(last) >= min_inner || self.reduced[last[0]] != self.reduced[before[0]] {
                break;
            }
            if let Some(last) = groups.pop() {
                groups.last_mut().into_iter().for_each(|g| g.extend(&last));
            }
        }
        groups
    }
}

/// Every index expression that the kernel's results need, those inside quotients included.
fn index_expressions(kernel: &Kernel) -> Vec<Affine> {
    let mut out: Vec<Affine> = kernel.stores.iter().map(|s| s.offset.clone()).collect();
    kernel.exprs.walk(&kernel.ix, &kernel.roots(), &mut |id| out.extend(kernel.exprs.get(id).index().cloned()));
    let mut next = 0;
    while next < out.len() {
        let inner: Vec<Affine> = out[next]
            .terms
            .iter()
            .filter_map(|&(atom, _)| match kernel.ix.atom(atom) {
                Atom::Div(a, _) | Atom::Mod(a, _) => Some(a.clone()),
                Atom::Var(_) | Atom::Value(_) => None,
            })
            .collect();
        out.extend(inner);
        next += 1;
    }
    out
}
