//! The executor: one thread that runs segments and outside writes in order.
use crate::cache::Entry;
use crate::compiled;
use crate::eager;
use crate::metrics::Counters;
use crate::replay::Replay;
use crate::run::Run;
use crate::schedule::Schedule;
use crate::segment::{self, CompiledSegment};
use crate::shared::{Shared, panic_text};
use crate::timeline::{self, Lane};
use crossbeam_channel::Receiver;
use rsx_devices::Buffer;
use rsx_lazy::{EngineErrorKind, FrameId, OutsideWrite, Storage, Trace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Work for the executor.
pub(crate) enum Job {
    Segment(Box<SegmentJob>),
    /// `buffer` becomes the whole value of `storage`.
    Write {
        storage: Arc<Storage>,
        buffer: Buffer,
        write: OutsideWrite,
    },
    Stop,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct SegmentJob {
    pub(crate) trace: Trace,
    pub(crate) live: Vec<bool>,
    pub(crate) entry: Arc<Entry>,
    /// Run the program if there is one by then.
    pub(crate) compiled: bool,
    /// Its program is on disk and to be loaded first.
    pub(crate) load: bool,
    /// Wait for a compile that goes on, if that pays.
    pub(crate) patient: bool,
    /// Storages of the trace that are filled with zeros before it runs.
    pub(crate) zeroed: Vec<u32>,
    /// Where the job goes back to, to be used again, with the data words it was filled with.
    pub(crate) replay: Option<(Arc<Replay>, Arc<[u64]>)>,
}

/// Body of the executor's thread.
pub(crate) fn serve(shared: &Arc<Shared>, jobs: &Receiver<Job>) {
    struct End<'a>(&'a Shared);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.end_executor();
        }
    }
    shared.executor_started();
    // However the thread ends, nobody waits for it in vain.
    let _end = End(shared);
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Segment(mut job) => {
                let sequence = job.trace.sequence;
                if !shared.is_abandoned() {
                    let started = Instant::now();
                    segment(shared, &job);
                    Counters::add(&shared.counters.busy_nanos, started.elapsed().as_nanos() as u64);
                }
                // What the segment held is free before anybody hears that it is done.
                match job.replay.take() {
                    Some((replay, data)) => replay.give_back(job, data),
                    None => drop(job),
                }
                shared.completion.finish(sequence, true, 0);
            }
            Job::Write { storage, buffer, write } => {
                let (sequence, bytes) = (write.sequence, buffer.len());
                outside_write(shared, &storage, buffer, &write);
                drop((storage, write));
                shared.completion.finish(sequence, false, bytes);
            }
            Job::Stop => return,
        }
    }
}

fn segment(shared: &Shared, job: &SegmentJob) {
    let trace = &job.trace;
    if job.load {
        segment::load(shared, &job.entry, trace, &job.live);
    }
    if job.patient && job.entry.program().is_none() {
        await_compile(shared, job);
    }
    let program = job.entry.program().filter(|_| job.compiled);
    let tier = if program.is_some() { 1 } else { 0 };
    let span =
        tracing::debug_span!(target: "rsx::execute", "execute", seq = trace.sequence, nodes = trace.nodes.len(), tier);
    let _in_span = span.enter();
    let mut event = timeline::span(Lane::Executor, || "segment".into());
    event.fact("sequence", trace.sequence);
    event.fact("ops", trace.nodes.len());
    event.fact("tier", tier);
    let schedule = job.entry.schedule(|| Schedule::new(trace, &job.live));
    if let Some((replay, _)) = &job.replay {
        replay.carry_over(trace);
    }
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::new(shared, trace, schedule);
        run.zero(&job.zeroed);
        match program {
            Some(program) => run_program(&mut run, program),
            None => op_by_op(&mut run, job),
        }
    }));
    let Err(panic) = ran else { return };
    let first = trace.nodes.first().map_or_else(FrameId::default, |n| n.frame);
    let text = panic_text(&*panic);
    let fault = shared.fault(EngineErrorKind::Internal, "a segment", first, text, trace.sequence);
    // How far it came is unknown: nothing that it writes can be relied on.
    for u in trace.storages.iter().filter(|u| u.written) {
        u.storage.state().poison = Some(fault.clone());
    }
}

