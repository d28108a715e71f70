//! A generated kernel ready to run.
use super::codegen::{self, Step};
use super::extern_math::Fault;
use super::jit::{self, Code, Origin};
use super::pool;
use super::target::Target;
use crate::error::DeviceError;
use crate::memory::{ALIGN, Block, MemoryPool};
use rsx_compiler::ir::FusionKind;
use rsx_compiler::kernel::{LowerOptions, lower};
use rsx_compiler::program::KernelSpec;
use std::cell::RefCell;
use std::sync::Arc;

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
    code: Arc<Code>,
    module: codegen::Module,
}

/// LLVM IR of a kernel.
pub fn generate(spec: &KernelSpec, target: Target) -> Result<codegen::Module, DeviceError> {
    let fail = |message: String| DeviceError::Compile { kernel: spec.name.clone(), message };
    let options = LowerOptions { min_inner: MIN_INNER_VECTORS * i64::from(target.vector_bytes) / 4 };
    let kernel = lower(spec.kind, &spec.body, options).map_err(|e| fail(e.to_string()))?;
    codegen::generate(&kernel, target).map_err(|e| fail(e.into()))
}

impl Kernel {
    /// Generates and loads the code of `spec` for `target`.
    pub fn compile(spec: &KernelSpec, target: Target) -> Result<Kernel, DeviceError> {
        let module = generate(spec, target)?;
        let (code, origin) = jit::load(&module.text, &module.symbols, target.level)
            .map_err(|e| DeviceError::Compile { kernel: spec.name.clone(), message: e.to_string() })?;
        let (name, bytes) = (spec.name.clone(), module.bytes);
        Ok(Kernel { name, kind: spec.kind, origin, bytes, code, module })
    }

    /// Estimated duration of a launch on one thread, nanoseconds.
    pub fn cost_ns(&self) -> u64 {
        self.module.cost_ns
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
        let steps = match &self.module.streaming {
            Some(s) if outputs.iter().all(apart) => s,
            _ => &self.module.steps,
        };
        let shared: Option<Block> =
            if self.module.shared > 0 { Some(pool.alloc(self.module.shared as usize)?) } else { None };
        let shared = shared.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr);
        let call = Call { args, scalars, shared, fault };
        let cost = self.module.cost_ns / steps.len().max(1) as u64;
        for step in steps {
            // SAFETY: the address is of a function with this signature: the generator wrote it.
            let f = unsafe { std::mem::transmute::<usize, RangeFn>(self.code.entries[step.function]) };
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
        let Some(&address) = self.code.entries.first() else { return };
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
