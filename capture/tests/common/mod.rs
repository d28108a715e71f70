//! A fake device (the reference interpreter), a fake eager engine, and a few ops, for the tests of the session.
//!
//! Tensors are dense vectors of f32 that fill their storage.
#![allow(dead_code, reason = "shared by several test programs, each of which uses a part")]
#![allow(unreachable_pub, reason = "as above")]
use rsx_capture::backend::*;
use rsx_capture::{CutCause, ErrorKind, Identity, Options, Session, SessionError, Tier};
use rsx_compiler::interp::Tensor;
use rsx_compiler::ir::{DType, TensorType};
use rsx_compiler::program::{Program, reference};
use rsx_compiler::{CompileOptions, compile};
use rsx_devices::{Buffer, Memory};
use rsx_lazy::engine::Bytes;
use rsx_lazy::lower::GraphPiece;
use rsx_lazy::op::{OpId, RetInfo, op_hash};
use rsx_lazy::words::{Arg, Tag};
use rsx_lazy::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

// ---- a door that tests close to hold a thread at a place -----------------------------------------------------------

#[derive(Default)]
pub struct Door {
    /// (closed, threads that have come to it)
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Door {
    pub fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }
    pub fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }
    pub fn pass(&self) {
        let mut s = self.state.lock().unwrap();
        s.1 += 1;
        self.changed.notify_all();
        while s.0 {
            s = self.changed.wait(s).unwrap();
        }
    }
    /// Waits until `n` threads in all have come to the door.
    pub fn wait_for_arrivals(&self, n: usize) {
        let s = self.state.lock().unwrap();
        let (_s, timeout) = self.changed.wait_timeout_while(s, Duration::from_secs(20), |s| s.1 < n).unwrap();
        assert!(!timeout.timed_out(), "nobody came to the door");
    }
    pub fn arrivals(&self) -> usize {
        self.state.lock().unwrap().1
    }
}

// ---- memory --------------------------------------------------------------------------------------------------------

#[derive(Default)]
pub struct Pool {
    live: AtomicU64,
    peak: AtomicU64,
    count: AtomicU64,
    limit: AtomicU64,
}

struct Block {
    /// Atomic because it is written through its address.
    data: Box<[AtomicU8]>,
    pool: Arc<Pool>,
}

impl Memory for Block {
    fn ptr(&self) -> *mut u8 {
        self.data.as_ptr().cast_mut().cast()
    }
    fn len(&self) -> usize {
        self.data.len()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.live.fetch_sub(self.data.len() as u64, SeqCst);
    }
}

fn shared_bytes(bytes: &[u8]) -> Box<[AtomicU8]> {
    bytes.iter().map(|&b| AtomicU8::new(b)).collect()
}

/// A view of memory at an address.
struct At(usize, usize);

impl Memory for At {
    fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
    fn len(&self) -> usize {
        self.1
    }
}

pub fn floats(buffer: &Buffer, n: usize) -> Vec<f32> {
    let mut bytes = vec![0; n * 4];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

// ---- the device ------------------------------------------------------------------------------------------------------

#[derive(Default)]
pub struct FakeDevice {
    pub pool: Arc<Pool>,
    /// Passed by every compile.
    pub compile_door: Door,
    /// Passed by every run of a compiled piece.
    pub run_door: Arc<Door>,
    /// So many runs fail on the way.
    pub fail_runs: Arc<AtomicU64>,
    /// So many runs find out early that they cannot go on.
    pub refuse_runs: Arc<AtomicU64>,
    pub take_donations: std::sync::atomic::AtomicBool,
    pub released: AtomicU64,
    /// What it says of its options.
    pub options: Mutex<String>,
}

impl FakeDevice {
    fn runnable(&self, program: Program) -> Arc<dyn Runnable> {
        let (door, fail, refuse) = (self.run_door.clone(), self.fail_runs.clone(), self.refuse_runs.clone());
        Arc::new(Interpreted { program, door, fail, refuse })
    }

    /// Bytes that may be live at once; 0 means no limit.
    pub fn set_limit(&self, bytes: u64) {
        self.pool.limit.store(bytes, SeqCst);
    }
}

struct Interpreted {
    program: Program,
    door: Arc<Door>,
    fail: Arc<AtomicU64>,
    refuse: Arc<AtomicU64>,
}

impl Runnable for Interpreted {
    fn alias(&self, result: usize) -> Option<usize> {
        self.program.results[result].alias.map(|p| p as usize)
    }
    fn run(&self, inputs: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), RunError> {
        self.door.pass();
        let read = |(ty, b): (&TensorType, &Buffer)| {
            let mut bytes = vec![0; ty.bytes() as usize];
            b.read(0, &mut bytes).unwrap();
            Tensor { ty: ty.clone(), bytes }
        };
        let params: Vec<Tensor> = self.program.params.iter().zip(inputs).map(read).collect();
        let ty = TensorType::scalar(DType::F64);
        let scalars: Vec<Tensor> =
            scalars.iter().map(|s| Tensor { ty: ty.clone(), bytes: s.to_le_bytes().to_vec() }).collect();
        let failed =
            |message: String, intact| RunError::Failed { kind: ErrorKind::Internal, message, node: Some(0), intact };
        if self.refuse.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(failed("a bad index".into(), true));
        }
        let out = reference::run(&self.program, &params, &scalars).map_err(|e| failed(e.to_string(), true))?;
        let failing = self.fail.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        for (tensor, buffer) in out.iter().zip(results) {
            buffer.write(0, &tensor.bytes).unwrap();
            if failing {
                return Err(failed("the device caught fire".into(), false));
            }
        }
        Ok(())
    }
    fn cost(&self) -> RunCost {
        RunCost { kernels: 1, bytes_moved: 8 }
    }
    fn arity(&self) -> (usize, usize, usize) {
        let p = &self.program;
        (p.params.len(), p.n_scalars as usize, p.results.len())
    }
    fn to_bytes(&self) -> Option<Vec<u8>> {
        postcard::to_allocvec(&self.program).ok()
    }
}

