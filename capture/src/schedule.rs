//! What tier 0 needs to know of a trace: which nodes matter and when storages are used last.
use rsx_lazy::Trace;
use std::ops::Range;

/// Facts about a trace that hold for every trace of equal key.
#[derive(Debug)]
pub(crate) struct Schedule {
    needed: Vec<bool>,
    /// Storages whose memory may be freed after node n, as ranges into `frees`.
    frees_of: Vec<u32>,
    frees: Vec<u32>,
}

impl Schedule {
    /// `live[i]`: storage i is a result.
    pub(crate) fn new(trace: &Trace, live: &[bool]) -> Schedule {
        let n = trace.nodes.len();
        let needed = trace.needed(live);
        // The last needed node that uses a storage; a result stays.
        let mut dies_after = vec![0u32; live.len()];
        let mut seen = live.to_vec();
        for (k, node) in trace.nodes.iter().enumerate().rev().filter(|(k, _)| needed[*k]) {
            for &i in trace.inputs(node).iter().chain(trace.outputs(node)) {
                let i = i as usize;
                if !seen[i] {
                    seen[i] = true;
                    dies_after[i] = k as u32;
                }
            }
        }
        let mut frees_of = vec![0u32; n + 1];
        let mut order: Vec<u32> =
            (0..dies_after.len() as u32).filter(|&i| seen[i as usize] && !live[i as usize]).collect();
        order.sort_by_key(|&i| dies_after[i as usize]);
        for &i in &order {
            frees_of[dies_after[i as usize] as usize + 1] += 1;
        }
        for k in 0..n {
            frees_of[k + 1] += frees_of[k];
        }
        Schedule { needed, frees_of, frees: order }
    }

    pub(crate) fn needed(&self, node: usize) -> bool {
        self.needed[node]
    }

    /// Storages whose memory may be freed after node `node` ran.
    pub(crate) fn frees(&self, node: usize) -> &[u32] {
        &self.frees[self.frees_of[node] as usize..self.frees_of[node + 1] as usize]
    }

    /// Most bytes that the nodes of `range`, run one by one, hold above what is held when they begin. `has_memory[i]`:
    /// storage i has some by then.
    pub(crate) fn peak(&self, trace: &Trace, range: Range<usize>, mut has_memory: Vec<bool>) -> u64 {
        let bytes = |i: u32| trace.storages[i as usize].storage.nbytes() as i64;
        let (mut now, mut peak) = (0, 0);
        for n in range.filter(|&n| self.needed[n]) {
            let node = &trace.nodes[n];
            for &i in trace.inputs(node).iter().chain(trace.outputs(node)) {
                if !std::mem::replace(&mut has_memory[i as usize], true) {
                    now += bytes(i);
                }
            }
            peak = peak.max(now);
            for &i in self.frees(n) {
                if std::mem::replace(&mut has_memory[i as usize], false) {
                    now -= bytes(i);
                }
            }
        }
        peak as u64
    }

    /// Storages whose memory may be freed after the nodes of `range` ran.
    pub(crate) fn frees_in(&self, range: &Range<usize>) -> &[u32] {
        &self.frees[self.frees_of[range.start] as usize..self.frees_of[range.end] as usize]
    }
}
