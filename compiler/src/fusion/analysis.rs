//! What every instruction is for fusion, and which stored values it reads, how.
use super::cluster::Reason;
use super::views::Strided;
use crate::cost;
use crate::ir::{Attrs, Class, Dims, Graph, Inst, InstId, OpKind, ParamKind, Value};
use smallvec::SmallVec;

/// Longest chain of 0-d arithmetic that every reader computes again for itself.
const SCALAR_CHAIN: u32 = 32;

/// What an instruction is for fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Not live.
    Dead,
    /// Memory that exists before the program runs: parameters, constants that are no splats.
    Given,
    /// Costs nothing where it is read: computed inside of every reader, never stored (unless forced).
    Inline,
    /// Belongs to exactly one kernel.
    Compute,
    /// Runs as a thunk of its own (contractions may get an epilogue).
    Opaque,
}

/// How an instruction reaches the elements of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Path {
    /// At the same index.
    Direct,
    /// At the leading part of the index: a value of the row space, repeated along the row.
    Row,
    /// At some other index of the same expression.
    Mapped,
    /// Through a reshape: only dense memory has that.
    Reshaped,
}

/// One stored value an instruction reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) value: Value,
    pub(crate) path: Path,
    /// How many elements are read along this path (with repetition).
    pub(crate) evals: i64,
}

/// Roles, forced values and reads of a graph.
pub(crate) struct Analysis<'g> {
    pub(crate) g: &'g Graph,
    role: Vec<Role>,
    /// Inline values that must be stored all the same.
    forced: Vec<bool>,
    /// For whom, and why.
    pub(crate) why_forced: Vec<(Value, InstId, Reason)>,
    /// 0-d arithmetic that is stored because it is a result, but computed again by its readers like any other.
    side: Vec<bool>,
    /// Transposes and concatenations that cost nothing: the library results they are made of are stored in their memory.
    stored_root: Vec<bool>,
    /// By instruction, for `Compute`, `Opaque` and forced ones.
    reads: Vec<SmallVec<[Read; 4]>>,
    /// Instructions that read a stored value.
    readers: Vec<SmallVec<[InstId; 4]>>,
    /// Results and what they are reshapes of.
    pub(crate) is_result: Vec<bool>,
    /// Instructions on the longest path of inline 0-d arithmetic that ends in a value.
    chain: Vec<u32>,
}

impl<'g> Analysis<'g> {
    pub(crate) fn new(g: &'g Graph) -> Self {
        let live = crate::passes::rewriter::live_insts(g);
        let mut a = Analysis {
            g,
            role: Vec::with_capacity(g.insts.len()),
            forced: vec![false; g.n_values()],
            why_forced: Vec::new(),
            side: vec![false; g.n_values()],
            stored_root: vec![false; g.n_values()],
            reads: vec![SmallVec::new(); g.insts.len()],
            readers: vec![SmallVec::new(); g.n_values()],
            is_result: vec![false; g.n_values()],
            chain: Vec::new(),
        };
        for s in crate::buffers::stored(g).into_iter().flatten() {
            a.stored_root[s.root.0 as usize] = true;
        }
        let mut chain = vec![0u32; g.n_values()];
        for (id, inst) in g.iter() {
            let role = if live[id.0 as usize] { a.classify(inst, &mut chain) } else { Role::Dead };
            a.role.push(role);
        }
        a.chain = chain;
        for &v in &g.results {
            a.force_result(v);
        }
        a.force_operands();
        for (id, inst) in g.iter() {
            if a.is_node(id) {
                let mut reads = SmallVec::new();
                for &v in &inst.operands {
                    let start = operand_path(g, inst, v);
                    a.trace(v, start, g.ty(v).numel(), &mut reads);
                }
                for r in &reads {
                    let list = &mut a.readers[r.value.0 as usize];
                    if list.last() != Some(&id) {
                        list.push(id);
                    }
                }
                a.reads[id.0 as usize] = reads;
            }
        }
        a
    }

    /// How many instructions a kernel may nest to compute `inst` from what is stored.
    pub(crate) fn nesting(&self, inst: &Inst) -> usize {
        1 + inst.operands.iter().map(|v| self.chain[v.0 as usize]).max().unwrap_or(0) as usize
    }

    fn classify(&self, inst: &Inst, chain: &mut [u32]) -> Role {
        let g = self.g;
        match inst.kind.class() {
            Class::Leaf => match &inst.attrs {
                Attrs::Literal(l) if l.is_splat() => Role::Inline,
                _ if inst.kind == OpKind::Iota => Role::Inline,
                _ => Role::Given,
            },
            Class::Elementwise => {
                if g.ty(inst.result()).rank() > 0 {
                    return Role::Compute;
                }
                let length: u32 = 1 + inst.operands.iter().map(|v| chain[v.0 as usize]).sum::<u32>();
                if length > SCALAR_CHAIN {
                    return Role::Compute;
                }
                chain[inst.first.0 as usize] = length;
                Role::Inline
            }
            Class::Movement => match inst.kind {
                OpKind::Concatenate if self.stored_root[inst.first.0 as usize] => Role::Inline,
                OpKind::Pad | OpKind::Concatenate => Role::Compute,
                _ => Role::Inline,
            },
            Class::Indexed => {
                // Writing a part of something big is done in place, not by computing all of it.
                let in_place = inst.kind == OpKind::DynamicUpdateSlice && !self.is_splat(inst.operands[0]);
                if in_place { Role::Opaque } else { Role::Compute }
            }
            Class::Random => Role::Compute,
            Class::Reduction if inst.kind == OpKind::Reduce => Role::Compute,
            Class::Reduction | Class::Contraction | Class::Library | Class::Structural => Role::Opaque,
        }
    }

