//! Programs on the CPU: thunks in order over one buffer plan.
//!
//! Order is the only synchronisation: each thunk uses all cores through the pool and is finished when the next begins;
//! small ones run side by side in waves (`waves.rs`).
//! The slab comes from the pool at each run: the steady state finds the same block there, and programs that alternate
//! share it.
use super::extern_math::Fault;
use super::fault::launch_fails;
use super::kernel::Kernel;
use super::library::{self, Array};
use super::pool;
use super::target::Target;
use super::waves::{Wave, waves};
use crate::kept::{Keep, next_run};
use crate::memory::{Block, MemoryPool};
use crate::store::DiskStore;
use crate::{Buffer, CompileStats, DeviceError, Executable, RunCost, ThunkTime, check_arguments};
use rsx_compiler::ir::TensorType;
use rsx_compiler::program::{KernelCall, Place, Program, Thunk, View};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Argument addresses of one kernel call.
type Args = SmallVec<[*mut u8; 16]>;

/// A compiled program.
pub(super) struct CpuExecutable {
    program: Arc<Program>,
    kernels: Vec<Kernel>,
    steps: Vec<Step>,
    /// The order in which steps run.
    waves: Vec<Wave>,
    /// The first wave that overwrites a donated parameter: a failure before it can be made good by running the ops in
    /// another way.
    first_overwrite: usize,
    pool: MemoryPool,
    /// Parameters that the program writes.
    written: Vec<bool>,
    /// Packed forms of parameters are kept while this lives.
    user: Arc<()>,
    constants: Block,
    cost: RunCost,
    stats: CompileStats,
}

/// A thunk with its views in the form that kernels take.
enum Step {
    Kernel(Call),
    Group(Vec<Call>),
    Library(library::Call, Option<Call>),
    Copy { from: Array, to: Array },
}

/// A kernel call with addresses relative to their places.
pub(super) struct Call {
    kernel: usize,
    /// Place and byte offset; inputs, then outputs.
    args: Vec<(Place, u64)>,
    n_inputs: usize,
    scalars: Vec<u32>,
}

/// Where places are in memory during one run.
pub(super) struct Bases<'a> {
    params: SmallVec<[*mut u8; 16]>,
    results: SmallVec<[*mut u8; 16]>,
    slab: *mut u8,
    constants: *mut u8,
    scalars: &'a [u64],
    buffers: &'a [Buffer],
    executable: &'a CpuExecutable,
    run: u64,
}

// SAFETY: addresses of memory that the run holds; who writes where is decided by the program.
unsafe impl Sync for Bases<'_> {}

impl Bases<'_> {
    pub(super) fn at(&self, place: Place, offset: u64) -> *mut u8 {
        let (base, more) = match place {
            Place::Param(n) => (self.params[n as usize], 0),
            Place::Result(n) => (self.results[n as usize], 0),
            Place::Slab { offset } => (self.slab, offset),
            Place::Constant { offset } => (self.constants, offset),
            Place::Scalar(n) => (self.scalars[n as usize..].as_ptr().cast_mut().cast(), 0),
        };
        base.wrapping_add((offset + more) as usize)
    }

    /// The parameter at `place`, whose packed forms may be kept: the program only reads it.
    pub(super) fn keep(&self, place: Place) -> Option<Keep<'_>> {
        let Place::Param(n) = place else { return None };
        let (buffer, e) = (&self.buffers[n as usize], self.executable);
        (!e.written[n as usize]).then_some(Keep { buffer, pool: &e.pool, user: &e.user, run: self.run })
    }
}

fn is_dense(v: &View) -> bool {
    let mut stride = 1;
    v.dims.contains(&0)
        || v.dims.iter().zip(&v.strides).rev().all(|(&d, &s)| {
            let ok = d == 1 || s == stride;
            stride *= d;
            ok
        })
}

