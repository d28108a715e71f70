//! Places in the slab.
//!
//! Before intermediate values are packed ([`pack`]), what is alive at the peak may move into the memory of a result that
//! is written only later: a gradient's, say, that is made when the activation is done with. (Others stay: a slab that is
//! used over and over is in the cache.)
use super::bind::Bound;
use super::live::Live;
use super::pack::{Item, pack, peak};
use super::{Assigned, Kind, MemoryAnalysis, Plan, ResultPlan, Time};
use crate::ir::{Graph, InstId, ParamKind};
use crate::program::Place;

pub(crate) fn assign(graph: &Graph, bound: Bound, order: Vec<InstId>, live: Live) -> Plan {
    let computed: Vec<bool> = bound.storages.iter().map(|s| matches!(s.kind, Kind::Temp(_))).collect();
    let mut temp_slot = vec![false; live.slots.len()];
    for (s, &slot) in live.slot.iter().enumerate() {
        temp_slot[slot] |= computed[s];
    }
    let hosts = hosts(graph, &live, &temp_slot, order.len());
    let slab_slot = |k: usize| in_slab(&live, &temp_slot, &hosts, k).filter(|i| i.bytes > 0).map(|i| (k, i));
    let (todo, items): (Vec<usize>, Vec<Item>) = (0..live.slots.len()).filter_map(slab_slot).unzip();
    let packing = pack(&items);
    let slab = packing.bytes;
    let mut offset = vec![0u64; live.slots.len()];
    for (&k, at) in todo.iter().zip(packing.offsets) {
        offset[k] = at;
    }

    let place = |s: usize| {
        let slot = &live.slots[live.slot[s]];
        let place = match (bound.storages[s].kind, slot.result) {
            (Kind::Param(n), _) => Place::Param(n),
            (Kind::Scalar(n), _) => Place::Scalar(n),
            (Kind::Constant(offset), _) => Place::Constant { offset },
            (Kind::Temp(_), Some(n)) => Place::Result(n),
            (Kind::Temp(_), None) if hosts[live.slot[s]].is_some() => Place::Result(hosts[live.slot[s]].unwrap_or(0)),
            (Kind::Temp(_), None) => Place::Slab { offset: offset[live.slot[s]] },
        };
        Some(Assigned { place, from: slot.from, to: slot.to })
    };
    let assigned = (0..bound.storages.len()).map(place).collect();
    let tensor_bytes = |kind| graph.params.iter().filter(|p| p.kind == kind).map(|p| p.ty.bytes()).sum::<u64>();
    let temps =
        || bound.storages.iter().enumerate().filter(|&(s, _)| computed[s] && live.slots[live.slot[s]].result.is_none());
    let hosted = (0..live.slots.len()).filter(|&k| hosts[k].is_some()).map(|k| live.slots[k].bytes).sum();
    let memory = MemoryAnalysis {
        argument_bytes: tensor_bytes(ParamKind::Tensor),
        output_bytes: graph.results.iter().map(|&v| graph.ty(v).bytes()).sum(),
        alias_bytes: (graph.results.iter().zip(&live.results))
            .filter(|(_, r)| matches!(r, ResultPlan::Direct { alias: Some(_) } | ResultPlan::Unchanged { .. }))
            .map(|(&v, _)| graph.ty(v).bytes())
            .sum(),
        temp_bytes: slab,
        peak_bytes: slab_peak(&live, &temp_slot, &hosts).0,
        work_bytes: 0,
        hosted_bytes: hosted,
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
        work: Vec::new(),
        memory,
    }
}

/// Smallest slot that moves into a result's memory, in bytes.
const HOSTED: u64 = 64 << 10;

/// For every slot: the result in whose memory it lies before that result is written.
fn hosts(graph: &Graph, live: &Live, temp_slot: &[bool], end: usize) -> Vec<Option<u32>> {
    let mut hosts = vec![None; live.slots.len()];
    // Memory of results that are no parameters: from when on it is taken.
    let mut free: Vec<(u64, u32, usize)> = Vec::new();
    for (n, (&v, plan)) in graph.results.iter().zip(&live.results).enumerate() {
        let n = n as u32;
        let written = match plan {
            ResultPlan::Direct { alias: None } => {
                live.slots.iter().find(|s| s.result == Some(n) && s.bytes > 0).map(|s| s.from)
            }
            ResultPlan::Copy => Some(end),
            ResultPlan::Direct { alias: Some(_) } | ResultPlan::Unchanged { .. } => None,
        };
        if let Some(from) = written.filter(|_| graph.ty(v).bytes() >= HOSTED) {
            free.push((graph.ty(v).bytes(), n, from));
        }
    }
    free.sort_unstable();
    // Who lies where when.
    let mut taken: Vec<(u32, usize, usize)> = Vec::new();
    // The peak moves as slots leave it.
    loop {
        let (_, at) = slab_peak(live, temp_slot, &hosts);
        let at_peak = |k: &usize| {
            in_slab(live, temp_slot, &hosts, *k).is_some_and(|s| s.bytes >= HOSTED && s.from <= at && at <= s.to)
        };
        let mut slots: Vec<usize> = (0..live.slots.len()).filter(at_peak).collect();
        slots.sort_by_key(|&k| (std::cmp::Reverse(live.slots[k].bytes), live.slots[k].to));
        let mut moved = false;
        for k in slots {
            let s = &live.slots[k];
            let fits = |&&(bytes, n, from): &&(u64, u32, usize)| {
                bytes >= s.bytes && s.to < from && taken.iter().all(|&(m, f, t)| m != n || t < s.from || s.to < f)
            };
            // The smallest; of these the one that is needed first.
            let best = free.iter().filter(fits).min_by_key(|h| (h.0, h.2));
            if let Some(&(_, n, _)) = best {
                taken.push((n, s.from, s.to));
                hosts[k] = Some(n);
                moved = true;
            }
        }
        if !moved {
            return hosts;
        }
    }
}

/// A slot that lies in the slab, if anything does.
fn in_slab(live: &Live, temp_slot: &[bool], hosts: &[Option<u32>], k: usize) -> Option<Item> {
    let slot = &live.slots[k];
    let wanted = temp_slot[k] && slot.result.is_none() && hosts[k].is_none();
    wanted.then_some(Item { bytes: slot.bytes, from: slot.from, to: slot.to })
}

/// The most slab bytes live at a time, and when.
fn slab_peak(live: &Live, temp_slot: &[bool], hosts: &[Option<u32>]) -> (u64, Time) {
    peak((0..live.slots.len()).filter_map(|k| in_slab(live, temp_slot, hosts, k)))
}