    fn is_splat(&self, v: Value) -> bool {
        matches!(&self.g.def_inst(v).attrs, Attrs::Literal(l) if l.is_splat())
    }

    pub(crate) fn role(&self, id: InstId) -> Role {
        self.role[id.0 as usize]
    }

    pub(crate) fn forced(&self, v: Value) -> bool {
        self.forced[v.0 as usize]
    }

    /// Stored for the caller only.
    pub(crate) fn is_side(&self, v: Value) -> bool {
        self.side[v.0 as usize] && !self.forced(v)
    }

    /// Renames memory: a reshape, or a movement op in whose memory its operands are stored.
    pub(crate) fn is_renaming(&self, v: Value) -> bool {
        self.g.def_inst(v).kind == OpKind::Reshape || self.stored_root[v.0 as usize]
    }

    /// Has its own place in memory or in a kernel: not computed inside of its readers.
    pub(crate) fn is_stored(&self, v: Value) -> bool {
        self.role(self.g.def(v)) != Role::Inline || self.forced(v)
    }

    /// Owned by a cluster.
    pub(crate) fn is_node(&self, id: InstId) -> bool {
        match self.role(id) {
            Role::Compute | Role::Opaque => true,
            Role::Inline => self.forced(self.g.inst(id).first) || self.is_side(self.g.inst(id).first),
            Role::Dead | Role::Given => false,
        }
    }

    /// Runs in a generated kernel.
    pub(crate) fn is_fusible(&self, id: InstId) -> bool {
        self.role(id) == Role::Compute || (self.role(id) == Role::Inline && self.is_node(id))
    }

    pub(crate) fn reads(&self, id: InstId) -> &[Read] {
        &self.reads[id.0 as usize]
    }

    pub(crate) fn readers(&self, v: Value) -> &[InstId] {
        &self.readers[v.0 as usize]
    }

    /// A result must be memory of its own: inline values other than renamed stored ones are computed into it.
    fn force_result(&mut self, v: Value) {
        self.is_result[v.0 as usize] = true;
        let inst = self.g.def_inst(v);
        if self.role(self.g.def(v)) != Role::Inline {
            return;
        }
        if self.stored_root[v.0 as usize] {
            // Memory that library kernels write, through transposes or not.
            for &o in &inst.operands {
                let from = self.g.def_inst(o);
                self.is_result[o.0 as usize] = true;
                if from.kind == OpKind::Transpose {
                    self.is_result[from.operands[0].0 as usize] = true;
                }
            }
        } else if self.is_renaming(v) {
            self.force_result(inst.operands[0]);
        } else if inst.kind.class() == Class::Elementwise {
            self.side[v.0 as usize] = true;
        } else {
            self.force(v, self.g.def(v), Reason::Result);
        }
    }

    /// Stores inline value `v` for `reader`.
    fn force(&mut self, v: Value, reader: InstId, why: Reason) {
        if !std::mem::replace(&mut self.forced[v.0 as usize], true) {
            self.why_forced.push((v, reader, why));
        }
    }

    /// Forces what cannot be read in place: operands of reshapes that kernels read, operands of library thunks that are
    /// no strided view of memory.
    fn force_operands(&mut self) {
        // Backwards: readers are known before what they read.
        for i in (0..self.g.insts.len()).rev() {
            let id = InstId(i as u32);
            if !self.is_node(id) {
                continue;
            }
            let inst = self.g.inst(id);
            if self.is_fusible(id) {
                let mut stack: SmallVec<[Value; 8]> = inst.operands.iter().copied().collect();
                while let Some(v) = stack.pop() {
                    if self.is_stored(v) {
                        continue;
                    }
                    let d = self.g.def_inst(v);
                    if self.is_renaming(v) {
                        self.force_base(v, id);
                    } else {
                        stack.extend(d.operands.iter().copied());
                    }
                }
                continue;
            }
            for &v in &inst.operands {
                self.force_for_library(id, v);
            }
        }
    }

    /// The operand of a reshape is memory: what is neither stored nor a renamed stored value is forced.
    fn force_base(&mut self, v: Value, reader: InstId) {
        if self.is_memory(v) {
            return;
        }
        let d = self.g.def_inst(v);
        if d.kind == OpKind::Reshape {
            self.force_base(d.operands[0], reader);
        } else {
            self.force(v, reader, Reason::Dense);
        }
    }

