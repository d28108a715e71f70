//! Tier 0: nodes one by one through the eager engine.
use crate::OutOfMemory;
use crate::looping;
use crate::memory;
use crate::metrics::Counters;
use crate::run::Run;
use crate::shared::{Shared, panic_text};
use crate::timeline::{self, Lane};
use rsx_devices::Buffer;
use rsx_lazy::engine::Bytes;
use rsx_lazy::{EagerCall, EagerOutputs, EngineError, EngineErrorKind, Fault, Node, OutKind};
use smallvec::SmallVec;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs the needed nodes of a range, freeing what dies on the way, to the end or until the run is stopped.
pub(crate) fn nodes(run: &mut Run<'_>, range: Range<usize>) {
    for n in range {
        if run.schedule.needed(n) {
            node(run, n);
            if run.is_stopped() {
                return;
            }
            run.free(run.schedule.frees(n));
        }
    }
}

/// Runs one node. What cannot be had of its results is poisoned; nothing is returned because nobody could act on it.
pub(crate) fn node(run: &mut Run<'_>, n: usize) {
    let trace = run.trace;
    let node = &trace.nodes[n];
    if looping::is_loop(node) {
        return looping::run(run, n);
    }
    let mut held: SmallVec<[Buffer; 8]> = SmallVec::new();
    let mut storages: SmallVec<[Bytes; 8]> = SmallVec::new();
    let mut revived: SmallVec<[u32; 2]> = SmallVec::new();
    for &i in trace.inputs(node) {
        let buffer = match run.buffer(i, n) {
            Ok(b) => b,
            Err(_) if run.is_stopped() => return,
            Err(fault) => match overwritten(run, n, i) {
                Some(b) => {
                    revived.push(i);
                    b
                }
                None => return skip(run, n, &fault),
            },
        };
        let len = trace.storages[i as usize].storage.nbytes();
        // The kernel is PyTorch's: whatever it gets it may write.
        storages.push(Bytes { ptr: buffer.write_ptr(), len });
        held.push(buffer);
    }
    if let Err(fault) = run.writes(n) {
        if !run.is_stopped() {
            skip(run, n, &fault);
        }
        return;
    }
    let mut outputs = Outputs { shared: run.shared, buffers: SmallVec::new(), short: None };
    outputs.buffers.resize(trace.outputs(node).len(), None);
    let call = EagerCall { sig: &node.sig, storages: &storages, data: trace.data(node) };
    let engine = &run.shared.engine;
    Counters::add(&run.shared.counters.eager_ops, 1);
    let event = timeline::span(Lane::Device, || node.sig.op.name.clone());
    let ran = catch_unwind(AssertUnwindSafe(|| engine.run(&call, &mut outputs)))
        .unwrap_or_else(|p| Err(EngineError { kind: EngineErrorKind::Internal, message: panic_text(&*p) }));
    drop(event);
    let ran = match outputs.short.take() {
        // Said with the sizes; the engine only knows that it got nothing.
        Some((k, e)) => Err(short_of(node, k, &e)),
        None => ran.and_then(|()| outputs.complete(run, node)),
    };
    match ran {
        Ok(()) => {
            for (&i, buffer) in trace.outputs(node).iter().zip(outputs.buffers) {
                if let Some(buffer) = buffer {
                    run.assign(i, buffer);
                }
            }
            for i in revived {
                let mut state = trace.storages[i as usize].storage.state();
                (state.poison, state.doubt) = (None, None);
            }
        }
        Err(e) => {
            let fault = run.fault(e.kind, Some(n), e.message);
            skip(run, n, &fault);
        }
    }
}

/// The node did not run: its results have no value, what it would have written stays as it was.
fn skip(run: &Run<'_>, n: usize, fault: &Arc<Fault>) {
    if run.is_stopped() {
        return; // as if it had not begun
    }
    for &i in run.trace.outputs(&run.trace.nodes[n]) {
        run.fail(i, fault);
    }
    for i in run.trace.writes(&run.trace.nodes[n]) {
        run.fail(i, fault);
    }
}

