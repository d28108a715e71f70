//! What runs where: tiers, donation, live results, call nodes, keys.
use crate::common::*;
use rsx_capture::{FaultPoint, Options, Tier};
use std::sync::atomic::Ordering::SeqCst;

const TIERS: [Tier; 3] = [Tier::Eager, Tier::Auto, Tier::Compiled];

/// Eight steps of the little loop, computed on the spot.
fn expected() -> (Vec<f32>, Vec<f32>) {
    let (mut p, mut losses) = (vec![1.0f32, 2.0, -3.0], Vec::new());
    for step in 0..8 {
        let x = [0.5f32, step as f32, 1.0];
        let loss: Vec<f32> = p.iter().zip(x).map(|(p, x)| p * x + x).collect();
        for (p, l) in p.iter_mut().zip(&loss) {
            *p += l * (0.1 * f64::from(step)) as f32;
        }
        losses.push(loss[0]);
    }
    (p, losses)
}

#[test]
fn tiers_agree() {
    for tier in TIERS {
        for donate in [true, false] {
            let w = World::new(tier);
            w.device.take_donations.store(donate, SeqCst);
            let p = w.tensor(&[1.0, 2.0, -3.0]);
            let mut losses = Vec::new();
            for step in 0..8 {
                let x = w.tensor(&[0.5, step as f32, 1.0]);
                let loss = w.step(&p, &x, 0.1 * f64::from(step));
                w.cut();
                losses.push(w.values(&loss)[0]);
            }
            assert_eq!((w.values(&p), losses), expected(), "{tier:?} donate={donate}");
            let m = w.session.metrics();
            assert_eq!((m.segments, m.records), (8, 32));
            match tier {
                Tier::Eager => assert_eq!((m.eager_runs, m.eager_ops, m.compiles), (8, 32, 0)),
                // The second run is compiled already if the compile is quicker than the executor.
                Tier::Auto => assert!(m.eager_runs >= 1 && m.compiles <= 1),
                Tier::Compiled => {
                    assert_eq!((m.eager_runs, m.eager_ops, m.compiles), (0, 0, 1));
                    assert_eq!((m.cache_hits, m.kernels), (7, 8));
                }
            }
        }
    }
}

#[test]
fn donated_parameters_stay_in_place() {
    for donate in [true, false] {
        let w = World::new(Tier::Compiled);
        w.device.take_donations.store(donate, SeqCst);
        let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
        w.sync().unwrap();
        let address = || p.storage.state().buffer.as_ref().unwrap().ptr();
        let before = address();
        for _ in 0..3 {
            w.step(&p, &x, 0.5);
            w.cut();
        }
        w.sync().unwrap();
        if donate {
            assert_eq!(address(), before);
        }
        assert_eq!(w.values(&p), [5.75]);
    }
}

#[test]
fn what_nobody_reads_is_not_computed() {
    let w = World::new(Tier::Eager);
    let (x, y) = (w.tensor(&[1.0]), w.tensor(&[2.0]));
    let kept = w.op("add", &[&x, &y]);
    let dropped = w.op("mul", &[&x, &y]);
    let feeds_kept = w.op("mul", &[&y, &y]);
    w.do_("add_", &[&kept, &feeds_kept]);
    let feeds_dropped = w.op("triple", &[&x]);
    w.do_("add_", &[&dropped, &feeds_dropped]);
    drop((dropped, feeds_dropped, feeds_kept));
    w.sync().unwrap();
    assert_eq!((w.engine.count("add"), w.engine.count("mul"), w.engine.count("triple")), (1, 1, 0));
    assert_eq!(w.engine.count("add_"), 1);
    assert_eq!(w.values(&kept), [7.0]);
}

#[test]
fn gradients_freed_before_the_pending_cut_are_not_computed() {
    // optimiser step, then zero_grad, then the next forward: the cut comes with the forward's first op.
    let w = World::new(Tier::Eager);
    let (p, x) = (w.tensor(&[1.0]), w.tensor(&[2.0]));
    let grad = w.op("mul", &[&p, &x]);
    w.do_("add_", &[&p, &x]);
    w.session.cut_before_next(rsx_capture::CutCause::OptimizerStep, HERE).unwrap();
    assert_eq!(w.session.metrics().segments, 0);
    drop(grad);
    let y = w.op("add", &[&p, &p]);
    let m = w.session.metrics();
    assert_eq!((m.segments, m.cuts["optimizer_step"]), (1, 1));
    assert_eq!(w.values(&y), [6.0]);
    assert_eq!(w.engine.count("mul"), 0);
}

#[test]
fn live_results_are_part_of_the_key() {
    let w = World::new(Tier::Compiled);
    let x = w.tensor(&[1.0]);
    let run = |keep: bool| {
        let a = w.op("add", &[&x, &x]);
        let b = w.op("mul", &[&a, &x]);
        let a = keep.then_some(a);
        w.cut();
        (a.map(|a| w.values(&a)), w.values(&b))
    };
    assert_eq!(run(false), (None, vec![2.0]));
    assert_eq!(run(true), (Some(vec![2.0]), vec![2.0]));
    assert_eq!(run(false), (None, vec![2.0]));
    let m = w.session.metrics();
    assert_eq!((m.compiles, m.cache_hits), (2, 1));
}

#[test]
fn the_sizes_of_storages_are_part_of_the_key() {
    let w = World::new(Tier::Compiled);
    for n in [2, 3, 2] {
        let x = w.tensor(&vec![1.0; n]);
        let y = w.op("add", &[&x, &x]);
        assert_eq!(w.values(&y), vec![2.0; n]);
    }
    assert_eq!(w.session.metrics().compiles, 2);
}

