//! Stand-in for `rsx_capture::Session` until it lands: runs each trace at its cut, op by op, on the calling thread.

use crate::frames;
use rsx_devices::Buffer;
use rsx_devices::buffer::Memory;
use rsx_lazy::engine::Bytes;
use rsx_lazy::{EagerCall, EagerEngine, EagerOutputs, EngineError, FrameId, SegmentSink, Storage, Trace};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub(crate) struct Inline {
    engine: Box<dyn EagerEngine>,
    pub(crate) segments: AtomicU64,
    pub(crate) cuts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Inline {
    pub(crate) fn new(engine: Box<dyn EagerEngine>) -> Arc<Self> {
        Arc::new(Inline { engine, segments: AtomicU64::new(0), cuts: Mutex::default() })
    }
}

struct Block {
    ptr: *mut u8,
    layout: Layout,
}
// SAFETY: plain memory.
unsafe impl Send for Block {}
// SAFETY: plain memory.
unsafe impl Sync for Block {}
impl Memory for Block {
    fn ptr(&self) -> *mut u8 {
        self.ptr
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}
impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

type Free = Box<dyn FnOnce() + Send + Sync>;
struct Adopted(*mut u8, usize, Option<Free>);
// SAFETY: plain memory with a sendable owner.
unsafe impl Send for Adopted {}
// SAFETY: as above.
unsafe impl Sync for Adopted {}
impl Memory for Adopted {
    fn ptr(&self) -> *mut u8 {
        self.0
    }
    fn len(&self) -> usize {
        self.1
    }
}
impl Drop for Adopted {
    fn drop(&mut self) {
        if let Some(free) = self.2.take() {
            free();
        }
    }
}

pub(crate) fn memory(nbytes: usize) -> Buffer {
    let layout = Layout::from_size_align(nbytes.max(64), 64).expect("a size");
    // SAFETY: the layout is not empty.
    let ptr = unsafe { alloc_zeroed(layout) };
    Buffer::new(Block { ptr, layout })
}

pub(crate) fn buffer_of(storage: &Storage) -> Buffer {
    storage.state().buffer.get_or_insert_with(|| memory(storage.nbytes())).clone()
}

struct Outs<'a>(&'a [Arc<Storage>]);
impl EagerOutputs for Outs<'_> {
    fn allocate(&mut self, index: usize, nbytes: usize) -> Result<*mut u8, EngineError> {
        let b = memory(nbytes);
        let p = b.ptr();
        self.0[index].state().buffer = Some(b);
        Ok(p)
    }
    fn adopt(&mut self, index: usize, ptr: *mut u8, nbytes: usize, drop: Free) {
        self.0[index].state().buffer = Some(Buffer::new(Adopted(ptr, nbytes, Some(drop))));
    }
}

impl SegmentSink for Inline {
    fn submit(&self, trace: Trace, _live: Vec<bool>, cause: &'static str, frame: FrameId) {
        self.segments.fetch_add(1, Relaxed);
        *self.cuts.lock().unwrap().entry(cause).or_default() += 1;
        let _ = frames::get(frame);
        for node in &trace.nodes {
            let bufs: Vec<Buffer> =
                trace.inputs(node).iter().map(|&i| buffer_of(&trace.storages[i as usize].storage)).collect();
            let storages: Vec<Bytes> = bufs.iter().map(|b| Bytes { ptr: b.ptr(), len: b.len() }).collect();
            let outs: Vec<Arc<Storage>> =
                trace.outputs(node).iter().map(|&i| trace.storages[i as usize].storage.clone()).collect();
            let call = EagerCall { sig: &node.sig, storages: &storages, data: trace.data(node) };
            if let Err(e) = self.engine.run(&call, &mut Outs(&outs)) {
                eprintln!("rsx: {e}");
            }
        }
    }
}
