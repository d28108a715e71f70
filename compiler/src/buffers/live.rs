//! Lifetimes over the schedule, and who may share whose memory: results, donated parameters, in-place writes.
use super::bind::{Bound, same_index_params};
use super::{Kind, ResultPlan, StorageId, Time};
use crate::ir::{Attrs, FusionKind, Graph, Inst, InstId, OpKind, TensorType, Value};
use ahash::AHashMap;

/// Smaller operands keep their places: nothing is gained.
const WORTH_SHARING: u64 = 256;

/// Lifetimes and sharing.
pub(crate) struct Live {
    /// Group of every storage: storages of a group have one place.
    pub(crate) slot: Vec<usize>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) results: Vec<ResultPlan>,
    pub(crate) copy_before: Vec<InstId>,
    pub(crate) reused: Vec<(StorageId, StorageId)>,
}

/// Storages that share a place one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) from: Time,
    pub(crate) to: Time,
    pub(crate) bytes: u64,
    /// In this result's memory instead of the slab.
    pub(crate) result: Option<u32>,
    /// Which is a parameter's memory.
    pub(crate) donated: bool,
}

pub(crate) fn analyse(graph: &Graph, bound: &Bound, order: &[InstId]) -> Live {
    let mut time = vec![usize::MAX; graph.insts.len()];
    for (t, id) in order.iter().enumerate() {
        time[id.0 as usize] = t;
    }
    let mut live = Live {
        slot: (0..bound.storages.len()).collect(),
        slots: Vec::with_capacity(bound.storages.len()),
        results: Vec::new(),
        copy_before: Vec::new(),
        reused: Vec::new(),
    };
    for (s, storage) in bound.storages.iter().enumerate() {
        let last = bound.readers[s].iter().map(|r| time[r.0 as usize]).max();
        let from = match storage.kind {
            Kind::Temp(id) => time[id.0 as usize],
            Kind::Param(_) | Kind::Scalar(_) | Kind::Constant(_) => 0,
        };
        live.slots.push(Slot {
            from,
            to: last.unwrap_or(from).max(from),
            bytes: storage.bytes,
            result: None,
            donated: false,
        });
    }
    let mut a = Sharing { graph, bound, time: &time, end: order.len(), live };
    a.results();
    for &id in order {
        a.in_place(id);
    }
    a.live
}

struct Sharing<'s> {
    graph: &'s Graph,
    bound: &'s Bound,
    time: &'s [Time],
    /// After the last thunk.
    end: Time,
    live: Live,
}

