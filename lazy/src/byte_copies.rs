//! Copies of whole storages byte by byte, as `copy.deepcopy` makes them of tensors.
//!
//! PyTorch copies a storage as `uint8`, and the copy is then used under the tensor's element type. The IR has no view of
//! bytes under a larger element type, and needs none here: all bytes of one storage become all bytes of another, so the
//! value itself moves, under the element type that the rest of the trace uses.
use crate::words::{Arg, TensorArg};
use crate::{Node, OutKind, ScalarType, Trace};
use ahash::AHashMap;
use rsx_compiler::ir::DType;

/// All of storage `from` becomes all of storage `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteCopy {
    pub(crate) to: u32,
    pub(crate) from: u32,
    /// Element type to read `from` with, where nothing of the piece has read it before.
    pub(crate) dtype: DType,
}

/// The copies of a trace, by node.
pub(crate) fn byte_copies(trace: &Trace) -> AHashMap<usize, ByteCopy> {
    let mut copies: Vec<(usize, u32, u32)> = Vec::new();
    for (n, node) in trace.nodes.iter().enumerate() {
        copies.extend(copy_of(trace, node).map(|(to, from)| (n, to, from)));
    }
    if copies.is_empty() {
        return AHashMap::default();
    }
    let mut elements = elements(trace, &copies);
    // A copy of a copy has the same element type; chains are as short as programs that deep-copy twice in a step.
    let mut changed = true;
    while changed {
        changed = false;
        for &(_, to, from) in &copies {
            let (to, from) = (to as usize, from as usize);
            let known = elements[from].or(elements[to]);
            changed |= elements[from] != known || (elements[to].is_none() && known.is_some());
            elements[from] = known;
            elements[to] = elements[to].or(known);
        }
    }
    let copy = |(n, to, from): (usize, u32, u32)| {
        let nbytes = trace.storages[from as usize].storage.nbytes();
        let dtype = elements[from as usize].filter(|d| nbytes.is_multiple_of(d.size())).unwrap_or(DType::U8);
        (n, ByteCopy { to, from, dtype })
    };
    copies.into_iter().map(copy).collect()
}

/// Storages (to, from) of a node that copies all bytes.
fn copy_of(trace: &Trace, node: &Node) -> Option<(u32, u32)> {
    if node.sig.op.name != "aten::copy_" {
        return None;
    }
    let Ok([Arg::Tensor(to), Arg::Tensor(from), ..]) = node.sig.args() else { return None };
    let storage = |t: &TensorArg| {
        let index = trace.inputs(node)[t.storage as usize];
        let nbytes = trace.storages[index as usize].storage.nbytes();
        let whole = t.dtype == ScalarType::U8 && t.sizes.len() == 1 && t.strides[0] == 1 && t.covers(nbytes);
        whole.then_some(index)
    };
    let (to, from) = (storage(to)?, storage(from)?);
    (to != from && trace.storages[to as usize].storage.nbytes() == trace.storages[from as usize].storage.nbytes())
        .then_some((to, from))
}

/// The first element type, bytes apart, that each storage is used with.
fn elements(trace: &Trace, copies: &[(usize, u32, u32)]) -> Vec<Option<DType>> {
    let mut found = vec![None; trace.storages.len()];
    let typed = |t: ScalarType| t.dtype().filter(|&d| d != DType::U8);
    for (n, node) in trace.nodes.iter().enumerate() {
        if copies.binary_search_by_key(&n, |c| c.0).is_ok() {
            continue;
        }
        let fresh = node.sig.outs.iter().filter(|o| o.kind == OutKind::Fresh);
        for (&i, o) in trace.outputs(node).iter().zip(fresh) {
            found[i as usize] = found[i as usize].or(typed(o.scalar_type()));
        }
        let record = trace.inputs(node);
        for arg in node.sig.args().into_iter().flatten() {
            arg.tensors(&mut |t| {
                let known = &mut found[record[t.storage as usize] as usize];
                *known = known.or(typed(t.dtype));
            });
        }
    }
    found
}
