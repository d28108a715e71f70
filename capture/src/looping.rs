//! Loops inside one program: `torch.while_loop`.
//!
//! Condition and body are traces of their own, recorded once by a recorder that nothing is submitted from
//! ([`Scratch`]), and compiled like segments. The loop itself is one node of the user's trace, which names the loop by a
//! hash of its contents: the trace's key says all of it, in every process. The executor runs it: the predicate is read
//! there, so that no thread of the user's waits and nothing is cut.
//!
//! For gradients, a loop keeps what its iterations began with ([`Tape`]); a second loop walks that backwards. How many
//! iterations there were is known to the executor alone.
use crate::cache::Entry;
use crate::compiled;
use crate::eager;
use crate::key::Key;
use crate::metrics::Counters;
use crate::run::Run;
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::{Session, Tier};
use rsx_devices::{Buffer, Memory};
use rsx_lazy::record::Limits;
use rsx_lazy::words::{Arg, TensorArg};
use rsx_lazy::{EngineErrorKind, Fault, FrameId, Node, Recorder, SegmentSink, Storage, Trace};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// The op that a loop is recorded as: `while_loop(Tensor[] carried, Tensor[] additional, int loop) -> Tensor[]`.
pub const OP: &str = "rsx::while_loop";

/// The same, and keeps a tape. The last value carried counts the iterations; the tape belongs to its result.
pub(crate) const KEPT: &str = "rsx::while_loop_kept";

/// Walks a tape backwards: `while_loop_back(Tensor[] carried, Tensor[] additional, int loop) -> Tensor[]`, where
/// `additional` begins with the count. The body is a function of what is carried, what the tape has and the rest.
pub(crate) const BACK: &str = "rsx::while_loop_back";

/// Epochs of scratch recorders begin here: storages must not take them for the main recorder's.
const EPOCHS: u32 = 1 << 31;

/// Records ops without running them.
pub struct Scratch {
    recorder: Recorder,
    taken: Arc<Taken>,
}

#[derive(Default)]
struct Taken(Mutex<Vec<Trace>>);

impl SegmentSink for Taken {
    fn submit(&self, trace: Trace, _: Vec<bool>, _: &'static str, _: FrameId) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).push(trace);
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        static EPOCH: AtomicU32 = AtomicU32::new(0);
        let taken = Arc::new(Taken::default());
        let epoch = EPOCHS | EPOCH.fetch_add(1, Relaxed);
        Scratch { recorder: Recorder::starting_at(epoch, taken.clone(), Limits::default()), taken }
    }
}

impl Scratch {
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Ends the recording of a function of the storages `args` with the results `outs`. `made`: storages that were made
    /// without an op meanwhile, with a hash of the host data copied to them. Errors say why it cannot be part of a loop.
    pub fn finish(
        self,
        session: &Session,
        args: &[&Arc<Storage>],
        outs: &[&Arc<Storage>],
        made: &[(Weak<Storage>, u64)],
    ) -> Result<Part, String> {
        self.recorder.cut("loop", FrameId::default());
        let mut traces = std::mem::take(&mut *self.taken.0.lock().unwrap_or_else(|e| e.into_inner()));
        let trace = traces.pop().unwrap_or_default();
        if !traces.is_empty() {
            return Err("it has more ops than one program takes".into());
        }
        Part::new(session, trace, args, outs, made)
    }
}

/// Where a result of a part comes from.
#[derive(Clone, Copy, Debug, Hash)]
enum Source {
    /// A storage of its trace.
    Storage(u32),
    /// An argument as it is.
    Argument(usize),
}

/// Condition or body of a loop.
pub struct Part {
    trace: Mutex<Trace>,
    live: Vec<bool>,
    entry: Arc<Entry>,
    /// Storage of each argument, if it is used.
    args: Vec<Option<u32>>,
    outs: Vec<Source>,
    /// Storages that keep their contents from run to run: host data.
    kept: Vec<bool>,
    hash: u64,
}

