//! Replays: a recorded call run again without recording it.
//!
//! A [`Replay`] is a recording whose storages have been given roles. Running it binds arguments, the storages that every
//! call uses (parameters, optimizer state) and fresh results to a job that was prepared once, patches its data words
//! (random offsets, numbers), and queues it. Jobs come back from the executor and are used again.
use crate::cache::Entry;
use crate::core::Core;
use crate::executor::{Job, SegmentJob};
use crate::metrics::Counters;
use crate::recording::{Held, Recording};
use crate::timeline::{self, Lane};
use crate::{CutCause, Session, SessionError, Tier};
use ahash::AHashSet;
use rsx_lazy::storage::StorageState;
use rsx_lazy::{FrameId, Storage, StorageUse, Trace};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Jobs kept for reuse: as many as can be in flight and one being filled.
const SPARE_JOBS: usize = 4;

/// What a storage of the trace stands for in a replay. Storages not named live within the job.
#[derive(Debug)]
enum Role {
    /// Tensor argument number k.
    Argument(u32),
    /// The same in every call: a parameter, a buffer, state.
    Captured(Weak<Storage>),
    /// Made from host data during the call, the same data in every call.
    Constant(Arc<Held>),
    /// Made anew by every call: result number k.
    Fresh,
    /// Made by the call and left behind somewhere (an attribute): every replay writes it again.
    Left(Weak<Storage>),
}

/// What one replay is given.
#[derive(Debug)]
pub struct ReplayArgs<'a> {
    /// Storages of the tensor arguments, in order.
    pub storages: &'a [&'a Arc<Storage>],
    /// Seed and first offset of the random numbers it draws: [`Replay::advance`] of them.
    pub seed: u64,
    pub offset: u64,
    pub frame: FrameId,
}

/// A recorded call that can be run again.
#[derive(Debug)]
pub struct Replay {
    entry: Arc<Entry>,
    recording: Recording,
    roles: Vec<(u32, Role)>,
    /// Addresses of the captured storages and those left behind: no argument may be one of them.
    captured: AHashSet<usize>,
    /// (storage read, storage left behind by the call before): values handed from call to call.
    carried: Vec<(u32, u32)>,
    /// (word of the seed, word of the offset, offset from the call's first).
    draws: Vec<(u32, u32, u64)>,
    advance: u64,
    /// Data words, replaced as a whole when numbers change.
    data: Mutex<Arc<[u64]>>,
    spare: Mutex<Vec<(Box<SegmentJob>, Arc<[u64]>)>>,
}

/// Why two recordings of a function do not make a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstable(pub String);