impl Call {
    fn new(call: &KernelCall, program: &Program) -> Result<Call, DeviceError> {
        let spec = &program.kernels[call.kernel as usize];
        let wrong = |message: &str| DeviceError::Arguments(format!("kernel {}: {message}", spec.name));
        let tensors = spec.body.params.iter().filter(|p| p.kind == rsx_compiler::ir::ParamKind::Tensor);
        let types: Vec<TensorType> = tensors.map(|p| p.ty.clone()).chain(spec.body.result_types()).collect();
        let views: Vec<&View> = call.inputs.iter().chain(&call.outputs).collect();
        if types.len() != views.len() || call.outputs.len() != spec.body.results.len() {
            return Err(wrong("the number of arguments differs from the body's"));
        }
        if types.iter().zip(&views).any(|(t, v)| t.dtype != v.dtype || t.dims != v.dims) {
            return Err(wrong("argument types differ from the body's"));
        }
        if views.iter().any(|v| !is_dense(v)) {
            return Err(wrong("an argument is not dense"));
        }
        let args = views.iter().map(|v| (v.place, v.offset as u64 * v.dtype.size() as u64)).collect();
        let (n_inputs, scalars) = (call.inputs.len(), call.scalars.clone());
        Ok(Call { kernel: call.kernel as usize, args, n_inputs, scalars })
    }

    fn bind(&self, b: &Bases) -> (Args, SmallVec<[u64; 16]>) {
        let args = self.args.iter().map(|&(place, offset)| b.at(place, offset)).collect();
        (args, self.scalars.iter().map(|&n| b.scalars[n as usize]).collect())
    }
}

impl CpuExecutable {
    pub(super) fn compile(
        program: Arc<Program>,
        target: Target,
        pool: MemoryPool,
        store: Option<&Arc<DiskStore>>,
    ) -> Result<CpuExecutable, DeviceError> {
        let begin = Instant::now();
        let kernels = compile_kernels(&program, target, store)?;
        let mut cost = RunCost::default();
        let mut steps = Vec::with_capacity(program.thunks.len());
        for thunk in &program.thunks {
            steps.push(match thunk {
                Thunk::Kernel(call) => {
                    cost.kernels += 1;
                    cost.bytes_moved += kernels[call.kernel as usize].bytes;
                    Step::Kernel(Call::new(call, &program)?)
                }
                Thunk::Group(calls) => {
                    cost.kernels += calls.len() as u64;
                    cost.bytes_moved += calls.iter().map(|c| kernels[c.kernel as usize].bytes).sum::<u64>();
                    Step::Group(calls.iter().map(|c| Call::new(c, &program)).collect::<Result<_, _>>()?)
                }
                Thunk::Library { op, attrs, inputs, outputs, epilogue, work, .. } => {
                    cost.library_calls += 1;
                    cost.bytes_moved += inputs.iter().chain(outputs).map(bytes).sum::<u64>();
                    let own = epilogue.as_ref().map(|c| TensorType::new(c.inputs[0].dtype, &c.inputs[0].dims));
                    let call = library::Call::new(*op, attrs, inputs, outputs, own, work.as_ref());
                    let epilogue = epilogue.as_ref().map(|c| Call::new(c, &program)).transpose()?;
                    Step::Library(call, epilogue)
                }
                Thunk::Copy { from, to, .. } => {
                    cost.library_calls += 1;
                    cost.bytes_moved += bytes(from) + bytes(to);
                    Step::Copy { from: Array::new(from), to: Array::new(to) }
                }
            });
        }
        let constants = pool.alloc(program.constants.len())?;
        // SAFETY: the block was just made with this length.
        unsafe {
            std::ptr::copy_nonoverlapping(program.constants.as_ptr(), constants.as_ptr(), program.constants.len());
        }
        let mut stats = CompileStats { ns: begin.elapsed().as_nanos() as u64, ..CompileStats::default() };
        for k in &kernels {
            stats.sized += u64::from(k.is_sized());
            match k.origin {
                super::jit::Origin::Memory => stats.cached += 1,
                super::jit::Origin::Store => stats.stored += 1,
                super::jit::Origin::Compiled => stats.compiled += 1,
            }
        }
        tracing::debug!(program = %program.name, ?stats, "compiled");
        let waves = waves(&program, &kernels, pool::num_threads());
        let overwriting = |w: &Wave| w.thunks.iter().any(|&n| overwrites(&program.thunks[n], &program));
        let first_overwrite = waves.iter().position(overwriting).unwrap_or(waves.len());
        let (written, user) = (written(&program), Arc::new(()));
        Ok(CpuExecutable {
            program,
            kernels,
            steps,
            waves,
            first_overwrite,
            pool,
            written,
            user,
            constants,
            cost,
            stats,
        })
    }

