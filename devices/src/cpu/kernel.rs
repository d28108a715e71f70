//! A generated kernel ready to run.
use super::codegen::{self, Step};
use super::extern_math::Fault;
use super::generic::{self, SizedCode};
use super::jit::Origin;
use super::pool;
use super::target::Target;
use crate::error::DeviceError;
use crate::memory::{ALIGN, Block, MemoryPool};
use rsx_compiler::ir::FusionKind;
use rsx_compiler::kernel::{self, LowerOptions, lower};
use rsx_compiler::program::KernelSpec;
use std::cell::RefCell;
use std::sync::OnceLock;

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
    other: Option<(KernelSpec, Target)>,
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
    codegen::generate(&lowered(spec, target)?, target, false).map_err(|e| failed(spec, e.into()))
}

fn load(
    spec: &KernelSpec,
    lowered: &kernel::Kernel,
    target: Target,
    stream: bool,
) -> Result<(Loaded, Origin, codegen::Module), DeviceError> {
    let mut module = codegen::generate(lowered, target, stream).map_err(|e| failed(spec, e.into()))?;
    let (code, origin) = generic::load(&module.text, &module.symbols, lowered.args.len(), target.level)
        .map_err(|e| failed(spec, e.to_string()))?;
    let steps = std::mem::take(&mut module.steps);
    Ok((Loaded { code, steps, shared: module.shared }, origin, module))
}

impl Kernel {
    /// Generates and loads the code of `spec` for `target`. `in_place`: some call writes a result over an input, so that
    /// streaming stores are of no use.
    pub fn compile(spec: &KernelSpec, target: Target, in_place: bool) -> Result<Kernel, DeviceError> {
        let lowered = lowered(spec, target)?;
        let stream = !in_place && codegen::may_stream(&lowered, target);
        let (loaded, origin, module) = load(spec, &lowered, target, stream)?;
        let (plain, streaming) =
            if stream { (OnceLock::new(), Some(loaded)) } else { (OnceLock::from(Ok(loaded)), None) };
        let other = stream.then(|| (spec.clone(), target));
        let (name, kind) = (spec.name.clone(), spec.kind);
        Ok(Kernel { name, kind, origin, bytes: module.bytes, other, plain, streaming, cost_ns: module.cost_ns })
    }

    /// Estimated duration of a launch on one thread, nanoseconds.
    pub fn cost_ns(&self) -> u64 {
        self.cost_ns
    }

    fn plain(&self) -> Result<&Loaded, DeviceError> {
        let made = self.plain.get_or_init(|| match &self.other {
            Some((spec, target)) => load(spec, &lowered(spec, *target)?, *target, false).map(|l| l.0),
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
        let apart = |p: &*mut u8| p.addr() % ALIGN == 0 && !inputs.contains(p);
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
