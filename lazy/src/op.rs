//! Ops as the recorder sees them: registered once by name with what the schema says about writes and aliases.
use smallvec::SmallVec;
use std::sync::{Arc, RwLock};
use xxhash_rust::xxh3::xxh3_64;

/// Small dense id of a registered op in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

/// One return of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetInfo {
    /// The return is this argument itself (in-place and `out=` ops).
    pub alias_of: Option<u32>,
    /// A list of tensors.
    pub list: bool,
}

/// A registered op.
#[derive(Clone, Debug)]
pub struct OpInfo {
    pub id: OpId,
    /// `aten::add.Tensor`.
    pub name: String,
    /// Stable across processes and PyTorch versions: hash of the name. First word of every record of this op.
    pub hash: u64,
    /// Names of the arguments in the schema, for messages; may be missing.
    pub args: Vec<Box<str>>,
    /// Per argument: does the op write it (schema alias annotation `(a!)`)?
    pub written: SmallVec<[bool; 8]>,
    pub rets: SmallVec<[RetInfo; 4]>,
    /// How this op lowers to the IR; `None` makes it a call node.
    pub row: Option<&'static crate::aten::Row>,
}

impl OpInfo {
    /// Indices of the written arguments.
    pub fn writes(&self) -> impl Iterator<Item = usize> + '_ {
        self.written.iter().enumerate().filter(|(_, w)| **w).map(|(i, _)| i)
    }
}

/// Stable hash of an op's full name.
pub fn op_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// All registered ops; append-only.
#[derive(Debug, Default)]
pub struct OpTable {
    ops: RwLock<Vec<Arc<OpInfo>>>,
}

impl OpTable {
    /// Registers an op (again: the first registration stays) and returns it.
    pub fn register(&self, name: &str, written: &[bool], rets: &[RetInfo]) -> Arc<OpInfo> {
        self.register_named(name, &[], written, rets)
    }

    /// As [`OpTable::register`], with the names of the op's arguments.
    pub fn register_named(&self, name: &str, args: &[&str], written: &[bool], rets: &[RetInfo]) -> Arc<OpInfo> {
        let mut ops = self.ops.write().unwrap_or_else(|e| e.into_inner());
        if let Some(op) = ops.iter().find(|o| o.name == name) {
            return op.clone();
        }
        let op = Arc::new(OpInfo {
            id: OpId(ops.len() as u32),
            name: name.to_owned(),
            hash: op_hash(name),
            args: args.iter().map(|&a| a.into()).collect(),
            written: SmallVec::from_slice(written),
            rets: SmallVec::from_slice(rets),
            row: crate::aten::find(name),
        });
        ops.push(op.clone());
        op
    }

    pub fn get(&self, id: OpId) -> Option<Arc<OpInfo>> {
        self.ops.read().unwrap_or_else(|e| e.into_inner()).get(id.0 as usize).cloned()
    }
}
