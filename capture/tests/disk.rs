//! Programs outlive the process: a second session with the same store compiles nothing.
mod common;
use common::*;
use rsx_capture::{FaultPoint, Options, Tier};
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

/// Steps of a loop with a momentum that the first step makes; parameter and momentum after them.
fn momentum(w: &World, steps: usize) -> (Vec<f32>, Vec<f32>) {
    let (p, x, m) = (w.tensor(&[1.0; 4]), w.tensor(&[1.0, 2.0, 3.0, 4.0]), w.empty(4));
    for step in 0..steps {
        let grad = w.op("mul", &[&p, &x]);
        if step == 0 {
            w.do_("zero_", &[&m]);
        }
        w.do_("add_", &[&m, &grad]);
        w.do_("add_", &[&p, &m]);
        drop(grad);
        w.cut();
        w.sync().unwrap();
    }
    (w.values(&p), w.values(&m))
}

/// The first step differs from the others by the making of the optimizer's state: it runs their program all the same.
#[test]
fn the_first_step_of_a_known_loop_is_compiled() {
    let folder = Folder::new("continued");
    let first = folder.world(Tier::Auto);
    let want = momentum(&first, 2);
    // Another model in the same process, once the program is there.
    until("the compile", || first.session.metrics().compiling == 0 && !folder.programs().is_empty());
    assert_eq!(momentum(&first, 2), want);
    let m = first.session.metrics();
    assert_eq!((m.compiles, m.segments, first.engine.count("zero_")), (1, 4, 1));
    // Another process.
    let second = folder.world(Tier::Auto);
    assert_eq!(momentum(&second, 2), want);
    let m = second.session.metrics();
    assert_eq!((m.compiles, m.disk_hits, m.eager_runs, second.engine.count("zero_")), (0, 1, 0, 0));
    // Memory that cannot be had is the loss of one step's results, not of the parameter.
    let third = folder.world(Tier::Auto);
    let (p, x, m) = (third.tensor(&[1.0; 4]), third.tensor(&[1.0; 4]), third.empty(4));
    third.sync().unwrap();
    third.session.inject(FaultPoint::Oom, 1);
    let grad = third.op("mul", &[&p, &x]);
    third.do_("zero_", &[&m]);
    third.do_("add_", &[&m, &grad]);
    third.do_("add_", &[&p, &m]);
    drop(grad);
    let e = third.sync().unwrap_err().to_string();
    assert!(e.contains("injected failure of an allocation"), "{e}");
    assert_eq!(third.values(&p), [1.0; 4]);
}

/// Fills that are not the making of a state stay where they are.
#[test]
fn other_fills_stay() {
    let folder = Folder::new("fills");
    let run = |w: &World, which: usize| {
        let (p, m) = (w.tensor(&[1.0; 4]), w.tensor(&[5.0; 4]));
        // Used before; used by nobody; dead afterwards.
        let before = (which == 0).then(|| w.op("add", &[&p, &m]));
        w.do_("zero_", &[&m]);
        if which != 1 {
            w.do_("add_", &[&m, &p]);
            w.do_("add_", &[&p, &m]);
        } else {
            w.do_("add_", &[&p, &p]);
        }
        let kept = (which != 2).then_some(m);
        w.sync().unwrap();
        (w.values(&p), kept.map(|m| w.values(&m)), before.map(|b| w.values(&b)))
    };
    for which in 0..3 {
        let want = run(&World::new(Tier::Eager), which);
        let w = folder.world(Tier::Auto);
        // The same without the fill is known.
        for _ in 0..2 {
            let (p, m) = (w.tensor(&[1.0; 4]), w.tensor(&[5.0; 4]));
            let before = (which == 0).then(|| w.op("add", &[&p, &m]));
            w.do_("add_", &[&m, &p]);
            w.do_("add_", &[&p, &m]);
            drop(before);
            w.sync().unwrap();
            until("the compile", || w.session.metrics().compiling == 0);
        }
        for _ in 0..3 {
            assert_eq!(run(&w, which), want, "{which}");
        }
    }
}
