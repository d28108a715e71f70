//! What submitting costs the user's thread: cut, key, look-up and hand-over of a recorded trace whose program is known.
//!
//! `cargo run --release -p rsx-capture --example submit_cost [nodes] [rounds]`
#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use rsx_capture::backend::{Backend, CompileError, MemoryStats, OutOfMemory, RunCost, RunError, Runnable};
use rsx_capture::{CutCause, Identity, Options, Session, Tier};
use rsx_devices::Buffer;
use rsx_lazy::lower::GraphPiece;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Compiles to programs that do nothing.
struct Idle(FakeDevice);
struct Nothing;

impl Runnable for Nothing {
    fn alias(&self, _: usize) -> Option<usize> {
        None
    }
    fn run(&self, _: &[Buffer], _: &[u64], _: &[Buffer]) -> Result<(), RunError> {
        Ok(())
    }
    fn cost(&self) -> RunCost {
        RunCost::default()
    }
    fn arity(&self) -> (usize, usize, usize) {
        (0, 0, 0)
    }
}

impl Backend for Idle {
    fn compile(&self, _: &GraphPiece) -> Result<Arc<dyn Runnable>, CompileError> {
        Ok(Arc::new(Nothing))
    }
    fn restore(&self, _: &[u8]) -> Result<Arc<dyn Runnable>, String> {
        Ok(Arc::new(Nothing))
    }
    fn identity(&self) -> Identity {
        Identity::default()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.allocate(bytes)
    }
    fn release_cached(&self) {}
    fn memory(&self) -> MemoryStats {
        self.0.memory()
    }
    fn reset_peak(&self) {}
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let (nodes, rounds) = (args.next().unwrap_or(100usize), args.next().unwrap_or(2000usize));
    let engine = Arc::new(FakeEngine::default());
    let options = Options { tier: Tier::Compiled, ..Options::default() };
    let session = Session::new(Arc::new(Idle(FakeDevice::default())), engine.clone(), options).expect("a session");
    let w = World::over(session, Arc::default(), engine);
    let (p, x) = (w.tensor(&[1.0; 64]), w.tensor(&[2.0; 64]));
    let (mut record, mut submit, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..nodes / 4 {
            w.step(&p, &x, 0.1);
        }
        let recorded = Instant::now();
        w.cut();
        let submitted = Instant::now();
        w.session.synchronize(CutCause::Synchronize, HERE).expect("no fault");
        record.push(recorded - start);
        submit.push(submitted - recorded);
        whole.push(submitted.elapsed());
    }
    let m = w.session.metrics();
    println!("{nodes} nodes, {rounds} rounds, median µs (record includes the fake front end's encoding)");
    println!("record {:.1}  submit {:.1}  wait {:.1}", median(record), median(submit), median(whole));
    println!(
        "executor {:.1} a segment; {} hits, {} compiles",
        m.busy_seconds * 1e6 / rounds as f64,
        m.cache_hits,
        m.compiles
    );
}
