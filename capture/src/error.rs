//! Errors a session gives, and the ledger of faults that are still to be raised.
use rsx_graphbreak::FrameTable;
use rsx_lazy::{Fault, FrameId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Whose fault an error is.
pub use rsx_lazy::EngineErrorKind as ErrorKind;

/// Why a call of the session failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    #[error(
        "rsx was used before this process was forked and cannot be used in the child; start worker processes with the \
         'spawn' method, or keep rsx tensors out of them"
    )]
    BadFork,
    #[error("the rsx device has been shut down")]
    Closed,
    /// An op failed on the executor.
    #[error("{text}")]
    Fault {
        fault: Arc<Fault>,
        /// The message with op and user frame.
        text: String,
    },
    /// Memory for a host-side request could not be had.
    #[error("rsx is out of memory: wanted {bytes} bytes for {what}: {message}")]
    OutOfMemory { what: &'static str, bytes: usize, message: String },
    /// The call itself is wrong (sizes, ranges): the front end's fault.
    #[error("{0}")]
    Usage(String),
    #[error("rsx internal error: {0}")]
    Internal(String),
}

impl SessionError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            SessionError::Fault { fault, .. } => fault.kind,
            SessionError::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            SessionError::BadFork | SessionError::Closed => ErrorKind::User,
            SessionError::Usage(_) | SessionError::Internal(_) => ErrorKind::Internal,
        }
    }

    /// Where the user called what failed; 0 if unknown.
    pub fn frame(&self) -> FrameId {
        match self {
            SessionError::Fault { fault, .. } => fault.frame,
            _ => FrameId::default(),
        }
    }

    /// `fault` as an error.
    pub(crate) fn of(fault: Arc<Fault>, frames: &FrameTable) -> SessionError {
        let place = frames.text(fault.frame.0);
        let text = format!("{}\n(rsx: in {}, called at {place})", fault.message, fault.op);
        SessionError::Fault { fault, text }
    }
}

/// Faults kept for raising; more than these without a sync in between are dropped (their storages still raise them).
const MAX_UNRAISED: usize = 64;

/// Faults that nobody has seen yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Fault>>>,
}

impl Faults {
    pub(crate) fn add(&self, fault: Arc<Fault>) {
        let mut list = self.list.lock().unwrap_or_else(|e| e.into_inner());
        if list.len() < MAX_UNRAISED {
            list.push(fault);
            self.count.store(list.len(), Ordering::Release);
        }
    }

    /// The oldest unseen fault of the segments up to `sequence`.
    pub(crate) fn take_until(&self, sequence: u64) -> Option<Arc<Fault>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut list = self.list.lock().unwrap_or_else(|e| e.into_inner());
        list.retain(|f| !f.is_raised());
        let found = list.iter().position(|f| f.sequence <= sequence).map(|at| list.remove(at));
        self.count.store(list.len(), Ordering::Release);
        found
    }
}
