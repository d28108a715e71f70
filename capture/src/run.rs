//! One run of a segment on the executor: memory of its storages, results, faults.
use crate::executor::replace;
use crate::schedule::Schedule;
use crate::shared::Shared;
use rsx_devices::Buffer;
use rsx_lazy::storage::StorageState;
use rsx_lazy::{EngineErrorKind, Fault, FrameId, Trace};
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::sync::Arc;

/// One run.
///
/// Memory that runs short is one fault of the segment, however many ops lack it, and storages that existed before are
/// not written any more then: in eager PyTorch the lines behind the first error would not have run either.
pub(crate) struct Run<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) trace: &'a Trace,
    pub(crate) schedule: &'a Schedule,
    /// Storages that this run gave their first memory, of undefined contents.
    blank: RefCell<Vec<u32>>,
    /// Memory ran short in this run, or before for something that it reads.
    short: OnceCell<Arc<Fault>>,
    /// A shortage ends the run, as if it had not begun, while what existed before can be put back.
    stoppable: Cell<bool>,
    stopped: Cell<bool>,
    /// While it is stoppable and memory has a limit: what storages held that existed before and were written to (small
    /// ones: running statistics), and those that nobody uses any more.
    before: RefCell<Vec<(u32, Buffer)>>,
    unused: RefCell<Vec<u32>>,
}

/// Of the memory limit, what copies of small storages may take so that a run can be undone.
const COPIES: u64 = 64;
/// Of the bytes that a run needs, what blocks are larger than what lies in them.
const ROUNDING: u64 = 32;

