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
        let mut wanted = live.to_vec();
        let mut needed = vec![false; n];
        // The last needed node that uses a storage; a result stays.
        let mut dies_after = vec![0u32; live.len()];
        let mut seen = live.to_vec();
        // Backwards: a node matters if somebody wants what it makes or writes; then it wants what it reads. A node
        // that makes and writes nothing is there for its effect (an assertion).
        for (k, node) in trace.nodes.iter().enumerate().rev() {
            let (inputs, outputs) = (trace.inputs(node), trace.outputs(node));
            let writes = writes_of(trace, k);
            let effect = outputs.is_empty() && writes.is_empty() && node.sig.outs.is_empty();
            let hit = |i: &u32| wanted[*i as usize];
            if !(effect || outputs.iter().any(hit) || writes.iter().any(hit)) {
                continue;
            }
            needed[k] = true;
            for &i in inputs.iter().chain(outputs) {
                let i = i as usize;
                wanted[i] = true;
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

/// Trace indices of the storages that node `k` writes in place.
pub(crate) fn writes_of(trace: &Trace, k: usize) -> smallvec::SmallVec<[u32; 4]> {
    let node = &trace.nodes[k];
    let mut out = smallvec::SmallVec::new();
    let record = trace.inputs(node);
    // Undecodable arguments: everything the record names counts as written, so that nothing is skipped.
    let Ok(args) = node.sig.args() else { return record.into() };
    for i in node.sig.op.writes() {
        if let Some(arg) = args.get(i) {
            arg.tensors(&mut |t| out.extend(record.get(t.storage as usize).copied()));
        }
    }
    out
}
