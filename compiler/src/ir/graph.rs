//! The SSA graph: instructions in topological order, always.
//!
//! Passes do not edit a graph in place; they read one and build another through [`super::Builder`], so that order,
//! types and dead-code removal hold by construction.
use super::{Attrs, OpKind, TensorType};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A value: result of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value(pub u32);

/// An instruction, by its place in [`Graph::insts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstId(pub u32);

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inst {
    pub kind: OpKind,
    pub attrs: Attrs,
    pub operands: SmallVec<[Value; 4]>,
    /// First result; the others follow it.
    pub first: Value,
    pub n_results: u32,
    /// Which recorded op this came from (an index the recorder understands), for errors, profiles and dumps.
    pub loc: u32,
}

impl Inst {
    /// The results, in order.
    pub fn results(&self) -> impl Iterator<Item = Value> + use<> {
        (self.first.0..self.first.0 + self.n_results).map(Value)
    }

    /// The only result.
    pub fn result(&self) -> Value {
        debug_assert_eq!(self.n_results, 1);
        self.first
    }
}

/// What an input of a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParamKind {
    /// A tensor in memory, row-major.
    Tensor,
    /// A runtime scalar: 0-d, f64 or i64, passed by value.
    Scalar,
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Param {
    pub ty: TensorType,
    pub kind: ParamKind,
    /// This input's memory may be reused for graph result number `n` (which replaces it).
    pub donate_to: Option<u32>,
}

/// A function over tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Graph {
    pub name: String,
    pub params: Vec<Param>,
    pub insts: Vec<Inst>,
    /// Type and defining instruction of every value.
    values: Vec<(TensorType, InstId)>,
    pub results: Vec<Value>,
}

impl Graph {
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Makes room for as much as `other` has: what rebuilds a graph need not grow step by step.
    pub fn reserve_like(&mut self, other: &Graph) {
        self.insts.reserve(other.insts.len() + other.insts.len() / 8);
        self.values.reserve(other.values.len() + other.values.len() / 8);
    }

    pub fn ty(&self, v: Value) -> &TensorType {
        &self.values[v.0 as usize].0
    }

    /// The instruction that defines `v`.
    pub fn def(&self, v: Value) -> InstId {
        self.values[v.0 as usize].1
    }

    pub fn inst(&self, id: InstId) -> &Inst {
        &self.insts[id.0 as usize]
    }

    /// The instruction that defines `v`.
    pub fn def_inst(&self, v: Value) -> &Inst {
        self.inst(self.def(v))
    }

    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// Instructions with their ids, in topological order.
    pub fn iter(&self) -> impl Iterator<Item = (InstId, &Inst)> {
        self.insts.iter().enumerate().map(|(i, inst)| (InstId(i as u32), inst))
    }

    /// Types of the results.
    pub fn result_types(&self) -> Vec<TensorType> {
        self.results.iter().map(|&v| self.ty(v).clone()).collect()
    }

    /// For every value, the instructions that use it (each once), in order.
    pub fn users(&self) -> Vec<SmallVec<[InstId; 4]>> {
        let mut users = vec![SmallVec::new(); self.values.len()];
        for (id, inst) in self.iter() {
            for v in &inst.operands {
                let list: &mut SmallVec<[InstId; 4]> = &mut users[v.0 as usize];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        users
    }

    /// Appends an instruction whose result types are already known to be right.
    ///
    /// [`super::Builder`] is the checked way in; the text parser and the builder are the only callers.
    pub fn push(
        &mut self,
        kind: OpKind,
        attrs: Attrs,
        operands: SmallVec<[Value; 4]>,
        types: &[TensorType],
        loc: u32,
    ) -> InstId {
        let id = InstId(self.insts.len() as u32);
        let first = Value(self.values.len() as u32);
        self.values.extend(types.iter().map(|t| (t.clone(), id)));
        self.insts.push(Inst { kind, attrs, operands, first, n_results: types.len() as u32, loc });
        id
    }
}
