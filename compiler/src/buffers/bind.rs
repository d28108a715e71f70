//! Values as views of storages.
use super::stored::{Stored, stored};
use super::{Binding, Kind, Storage, StorageId};
use crate::fusion::views::Strided;
use crate::ir::{
    Attrs, Class, Dims, FusionKind, Graph, Inst, InstId, Literal, OpKind, ParamKind, TensorType, TypeError, Value,
    row_major_strides,
};
use ahash::AHashMap;
use std::sync::Arc;

/// Alignment of constants in the pool and of storages in the slab, in bytes: a cache line and the widest vector.
pub(crate) const ALIGN: u64 = 64;

/// Storages and bindings of a graph, and what its thunks depend on.
pub(crate) struct Bound {
    pub(crate) storages: Vec<Storage>,
    pub(crate) bindings: Vec<Option<Binding>>,
    pub(crate) constants: Vec<u8>,
    /// Thunks and barriers in graph order.
    pub(crate) thunks: Vec<InstId>,
    /// For every instruction that is a thunk or barrier: those it waits for.
    pub(crate) waits: Vec<Vec<InstId>>,
    /// For every storage: thunks that read it, in graph order.
    pub(crate) readers: Vec<Vec<InstId>>,
}

/// Renames or rearranges memory without a thunk. (Concatenations outside of fusions are of library results that are
/// stored together.)
pub(crate) fn is_alias(inst: &Inst) -> bool {
    matches!(
        inst.kind,
        OpKind::Reshape
            | OpKind::Transpose
            | OpKind::BroadcastInDim
            | OpKind::Slice
            | OpKind::Reverse
            | OpKind::Concatenate
    )
}

/// Takes part in the schedule: thunks, and barriers, which only wait.
pub(crate) fn is_step(inst: &Inst) -> bool {
    inst.kind.class() != Class::Leaf && !is_alias(inst)
}

