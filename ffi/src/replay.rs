//! Recordings and replays (`rsx.jit`, `torch.compile`): what is noticed during a recorded call, and the C entries of
//! `shim/replay.cpp`. What Python calls is in [`crate::py_replay`].

use crate::abi::{slice, with};
use crate::core::session;
use crate::error::{Failure, guard, shield};
use rsx_capture::{Held, Noticed, Recording, Replay, ReplayArgs};
use rsx_lazy::Storage;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// Reasons kept per call: the first says why, the others help.
const REASONS: usize = 8;

/// What happened during the recorded call that a replay could not repeat.
struct Open {
    thread: ThreadId,
    reasons: Vec<String>,
    noticed: Noticed,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static OPEN: Mutex<Option<Open>> = Mutex::new(None);

fn open() -> MutexGuard<'static, Option<Open>> {
    OPEN.lock().unwrap_or_else(|e| e.into_inner())
}

/// A call is being recorded.
pub(crate) fn active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Notes why the call being recorded cannot be replayed.
pub(crate) fn refuse(reason: impl FnOnce() -> String) {
    if !active() {
        return;
    }
    let reason = reason();
    if let Some(open) = open().as_mut().filter(|o| o.reasons.len() < REASONS && !o.reasons.contains(&reason)) {
        open.reasons.push(reason);
    }
}

/// An op is recorded: it must be the recorded call's own.
pub(crate) fn check_thread() {
    let other = open().as_ref().is_some_and(|o| o.thread != std::thread::current().id());
    if other {
        refuse(|| "another thread used the device during the call".into());
    }
}

/// A storage without contents was made.
pub(crate) fn made(storage: &Arc<Storage>) {
    if let Some(open) = open().as_mut() {
        open.noticed.made.push(Arc::downgrade(storage));
    }
}

fn is_new(storage: &Arc<Storage>) -> bool {
    let at = Arc::as_ptr(storage);
    open().as_ref().is_some_and(|o| o.noticed.made.iter().any(|m| m.as_ptr() == at))
}

/// Host data was copied to `storage`.
pub(crate) fn uploaded(storage: &Arc<Storage>, bytes: &[u8]) {
    let first = is_new(storage) && storage.last_used() == 0;
    if !first {
        return refuse(|| format!("host data is copied into an existing tensor at {}", here()));
    }
    let mut hash = std::hash::DefaultHasher::new();
    hash.write(bytes);
    if let Some(open) = open().as_mut() {
        open.noticed.constants.retain(|(s, _)| !Arc::ptr_eq(&s.0, storage));
        open.noticed.constants.push((Held::new(storage.clone()), hash.finish()));
    }
}

/// The size of `storage` changes.
pub(crate) fn resized(storage: &Arc<Storage>) {
    if !is_new(storage) {
        refuse(|| format!("the storage of a tensor is resized at {}", here()));
    }
}

/// The user's line, for reasons.
pub(crate) fn here() -> String {
    let frame = crate::frames::current();
    session().map_or_else(|_| String::new(), |s| s.frames().text(frame.0))
}

pub(crate) fn begin() -> Result<(), Failure> {
    let session = session()?;
    session.recording_begin(Default::default())?;
    *open() = Some(Open { thread: std::thread::current().id(), reasons: Vec::new(), noticed: Noticed::default() });
    ACTIVE.store(true, SeqCst);
    Ok(())
}

/// Ends the recording: its number (0 if there is none to be had), and why it cannot be replayed.
pub(crate) fn end() -> Result<(u64, Vec<String>), Failure> {
    ACTIVE.store(false, SeqCst);
    let opened = open().take();
    let mut got = session()?.recording_end(Default::default())?;
    let mut reasons = opened.as_ref().map_or_else(Vec::new, |o| o.reasons.clone());
    if reasons.is_empty() && got.len() != 1 {
        reasons.push(match got.len() {
            0 => "it does nothing on the device".into(),
            _ => "it has more ops than one program takes".to_owned(),
        });
    }
    let Some(mut recording) = got.pop().filter(|_| reasons.is_empty()) else { return Ok((0, reasons)) };
    recording.notice(opened.map(|o| o.noticed).unwrap_or_default());
    Ok((keep(recording), reasons))
}

