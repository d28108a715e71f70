//! The eager engine over libtorch: `rsx_cpp_eval` behind rsx_lazy's trait.

use crate::error::{kind_of, shield};
use rsx_lazy::{EagerCall, EagerEngine, EagerOutputs, EngineError, OutMeta};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// Mirrors `RsxEval`.
#[repr(C)]
struct Eval {
    op: u32,
    pad: u32,
    outs: *const OutMeta,
    nouts: usize,
    words: *const u64,
    nwords: usize,
    ptrs: *const *mut u8,
    nbytes: *const u64,
    nstorages: usize,
    data: *const u64,
    ndata: usize,
    ctx: *mut c_void,
}

unsafe extern "C" {
    fn rsx_cpp_eval(eval: *const Eval, text: *mut *mut c_char) -> i32;
    pub(crate) fn rsx_cpp_free(text: *mut c_char);
}

/// Runs single ops with libtorch's CPU kernels.
#[derive(Debug)]
pub(crate) struct Libtorch;

impl EagerEngine for Libtorch {
    fn run(&self, call: &EagerCall<'_>, outputs: &mut dyn EagerOutputs) -> Result<(), EngineError> {
        let ptrs: Vec<*mut u8> = call.storages.iter().map(|b| b.ptr).collect();
        let nbytes: Vec<u64> = call.storages.iter().map(|b| b.len as u64).collect();
        let mut outputs: &mut dyn EagerOutputs = outputs;
        let eval = Eval {
            op: call.sig.op.id.0,
            pad: 0,
            outs: call.sig.outs.as_ptr(),
            nouts: call.sig.outs.len(),
            words: call.sig.words.as_ptr(),
            nwords: call.sig.words.len(),
            ptrs: ptrs.as_ptr(),
            nbytes: nbytes.as_ptr(),
            nstorages: ptrs.len(),
            data: call.data.as_ptr(),
            ndata: call.data.len(),
            ctx: ptr::from_mut(&mut outputs).cast(),
        };
        let mut text = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `ctx` is handed back to the two callbacks below only.
        let status = unsafe { rsx_cpp_eval(&eval, &mut text) };
        if status >= 0 {
            return Ok(());
        }
        // SAFETY: on failure `text` is a C string of malloc, freed once.
        let message = unsafe {
            let message = CStr::from_ptr(text).to_string_lossy().into_owned();
            rsx_cpp_free(text);
            message
        };
        Err(EngineError { kind: kind_of(status), message })
    }
}

/// # Safety
/// `ctx` is the context of the running `rsx_cpp_eval`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_eager_allocate(ctx: *mut c_void, index: u32, nbytes: u64) -> *mut u8 {
    // SAFETY: `ctx` points to the `outputs` of `Libtorch::run`, which is waiting for this call.
    let outputs = unsafe { &mut *ctx.cast::<&mut dyn EagerOutputs>() };
    shield(ptr::null_mut(), || outputs.allocate(index as usize, nbytes as usize).unwrap_or(ptr::null_mut()))
}

/// # Safety
/// `ctx` is the context of the running `rsx_cpp_eval`; `drop(owner)` frees the memory at `ptr`, once, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_eager_adopt(
    ctx: *mut c_void,
    index: u32,
    ptr: *mut u8,
    nbytes: u64,
    owner: *mut c_void,
    drop: unsafe extern "C" fn(*mut c_void),
) {
    // SAFETY: as in `rsx_eager_allocate`.
    let outputs = unsafe { &mut *ctx.cast::<&mut dyn EagerOutputs>() };
    let owner = Owner(owner);
    let free = Box::new(move || {
        let owner = owner;
        // SAFETY: the caller's promise; the closure runs once.
        unsafe { drop(owner.0) }
    });
    shield((), || outputs.adopt(index as usize, ptr, nbytes as usize, free));
}

/// A `c10::Storage*`, whose last reference may be dropped on any thread.
struct Owner(*mut c_void);
// SAFETY: c10's reference counts are atomic and CPU storages have no thread affinity.
unsafe impl Send for Owner {}
// SAFETY: as above; it is only used by value.
unsafe impl Sync for Owner {}
