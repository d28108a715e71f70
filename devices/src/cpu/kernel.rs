//! A generated kernel ready to run.
use super::codegen::{self, Step};
use super::extern_math::Fault;
use super::generic::{self, SizedCode};
use super::jit::{self, Origin};
use super::llvm::{self, Output};
use super::pool;
use super::target::Target;
use crate::error::DeviceError;
use crate::memory::{ALIGN, Block, MemoryPool};
use crate::store::{DiskStore, EntryKind};
use rsx_compiler::ir::FusionKind;
use rsx_compiler::kernel::{self, LowerOptions, lower};
use rsx_compiler::program::KernelSpec;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

/// Loops shorter than this many vectors of `f32` are merged with what is around them.
const MIN_INNER_VECTORS: i64 = 1;

type RangeFn = unsafe extern "C" fn(*const *mut u8, *const u64, i64, i64, *mut u8, *mut u8, *const Fault);
type EpilogueFn = unsafe extern "C" fn(*const *mut u8, *const u64, i64, i64, i64, i64, *const u8, i64, *const Fault);

/// A kernel's code and how to launch it.
#[derive(Debug)]
pub struct Kernel {
    pub name: String,
    pub kind: FusionKind,
    /// Where the code came from.
    pub origin: Origin,
    /// Bytes read and written by a launch.
    pub bytes: u64,
    /// What it was made from, if there are two versions of it.
    other: Option<(KernelSpec, Target, Option<Arc<DiskStore>>)>,
    /// With ordinary stores; made when first needed if there is a streaming version.
    plain: OnceLock<Result<Loaded, DeviceError>>,
    /// With stores that pass by the caches.
    streaming: Option<Loaded>,
    cost_ns: u64,
}

/// One version of a kernel.
#[derive(Debug)]
struct Loaded {
    code: SizedCode,
    steps: Vec<Step>,
    shared: u64,
}

fn lowered(spec: &KernelSpec, target: Target) -> Result<kernel::Kernel, DeviceError> {
    let options = LowerOptions { min_inner: MIN_INNER_VECTORS * i64::from(target.vector_bytes) / 4 };
    lower(spec.kind, &spec.body, options).map_err(|e| failed(spec, e.to_string()))
}

fn failed(spec: &KernelSpec, message: String) -> DeviceError {
    DeviceError::Compile { kernel: spec.name.clone(), message }
}

/// LLVM IR of a kernel (with ordinary stores).
pub fn generate(spec: &KernelSpec, target: Target) -> Result<codegen::Module, DeviceError> {
    codegen::generate(&lowered(spec, target)?, target, None, false).map_err(|e| failed(spec, e.into()))
}

/// Which version of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// The first to be made. `in_place`: some call writes a result over an input, so that streaming stores are of no use.
    First { in_place: bool },
    /// With ordinary stores.
    Plain,
}

/// A version of a kernel with what is known of it.
struct Made {
    loaded: Loaded,
    stream: bool,
    bytes: u64,
    cost_ns: u64,
    origin: Origin,
}

/// [`Made`] on disk.
#[derive(serde::Serialize, serde::Deserialize)]
struct Stored<'a> {
    object_key: u128,
    symbols: Vec<String>,
    steps: Vec<Step>,
    shared: u64,
    stream: bool,
    bytes: u64,
    cost_ns: u64,
    /// See [`SizedCode::sizes`].
    sizes: Option<Vec<u64>>,
    object: &'a [u8],
}

/// Everything that decides what [`generate_and_load`] gives.
fn store_key(spec: &KernelSpec, target: Target, version: Version) -> u128 {
    let body = postcard::to_allocvec(&(spec.kind, &*spec.body)).unwrap_or_default();
    let rest = format!("{} {target:?} {version:?}\n", jit::VERSION);
    xxhash_rust::xxh3::xxh3_128(&[rest.as_bytes(), &body].concat())
}

/// A version of a kernel from the store, or made anew and put there.
fn make(
    spec: &KernelSpec,
    target: Target,
    version: Version,
    store: Option<&Arc<DiskStore>>,
) -> Result<Made, DeviceError> {
    let Some(store) = store else { return generate_and_load(spec, target, version, None).map(|(made, _)| made) };
    let key = store_key(spec, target, version);
    if let Some(bytes) = store.get(EntryKind::Kernel, key) {
        match from_store(&bytes) {
            Ok(made) => return Ok(made),
            Err(why) => store.reject(EntryKind::Kernel, key, &why),
        }
    }
    let (made, symbols) = generate_and_load(spec, target, version, Some(store))?;
    let code = &made.loaded.code;
    let object = &code.code.object;
    let stored = Stored {
        object_key: object.key,
        symbols,
        steps: made.loaded.steps.clone(),
        shared: made.loaded.shared,
        stream: made.stream,
        bytes: made.bytes,
        cost_ns: made.cost_ns,
        sizes: code.sizes.as_ref().map(|s| s.to_vec()),
        object: &object.bytes,
    };
    if let Ok(bytes) = postcard::to_allocvec(&stored) {
        store.put(EntryKind::Kernel, key, &spec.name, &bytes);
    }
    Ok(made)
}