fn run_program(run: &mut Run<'_>, program: &CompiledSegment) {
    if !program.started.swap(true, Relaxed) {
        // What the op-by-op runs left in caches fits nothing the program needs: peak memory is not to hold both.
        run.shared.backend.release_cached();
    }
    compiled::run(run, program);
}

/// Runs a segment without a program. Where memory is too short for that, it gets its program now, which mostly needs
/// less (values are fused away or computed again): a step that fits compiled is not to fail because it came first.
fn op_by_op(run: &mut Run<'_>, job: &SegmentJob) {
    let (shared, nodes) = (run.shared, 0..job.trace.nodes.len());
    let way_out = job.compiled && !job.entry.has_failed();
    if way_out
        && run.lacks(nodes.clone()).is_some()
        && compile_now(shared, job)
        && let Some(program) = job.entry.program()
    {
        return run_program(run, program);
    }
    Counters::add(&shared.counters.eager_runs, 1);
    run.stop_when_short(way_out && !job.entry.has_failed());
    let started = Instant::now();
    eager::nodes(run, nodes.clone());
    shared.foresight.ran(nodes.len(), started.elapsed());
    if run.is_stopped() {
        run.rewind();
        run.stop_when_short(false);
        compile_now(shared, job);
        match job.entry.program() {
            Some(program) => run_program(run, program),
            None => eager::nodes(run, nodes),
        }
    }
}

/// Bounds waits for compiles that somebody else began: beyond, something is wrong with them.
const LONGEST_COMPILE: Duration = Duration::from_secs(600);

/// Compiles the job's segment, or waits for whoever is at it. Is there a program now?
fn compile_now(shared: &Shared, job: &SegmentJob) -> bool {
    let _span = tracing::debug_span!(target: "rsx::execute", "compile_now").entered();
    shared.backend.release_cached();
    if job.entry.compiling_since().is_some() {
        job.entry.await_program(LONGEST_COMPILE, || !shared.is_closed());
    } else if job.entry.start() {
        segment::compile(shared, &job.entry, &job.trace, &job.live);
    }
    job.entry.program().is_some()
}

/// Waits for the compile of the job's segment where a run op by op would take as long.
fn await_compile(shared: &Shared, job: &SegmentJob) {
    let Some(since) = job.entry.compiling_since() else { return };
    if let Some(limit) = shared.foresight.patience(job.trace.nodes.len(), since) {
        let _span = tracing::debug_span!(target: "rsx::execute", "await_compile").entered();
        // Before the memory of a compile is added to it.
        shared.backend.release_cached();
        job.entry.await_program(limit, || !shared.is_closed());
    }
}

fn outside_write(shared: &Shared, storage: &Storage, buffer: Buffer, write: &OutsideWrite) {
    if let Some(old) = write.old.as_ref().filter(|_| write.keep_old) {
        let mut state = storage.state();
        let present = std::mem::take(&mut *state);
        if storage.is_exposed() {
            // The address stays with the storage: the old contents move out.
            let copied = present.buffer.as_ref().map(|from| {
                let to = shared.allocate(storage.nbytes())?;
                Ok(to.copy_from(from, from.len().min(to.len())).map(|()| to).ok())
            });
            state.buffer = present.buffer;
            drop(state);
            let mut shadow = old.state();
            (shadow.poison, shadow.doubt) = (present.poison, present.doubt);
            match copied.transpose() {
                Ok(copy) => shadow.buffer = copy.flatten(),
                Err(e) => {
                    let e: crate::OutOfMemory = e;
                    let kind = EngineErrorKind::OutOfMemory;
                    let fault =
                        shared.fault(kind, "a copy from the host", FrameId::default(), e.message, write.sequence);
                    shadow.poison = Some(fault);
                }
            }
        } else {
            drop(state);
            *old.state() = present;
        }
    }
    replace(storage, buffer);
}

/// `buffer` becomes the whole value of `storage`; an exposed storage keeps its address.
pub(crate) fn replace(storage: &Storage, buffer: Buffer) {
    let mut state = storage.state();
    match state.buffer.take().filter(|_| storage.is_exposed()) {
        Some(fixed) if fixed.ptr() != buffer.ptr() => {
            // Both hold the storage's bytes; a shorter one can only be a tail that no element reaches.
            let _ = fixed.copy_from(&buffer, fixed.len().min(buffer.len()));
            state.renew(fixed);
        }
        _ => state.renew(buffer),
    }
}
