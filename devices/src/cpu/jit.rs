//! Loading of object code, and the cache of what is loaded.
use super::link::Image;
use super::llvm::{self, LlvmError, Output};
use super::target::Level;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// The compiler and the code generator, for keys.
pub const VERSION: &str = concat!("rsx ", env!("CARGO_PKG_VERSION"), " ", env!("RSX_COMPILER_SOURCES"), " llvm 22");

/// Loaded code; unloaded when the last reference goes.
#[derive(Debug)]
pub struct Code {
    /// Addresses of the entry points, in the order asked for.
    pub entries: Vec<usize>,
    /// What it was loaded from.
    pub object: Object,
    /// The memory that the entries are in.
    #[expect(dead_code, reason = "held for the entries")]
    image: Image,
}

/// Object code that can be loaded in another process.
#[derive(Clone, Debug)]
pub struct Object {
    /// Hash of the text it was compiled from.
    pub key: u128,
    pub bytes: Arc<[u8]>,
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

/// The code of a module, with `symbols` as its entry points.
pub fn load(text: &str, symbols: &[String], level: Level) -> Result<(Arc<Code>, Origin), LlvmError> {
    let key = key_of(text, level);
    if let Some(code) = loaded(key) {
        return Ok((code, Origin::Memory));
    }
    let bytes = llvm::compile(text, level, Output::Object)?.into();
    load_object(Object { key, bytes }, symbols, Origin::Compiled)
}

/// As [`load`], of code that [`load`] has compiled in this process or another.
pub fn load_object(object: Object, symbols: &[String], origin: Origin) -> Result<(Arc<Code>, Origin), LlvmError> {
    let key = object.key;
    if let Some(code) = loaded(key) {
        return Ok((code, Origin::Memory));
    }
    let failed = |why: String| LlvmError(format!("its object cannot be linked: {why}"));
    let image = Image::link(&object.bytes).map_err(failed)?;
    let entry = |s: &String| image.function(s).ok_or_else(|| failed(format!("there is no {s}")));
    let entries = symbols.iter().map(entry).collect::<Result<_, _>>()?;
    let code = Arc::new(Code { entries, object, image });
    let mut cache = cache().lock().unwrap_or_else(|e| e.into_inner());
    if cache.len() >= CACHE_LIMIT {
        cache.retain(|_, c| Arc::strong_count(c) > 1);
    }
    // Another thread may have been first.
    Ok((cache.entry(key).or_insert(code).clone(), origin))
}

fn loaded(key: u128) -> Option<Arc<Code>> {
    cache().lock().unwrap_or_else(|e| e.into_inner()).get(&key).cloned()
}