pub(crate) fn bind(graph: &Graph) -> Result<Bound, TypeError> {
    let mut b = Binder {
        graph,
        storages: Vec::new(),
        bindings: vec![None; graph.n_values()],
        constants: Vec::new(),
        pool: AHashMap::new(),
        stored: stored(graph),
        roots: AHashMap::new(),
    };
    let live = crate::passes::rewriter::live_insts(graph);
    let (mut tensors, mut scalars) = (0, 0);
    let param_numbers: Vec<Kind> = graph
        .params
        .iter()
        .map(|p| {
            let n = if p.kind == ParamKind::Tensor { &mut tensors } else { &mut scalars };
            *n += 1;
            if p.kind == ParamKind::Tensor { Kind::Param(*n - 1) } else { Kind::Scalar(*n - 1) }
        })
        .collect();
    for (id, inst) in graph.iter() {
        // Parameters are bound whether used or not, so that donation can be decided for all of them.
        if live[id.0 as usize] || inst.kind == OpKind::Parameter {
            b.inst(id, inst, &param_numbers)?;
        }
    }
    let thunks: Vec<InstId> =
        graph.iter().filter(|(id, inst)| live[id.0 as usize] && is_step(inst)).map(|(id, _)| id).collect();
    let mut waits = vec![Vec::new(); graph.insts.len()];
    let mut readers = vec![Vec::new(); b.storages.len()];
    for &id in &thunks {
        let mut out = Vec::new();
        for &v in &graph.inst(id).operands {
            steps_behind(graph, v, &mut out);
            // A barrier reads nothing: it renames.
            if let (Some(binding), true) =
                (&b.bindings[v.0 as usize], graph.inst(id).kind != OpKind::OptimizationBarrier)
            {
                let list: &mut Vec<InstId> = &mut readers[binding.storage];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        waits[id.0 as usize] = out;
    }
    Ok(Bound { storages: b.storages, bindings: b.bindings, constants: b.constants, thunks, waits, readers })
}

/// Adds the step that computes `v` to `out`.
fn steps_behind(graph: &Graph, v: Value, out: &mut Vec<InstId>) {
    let id = graph.def(v);
    let inst = graph.inst(id);
    if is_step(inst) {
        if !out.contains(&id) {
            out.push(id);
        }
    } else {
        inst.operands.iter().for_each(|&o| steps_behind(graph, o, out));
    }
}

struct Binder<'g> {
    graph: &'g Graph,
    storages: Vec<Storage>,
    bindings: Vec<Option<Binding>>,
    constants: Vec<u8>,
    /// Constants in the pool, by their bytes' literal.
    pool: AHashMap<Arc<Literal>, StorageId>,
    /// Results that lie in the memory of others.
    stored: Vec<Option<Stored>>,
    /// Storages of these others.
    roots: AHashMap<Value, StorageId>,
}

impl Binder<'_> {
    fn storage(&mut self, kind: Kind, bytes: u64) -> StorageId {
        self.storages.push(Storage { kind, bytes });
        self.storages.len() - 1
    }

    fn dense(&mut self, v: Value, kind: Kind) {
        let ty = self.graph.ty(v);
        let storage = self.storage(kind, ty.bytes());
        self.set(v, storage, row_major_strides(&ty.dims), 0);
    }

    fn set(&mut self, v: Value, storage: StorageId, strides: Dims, offset: i64) {
        let ty = self.graph.ty(v);
        self.bindings[v.0 as usize] =
            Some(Binding { storage, dtype: ty.dtype, dims: ty.dims.clone(), strides, offset });
    }

    fn operand(&self, inst: &Inst, i: usize) -> Result<Binding, TypeError> {
        self.bindings[inst.operands[i].0 as usize]
            .clone()
            .ok_or_else(|| TypeError::new(format!("{}: operand {i} has no place in memory", inst.kind)))
    }

    fn inst(&mut self, id: InstId, inst: &Inst, params: &[Kind]) -> Result<(), TypeError> {
        let g = self.graph;
        match (inst.kind, &inst.attrs) {
            (OpKind::Parameter, Attrs::Index(i)) => self.dense(inst.first, params[*i as usize]),
            (OpKind::Constant, Attrs::Literal(l)) => self.constant(inst, l),
            (OpKind::OptimizationBarrier, _) => {
                for (i, v) in inst.results().enumerate() {
                    self.bindings[v.0 as usize] = Some(self.operand(inst, i)?);
                }
            }
            (OpKind::Concatenate, _) => {
                let storage = self.roots.get(&inst.first).copied();
                let storage = storage.ok_or_else(|| TypeError::new("a concatenation outside of a fusion"))?;
                self.set(inst.first, storage, row_major_strides(&g.ty(inst.first).dims), 0);
            }
            _ if is_alias(inst) => {
                let from = self.operand(inst, 0)?;
                let view =
                    Strided { root: inst.operands[0], dims: from.dims, strides: from.strides, offset: from.offset };
                let dims = &g.ty(inst.first).dims;
                let moved = match &inst.attrs {
                    Attrs::Dims(p) if inst.kind == OpKind::Transpose => Some(view.transpose(p)),
                    Attrs::Dims(d) if inst.kind == OpKind::BroadcastInDim => Some(view.broadcast(dims, d)),
                    Attrs::Dims(d) => Some(view.reverse(d)),
                    Attrs::Slice { start, stride, .. } => Some(view.slice(dims, start, stride)),
                    _ => view.reshape(dims),
                };
                let moved = moved.ok_or_else(|| {
                    TypeError::new(format!("reshape to {} of memory that is not dense", g.ty(inst.first)))
                })?;
                self.set(inst.first, from.storage, moved.strides, moved.offset);
            }
            (OpKind::Iota, _) => return Err(TypeError::new("an iota outside of a fusion")),
            _ => {
                for v in inst.results() {
                    let Some(Stored { root, strides, offset }) = self.stored[v.0 as usize].clone() else {
                        self.dense(v, Kind::Temp(id));
                        continue;
                    };
                    let storage = match self.roots.get(&root) {
                        Some(&s) => s,
                        None => self.storage(Kind::Temp(id), g.ty(root).bytes()),
                    };
                    self.roots.insert(root, storage);
                    self.set(v, storage, strides, offset);
                }
            }
        }
        Ok(())
    }

    fn constant(&mut self, inst: &Inst, l: &Arc<Literal>) {
        // A splat is one element, read with stride 0.
        let splat = l.is_splat();
        let key = if splat {
            Arc::new(Literal { ty: TensorType::scalar(l.ty.dtype), bytes: l.bytes.clone() })
        } else {
            l.clone()
        };
        let storage = match self.pool.get(&key) {
            Some(&s) => s,
            None => {
                let offset = (self.constants.len() as u64).next_multiple_of(ALIGN);
                self.constants.resize(offset as usize, 0);
                self.constants.extend_from_slice(&l.bytes);
                let s = self.storage(Kind::Constant(offset), l.bytes.len() as u64);
                self.pool.insert(key, s);
                s
            }
        };
        let dims = &self.graph.ty(inst.first).dims;
        let strides = if splat { Dims::from_elem(0, dims.len()) } else { row_major_strides(dims) };
        self.set(inst.first, storage, strides, 0);
    }
}

/// For every parameter of a body: it is read at no other index than that of the point being written. In a row kernel a
/// whole row counts as one point: reductions over it and values repeated along it stay within the row.
pub(crate) fn same_index_params(kind: FusionKind, body: &Graph) -> Vec<bool> {
    let stays = |inst: &Inst| match (inst.kind, &inst.attrs) {
        (k, _) if k.class() == Class::Elementwise => true,
        (OpKind::Reduce, _) => kind == FusionKind::Row,
        (OpKind::BroadcastInDim, Attrs::Dims(map)) => {
            let (from, to) = (body.ty(inst.operands[0]), body.ty(inst.first));
            let leading = map.iter().copied().eq(0..from.rank() as i64) && from.dims[..] == to.dims[..from.rank()];
            kind == FusionKind::Row && leading
        }
        _ => false,
    };
    let mut mapped = vec![false; body.n_values()];
    for inst in body.insts.iter().rev() {
        if !stays(inst) || inst.results().any(|v| mapped[v.0 as usize]) {
            inst.operands.iter().for_each(|v| mapped[v.0 as usize] = true);
        }
    }
    let mut ok = vec![true; body.params.len()];
    for inst in &body.insts {
        if let (OpKind::Parameter, Attrs::Index(i)) = (inst.kind, &inst.attrs) {
            ok[*i as usize] &= !mapped[inst.first.0 as usize];
        }
    }
    ok
}
