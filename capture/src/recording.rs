//! Recordings: one call of a function, kept as a trace, to be compared with another call and then replayed.
use crate::key::Key;
use crate::looping;
use crate::{CutCause, Session, SessionError};
use rsx_lazy::words::{Arg, DataKind};
use rsx_lazy::{FrameId, Storage, Trace};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Copies of the segments submitted while it is open.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    open: AtomicBool,
    got: Mutex<Vec<Recording>>,
}

impl Tap {
    fn lock(&self) -> MutexGuard<'_, Vec<Recording>> {
        self.got.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A segment is being submitted.
    pub(crate) fn submitted(&self, trace: &Trace, live: &[bool], key: Key) {
        if self.open.load(Acquire) {
            self.lock().push(Recording::new(trace, live, key));
        }
    }
}

/// One call, recorded as one trace.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Structure and data; its storages are stand-ins.
    pub(crate) trace: Trace,
    /// The storages themselves, not kept alive.
    pub(crate) storages: Vec<Weak<Storage>>,
    pub(crate) live: Vec<bool>,
    pub(crate) key: Key,
    /// Storage of each tensor argument, if the trace uses it. Set by [`Recording::bind`].
    pub(crate) args: Vec<Option<u32>>,
    /// Storages that are fresh in every call: results, and gradients that the call sets.
    pub(crate) fresh: Vec<u32>,
    /// Storages made from host data during the call, with a hash of that data.
    pub(crate) constants: Vec<(Arc<Held>, u64)>,
    /// Storages that the call itself made: by an op, or without contents (`torch.empty`).
    pub(crate) made: Vec<bool>,
}

/// A storage that somebody outside of traces holds, so that no segment uses its memory up.
#[derive(Debug)]
pub struct Held(pub Arc<Storage>);

impl Held {
    pub fn new(storage: Arc<Storage>) -> Arc<Held> {
        storage.retain_external();
        Arc::new(Held(storage))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release_external();
    }
}

/// What the front end noticed of the storages of a call.
#[derive(Debug, Default)]
pub struct Noticed {
    /// Made from host data during the call, with a hash of that data.
    pub constants: Vec<(Arc<Held>, u64)>,
    /// Made during the call without an op.
    pub made: Vec<Weak<Storage>>,
}

/// An operand of a recording that is not part of its structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Index into the trace's data.
    pub word: u32,
    pub kind: DataKind,
    /// Bits in the earlier recording: those of an f64 if `kind` says so, else of an i64.
    pub before: u64,
    /// Bits in the later one.
    pub after: u64,
    pub op: String,
    pub frame: FrameId,
}

/// A storage of a recording as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub index: u32,
    /// Made by the call itself.
    pub made: bool,
    pub written: bool,
}

impl Recording {
    fn new(trace: &Trace, live: &[bool], key: Key) -> Recording {
        Recording {
            storages: trace.storages.iter().map(|u| Arc::downgrade(&u.storage)).collect(),
            trace: trace.skeleton(),
            live: live.to_vec(),
            key,
            args: Vec::new(),
            fresh: Vec::new(),
            constants: Vec::new(),
            made: trace.storages.iter().map(|u| u.created).collect(),
        }
    }

    /// Adds what the front end noticed during the call.
    pub fn notice(&mut self, noticed: Noticed) {
        for s in noticed.made {
            if let Some(i) = self.storages.iter().position(|t| t.ptr_eq(&s)) {
                self.made[i] = !noticed.constants.iter().any(|(c, _)| Arc::as_ptr(&c.0) == s.as_ptr());
            }
        }
        self.constants = noticed.constants;
    }

    /// Where the trace has `storage`.
    pub fn place(&self, storage: &Arc<Storage>) -> Option<Place> {
        let at = Arc::as_ptr(storage);
        let index = self.storages.iter().position(|s| s.as_ptr() == at)?;
        let used = &self.trace.storages[index];
        Some(Place { index: index as u32, made: self.made[index], written: used.written })
    }

    /// Says which storages are arguments (in their order) and which are made anew by every call.
    pub fn bind(&mut self, args: &[&Arc<Storage>], fresh: Vec<u32>) {
        self.args = args.iter().map(|s| self.place(s).filter(|p| !p.made).map(|p| p.index)).collect();
        self.fresh = fresh;
    }

    pub fn nodes(&self) -> usize {
        self.trace.nodes.len()
    }

