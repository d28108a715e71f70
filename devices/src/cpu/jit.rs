//! Loading of object code, and the cache of what is loaded.
use super::extern_math;
use super::llvm::{self, LlvmError, Output};
use super::target::Level;
use llvm_sys::core::LLVMCreateMemoryBufferWithMemoryRangeCopy;
use llvm_sys::orc2::lljit::*;
use llvm_sys::orc2::*;
use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// The compiler and the code generator, for keys.
pub const VERSION: &str = concat!("rsx ", env!("CARGO_PKG_VERSION"), " ", env!("RSX_COMPILER_SOURCES"), " llvm 22");

struct Jit(LLVMOrcLLJITRef);

// SAFETY: LLJIT is thread-safe: sessions lock internally.
unsafe impl Send for Jit {}
// SAFETY: as above.
unsafe impl Sync for Jit {}

impl Jit {
    /// The process's JIT. Kernels see the functions of `extern_math` and nothing else of the process.
    fn get() -> Result<&'static Jit, LlvmError> {
        static JIT: OnceLock<Result<Jit, LlvmError>> = OnceLock::new();
        JIT.get_or_init(Jit::new).as_ref().map_err(Clone::clone)
    }

    fn new() -> Result<Jit, LlvmError> {
        llvm::init();
        let mut jit = null_mut();
        // SAFETY: the builder is fresh and consumed by the call; names live through interning.
        unsafe {
            llvm::check(LLVMOrcCreateLLJIT(&mut jit, LLVMOrcCreateLLJITBuilder()))?;
            let mut pairs = Vec::new();
            for (name, address) in extern_math::symbols() {
                let name = CString::new(name).map_err(|_| LlvmError("NUL in a symbol".into()))?;
                pairs.push(LLVMOrcCSymbolMapPair {
                    Name: LLVMOrcLLJITMangleAndIntern(jit, name.as_ptr()),
                    Sym: LLVMJITEvaluatedSymbol {
                        Address: address as u64,
                        // Exported and callable.
                        Flags: LLVMJITSymbolFlags { GenericFlags: 1 | 4, TargetFlags: 0 },
                    },
                });
            }
            let unit = LLVMOrcAbsoluteSymbols(pairs.as_mut_ptr(), pairs.len());
            llvm::check(LLVMOrcJITDylibDefine(LLVMOrcLLJITGetMainJITDylib(jit), unit))?;
        }
        Ok(Jit(jit))
    }

    /// Loads an object and returns the addresses of `symbols`.
    fn load(&self, object: Object, symbols: &[String]) -> Result<Code, LlvmError> {
        // SAFETY: the buffer is consumed by the JIT; names are C strings that live through the calls.
        unsafe {
            let dylib = LLVMOrcLLJITGetMainJITDylib(self.0);
            let buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(
                object.bytes.as_ptr().cast(),
                object.bytes.len(),
                c"kernel".as_ptr(),
            );
            let tracker = LLVMOrcJITDylibCreateResourceTracker(dylib);
            let mut code = Code { tracker, entries: Vec::new(), object };
            llvm::check(LLVMOrcLLJITAddObjectFileWithRT(self.0, tracker, buffer))?;
            for s in symbols {
                let name = CString::new(s.as_str()).map_err(|_| LlvmError("NUL in a symbol".into()))?;
                let mut address = 0;
                llvm::check(LLVMOrcLLJITLookup(self.0, &mut address, name.as_ptr()))?;
                code.entries.push(address as usize);
            }
            Ok(code)
        }
    }
}

/// Loaded code; unloaded when the last reference goes.
#[derive(Debug)]
pub struct Code {
    tracker: LLVMOrcResourceTrackerRef,
    /// Addresses of the entry points, in the order asked for.
    pub entries: Vec<usize>,
    /// What it was loaded from.
    pub object: Object,
}

/// Object code that can be loaded in another process.
#[derive(Clone, Debug)]
pub struct Object {
    /// Hash of the text it was compiled from: part of its symbols' names.
    pub key: u128,
    pub bytes: Arc<[u8]>,
}

// SAFETY: the tracker is only used in `drop`, by one thread; entries are addresses of immutable code.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: nobody can call the code any more: entries are used through a reference to this value only.
        unsafe {
            // A failure leaves the code loaded, which is harmless.
            let _ = llvm::check(LLVMOrcResourceTrackerRemove(self.tracker));
            LLVMOrcReleaseResourceTracker(self.tracker);
        }
    }
}

/// Loaded code beyond this many kernels is dropped if no program uses it.
const CACHE_LIMIT: usize = 4096;

type Cache = Mutex<HashMap<u128, Arc<Code>>>;

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Cache::default)
}

/// What [`load`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Memory,
    Store,
    Compiled,
}

fn key_of(text: &str, level: Level) -> u128 {
    xxhash_rust::xxh3::xxh3_128(format!("{VERSION} {}\n{text}", level.name()).as_bytes())
}

/// What [`load`] would find in memory.
pub(super) fn loaded_text(text: &str, level: Level) -> Option<Arc<Code>> {
    loaded(key_of(text, level))
}

/// The code of a module in which `KEY` stands for its own content hash (so that symbols are unique in the process).
///
/// `symbols`: names of the entry points, with `KEY` likewise.
pub fn load(text: &str, symbols: &[String], level: Level) -> Result<(Arc<Code>, Origin), LlvmError> {
    let key = key_of(text, level);
    if let Some(code) = loaded(key) {
        return Ok((code, Origin::Memory));
    }
    let bytes = llvm::compile(&named(text, key), level, Output::Object)?.into();
    load_object(Object { key, bytes }, symbols, Origin::Compiled)
}

/// As [`load`], of code that [`load`] has compiled in this process or another.
pub fn load_object(object: Object, symbols: &[String], origin: Origin) -> Result<(Arc<Code>, Origin), LlvmError> {
    let key = object.key;
    let symbols: Vec<String> = symbols.iter().map(|s| named(s, key)).collect();
    let mut cache = cache().lock().unwrap_or_else(|e| e.into_inner());
    // Another thread may have been first: the JIT knows a symbol only once.
    if let Some(code) = cache.get(&key) {
        return Ok((code.clone(), Origin::Memory));
    }
    let code = Arc::new(Jit::get()?.load(object, &symbols)?);
    if cache.len() >= CACHE_LIMIT {
        cache.retain(|_, c| Arc::strong_count(c) > 1);
    }
    cache.insert(key, code.clone());
    Ok((code, origin))
}

fn loaded(key: u128) -> Option<Arc<Code>> {
    cache().lock().unwrap_or_else(|e| e.into_inner()).get(&key).cloned()
}

fn named(text: &str, key: u128) -> String {
    text.replace("KEY", &format!("k{key:032x}"))
}
