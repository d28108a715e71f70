//! Processes that share a disk cache and are killed at any moment: no wrong result, nothing damaged is used, nobody
//! hangs, and what was finished stays.
//!
//! `RSX_KILL_ROUNDS=200 cargo test -p rsx-capture --test kill` for the long form; a few rounds otherwise.
mod common;
use common::*;
use rsx_capture::device::DeviceBackend;
use rsx_capture::{Options, Session, Tier};
use rsx_compiler::CompileOptions;
use rsx_devices::cpu::CpuDevice;
use rsx_devices::cpu::target::Target;
use rsx_devices::memory::MemoryPool;
use rsx_devices::store::DiskStore;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHILD: &str = "RSX_KILL_CHILD";
const PROCESSES: usize = 4;
/// Small enough that old entries are removed all the time.
const LIMIT: u64 = 160 << 10;

fn world(directory: &Path, limit: u64) -> World {
    let store = Arc::new(DiskStore::open(directory, limit).unwrap());
    let device = CpuDevice::with(MemoryPool::cpu().clone(), Target::host()).with_store(store.clone());
    let engine = Arc::new(FakeEngine::default());
    let options = Options { tier: Tier::Compiled, store: Some(store), ..Options::default() };
    let backend = DeviceBackend::new(Arc::new(device), CompileOptions::default());
    World::over(Session::new(Arc::new(backend), engine.clone(), options).unwrap(), Arc::default(), engine)
}

/// A segment of its own for every `n`; checks the result.
fn step(w: &World, n: usize) {
    let (p, x) = (w.tensor(&vec![1.0; n]), w.tensor(&vec![3.0; n]));
    let y = (0..n % 3).fold(w.op("mul", &[&x, &x]), |y, _| w.op("add", &[&y, &p]));
    w.do_("add_", &[&p, &y]);
    w.cut();
    assert_eq!(w.values(&p), vec![10.0 + (n % 3) as f32; n]);
}

#[test]
fn steps_are_right_without_interference() {
    let directory = std::env::temp_dir().join(format!("rsx-calm-{}", std::process::id()));
    for round in 0..2 {
        let w = world(&directory, u64::MAX);
        (1..=40).for_each(|n| step(&w, n));
        let m = w.session.metrics();
        assert_eq!((m.compiles, m.disk_hits), if round == 0 { (40, 0) } else { (0, 40) });
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// Not a test: what the processes of the test below do.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    for round in 0.. {
        // As a new process, as far as the disk is concerned: sessions share nothing but loaded code.
        let w = world(directory.as_ref(), LIMIT);
        (1..=24).for_each(|k| step(&w, 1 + (k * 7 + round) % 40));
        assert_eq!(w.session.metrics().disk_rejects, 0, "an entry was damaged");
    }
}

fn spawn(directory: &Path) -> Child {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child"]).env(CHILD, directory).stdout(Stdio::null()).stderr(Stdio::piped());
    c.spawn().unwrap()
}

#[test]
fn killed_processes_leave_a_sound_cache() {
    let rounds: usize = std::env::var("RSX_KILL_ROUNDS").map_or(6, |v| v.parse().expect("a number"));
    let directory = std::env::temp_dir().join(format!("rsx-kill-{}", std::process::id()));
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut processes: Vec<Child> = (0..PROCESSES).map(|_| spawn(&directory)).collect();
    for _ in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(20 + (random >> 33) % 150));
        let victim = &mut processes[(random >> 20) as usize % PROCESSES];
        // A process that has ended by itself has failed.
        if victim.try_wait().unwrap().is_some() {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(victim.stderr.as_mut().unwrap(), &mut text);
            panic!("a process failed: {text}");
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        *victim = spawn(&directory);
    }
    for p in &mut processes {
        assert!(p.try_wait().unwrap().is_none(), "a process failed");
        p.kill().unwrap();
        p.wait().unwrap();
    }
    let began = Instant::now();
    let store = DiskStore::open(&directory, LIMIT).unwrap();
    assert!(!store.list().is_empty(), "the cache is lost");
    // Twice over everything, without a limit now: the second time nothing is compiled.
    (1..=40).for_each(|n| step(&world(&directory, u64::MAX), n));
    let w = world(&directory, u64::MAX);
    (1..=40).for_each(|n| step(&w, n));
    let m = w.session.metrics();
    assert_eq!((m.compiles, m.disk_hits, m.disk_rejects), (0, 40, 0));
    assert!(began.elapsed() < Duration::from_secs(60), "somebody holds a lock");
    std::fs::remove_dir_all(directory).unwrap();
}
