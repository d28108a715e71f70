//! Buffers: where every value of a fused graph lives, and in which order its thunks run.
//!
//! `bind` gives every value a view of a storage (renaming ops share their operand's), `schedule` orders the thunks,
//! `live` decides results, donation and in-place reuse over that order, `assign` packs what is left into one slab.
mod assign;
mod bind;
pub mod check;
mod live;
mod pack;
mod schedule;
mod stored;
mod work;

use crate::ir::{DType, Dims, Graph, InstId, TensorType, TypeError, Value};
use crate::program::{Place, Program};
pub(crate) use bind::{is_alias, same_index_params};
pub(crate) use stored::{stored, stores_in_any_order};
pub(crate) use work::Work;

/// A storage of a plan, by number.
pub(crate) type StorageId = usize;

/// What a storage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Tensor parameter n of the program.
    Param(u32),
    /// Runtime scalar n.
    Scalar(u32),
    /// At this offset of the constant pool.
    Constant(u64),
    /// Computed by this instruction.
    Temp(InstId),
}

/// Memory for one or more values.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
}

/// A value as elements of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) storage: StorageId,
    pub(crate) dtype: DType,
    pub(crate) dims: Dims,
    /// In elements.
    pub(crate) strides: Dims,
    pub(crate) offset: i64,
}

impl Binding {
    /// Covers its storage in row-major order.
    pub(crate) fn is_whole(&self, storage: &Storage) -> bool {
        let ty = TensorType::new(self.dtype, &self.dims);
        self.offset == 0 && ty.bytes() == storage.bytes && self.is_dense()
    }

    /// Row-major without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        let want = crate::ir::row_major_strides(&self.dims);
        self.dims.contains(&0) || (0..self.dims.len()).all(|i| self.dims[i] == 1 || self.strides[i] == want[i])
    }
}

/// How one result comes about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResultPlan {
    /// Its value is computed in the result's memory, which is that of a donated parameter if one is named.
    Direct { alias: Option<u32> },
    /// It is the parameter it replaces: nothing to do.
    Unchanged { alias: u32 },
    /// Copied from the value's storage at the end.
    Copy,
}

/// Time of a thunk: its place in [`Plan::order`].
pub(crate) type Time = usize;

/// A storage's place and lifetime (both ends included).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) place: Place,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

/// The plan for one fused graph.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) storages: Vec<Storage>,
    pub(crate) bindings: Vec<Option<Binding>>,
    pub(crate) constants: Vec<u8>,
    /// Thunks (and barriers) in the order they run.
    pub(crate) order: Vec<InstId>,
    pub(crate) results: Vec<ResultPlan>,
    /// `None` for storages nothing is stored in.
    pub(crate) assigned: Vec<Option<Assigned>>,
    /// Scatters and slice updates whose operand is copied to the output first.
    pub(crate) copy_before: Vec<InstId>,
    /// Storages that took the place of a dying operand: (new, old).
    pub(crate) reused: Vec<(StorageId, StorageId)>,
    /// Work memory of library kernels, in the slab.
    pub(crate) work: Vec<Work>,
    pub(crate) memory: MemoryAnalysis,
}

impl Plan {
    pub(crate) fn binding(&self, v: Value) -> Result<&Binding, TypeError> {
        self.bindings[v.0 as usize]
            .as_ref()
            .ok_or_else(|| TypeError::new(format!("value {} has no place in memory", v.0)))
    }
}

/// Bytes a program uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAnalysis {
    /// Tensor parameters.
    pub argument_bytes: u64,
    /// Results, those in donated parameters included.
    pub output_bytes: u64,
    /// Results in donated parameters.
    pub alias_bytes: u64,
    /// The slab: what intermediate values and the work memory of library kernels need at the worst moment, as packed.
    pub temp_bytes: u64,
    /// The most that is live at one time, before packing.
    pub peak_bytes: u64,
    /// The most work memory that one library kernel has.
    pub work_bytes: u64,
    /// Intermediate values that lie in the memory of results before those are written.
    pub hosted_bytes: u64,
    /// All intermediate values, as if none shared memory.
    pub sum_bytes: u64,
    /// The constant pool.
    pub constant_bytes: u64,
}

impl MemoryAnalysis {
    /// What one run holds: arguments, results of their own, the slab and constants; each as `rounded` by the device.
    pub fn total(&self, program: &Program, rounded: impl Fn(u64) -> u64) -> u64 {
        let results = program.results.iter().filter(|r| r.alias.is_none()).map(|r| rounded(r.ty.bytes()));
        let params = program.params.iter().map(|p| rounded(p.bytes()));
        results.chain(params).sum::<u64>() + rounded(program.slab_bytes) + rounded(self.constant_bytes)
    }
}

/// Plans `graph`, which is what [`crate::fusion::run`] returns.
pub(crate) fn plan(graph: &Graph) -> Result<Plan, TypeError> {
    let bound = bind::bind(graph)?;
    let order = schedule::schedule(graph, &bound);
    let live = live::analyse(graph, &bound, &order);
    Ok(assign::assign(graph, bound, order, live))
}
