//! Traces: the ops recorded since the last cut.
use crate::{Sig, Storage};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A user's source line, as the frame table of the front end numbers it; 0 is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FrameId(pub u32);

/// One recorded op.
#[derive(Clone, Debug)]
pub struct Node {
    pub sig: Arc<Sig>,
    /// Into [`Trace::refs`]: the op's storages, in the record's order.
    pub inputs: Range<u32>,
    /// Into [`Trace::refs`]: the storages of its fresh outputs, in order.
    pub outputs: Range<u32>,
    /// Into [`Trace::data`].
    pub data: Range<u32>,
    pub frame: FrameId,
}

/// How a trace uses one of its storages.
#[derive(Clone, Debug)]
pub struct StorageUse {
    pub storage: Arc<Storage>,
    /// Made by this trace (its old contents are undefined), or existing before.
    pub created: bool,
    /// Written by some node of this trace.
    pub written: bool,
}

/// The ops recorded since the last cut, with the storages they touch numbered by first use.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub nodes: Vec<Node>,
    pub storages: Vec<StorageUse>,
    /// Indices into `storages`.
    pub refs: Vec<u32>,
    pub data: Vec<u64>,
    /// Bytes of all outputs: the automatic cut looks at it.
    pub bytes: u64,
    /// Place in the order of all segments and outside writes; given when the trace is closed, from 1.
    pub sequence: u64,
    /// It was closed by or after [`crate::record::Recorder::cut_before_next`], which ends a step of a loop: its like will come again.
    pub ends_step: bool,
}

impl Trace {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// An empty trace with room for as much as `like` holds: the next step is mostly as long as this one.
    pub fn sized_like(like: &Trace) -> Trace {
        Trace {
            nodes: Vec::with_capacity(like.nodes.len()),
            storages: Vec::with_capacity(like.storages.len()),
            refs: Vec::with_capacity(like.refs.len()),
            data: Vec::with_capacity(like.data.len()),
            ..Trace::default()
        }
    }

    /// A copy with the structure of this trace but none of its memory, to be lowered on another thread.
    pub fn skeleton(&self) -> Trace {
        let storages = self.storages.iter().map(|u| StorageUse { storage: Storage::shadow(u.storage.nbytes()), ..*u });
        Trace {
            nodes: self.nodes.clone(),
            storages: storages.collect(),
            refs: self.refs.clone(),
            data: self.data.clone(),
            bytes: self.bytes,
            sequence: self.sequence,
            ends_step: self.ends_step,
        }
    }

    /// Storage indices of a node's record, in order.
    pub fn inputs(&self, node: &Node) -> &[u32] {
        &self.refs[node.inputs.start as usize..node.inputs.end as usize]
    }

    /// Storage indices of a node's fresh outputs, in order.
    pub fn outputs(&self, node: &Node) -> &[u32] {
        &self.refs[node.outputs.start as usize..node.outputs.end as usize]
    }

    /// Data words of a node.
    pub fn data(&self, node: &Node) -> &[u64] {
        &self.data[node.data.start as usize..node.data.end as usize]
    }

    /// Trace indices of the storages that `node` writes in place.
    pub fn writes(&self, node: &Node) -> SmallVec<[u32; 4]> {
        let record = self.inputs(node);
        // Undecodable arguments: everything the record names counts as written, so that nothing is skipped.
        let Ok(args) = node.sig.args() else { return record.into() };
        let mut out = SmallVec::new();
        for arg in node.sig.op.writes().filter_map(|i| args.get(i)) {
            arg.tensors(&mut |t| out.extend(record.get(t.storage as usize).copied()));
        }
        out
    }

    /// Which nodes have to run; `live[i]` says whether storage i can be read from outside afterwards.
    ///
    /// A node matters if somebody wants what it makes or writes; then it wants all it reads. A node that makes and
    /// writes no tensor is there for its effect (an assertion).
    pub fn needed(&self, live: &[bool]) -> Vec<bool> {
        let mut wanted = live.to_vec();
        let mut needed = vec![false; self.nodes.len()];
        for (node, needed) in self.nodes.iter().zip(&mut needed).rev() {
            let (inputs, outputs, writes) = (self.inputs(node), self.outputs(node), self.writes(node));
            let effect = outputs.is_empty() && writes.is_empty();
            *needed = effect || outputs.iter().chain(&writes).any(|&i| wanted[i as usize]);
            if *needed {
                inputs.iter().for_each(|&i| wanted[i as usize] = true);
            }
        }
        needed
    }
}
