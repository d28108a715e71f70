//! Taking segments: key, look-up, tier, hand-over to the executor.
use crate::background::{CompileJob, CompileQueue};
use crate::cache::{Entry, ProgramCache};
use crate::continued::{Continued, continued};
use crate::executor::{Job, SegmentJob};
use crate::key::{Environment, Key};
use crate::metrics::Counters;
use crate::recording::Tap;
use crate::segment;
use crate::shared::Shared;
use crate::timeline::{self, Lane};
use crate::{CutCause, Tier};
use crossbeam_channel::Sender;
use rsx_devices::store::EntryKind;
use rsx_lazy::{FrameId, SegmentSink, Trace};
use std::sync::{Arc, Mutex};

pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cache: ProgramCache,
    /// Dropped at shutdown, which ends the compile threads.
    pub(crate) compiles: Mutex<Option<CompileQueue>>,
    pub(crate) queue: Sender<Job>,
    /// The ingredients of keys that do not come from traces.
    pub(crate) environment: Environment,
    /// Set while somebody wants copies of what is submitted.
    pub(crate) tap: Tap,
}

impl SegmentSink for Core {
    fn submit(&self, trace: Trace, live: Vec<bool>, cause: &'static str, frame: FrameId) {
        let shared = &self.shared;
        if shared.is_forked() {
            // Freeing could wait for a lock that a thread of the parent held at the fork.
            std::mem::forget(trace);
            return;
        }
        if shared.is_closed() {
            return;
        }
        let span =
            tracing::debug_span!(target: "rsx::cut", "cut", cause, nodes = trace.nodes.len(), seq = trace.sequence);
        let _in_span = span.enter();
        timeline::recorded(trace.nodes.len());
        let mut event = timeline::span(Lane::Host, || format!("cut: {cause}"));
        event.fact("ops", trace.nodes.len());
        let cause = CutCause::parse(cause);
        shared.report.cut(cause.unwrap_or(CutCause::Unsupported), frame.0);
        Counters::add(&shared.counters.segments, 1);
        let key = Key::of(&trace, &live, self.environment);
        tracing::trace!(target: "rsx::cut", %key);
        self.tap.submitted(&trace, &live, key);
        let entry = self.cache.see(key);
        let tier = shared.tier();
        let ends_step = trace.ends_step || cause == Some(CutCause::MarkStep);
        let first = entry.sightings() == 1;
        let later = if tier == Tier::Auto { self.later_step(&entry, &trace, &live) } else { None };
        let (trace, live, entry, zeroed) = match later {
            Some((entry, c)) => (c.trace, c.live, entry, c.zeroed),
            None => (trace, live, entry, Vec::new()),
        };
        // Asked every time, so that it learns; a guess is worth something in this tier only.
        let recurs = !first || (shared.foresight.expects(ends_step, trace.nodes.len()) && tier == Tier::Auto);
        if entry.sightings() == 2 && entry.is_foreseen() {
            shared.foresight.came_true();
        }
        let load = self.promote(tier, recurs, &entry, &trace, &live);
        shared.completion.segment_queued();
        let (compiled, patient) = (tier != Tier::Eager, tier == Tier::Auto);
        let job = SegmentJob { trace, live, entry, compiled, load, patient, zeroed, replay: None };
        if self.queue.send(Job::Segment(Box::new(job))).is_err() {
            // The executor is gone, so the session is closed: waiting gives that error.
            tracing::debug!(target: "rsx::cut", "a segment was cut after shutdown");
        }
    }

    fn throttle(&self) {
        let shared = &self.shared;
        if shared.completion.in_flight() <= shared.max_in_flight || shared.on_executor() {
            return;
        }
        Counters::add(&shared.counters.throttles, 1);
        let ready =
            || shared.completion.in_flight() <= shared.max_in_flight || shared.is_closed() || shared.is_forked();
        shared.blocking(&mut || shared.completion.wait(&ready));
    }
}

impl Core {
    fn is_stored(&self, key: &Key) -> bool {
        self.shared.store.as_ref().is_some_and(|s| s.has(EntryKind::Program, key.hash()))
    }

    /// A segment without a program that is the first step of a loop whose later steps have one: as one of those.
    fn later_step(&self, entry: &Entry, trace: &Trace, live: &[bool]) -> Option<(Arc<Entry>, Continued)> {
        if entry.program().is_some() {
            return None;
        }
        // Looked at before the disk is: most segments make no state.
        let continued = continued(trace, live)?;
        if self.is_stored(&entry.key) {
            return None;
        }
        let key = Key::of(&continued.trace, &continued.live, self.environment);
        let known = self.cache.peek(&key).is_some_and(|e| e.program().is_some()) || self.is_stored(&key);
        known.then(|| (self.cache.see(key), continued))
    }

    /// Sees to it that the segment has a program, or gets one, as the tier wants. True: the executor is to load it from
    /// disk before it runs the segment.
    pub(crate) fn promote(&self, tier: Tier, recurs: bool, entry: &Arc<Entry>, trace: &Trace, live: &[bool]) -> bool {
        let shared = &self.shared;
        if tier == Tier::Eager {
            return false;
        }
        if entry.program().is_some() {
            Counters::add(&shared.counters.cache_hits, 1);
            if shared.check {
                segment::check(shared, entry, trace, live);
            }
            return false;
        }
        if entry.has_failed() {
            return false;
        }
        match tier {
            Tier::Eager => {}
            Tier::Compiled => {
                // Somebody else may be compiling it already: the tier was changed. Twice is no harm.
                entry.start();
                segment::compile(shared, entry, trace, live);
            }
            Tier::Auto => {
                // Loading takes milliseconds: the executor would wait for it anyway, the user's thread need not.
                if entry.sightings() == 1 && self.is_stored(&entry.key) {
                    return entry.start();
                }
                if !recurs {
                    return false;
                }
                let compiles = self.compiles.lock().unwrap_or_else(|e| e.into_inner());
                let Some(queue) = compiles.as_ref().filter(|q| q.has_room()) else { return false };
                if entry.start() {
                    if entry.sightings() == 1 {
                        entry.foresee();
                    }
                    queue.push(CompileJob { entry: entry.clone(), trace: trace.skeleton(), live: live.to_vec() });
                }
            }
        }
        false
    }
}
