//! What earlier processes made, on disk: object code of kernels, and whole programs.
//!
//! One file per entry, named by its key, so that processes share a directory without agreeing on anything: a file is
//! written under a name of its own and then renamed, so readers see whole files only, whoever is killed when. An entry
//! repeats its key and carries a checksum; one that does not check out counts as missing, is removed, and is written
//! again by whoever makes it anew. The directory holds machine code that will be run, so it must belong to the user.
//!
//! `RSX_CACHE_DIR` names the directory (empty: no cache); unset, it is `rsx` in the user's cache directory.
//! `RSX_CACHE_LIMIT` bounds its size in MiB (default 512): beyond it the entries not used for longest go.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// Changes with the layout of files.
const MAGIC: &[u8; 8] = b"RSXCACH1";
const HEADER: usize = MAGIC.len() + 16 + 16 + 4;
const DEFAULT_LIMIT: u64 = 512 << 20;
/// An entry read again within this time keeps its time of last use: hits mostly write nothing.
const TOUCH: Duration = Duration::from_secs(600);
/// Unfinished files older than this are left over from processes that were killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKind {
    /// A generated kernel: object code and how to launch it.
    Kernel,
    /// A compiled segment without the code of its kernels.
    Program,
}

impl EntryKind {
    pub const ALL: [EntryKind; 2] = [EntryKind::Kernel, EntryKind::Program];

    pub fn name(self) -> &'static str {
        match self {
            EntryKind::Kernel => "kernel",
            EntryKind::Program => "program",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            EntryKind::Kernel => "rsxk",
            EntryKind::Program => "rsxp",
        }
    }
}

/// One entry, as `rsx cache ls` shows it.
#[derive(Clone, Debug)]
pub struct Listed {
    pub kind: EntryKind,
    pub key: u128,
    /// Of the file.
    pub bytes: u64,
    /// Last written or read (within ten minutes).
    pub used: SystemTime,
    /// What it is, in words.
    pub label: String,
}

/// Counts of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub hits: u64,
    pub misses: u64,
    pub writes: u64,
    /// Entries that did not check out and were removed.
    pub damaged: u64,
}

/// A directory of entries.
#[derive(Debug)]
pub struct DiskStore {
    directory: PathBuf,
    limit: u64,
    /// Bytes written since old entries were last removed; starts high, so that the first write looks.
    unpruned: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    writes: AtomicU64,
    damaged: AtomicU64,
    /// The user has been told that nothing can be written.
    complained: AtomicBool,
}

/// The directory that the environment names, if any.
pub fn directory() -> Option<PathBuf> {
    if let Some(d) = std::env::var_os("RSX_CACHE_DIR") {
        return (!d.is_empty()).then(|| PathBuf::from(d));
    }
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(caches.join("rsx"))
}

/// Bytes that `RSX_CACHE_LIMIT` allows.
fn limit() -> u64 {
    let Ok(text) = std::env::var("RSX_CACHE_LIMIT") else { return DEFAULT_LIMIT };
    match text.trim().parse::<u64>() {
        Ok(mib) => mib << 20,
        Err(_) => {
            tracing::warn!("RSX_CACHE_LIMIT={text}: expected a number of MiB; the default of 512 is used");
            DEFAULT_LIMIT
        }
    }
}

