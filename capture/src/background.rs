//! Background compilation.
use crate::SessionError;
use crate::cache::Entry;
use crate::segment;
use crate::shared::Shared;
use crossbeam_channel::{Receiver, Sender, bounded};
use rsx_lazy::Trace;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Niceness of compile threads: they take what recording and running leave over.
const NICE: i32 = 5;

/// One segment to compile.
pub(crate) struct CompileJob {
    pub(crate) entry: Arc<Entry>,
    /// A skeleton: it holds no memory of the user's.
    pub(crate) trace: Trace,
    pub(crate) live: Vec<bool>,
}

/// A bounded queue and the threads that serve it.
pub(crate) struct CompileQueue {
    sender: Sender<CompileJob>,
    shared: Arc<Shared>,
}

impl CompileQueue {
    pub(crate) fn start(shared: &Arc<Shared>, threads: usize, capacity: usize) -> Result<CompileQueue, SessionError> {
        let (sender, receiver) = bounded(capacity.max(1));
        for n in 0..threads.max(1) {
            let receiver: Receiver<CompileJob> = receiver.clone();
            shared.spawn(&format!("rsx-compile-{n}"), move |shared| serve(shared, &receiver))?;
        }
        Ok(CompileQueue { sender, shared: shared.clone() })
    }

    /// Queues a claimed compilation; if the queue is full the claim is given back and the segment tries again when it
    /// recurs.
    pub(crate) fn push(&self, job: CompileJob) {
        self.shared.compiling.fetch_add(1, Relaxed);
        if let Err(refused) = self.sender.try_send(job) {
            self.shared.compiling.fetch_sub(1, Relaxed);
            refused.into_inner().entry.give_up();
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.sender.is_full()
    }
}

fn serve(shared: &Arc<Shared>, jobs: &Receiver<CompileJob>) {
    // Where the system refuses, compiles merely compete with the user's work.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    while let Ok(job) = jobs.recv() {
        if shared.is_closed() {
            return;
        }
        segment::compile(shared, &job.entry, &job.trace, &job.live);
        shared.compiling.fetch_sub(1, Relaxed);
    }
}