    fn kernel(&self, call: &Call, b: &Bases, fault: &Fault) -> Result<(), DeviceError> {
        let (args, scalars) = call.bind(b);
        // SAFETY: the program's buffer plan gives every argument memory of its type that nobody else writes meanwhile.
        unsafe { self.kernels[call.kernel].launch(&args, call.n_inputs, &scalars, &self.pool, fault) }
    }

    fn group(&self, calls: &[Call], b: &Bases, fault: &Fault) -> Result<(), DeviceError> {
        let cost: u64 = calls.iter().map(|c| self.kernels[c.kernel].cost_ns()).sum();
        pool::try_for(calls.len(), cost, &|i| self.kernel(&calls[i], b, fault))
    }

    fn step(&self, step: &Step, b: &Bases, fault: &Fault) -> Result<(), DeviceError> {
        match step {
            Step::Kernel(call) => self.kernel(call, b, fault),
            Step::Group(calls) => self.group(calls, b, fault),
            Step::Library(call, None) => call.run(b, None, &self.pool, fault),
            Step::Library(call, Some(c)) => {
                let (args, scalars) = c.bind(b);
                let kernel = &self.kernels[c.kernel];
                let epilogue = library::Epilogue { kernel, args: &args, scalars: &scalars, fault };
                call.run(b, Some(&epilogue), &self.pool, fault)
            }
            Step::Copy { from, to } => library::copy(from, to, b),
        }
    }

    /// Name of what step `n` runs.
    fn name(&self, n: usize) -> String {
        match &self.program.thunks[n] {
            Thunk::Kernel(c) => self.kernels[c.kernel as usize].name.clone(),
            Thunk::Group(c) => c.first().map_or(String::new(), |c| self.kernels[c.kernel as usize].name.clone()),
            Thunk::Library { op, .. } => op.name().to_owned(),
            Thunk::Copy { .. } => "copy".to_owned(),
        }
    }

    fn loc(&self, n: usize) -> u32 {
        self.program.locs.get(n).copied().unwrap_or(u32::MAX)
    }

    /// Step `n` could not be started. `clean`: nor has a parameter been overwritten before.
    fn not_launched(&self, n: usize, clean: bool, message: String) -> DeviceError {
        DeviceError::Launch { kernel: self.name(n), loc: self.loc(n), message, clean }
    }

    /// Runs step `n` of wave `w`. `alone`: nothing else of the wave has begun.
    fn launch(&self, n: usize, w: usize, alone: bool, b: &Bases) -> Result<(), DeviceError> {
        if launch_fails() {
            let clean = w < self.first_overwrite || (w == self.first_overwrite && alone);
            return Err(self.not_launched(n, clean, "injected fault".into()));
        }
        let (fault, step) = (Fault::default(), &self.steps[n]);
        // Of a group some calls may have run when another could not.
        let whole = alone && !matches!(step, Step::Group(_));
        let before = w < self.first_overwrite || (w == self.first_overwrite && whole);
        self.step(step, b, &fault).map_err(|e| match e {
            DeviceError::Launch { kernel, message, clean, .. } => {
                let clean = w < self.first_overwrite || (clean && before);
                DeviceError::Launch { kernel, loc: self.loc(n), message, clean }
            }
            // Work memory of the step: asked for before it writes anything.
            DeviceError::OutOfMemory(e) if before => self.not_launched(n, true, e.to_string()),
            other => other,
        })?;
        match fault.take() {
            None => Ok(()),
            Some((index, size)) => {
                let (kernel, loc, clean) = (self.name(n), self.loc(n), w < self.first_overwrite);
                Err(DeviceError::Index { index, size, kernel, loc, clean })
            }
        }
    }

