//! The session: one device as the front end sees it.
//!
//! Every entry first looks at a flag that a forked child sets, before any lock. Storage operations are in [`crate::host`].
use crate::background::CompileQueue;
use crate::cache::ProgramCache;
use crate::core::Core;
use crate::executor::{self, Job};
use crate::key::{Environment, Identity};
use crate::shared::{BlockingSection, Shared};
use crate::timeline::{self, Lane};
use crate::{Backend, CutCause, FallbackKind, FaultPoint, Metrics, Options, SessionError, Tier};
use crossbeam_channel::unbounded;
use rsx_graphbreak::Report;
use rsx_lazy::op::{OpId, RetInfo};
use rsx_lazy::{EagerEngine, Fault, FrameId, OpInfo, OpTable, Recorder, Storage};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long dropping a session waits for its threads.
const CLOSE: Duration = Duration::from_secs(10);

/// One device: recorder, executor, programs, counters. Shared between threads by reference.
pub struct Session {
    pub(crate) recorder: Recorder,
    pub(crate) core: Arc<Core>,
    ops: OpTable,
}

impl Session {
    /// Starts a session with its threads.
    pub fn new(
        backend: Arc<dyn Backend>,
        engine: Arc<dyn EagerEngine>,
        options: Options,
    ) -> Result<Session, SessionError> {
        let identity = Identity { front_end: options.front_end.clone(), ..backend.identity() };
        let shared = Arc::new(Shared::new(backend, engine, &options));
        let (queue, jobs) = unbounded();
        shared.spawn("rsx-executor", move |shared| executor::serve(shared, &jobs))?;
        let compiles = CompileQueue::start(&shared, options.compile_threads, options.compile_queue)?;
        let core = Arc::new(Core {
            shared,
            cache: ProgramCache::new(options.cache_capacity),
            compiles: Mutex::new(Some(compiles)),
            queue,
            environment: Environment::new(&identity),
            tap: Default::default(),
        });
        Ok(Session { recorder: Recorder::new(core.clone(), options.limits), core, ops: OpTable::default() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.core.shared
    }

    /// Where ops are recorded.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Registers an op by its full name (`aten::add.Tensor`); the first registration of a name stays.
    pub fn register_op(&self, name: &str, written: &[bool], rets: &[RetInfo]) -> Arc<OpInfo> {
        self.ops.register(name, written, rets)
    }

    pub fn op(&self, id: OpId) -> Option<Arc<OpInfo>> {
        self.ops.get(id)
    }

    // ---- cuts and waits -----------------------------------------------------------------------------------------

    /// Submits what is recorded. Does not wait for it, except while too many segments are in flight.
    pub fn cut(&self, cause: CutCause, frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        self.recorder.cut(cause.name(), frame);
        Ok(())
    }

    /// Cuts before the next op is recorded: see [`Recorder::cut_before_next`].
    pub fn cut_before_next(&self, cause: CutCause, frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        self.recorder.cut_before_next(cause.name(), frame);
        Ok(())
    }

    /// Cuts and waits for everything submitted. Errors with the oldest fault that nobody has seen.
    pub fn synchronize(&self, cause: CutCause, frame: FrameId) -> Result<(), SessionError> {
        self.cut(cause, frame)?;
        let (sequence, _) = self.recorder.position();
        self.wait_sequence(sequence, cause, frame)?;
        self.raise_until(sequence)
    }

    /// Waits until `storage` has its newest value, for its segment only: cuts if the open trace writes it. Counts a
    /// host wait if there was something to wait for: after a cut in any case, however fast the device is.
    ///
    /// Errors with the fault that keeps the value from being had (every time), or with an older fault of the same
    /// device that nobody has seen yet (once).
    pub fn wait_for(&self, storage: &Storage, cause: CutCause, frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        let cut = self.recorder.is_recorded(storage);
        if cut {
            self.recorder.cut(cause.name(), frame);
        }
        self.wait_until(storage.pending(), cause, frame, cut)?;
        self.raise_for(storage)
    }

    pub(crate) fn wait_sequence(&self, sequence: u64, cause: CutCause, frame: FrameId) -> Result<(), SessionError> {
        self.wait_until(sequence, cause, frame, false)
    }

    /// `counts`: a host wait is counted, and in the timeline, even if segment `sequence` has run already.
    fn wait_until(&self, sequence: u64, cause: CutCause, frame: FrameId, counts: bool) -> Result<(), SessionError> {
        let shared = self.shared();
        if shared.completion.done() >= sequence {
            if counts {
                let _event = timeline::span(Lane::Host, || format!("wait: {cause}"));
                shared.report.wait(cause, frame.0, Duration::ZERO);
            }
            return Ok(());
        }
        if shared.on_executor() {
            let text = "the executor waits for itself: an eager kernel used a device tensor that is not computed yet";
            return Err(SessionError::Internal(text.into()));
        }
        let span = tracing::debug_span!(target: "rsx::wait", "wait", cause = cause.name(), sequence);
        let _in_span = span.enter();
        let _event = timeline::span(Lane::Host, || format!("wait: {cause}"));
        let started = Instant::now();
        let ready = || shared.completion.done() >= sequence || shared.is_forked() || shared.has_executor_ended();
        shared.blocking(&mut || shared.completion.wait(&ready));
        shared.report.wait(cause, frame.0, started.elapsed());
        if shared.completion.done() >= sequence {
            return Ok(());
        }
        shared.check_open()?;
        Err(SessionError::Internal("the executor has ended".into()))
    }

    /// Raises what keeps `storage` from being read, or an unseen fault of its segment or an older one.
    pub(crate) fn raise_for(&self, storage: &Storage) -> Result<(), SessionError> {
        let poison = storage.state().poison.clone();
        if let Some(fault) = poison {
            return Err(self.raise(fault));
        }
        self.raise_until(storage.pending())
    }

    fn raise_until(&self, sequence: u64) -> Result<(), SessionError> {
        match self.shared().faults.take_until(sequence) {
            Some(fault) => Err(self.raise(fault)),
            None => Ok(()),
        }
    }

    fn raise(&self, fault: Arc<Fault>) -> SessionError {
        fault.raise(self.recorder.position().0);
        SessionError::of(fault, self.frames())
    }

    // ---- events ------------------------------------------------------------------------------------------------

    /// A ticket that is done when everything recorded so far has run.
    pub fn event_record(&self, frame: FrameId) -> Result<u64, SessionError> {
        self.cut(CutCause::Event, frame)?;
        Ok(self.recorder.position().0)
    }

    pub fn event_done(&self, ticket: u64) -> bool {
        self.shared().completion.done() >= ticket
    }

    /// Waits for a ticket.
    pub fn event_wait(&self, ticket: u64, frame: FrameId) -> Result<(), SessionError> {
        self.shared().check_open()?;
        self.wait_sequence(ticket, CutCause::Event, frame)
    }

    /// Time between the completions of two tickets; nothing if one is not done or too long ago to be remembered.
    pub fn event_elapsed(&self, from: u64, to: u64) -> Option<Duration> {
        let completion = &self.shared().completion;
        Some(completion.finished_at(to)?.saturating_duration_since(completion.finished_at(from)?))
    }

    // ---- reports -----------------------------------------------------------------------------------------------

    /// The table of user frames.
    pub fn frames(&self) -> &rsx_graphbreak::FrameTable {
        self.report().frames()
    }

    /// The number of a user frame.
    pub fn frame(&self, file: &str, line: u32, function: &str) -> FrameId {
        FrameId(self.frames().intern(file, line, function))
    }

    /// Cuts, fallbacks and host waits with their causes and frames.
    pub fn report(&self) -> &Report {
        &self.shared().report
    }

    /// All compiles with their reasons, as text.
    pub fn explain(&self) -> String {
        self.shared().compiles.text(self.frames())
    }

    /// Counts an op that ran at once on the host; warns the first time.
    pub fn note_fallback(&self, op: &str, reason: &str, kind: FallbackKind, frame: FrameId) {
        self.report().fallback(op, reason, kind, frame.0);
    }

    /// All counters.
    pub fn metrics(&self) -> Metrics {
        let shared = self.shared();
        let (c, report, memory) = (&shared.counters, self.report(), shared.backend.memory());
        let recorded = self.recorder.stats();
        let (host_waits, waited) = report.total_waits();
        let seconds = |nanos: &std::sync::atomic::AtomicU64| nanos.load(Relaxed) as f64 * 1e-9;
        Metrics {
            records: recorded.records - c.records_base.load(Relaxed),
            signatures: recorded.signatures - c.signatures_base.load(Relaxed),
            segments: c.segments.load(Relaxed),
            replays: c.replays.load(Relaxed),
            compiles: c.compiles.load(Relaxed),
            plans: c.plans.load(Relaxed),
            compiling: shared.compiling.load(Relaxed) as u64,
            compile_failures: c.compile_failures.load(Relaxed),
            compile_seconds: seconds(&c.compile_nanos),
            cache_hits: c.cache_hits.load(Relaxed),
            disk_hits: c.disk_hits.load(Relaxed),
            disk_rejects: shared.store.as_ref().map_or(0, |s| s.stats().damaged),
            check_failures: c.check_failures.load(Relaxed),
            eager_runs: c.eager_runs.load(Relaxed),
            eager_ops: c.eager_ops.load(Relaxed),
            calls: c.calls(),
            loop_iterations: c.loop_iterations.load(Relaxed),
            fallbacks: report.fallbacks_by_op(&[FallbackKind::Immediate, FallbackKind::InferFailure]),
            cuts: report.cuts_by_cause(),
            host_waits,
            wait_seconds: waited.as_secs_f64(),
            throttles: c.throttles.load(Relaxed),
            launch_failures: c.launch_failures.load(Relaxed),
            faults: c.faults.load(Relaxed),
            kernels: c.kernels.load(Relaxed),
            bytes_moved: c.bytes_moved.load(Relaxed),
            busy_seconds: seconds(&c.busy_nanos),
            live_bytes: memory.live,
            peak_bytes: memory.peak,
            reserved_bytes: memory.reserved,
            system_allocations: memory.system_allocations,
            packed_bytes: memory.packed,
            prepack_hits: memory.prepack_hits - c.prepack_base.load(Relaxed),
            live_storages: Storage::live_count() as u64,
            cached_segments: self.core.cache.len() as u64,
        }
    }

    /// Starts all counters and reports from zero, and the memory peak from the present use.
    pub fn reset_metrics(&self) {
        let recorded = self.recorder.stats();
        let hits = self.shared().backend.memory().prepack_hits;
        self.shared().counters.reset(recorded.records, recorded.signatures, hits);
        self.report().reset();
        self.shared().compiles.reset();
        self.shared().backend.reset_peak();
    }

    // ---- options -----------------------------------------------------------------------------------------------

    pub fn tier(&self) -> Tier {
        self.shared().tier()
    }

    /// Sets the tier for segments from now on.
    pub fn set_tier(&self, tier: Tier) {
        self.shared().set_tier(tier);
    }

    /// Forgets all programs and sightings.
    pub fn clear_cache(&self) {
        self.core.cache.clear();
    }

    /// The `n`-th occurrence from now of `point` fails (0: none). For tests.
    pub fn inject(&self, point: FaultPoint, n: u64) {
        self.shared().inject.set(point, n);
    }

    /// Installs the function that releases the front end's locks around waits. The first one stays.
    pub fn set_blocking_section(&self, section: BlockingSection) {
        self.shared().set_blocking_section(section);
    }

    // ---- the end -----------------------------------------------------------------------------------------------

    /// Tells the session that this process is a forked child: every entry gives [`SessionError::BadFork`] from now on.
    /// Callable in a fork handler: sets a flag.
    pub fn mark_forked(&self) {
        self.shared().mark_forked();
    }

    pub fn is_forked(&self) -> bool {
        self.shared().is_forked()
    }

    /// Takes no more segments, lets those in flight finish for half of `timeout`, drops the rest, and ends the
    /// threads. Returns whether all of them ended in time; one that did not (a long compile) is left behind.
    ///
    /// What is recorded and not cut is dropped: nobody can read it any more. Harmless when called again.
    pub fn shutdown(&self, timeout: Duration) -> bool {
        let shared = self.shared();
        if shared.is_forked() {
            return true;
        }
        shared.close();
        // The queue's end wakes idle compile threads.
        drop(self.core.compiles.lock().unwrap_or_else(|e| e.into_inner()).take());
        // A second Stop, or one after the executor has gone, is never read.
        let _ = self.core.queue.send(Job::Stop);
        let deadline = Instant::now() + timeout;
        let half = Instant::now() + timeout / 2;
        let done = || shared.threads_left() == 0;
        shared.blocking(&mut || shared.completion.wait(&|| done() || Instant::now() >= half));
        if !done() {
            shared.abandon();
            shared.blocking(&mut || shared.completion.wait(&|| done() || Instant::now() >= deadline));
        }
        shared.completion.wake();
        done()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shutdown(CLOSE);
    }
}