impl Part {
    fn new(
        session: &Session,
        trace: Trace,
        args: &[&Arc<Storage>],
        outs: &[&Arc<Storage>],
        made: &[(Weak<Storage>, u64)],
    ) -> Result<Part, String> {
        let place = |s: &Arc<Storage>| trace.storages.iter().position(|u| Arc::ptr_eq(&u.storage, s)).map(|i| i as u32);
        let arguments: Vec<Option<u32>> = args.iter().map(|s| place(s)).collect();
        let source = |s: &&Arc<Storage>| match args.iter().position(|a| Arc::ptr_eq(a, s)) {
            Some(i) => Ok(Source::Argument(i)),
            None => place(s).map(Source::Storage).ok_or_else(|| "a result is not its own".to_owned()),
        };
        let outs = outs.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        // Live: what is used and not made here stays as it is; results do.
        let (mut kept, mut data, mut live) = (Vec::new(), Vec::new(), Vec::new());
        for (i, u) in trace.storages.iter().enumerate() {
            let made = made.iter().find(|m| m.0.as_ptr() == Arc::as_ptr(&u.storage));
            let is_argument = arguments.contains(&Some(i as u32));
            // Made by an op, or without contents: what is in it is the part's own work.
            let own = u.created || made.is_some_and(|m| m.1 == 0 && !is_argument);
            if u.written && !own {
                return Err("it writes a tensor that it did not make".into());
            }
            if !own && !is_argument {
                data.push(made.ok_or("it uses a tensor that is not an argument")?.1);
            }
            kept.push(!own && !is_argument);
            live.push(!own);
        }
        let random = |n: &Node| n.sig.args().map_or(true, |args| args.iter().any(|a| matches!(a, Arg::Rng { .. })));
        if trace.nodes.iter().any(random) {
            return Err("it draws random numbers".into());
        }
        for out in &outs {
            if let Source::Storage(i) = *out {
                live[i as usize] = true;
            }
        }
        let key = Key::of(&trace, &live, session.core.environment);
        let mut text = key.hash().to_le_bytes().to_vec();
        text.extend(trace.data.iter().flat_map(|w| w.to_le_bytes()));
        text.extend(format!("{arguments:?} {outs:?}").bytes());
        text.extend(data.iter().flat_map(|hash| hash.to_le_bytes()));
        let entry = session.core.cache.see(key);
        let part = Part { live, entry, args: arguments, outs, kept, hash: xxh3_64(&text), trace: Mutex::new(trace) };
        let trace = part.trace();
        if !trace.is_empty() && session.core.promote(session.shared().tier(), true, &part.entry, &trace, &part.live) {
            crate::segment::load(session.shared(), &part.entry, &trace, &part.live);
        }
        drop(trace);
        Ok(part)
    }

    fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs it on `values`; the results, or why one of them cannot be had.
    fn run(&self, shared: &Shared, values: &[Buffer], sequence: u64) -> Result<Vec<Buffer>, Arc<Fault>> {
        let mut trace = self.trace();
        trace.sequence = sequence;
        let trace = &*trace;
        for (i, value) in self.args.iter().zip(values) {
            if let Some(i) = i {
                trace.storages[*i as usize].storage.state().renew(value.clone());
            }
        }
        if !trace.is_empty() {
            let schedule = self.entry.schedule(|| Schedule::new(trace, &self.live));
            let mut run = Run::new(shared, trace, schedule);
            match self.entry.program().filter(|_| shared.tier() != Tier::Eager) {
                Some(program) => compiled::run(&mut run, program),
                None => eager::nodes(&mut run, 0..trace.nodes.len()),
            }
        }
        let result = |out: &Source| match *out {
            Source::Argument(i) => Ok(values[i].clone()),
            Source::Storage(i) => {
                let mut state = trace.storages[i as usize].storage.state();
                let gone =
                    || Arc::new(Fault::new(EngineErrorKind::Internal, OP, FrameId::default(), GONE.into(), sequence));
                match state.obstacle(sequence) {
                    Some(fault) => Err(fault),
                    None => state.buffer.clone().ok_or_else(gone),
                }
            }
        };
        let results = self.outs.iter().map(result).collect();
        for (used, _) in trace.storages.iter().zip(&self.kept).filter(|(_, kept)| !**kept) {
            *used.storage.state() = Default::default();
        }
        results
    }
}

const GONE: &str = "a result of a loop's part has no memory";

/// Condition and body.
pub struct Loop {
    /// None: as often as a tape has entries.
    condition: Option<Part>,
    body: Part,
    /// Which of the values carried go on the tape.
    kept: Vec<usize>,
}