    /// Runs all waves; with `times`, every step alone, measured.
    fn steps(&self, b: &Bases, mut times: Option<&mut Vec<ThunkTime>>) -> Result<(), DeviceError> {
        for (w, Wave { thunks, cost_ns }) in self.waves.iter().enumerate() {
            if let ([n], None) = (&thunks[..], &times) {
                self.launch(*n, w, true, b)?;
                continue;
            }
            if let Some(list) = &mut times {
                for (i, &n) in thunks.iter().enumerate() {
                    let begin = Instant::now();
                    self.launch(n, w, i == 0, b)?;
                    list[n] = ThunkTime { name: self.name(n), loc: self.loc(n), ns: begin.elapsed().as_nanos() as u64 };
                }
                continue;
            }
            // The failure of the first in the list, whichever came first.
            let failed: Mutex<Option<(usize, DeviceError)>> = Mutex::new(None);
            pool::parallel_for(thunks.len(), *cost_ns, &|i| {
                if let Err(e) = self.launch(thunks[i], w, false, b) {
                    let mut first = failed.lock().unwrap_or_else(|e| e.into_inner());
                    if first.as_ref().is_none_or(|f| thunks[i] < f.0) {
                        *first = Some((thunks[i], e));
                    }
                }
            });
            if let Some((_, e)) = failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
                return Err(e);
            }
        }
        Ok(())
    }

    fn run_all(
        &self,
        params: &[Buffer],
        scalars: &[u64],
        results: &[Buffer],
        times: Option<&mut Vec<ThunkTime>>,
    ) -> Result<(), DeviceError> {
        check_arguments(&self.program, params, scalars, results)?;
        let slab = match self.pool.alloc_transient(self.program.slab_bytes as usize) {
            Err(e) if !self.steps.is_empty() => return Err(self.not_launched(0, true, e.to_string())),
            slab => slab?,
        };
        // Addresses that may be written are asked for where the program writes, and nowhere else.
        let param = |(b, &w): (&Buffer, &bool)| if w { b.write_ptr() } else { b.ptr().cast_mut() };
        let b = Bases {
            params: params.iter().zip(&self.written).map(param).collect(),
            results: results.iter().map(Buffer::write_ptr).collect(),
            slab: slab.as_ptr(),
            constants: self.constants.as_ptr(),
            scalars,
            buffers: params,
            executable: self,
            run: next_run(),
        };
        self.steps(&b, times)
    }
}

impl Drop for CpuExecutable {
    fn drop(&mut self) {
        // What only this program used goes with it.
        self.user = Arc::new(());
        self.pool.kept().release(false);
    }
}

/// The views that a thunk writes.
fn outputs(thunk: &Thunk) -> SmallVec<[&View; 8]> {
    match thunk {
        Thunk::Kernel(call) => call.outputs.iter().collect(),
        Thunk::Group(calls) => calls.iter().flat_map(|c| &c.outputs).collect(),
        // Work memory is written too.
        Thunk::Library { outputs, epilogue, work, .. } => {
            outputs.iter().chain(epilogue.iter().flat_map(|c| &c.outputs)).chain(work).collect()
        }
        Thunk::Copy { to, .. } => SmallVec::from_elem(to, 1),
    }
}