impl Backend for FakeDevice {
    fn compile(&self, piece: &GraphPiece) -> Result<Arc<dyn Runnable>, CompileError> {
        self.compile_door.pass();
        let mut graph = piece.graph.clone();
        if !self.take_donations.load(SeqCst) {
            graph.params.iter_mut().for_each(|p| p.donate_to = None);
        }
        let compiled = compile(graph, &CompileOptions::default())
            .map_err(|e| CompileError { message: e.to_string(), node: None })?;
        Ok(self.runnable(compiled.program))
    }
    fn restore(&self, bytes: &[u8]) -> Result<Arc<dyn Runnable>, String> {
        Ok(self.runnable(postcard::from_bytes(bytes).map_err(|e| e.to_string())?))
    }
    fn identity(&self) -> Identity {
        Identity { device: "fake".into(), options: self.options.lock().unwrap().clone(), ..Identity::default() }
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        let p = &self.pool;
        let now = p.live.fetch_add(bytes as u64, SeqCst) + bytes as u64;
        let limit = p.limit.load(SeqCst);
        if limit > 0 && now > limit {
            p.live.fetch_sub(bytes as u64, SeqCst);
            return Err(OutOfMemory { bytes, message: format!("wanted {bytes} bytes of {limit}") });
        }
        p.peak.fetch_max(now, SeqCst);
        p.count.fetch_add(1, SeqCst);
        Ok(Buffer::new(Block { data: shared_bytes(&vec![0xAB; bytes]), pool: p.clone() }))
    }
    fn memory_limit(&self) -> Option<u64> {
        Some(self.pool.limit.load(SeqCst)).filter(|&l| l > 0)
    }
    fn release_cached(&self) {
        self.released.fetch_add(1, SeqCst);
    }
    fn memory(&self) -> MemoryStats {
        let p = &self.pool;
        let (live, peak) = (p.live.load(SeqCst), p.peak.load(SeqCst));
        MemoryStats {
            live,
            peak,
            reserved: live,
            system_allocations: 0,
            allocations: p.count.load(SeqCst),
            ..MemoryStats::default()
        }
    }
    fn reset_peak(&self) {
        self.pool.peak.store(self.pool.live.load(SeqCst), SeqCst);
    }
}

// ---- ops and the eager engine ------------------------------------------------------------------------------------------

/// Short names of the ops used here; `triple` (x * 3), `positive` (x, or an error if an element is negative) and `panic`
/// have no lowering.
const OPS: [(&str, &str); 6] = [
    ("add", "aten::add.Tensor"),
    ("add_", "aten::add_.Tensor"),
    ("mul", "aten::mul.Tensor"),
    ("mul_", "aten::mul_.Tensor"),
    ("scale", "aten::mul.Scalar"),
    ("zero_", "aten::zero_"),
];

pub fn full_name(name: &str) -> String {
    OPS.iter().find(|(short, _)| *short == name).map_or_else(|| format!("test::{name}"), |(_, full)| (*full).into())
}