impl DiskStore {
    /// The process's store; none if the environment says so or the directory cannot be used.
    pub fn shared() -> Option<&'static Arc<DiskStore>> {
        static SHARED: OnceLock<Option<Arc<DiskStore>>> = OnceLock::new();
        let open = || {
            // A dump shows compilations: programs from the disk would have none. What LLVM is told for a measurement is in no
            // key: such code is not to meet other processes.
            let told = ["RSX_LLVM_PASSES", "RSX_LLVM_LEVEL"].iter().any(|name| std::env::var_os(name).is_some());
            if told || rsx_compiler::dump_directory().is_some() {
                return None;
            }
            let directory = directory()?;
            match DiskStore::open(&directory, limit()) {
                Ok(store) => Some(Arc::new(store)),
                Err(why) => {
                    tracing::warn!(
                        "{} is not used as a cache of compiled programs: {why}. Programs are kept for this process only; \
                         RSX_CACHE_DIR names another directory",
                        directory.display()
                    );
                    None
                }
            }
        };
        SHARED.get_or_init(open).as_ref()
    }

    /// A store in `directory`, made if it does not exist, of at most `limit` bytes. Errors say why it cannot be used.
    pub fn open(directory: &Path, limit: u64) -> Result<DiskStore, String> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        if directory.exists() && !directory.is_dir() {
            return Err("it is not a directory".into());
        }
        builder.create(directory).map_err(|e| e.to_string())?;
        private(directory)?;
        let zero = || AtomicU64::new(0);
        Ok(DiskStore {
            directory: directory.to_owned(),
            limit,
            unpruned: AtomicU64::new(limit / 2),
            hits: zero(),
            misses: zero(),
            writes: zero(),
            damaged: zero(),
            complained: AtomicBool::new(false),
        })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Bytes that all entries together may have.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn stats(&self) -> StoreStats {
        let get = |n: &AtomicU64| n.load(Relaxed);
        StoreStats {
            hits: get(&self.hits),
            misses: get(&self.misses),
            writes: get(&self.writes),
            damaged: get(&self.damaged),
        }
    }

    fn path(&self, kind: EntryKind, key: u128) -> PathBuf {
        self.directory.join(format!("{key:032x}.{}", kind.extension()))
    }

    /// Whether there is a file for `key`; it may still turn out to be damaged.
    pub fn has(&self, kind: EntryKind, key: u128) -> bool {
        self.path(kind, key).exists()
    }

    /// The contents of entry `key`.
    pub fn get(&self, kind: EntryKind, key: u128) -> Option<Vec<u8>> {
        let path = self.path(kind, key);
        let Some((file, bytes)) = read(&path) else {
            self.misses.fetch_add(1, Relaxed);
            return None;
        };
        let Some(at) = open_entry(&bytes, kind, key).map(|(_, contents)| bytes.len() - contents.len()) else {
            self.reject(kind, key, "its checksum is wrong");
            return None;
        };
        // Where the time cannot be set the entry merely looks older than it is.
        let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        if age.is_some_and(|a| a > TOUCH) {
            let _ = file.set_modified(SystemTime::now());
        }
        self.hits.fetch_add(1, Relaxed);
        let mut bytes = bytes;
        Some(bytes.split_off(at))
    }

    /// Removes an entry that cannot be used. Whoever makes it anew writes it again.
    pub fn reject(&self, kind: EntryKind, key: u128, why: &str) {
        let path = self.path(kind, key);
        tracing::info!(target: "rsx::cache", path = %path.display(), why, "a cached {} was removed", kind.name());
        self.damaged.fetch_add(1, Relaxed);
        // Another process may have been first, or have replaced it by a good one, which then is made once more.
        let _ = std::fs::remove_file(path);
    }

    /// Stores `contents` under `key`, with a label for listings. A store that cannot be written is no error: the next
    /// process compiles again.
    pub fn put(&self, kind: EntryKind, key: u128, label: &str, contents: &[u8]) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = self.path(kind, key);
        let unique = format!("{key:032x}.{}.{}.tmp", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let temporary = self.directory.join(unique);
        let bytes = close_entry(kind, key, label, contents);
        match std::fs::write(&temporary, &bytes).and_then(|()| std::fs::rename(&temporary, &path)) {
            Ok(()) => {
                self.writes.fetch_add(1, Relaxed);
                let before = self.unpruned.fetch_add(bytes.len() as u64, Relaxed);
                if before.saturating_add(bytes.len() as u64) > self.limit / 16 {
                    self.unpruned.store(0, Relaxed);
                    self.prune();
                }
            }
            Err(error) => {
                let _ = std::fs::remove_file(&temporary);
                if !self.complained.swap(true, Relaxed) {
                    tracing::warn!(
                        "{} cannot be written to ({error}): programs compiled now are not kept for later processes; \
                         RSX_CACHE_DIR names another directory",
                        self.directory.display()
                    );
                }
                tracing::debug!(target: "rsx::cache", path = %path.display(), %error, "an entry could not be stored");
            }
        }
    }

    /// All files that look like entries: kind, key, size, time of last use.
    fn files(&self) -> Vec<(EntryKind, u128, u64, SystemTime)> {
        let Ok(list) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let entry = |e: std::io::Result<std::fs::DirEntry>| {
            let e = e.ok()?;
            let name = e.file_name();
            let (key, extension) = name.to_str()?.split_once('.')?;
            let kind = EntryKind::ALL.into_iter().find(|k| k.extension() == extension)?;
            let key = u128::from_str_radix(key, 16).ok()?;
            let m = e.metadata().ok()?;
            Some((kind, key, m.len(), m.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
        };
        list.filter_map(entry).collect()
    }

    /// All entries that check out, last used first.
    pub fn list(&self) -> Vec<Listed> {
        let entry = |(kind, key, bytes, used)| {
            let (_, contents) = read(&self.path(kind, key))?;
            let label = open_entry(&contents, kind, key)?.0.to_owned();
            Some(Listed { kind, key, bytes, used, label })
        };
        let mut list: Vec<Listed> = self.files().into_iter().filter_map(entry).collect();
        list.sort_by_key(|e| std::cmp::Reverse((e.used, e.key)));
        list
    }

    /// Number and bytes of the entries of each kind.
    pub fn totals(&self) -> [(EntryKind, u64, u64); 2] {
        let files = self.files();
        EntryKind::ALL.map(|kind| {
            let of_kind = files.iter().filter(|f| f.0 == kind);
            (kind, of_kind.clone().count() as u64, of_kind.map(|f| f.2).sum())
        })
    }

    /// Removes all entries; returns how many. Processes that use the store go on and write new ones.
    pub fn clear(&self) -> u64 {
        self.sweep(Duration::ZERO);
        let remove = |f: &(EntryKind, u128, u64, SystemTime)| std::fs::remove_file(self.path(f.0, f.1)).is_ok();
        self.files().iter().filter(|f| remove(f)).count() as u64
    }

    /// Removes the entries not used for longest until the rest fit, and what killed processes left behind.
    pub fn prune(&self) {
        // One process at a time; the system takes the lock from one that is killed.
        let Ok(lock) = File::options().create(true).append(true).open(self.directory.join("lock")) else { return };
        if lock.try_lock().is_err() {
            return;
        }
        self.sweep(ABANDONED);
        let mut files = self.files();
        let mut total: u64 = files.iter().map(|f| f.2).sum();
        if total <= self.limit {
            return;
        }
        files.sort_by_key(|f| f.3);
        for (kind, key, bytes, _) in files {
            // Some room, so that the next few writes need not look again.
            if total <= self.limit / 4 * 3 {
                break;
            }
            let _ = std::fs::remove_file(self.path(kind, key));
            total -= bytes;
        }
    }

    /// Removes unfinished files older than `age`.
    fn sweep(&self, age: Duration) {
        let Ok(list) = std::fs::read_dir(&self.directory) else { return };
        for e in list.flatten() {
            let old = || e.metadata().ok()?.modified().ok()?.elapsed().ok().map(|a| a >= age);
            if e.path().extension().is_some_and(|x| x == "tmp") && old() == Some(true) {
                let _ = std::fs::remove_file(e.path());
            }
        }
    }
}

/// Is the directory one that nobody else can put code into?
#[cfg(unix)]
fn private(directory: &Path) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let m = std::fs::metadata(directory).map_err(|e| e.to_string())?;
    let me = rustix::process::geteuid().as_raw();
    if m.uid() != me && m.uid() != 0 {
        return Err("it belongs to another user".into());
    }
    if m.mode() & 0o002 != 0 {
        return Err("anybody may write to it".into());
    }
    Ok(())
}

