//! The recorder: memo of signatures, the open trace, and the cut.
use crate::paths::{Paths, Place};
use crate::{FrameId, Node, OpInfo, OutMeta, Sig, SigFlags, Storage, StorageUse, Trace};
use ahash::AHashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Takes closed traces. Called in the order in which traces were closed.
pub trait SegmentSink: Send + Sync {
    /// Runs `trace`; `live[i]` says whether storage i can still be read from outside. Must neither call the recorder
    /// nor wait for another thread: other threads wait for it, perhaps holding a lock that this one then needs.
    fn submit(&self, trace: Trace, live: Vec<bool>, cause: &'static str, frame: FrameId);

    /// Called after `submit` with no lock held: the place to wait until the device has caught up.
    fn throttle(&self) {}
}

/// A write of a storage from outside of traces, in the order of segments.
#[derive(Debug)]
pub struct OutsideWrite {
    /// The write's place in the order of segments.
    pub sequence: u64,
    /// The open trace had used the storage. From now on it uses this shadow in its place, which stands for the
    /// version before the write.
    pub old: Option<Arc<Storage>>,
    /// The shadow's contents are the storage's present ones (false: the open trace makes them itself).
    pub keep_old: bool,
}

/// What recording gave.
#[derive(Debug)]
pub enum Recorded {
    /// Appended; the storages are those of the fresh outputs. No signature: it has no outputs of its own.
    Done { sig: Option<Arc<Sig>>, outputs: smallvec::SmallVec<[Arc<Storage>; 4]>, frame_wanted: bool },
    /// The signature is known and has to run at once.
    Immediate(Arc<Sig>),
    /// Unknown signature: infer its outputs and insert it.
    Unknown,
}

/// When a trace is cut by itself.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub nodes: usize,
    /// Bytes of outputs recorded since the last cut.
    pub bytes: u64,
}

impl Default for Limits {
    /// 20 000 nodes keep memory and lowering time bounded; 8 GiB of outputs keep peak memory bounded.
    fn default() -> Self {
        Limits { nodes: 20_000, bytes: 8 << 30 }
    }
}

/// Signatures interned (about half a kilobyte each); beyond, all are forgotten and inferred again when they recur.
const MAX_SIGNATURES: usize = 1 << 15;
/// Causes of automatic cuts: too many nodes, too many bytes of outputs.
const LIMITS: [&str; 2] = ["node_limit", "byte_limit"];

/// Counters of the recorder.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordStats {
    pub records: u64,
    pub signatures: u64,
    /// Signatures and places of known paths held now: both are bounded.
    pub held: (usize, usize),
}

struct Inner {
    trace: Trace,
    /// Number of the open trace; storages remember their index in it.
    epoch: u32,
    /// Number of the last closed trace or outside write.
    sequence: u64,
    sigs: AHashMap<u64, Vec<Arc<Sig>>>,
    interned: usize,
    paths: Paths,
    /// Where the open trace is in them.
    place: Place,
    /// Cut before the next record, for this reason.
    cut_pending: Option<(&'static str, FrameId)>,
    stats: RecordStats,
}

impl Inner {
    fn forget(&mut self) {
        self.sigs.clear();
        self.paths.clear();
        (self.interned, self.place) = (0, 0);
    }
}

/// One recorder per device, behind one lock: autograd's worker threads record too.
pub struct Recorder {
    inner: Mutex<Inner>,
    /// Held from taking a trace to handing it on, so that traces are submitted in order.
    cut: Mutex<()>,
    sink: Arc<dyn SegmentSink>,
    limits: Limits,
}

/// In-memory memo key of a record; not stable across processes.
fn memo_hash(words: &[u64]) -> u64 {
    // Folded multiply, as in ahash's fallback: two words a step, no call overhead.
    let fold = |a: u64, b: u64| {
        let r = u128::from(a) * u128::from(b);
        (r as u64) ^ (r >> 64) as u64
    };
    let mut h = 0x9E37_79B9_7F4A_7C15 ^ words.len() as u64;
    let mut chunks = words.chunks_exact(2);
    for c in &mut chunks {
        h = fold(c[0] ^ 0xa076_1d64_78bd_642f ^ h, c[1] ^ 0xe703_7ed1_a0b4_28db);
    }
    if let [w] = chunks.remainder() {
        h = fold(w ^ 0xa076_1d64_78bd_642f ^ h, 0xe703_7ed1_a0b4_28db);
    }
    h
}

impl Recorder {
    pub fn new(sink: Arc<dyn SegmentSink>, limits: Limits) -> Recorder {
        Recorder::starting_at(1, sink, limits)
    }