#[test]
fn numbers_are_not_part_of_the_key() {
    let w = World::new(Tier::Compiled);
    let x = w.tensor(&[2.0]);
    for s in [0.0, 1.0, 0.5, 1e-3] {
        let y = w.scale(&x, s);
        assert_eq!(w.values(&y), [(2.0 * s) as f32]);
    }
    assert_eq!(w.session.metrics().compiles, 1);
}

#[test]
fn a_background_compile_takes_over() {
    let w = World::new(Tier::Auto);
    w.device.compile_door.close();
    let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
    let step = || {
        w.step(&p, &x, 1.0);
        w.cut();
        w.sync().unwrap();
    };
    step();
    assert_eq!(w.device.compile_door.arrivals(), 0, "what runs once is not compiled");
    step();
    w.device.compile_door.wait_for_arrivals(1);
    (0..3).for_each(|_| step());
    let m = w.session.metrics();
    assert_eq!((m.eager_runs, m.cache_hits, m.kernels), (5, 0, 0));
    w.device.compile_door.open();
    until("the compile", || w.session.metrics().compiles == 1);
    (0..3).for_each(|_| step());
    let m = w.session.metrics();
    assert_eq!((m.eager_runs, m.cache_hits, m.kernels), (5, 3, 3));
    assert_eq!(w.device.compile_door.arrivals(), 1);
    // p + 1 doubles at every step.
    assert_eq!(w.values(&p), [511.0]);
}

#[test]
fn a_full_compile_queue_tries_again() {
    let w = World::with(Options { compile_queue: 1, ..Options::default() });
    w.device.compile_door.close();
    let x = w.tensor(&[1.0]);
    let run = |n: usize| {
        let y = (0..n).fold(w.op("add", &[&x, &x]), |y, _| w.op("add", &[&y, &x]));
        w.cut();
        w.values(&y)
    };
    for _ in 0..2 {
        (0..6).for_each(|n| assert_eq!(run(n), [2.0 + n as f32]));
    }
    w.device.compile_door.open();
    until("six compiles", || {
        (0..6).for_each(|n| assert_eq!(run(n), [2.0 + n as f32]));
        w.session.metrics().compiles == 6
    });
}

#[test]
fn call_nodes_run_in_order_inside_the_program() {
    for tier in TIERS {
        for adopts in [false, true] {
            let w = World::new(tier);
            w.engine.adopts.store(adopts, SeqCst);
            let x = w.tensor(&[1.0, 2.0]);
            for _ in 0..3 {
                let a = w.op("add", &[&x, &x]);
                let b = w.op("triple", &[&a]);
                w.do_("add_", &[&b, &a]);
                let c = w.op("triple", &[&b]);
                let d = w.op("mul", &[&c, &a]);
                drop((a, c));
                w.cut();
                assert_eq!((w.values(&b), w.values(&d)), (vec![8.0, 16.0], vec![48.0, 192.0]));
            }
            if tier == Tier::Compiled {
                let m = w.session.metrics();
                assert_eq!((m.calls["test::triple"], m.kernels, m.compiles), (6, 9, 1));
                let rows = w.session.report().snapshot().fallbacks;
                assert_eq!(rows.iter().map(|r| r.count).sum::<u64>(), 6);
                assert_eq!(rows[0].frame.as_ref().unwrap().to_string(), "test.py:1 (f)");
            }
            drop(x);
            w.sync().unwrap();
            assert_eq!(w.engine.adopted.load(SeqCst), 0, "adopted memory is given back");
        }
    }
}

#[test]
fn intermediates_are_freed_on_the_way() {
    for tier in [Tier::Eager, Tier::Compiled] {
        let w = World::new(tier);
        let n = 1000;
        let x = w.tensor(&vec![1.0; n]);
        // Calls, so that the compiled form has many steps.
        let y = (0..50).fold(w.op("triple", &[&x]), |y, _| w.op("triple", &[&y]));
        w.cut();
        w.sync().unwrap();
        let m = w.session.metrics();
        assert!(m.peak_bytes <= 4 * 4 * n as u64, "{tier:?}: {} bytes", m.peak_bytes);
        drop((x, y));
        assert_eq!(w.session.metrics().live_bytes, 0);
    }
}

#[test]
fn the_tier_can_be_changed() {
    let w = World::new(Tier::Compiled);
    let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
    for tier in [Tier::Compiled, Tier::Eager, Tier::Auto, Tier::Eager] {
        w.session.set_tier(tier);
        w.step(&p, &x, 1.0);
        w.sync().unwrap();
    }
    let m = w.session.metrics();
    assert_eq!((m.compiles, m.eager_runs, m.kernels, m.cache_hits), (1, 2, 2, 1));
    assert_eq!(w.values(&p), [31.0]);
}

#[test]
fn frames_are_known_for_every_later_trace() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[-1.0]);
    for _ in 0..2 {
        let y = w.at(7, "positive", &[&x], None).unwrap();
        let e = w.read(&y).unwrap_err();
        assert_eq!(e.to_string(), "index -1 is out of bounds\n(rsx: in test::positive, called at test.py:7 (f))");
    }
}

#[test]
fn a_failed_compile_means_tier_0() {
    for tier in [Tier::Auto, Tier::Compiled] {
        let w = World::new(tier);
        w.session.inject(FaultPoint::Compile, 1);
        let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
        for _ in 0..4 {
            w.step(&p, &x, 1.0);
            w.sync().unwrap();
        }
        until("the compile", || w.session.metrics().compiles == 1);
        w.step(&p, &x, 1.0);
        w.sync().unwrap();
        let m = w.session.metrics();
        assert_eq!((m.compiles, m.compile_failures, m.eager_runs), (1, 1, 5));
        assert_eq!(w.values(&p), [63.0]);
    }
}
