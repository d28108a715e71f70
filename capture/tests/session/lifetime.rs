//! Threads, backpressure, shutdown, fork.
use crate::common::*;
use rsx_capture::{CutCause, Options, SessionError, Tier};
use rsx_lazy::record::Limits;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn segments_run_in_order() {
    for tier in [Tier::Eager, Tier::Auto, Tier::Compiled] {
        let w = World::new(tier);
        let p = w.tensor(&[0.0]);
        let (two, one) = (w.tensor(&[2.0]), w.tensor(&[1.0]));
        let mut expected = 0.0f32;
        for k in 0..60 {
            // Mixed lengths, so that some segments are new and some recur.
            for _ in 0..k % 4 + 1 {
                w.do_("mul_", &[&p, &two]);
                w.do_("add_", &[&p, &one]);
                expected = expected * 2.0 + 1.0;
            }
            w.cut();
            if k % 7 == 6 {
                w.do_("zero_", &[&p]);
                expected = 0.0;
            }
        }
        assert_eq!(w.values(&p), [expected], "{tier:?}");
    }
}

#[test]
fn many_threads_record() {
    let w = World::with(Options { limits: Limits { nodes: 50, bytes: 1 << 20 }, ..Options::default() });
    let x = w.tensor(&[1.0]);
    std::thread::scope(|s| {
        for t in 0..4 {
            let (w, x) = (&w, &x);
            s.spawn(move || {
                let p = w.tensor(&[t as f32]);
                for k in 0..200 {
                    w.do_("add_", &[&p, x]);
                    let y = w.op("add", &[&p, x]);
                    match k % 5 {
                        0 => w.cut(),
                        1 => assert_eq!(w.values(&y), [t as f32 + k as f32 + 2.0]),
                        2 => w.upload(&p, &[t as f32 + k as f32 + 1.0]),
                        _ => {}
                    }
                }
                assert_eq!(w.values(&p), [t as f32 + 200.0]);
            });
        }
    });
    let m = w.session.metrics();
    assert_eq!(m.records, 1600);
    assert!(m.segments > 16);
}

#[test]
fn a_cut_waits_when_too_much_is_in_flight() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    w.engine.door.close();
    let cuts = AtomicUsize::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..5 {
                let y = w.op("add", &[&x, &x]);
                w.cut();
                cuts.fetch_add(1, SeqCst);
                drop(y);
            }
        });
        until("two cuts", || cuts.load(SeqCst) == 2);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(cuts.load(SeqCst), 2, "the third waits");
        // Nobody else is held up: recording goes on, and so do waits for old values.
        let z = w.op("mul", &[&x, &x]);
        assert_eq!(w.values(&x), [1.0]);
        w.engine.door.open();
        until("all cuts", || cuts.load(SeqCst) == 5);
        drop(z);
    });
    assert!(w.session.metrics().throttles >= 1);
}

#[test]
fn waits_release_the_front_ends_locks() {
    static HELD: AtomicBool = AtomicBool::new(true);
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    fn section(f: &mut dyn FnMut()) {
        HELD.store(false, SeqCst);
        RELEASED.fetch_add(1, SeqCst);
        f();
        HELD.store(true, SeqCst);
    }
    let w = World::new(Tier::Eager);
    w.session.set_blocking_section(section);
    let x = w.tensor(&[1.0]);
    w.engine.door.close();
    let y = w.op("add", &[&x, &x]);
    std::thread::scope(|s| {
        s.spawn(|| {
            until("the release", || !HELD.load(SeqCst));
            w.engine.door.open();
        });
        assert_eq!(w.values(&y), [2.0]);
    });
    assert_eq!(RELEASED.load(SeqCst), 1);
    assert!(HELD.load(SeqCst));
    assert_eq!(w.values(&y), [2.0]);
    assert_eq!(RELEASED.load(SeqCst), 1, "nothing to wait for, nothing released");
}

fn quick(what: &str, timeout: Duration, f: impl FnOnce()) {
    let start = Instant::now();
    f();
    assert!(start.elapsed() < timeout, "{what} took {:?}", start.elapsed());
}

#[test]
fn shutdown_when_idle_or_recording() {
    let w = World::new(Tier::Auto);
    let x = w.tensor(&[1.0]);
    let y = w.op("add", &[&x, &x]);
    quick("shutdown", Duration::from_secs(5), || assert!(w.session.shutdown(Duration::from_secs(10))));
    assert!(matches!(w.read(&y), Err(SessionError::Closed)));
    assert!(matches!(w.sync(), Err(SessionError::Closed)));
    assert!(w.session.shutdown(Duration::from_secs(1)), "twice is harmless");
    // Recording goes on without harm.
    let z = w.op("add", &[&y, &x]);
    w.session.recorder().cut("mark_step", HERE);
    drop((z, y, x, w));
}

#[test]
fn shutdown_finishes_what_is_in_flight() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    w.engine.door.close();
    let y = w.op("add", &[&x, &x]);
    w.cut();
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            w.engine.door.open();
        });
        assert!(w.session.shutdown(Duration::from_secs(10)));
    });
    assert_eq!(floats(y.storage.state().buffer.as_ref().unwrap(), 1), [2.0]);
}

#[test]
fn shutdown_leaves_a_stuck_compile_behind() {
    let w = World::new(Tier::Auto);
    w.device.compile_door.close();
    let x = w.tensor(&[1.0]);
    for _ in 0..2 {
        let y = w.op("add", &[&x, &x]);
        w.cut();
        drop(y);
    }
    w.device.compile_door.wait_for_arrivals(1);
    quick("shutdown", Duration::from_secs(5), || assert!(!w.session.shutdown(Duration::from_millis(50))));
    w.device.compile_door.open();
    until("the compile's end", || w.session.shutdown(Duration::from_millis(50)));
}

#[test]
fn shutdown_abandons_a_stuck_executor() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    w.engine.door.close();
    let (a, b) = (w.op("add", &[&x, &x]), w.op("mul", &[&x, &x]));
    w.cut();
    let c = w.op("add", &[&a, &b]);
    w.cut();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| w.session.wait_for(&c.storage, CutCause::Item, HERE));
        w.engine.door.wait_for_arrivals(1);
        quick("shutdown", Duration::from_secs(5), || assert!(!w.session.shutdown(Duration::from_millis(50))));
        w.engine.door.open();
        // The waiter is not left hanging, whichever way it ends.
        let _ = waiter.join().unwrap();
    });
    until("the executor's end", || w.session.shutdown(Duration::from_millis(50)));
    assert_eq!(w.engine.count("add") + w.engine.count("mul"), 2, "the second segment was dropped");
}

#[test]
fn a_forked_child_gets_a_clear_error() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    w.session.mark_forked();
    let bad = |r: Result<(), SessionError>| assert!(matches!(r, Err(SessionError::BadFork)));
    bad(w.sync());
    bad(w.session.cut(CutCause::MarkStep, HERE));
    bad(w.session.wait_for(&x.storage, CutCause::Item, HERE));
    bad(w.session.upload(&x.storage, &[0; 4], HERE));
    bad(w.session.resize(&x.storage, 8, HERE));
    bad(w.session.expose(&x.storage, CutCause::DataPointer, HERE).map(drop));
    bad(w.session.event_record(HERE).map(drop));
    let y = w.op("add", &[&x, &x]);
    w.session.recorder().cut("mark_step", HERE);
    quick("drop", Duration::from_secs(1), || drop((y, w)));
}