fn from_store(bytes: &[u8]) -> Result<Made, String> {
    let s: Stored = postcard::from_bytes(bytes).map_err(|e| e.to_string())?;
    if s.steps.iter().any(|step| step.function >= s.symbols.len()) {
        return Err("a step without its function".into());
    }
    let object = jit::Object { key: s.object_key, bytes: s.object.into() };
    let (code, origin) = jit::load_object(object, &s.symbols, Origin::Store).map_err(|e| e.to_string())?;
    let code = SizedCode { code, sizes: s.sizes.map(Arc::from) };
    let loaded = Loaded { code, steps: s.steps, shared: s.shared };
    Ok(Made { loaded, stream: s.stream, bytes: s.bytes, cost_ns: s.cost_ns, origin })
}

/// Whether the stores of a version pass by the caches.
fn streams(lowered: &kernel::Kernel, target: Target, version: Version) -> bool {
    version == Version::First { in_place: false } && codegen::may_stream(lowered, target)
}

/// LLVM IR after LLVM's passes, and assembly, of a kernel: for dumps. `in_place` as in [`Kernel::compile`].
pub(super) fn listing(spec: &KernelSpec, target: Target, in_place: bool) -> Result<[String; 2], DeviceError> {
    let lowered = lowered(spec, target)?;
    let stream = streams(&lowered, target, Version::First { in_place });
    let m = codegen::generate(&lowered, target, None, stream).map_err(|e| failed(spec, e.into()))?;
    let of = |output| {
        let bytes = llvm::compile(&m.text, target.level, output).map_err(|e| failed(spec, e.to_string()))?;
        Ok::<_, DeviceError>(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok([of(Output::Ir)?, of(Output::Assembly)?])
}

/// Also returns the names of the functions.
fn generate_and_load(
    spec: &KernelSpec,
    target: Target,
    version: Version,
    store: Option<&DiskStore>,
) -> Result<(Made, Vec<String>), DeviceError> {
    let lowered = lowered(spec, target)?;
    let stream = streams(&lowered, target, version);
    let generic::Generated { code, module: m, origin } =
        generic::load(&spec.name, &lowered, target, stream, store).map_err(|e| failed(spec, e))?;
    let loaded = Loaded { code, steps: m.steps, shared: m.shared };
    Ok((Made { loaded, stream, bytes: m.bytes, cost_ns: m.cost_ns, origin }, m.symbols))
}

impl Kernel {
    /// Generates and loads the code of `spec` for `target`, or takes it from `store`. `in_place`: some call writes a
    /// result over an input, so that streaming stores are of no use.
    pub fn compile(
        spec: &KernelSpec,
        target: Target,
        in_place: bool,
        store: Option<&Arc<DiskStore>>,
    ) -> Result<Kernel, DeviceError> {
        let made = make(spec, target, Version::First { in_place }, store)?;
        let (plain, streaming) =
            if made.stream { (OnceLock::new(), Some(made.loaded)) } else { (OnceLock::from(Ok(made.loaded)), None) };
        let other = made.stream.then(|| (spec.clone(), target, store.cloned()));
        let (name, kind, origin) = (spec.name.clone(), spec.kind, made.origin);
        Ok(Kernel { name, kind, origin, bytes: made.bytes, other, plain, streaming, cost_ns: made.cost_ns })
    }

    /// It runs on code made for other sizes, too.
    pub fn is_sized(&self) -> bool {
        let first = self.streaming.as_ref().or_else(|| self.plain.get()?.as_ref().ok());
        first.is_some_and(|l| l.code.sizes.is_some())
    }

    /// Estimated duration of a launch on one thread, nanoseconds.
    pub fn cost_ns(&self) -> u64 {
        self.cost_ns
    }

    fn plain(&self) -> Result<&Loaded, DeviceError> {
        let made = self.plain.get_or_init(|| match &self.other {
            Some((spec, target, store)) => make(spec, *target, Version::Plain, store.as_ref()).map(|m| m.loaded),
            // Never: a kernel without another version was made with this one.
            None => Err(DeviceError::Arguments("a kernel without code".into())),
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// Runs the kernel on `args` (inputs, then outputs) and runtime scalars as raw bits.
    ///
    /// A bad index is reported in `fault`; everything else is computed regardless.
    ///
    /// # Safety
    /// Every argument points to a dense tensor of its type, live and not written by anybody else during the call;
    /// an output is memory of its own, or exactly that of an input read at the same index only.
    pub unsafe fn launch(
        &self,
        args: &[*mut u8],
        n_inputs: usize,
        scalars: &[u64],
        pool: &MemoryPool,
        fault: &Fault,
    ) -> Result<(), DeviceError> {
        let (inputs, outputs) = args.split_at(n_inputs);
        let apart = |p: &*mut u8| p.addr().is_multiple_of(ALIGN) && !inputs.contains(p);
        let version = match &self.streaming {
            Some(s) if outputs.iter().all(apart) => s,
            _ => self.plain()?,
        };
        let shared: Option<Block> = if version.shared > 0 { Some(pool.alloc(version.shared as usize)?) } else { None };
        let shared = shared.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr);
        let args = version.code.arguments(args);
        let call = Call { args: &args, scalars, shared, fault };
        let cost = self.cost_ns / version.steps.len().max(1) as u64;
        for step in &version.steps {
            // SAFETY: the address is of a function with this signature: the generator wrote it.
            let f = unsafe { std::mem::transmute::<usize, RangeFn>(version.code.code.entries[step.function]) };
            run(step, cost, f, &call);
        }
        Ok(())
    }

    /// Runs an epilogue on rows `r0..r1` and columns `c0..c1` of the space; `block` holds the accumulators of that
    /// rectangle as `f32` (`f64` for f64), rows `ld` elements apart. `args[0]` is not used.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; the rectangle is inside the space and nobody else writes it.
    pub unsafe fn epilogue(
        &self,
        args: &[*mut u8],
        scalars: &[u64],
        rows: (i64, i64),
        columns: (i64, i64),
        block: (*const u8, i64),
        fault: &Fault,
    ) {
        let Ok(plain) = self.plain() else { return };
        let Some(&address) = plain.code.code.entries.first() else { return };
        let args = plain.code.arguments(args);
        // SAFETY: an epilogue's one function has this signature; the rest is the caller's promise.
        unsafe {
            let f = std::mem::transmute::<usize, EpilogueFn>(address);
            f(args.as_ptr(), scalars.as_ptr(), rows.0, rows.1, columns.0, columns.1, block.0, block.1, fault);
        }
    }
}

struct Call<'a> {
    args: &'a [*mut u8],
    scalars: &'a [u64],
    shared: *mut u8,
    fault: &'a Fault,
}

// SAFETY: the threads of one launch write disjoint parts of the outputs and of shared memory.
unsafe impl Sync for Call<'_> {}

thread_local! {
    /// Scratch memory of this thread, kept between launches.
    static SCRATCH: RefCell<Option<Block>> = const { RefCell::new(None) };
}

fn run(step: &Step, cost_ns: u64, f: RangeFn, call: &Call) {
    pool::parallel_range(step.units as usize, step.grain as usize, cost_ns, &|begin, end| {
        let call = &call;
        let go = |scratch: *mut u8| {
            // SAFETY: `launch`'s caller promises valid arguments; ranges are disjoint by the pool's contract.
            unsafe {
                f(
                    call.args.as_ptr(),
                    call.scalars.as_ptr(),
                    begin as i64,
                    end as i64,
                    scratch,
                    call.shared,
                    call.fault,
                );
            }
        };
        if step.scratch == 0 {
            return go(std::ptr::null_mut());
        }
        SCRATCH.with(|slot| {
            let mut slot = slot.borrow_mut();
            if slot.as_ref().is_none_or(|b| (b.len() as u64) < step.scratch) {
                *slot = Some(scratch(step.scratch as usize));
            }
            if let Some(b) = slot.as_ref() {
                go(b.as_ptr());
            }
        });
    });
}

/// A scratch block; outside of any limit, since it is small and cannot be refused in the middle of a kernel.
fn scratch(bytes: usize) -> Block {
    let layout = std::alloc::Layout::from_size_align(bytes.next_multiple_of(ALIGN), ALIGN);
    let layout = layout.unwrap_or(std::alloc::Layout::new::<[u64; 8]>());
    // SAFETY: the size is not 0.
    let p = unsafe { std::alloc::alloc(layout) };
    if p.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    let address = p.addr();
    // SAFETY: the memory is ours and freed once, with the layout it was allocated with.
    unsafe {
        Block::foreign(
            p,
            bytes,
            Box::new(move || std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(address), layout)),
        )
    }
}
