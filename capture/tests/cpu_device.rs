//! The session above the real CPU device: compiled and eager runs agree, steady steps allocate nothing.
mod common;
use common::*;
use rsx_capture::device::DeviceBackend;
use rsx_capture::{FaultPoint, Options, Session, Tier};
use std::sync::{Arc, Mutex, PoisonError};

/// Injected launch failures are the device's, and there is one device: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn world(tier: Tier) -> World {
    let engine = Arc::new(FakeEngine::default());
    let options = Options { tier, ..Options::default() };
    let session = Session::new(Arc::new(DeviceBackend::cpu()), engine.clone(), options).unwrap();
    World::over(session, Arc::default(), engine)
}

#[test]
fn training_on_the_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut results = Vec::new();
    for tier in [Tier::Eager, Tier::Auto, Tier::Compiled] {
        let w = world(tier);
        let n = 1000;
        let ramp: Vec<f32> = (0..n).map(|i| i as f32 * 1e-3).collect();
        let (p, x) = (w.tensor(&ramp), w.tensor(&vec![0.5; n]));
        let mut losses = Vec::new();
        let mut steady = None;
        for step in 0..40 {
            let loss = w.step(&p, &x, 0.01);
            let called = w.op("triple", &[&loss]);
            w.cut();
            losses.push(w.values(&called)[7]);
            if step == 20 {
                steady = Some(w.session.metrics().system_allocations);
            }
        }
        let m = w.session.metrics();
        if tier == Tier::Compiled {
            assert_eq!((m.compiles, m.compile_failures, m.eager_runs, m.calls["test::triple"]), (1, 0, 0, 40));
            assert_eq!(Some(m.system_allocations), steady, "the steady state allocates nothing");
        }
        results.push((losses, w.values(&p)));
    }
    for (losses, p) in &results[1..] {
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs());
        assert!(close(losses, &results[0].0) && close(p, &results[0].1));
    }
}

#[test]
fn faults_on_the_cpu_lose_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let w = world(Tier::Compiled);
    let (p, x) = (w.tensor(&[1.0; 8]), w.tensor(&[1.0; 8]));
    let step = || {
        w.step(&p, &x, 1.0);
        w.sync().unwrap();
    };
    step();
    w.session.inject(FaultPoint::Launch, 1);
    step();
    // The device's own: the first kernel of the program does not start.
    rsx_devices::cpu::fault::fail_launch(1);
    step();
    step();
    assert_eq!(w.values(&p), [31.0; 8]);
    assert_eq!(w.session.metrics().launch_failures, 2);
}