/// Gives a recording its number.
pub(crate) fn keep(recording: Recording) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Relaxed);
    recordings().insert(id, recording);
    id
}

/// Recordings by number.
pub(crate) fn recordings() -> MutexGuard<'static, BTreeMap<u64, Recording>> {
    static MAP: Mutex<BTreeMap<u64, Recording>> = Mutex::new(BTreeMap::new());
    MAP.lock().unwrap_or_else(|e| e.into_inner())
}

pub(crate) type Handles = SmallVec<[ManuallyDrop<Arc<Storage>>; 16]>;

/// Borrows the caller's references.
pub(crate) fn borrowed(storages: *const *const Storage, n: usize) -> Handles {
    // SAFETY: references that the tensors of the caller keep alive; ManuallyDrop leaves the count alone.
    slice(storages, n).iter().map(|&s| ManuallyDrop::new(unsafe { Arc::from_raw(s) })).collect()
}

/// Where recording `id` has `storage`: its index, with bit 32 set if the call made it and bit 33 if it writes it; -1 if
/// it does not use it.
///
/// # Safety
/// `storage` is a live reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_recording_place(id: u64, storage: *const Storage) -> i64 {
    shield(-1, || {
        let recordings = recordings();
        let Some(recording) = recordings.get(&id) else { return -1 };
        // SAFETY: the caller's promise.
        let place = unsafe { with(storage, |s| recording.place(s)) };
        place.map_or(-1, |p| i64::from(p.index) | i64::from(p.made) << 32 | i64::from(p.written) << 33)
    })
}

/// `storage` is the one with number `index` of recording `id` from now on.
///
/// # Safety
/// `storage` is a live reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_recording_hold(id: u64, index: u32, storage: *const Storage) {
    shield((), || {
        if let Some(recording) = recordings().get_mut(&id) {
            // SAFETY: the caller's promise.
            unsafe { with(storage, |s| recording.hold(index, s)) };
        }
    });
}

/// Says which storages of recording `id` are arguments, and which (by index) every call makes anew.
///
/// # Safety
/// The arrays have the lengths given; `args` are live references.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_recording_bind(
    id: u64,
    args: *const *const Storage,
    nargs: usize,
    fresh: *const u32,
    nfresh: usize,
) {
    shield((), || {
        let args = borrowed(args, nargs);
        let args: Vec<&Arc<Storage>> = args.iter().map(|s| &**s).collect();
        if let Some(recording) = recordings().get_mut(&id) {
            recording.bind(&args, slice(fresh, nfresh).to_vec());
        }
    });
}

/// Runs a replay. 0: done, `fresh` holds the references of its results; 1: the call has to be recorded again.
///
/// # Safety
/// `replay` is a live reference made by `replay_new`; the arrays have the lengths given, `fresh` as many as the recording
/// was bound with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_replay(
    replay: *const Replay,
    args: *const *const Storage,
    nargs: usize,
    seed: u64,
    offset: u64,
    fresh: *mut *const Storage,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's reference stays the caller's.
        let replay = ManuallyDrop::new(unsafe { Arc::from_raw(replay) });
        let args = borrowed(args, nargs);
        let storages: SmallVec<[&Arc<Storage>; 16]> = args.iter().map(|s| &**s).collect();
        let args = ReplayArgs { storages: &storages, seed, offset, frame: Default::default() };
        let Some(results) = session()?.replay(&replay, &args)? else { return Ok(1) };
        for (k, s) in results.into_iter().enumerate() {
            // SAFETY: the caller's promise about `fresh`.
            unsafe { *fresh.add(k) = Arc::into_raw(s) };
        }
        Ok(0)
    })
}

/// # Safety
/// Takes the caller's reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_replay_release(replay: *const Replay) {
    // SAFETY: the caller's promise.
    let replay = unsafe { Arc::from_raw(replay) };
    if !crate::fork::is_bad() {
        shield((), || drop(replay));
    }
}
