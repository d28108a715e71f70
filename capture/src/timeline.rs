//! The timeline: what the session did when, for a trace viewer and for profilers of the front end.
//!
//! Off, an event costs one load. On, events collect until somebody takes them.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// Events kept; beyond, the newest are dropped.
const MOST: usize = 1 << 21;

/// Which row of the timeline an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// A user's thread: recording, cuts, waits.
    Host,
    /// A compile thread.
    Compiler,
    /// The executor: segments.
    Executor,
    /// The device: kernels, library calls, ops of the eager engine.
    Device,
}

impl Lane {
    pub const ALL: [Lane; 4] = [Lane::Host, Lane::Compiler, Lane::Executor, Lane::Device];

    pub fn name(self) -> &'static str {
        match self {
            Lane::Host => "host",
            Lane::Compiler => "compiler",
            Lane::Executor => "executor",
            Lane::Device => "device",
        }
    }
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub lane: Lane,
    pub name: String,
    /// Nanoseconds since the epoch of UNIX.
    pub start: u64,
    /// Nanoseconds.
    pub duration: u64,
    /// Facts for the reader: name, value.
    pub facts: Vec<(&'static str, String)>,
}

static ON: AtomicBool = AtomicBool::new(false);
static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());
/// When the first op since the last cut was recorded; 0 if none was.
static RECORDING: AtomicU64 = AtomicU64::new(0);

fn events() -> MutexGuard<'static, Vec<Event>> {
    EVENTS.lock().unwrap_or_else(|e| e.into_inner())
}

/// Is somebody collecting events?
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// Starts collecting, from nothing.
pub fn start() {
    events().clear();
    RECORDING.store(0, Relaxed);
    ON.store(true, SeqCst);
}

/// Ends collecting and gives what was collected, in order of start.
pub fn stop() -> Vec<Event> {
    ON.store(false, SeqCst);
    let mut taken = std::mem::take(&mut *events());
    taken.sort_by_key(|e| (e.start, std::cmp::Reverse(e.duration)));
    taken
}

/// Nanoseconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// Adds an event.
pub fn add(event: Event) {
    let mut events = events();
    if on() && events.len() < MOST {
        events.push(event);
    }
}

/// An event that lasts until this is dropped; nothing if nobody collects.
#[derive(Debug)]
pub struct Span(Option<Event>);

/// Begins an event.
pub fn span(lane: Lane, name: impl FnOnce() -> String) -> Span {
    Span(on().then(|| Event { lane, name: name(), start: now(), duration: 0, facts: Vec::new() }))
}

impl Span {
    /// Adds a fact to it.
    pub fn fact(&mut self, name: &'static str, value: impl std::fmt::Display) {
        if let Some(e) = &mut self.0 {
            e.facts.push((name, value.to_string()));
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut e) = self.0.take() {
            e.duration = now().saturating_sub(e.start);
            add(e);
        }
    }
}

/// An op is being recorded.
pub fn recording() {
    if on() && RECORDING.load(Relaxed) == 0 {
        RECORDING.store(now(), Relaxed);
    }
}

/// A cut: what was recorded before it is an event of the host.
pub(crate) fn recorded(ops: usize) {
    let start = RECORDING.swap(0, Relaxed);
    if on() && start != 0 {
        let duration = now().saturating_sub(start);
        let facts = vec![("ops", ops.to_string())];
        add(Event { lane: Lane::Host, name: "record".into(), start, duration, facts });
    }
}