    fn force_for_library(&mut self, id: InstId, v: Value) {
        let inst = self.g.inst(id);
        if self.is_stored(v) {
            return;
        }
        // What a barrier lets through keeps its place, and kernels read places densely.
        if inst.kind == OpKind::OptimizationBarrier {
            return self.force_base(v, id);
        }
        let view = self.view(v);
        let root = view.root;
        if !self.is_memory(root) && !self.is_splat(root) {
            let base = self.g.def_inst(root);
            // A reshape that strides cannot express: its operand becomes dense memory.
            if base.kind == OpKind::Reshape {
                self.force_base(base.operands[0], id);
            } else {
                self.force(root, id, Reason::Strides);
            }
        }
        if let (OpKind::DotGeneral, Attrs::Dot(d)) = (inst.kind, &inst.attrs)
            && !super::dot::walkable(&self.view(v), inst, v, d)
        {
            self.force(v, id, Reason::Strides);
        }
    }

    /// `v` as a view of a stored value (or of a splat constant).
    pub(crate) fn view(&self, v: Value) -> Strided {
        Strided::of(self.g, v, &|v| self.is_memory(v))
    }

    /// Dense memory as it stands.
    fn is_memory(&self, v: Value) -> bool {
        self.is_stored(v) || self.stored_root[v.0 as usize]
    }

    /// Adds the stored values that `v` reads, seen along `path` with `evals` elements wanted.
    fn trace(&self, v: Value, path: Path, evals: i64, out: &mut SmallVec<[Read; 4]>) {
        let inst = self.g.def_inst(v);
        if self.is_stored(v) {
            if !out.iter().any(|r| r.value == v && r.path == path) {
                out.push(Read { value: v, path, evals });
            }
            return;
        }
        let next = match inst.kind {
            OpKind::Reshape => Path::Reshaped,
            OpKind::BroadcastInDim if path == Path::Direct && is_row_broadcast(self.g, inst) => Path::Row,
            _ if inst.kind.class() == Class::Elementwise => path,
            _ if path == Path::Reshaped => Path::Reshaped,
            _ => Path::Mapped,
        };
        for &o in &inst.operands {
            // Scalars are computed once per kernel, not once per element.
            let evals = if self.g.ty(o).rank() == 0 { 1 } else { evals };
            self.trace(o, next, evals, out);
        }
    }

    /// The dims an instruction walks: its result's, or its operand's for reductions.
    pub(crate) fn space(&self, inst: &Inst) -> Dims {
        let v = if inst.kind == OpKind::Reduce { inst.operands[0] } else { inst.first };
        self.g.ty(v).dims.clone()
    }

    /// Bytes of a value in memory; runtime scalars and single elements count as nothing.
    pub(crate) fn bytes(&self, v: Value) -> u64 {
        let ty = self.g.ty(v);
        if ty.rank() == 0 { 0 } else { ty.bytes() }
    }

    /// Read from memory at the same index or repeated, or computed from constants: what an epilogue can take.
    pub(crate) fn is_plain(&self, v: Value) -> bool {
        if self.is_stored(v) {
            return true;
        }
        let inst = self.g.def_inst(v);
        let simple = match inst.kind.class() {
            Class::Elementwise => true,
            Class::Leaf => inst.kind == OpKind::Constant,
            _ => matches!(inst.kind, OpKind::BroadcastInDim | OpKind::Reshape),
        };
        simple && inst.operands.iter().all(|&o| self.is_plain(o))
    }

    /// Operations per element of an instruction.
    pub(crate) fn ops(&self, id: InstId) -> f64 {
        cost::element_ops(self.g.inst(id).kind)
    }

    /// `v` is a runtime scalar.
    pub(crate) fn is_scalar_param(&self, v: Value) -> bool {
        let inst = self.g.def_inst(v);
        match (inst.kind, &inst.attrs) {
            (OpKind::Parameter, Attrs::Index(i)) => self.g.params[*i as usize].kind == ParamKind::Scalar,
            _ => false,
        }
    }
}

/// How `inst` itself reaches the elements of its operand `v`.
fn operand_path(g: &Graph, inst: &Inst, v: Value) -> Path {
    match inst.kind {
        OpKind::BroadcastInDim if is_row_broadcast(g, inst) => Path::Row,
        OpKind::Reshape => Path::Reshaped,
        OpKind::Reduce => Path::Direct,
        k if k.class() == Class::Elementwise => Path::Direct,
        // The indices of a gather are read at the leading part of the result's index.
        OpKind::Gather if v != inst.operands[0] => {
            if g.ty(v).dims == g.ty(inst.first).dims {
                Path::Direct
            } else {
                Path::Row
            }
        }
        _ => Path::Mapped,
    }
}

/// The operand's dimensions are the leading ones of the result.
fn is_row_broadcast(g: &Graph, inst: &Inst) -> bool {
    let Attrs::Dims(map) = &inst.attrs else { return false };
    let (from, to) = (g.ty(inst.operands[0]), g.ty(inst.first));
    map.iter().copied().eq(0..from.rank() as i64) && from.dims[..] == to.dims[..from.rank()]
}