    /// A recorder beside others: its traces are numbered from `epoch`, and no two recorders may come to the same number,
    /// for storages remember their place in a trace by it.
    pub fn starting_at(epoch: u32, sink: Arc<dyn SegmentSink>, limits: Limits) -> Recorder {
        Recorder {
            inner: Mutex::new(Inner {
                trace: Trace::default(),
                epoch,
                sequence: 0,
                sigs: AHashMap::default(),
                interned: 0,
                paths: Paths::default(),
                place: 0,
                cut_pending: None,
                stats: RecordStats::default(),
            }),
            cut: Mutex::new(()),
            sink,
            limits,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Records one op: finds its signature and appends a node, under one lock.
    ///
    /// `written[i]` says whether the op writes storage i of the record.
    pub fn record(&self, words: &[u64], storages: &[&Arc<Storage>], written: &[bool], data: &[u64]) -> Recorded {
        let refs: smallvec::SmallVec<[&Storage; 8]> = storages.iter().map(|s| &***s).collect();
        self.record_refs(words, &refs, |i| storages[i].clone(), written, data)
    }

    /// As [`Recorder::record`] for callers that hold no `Arc`s: `own(i)` makes a counted reference to storage i.
    pub fn record_refs(
        &self,
        words: &[u64],
        storages: &[&Storage],
        own: impl Fn(usize) -> Arc<Storage>,
        written: &[bool],
        data: &[u64],
    ) -> Recorded {
        let mut inner = self.lock();
        while let Some((cause, frame)) = inner.cut_pending {
            drop(inner);
            self.cut(cause, frame);
            inner = self.lock();
        }
        let inner = &mut *inner;
        let sig = match inner.paths.expected(inner.place, words) {
            Some(sig) => sig.clone(),
            None => {
                let list = inner.sigs.get(&memo_hash(words));
                let Some(sig) = list.and_then(|l| l.iter().find(|s| *s.words == *words)) else {
                    return Recorded::Unknown;
                };
                if sig.flags.immediate {
                    return Recorded::Immediate(sig.clone());
                }
                sig.clone()
            }
        };
        let (trace, epoch) = (&mut inner.trace, inner.epoch);
        let start = trace.refs.len() as u32;
        let mut operands = 0u64;
        for (i, (storage, &w)) in storages.iter().zip(written).enumerate() {
            let index = match storage.index_in(epoch) {
                Some(index) => index,
                None => add_storage(trace, epoch, own(i), false),
            };
            trace.storages[index as usize].written |= w;
            operands = (operands.rotate_left(5) ^ u64::from(index + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            trace.refs.push(index);
        }
        let mid = trace.refs.len() as u32;
        let mut outputs = smallvec::SmallVec::new();
        for o in sig.fresh() {
            let storage = Storage::new(o.nbytes as usize);
            let index = add_storage(trace, epoch, storage.clone(), true);
            trace.refs.push(index);
            trace.bytes += o.nbytes;
            outputs.push(storage);
        }
        let data_start = trace.data.len() as u32;
        trace.data.extend_from_slice(data);
        let (place, known) = inner.paths.step(inner.place, &sig, operands);
        inner.place = place;
        let with_outputs = if sig.outs.is_empty() { None } else { Some(sig.clone()) };
        trace.nodes.push(Node {
            sig,
            inputs: start..mid,
            outputs: mid..trace.refs.len() as u32,
            data: data_start..trace.data.len() as u32,
            frame: known.unwrap_or_default(),
        });
        inner.stats.records += 1;
        if trace.nodes.len() >= self.limits.nodes {
            inner.cut_pending = Some((LIMITS[0], FrameId::default()));
        } else if trace.bytes >= self.limits.bytes {
            inner.cut_pending = Some((LIMITS[1], FrameId::default()));
        }
        Recorded::Done { sig: with_outputs, outputs, frame_wanted: known.is_none() }
    }

    /// Interns a signature after a miss.
    pub fn insert(&self, op: Arc<OpInfo>, words: &[u64], outs: &[OutMeta], flags: SigFlags) -> Arc<Sig> {
        let hash = memo_hash(words);
        let mut inner = self.lock();
        let inner = &mut *inner;
        if inner.interned >= MAX_SIGNATURES {
            inner.forget();
        }
        let list = inner.sigs.entry(hash).or_default();
        if let Some(sig) = list.iter().find(|s| *s.words == *words) {
            return sig.clone();
        }
        let sig = Arc::new(Sig::new(op, words, outs, flags));
        list.push(sig.clone());
        inner.interned += 1;
        inner.stats.signatures += 1;
        sig
    }

    /// Forgets all signatures: what was predicted of outputs no longer holds (another default element type).
    pub fn forget(&self) {
        self.lock().forget();
    }

    /// Notes the user's frame of the op recorded last.
    pub fn note_frame(&self, frame: FrameId) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if let Some(node) = inner.trace.nodes.last_mut() {
            node.frame = frame;
            inner.paths.set_frame(inner.place, frame);
        }
    }

    /// Cuts before the next record. Until then storages may still be dropped and so never be computed (gradients that
    /// `zero_grad` frees between two steps).
    pub fn cut_before_next(&self, cause: &'static str, frame: FrameId) {
        let mut inner = self.lock();
        if !inner.trace.is_empty() {
            inner.cut_pending = Some((cause, frame));
        }
    }

    /// Closes the open trace and hands it on. Does nothing if it is empty. May wait for the device to catch up; holds
    /// no lock meanwhile.
    pub fn cut(&self, cause: &'static str, frame: FrameId) {
        {
            let _in_order = self.lock_order();
            let (trace, live) = {
                let mut inner = self.lock();
                // Only the end of an optimizer's step and limits leave a cut for later.
                let step_ended = inner.cut_pending.take().is_some_and(|(cause, _)| !LIMITS.contains(&cause));
                if inner.trace.is_empty() {
                    return;
                }
                inner.epoch = inner.epoch.wrapping_add(1).max(1);
                inner.sequence += 1;
                inner.place = 0;
                let fresh = Trace::sized_like(&inner.trace);
                let mut trace = std::mem::replace(&mut inner.trace, fresh);
                trace.sequence = inner.sequence;
                trace.ends_step = step_ended;
                let live = trace.storages.iter().map(|u| {
                    u.storage.note_use(trace.sequence, u.written);
                    u.storage.is_live_outside()
                });
                let live = live.collect();
                (trace, live)
            };
            self.sink.submit(trace, live, cause, frame);
        }
        self.sink.throttle();
    }

    /// Places a write of the whole of `storage` from outside behind everything recorded so far, without a cut: the
    /// open trace goes on reading the version before. `enqueue` hands the write to the device, in order with
    /// segments; the rules of [`SegmentSink::submit`] hold for it.
    pub fn write_from_outside(&self, storage: &Arc<Storage>, enqueue: impl FnOnce(OutsideWrite)) {
        let _in_order = self.lock_order();
        let write = {
            let mut inner = self.lock();
            let inner = &mut *inner;
            inner.sequence += 1;
            let mut write = OutsideWrite { sequence: inner.sequence, old: None, keep_old: false };
            if let Some(i) = storage.index_in(inner.epoch) {
                let used = &mut inner.trace.storages[i as usize];
                let shadow = Storage::shadow(storage.nbytes());
                used.storage = shadow.clone();
                storage.clear_index();
                write.old = Some(shadow);
                write.keep_old = !used.created;
            }
            storage.note_use(inner.sequence, true);
            write
        };
        enqueue(write);
    }

    /// Gives the next place in the order of segments to work that was prepared without recording it. `submit` hands the
    /// work to the device; the rules of [`SegmentSink::submit`] hold for it. Nothing happens (and `submit` comes back) if
    /// ops are recorded that have no place yet: cut first.
    pub fn in_order<F: FnOnce(u64)>(&self, submit: F) -> Result<(), F> {
        let _in_order = self.lock_order();
        let sequence = {
            let mut inner = self.lock();
            if !inner.trace.is_empty() {
                return Err(submit);
            }
            inner.sequence += 1;
            inner.sequence
        };
        submit(sequence);
        Ok(())
    }

    /// Number of the last closed trace or outside write, and whether ops are recorded beyond it.
    pub fn position(&self) -> (u64, bool) {
        let inner = self.lock();
        (inner.sequence, !inner.trace.is_empty())
    }

    fn lock_order(&self) -> MutexGuard<'_, ()> {
        self.cut.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Is the newest version of `storage` written by the open trace?
    pub fn is_recorded(&self, storage: &Storage) -> bool {
        let inner = self.lock();
        storage.index_in(inner.epoch).is_some_and(|i| {
            let u = &inner.trace.storages[i as usize];
            u.created || u.written
        })
    }

    /// Does the open trace use `storage` at all?
    pub fn is_used(&self, storage: &Storage) -> bool {
        let inner = self.lock();
        storage.index_in(inner.epoch).is_some()
    }

    /// Number of nodes in the open trace.
    pub fn pending_nodes(&self) -> usize {
        self.lock().trace.nodes.len()
    }

    pub fn stats(&self) -> RecordStats {
        let inner = self.lock();
        RecordStats { held: (inner.interned, inner.paths.len()), ..inner.stats }
    }
}

fn add_storage(trace: &mut Trace, epoch: u32, storage: Arc<Storage>, created: bool) -> u32 {
    let i = trace.storages.len() as u32;
    storage.set_index_in(epoch, i);
    trace.storages.push(StorageUse { storage, created, written: created });
    i
}