/// The donated parameter whose memory a place is.
fn donated(place: Place, program: &Program) -> Option<u32> {
    match place {
        Place::Param(n) => Some(n),
        Place::Result(r) => program.results[r as usize].alias,
        Place::Slab { .. } | Place::Constant { .. } | Place::Scalar(_) => None,
    }
}

/// Does the thunk write memory of a donated parameter?
fn overwrites(thunk: &Thunk, program: &Program) -> bool {
    outputs(thunk).iter().any(|v| donated(v.place, program).is_some())
}

/// For every parameter: the program writes it.
fn written(program: &Program) -> Vec<bool> {
    let mut list = vec![false; program.params.len()];
    let aliases = program.results.iter().filter_map(|r| r.alias);
    let stores = program.thunks.iter().flat_map(outputs).filter_map(|v| donated(v.place, program));
    aliases.chain(stores).for_each(|n| list[n as usize] = true);
    list
}

fn bytes(v: &View) -> u64 {
    v.dims.iter().product::<i64>() as u64 * v.dtype.size() as u64
}

impl Executable for CpuExecutable {
    fn program(&self) -> &Program {
        &self.program
    }

    fn run(&self, params: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), DeviceError> {
        self.run_all(params, scalars, results, None)
    }

    fn profile(&self, params: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<Vec<ThunkTime>, DeviceError> {
        let unknown = ThunkTime { name: String::new(), loc: u32::MAX, ns: 0 };
        let mut times = vec![unknown; self.steps.len()];
        self.run_all(params, scalars, results, Some(&mut times))?;
        Ok(times)
    }

    fn cost(&self) -> RunCost {
        self.cost
    }

    fn compile_stats(&self) -> CompileStats {
        self.stats
    }
}

/// True if both places begin at the same address.
fn same_memory(program: &Program, a: Place, b: Place) -> bool {
    let real = |p: Place| match p {
        Place::Result(n) => program.results[n as usize].alias.map_or(p, Place::Param),
        other => other,
    };
    real(a) == real(b)
}

/// For every kernel: some call of it writes a result over an input.
pub(super) fn in_place_kernels(program: &Program) -> Vec<bool> {
    let mut in_place = vec![false; program.kernels.len()];
    let calls = program.thunks.iter().flat_map(|t| match t {
        Thunk::Kernel(call) => std::slice::from_ref(call),
        Thunk::Group(calls) => calls,
        Thunk::Library { .. } | Thunk::Copy { .. } => &[],
    });
    for call in calls {
        let over = |v: &View| call.inputs.iter().any(|i| same_memory(program, i.place, v.place));
        in_place[call.kernel as usize] |= call.outputs.iter().any(over);
    }
    in_place
}

/// All kernels of a program, compiled on as many threads as there are cores.
fn compile_kernels(
    program: &Program,
    target: Target,
    store: Option<&Arc<DiskStore>>,
) -> Result<Vec<Kernel>, DeviceError> {
    let specs = &program.kernels;
    let in_place = in_place_kernels(program);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(specs.len());
    if threads <= 1 {
        return specs.iter().zip(&in_place).map(|(s, &p)| Kernel::compile(s, target, p, store)).collect();
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(specs.len())));
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(spec) = specs.get(n) else { return };
            let kernel = Kernel::compile(spec, target, in_place[n], store);
            done.lock().unwrap_or_else(|e| e.into_inner()).push((n, kernel));
        }
    };
    std::thread::scope(|s| {
        for _ in 1..threads {
            // A thread that does not start is missed by nobody.
            let _ = std::thread::Builder::new()
                .name("rsx-compile".into())
                .stack_size(rsx_compiler::STACK_BYTES)
                .spawn_scoped(s, work);
        }
        work();
    });
    let mut list = done.into_inner().unwrap_or_else(|e| e.into_inner());
    list.sort_by_key(|(n, _)| *n);
    list.into_iter().map(|(_, k)| k).collect()
}
