// Included by build scripts: a hash of source folders as `RSX_SOURCES`, for the keys of the disk cache: no build uses
// what a different one wrote.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

fn hash_files(path: &Path, state: &mut DefaultHasher) {
    if path.is_dir() {
        let mut list: Vec<_> = std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
        list.sort();
        list.iter().for_each(|p| hash_files(p, state));
    } else if let Ok(bytes) = std::fs::read(path) {
        (path.to_string_lossy(), bytes).hash(state);
    }
}

fn emit_hash(variable: &str, folders: &[&str]) {
    let mut state = DefaultHasher::new();
    for folder in folders {
        println!("cargo:rerun-if-changed={folder}");
        hash_files(Path::new(folder), &mut state);
    }
    println!("cargo:rustc-env={variable}={:016x}", state.finish());
}
