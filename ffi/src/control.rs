//! The C entries for cuts, waits, events, memory and fallbacks.

use crate::core::session;
use crate::error::{guard, shield};
use crate::{frames, replay, watch};
use rsx_capture::{CutCause, FallbackKind, timeline};
use rsx_lazy::OpId;
use std::cell::Cell;
use std::ffi::c_void;

/// `RsxCause` of `rsx_abi.h`.
fn cause_of(cause: u32) -> CutCause {
    const CAUSES: [CutCause; 11] = [
        CutCause::MarkStep,
        CutCause::OptimizerStep,
        CutCause::Item,
        CutCause::CopyToHost,
        CutCause::Print,
        CutCause::DataPointer,
        CutCause::DynamicShape,
        CutCause::Fallback,
        CutCause::Synchronize,
        CutCause::Event,
        CutCause::Resize,
    ];
    CAUSES.get(cause as usize).copied().unwrap_or(CutCause::Unsupported)
}

thread_local! {
    /// What Python is doing on this thread that reads from the device (`print`), when it says so.
    static HOST_CAUSE: Cell<Option<CutCause>> = const { Cell::new(None) };
}

/// Sets the cause of this thread's copies to the host; returns the one before.
pub(crate) fn set_host_cause(cause: Option<CutCause>) -> Option<CutCause> {
    HOST_CAUSE.replace(cause)
}

pub(crate) fn host_cause(cause: u32) -> CutCause {
    HOST_CAUSE.get().unwrap_or_else(|| cause_of(cause))
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_cut(cause: u32) -> i32 {
    guard(|| {
        if cause_of(cause) == CutCause::MarkStep && replay::active() {
            return Ok(0); // a recorded call is one segment, whatever steps it has
        }
        session()?.cut(cause_of(cause), frames::current())?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_synchronize(cause: u32) -> i32 {
    guard(|| {
        watch::check_host_wait(cause_of(cause))?;
        replay::refuse(|| format!("the device is synchronized at {}", replay::here()));
        session()?.synchronize(cause_of(cause), frames::current())?;
        Ok(0)
    })
}

/// Counts an op that ran at once on the CPU. `reason`: `RsxReason`.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_note_fallback(op: u32, reason: u32) {
    use FallbackKind::{Immediate, InferFailure};
    shield((), || {
        let Ok(session) = session() else { return };
        let name = crate::core::ops().get(OpId(op)).map_or_else(String::new, |o| o.name.clone());
        let (kind, text) = match reason {
            0 => (Immediate, "its result is a value for the host"),
            1 => (Immediate, "the shape of its result depends on values"),
            2 => (InferFailure, "PyTorch has no rule for the shape of its result"),
            3 => (InferFailure, "PyTorch's rule for the shape of its result failed"),
            4 => (Immediate, "it may be Python code"),
            5 => (Immediate, "it writes overlapping memory"),
            _ => (Immediate, "unknown reason"),
        };
        replay::refuse(|| format!("{name} at {} runs on the host: {text}", replay::here()));
        session.note_fallback(&name, text, kind, frames::current());
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_event_record() -> u64 {
    replay::refuse(|| format!("an event is recorded at {}", replay::here()));
    shield(0, || session().ok().and_then(|s| s.event_record(frames::current()).ok()).unwrap_or(0))
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_event_done(ticket: u64) -> i32 {
    shield(1, || session().map_or(1, |s| i32::from(s.event_done(ticket))))
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_event_wait(ticket: u64) -> i32 {
    guard(|| {
        watch::check_host_wait(CutCause::Event)?;
        session()?.event_wait(ticket, frames::current())?;
        Ok(0)
    })
}

/// Milliseconds between the completions of two tickets; negative if one is not done or long forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_event_ms(from: u64, to: u64) -> f64 {
    let elapsed = || session().ok().and_then(|s| s.event_elapsed(from, to));
    shield(-1.0, || elapsed().map_or(-1.0, |d| d.as_secs_f64() * 1e3))
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_timeline_start() {
    shield((), timeline::start);
}

/// Called with: context, lane, name and its length, start, duration.
type TimelineEvent = extern "C" fn(*mut c_void, u32, *const u8, usize, u64, u64);

/// Ends the timeline and hands its events out.
#[unsafe(no_mangle)]
pub extern "C" fn rsx_timeline_stop(ctx: *mut c_void, event: TimelineEvent) {
    for e in shield(Vec::new(), timeline::stop) {
        event(ctx, e.lane as u32, e.name.as_ptr(), e.name.len(), e.start, e.duration);
    }
}

/// Mirrors `RsxMemory`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub allocated: u64,
    pub peak: u64,
    pub reserved: u64,
    pub allocations: u64,
    pub system_allocations: u64,
    pub total: u64,
}

pub(crate) fn memory() -> Memory {
    let Ok(session) = session() else { return Memory::default() };
    let m = session.memory();
    Memory {
        allocated: m.live,
        peak: m.peak,
        reserved: m.reserved,
        allocations: m.allocations,
        system_allocations: m.system_allocations,
        total: crate::machine::total_memory(),
    }
}

/// # Safety
/// `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_memory(out: *mut Memory) {
    // SAFETY: the caller's promise.
    unsafe { *out = shield(Memory::default(), memory) };
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_memory_reset_peak() {
    shield((), || {
        if let Ok(s) = session() {
            s.reset_peak();
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn rsx_memory_trim() {
    shield((), || {
        if let Ok(s) = session() {
            s.release_cached();
        }
    });
}
