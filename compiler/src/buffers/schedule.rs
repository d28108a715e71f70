//! The order of thunks: the recorded order, except that what frees much memory runs as soon as it can.
//!
//! Recorded programs are written so that values are used soon after they are made; the one thing they do late is the
//! optimiser, whose updates each free a gradient. So the list scheduler takes the first ready thunk in program order
//! unless another ready one gives back more memory than it takes.
//!
//! What they do early is what passes added: values computed again are ready long before their users. So each order is
//! walked once more from its end, where a thunk moves to right before its first user if that frees more, looking back,
//! than it takes. The order with the lowest peak is taken, the plainest of equals.
//!
//! A thunk that writes a donated parameter's memory waits for the other readers of that parameter, where that closes no
//! cycle: otherwise the donation could not be taken up.
use super::Kind;
use super::bind::Bound;
use crate::ir::{Graph, InstId, OpKind};
use ahash::AHashSet;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Memory a thunk has to give back to run ahead of its turn, in bytes.
const WORTH_MOVING: i64 = 64 << 10;
/// Thunks looked at before a donation's order is given up.
const SEARCH_LIMIT: usize = 4096;

pub(crate) fn schedule(graph: &Graph, bound: &Bound) -> Vec<InstId> {
    let waits = with_donations(graph, bound);
    let eager = Scheduler::new(graph, bound, &waits, true).run();
    let plain = Scheduler::new(graph, bound, &waits, false).run();
    let late = |order: &[InstId]| late(graph, bound, &waits, order);
    let all = [late(&eager), late(&plain), eager, plain];
    // Of equals the one nearest to what was recorded.
    let best = |i: &usize| (peak(graph, bound, &all[*i]), [2, 3, 0, 1][*i]);
    let at = (0..all.len()).min_by_key(best).unwrap_or(0);
    all.into_iter().nth(at).unwrap_or_default()
}

/// `order` with thunks as late as that lowers what is live.
fn late(graph: &Graph, bound: &Bound, waits: &[Vec<InstId>], order: &[InstId]) -> Vec<InstId> {
    let mut place = vec![0usize; graph.insts.len()];
    let mut unplaced = vec![0usize; graph.insts.len()];
    for (n, &id) in order.iter().enumerate() {
        place[id.0 as usize] = n;
        waits[id.0 as usize].iter().for_each(|w| unplaced[w.0 as usize] += 1);
    }
    let pinned = pinned(graph, bound);
    let temp = |s: usize| matches!(bound.storages[s].kind, Kind::Temp(_)) && !pinned[s];
    let reads = |id: InstId| -> Vec<usize> {
        let storage = |v: &crate::ir::Value| bound.bindings[v.0 as usize].as_ref().map(|b| b.storage);
        let mut out: Vec<usize> = graph.inst(id).operands.iter().filter_map(storage).collect();
        out.sort_unstable();
        out.dedup();
        out.retain(|&s| temp(s) && bound.readers[s].contains(&id));
        out
    };
    // Read by a thunk that has been placed.
    let mut live = vec![false; bound.storages.len()];
    let gain = |id: InstId, live: &[bool]| -> i64 {
        let bytes = |list: Vec<usize>, wanted: bool| -> i64 {
            list.into_iter().filter(|&s| temp(s) && live[s] == wanted).map(|s| bound.storages[s].bytes as i64).sum()
        };
        bytes(own_storages(graph, bound, id), true) - bytes(reads(id), false)
    };
    let mut ready: BinaryHeap<(bool, usize)> = BinaryHeap::new();
    let push = |id: InstId, live: &[bool], ready: &mut BinaryHeap<(bool, usize)>| {
        ready.push((gain(id, live) >= WORTH_MOVING, place[id.0 as usize]));
    };
    for &id in order.iter().filter(|id| unplaced[id.0 as usize] == 0) {
        push(id, &live, &mut ready);
    }
    let mut done = vec![false; graph.insts.len()];
    let mut out = Vec::with_capacity(order.len());
    while let Some((_, n)) = ready.pop() {
        let id = order[n];
        if std::mem::replace(&mut done[id.0 as usize], true) {
            continue;
        }
        out.push(id);
        for s in reads(id) {
            if !std::mem::replace(&mut live[s], true) {
                // Its other readers cost less now.
                for &r in &bound.readers[s] {
                    if !done[r.0 as usize] && unplaced[r.0 as usize] == 0 {
                        push(r, &live, &mut ready);
                    }
                }
            }
        }
        for w in &waits[id.0 as usize] {
            unplaced[w.0 as usize] -= 1;
            if unplaced[w.0 as usize] == 0 {
                push(*w, &live, &mut ready);
            }
        }
    }
    out.reverse();
    out
}

