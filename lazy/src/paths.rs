//! What traces have looked like so far: a prefix tree of recorded ops.
//!
//! The recorder follows it while it records. Where the next op is the expected one, its signature is found by comparing
//! words with it: no hash, no look-up; and its user frame is known, which saves a look at the user's stack. Branches
//! (every tenth step logs; two networks are trained in turn) are siblings, the one taken last in front. Leaving the
//! known paths costs nothing but a new node: recording and following are one walk.
use crate::{FrameId, Sig};
use std::sync::Arc;

/// A place in the tree; 0 is the start of every trace.
pub(crate) type Place = u32;

const NONE: Place = 0;

/// Nodes (32 bytes each); beyond, all are forgotten and learnt again.
const MAX_NODES: usize = 1 << 20;

/// Siblings looked at; those beyond have not been seen for long and may as well be learnt again.
const MAX_SIBLINGS: usize = 64;

#[derive(Debug)]
struct PathNode {
    sig: Arc<Sig>,
    /// Hash of the storages' numbers.
    operands: u64,
    frame: FrameId,
    /// The child taken last.
    child: Place,
    sibling: Place,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Node n stands for place n + 1.
    nodes: Vec<PathNode>,
    /// First ops of traces.
    first: Place,
}

impl Paths {
    fn node(&self, place: Place) -> Option<&PathNode> {
        self.nodes.get((place as usize).wrapping_sub(1))
    }

    fn child(&self, place: Place) -> Place {
        if place == NONE { self.first } else { self.node(place).map_or(NONE, |n| n.child) }
    }

    fn set_child(&mut self, place: Place, child: Place) {
        match self.nodes.get_mut((place as usize).wrapping_sub(1)) {
            Some(node) => node.child = child,
            None => self.first = child,
        }
    }

    /// The signature that followed `place` last time, if it is the one of these words.
    pub(crate) fn expected(&self, place: Place, words: &[u64]) -> Option<&Arc<Sig>> {
        self.node(self.child(place)).map(|n| &n.sig).filter(|s| *s.words == *words)
    }

    /// The place behind `place` by an op, with the op's user frame if it was there before.
    pub(crate) fn step(&mut self, place: Place, sig: &Arc<Sig>, operands: u64) -> (Place, Option<FrameId>) {
        let first = self.child(place);
        let (mut at, mut before) = (first, NONE);
        for _ in 0..MAX_SIBLINGS {
            let Some(node) = self.node(at) else { break };
            if node.operands == operands && Arc::ptr_eq(&node.sig, sig) {
                let (frame, sibling) = (node.frame, node.sibling);
                if before != NONE {
                    self.nodes[before as usize - 1].sibling = sibling;
                    self.nodes[at as usize - 1].sibling = first;
                    self.set_child(place, at);
                }
                return (at, Some(frame));
            }
            (before, at) = (at, node.sibling);
        }
        if self.nodes.len() >= MAX_NODES {
            self.clear();
            return self.step(NONE, sig, operands);
        }
        let frame = FrameId::default();
        self.nodes.push(PathNode { sig: sig.clone(), operands, frame, child: NONE, sibling: first });
        let new = self.nodes.len() as Place;
        self.set_child(place, new);
        (new, None)
    }

    /// Notes the user frame of the op that led to `place`.
    pub(crate) fn set_frame(&mut self, place: Place, frame: FrameId) {
        if let Some(node) = self.nodes.get_mut((place as usize).wrapping_sub(1)) {
            node.frame = frame;
        }
    }

    /// Forgets everything; every place but the start is void.
    pub(crate) fn clear(&mut self) {
        *self = Paths::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpId, OpInfo, SigFlags};

    fn sig(n: u64) -> Arc<Sig> {
        let name = format!("test::{n}");
        let op = OpInfo {
            id: OpId(0),
            hash: n,
            name,
            args: Vec::new(),
            written: Default::default(),
            rets: Default::default(),
            row: None,
        };
        Arc::new(Sig::new(Arc::new(op), &[n], &[], SigFlags::default()))
    }

    /// Walks a trace; how many of its ops were known.
    fn walk(paths: &mut Paths, sigs: &[Arc<Sig>], ops: &[usize]) -> usize {
        let mut at = 0;
        let mut known = 0;
        for &k in ops {
            let (next, frame) = paths.step(at, &sigs[k], k as u64);
            known += usize::from(frame == Some(FrameId(k as u32 + 1)));
            paths.set_frame(next, FrameId(k as u32 + 1));
            at = next;
        }
        known
    }

    #[test]
    fn every_branch_is_followed() {
        let sigs: Vec<_> = (0..100).map(sig).collect();
        let mut paths = Paths::default();
        let traces: [&[usize]; 4] = [&[0, 1, 2, 3], &[0, 1, 5, 3], &[0, 1, 2, 3, 4], &[7, 1]];
        assert_eq!(traces.map(|t| walk(&mut paths, &sigs, t)), [0, 2, 4, 0]);
        for _ in 0..3 {
            assert_eq!(traces.map(|t| walk(&mut paths, &sigs, t)), [4, 4, 5, 2]);
        }
        assert_eq!(paths.len(), 9);
        // What was taken last is expected next.
        assert!(paths.expected(0, &[7]).is_some() && paths.expected(0, &[0]).is_none());
        // Many siblings: the hot one stays in reach.
        for k in 10..100 {
            walk(&mut paths, &sigs, &[k]);
            assert_eq!(walk(&mut paths, &sigs, &[0, 1]), 2);
        }
    }
}
