//! Object code on disk, so that a new process need not compile what an earlier one did.
//!
//! One file per kernel, named by the key (a hash of the IR, the level and the code generator's version), with a checksum
//! in front. Files are written under another name first and renamed, so readers see whole files only; a file that does
//! not check out counts as missing. The directory is the user's own: `RSX_CACHE_DIR` (empty: no cache), else `rsx` in the
//! user's cache directory.
use super::jit::ObjectStore;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"RSXOBJ1\n";
const HEADER: usize = MAGIC.len() + 16;
/// When the files together exceed this many bytes, the ones not written or used for longest go.
const LIMIT: u64 = 256 << 20;

/// A directory of object files.
pub struct DiskStore {
    directory: PathBuf,
}

/// The directory that the environment names, if any.
fn directory() -> Option<PathBuf> {
    if let Some(d) = std::env::var_os("RSX_CACHE_DIR") {
        return (!d.is_empty()).then(|| PathBuf::from(d).join("objects"));
    }
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(caches.join("rsx").join("objects"))
}

impl DiskStore {
    /// The user's store; none if the environment says so or the directory cannot be made.
    pub fn from_environment() -> Option<DiskStore> {
        DiskStore::open(&directory()?)
    }

    /// A store in `directory`, which is made if it does not exist.
    pub fn open(directory: &Path) -> Option<DiskStore> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(directory).ok()?;
        let store = DiskStore { directory: directory.to_owned() };
        store.prune(LIMIT);
        Some(store)
    }

    fn path(&self, key: u128) -> PathBuf {
        self.directory.join(format!("{key:032x}.o"))
    }

    /// Deletes the oldest files until the rest have at most `limit` bytes.
    fn prune(&self, limit: u64) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|e| {
                let e = e.ok()?;
                let m = e.metadata().ok()?;
                m.is_file().then(|| (m.modified().unwrap_or(SystemTime::UNIX_EPOCH), m.len(), e.path()))
            })
            .collect();
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        if total <= limit {
            return;
        }
        files.sort();
        for (_, size, path) in files {
            if total <= limit / 2 {
                break;
            }
            // Another process may have been first.
            let _ = std::fs::remove_file(path);
            total -= size;
        }
    }
}

fn checksum(object: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(object).to_le_bytes()
}

impl ObjectStore for DiskStore {
    fn get(&self, key: u128) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.path(key)).ok()?;
        let whole = bytes.len() > HEADER && bytes[..8] == *MAGIC && bytes[8..HEADER] == checksum(&bytes[HEADER..]);
        whole.then(|| bytes.split_off(HEADER))
    }

    fn put(&self, key: u128, object: &[u8]) {
        let path = self.path(key);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let bytes = [&MAGIC[..], &checksum(object)[..], object].concat();
        // A cache that cannot be written is no error: the next process compiles again.
        if std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, &path)).is_err() {
            let _ = std::fs::remove_file(&temporary);
            tracing::debug!(path = %path.display(), "object code could not be stored");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_objects_come_back_and_damaged_ones_do_not() {
        let directory = std::env::temp_dir().join(format!("rsx-store-{}", std::process::id()));
        let store = DiskStore::open(&directory).unwrap();
        assert_eq!(store.get(1), None);
        store.put(1, b"object code");
        assert_eq!(store.get(1).as_deref(), Some(&b"object code"[..]));
        let mut bytes = std::fs::read(store.path(1)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(store.path(1), bytes).unwrap();
        assert_eq!(store.get(1), None);
        (2..10).for_each(|k| store.put(k, &[7; 1000]));
        store.prune(3000);
        let left = (1..10).filter(|&k| store.get(k).is_some()).count();
        assert!(left <= 2, "{left}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
