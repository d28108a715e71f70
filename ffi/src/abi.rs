//! The C entries of `shim/rsx_abi.h`: storages and recording. Cuts, waits and counters are in [`crate::control`].

use crate::core::{ops, session};
use crate::error::{Failure, guard, shield};
use crate::{fork, frames, looping, replay, watch};
use rsx_capture::{CutCause, timeline};
use rsx_lazy::aten::structural::{Encoding, encoding};
use rsx_lazy::{OpId, OutMeta, Recorded, RetInfo, Sig, SigFlags, Storage};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::{Arc, Mutex, MutexGuard};

/// Runs `f` on a storage whose reference stays the caller's.
///
/// # Safety
/// `storage` is a live reference made by `rsx_storage_new` or `rsx_record`.
pub(crate) unsafe fn with<T>(storage: *const Storage, f: impl FnOnce(&Arc<Storage>) -> T) -> T {
    // SAFETY: the caller's promise; ManuallyDrop leaves the count alone.
    let storage = ManuallyDrop::new(unsafe { Arc::from_raw(storage) });
    f(&storage)
}

pub(crate) fn slice<'a, T>(ptr: *const T, n: usize) -> &'a [T] {
    // SAFETY: the shim passes a pointer to n elements, or any pointer with 0.
    if n == 0 { &[] } else { unsafe { from_raw_parts(ptr, n) } }
}

// ---- storages -------------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub extern "C" fn rsx_storage_new(nbytes: u64) -> *const Storage {
    fork::note_use();
    let storage = Storage::new(nbytes as usize);
    if looping::active() {
        looping::made(&storage);
    } else if replay::active() {
        replay::made(&storage);
    }
    Arc::into_raw(storage)
}

/// # Safety
/// Takes the caller's reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_storage_release(storage: *mut c_void) {
    if fork::is_bad() {
        return; // a lock may be held by a thread that does not exist here; the child's memory goes with it
    }
    // SAFETY: the caller's reference.
    let storage = unsafe { Arc::from_raw(storage.cast_const().cast::<Storage>()) };
    storage.release_external();
    shield((), || {
        if storage.is_exposed() {
            exposed().retain(|_, s| *s != Arc::as_ptr(&storage) as usize);
        }
        drop(storage);
    });
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_storage_token(storage: *const Storage) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { (*storage).token() as *mut c_void }
}

/// Storages with a real address in PyTorch's hands, by that address; pointers valid while the entry is there.
fn exposed() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    static MAP: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
    MAP.lock().unwrap_or_else(|e| e.into_inner())
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_storage_find(address: *const c_void) -> *const Storage {
    let known = || exposed().get(&(address as usize)).map(|&s| s as *const Storage);
    shield(std::ptr::null(), || Storage::by_token(address as u64).or_else(known).unwrap_or(std::ptr::null()))
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_storage_resize(storage: *const Storage, nbytes: u64) -> i32 {
    guard(|| {
        let frame = frames::current();
        // SAFETY: the caller's promise.
        unsafe {
            with(storage, |s| {
                if looping::active() {
                    looping::resized(s)?;
                } else if replay::active() {
                    replay::resized(s);
                }
                session()?.resize(s, nbytes as usize, frame).map_err(Failure::from)
            })
        }?;
        Ok(0)
    })
}

/// # Safety
/// As [`with`]; `address` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_storage_expose(storage: *const Storage, address: *mut *mut c_void) -> i32 {
    guard(|| {
        let frame = frames::current();
        looping::check_host_value("the address of a tensor is taken")?;
        watch::check_host_wait(CutCause::DataPointer)?;
        replay::refuse(|| format!("the address of a tensor is taken at {}", replay::here()));
        // SAFETY: the caller's promise.
        let ptr =
            unsafe { with(storage, |s| session()?.expose(s, CutCause::DataPointer, frame).map_err(Failure::from)) }?;
        let mut map = exposed();
        map.retain(|_, s| *s != storage as usize);
        map.insert(ptr as usize, storage as usize);
        // SAFETY: the caller's promise.
        unsafe { *address = ptr.cast() };
        Ok(0)
    })
}

/// # Safety
/// As [`with`]; `src` points to `nbytes` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_storage_upload(storage: *const Storage, src: *const u8, nbytes: u64) -> i32 {
    guard(|| {
        let src = slice(src, nbytes as usize);
        // No frame: an upload neither cuts nor is reported, and it is on the hot path of data loading.
        // SAFETY: the caller's promise.
        unsafe {
            with(storage, |s| {
                if looping::active() {
                    looping::uploaded(s, src)?;
                } else if replay::active() {
                    replay::uploaded(s, src);
                }
                session()?.upload(s, src, Default::default()).map_err(Failure::from)
            })
        }?;
        Ok(0)
    })
}

/// # Safety
/// As [`with`]; `dst` points to `nbytes` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_storage_read(
    storage: *const Storage,
    offset: u64,
    nbytes: u64,
    dst: *mut u8,
    cause: u32,
) -> i32 {
    guard(|| {
        let (cause, frame) = (crate::control::host_cause(cause), frames::current());
        looping::check_host_value(format_args!("a value is read on the host ({cause})"))?;
        watch::check_host_wait(cause)?;
        replay::refuse(|| format!("a value is read on the host ({cause}) at {}", replay::here()));
        // SAFETY: the caller's promise; the memory is PyTorch's own, initialised or not (bytes have no invalid values).
        let dst = unsafe { from_raw_parts_mut(dst, nbytes as usize) };
        // SAFETY: as above.
        unsafe { with(storage, |s| session()?.read(s, offset as usize, dst, cause, frame).map_err(Failure::from)) }?;
        Ok(0)
    })
}

// ---- recording ------------------------------------------------------------------------------------------------------

