//! Programs outlive the process: a second session with the same store compiles nothing.
mod common;
use common::*;
use rsx_capture::{Options, Tier};
use rsx_devices::store::{DiskStore, EntryKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A directory that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("rsx-disk-{name}-{}", std::process::id())))
    }
    /// A world as a new process would have it.
    fn world(&self, tier: Tier) -> World {
        self.with(Options { tier, ..Options::default() })
    }
    fn with(&self, options: Options) -> World {
        World::with(Options { store: Some(Arc::new(self.store())), ..options })
    }
    fn store(&self) -> DiskStore {
        DiskStore::open(&self.0, 1 << 30).unwrap()
    }
    fn programs(&self) -> Vec<PathBuf> {
        let list = std::fs::read_dir(&self.0).unwrap();
        list.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "rsxp")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Some steps; the parameter after them, compiles, programs from disk, runs op by op.
fn train(w: &World, steps: usize) -> (f32, u64, u64, u64) {
    let (p, x) = (w.tensor(&[1.0; 4]), w.tensor(&[1.0; 4]));
    for _ in 0..steps {
        let loss = w.step(&p, &x, 0.5);
        let called = w.op("triple", &[&loss]);
        w.cut();
        w.values(&called);
    }
    let m = w.session.metrics();
    (w.values(&p)[0], m.compiles, m.disk_hits, m.eager_runs)
}

#[test]
fn a_second_process_compiles_nothing() {
    for tier in [Tier::Auto, Tier::Compiled] {
        let folder = Folder::new(&format!("second-{tier:?}"));
        let first = folder.world(Tier::Compiled);
        let want = train(&first, 3);
        assert_eq!((want.1, want.2, want.3), (1, 0, 0));
        // The first sighting already runs the program from disk.
        let second = folder.world(tier);
        assert_eq!(train(&second, 3), (want.0, 0, 1, 0), "{tier:?}");
        assert_eq!(second.device.compile_door.arrivals(), 0);
        let text = second.session.explain();
        assert!(text.starts_with("Compiles: 0 (0.0 ms), 1 from disk, 0 failed\n"), "{text}");
        let label = &folder.store().list()[0].label;
        assert_eq!(label, "5 ops from aten::mul.Tensor at test.py:1 (f)");
    }
}

#[test]
fn what_is_damaged_or_foreign_is_compiled_again() {
    let folder = Folder::new("damaged");
    let want = train(&folder.world(Tier::Compiled), 2).0;
    let path = folder.programs()[0].clone();
    let good = std::fs::read(&path).unwrap();
    let key = u128::from_str_radix(path.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let contents = folder.store().get(EntryKind::Program, key).unwrap();
    // Files as the disk may give them, then files with a right checksum and wrong contents.
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let disk = [good[..good.len() / 2].to_vec(), flipped, Vec::new()];
    let mut foreign: Vec<Vec<u8>> = (0..contents.len())
        .map(|at| {
            let mut c = contents.clone();
            c[at] ^= 0x15;
            c
        })
        .collect();
    foreign.push(b"nonsense".to_vec());
    for (n, bytes) in disk.iter().enumerate() {
        std::fs::write(&path, bytes).unwrap();
        let w = folder.world(Tier::Compiled);
        assert_eq!(train(&w, 2), (want, 1, 0, 0), "file {n}");
        assert_eq!(w.session.metrics().disk_rejects, 1);
        assert_eq!(train(&folder.world(Tier::Auto), 2), (want, 0, 1, 0), "it was replaced");
    }
    for c in foreign.iter().step_by(7).chain(foreign.last()) {
        folder.store().put(EntryKind::Program, key, "", c);
        // Whatever it is: no panic and no wrong index; what cannot be told from a program may run as one.
        let _ = train_quietly(&folder.world(Tier::Compiled));
    }
}

/// As [`train`], where results may be wrong.
fn train_quietly(w: &World) -> u64 {
    let (p, x) = (w.tensor(&[1.0; 4]), w.tensor(&[1.0; 4]));
    let loss = w.step(&p, &x, 0.5);
    let called = w.op("triple", &[&loss]);
    w.cut();
    let _ = w.read(&called);
    w.session.metrics().disk_rejects
}

#[test]
fn another_identity_is_another_program() {
    let folder = Folder::new("identity");
    train(&folder.world(Tier::Compiled), 1);
    let w = World::with(Options {
        tier: Tier::Compiled,
        store: Some(Arc::new(folder.store())),
        front_end: "torch 3".into(),
        ..Options::default()
    });
    assert_eq!(train(&w, 1).1, 1);
    assert_eq!(folder.programs().len(), 2);
}

#[test]
fn background_compiles_are_stored() {
    let folder = Folder::new("background");
    let first = folder.world(Tier::Auto);
    let step = |w: &World| {
        let (p, x) = (w.tensor(&[1.0; 4]), w.tensor(&[1.0; 4]));
        w.step(&p, &x, 0.5);
        w.cut();
        w.sync().unwrap();
    };
    step(&first);
    step(&first);
    let start = std::time::Instant::now();
    while folder.programs().is_empty() {
        assert!(start.elapsed().as_secs() < 30, "no file");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let second = folder.world(Tier::Auto);
    step(&second);
    let m = second.session.metrics();
    assert_eq!((m.compiles, m.disk_hits, m.eager_runs, m.kernels), (0, 1, 0, 1));
}

#[test]
fn check_mode_compares_programs() {
    let folder = Folder::new("check");
    let w = folder.with(Options { tier: Tier::Compiled, check: true, ..Options::default() });
    train(&w, 4);
    let m = w.session.metrics();
    assert_eq!((m.check_failures, m.compiles), (0, 1));
    assert_eq!(w.device.compile_door.arrivals(), 4, "compiled once and at each of 3 hits");
    // A device that changes its ways without saying so.
    w.device.take_donations.store(false, SeqCst);
    train(&w, 1);
    assert_eq!(w.session.metrics().check_failures, 1);
}