impl Replay {
    /// Makes a replay of `recording`. `before` is the call before it, if there was one: storages that differ between the
    /// two and are no arguments are explained by it or refused. `advance`: random numbers that the call reserves from the
    /// default generator, whose state was (`seed`, `offset`). Data words are those of `recording`; the caller has compared them.
    pub fn new(
        session: &Session,
        recording: Recording,
        before: Option<&Recording>,
        seed: u64,
        offset: u64,
        advance: u64,
    ) -> Result<Replay, Unstable> {
        let mut roles = Vec::new();
        let mut carried = Vec::new();
        let argument: std::collections::BTreeMap<u32, u32> =
            recording.args.iter().enumerate().rev().filter_map(|(k, i)| Some(((*i)?, k as u32))).collect();
        let place = |frame: FrameId| session.frames().text(frame.0);
        for (i, used) in recording.trace.storages.iter().enumerate() {
            let i32 = i as u32;
            if recording.made[i] {
                if recording.fresh.contains(&i32) {
                    roles.push((i32, Role::Fresh));
                } else if recording.live[i] {
                    roles.push((i32, Role::Left(recording.storages[i].clone())));
                }
                continue;
            }
            if let Some(&k) = argument.get(&i32) {
                roles.push((i32, Role::Argument(k)));
                continue;
            }
            if let Some((s, hash)) =
                recording.constants.iter().find(|(s, _)| Arc::as_ptr(&s.0) == recording.storages[i].as_ptr())
            {
                let (op, frame) = recording.first_use(i32);
                let at = place(frame);
                let same = before.is_none_or(|b| {
                    let old = b.constants.iter().find(|(s, _)| Arc::as_ptr(&s.0) == b.storages[i].as_ptr());
                    old.is_some_and(|(_, h)| h == hash)
                });
                if !same {
                    return Err(Unstable(format!(
                        "{op} at {at} reads host data that changes from call to call: make it an argument on the device"
                    )));
                }
                if used.written {
                    return Err(Unstable(format!(
                        "{op} at {at} writes a tensor made from host data during the call: make it an argument, or a tensor made outside"
                    )));
                }
                roles.push((i32, Role::Constant(s.clone())));
                continue;
            }
            let same = before.is_none_or(|b| b.storages[i].ptr_eq(&recording.storages[i]));
            if same {
                roles.push((i32, Role::Captured(recording.storages[i].clone())));
                continue;
            }
            let left = before.and_then(|b| {
                let at = recording.storages[i].as_ptr();
                (0..b.storages.len()).find(|&j| b.storages[j].as_ptr() == at && b.made[j] && b.live[j])
            });
            match left.filter(|&j| !recording.fresh.contains(&(j as u32))) {
                Some(j) => carried.push((i32, j as u32)),
                None => {
                    let (op, frame) = recording.first_use(i32);
                    return Err(Unstable(format!(
                        "{op} at {} reads a tensor that is another one in every call and no argument: pass it as an argument",
                        place(frame)
                    )));
                }
            }
        }
        let word = |w: u32| recording.trace.data[w as usize];
        let draws = recording.draws();
        let foreign = |&(s, o): &(u32, u32)| word(s) != seed || word(o).wrapping_sub(offset) >= advance;
        if draws.iter().any(foreign) {
            return Err(Unstable(
                "random numbers are drawn from a generator other than the default one, or it is seeded in the function"
                    .into(),
            ));
        }
        let draws = draws.into_iter().map(|(s, o)| (s, o, word(o).wrapping_sub(offset))).collect();
        let entry = session.core.cache.see(recording.key);
        let data: Arc<[u64]> = recording.trace.data.as_slice().into();
        let held = |r: &Role| match r {
            Role::Captured(s) | Role::Left(s) => Some(s.as_ptr() as usize),
            Role::Argument(_) | Role::Constant(_) | Role::Fresh => None,
        };
        let captured = roles.iter().filter_map(|(_, r)| held(r)).collect();
        let spare = Mutex::default();
        Ok(Replay { entry, recording, roles, captured, carried, draws, advance, data: Mutex::new(data), spare })
    }

    /// Random numbers that one call reserves.
    pub fn advance(&self) -> u64 {
        self.advance
    }

    /// The program is ready: a replay does not run op by op.
    pub fn is_compiled(&self) -> bool {
        self.entry.program().is_some()
    }

    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Sets data words for replays from now on: (word, bits of an f64 or i64).
    pub fn set_words(&self, words: &[(u32, u64)]) {
        let mut data = self.data();
        let mut new: Vec<u64> = data.to_vec();
        for &(w, bits) in words {
            if let Some(word) = new.get_mut(w as usize) {
                *word = bits;
            }
        }
        *data = new.into();
    }

    fn data(&self) -> MutexGuard<'_, Arc<[u64]>> {
        self.data.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn spare(&self) -> MutexGuard<'_, Vec<(Box<SegmentJob>, Arc<[u64]>)>> {
        self.spare.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn job(self: &Arc<Self>) -> Box<SegmentJob> {
        let data = self.data().clone();
        let spare = self.spare().pop();
        let mut job = match spare {
            Some((mut job, old)) => {
                if !Arc::ptr_eq(&old, &data) {
                    job.trace.data.copy_from_slice(&data);
                }
                job
            }
            None => {
                let mut trace = self.recording.trace.skeleton();
                trace.data.copy_from_slice(&data);
                let live = self.recording.live.clone();
                Box::new(SegmentJob {
                    trace,
                    live,
                    entry: self.entry.clone(),
                    compiled: true,
                    load: false,
                    patient: false,
                    zeroed: Vec::new(),
                    replay: None,
                })
            }
        };
        job.replay = Some((self.clone(), data));
        job
    }

    /// Values that the call before left behind move into the storages that stand for them. On the executor, before the run.
    pub(crate) fn carry_over(&self, trace: &Trace) {
        for &(read, left) in &self.carried {
            let from = trace.storages[left as usize].storage.state();
            let (buffer, poison, doubt) = (from.buffer.clone(), from.poison.clone(), from.doubt.clone());
            drop(from);
            *trace.storages[read as usize].storage.state() = StorageState { buffer, poison, doubt };
        }
    }

