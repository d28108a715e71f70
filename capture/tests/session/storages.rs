//! Storages as the host uses them: waits, uploads, addresses, sizes.
use crate::common::*;
use rsx_capture::{CutCause, Tier};
use std::sync::atomic::Ordering::SeqCst;

const TIERS: [Tier; 2] = [Tier::Eager, Tier::Compiled];

#[test]
fn reading_waits_for_its_own_segment_only() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    let y = w.op("add", &[&x, &x]);
    w.cut();
    assert_eq!(w.values(&y), [2.0]);
    let waits = w.session.metrics().host_waits;
    w.engine.door.close();
    let z = w.op("mul", &[&y, &y]);
    w.cut();
    w.engine.door.wait_for_arrivals(2);
    // The next segment hangs; y is there.
    assert_eq!(w.values(&y), [2.0]);
    assert_eq!(w.values(&x), [1.0]);
    assert_eq!(w.session.metrics().host_waits, waits, "no wait is counted where there is none");
    w.engine.door.open();
    assert_eq!(w.values(&z), [4.0]);
}

#[test]
fn waits_and_cuts_carry_cause_and_frame() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    w.engine.door.close();
    let y = w.op("add", &[&x, &x]);
    let frame = w.session.frame("train.py", 9, "log");
    std::thread::scope(|s| {
        s.spawn(|| {
            w.engine.door.wait_for_arrivals(1);
            // The executor has begun; the waiting thread still has to notice that it must wait.
            std::thread::sleep(std::time::Duration::from_millis(200));
            w.engine.door.open();
        });
        w.session.wait_for(&y.storage, CutCause::Print, frame).unwrap();
    });
    let snapshot = w.session.report().snapshot();
    let wait = &snapshot.waits[0];
    assert_eq!((wait.cause, wait.count), (CutCause::Print, 1));
    assert_eq!(wait.frame.as_ref().unwrap().to_string(), "train.py:9 (log)");
    assert_eq!(w.session.metrics().cuts.into_iter().collect::<Vec<_>>(), [("print", 1)]);
    w.session.reset_metrics();
    let m = w.session.metrics();
    assert_eq!((m.records, m.segments, m.host_waits, m.cuts.len()), (0, 0, 0, 0));
}

#[test]
fn uploads_do_not_cut_and_pending_readers_see_the_old_contents() {
    for tier in TIERS {
        for exposed in [false, true] {
            let w = World::new(tier);
            let x = w.tensor(&[1.0, 2.0]);
            let address = exposed.then(|| w.session.expose(&x.storage, CutCause::DataPointer, HERE).unwrap());
            w.engine.door.close();
            w.device.run_door.close();
            let a = w.op("add", &[&x, &x]);
            w.cut();
            // In flight: a reads x. Open: b reads x.
            let b = w.op("mul", &[&x, &x]);
            let segments = w.session.metrics().segments;
            w.upload(&x, &[10.0, 20.0]);
            let c = w.op("add", &[&x, &x]);
            w.upload(&x, &[100.0, 200.0]);
            let d = w.op("add", &[&x, &x]);
            assert_eq!(w.session.metrics().segments, segments, "an upload is no cut");
            w.engine.door.open();
            w.device.run_door.open();
            w.sync().unwrap();
            assert_eq!(w.values(&a), [2.0, 4.0]);
            assert_eq!(w.values(&b), [1.0, 4.0], "{tier:?} exposed={exposed}");
            assert_eq!(w.values(&c), [20.0, 40.0]);
            assert_eq!(w.values(&d), [200.0, 400.0]);
            assert_eq!(w.values(&x), [100.0, 200.0]);
            if let Some(address) = address {
                assert_eq!(x.storage.state().buffer.as_ref().unwrap().ptr(), address);
            }
        }
    }
}

#[test]
fn uploads_replace_what_the_open_trace_wrote() {
    for tier in TIERS {
        let w = World::new(tier);
        let x = w.tensor(&[1.0]);
        let y = w.op("add", &[&x, &x]);
        w.do_("add_", &[&y, &x]);
        let reads_y = w.op("mul", &[&y, &y]);
        w.upload(&y, &[7.0]);
        w.do_("add_", &[&y, &x]);
        assert_eq!((w.values(&y), w.values(&reads_y)), (vec![8.0], vec![9.0]), "{tier:?}");
    }
}

