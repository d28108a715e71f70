//! LLVM's C API, as much as code generation needs: text IR to optimised object bytes.
//!
//! Every compile has its own context and a target machine that no other uses meanwhile, so compiles run in parallel.
use super::target::Level;
use llvm_sys::analysis::{LLVMVerifierFailureAction, LLVMVerifyModule};
use llvm_sys::core::*;
use llvm_sys::error::LLVMGetErrorMessage;
use llvm_sys::ir_reader::LLVMParseIRInContext2;
use llvm_sys::prelude::*;
use llvm_sys::target::*;
use llvm_sys::target_machine::*;
use llvm_sys::transforms::pass_builder::*;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
use std::sync::{Mutex, Once, OnceLock};

/// Explicit vector IR needs little: these give O3's run time at a third of its compile time. (Instcombine used alone
/// ends the process when it has not finished in one round, unless told otherwise.)
const PASSES: &CStr = c"function(early-cse,loop-mssa(licm),instcombine<no-verify-fixpoint>,simplifycfg)";

/// What LLVM says when it refuses a module (always a bug of the generator).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("LLVM: {0}")]
pub struct LlvmError(pub String);

/// Registers the targets, once per process.
pub(super) fn init() {
    static INIT: Once = Once::new();
    // SAFETY: plain registration functions; `Once` keeps them from running twice or at the same time.
    INIT.call_once(|| unsafe {
        LLVMInitializeX86TargetInfo();
        LLVMInitializeX86Target();
        LLVMInitializeX86TargetMC();
        LLVMInitializeX86AsmPrinter();
    });
}

/// Takes ownership of a message from LLVM.
///
/// # Safety
/// `text` is null or was allocated by LLVM for the caller to free.
unsafe fn message(text: *mut c_char) -> LlvmError {
    if text.is_null() {
        return LlvmError("no message".into());
    }
    // SAFETY: a non-null message is a C string of ours.
    unsafe {
        let s = CStr::from_ptr(text).to_string_lossy().into_owned();
        LLVMDisposeMessage(text);
        LlvmError(s)
    }
}

/// Turns an LLVM error reference into a result.
///
/// # Safety
/// `e` is null or an error that nobody else handles.
pub(super) unsafe fn check(e: llvm_sys::error::LLVMErrorRef) -> Result<(), LlvmError> {
    if e.is_null() {
        return Ok(());
    }
    // SAFETY: `LLVMGetErrorMessage` consumes the error and gives a message to dispose of.
    unsafe {
        let text = LLVMGetErrorMessage(e);
        let s = CStr::from_ptr(text).to_string_lossy().into_owned();
        llvm_sys::error::LLVMDisposeErrorMessage(text);
        Err(LlvmError(s))
    }
}

struct Machine(LLVMTargetMachineRef);

// SAFETY: a machine is bound to no thread; its owner is its only user.
unsafe impl Send for Machine {}

/// How much LLVM's back end optimises; `RSX_LLVM_LEVEL` (`none`, `less`, `default`, `aggressive`) sets it. `none` compiles
/// some times faster: for long tests of the generator, whose text is the same. The disk cache is not used then.
fn codegen_level() -> LLVMCodeGenOptLevel {
    match std::env::var("RSX_LLVM_LEVEL").as_deref() {
        Ok("none") => LLVMCodeGenOptLevel::LLVMCodeGenLevelNone,
        Ok("less") => LLVMCodeGenOptLevel::LLVMCodeGenLevelLess,
        Ok("aggressive") => LLVMCodeGenOptLevel::LLVMCodeGenLevelAggressive,
        _ => LLVMCodeGenOptLevel::LLVMCodeGenLevelDefault,
    }
}

impl Machine {
    fn new(level: Level) -> Result<Machine, LlvmError> {
        let text = |s: &str| CString::new(s).map_err(|_| LlvmError("NUL in a target name".into()));
        let (cpu, features) = (text(level.cpu())?, text(level.features())?);
        let triple = c"x86_64-unknown-linux-gnu";
        let (mut target, mut error) = (null_mut(), null_mut());
        // SAFETY: all pointers are valid for the calls; the targets are registered.
        unsafe {
            if LLVMGetTargetFromTriple(triple.as_ptr(), &mut target, &mut error) != 0 {
                return Err(message(error));
            }
            let machine = LLVMCreateTargetMachine(
                target,
                triple.as_ptr(),
                cpu.as_ptr(),
                features.as_ptr(),
                codegen_level(),
                LLVMRelocMode::LLVMRelocPIC,
                LLVMCodeModel::LLVMCodeModelDefault,
            );
            if machine.is_null() { Err(LlvmError("no target machine".into())) } else { Ok(Machine(machine)) }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: created in `new` and owned by this value alone.
        unsafe { LLVMDisposeTargetMachine(self.0) }
    }
}

/// Machines that nobody uses, per level. Threads that compile come and go; a machine takes milliseconds to make.
static MACHINES: [Mutex<Vec<Machine>>; 3] = [const { Mutex::new(Vec::new()) }; 3];

struct Context(LLVMContextRef);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: owned by this value; modules in it were disposed of before.
        unsafe { LLVMContextDispose(self.0) }
    }
}