impl<'a> Run<'a> {
    pub(crate) fn new(shared: &'a Shared, trace: &'a Trace, schedule: &'a Schedule) -> Run<'a> {
        let (stoppable, stopped) = (Cell::new(false), Cell::new(false));
        let blank = RefCell::default();
        let (before, unused) = (RefCell::default(), RefCell::default());
        Run { shared, trace, schedule, blank, short: OnceCell::new(), stoppable, stopped, before, unused }
    }

    /// Whether a shortage of memory ends the run: see [`Run::rewind`].
    pub(crate) fn stop_when_short(&self, stop: bool) {
        self.stoppable.set(stop);
    }

    /// Did a shortage end the run?
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Undoes a run that was stopped: nothing that the trace makes has a value, and everything else is as it was.
    pub(crate) fn rewind(&self) {
        for u in self.trace.storages.iter().filter(|u| u.created) {
            *u.storage.state() = StorageState::default();
        }
        self.before.take().into_iter().for_each(|(i, buffer)| self.assign(i, buffer));
        self.unused.take();
        self.stopped.set(false);
    }

    /// Something that existed before the run is about to change for good.
    fn changes(&self) {
        self.stoppable.set(false);
        self.before.take();
        let unused = self.unused.take();
        self.free(&unused);
    }

    /// What node `n` writes in place is about to change. The shortage that forbids it, if there was one.
    pub(crate) fn writes(&self, n: usize) -> Result<(), Arc<Fault>> {
        if !self.stoppable.get() && self.short.get().is_none() {
            return Ok(());
        }
        let written = self.trace.writes(&self.trace.nodes[n]);
        // Memory that never had a value (`torch.empty`: an optimizer's state about to be filled) has none to keep.
        let is_new = |i: u32| self.trace.storages[i as usize].created || self.blank.borrow().contains(&i);
        if written.iter().all(|&i| is_new(i)) {
            return Ok(());
        }
        if let Some(limit) = self.shared.backend.memory_limit().filter(|_| self.stoppable.get()) {
            if written.iter().all(|&i| is_new(i) || self.keeps_copy(i, limit)) {
                return Ok(());
            }
            // The last chance to run the segment compiled. What is needed from here on is known, but for its rounding.
            if let Some(need) = self.lacks(n..self.trace.nodes.len()) {
                return Err(self.fault(EngineErrorKind::OutOfMemory, Some(n), format!("{need} bytes are needed")));
            }
        }
        self.changes();
        self.short.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// Keeps what storage `i` holds, so that it can be put back, if that is little.
    fn keeps_copy(&self, i: u32, limit: u64) -> bool {
        let mut before = self.before.borrow_mut();
        if before.iter().any(|b| b.0 == i) {
            return true;
        }
        let storage = &self.trace.storages[i as usize].storage;
        let bytes = storage.nbytes();
        let kept: usize = before.iter().map(|b| b.1.len()).sum();
        if (kept + bytes) as u64 > limit / COPIES {
            return false;
        }
        let Some(buffer) = storage.state().buffer.clone() else { return false };
        let Ok(copy) = self.shared.allocate(bytes) else { return false };
        let copied = copy.copy_from(&buffer, bytes.min(buffer.len())).is_ok();
        before.push((i, copy));
        copied
    }

    /// A bound of the device forbids that the nodes of `range` run one by one: bytes they would hold at once.
    pub(crate) fn lacks(&self, range: Range<usize>) -> Option<u64> {
        let limit = self.shared.backend.memory_limit()?;
        let has_memory = self.trace.storages.iter().map(|u| u.storage.state().buffer.is_some()).collect();
        let need = self.schedule.peak(self.trace, range, has_memory);
        let need = need + need / ROUNDING;
        (self.shared.backend.memory().live.saturating_add(need) > limit).then_some(need)
    }

    /// The memory of storage `index` for reading, or the fault that keeps its value from being had. Memory that nobody
    /// has written yet (`torch.empty`) is made here; `node` is who wants it.
    pub(crate) fn buffer(&self, index: u32, node: usize) -> Result<Buffer, Arc<Fault>> {
        let storage = &self.trace.storages[index as usize].storage;
        let mut state = storage.state();
        if let Some(fault) = state.obstacle(self.trace.sequence) {
            if fault.kind == EngineErrorKind::OutOfMemory {
                let _ = self.short.set(fault.clone());
            }
            return Err(fault);
        }
        if let Some(buffer) = &state.buffer {
            return Ok(buffer.clone());
        }
        match self.shared.allocate_undefined(storage.nbytes()) {
            Ok(buffer) => {
                state.buffer = Some(buffer.clone());
                self.blank.borrow_mut().push(index);
                Ok(buffer)
            }
            Err(e) => {
                drop(state);
                Err(self.fault(EngineErrorKind::OutOfMemory, Some(node), e.message))
            }
        }
    }

    /// Fresh memory for storage `index`.
    pub(crate) fn fresh(&self, index: u32, node: usize) -> Result<Buffer, Arc<Fault>> {
        let bytes = self.trace.storages[index as usize].storage.nbytes();
        self.shared.allocate(bytes).map_err(|e| self.fault(EngineErrorKind::OutOfMemory, Some(node), e.message))
    }

    /// The storages become all zeros.
    pub(crate) fn zero(&self, indices: &[u32]) {
        for &i in indices {
            match self.fresh(i, 0) {
                Ok(buffer) => {
                    buffer.zero();
                    self.assign(i, buffer);
                }
                Err(fault) => self.fail(i, &fault),
            }
        }
    }

    /// `buffer` holds the new value of storage `index`.
    pub(crate) fn assign(&self, index: u32, buffer: Buffer) {
        replace(&self.trace.storages[index as usize].storage, buffer);
    }

    /// Storage `index` gets no value because of `fault`. One that existed before keeps its contents, in doubt until the
    /// fault has been raised: a failed step must not cost the user the parameters.
    pub(crate) fn fail(&self, index: u32, fault: &Arc<Fault>) {
        let used = &self.trace.storages[index as usize];
        let mut state = used.storage.state();
        if used.created && state.buffer.is_none() {
            state.poison = Some(fault.clone());
        } else {
            state.doubt = Some(fault.clone());
        }
    }

    /// The contents of storage `index` were half overwritten.
    pub(crate) fn spoil(&self, index: u32, fault: &Arc<Fault>) {
        self.trace.storages[index as usize].storage.state().poison = Some(fault.clone());
    }

    /// Frees the memory of storages that nobody uses any more.
    pub(crate) fn free(&self, indices: &[u32]) {
        for &i in indices {
            let storage = &self.trace.storages[i as usize].storage;
            // Somebody may have got hold of it by its address meanwhile.
            if !storage.is_live_outside() {
                if self.stoppable.get() && !self.trace.storages[i as usize].created {
                    if self.shared.backend.memory_limit().is_some() {
                        self.unused.borrow_mut().push(i);
                        continue;
                    }
                    self.changes();
                }
                let buffer = storage.state().buffer.take();
                drop(buffer);
            }
        }
    }

    /// Notes that `node` (or the segment as a whole) failed.
    pub(crate) fn fault(&self, kind: EngineErrorKind, node: Option<usize>, message: String) -> Arc<Fault> {
        let node = node.and_then(|n| self.trace.nodes.get(n));
        let op = node.map_or("a compiled segment", |n| n.sig.op.name.as_str());
        let frame = node.or(self.trace.nodes.first()).map_or_else(FrameId::default, |n| n.frame);
        if kind != EngineErrorKind::OutOfMemory {
            return self.shared.fault(kind, op, frame, message, self.trace.sequence);
        }
        if self.stoppable.get() {
            self.stopped.set(true);
            return Arc::new(Fault::new(kind, op, frame, message, self.trace.sequence));
        }
        self.short.get_or_init(|| self.shared.fault(kind, op, frame, message, self.trace.sequence)).clone()
    }
}