impl Loop {
    /// `condition` gives one boolean, `body` as many results as the loop carries values. `kept`: which of these a tape
    /// keeps; the last counts the iterations then.
    pub fn new(condition: Option<Part>, body: Part, kept: Vec<usize>) -> Result<Loop, String> {
        let fits = condition.as_ref().is_none_or(|c| c.outs.len() == 1 && c.args.len() == body.args.len());
        if !fits || body.outs.len() > body.args.len() || kept.iter().any(|&i| i >= body.outs.len()) {
            return Err("its parts do not fit together".into());
        }
        Ok(Loop { condition, body, kept })
    }

    /// Stands for the loop in traces; equal loops have equal numbers in every process. Not negative.
    fn id(&self) -> i64 {
        let mut text = [self.condition.as_ref().map_or(0, |c| c.hash), self.body.hash].map(u64::to_le_bytes).concat();
        text.extend(self.kept.iter().flat_map(|i| i.to_le_bytes()));
        (xxh3_64(&text) >> 1) as i64
    }
}

/// What each iteration of a loop began with, of the values that its gradients need.
type Tape = Vec<SmallVec<[Buffer; 4]>>;

/// The count of a loop's iterations, with the tape they left: the tape lives as long as the count does.
struct Counted {
    count: Buffer,
    _tape: Arc<Tape>,
}

impl Memory for Counted {
    fn ptr(&self) -> *mut u8 {
        self.count.expose()
    }
    fn len(&self) -> usize {
        self.count.len()
    }
}

/// The loops of a session.
#[derive(Default)]
pub(crate) struct Loops {
    known: Mutex<ahash::AHashMap<i64, Arc<Loop>>>,
    /// Tapes by the address of their count. Where the count is gone, so is the tape.
    tapes: Mutex<ahash::AHashMap<usize, Weak<Tape>>>,
}