/// Output `k` of `node` has no memory.
fn short_of(node: &Node, k: usize, e: &OutOfMemory) -> EngineError {
    let out = node.sig.outs.iter().filter(|o| o.kind == OutKind::Fresh).nth(k);
    let result = out.map_or_else(String::new, |o| {
        let element = o.scalar_type().dtype().map_or_else(|| "elements".into(), |d| d.to_string());
        format!(" for a result of {} of sizes {:?} of {element}", node.sig.op.name, o.sizes())
    });
    EngineError { kind: EngineErrorKind::OutOfMemory, message: format!("{}{result}", e.message) }
}

/// Ops whose written argument is wholly replaced without being read.
const OVERWRITING: [&str; 8] = [
    "aten::copy_",
    "aten::zero_",
    "aten::fill_.Scalar",
    "aten::fill_.Tensor",
    "aten::normal_",
    "aten::uniform_",
    "aten::set_data",
    "aten::zero",
];

/// Memory for storage `i`, whose value cannot be had, if node `n` replaces it as a whole: that ends its misfortune.
fn overwritten(run: &Run<'_>, n: usize, i: u32) -> Option<Buffer> {
    let node = &run.trace.nodes[n];
    let name = node.sig.op.name.as_str();
    if !OVERWRITING.contains(&name) && !name.ends_with("out") {
        return None;
    }
    let record = run.trace.inputs(node);
    let storage = &run.trace.storages[i as usize].storage;
    let (mut replaced, mut read) = (false, false);
    for (k, arg) in node.sig.args().ok()?.iter().enumerate() {
        let written = node.sig.op.written.get(k).copied().unwrap_or(false);
        arg.tensors(&mut |t| {
            if record.get(t.storage as usize) != Some(&i) {
                return;
            }
            let whole = t.covers(storage.nbytes());
            replaced |= written && whole;
            read |= !(written && whole);
        });
    }
    if !replaced || read {
        return None;
    }
    let mut state = storage.state();
    if state.buffer.is_none() {
        state.buffer = run.shared.allocate(storage.nbytes()).ok();
    }
    state.buffer.clone()
}

/// Collects what the engine makes.
struct Outputs<'a> {
    shared: &'a Shared,
    buffers: SmallVec<[Option<Buffer>; 4]>,
    /// The first output that had no memory.
    short: Option<(usize, OutOfMemory)>,
}

impl Outputs<'_> {
    /// Every fresh output must be there, and large enough for what the trace says of it.
    fn complete(&self, run: &Run<'_>, node: &Node) -> Result<(), EngineError> {
        for (k, (&i, buffer)) in run.trace.outputs(node).iter().zip(&self.buffers).enumerate() {
            let want = run.trace.storages[i as usize].storage.nbytes();
            let have = buffer.as_ref().map(Buffer::len);
            if have.is_none_or(|have| have < want) {
                let message = format!("output {k} of {} has {have:?} bytes, {want} expected", node.sig.op.name);
                return Err(EngineError { kind: EngineErrorKind::Internal, message });
            }
        }
        Ok(())
    }

    fn put(&mut self, index: usize, buffer: Buffer) -> Result<(), EngineError> {
        let slot = self.buffers.get_mut(index).ok_or_else(|| EngineError {
            kind: EngineErrorKind::Internal,
            message: format!("the eager engine made output {index}, which was not predicted"),
        })?;
        *slot = Some(buffer);
        Ok(())
    }
}

impl EagerOutputs for Outputs<'_> {
    fn allocate(&mut self, index: usize, nbytes: usize) -> Result<*mut u8, EngineError> {
        let buffer = self.shared.allocate(nbytes).map_err(|e| {
            let error = EngineError { kind: EngineErrorKind::OutOfMemory, message: e.message.clone() };
            self.short.get_or_insert((index, e));
            error
        })?;
        let ptr = buffer.write_ptr();
        self.put(index, buffer)?;
        Ok(ptr)
    }

    fn adopt(&mut self, index: usize, ptr: *mut u8, nbytes: usize, drop: Box<dyn FnOnce() + Send + Sync>) {
        match self.shared.claim(nbytes) {
            // An index out of range is given back at once; `complete` reports what is missing.
            Ok(claim) => {
                let _ = self.put(index, memory::adopt(ptr, nbytes, drop, claim));
            }
            Err(e) => {
                drop();
                self.short.get_or_insert((index, e));
            }
        }
    }
}