/// What every step waits for, donations included.
fn with_donations(graph: &Graph, bound: &Bound) -> Vec<Vec<InstId>> {
    let mut waits = bound.waits.clone();
    let mut succ: Vec<Vec<InstId>> = vec![Vec::new(); graph.insts.len()];
    for &id in &bound.thunks {
        for w in &waits[id.0 as usize] {
            succ[w.0 as usize].push(id);
        }
    }
    for inst in &graph.insts {
        let (OpKind::Parameter, crate::ir::Attrs::Index(p)) = (inst.kind, &inst.attrs) else { continue };
        let Some(result) = graph.params[*p as usize].donate_to else { continue };
        let Some(&value) = graph.results.get(result as usize) else { continue };
        let (Some(from), Some(to)) = (&bound.bindings[inst.first.0 as usize], &bound.bindings[value.0 as usize]) else {
            continue;
        };
        let Kind::Temp(writer) = bound.storages[to.storage].kind else { continue };
        for &reader in bound.readers[from.storage].iter().filter(|&&r| r != writer) {
            if !reaches(&succ, writer, reader) {
                waits[writer.0 as usize].push(reader);
                succ[reader.0 as usize].push(writer);
            }
        }
    }
    waits
}

/// A path leads from `from` to `to` (or the search was given up, which counts as one).
fn reaches(succ: &[Vec<InstId>], from: InstId, to: InstId) -> bool {
    let mut seen = AHashSet::new();
    let mut stack = vec![from];
    while let Some(id) = stack.pop() {
        if id == to || seen.len() > SEARCH_LIMIT {
            return true;
        }
        if seen.insert(id) {
            stack.extend(succ[id.0 as usize].iter().copied());
        }
    }
    false
}

struct Scheduler<'s> {
    graph: &'s Graph,
    bound: &'s Bound,
    eager: bool,
    /// Waits not yet done, by instruction.
    left: Vec<usize>,
    succ: Vec<Vec<InstId>>,
    /// Readers not yet done, by storage.
    unread: Vec<usize>,
    /// Results stay.
    pinned: Vec<bool>,
    /// Ready steps, the best first: (not worth moving, program order).
    ready: BinaryHeap<Reverse<(bool, InstId)>>,
    done: Vec<bool>,
}

impl<'s> Scheduler<'s> {
    fn new(graph: &'s Graph, bound: &'s Bound, waits: &[Vec<InstId>], eager: bool) -> Self {
        let mut succ: Vec<Vec<InstId>> = vec![Vec::new(); graph.insts.len()];
        let mut left = vec![0; graph.insts.len()];
        for &id in &bound.thunks {
            left[id.0 as usize] = waits[id.0 as usize].len();
            for w in &waits[id.0 as usize] {
                succ[w.0 as usize].push(id);
            }
        }
        Scheduler {
            graph,
            bound,
            eager,
            left,
            succ,
            unread: bound.readers.iter().map(Vec::len).collect(),
            pinned: pinned(graph, bound),
            ready: BinaryHeap::new(),
            done: vec![false; graph.insts.len()],
        }
    }