impl Loops {
    fn lock(&self) -> MutexGuard<'_, ahash::AHashMap<i64, Arc<Loop>>> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn tapes(&self) -> MutexGuard<'_, ahash::AHashMap<usize, Weak<Tape>>> {
        self.tapes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// `count` with the tape that belongs to it.
    fn with_tape(&self, count: Buffer, tape: Tape) -> Buffer {
        let tape = Arc::new(tape);
        let mut tapes = self.tapes();
        tapes.retain(|_, tape| tape.strong_count() > 0);
        tapes.insert(count.ptr() as usize, Arc::downgrade(&tape));
        Buffer::new(Counted { count, _tape: tape })
    }

    fn tape_of(&self, count: &Buffer) -> Option<Arc<Tape>> {
        self.tapes().get(&(count.ptr() as usize))?.upgrade()
    }
}

impl Session {
    /// Makes a loop known: the number that traces name it by.
    pub fn add_loop(&self, new: Loop) -> i64 {
        let id = new.id();
        self.shared().loops.lock().entry(id).or_insert_with(|| Arc::new(new));
        id
    }
}

/// Does `node` stand for a loop?
pub(crate) fn is_loop(node: &Node) -> bool {
    // Few ops are not of PyTorch: the first letter tells.
    let name = node.sig.op.name.as_str();
    name.starts_with('r') && [OP, KEPT, BACK].contains(&name)
}

/// Runs node `n`, which stands for a loop. What cannot be had of its results is poisoned.
pub(crate) fn run(run: &Run<'_>, n: usize) {
    let outputs = run.trace.outputs(&run.trace.nodes[n]);
    match iterate(run, n) {
        Ok(values) => outputs.iter().zip(values).for_each(|(&o, value)| run.assign(o, value)),
        Err(fault) => outputs.iter().for_each(|&o| run.fail(o, &fault)),
    }
}

fn iterate(run: &Run<'_>, n: usize) -> Result<Vec<Buffer>, Arc<Fault>> {
    let (shared, node) = (run.shared, &run.trace.nodes[n]);
    let broken = |why: &str| run.fault(EngineErrorKind::Internal, Some(n), why.into());
    let (carried, additional, id) = match node.sig.args() {
        Ok([Arg::List(carried), Arg::List(additional), Arg::Int(id)]) => (carried, additional, *id),
        _ => return Err(broken("a loop with other arguments")),
    };
    let known = shared.loops.lock().get(&id).cloned();
    let known = known.ok_or_else(|| broken("a loop that this process does not know"))?;
    let mut first: SmallVec<[*const u8; 8]> = SmallVec::new();
    let mut dense = |args: &[Arg]| {
        let value = |arg: &Arg| {
            let Arg::Tensor(t) = arg else { return Err(broken("a loop over something that is no tensor")) };
            let index = run.trace.inputs(node)[t.storage as usize];
            let whole = run.buffer(index, n)?;
            first.push(whole.ptr());
            window(run, n, whole, t)
        };
        args.iter().map(value).collect::<Result<Vec<Buffer>, _>>()
    };
    let (carried, mut rest) = (dense(carried)?, dense(additional)?);
    let next = |values: &[Buffer]| {
        Counters::add(&shared.counters.loop_iterations, 1);
        if shared.is_abandoned() {
            return Err(broken("the device is shutting down"));
        }
        let next = known.body.run(shared, values, run.trace.sequence)?;
        if next.len() == carried.len() { Ok(next) } else { Err(broken("a loop over other values")) }
    };
    let fits = |part: &Part, values: &[Buffer]| {
        if part.args.len() == values.len() { Ok(()) } else { Err(broken("a loop over other values")) }
    };
    let mut values = carried.clone();
    if let Some(condition) = &known.condition {
        let (keeps, mut tape) = (node.sig.op.name == KEPT, Tape::new());
        values.extend(rest);
        fits(&known.body, &values)?;
        while truth(&condition.run(shared, &values, run.trace.sequence)?[0]) {
            let next = next(&values)?;
            if keeps {
                tape.push(known.kept.iter().map(|&i| values[i].clone()).collect());
            }
            values.splice(..carried.len(), next);
        }
        values.truncate(carried.len());
        own(run, n, &mut values, &first)?;
        if keeps {
            let count = values.pop().ok_or_else(|| broken("a loop without a count"))?;
            values.push(shared.loops.with_tape(count, tape));
        }
    } else {
        let tape = if rest.is_empty() { None } else { shared.loops.tape_of(&rest.remove(0)) };
        for entry in tape.ok_or_else(|| broken("a loop whose iterations were not kept"))?.iter().rev() {
            values.extend(entry.iter().chain(&rest).cloned());
            fits(&known.body, &values)?;
            values = next(&values)?;
        }
        own(run, n, &mut values, &first)?;
    }
    Ok(values)
}

/// Results of node `n` are memory of their own: not an operand's (`first`), not each other's.
fn own(run: &Run<'_>, n: usize, values: &mut [Buffer], first: &[*const u8]) -> Result<(), Arc<Fault>> {
    for i in 0..values.len() {
        let taken = first.contains(&values[i].ptr()) || values[..i].iter().any(|v| v.ptr() == values[i].ptr());
        if taken {
            let own = run.fresh(run.trace.outputs(&run.trace.nodes[n])[i], n)?;
            let copied = own.copy_from(&values[i], own.len().min(values[i].len()));
            copied.map_err(|e| run.fault(EngineErrorKind::Internal, Some(n), e.to_string()))?;
            values[i] = own;
        }
    }
    Ok(())
}

/// The bytes of a dense tensor: its storage's memory, or a copy where it is a part of that.
fn window(run: &Run<'_>, n: usize, whole: Buffer, t: &TensorArg) -> Result<Buffer, Arc<Fault>> {
    if t.offset == 0 {
        return Ok(whole);
    }
    let fault = |kind, message: String| run.fault(kind, Some(n), message);
    let unknown = || fault(EngineErrorKind::Unsupported, format!("a part of a tensor of {:?} in a loop", t.dtype));
    let (Some(dtype), Some(bytes)) = (t.dtype.dtype(), t.nbytes()) else { return Err(unknown()) };
    let part = run.shared.allocate(bytes).map_err(|e| fault(EngineErrorKind::OutOfMemory, e.message))?;
    let mut host = vec![0; bytes];
    let copied = whole.read(t.offset as usize * dtype.size(), &mut host).and_then(|()| part.write(0, &host));
    copied.map(|()| part).map_err(|e| fault(EngineErrorKind::Internal, e.to_string()))
}

/// A boolean on the device.
fn truth(value: &Buffer) -> bool {
    let mut byte = [0];
    value.read(0, &mut byte).is_ok() && byte[0] != 0
}