/// Mirrors `RsxRecord`.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    words: *const u64,
    nwords: usize,
    storages: *const *const Storage,
    written: *const bool,
    nstorages: usize,
    data: *const u64,
    ndata: usize,
    op: u32,
}

/// Mirrors `RsxResults`.
#[repr(C)]
#[derive(Debug)]
pub struct Results {
    outs: *const OutMeta,
    nouts: usize,
    nfresh: usize,
}

thread_local! {
    /// Keeps the results of this thread's last record readable, and its fresh storages beyond the caller's buffer.
    static LAST: RefCell<(Option<Arc<Sig>>, Vec<*const Storage>)> = const { RefCell::new((None, Vec::new())) };
}

/// # Safety
/// `record` and `results` are valid; `fresh` has room for `cap` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_record(
    record: *const Record,
    fresh: *mut *const Storage,
    cap: usize,
    results: *mut Results,
) -> i32 {
    guard(|| {
        // SAFETY: valid for the call.
        let r = unsafe { &*record };
        let pointers = slice(r.storages, r.nstorages);
        // SAFETY: non-null, and kept alive by the tensors on the caller's stack; a reference has a pointer's layout.
        let refs: &[&Storage] = unsafe { from_raw_parts(pointers.as_ptr().cast(), pointers.len()) };
        let own = |i: usize| {
            // SAFETY: made by `Arc::into_raw`, with a count that the caller's tensor holds.
            unsafe {
                Arc::increment_strong_count(pointers[i]);
                Arc::from_raw(pointers[i])
            }
        };
        if replay::active() {
            replay::check_thread();
        }
        timeline::recording();
        let (words, written, data) = (slice(r.words, r.nwords), slice(r.written, r.nstorages), slice(r.data, r.ndata));
        let recorded = looping::recorder(|recorder| {
            let recorded = recorder.record_refs(words, refs, own, written, data);
            if let Recorded::Done { frame_wanted: true, .. } = recorded {
                recorder.note_frame(frames::current());
            }
            Ok(recorded)
        })?;
        match recorded {
            Recorded::Unknown => Ok(1),
            Recorded::Immediate(_) => Ok(2),
            Recorded::Done { sig, outputs, .. } => {
                let Some(sig) = sig else {
                    // SAFETY: `results` is valid.
                    unsafe { *results = Results { outs: std::ptr::null(), nouts: 0, nfresh: 0 } };
                    return Ok(0);
                };
                let nfresh = outputs.len();
                // SAFETY: `results` is valid, and `fresh` holds `cap` pointers.
                unsafe { *results = Results { outs: sig.outs.as_ptr(), nouts: sig.outs.len(), nfresh } };
                let raw = outputs.into_iter().map(Arc::into_raw);
                LAST.with(|l| {
                    let mut l = l.borrow_mut();
                    l.0 = Some(sig);
                    if nfresh > cap {
                        l.1 = raw.collect();
                    } else {
                        for (i, s) in raw.enumerate() {
                            // SAFETY: i < nfresh <= cap.
                            unsafe { *fresh.add(i) = s };
                        }
                    }
                });
                Ok(0)
            }
        }
    })
}

/// # Safety
/// `fresh` has room for the `nfresh` pointers of this thread's last record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_take_fresh(fresh: *mut *const Storage) {
    LAST.with(|l| {
        for (i, s) in l.borrow_mut().1.drain(..).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *fresh.add(i) = s };
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_sig_insert(
    words: *const u64,
    nwords: usize,
    op: u32,
    outs: *const OutMeta,
    nouts: usize,
    flags: u32,
) {
    shield((), || {
        let Some(op) = ops().get(OpId(op)) else { return };
        let flags = SigFlags { immediate: flags & 1 != 0 };
        // Without a session nothing could have been recorded.
        let _ = looping::recorder(|r| Ok(r.insert(op, slice(words, nwords), slice(outs, nouts), flags)));
    });
}

/// Forgets all signatures.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_sig_forget() {
    shield((), || {
        // Without a session there are none.
        let _ = looping::recorder(|r| {
            r.forget();
            Ok(())
        });
    });
}

fn text<'a>(ptr: *const u8, len: usize) -> &'a str {
    std::str::from_utf8(slice(ptr, len)).unwrap_or("")
}

/// # Safety
/// `hash` is valid; the arrays have the lengths given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_op_register(
    name: *const u8,
    len: usize,
    args: *const u8,
    args_len: usize,
    written: *const bool,
    nargs: usize,
    ret_arg: *const i8,
    ret_list: *const bool,
    nrets: usize,
    hash: *mut u64,
) -> u32 {
    shield(u32::MAX, || {
        let rets: Vec<RetInfo> = slice(ret_arg, nrets)
            .iter()
            .zip(slice(ret_list, nrets))
            .map(|(&from, &list)| RetInfo { alias_of: u32::try_from(from).ok(), list })
            .collect();
        let args: Vec<&str> = text(args, args_len).split_terminator(',').collect();
        let op = ops().register_named(text(name, len), &args, slice(written, nargs), &rets);
        // SAFETY: the caller's promise.
        unsafe { *hash = op.hash };
        op.id.0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_op_has_lowering(name: *const u8, len: usize) -> i32 {
    shield(0, || i32::from(rsx_lazy::aten::find(text(name, len)).is_some()))
}

/// How the number argument `argument` of op `name` is recorded: `RsxEncoding`.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_op_encoding(name: *const u8, len: usize, argument: *const u8, argument_len: usize) -> u32 {
    shield(0, || match encoding(text(name, len), text(argument, argument_len)) {
        Encoding::Data => 0,
        Encoding::Structure => 1,
        Encoding::IntStructure => 2,
    })
}