    fn run(mut self) -> Vec<InstId> {
        let mut order = Vec::with_capacity(self.bound.thunks.len());
        for &id in &self.bound.thunks {
            if self.left[id.0 as usize] == 0 {
                self.push(id);
            }
        }
        while let Some(Reverse((_, id))) = self.ready.pop() {
            if std::mem::replace(&mut self.done[id.0 as usize], true) {
                continue;
            }
            order.push(id);
            let operands: Vec<usize> = self.storages_read(id);
            for s in operands {
                self.unread[s] -= 1;
                // Its last reader frees it now.
                if self.eager && self.unread[s] == 1 {
                    let last = self.bound.readers[s].iter().copied().find(|r| !self.done[r.0 as usize]);
                    if let Some(r) = last.filter(|r| self.left[r.0 as usize] == 0) {
                        self.push(r);
                    }
                }
            }
            for next in std::mem::take(&mut self.succ[id.0 as usize]) {
                self.left[next.0 as usize] -= 1;
                if self.left[next.0 as usize] == 0 {
                    self.push(next);
                }
            }
        }
        order
    }

    fn storages_read(&self, id: InstId) -> Vec<usize> {
        let mut out: Vec<usize> = Vec::new();
        for v in &self.graph.inst(id).operands {
            if let Some(b) = &self.bound.bindings[v.0 as usize]
                && !out.contains(&b.storage)
                && self.bound.readers[b.storage].contains(&id)
            {
                out.push(b.storage);
            }
        }
        out
    }

    fn push(&mut self, id: InstId) {
        let worth = self.eager && self.freed(id) >= WORTH_MOVING;
        self.ready.push(Reverse((!worth, id)));
    }

    /// Bytes given back by running `id` now, less what it takes.
    fn freed(&self, id: InstId) -> i64 {
        let temp = |s: usize| matches!(self.bound.storages[s].kind, Kind::Temp(_)) && !self.pinned[s];
        let freed: u64 = self
            .storages_read(id)
            .into_iter()
            .filter(|&s| temp(s) && self.unread[s] == 1)
            .map(|s| self.bound.storages[s].bytes)
            .sum();
        let own = own_storages(self.graph, self.bound, id);
        let taken: u64 = own.into_iter().filter(|&s| temp(s)).map(|s| self.bound.storages[s].bytes).sum();
        freed as i64 - taken as i64
    }
}

/// Storages that `id` writes, each once.
fn own_storages(graph: &Graph, bound: &Bound, id: InstId) -> Vec<usize> {
    let mut own: Vec<usize> = Vec::new();
    for v in graph.inst(id).results() {
        if let Some(b) = &bound.bindings[v.0 as usize]
            && bound.storages[b.storage].kind == Kind::Temp(id)
            && !own.contains(&b.storage)
        {
            own.push(b.storage);
        }
    }
    own
}

/// Storages of results: not in the slab.
fn pinned(graph: &Graph, bound: &Bound) -> Vec<bool> {
    let mut pinned = vec![false; bound.storages.len()];
    for v in &graph.results {
        if let Some(b) = &bound.bindings[v.0 as usize] {
            pinned[b.storage] = true;
        }
    }
    pinned
}

/// The most slab bytes live at a time under `order`.
pub(crate) fn peak(graph: &Graph, bound: &Bound, order: &[InstId]) -> u64 {
    let pinned = pinned(graph, bound);
    let mut unread: Vec<usize> = bound.readers.iter().map(Vec::len).collect();
    let (mut now, mut peak) = (0u64, 0u64);
    let temp = |s: usize| matches!(bound.storages[s].kind, Kind::Temp(_)) && !pinned[s];
    for &id in order {
        let inst = graph.inst(id);
        let own: Vec<usize> = own_storages(graph, bound, id).into_iter().filter(|&s| temp(s)).collect();
        now += own.iter().map(|&s| bound.storages[s].bytes).sum::<u64>();
        peak = peak.max(now);
        let mut seen: Vec<usize> = Vec::new();
        for v in &inst.operands {
            if let Some(b) = &bound.bindings[v.0 as usize]
                && !seen.contains(&b.storage)
                && inst.kind != OpKind::OptimizationBarrier
            {
                seen.push(b.storage);
                unread[b.storage] -= 1;
                if unread[b.storage] == 0 && temp(b.storage) {
                    now -= bound.storages[b.storage].bytes;
                }
            }
        }
        for s in own {
            if unread[s] == 0 {
                now -= bound.storages[s].bytes;
            }
        }
    }
    peak
}
