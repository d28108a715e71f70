//! What tier 0 needs to know of a trace: which nodes matter and when storages are used last.
use rsx_lazy::Trace;

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

    /// Storages whose memory may be freed after the nodes of `range` ran.
    pub(crate) fn frees_in(&self, range: &std::ops::Range<usize>) -> &[u32] {
        &self.frees[self.frees_of[range.start] as usize..self.frees_of[range.end] as usize]
    }
}
