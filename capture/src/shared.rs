//! What the user's threads, the executor and the compile threads of a session share.
use crate::compiles::Compiles;
use crate::completion::Completion;
use crate::error::Faults;
use crate::foresight::Foresight;
use crate::inject::Injection;
use crate::looping::Loops;
use crate::metrics::Counters;
use crate::{Backend, Claim, FaultPoint, OutOfMemory, SessionError, Tier};
use rsx_devices::Buffer;
use rsx_devices::store::DiskStore;
use rsx_graphbreak::Report;
use rsx_lazy::{EagerEngine, EngineErrorKind, Fault, FrameId};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

/// Runs its argument with locks of the front end released (Python's GIL), so that others can work while it waits.
pub type BlockingSection = fn(&mut dyn FnMut());

pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) engine: Arc<dyn EagerEngine>,
    pub(crate) completion: Completion,
    pub(crate) counters: Counters,
    pub(crate) foresight: Foresight,
    pub(crate) report: Report,
    pub(crate) faults: Faults,
    pub(crate) inject: Injection,
    pub(crate) compiles: Compiles,
    pub(crate) loops: Loops,
    pub(crate) store: Option<Arc<DiskStore>>,
    pub(crate) check: bool,
    pub(crate) max_in_flight: usize,
    pub(crate) max_queued_bytes: usize,
    tier: AtomicU8,
    /// This process is a child forked from the one that made the session.
    forked: AtomicBool,
    /// No more segments are taken.
    closed: AtomicBool,
    /// What is queued is dropped unrun, and compiles stop early.
    abandoned: AtomicBool,
    /// Background compiles that are queued or running.
    pub(crate) compiling: AtomicUsize,
    /// Threads of the session that still run.
    threads: AtomicUsize,
    executor: OnceLock<ThreadId>,
    /// The executor has run its last job.
    executor_ended: AtomicBool,
    blocking: OnceLock<BlockingSection>,
}

impl Shared {
    pub(crate) fn new(backend: Arc<dyn Backend>, engine: Arc<dyn EagerEngine>, options: &crate::Options) -> Shared {
        let shared = Shared {
            backend,
            engine,
            completion: Completion::default(),
            counters: Counters::default(),
            foresight: Foresight::default(),
            report: Report::default(),
            faults: Faults::default(),
            inject: Injection::default(),
            compiles: Compiles::default(),
            loops: Loops::default(),
            store: options.store.clone(),
            check: options.check,
            max_in_flight: options.in_flight.max(1),
            max_queued_bytes: options.queued_write_bytes,
            tier: AtomicU8::new(options.tier as u8),
            forked: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            compiling: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
            executor: OnceLock::new(),
            executor_ended: AtomicBool::new(false),
            blocking: OnceLock::new(),
        };
        for &(point, n) in &options.faults {
            shared.inject.set(point, n);
        }
        shared
    }

    pub(crate) fn tier(&self) -> Tier {
        match self.tier.load(Relaxed) {
            0 => Tier::Eager,
            2 => Tier::Compiled,
            _ => Tier::Auto,
        }
    }

    pub(crate) fn set_tier(&self, tier: Tier) {
        self.tier.store(tier as u8, Relaxed);
    }

    pub(crate) fn mark_forked(&self) {
        self.forked.store(true, Release);
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.forked.load(Acquire)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Release);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    /// May this call go on?
    pub(crate) fn check_open(&self) -> Result<(), SessionError> {
        if self.is_forked() {
            return Err(SessionError::BadFork);
        }
        if self.is_closed() { Err(SessionError::Closed) } else { Ok(()) }
    }

    pub(crate) fn set_blocking_section(&self, section: BlockingSection) {
        // A second front end in the process would install the same one.
        let _ = self.blocking.set(section);
    }

    /// Runs `f`, which may wait, with the front end's locks released.
    pub(crate) fn blocking(&self, f: &mut dyn FnMut()) {
        match self.blocking.get() {
            Some(section) => section(f),
            None => f(),
        }
    }

    pub(crate) fn executor_started(&self) {
        let _ = self.executor.set(std::thread::current().id());
    }

    pub(crate) fn end_executor(&self) {
        self.executor_ended.store(true, Release);
        self.completion.wake();
    }

    pub(crate) fn has_executor_ended(&self) -> bool {
        self.executor_ended.load(Acquire)
    }

    pub(crate) fn on_executor(&self) -> bool {
        self.executor.get() == Some(&std::thread::current().id())
    }

    /// Starts a thread of the session, which [`Shared::threads_left`] counts.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        body: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<(), SessionError> {
        struct Leave(Arc<Shared>);
        impl Drop for Leave {
            fn drop(&mut self) {
                self.0.threads.fetch_sub(1, AcqRel);
                self.0.completion.wake();
            }
        }
        self.threads.fetch_add(1, AcqRel);
        let leave = Leave(self.clone());
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(rsx_compiler::STACK_BYTES)
            .spawn(move || body(&leave.0))
            .map(drop)
            .map_err(|e| SessionError::Internal(format!("cannot start thread {name}: {e}")))
    }

    pub(crate) fn threads_left(&self) -> usize {
        self.threads.load(Acquire)
    }

    /// Memory of at least `bytes` bytes; when short, gives cached memory back and tries again.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        if self.inject.hit(FaultPoint::Oom) {
            return Err(OutOfMemory { bytes, message: format!("injected failure of an allocation of {bytes} bytes") });
        }
        self.backend.allocate(bytes).or_else(|_| {
            self.backend.release_cached();
            self.backend.allocate(bytes)
        })
    }

    /// Counts `bytes` that the eager engine allocated itself; bounded and injected like [`Shared::allocate`].
    pub(crate) fn claim(&self, bytes: usize) -> Result<Claim, OutOfMemory> {
        if self.inject.hit(FaultPoint::Oom) {
            return Err(OutOfMemory { bytes, message: format!("injected failure of an allocation of {bytes} bytes") });
        }
        self.backend.claim(bytes)
    }

    /// As [`Shared::allocate`], for memory that nobody has written: `torch.empty`. Debug builds zero it, so that a
    /// read before a write gives the same value every time.
    pub(crate) fn allocate_undefined(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        let buffer = self.allocate(bytes)?;
        if cfg!(debug_assertions) {
            buffer.zero();
        }
        Ok(buffer)
    }

    /// Notes a failure on the executor.
    pub(crate) fn fault(
        &self,
        kind: EngineErrorKind,
        op: &str,
        frame: FrameId,
        message: String,
        sequence: u64,
    ) -> Arc<Fault> {
        Counters::add(&self.counters.faults, 1);
        let place = self.report.frames().text(frame.0);
        tracing::debug!(target: "rsx::execute", op, place, message, "an op failed");
        let fault = Arc::new(Fault::new(kind, op, frame, message, sequence));
        self.faults.add(fault.clone());
        fault
    }
}

/// The text of a caught panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("a panic: {}", text.unwrap_or_else(|| "without a message".into()))
}