impl Sharing<'_> {
    fn results(&mut self) {
        let mut donor: AHashMap<u32, (u32, Value)> = AHashMap::new();
        let mut tensor = 0;
        for (i, p) in self.graph.params.iter().enumerate() {
            if p.kind == crate::ir::ParamKind::Tensor {
                if let (Some(r), Some(v)) = (p.donate_to, self.parameter(i as u32)) {
                    donor.entry(r).or_insert((tensor, v));
                }
                tensor += 1;
            }
        }
        let mut taken: Vec<Option<u32>> = vec![None; self.bound.storages.len()];
        for (n, &v) in self.graph.results.iter().enumerate() {
            let n = n as u32;
            let Some(binding) = self.bound.bindings[v.0 as usize].as_ref() else {
                self.live.results.push(ResultPlan::Copy);
                continue;
            };
            let s = binding.storage;
            let storage = &self.bound.storages[s];
            let whole = binding.is_whole(storage);
            let donor = donor.get(&n).copied();
            let plan = match (storage.kind, donor) {
                (Kind::Param(p), Some((d, _))) if p == d && whole => ResultPlan::Unchanged { alias: d },
                (Kind::Temp(writer), donor) if whole && taken[s].is_none() => {
                    let alias = donor.filter(|&(_, param)| self.can_donate(param, v, writer)).map(|d| d.0);
                    taken[s] = Some(n);
                    self.live.slots[s].result = Some(n);
                    self.live.slots[s].donated = alias.is_some();
                    ResultPlan::Direct { alias }
                }
                _ => ResultPlan::Copy,
            };
            // Read by the copy at the end, or handed out.
            self.live.slots[s].to = self.end;
            self.live.results.push(plan);
        }
    }

    /// The value of parameter number `i`.
    fn parameter(&self, i: u32) -> Option<Value> {
        let is = |inst: &&Inst| inst.kind == OpKind::Parameter && inst.attrs == Attrs::Index(i);
        self.graph.insts.iter().find(is).map(|inst| inst.first)
    }

    /// `writer` may write result `v` into the memory of parameter `param`: nobody reads it later, and `writer` itself
    /// reads each element no later than it writes it.
    fn can_donate(&self, param: Value, v: Value, writer: InstId) -> bool {
        let Some(from) = self.bound.bindings[param.0 as usize].as_ref() else { return false };
        let (a, b): (&TensorType, &TensorType) = (self.graph.ty(param), self.graph.ty(v));
        let at = self.time[writer.0 as usize];
        // A copy of the parameter into another result is made at the end.
        let copied = self
            .graph
            .results
            .iter()
            .any(|&r| self.bound.bindings[r.0 as usize].as_ref().is_some_and(|b| b.storage == from.storage));
        let early = |r: &InstId| {
            let t = self.time[r.0 as usize];
            t < at || (*r == writer && self.in_place_operand(writer, v, from.storage))
        };
        a == b && !copied && self.bound.readers[from.storage].iter().all(early)
    }

    /// `id` may write its result `v` over storage `s`, which it reads.
    fn in_place_operand(&self, id: InstId, v: Value, s: StorageId) -> bool {
        let inst = self.graph.inst(id);
        let reads = |i: usize| self.bound.bindings[inst.operands[i].0 as usize].as_ref().filter(|b| b.storage == s);
        match (inst.kind, &inst.attrs) {
            (OpKind::Fusion, Attrs::Fusion { kind, body }) => {
                let same = same_index_params(*kind, body);
                // `v` may be a reshape of what the kernel writes.
                let to = self.bound.bindings[v.0 as usize].as_ref().map(|b| b.storage);
                let written = inst
                    .results()
                    .find(|r| self.bound.bindings[r.0 as usize].as_ref().map(|b| b.storage) == to)
                    .unwrap_or(v);
                let out = self.graph.ty(written);
                (0..inst.operands.len()).all(|i| {
                    reads(i).is_none_or(|b| {
                        // Of the result's dims, so that equal elements belong to equal points.
                        same[i]
                            && b.is_whole(&self.bound.storages[s])
                            && b.dims == out.dims
                            && b.dtype.size() == out.dtype.size()
                    })
                })
            }
            (OpKind::Scatter | OpKind::DynamicUpdateSlice, _) => {
                reads(0).is_some_and(|b| b.is_whole(&self.bound.storages[s]))
                    && (1..inst.operands.len()).all(|i| reads(i).is_none())
            }
            _ => false,
        }
    }

    /// Decides for one thunk: in-place ops get their operand's memory or a copy of it, loops, rows and epilogues the
    /// memory of an operand that dies there.
    fn in_place(&mut self, id: InstId) {
        let inst = self.graph.inst(id);
        let must = matches!(inst.kind, OpKind::Scatter | OpKind::DynamicUpdateSlice);
        let may = matches!(
            &inst.attrs,
            Attrs::Fusion { kind: FusionKind::Loop | FusionKind::Row | FusionKind::Epilogue, .. }
        );
        if !must && !may {
            return;
        }
        let mut used: Vec<StorageId> = Vec::new();
        for v in inst.results() {
            let Some(to) = self.bound.bindings[v.0 as usize].as_ref().map(|b| b.storage) else { continue };
            let candidates = if must { 1 } else { inst.operands.len() };
            let mut shared = false;
            for i in 0..candidates {
                let Some(from) = self.bound.bindings[inst.operands[i].0 as usize].as_ref() else { continue };
                let s = from.storage;
                if !used.contains(&s) && self.shares(id, v, s, to) {
                    used.push(s);
                    shared = true;
                    break;
                }
            }
            if must && !shared {
                self.live.copy_before.push(id);
            }
        }
    }

    /// Gives storage `to` (of `v`, computed by `id`) the place of storage `s`, if that is right.
    fn shares(&mut self, id: InstId, v: Value, s: StorageId, to: StorageId) -> bool {
        let at = self.time[id.0 as usize];
        let (old, new) = (self.live.slot[s], self.live.slot[to]);
        // Taken up donation: the same memory already.
        if let Kind::Param(p) = self.bound.storages[s].kind {
            let result = self.live.slots[new].result;
            let alias = result.and_then(|n| self.live.results.get(n as usize));
            return alias == Some(&ResultPlan::Direct { alias: Some(p) }) && self.in_place_operand(id, v, s);
        }
        if !matches!(self.bound.storages[s].kind, Kind::Temp(_)) || !self.in_place_operand(id, v, s) {
            return false;
        }
        let (a, b) = (&self.live.slots[old], &self.live.slots[new]);
        let dies = a.to == at && b.from == at && old != new;
        // A parameter's memory is not free before its donation, nor is another result's.
        if !dies || a.bytes != b.bytes || a.bytes < WORTH_SHARING || a.result.is_some() || b.donated {
            return false;
        }
        let (from, to_time, result) = (a.from, b.to, b.result);
        let merged = &mut self.live.slots[old];
        (merged.from, merged.to, merged.result) = (from, to_time, result);
        self.live.slots[new].bytes = 0;
        self.live.slots[new].result = None;
        for slot in &mut self.live.slot {
            if *slot == new {
                *slot = old;
            }
        }
        self.live.reused.push((to, s));
        true
    }
}