#[test]
fn exposed_storages_keep_their_address() {
    for donate in [true, false] {
        for tier in TIERS {
            let w = World::new(tier);
            w.device.take_donations.store(donate, SeqCst);
            let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
            let address = w.session.expose(&p.storage, CutCause::DataPointer, HERE).unwrap();
            for _ in 0..3 {
                w.step(&p, &x, 1.0);
                w.cut();
            }
            assert_eq!(w.values(&p), [15.0]);
            // Wholly replaced, not read: written straight to its place.
            w.do_("zero_", &[&p]);
            w.do_("add_", &[&p, &x]);
            assert_eq!(w.values(&p), [1.0]);
            w.upload(&p, &[4.0]);
            let buffer = w.session.materialize(&p.storage, false, CutCause::DataPointer, HERE).unwrap();
            assert_eq!((buffer.ptr().cast_mut(), floats(&buffer, 1)), (address, vec![4.0]), "{tier:?} donate={donate}");
        }
    }
}

#[test]
fn writing_through_an_address_waits_for_readers() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    let y = w.op("add", &[&x, &x]);
    let buffer = w.session.materialize(&x.storage, true, CutCause::HostWrite, HERE).unwrap();
    buffer.write(0, &bytes_of(&[50.0])).unwrap();
    assert_eq!((w.values(&y), w.values(&x)), (vec![2.0], vec![50.0]));
    assert_eq!(w.session.metrics().cuts["host_write"], 1);
}

#[test]
fn memory_without_a_value() {
    for tier in TIERS {
        let w = World::new(tier);
        let x = w.empty(2);
        assert_eq!(w.values(&x), [0.0, 0.0]);
        let y = w.op("add", &[&x, &x]);
        w.do_("zero_", &[&x]);
        w.sync().unwrap();
        assert_eq!((w.values(&y).len(), w.values(&x)), (2, vec![0.0, 0.0]));
        let nothing = w.tensor(&[]);
        let sum = w.op("add", &[&nothing, &nothing]);
        assert_eq!(w.values(&sum), []);
    }
}

#[test]
fn resizing_keeps_what_fits() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0, 2.0]);
    let y = w.op("add", &[&x, &x]);
    w.session.resize(&x.storage, 16, HERE).unwrap();
    assert_eq!(w.values(&x)[..2], [1.0, 2.0]);
    assert_eq!(w.values(&y), [2.0, 4.0]);
    w.session.resize(&x.storage, 4, HERE).unwrap();
    assert_eq!(w.values(&x), [1.0]);
    let z = w.op("add", &[&x, &x]);
    w.session.resize(&x.storage, 0, HERE).unwrap();
    assert_eq!(w.values(&z), [2.0]);
    drop((y, z));
    w.sync().unwrap();
    assert_eq!(w.session.metrics().live_bytes, 0, "resize_(0) frees");
    w.session.resize(&x.storage, 8, HERE).unwrap();
    w.upload(&x, &[5.0, 6.0]);
    assert_eq!(w.values(&x), [5.0, 6.0]);
}

#[test]
fn wrong_sizes_are_errors() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    assert!(w.session.upload(&x.storage, &[0; 3], HERE).is_err());
    let mut dst = [0; 4];
    assert!(w.session.read(&x.storage, 1, &mut dst, CutCause::Item, HERE).is_err());
    assert!(w.session.read(&x.storage, usize::MAX, &mut dst, CutCause::Item, HERE).is_err());
    w.session.read(&x.storage, 2, &mut dst[..2], CutCause::Item, HERE).unwrap();
    assert_eq!(dst[..2], 1.0f32.to_le_bytes()[2..]);
}

#[test]
fn events_order_by_segments() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    let start = w.session.event_record(HERE).unwrap();
    assert!(w.session.event_done(start));
    w.engine.door.close();
    let y = w.op("add", &[&x, &x]);
    let middle = w.session.event_record(HERE).unwrap();
    assert!(!w.session.event_done(middle));
    w.engine.door.open();
    w.session.event_wait(middle, HERE).unwrap();
    drop(y);
    let z = w.op("mul", &[&x, &x]);
    let end = w.session.event_record(HERE).unwrap();
    w.session.event_wait(end, HERE).unwrap();
    assert!(w.session.event_elapsed(middle, end).is_some());
    drop(z);
}