/// The op of a short name.
pub fn op(name: &str) -> Arc<OpInfo> {
    let in_place = name.ends_with('_');
    let full = full_name(name);
    let alias_of = in_place.then_some(0);
    Arc::new(OpInfo {
        id: OpId(0),
        hash: op_hash(&full),
        row: rsx_lazy::aten::find(&full),
        args: ["self", "other"].map(Box::from).into(),
        name: full,
        written: [in_place].into_iter().collect(),
        rets: [RetInfo { alias_of, list: false }].into_iter().collect(),
    })
}

#[derive(Default)]
pub struct FakeEngine {
    /// Ops run, by name.
    pub runs: Mutex<BTreeMap<String, u64>>,
    /// Passed by every op.
    pub door: Door,
    /// Hand outputs over in the engine's own memory.
    pub adopts: std::sync::atomic::AtomicBool,
    pub adopted: Arc<AtomicU64>,
}

impl FakeEngine {
    pub fn count(&self, op: &str) -> u64 {
        self.runs.lock().unwrap().get(&full_name(op)).copied().unwrap_or(0)
    }
}

impl EagerEngine for FakeEngine {
    fn run(&self, call: &EagerCall<'_>, outputs: &mut dyn EagerOutputs) -> Result<(), EngineError> {
        self.door.pass();
        let name = call.sig.op.name.clone();
        *self.runs.lock().unwrap().entry(name.clone()).or_default() += 1;
        let short = OPS.iter().find(|(_, full)| *full == name).map(|(short, _)| *short);
        let name = short.unwrap_or(name.trim_start_matches("test::"));
        let view = |b: &Bytes| Buffer::new(At(b.ptr.expose_provenance(), b.len));
        let args = call.sig.args().unwrap();
        let tensor = |i: usize| match &args[i] {
            Arg::Tensor(t) => {
                floats(&view(&call.storages[t.storage as usize]), t.sizes.iter().product::<i64>() as usize)
            }
            other => panic!("{other:?}"),
        };
        let x = tensor(0);
        let out: Vec<f32> = match name.trim_end_matches('_') {
            "add" => x.iter().zip(tensor(1)).map(|(x, y)| x + y).collect(),
            "mul" => x.iter().zip(tensor(1)).map(|(x, y)| x * y).collect(),
            "scale" => x.iter().map(|x| x * f64::from_bits(call.data[0]) as f32).collect(),
            "triple" => x.iter().map(|x| x * 3.0).collect(),
            "zero" => vec![0.0; x.len()],
            "positive" if x.iter().any(|x| *x < 0.0) => {
                return Err(EngineError { kind: ErrorKind::Index, message: "index -1 is out of bounds".into() });
            }
            "positive" => x,
            "panic" => panic!("a bug"),
            other => {
                return Err(EngineError { kind: ErrorKind::Unsupported, message: format!("no kernel for {other}") });
            }
        };
        let bytes = bytes_of(&out);
        if name.ends_with('_') {
            view(&call.storages[0]).write(0, &bytes).unwrap();
        } else if self.adopts.load(SeqCst) {
            let memory = shared_bytes(&bytes);
            let (ptr, len, adopted) = (memory.as_ptr().cast_mut().cast(), memory.len(), self.adopted.clone());
            adopted.fetch_add(1, SeqCst);
            outputs.adopt(
                0,
                ptr,
                len,
                Box::new(move || {
                    drop(memory);
                    adopted.fetch_sub(1, SeqCst);
                }),
            );
        } else {
            let ptr = outputs.allocate(0, bytes.len())?;
            Buffer::new(At(ptr.expose_provenance(), bytes.len())).write(0, &bytes).unwrap();
        }
        Ok(())
    }
}

/// Waits for what another thread is about to bring about.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

// ---- the user ----------------------------------------------------------------------------------------------------------

/// A session with its fakes, and ops on vectors as a front end would record them.
pub struct World {
    pub session: Session,
    pub device: Arc<FakeDevice>,
    pub engine: Arc<FakeEngine>,
    ops: Mutex<BTreeMap<String, Arc<OpInfo>>>,
}

/// A tensor held by the user.
pub struct T {
    pub storage: Arc<Storage>,
}

impl Drop for T {
    fn drop(&mut self) {
        self.storage.release_external();
    }
}

pub const HERE: FrameId = FrameId(0);

impl World {
    pub fn new(tier: Tier) -> World {
        World::with(Options { tier, ..Options::default() })
    }

    pub fn with(options: Options) -> World {
        let (device, engine) = (Arc::new(FakeDevice::default()), Arc::new(FakeEngine::default()));
        device.take_donations.store(true, SeqCst);
        let session = Session::new(device.clone(), engine.clone(), options).unwrap();
        World::over(session, device, engine)
    }