    /// Takes a finished job back, free of memory.
    pub(crate) fn give_back(self: Arc<Self>, mut job: Box<SegmentJob>, data: Arc<[u64]>) {
        static NOTHING: OnceLock<Arc<Storage>> = OnceLock::new();
        let nothing = NOTHING.get_or_init(|| Storage::shadow(0));
        for (i, _) in &self.roles {
            job.trace.storages[*i as usize].storage = nothing.clone();
        }
        for u in &job.trace.storages {
            let mut state = u.storage.state();
            if state.buffer.is_some() || state.poison.is_some() || state.doubt.is_some() {
                *state = StorageState::default();
            }
        }
        let mut spare = self.spare();
        if spare.len() < SPARE_JOBS {
            spare.push((job, data));
        }
    }
}

impl Session {
    /// Runs `replay` in the order of segments. Gives the fresh storages, each with one external handle that is the
    /// caller's; nothing if a storage that the call relies on is gone or its address was handed out, or if an argument
    /// shares memory with something that it did not share it with when recorded: record the call again.
    pub fn replay(
        &self,
        replay: &Arc<Replay>,
        args: &ReplayArgs<'_>,
    ) -> Result<Option<SmallVec<[Arc<Storage>; 8]>>, SessionError> {
        let shared = self.shared();
        shared.check_open()?;
        for (k, s) in args.storages.iter().enumerate() {
            let at = Arc::as_ptr(s);
            // Aliases are part of what was recorded.
            let index = replay.recording.args.get(k).copied().flatten();
            let alias = args.storages[..k].iter().enumerate().any(|(j, t)| {
                (Arc::as_ptr(t) == at) != (index.is_some() && replay.recording.args.get(j).copied().flatten() == index)
                    && index.is_some()
            });
            if alias || replay.captured.contains(&(at as usize)) {
                return Ok(None);
            }
        }
        let mut job = replay.job();
        let mut fresh = SmallVec::new();
        for (i, role) in &replay.roles {
            let slot: &mut StorageUse = &mut job.trace.storages[*i as usize];
            let written = slot.written;
            let usable = |s: &Arc<Storage>| s.is_live_outside() && !(written && s.is_exposed());
            slot.storage = match role {
                Role::Argument(k) => match args.storages.get(*k as usize) {
                    Some(s) => (*s).clone(),
                    None => return Ok(None),
                },
                Role::Captured(s) | Role::Left(s) => match s.upgrade().filter(usable) {
                    Some(s) => s,
                    None => {
                        let node = replay.recording.producer(*i);
                        let (op, at) = node.map_or_else(Default::default, |(op, f)| (op, self.frames().text(f.0)));
                        tracing::debug!(target: "rsx::replay", ?role, op, at, "a storage of a replay is gone");
                        return Ok(None);
                    }
                },
                Role::Constant(s) => s.0.clone(),
                Role::Fresh => Storage::new(replay.recording.trace.storages[*i as usize].storage.nbytes()),
            };
        }
        for &i in &replay.recording.fresh {
            fresh.push(job.trace.storages[i as usize].storage.clone());
        }
        for &(seed, offset, delta) in &replay.draws {
            job.trace.data[seed as usize] = args.seed;
            job.trace.data[offset as usize] = args.offset.wrapping_add(delta);
        }
        let tier = shared.tier();
        job.compiled = tier != Tier::Eager;
        let (core, frame) = (&self.core, args.frame);
        let mut submit = move |sequence: u64| core.submit_replay(job, replay, sequence, tier, frame);
        loop {
            if self.recorder.pending_nodes() > 0 {
                self.recorder.cut(CutCause::Jit.name(), frame);
            }
            match self.recorder.in_order(submit) {
                Ok(()) => break,
                // Another thread has recorded something in between.
                Err(again) => submit = again,
            }
        }
        self.throttle();
        Ok(Some(fresh))
    }

    fn throttle(&self) {
        use rsx_lazy::SegmentSink;
        self.core.throttle();
    }
}

impl Core {
    fn submit_replay(&self, mut job: Box<SegmentJob>, replay: &Arc<Replay>, sequence: u64, tier: Tier, frame: FrameId) {
        let shared = &self.shared;
        if shared.is_closed() {
            return;
        }
        let _event = timeline::span(Lane::Host, || "replay".into());
        job.trace.sequence = sequence;
        for (i, _) in &replay.roles {
            let used = &job.trace.storages[*i as usize];
            used.storage.note_use(sequence, used.written);
        }
        shared.report.cut(CutCause::Jit, frame.0);
        Counters::add(&shared.counters.segments, 1);
        Counters::add(&shared.counters.replays, 1);
        job.load = self.promote(tier, true, &replay.entry, &job.trace, &job.live);
        shared.completion.segment_queued();
        if self.queue.send(Job::Segment(job)).is_err() {
            tracing::debug!(target: "rsx::cut", "a replay was submitted after shutdown");
        }
    }
}