    /// Does it hold a loop? Those live in this process only.
    pub fn has_loop(&self) -> bool {
        self.trace.nodes.iter().any(looping::is_loop)
    }

    /// Has `other` the same structure, liveness and roles of storages?
    pub fn is_like(&self, other: &Recording) -> bool {
        self.key == other.key && self.args == other.args && self.fresh == other.fresh && self.made == other.made
    }

    /// Data words with what they are, in order: (node, first data word of the node, argument that names its words).
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, u32, Arg)> + '_ {
        self.trace.nodes.iter().enumerate().flat_map(|(n, node)| {
            let mut found = Vec::new();
            if let Ok(args) = node.sig.args() {
                args.iter().for_each(|a| data_args(a, &mut |a| found.push(a.clone())));
            }
            let start = node.data.start;
            found.into_iter().map(move |a| (n, start, a))
        })
    }

    /// Words of random seeds: (word of the seed, word of the offset).
    pub(crate) fn draws(&self) -> Vec<(u32, u32)> {
        let rng = |(_, start, a)| if let Arg::Rng { slot } = a { Some((start + slot, start + slot + 1)) } else { None };
        self.words().filter_map(rng).collect()
    }

    /// Operands whose values differ from those of `before`, which is like this recording; random seeds apart.
    pub fn differences(&self, before: &Recording) -> Vec<Operand> {
        let mut out = Vec::new();
        for (n, start, arg) in self.words() {
            let slots: smallvec::SmallVec<[(u32, DataKind); 2]> = match arg {
                Arg::Data { kind, slot } => smallvec::smallvec![(slot, kind)],
                // A complex scalar of 16 bytes has two words.
                Arg::CpuScalar { dtype, slot, .. } if dtype.0 == 10 => {
                    smallvec::smallvec![(slot, DataKind::Int), (slot + 1, DataKind::Int)]
                }
                Arg::CpuScalar { dtype, slot, .. } => smallvec::smallvec![(slot, DataKind::Raw(dtype))],
                Arg::Complex { slot } => smallvec::smallvec![(slot, DataKind::Double), (slot + 1, DataKind::Double)],
                _ => continue,
            };
            for (slot, kind) in slots {
                let word = start + slot;
                let (b, a) = (before.trace.data[word as usize], self.trace.data[word as usize]);
                if a != b {
                    let node = &self.trace.nodes[n];
                    out.push(Operand {
                        word,
                        kind,
                        before: kind.value(b),
                        after: kind.value(a),
                        op: node.sig.op.name.clone(),
                        frame: node.frame,
                    });
                }
            }
        }
        out
    }

    /// The op that makes storage `index`, or first uses it.
    pub(crate) fn producer(&self, index: u32) -> Option<(&str, FrameId)> {
        let makes =
            |n: &&rsx_lazy::Node| self.trace.outputs(n).contains(&index) || self.trace.inputs(n).contains(&index);
        self.trace.nodes.iter().find(makes).map(|n| (n.sig.op.name.as_str(), n.frame))
    }

    /// The op that first uses storage `index`, for messages.
    pub(crate) fn first_use(&self, index: u32) -> (&str, FrameId) {
        let node = self.trace.nodes.iter().find(|n| self.trace.inputs(n).contains(&index));
        node.map_or(("an op", FrameId::default()), |n| (n.sig.op.name.as_str(), n.frame))
    }
}

fn data_args(arg: &Arg, f: &mut dyn FnMut(&Arg)) {
    match arg {
        Arg::List(l) => l.iter().for_each(|a| data_args(a, f)),
        Arg::Data { .. } | Arg::CpuScalar { .. } | Arg::Complex { .. } | Arg::Rng { .. } => f(arg),
        _ => {}
    }
}

impl Session {
    /// Cuts, and keeps a copy of everything recorded until [`Session::recording_end`].
    pub fn recording_begin(&self, frame: FrameId) -> Result<(), SessionError> {
        self.cut(CutCause::Jit, frame)?;
        self.core.tap.lock().clear();
        self.core.tap.open.store(true, Release);
        Ok(())
    }

    /// Cuts and gives the traces recorded since [`Session::recording_begin`]: one, unless something in between cut.
    pub fn recording_end(&self, frame: FrameId) -> Result<Vec<Recording>, SessionError> {
        let cut = self.cut(CutCause::Jit, frame);
        self.core.tap.open.store(false, Release);
        let got = std::mem::take(&mut *self.core.tap.lock());
        cut.map(|()| got)
    }
}