    pub fn over(session: Session, device: Arc<FakeDevice>, engine: Arc<FakeEngine>) -> World {
        World { session, device, engine, ops: Mutex::default() }
    }

    /// A tensor without a value.
    pub fn empty(&self, n: usize) -> T {
        T { storage: Storage::new(n * 4) }
    }

    pub fn tensor(&self, values: &[f32]) -> T {
        let t = self.empty(values.len());
        self.upload(&t, values);
        t
    }

    pub fn upload(&self, t: &T, values: &[f32]) {
        self.session.upload(&t.storage, &bytes_of(values), HERE).unwrap();
    }

    pub fn read(&self, t: &T) -> Result<Vec<f32>, SessionError> {
        let mut bytes = vec![0; t.storage.nbytes()];
        self.session.read(&t.storage, 0, &mut bytes, CutCause::Item, HERE)?;
        Ok(bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect())
    }

    pub fn values(&self, t: &T) -> Vec<f32> {
        self.read(t).unwrap()
    }

    pub fn cut(&self) {
        self.session.cut(CutCause::MarkStep, HERE).unwrap();
    }

    pub fn sync(&self) -> Result<(), SessionError> {
        self.session.synchronize(CutCause::Synchronize, HERE)
    }

    /// An op that has been recorded before, by its full name.
    pub fn known(&self, name: &str) -> Option<Arc<OpInfo>> {
        self.ops.lock().unwrap().values().find(|o| o.name == name).cloned()
    }

    /// Records an op at line `line` of `test.py`.
    pub fn at(&self, line: u32, name: &str, inputs: &[&T], number: Option<f64>) -> Option<T> {
        let op = self.ops.lock().unwrap().entry(name.to_owned()).or_insert_with(|| op(name)).clone();
        let mut storages: Vec<&Arc<Storage>> = Vec::new();
        let mut written: Vec<bool> = Vec::new();
        let mut words = vec![op.hash];
        for (i, t) in inputs.iter().enumerate() {
            let known = storages.iter().position(|s| Arc::ptr_eq(s, &t.storage));
            let index = known.unwrap_or_else(|| {
                storages.push(&t.storage);
                written.push(false);
                storages.len() - 1
            });
            written[index] |= op.written.get(i) == Some(&true);
            let n = t.storage.nbytes() as u64 / 4;
            words.extend([Tag::Tensor.header(6 | 1 << 8, index as u32), 0, n, 1]);
        }
        let mut data = Vec::new();
        if name.starts_with("add") {
            // alpha
            words.push(Tag::DataInt.header(0, 0));
            data.push(1);
        }
        if let Some(number) = number {
            words.push(Tag::DataDouble.header(0, 0));
            data.push(number.to_bits());
        }
        let recorder = self.session.recorder();
        loop {
            match recorder.record(&words, &storages, &written, &data) {
                Recorded::Done { outputs, frame_wanted, .. } => {
                    if frame_wanted {
                        recorder.note_frame(self.session.frame("test.py", line, "f"));
                    }
                    return outputs.into_iter().next().map(|storage| T { storage });
                }
                Recorded::Immediate(sig) => panic!("{sig:?}"),
                Recorded::Unknown => {
                    let mut out = OutMeta {
                        sizes: [0; 8],
                        strides: [0; 8],
                        nbytes: inputs[0].storage.nbytes() as u64,
                        rank: 1,
                        dtype: 6,
                        kind: OutKind::Fresh,
                        pad: [0; 5],
                    };
                    (out.sizes[0], out.strides[0]) = (out.nbytes as i64 / 4, 1);
                    let outs = if name.ends_with('_') { vec![] } else { vec![out] };
                    recorder.insert(op.clone(), &words, &outs, SigFlags::default());
                }
            }
        }
    }

    pub fn op(&self, name: &str, inputs: &[&T]) -> T {
        self.at(1, name, inputs, None).unwrap()
    }

    pub fn scale(&self, x: &T, s: f64) -> T {
        self.at(1, "scale", &[x], Some(s)).unwrap()
    }

    /// An in-place op.
    pub fn do_(&self, name: &str, inputs: &[&T]) {
        assert!(self.at(1, name, inputs, None).is_none());
    }

    /// One step of a little training loop: param += lr * (param * x + x), returns the sum of the two terms.
    pub fn step(&self, param: &T, x: &T, lr: f64) -> T {
        let y = self.op("mul", &[param, x]);
        let loss = self.op("add", &[&y, x]);
        let update = self.scale(&loss, lr);
        self.do_("add_", &[param, &update]);
        loss
    }
}
