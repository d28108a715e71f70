//! Places in the slab: best fit by decreasing size.
//!
//! Slots are placed from the largest down, each into the smallest gap between those already placed that are alive at the
//! same time (ties: the lowest), which is how XLA's heap does it.
use super::bind::{ALIGN, Bound};
use super::live::Live;
use super::{Assigned, Kind, MemoryAnalysis, Plan, ResultPlan};
use crate::ir::{Graph, InstId, ParamKind};
use crate::program::Place;

pub(crate) fn assign(graph: &Graph, bound: Bound, order: Vec<InstId>, live: Live) -> Plan {
    let computed: Vec<bool> = bound.storages.iter().map(|s| matches!(s.kind, Kind::Temp(_))).collect();
    let mut temp_slot = vec![false; live.slots.len()];
    for (s, &slot) in live.slot.iter().enumerate() {
        temp_slot[slot] |= computed[s];
    }
    let mut todo: Vec<usize> = (0..live.slots.len())
        .filter(|&k| temp_slot[k] && live.slots[k].result.is_none() && live.slots[k].bytes > 0)
        .collect();
    todo.sort_by_key(|&k| (std::cmp::Reverse(live.slots[k].bytes), live.slots[k].from));
    let mut offset = vec![0u64; live.slots.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut slab = 0u64;
    let mut busy: Vec<(u64, u64)> = Vec::new();
    for k in todo {
        let slot = &live.slots[k];
        let size = slot.bytes.next_multiple_of(ALIGN);
        busy.clear();
        busy.extend(placed.iter().filter_map(|&p| {
            let other = &live.slots[p];
            let meets = other.from <= slot.to && slot.from <= other.to;
            meets.then(|| (offset[p], offset[p] + other.bytes.next_multiple_of(ALIGN)))
        }));
        busy.sort_unstable();
        let (mut at, mut best): (u64, Option<(u64, u64)>) = (0, None);
        for &(from, to) in &busy {
            if from > at && from - at >= size && best.is_none_or(|(gap, _)| from - at < gap) {
                best = Some((from - at, at));
            }
            at = at.max(to);
        }
        offset[k] = best.map_or(at, |b| b.1);
        slab = slab.max(offset[k] + size);
        placed.push(k);
    }

    let place = |s: usize| {
        let slot = &live.slots[live.slot[s]];
        let place = match (bound.storages[s].kind, slot.result) {
            (Kind::Param(n), _) => Place::Param(n),
            (Kind::Scalar(n), _) => Place::Scalar(n),
            (Kind::Constant(offset), _) => Place::Constant { offset },
            (Kind::Temp(_), Some(n)) => Place::Result(n),
            (Kind::Temp(_), None) => Place::Slab { offset: offset[live.slot[s]] },
        };
        Some(Assigned { place, from: slot.from, to: slot.to })
    };
    let assigned = (0..bound.storages.len()).map(place).collect();
    let tensor_bytes = |kind| graph.params.iter().filter(|p| p.kind == kind).map(|p| p.ty.bytes()).sum::<u64>();
    let temps =
        || bound.storages.iter().enumerate().filter(|&(s, _)| computed[s] && live.slots[live.slot[s]].result.is_none());
    let memory = MemoryAnalysis {
        argument_bytes: tensor_bytes(ParamKind::Tensor),
        output_bytes: graph.results.iter().map(|&v| graph.ty(v).bytes()).sum(),
        alias_bytes: (graph.results.iter().zip(&live.results))
            .filter(|(_, r)| matches!(r, ResultPlan::Direct { alias: Some(_) } | ResultPlan::Unchanged { .. }))
            .map(|(&v, _)| graph.ty(v).bytes())
            .sum(),
        temp_bytes: slab,
        peak_bytes: super::schedule::peak(graph, &bound, &order),
        sum_bytes: temps().map(|(_, s)| s.bytes).sum(),
        constant_bytes: bound.constants.len() as u64,
    };
    Plan {
        storages: bound.storages,
        bindings: bound.bindings,
        constants: bound.constants,
        order,
        results: live.results,
        assigned,
        copy_before: live.copy_before,
        reused: live.reused,
        memory,
    }
}