#[cfg(not(unix))]
fn private(_: &Path) -> Result<(), String> {
    Ok(())
}

fn read(path: &Path) -> Option<(File, Vec<u8>)> {
    let mut file = File::open(path).ok()?;
    let mut bytes = Vec::with_capacity(file.metadata().map_or(0, |m| m.len() as usize));
    file.read_to_end(&mut bytes).ok()?;
    Some((file, bytes))
}

/// Checksum of an entry: of its place (kind and key) and of everything behind the checksum.
fn checksum(kind: EntryKind, key: u128, rest: &[u8]) -> [u8; 16] {
    let seed = kind as u64 ^ key as u64 ^ (key >> 64) as u64;
    xxhash_rust::xxh3::xxh3_128_with_seed(rest, seed).to_le_bytes()
}

/// The bytes of an entry: magic, key, checksum, length of the label, label, contents.
fn close_entry(kind: EntryKind, key: u128, label: &str, contents: &[u8]) -> Vec<u8> {
    let mut rest = (label.len() as u32).to_le_bytes().to_vec();
    rest.extend_from_slice(label.as_bytes());
    rest.extend_from_slice(contents);
    [&MAGIC[..], &key.to_le_bytes(), &checksum(kind, key, &rest), &rest].concat()
}

/// Label and contents of an entry that checks out.
fn open_entry(bytes: &[u8], kind: EntryKind, key: u128) -> Option<(&str, &[u8])> {
    let head = bytes.get(..HEADER)?;
    let rest = &bytes[HEADER - 4..];
    if head[..8] != *MAGIC || head[8..24] != key.to_le_bytes() || head[24..40] != checksum(kind, key, rest) {
        return None;
    }
    let length = u32::from_le_bytes(rest[..4].try_into().ok()?) as usize;
    let label = rest.get(4..4 + length)?;
    Some((std::str::from_utf8(label).ok()?, &rest[4 + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use EntryKind::{Kernel, Program};

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rsx-store-{name}-{}", std::process::id()))
    }

    #[test]
    fn damaged_and_foreign_entries_are_missing_and_replaced() {
        let directory = temporary("damage");
        let store = DiskStore::open(&directory, 1 << 20).unwrap();
        assert_eq!(store.get(Kernel, 1), None);
        store.put(Kernel, 1, "a kernel", b"object code");
        assert_eq!(store.get(Kernel, 1).as_deref(), Some(&b"object code"[..]));
        let good = std::fs::read(store.path(Kernel, 1)).unwrap();
        let flipped = |at: usize| {
            let mut b = good.clone();
            b[at] ^= 1;
            b
        };
        let mut cases: Vec<Vec<u8>> = (0..good.len()).map(flipped).collect();
        cases.extend([Vec::new(), good[..HEADER].to_vec(), good[..good.len() - 1].to_vec(), vec![0; 100]]);
        for bytes in cases {
            std::fs::write(store.path(Kernel, 1), bytes).unwrap();
            assert!(store.has(Kernel, 1));
            assert_eq!(store.get(Kernel, 1), None);
            assert!(!store.has(Kernel, 1), "what is damaged goes");
            store.put(Kernel, 1, "a kernel", b"object code");
            assert!(store.get(Kernel, 1).is_some());
        }
        // A whole entry under another key, or of another kind.
        for (kind, key) in [(Kernel, 2), (Program, 1)] {
            std::fs::write(store.path(kind, key), &good).unwrap();
            assert_eq!(store.get(kind, key), None);
        }
        assert_eq!(store.list().iter().map(|e| (e.key, e.label.as_str())).collect::<Vec<_>>(), [(1, "a kernel")]);
        assert_eq!(store.clear(), 1);
        assert_eq!(store.totals(), [(Kernel, 0, 0), (Program, 0, 0)]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_entries_not_used_for_longest_go() {
        let directory = temporary("lru");
        let store = DiskStore::open(&directory, 10_000).unwrap();
        let age = |key: u128, seconds: u64| {
            let file = File::options().append(true).open(store.path(Program, key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for key in 0..8 {
            store.put(Program, key, "", &[7; 1000]);
            age(key, 2000 + key as u64);
        }
        // The oldest one is used again.
        assert!(store.get(Program, 7).is_some());
        let orphan = directory.join("0.1.1.tmp");
        std::fs::write(&orphan, b"half").unwrap();
        (10..14).for_each(|key| store.put(Program, key, "", &[7; 1000]));
        assert!(orphan.exists(), "it may still be in the making");
        let total: u64 = store.totals().iter().map(|t| t.2).sum();
        assert!(total <= 10_000, "{total}");
        assert!(store.has(Program, 7) && !store.has(Program, 6) && store.has(Program, 13));
        store.clear();
        assert!(!orphan.exists());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_open_to_all_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = temporary("open");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(DiskStore::open(&directory, 1).is_err_and(|e| e.contains("anybody")));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
