//! The first step of a loop as one of its later steps.
//!
//! An optimizer makes its state in the first step: memory filled with zeros, then updated like in every later step. Such
//! a trace comes once, so it would run op by op even where the loop's program is known: from an earlier process, or for
//! another model of the same shapes. Without its fills it *is* the later step, with tensors of zeros for inputs.
use rsx_lazy::words::Arg;
use rsx_lazy::{Node, StorageUse, Trace};

/// What fills a tensor with zeros.
const FILL: &str = "aten::zero_";

/// A trace without the fills of storages that outlive it.
pub(crate) struct Continued {
    pub(crate) trace: Trace,
    pub(crate) live: Vec<bool>,
    /// Storages of `trace` that have to be all zeros when it begins.
    pub(crate) zeroed: Vec<u32>,
}

/// `trace` as it would look if the storages that it fills with zeros before any other use, and leaves behind, had been
/// filled before. None if there are none.
pub(crate) fn continued(trace: &Trace, live: &[bool]) -> Option<Continued> {
    let mut used = vec![false; trace.storages.len()];
    let fills = |node: &Node, used: &[bool]| match trace.inputs(node) {
        &[i] if trace.outputs(node).is_empty() && !used[i as usize] && live[i as usize] => {
            fills_whole(node, &trace.storages[i as usize]).then_some(i)
        }
        _ => None,
    };
    let mut zeroed = Vec::new();
    let mut kept = Vec::with_capacity(trace.nodes.len());
    for node in &trace.nodes {
        match fills(node, &used) {
            Some(i) => zeroed.push(i),
            None => kept.push(node),
        }
        trace.inputs(node).iter().chain(trace.outputs(node)).for_each(|&i| used[i as usize] = true);
    }
    if zeroed.is_empty() {
        return None;
    }
    let mut out =
        Trace { bytes: trace.bytes, sequence: trace.sequence, ends_step: trace.ends_step, ..Trace::default() };
    // Numbered by first use, as a recorder would.
    let mut number: Vec<Option<u32>> = vec![None; trace.storages.len()];
    for node in kept {
        let mut refs = |out: &mut Trace, of: &[u32]| {
            let start = out.refs.len() as u32;
            for &i in of {
                let n = *number[i as usize].get_or_insert_with(|| {
                    let of = &trace.storages[i as usize];
                    out.storages.push(StorageUse { written: of.created, ..of.clone() });
                    out.storages.len() as u32 - 1
                });
                out.refs.push(n);
            }
            start..out.refs.len() as u32
        };
        let (inputs, outputs) = (refs(&mut out, trace.inputs(node)), refs(&mut out, trace.outputs(node)));
        let start = out.data.len() as u32;
        out.data.extend_from_slice(trace.data(node));
        let node = Node { inputs, outputs, data: start..out.data.len() as u32, ..node.clone() };
        out.writes(&node).iter().for_each(|&i| out.storages[i as usize].written = true);
        out.nodes.push(node);
    }
    // One that nothing else uses is no part of the later step: the fill would be lost.
    let zeroed = zeroed.into_iter().map(|i| number[i as usize]).collect::<Option<Vec<u32>>>()?;
    let mut alive = vec![false; out.storages.len()];
    number.iter().zip(live).for_each(|(n, &l)| n.iter().for_each(|&n| alive[n as usize] = l));
    Some(Continued { trace: out, live: alive, zeroed })
}

/// Does the node fill all of the only storage it names?
fn fills_whole(node: &Node, of: &StorageUse) -> bool {
    let Ok([Arg::Tensor(t)]) = node.sig.args() else { return false };
    let nbytes = of.storage.nbytes();
    node.sig.op.name == FILL && !of.created && nbytes > 0 && t.covers(nbytes)
}