struct Module(LLVMModuleRef);

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: owned by this value.
        unsafe { LLVMDisposeModule(self.0) }
    }
}

/// What a compile produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Object,
    Assembly,
    /// Text IR after the passes.
    Ir,
}

/// Compiles LLVM text IR for `level` to the bytes of an object file (or to text).
///
/// `RSX_LLVM_PASSES` replaces the list of passes, to measure what they are worth. The disk cache is not used then.
pub fn compile(ir: &str, level: Level, output: Output) -> Result<Vec<u8>, LlvmError> {
    static CHOSEN: OnceLock<CString> = OnceLock::new();
    let passes = CHOSEN.get_or_init(|| {
        let other = std::env::var("RSX_LLVM_PASSES").ok().and_then(|p| CString::new(p).ok());
        other.unwrap_or_else(|| PASSES.to_owned())
    });
    init();
    let idle = || MACHINES[level as usize].lock().unwrap_or_else(|e| e.into_inner());
    let waiting = idle().pop();
    let machine = waiting.map_or_else(|| Machine::new(level), Ok)?;
    // SAFETY: the machine is live and this call's alone.
    let done = unsafe { compile_with(ir, machine.0, output, passes) };
    idle().push(machine);
    done
}

/// # Safety
/// `machine` is a live target machine that no other thread uses during the call.
unsafe fn compile_with(
    ir: &str,
    machine: LLVMTargetMachineRef,
    output: Output,
    passes: &CStr,
) -> Result<Vec<u8>, LlvmError> {
    // SAFETY: every handle below is created here and either owned by a guard or consumed by the next call.
    unsafe {
        let context = Context(LLVMContextCreate());
        let text = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir.as_ptr().cast(), ir.len(), c"kernel".as_ptr());
        let (mut module, mut error) = (null_mut(), null_mut());
        let failed = LLVMParseIRInContext2(context.0, text, &mut module, &mut error) != 0;
        LLVMDisposeMemoryBuffer(text);
        if failed {
            return Err(message(error));
        }
        let module = Module(module);
        // The passes may end the process on a module that is broken.
        if LLVMVerifyModule(module.0, LLVMVerifierFailureAction::LLVMReturnStatusAction, &mut error) != 0 {
            return Err(message(error));
        }
        if !error.is_null() {
            LLVMDisposeMessage(error);
            error = null_mut();
        }
        let layout = LLVMCreateTargetDataLayout(machine);
        LLVMSetModuleDataLayout(module.0, layout);
        LLVMDisposeTargetData(layout);
        LLVMSetTarget(module.0, c"x86_64-unknown-linux-gnu".as_ptr());
        let options = LLVMCreatePassBuilderOptions();
        let ran = check(LLVMRunPasses(module.0, passes.as_ptr(), machine, options));
        LLVMDisposePassBuilderOptions(options);
        ran?;
        let kind = match output {
            Output::Object => LLVMCodeGenFileType::LLVMObjectFile,
            Output::Assembly => LLVMCodeGenFileType::LLVMAssemblyFile,
            Output::Ir => {
                let text = LLVMPrintModuleToString(module.0);
                let bytes = CStr::from_ptr(text).to_bytes().to_vec();
                LLVMDisposeMessage(text);
                return Ok(bytes);
            }
        };
        let mut out = null_mut();
        if LLVMTargetMachineEmitToMemoryBuffer(machine, module.0, kind, &mut error, &mut out) != 0 {
            return Err(message(error));
        }
        let bytes = std::slice::from_raw_parts(LLVMGetBufferStart(out).cast::<u8>(), LLVMGetBufferSize(out)).to_vec();
        LLVMDisposeMemoryBuffer(out);
        drop(module);
        Ok(bytes)
    }
}
