//! What goes wrong on the executor and how the user hears of it.
use crate::common::*;
use rsx_capture::{ErrorKind, FaultPoint, SessionError, Tier};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn a_failed_launch_loses_nothing() {
    let w = World::new(Tier::Compiled);
    let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
    w.session.inject(FaultPoint::Launch, 2);
    for _ in 0..3 {
        w.step(&p, &x, 1.0);
        w.cut();
    }
    w.sync().unwrap();
    assert_eq!(w.values(&p), [15.0]);
    let m = w.session.metrics();
    assert_eq!((m.launch_failures, m.kernels, m.eager_ops), (1, 2, 4));
}

#[test]
fn a_failed_launch_between_calls_loses_nothing() {
    let w = World::new(Tier::Compiled);
    let x = w.tensor(&[1.0]);
    w.session.inject(FaultPoint::Launch, 2);
    let a = w.op("add", &[&x, &x]);
    let b = w.op("triple", &[&a]);
    let c = w.op("mul", &[&b, &a]);
    let d = w.op("triple", &[&c]);
    let e = w.op("add", &[&d, &a]);
    drop((a, b, c, d));
    assert_eq!(w.values(&e), [38.0]);
}

/// A bad batch in a loop: the user's error names op and line, the parameters are those of the last good step, and
/// training goes on.
#[test]
fn a_users_error_is_raised_once_and_costs_one_step() {
    for tier in [Tier::Eager, Tier::Auto, Tier::Compiled] {
        let w = World::new(tier);
        let p = w.tensor(&[1.0]);
        let step = |x: f32| {
            let x = w.tensor(&[x]);
            let ok = w.at(42, "positive", &[&x], None).unwrap();
            let loss = w.step(&p, &ok, 1.0);
            w.cut();
            loss
        };
        (0..3).for_each(|_| drop(step(1.0)));
        assert_eq!(w.values(&p), [15.0]);
        let bad = step(-1.0);
        // Steps recorded before anybody looked are void too.
        let after = step(1.0);
        let e = w.read(&bad).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Index, "{tier:?}");
        assert_eq!(e.to_string(), "index -1 is out of bounds\n(rsx: in test::positive, called at test.py:42 (f))");
        // Values that never came to be raise it again, whenever they are used.
        for lost in [&bad, &after, &w.op("add", &[&bad, &p])] {
            assert_eq!(w.read(lost).unwrap_err().to_string(), e.to_string());
        }
        // The parameter is what it was, and the device is fine.
        w.sync().unwrap();
        assert_eq!(w.values(&p), [15.0]);
        let loss = step(1.0);
        assert_eq!((w.values(&loss), w.values(&p)), (vec![16.0], vec![31.0]));
        assert_eq!(w.session.metrics().faults, 1);
    }
}

#[test]
fn synchronize_raises_what_nobody_reads() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[-1.0]);
    let good = w.op("add", &[&x, &x]);
    let before = w.values(&good);
    let bad = w.op("positive", &[&x]);
    w.cut();
    // An older value can still be read: its segment is not the one that failed.
    assert_eq!(w.values(&good), before);
    assert!(matches!(w.sync(), Err(SessionError::Fault { .. })));
    w.sync().unwrap();
    assert!(w.read(&bad).is_err());
}

#[test]
fn an_unread_error_is_raised_at_the_next_read_of_the_segment() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[-1.0]);
    let bad = w.op("positive", &[&x]);
    let good = w.op("add", &[&x, &x]);
    assert!(w.read(&good).is_err());
    assert_eq!(w.values(&good), [-2.0]);
    drop(bad);
}

#[test]
fn overwriting_revives() {
    for tier in [Tier::Eager, Tier::Compiled] {
        let w = World::new(tier);
        let x = w.tensor(&[-1.0]);
        let bad = w.op("positive", &[&x]);
        assert!(w.read(&bad).is_err());
        w.do_("zero_", &[&bad]);
        w.do_("add_", &[&bad, &x]);
        assert_eq!(w.values(&bad), [-1.0], "{tier:?}");
        let bad = w.op("positive", &[&x]);
        assert!(w.read(&bad).is_err());
        w.upload(&bad, &[5.0]);
        assert_eq!(w.values(&bad), [5.0]);
    }
}

#[test]
fn a_run_that_fails_on_the_way_poisons_what_it_overwrote() {
    let w = World::new(Tier::Compiled);
    for donate in [true, false] {
        w.device.take_donations.store(donate, SeqCst);
        w.session.clear_cache();
        let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
        w.device.fail_runs.store(1, SeqCst);
        let loss = w.step(&p, &x, 1.0);
        w.cut();
        let e = w.read(&loss).unwrap_err();
        assert!(
            e.to_string().starts_with("the device caught fire\n(rsx: in aten::mul.Tensor, called at test.py:1 (f))"),
            "{e}"
        );
        // In place: the value is gone. Else it is what it was.
        assert_eq!(w.read(&p).ok(), (!donate).then(|| vec![1.0]));
        w.upload(&p, &[1.0]);
        w.step(&p, &x, 1.0);
        assert_eq!(w.values(&p), [3.0]);
    }
}

#[test]
fn a_run_that_fails_before_it_overwrote_anything_runs_op_by_op() {
    let w = World::new(Tier::Compiled);
    let (p, x) = (w.tensor(&[1.0]), w.tensor(&[1.0]));
    w.device.refuse_runs.store(1, SeqCst);
    let loss = w.step(&p, &x, 1.0);
    assert_eq!((w.values(&loss), w.values(&p)), (vec![2.0], vec![3.0]));
    let m = w.session.metrics();
    assert_eq!((m.eager_ops, m.kernels, m.faults), (4, 0, 0));
}

#[test]
fn a_panic_is_an_internal_error() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    let bad = w.op("panic", &[&x]);
    let e = w.read(&bad).unwrap_err();
    assert_eq!((e.kind(), e.to_string().lines().next().unwrap()), (ErrorKind::Internal, "a panic: a bug"));
    let y = w.op("add", &[&x, &x]);
    assert_eq!(w.values(&y), [2.0]);
}

#[test]
fn out_of_memory_names_op_and_bytes() {
    for (tier, op) in [(Tier::Eager, "aten::add"), (Tier::Compiled, "aten::add")] {
        let w = World::new(tier);
        let x = w.tensor(&[1.0; 256]);
        w.device.set_limit(1500);
        let y = w.op("add", &[&x, &x]);
        let e = w.read(&y).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfMemory);
        assert!(e.to_string().contains("1024 bytes") && e.to_string().contains(op), "{e}");
        assert!(w.device.released.load(SeqCst) > 0, "the cache was given back first");
        w.device.set_limit(0);
        let y = w.op("add", &[&x, &x]);
        assert_eq!(w.values(&y), [2.0; 256]);
    }
}

#[test]
fn a_short_host_allocation_waits_for_the_executor() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0; 256]);
    let y = w.op("add", &[&x, &x]);
    drop((x, y));
    // 1024 bytes are held by the open trace; the upload needs them back.
    w.device.set_limit(1500);
    let z = w.tensor(&[3.0; 256]);
    assert_eq!(w.values(&z), [3.0; 256]);
    let e = w.session.upload(&w.empty(512).storage, &[0; 2048], HERE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
}

#[test]
fn injected_out_of_memory_is_recovered_from_by_the_host() {
    let w = World::new(Tier::Eager);
    w.session.inject(FaultPoint::Oom, 1);
    assert_eq!(w.values(&w.tensor(&[1.0])), [1.0]);
}

/// A step that lacks memory op by op gets its program at once, known beforehand from the limit or found out on the way.
#[test]
fn what_fits_compiled_does_not_run_short_op_by_op() {
    for (limited, eager_runs) in [(true, 0), (false, 1)] {
        let w = World::new(Tier::Auto);
        let (p, x) = (w.tensor(&[1.0; 256]), w.tensor(&[2.0; 256]));
        let a = w.op("add", &[&x, &x]);
        let b = w.op("mul", &[&a, &x]);
        let c = w.op("add", &[&b, &x]);
        drop((a, b));
        w.do_("add_", &[&p, &c]);
        if limited {
            w.device.set_limit(4 * 1024 - 100); // two values at once are too many
        } else {
            w.session.inject(FaultPoint::Oom, 3);
        }
        assert_eq!((w.values(&p), w.values(&c)), (vec![11.0; 256], vec![10.0; 256]));
        let m = w.session.metrics();
        assert_eq!((m.compiles, m.eager_runs, m.faults, m.kernels > 0), (1, eager_runs, 0, true), "{limited}");
    }
}

/// The same where small storages that existed have been written to, and one that nobody uses any more, by then.
#[test]
fn a_run_that_lacks_memory_is_undone() {
    let w = World::new(Tier::Auto);
    let (p, x) = (w.tensor(&[1.0; 256]), w.tensor(&[2.0; 256]));
    let (count, seed) = (w.tensor(&[5.0]), w.tensor(&[3.0]));
    w.sync().unwrap();
    w.do_("add_", &[&count, &seed]);
    drop(seed);
    let a = w.op("add", &[&x, &x]);
    let b = w.op("mul", &[&a, &x]);
    let c = w.op("add", &[&b, &x]);
    drop((a, b));
    w.do_("add_", &[&p, &c]);
    w.device.set_limit(1 << 20); // enough, but not for what is injected
    w.session.inject(FaultPoint::Oom, 3);
    assert_eq!((w.values(&count), w.values(&p), w.values(&c)), (vec![8.0], vec![11.0; 256], vec![10.0; 256]));
    let m = w.session.metrics();
    assert_eq!((m.compiles, m.eager_runs, m.faults, m.kernels > 0), (1, 1, 0, true));
}

/// Neither way has enough memory: one error, however many ops lack it; what existed is as it was, and the next step works.
#[test]
fn a_segment_without_memory_is_one_error() {
    for tier in [Tier::Eager, Tier::Auto, Tier::Compiled] {
        let w = World::new(tier);
        let (p, x) = (w.tensor(&[1.0; 256]), w.tensor(&[2.0; 256]));
        let step = || {
            let a = w.op("add", &[&x, &x]);
            let b = w.op("mul", &[&x, &x]);
            w.do_("add_", &[&p, &x]);
            w.cut();
            (a, b)
        };
        w.device.set_limit(2 * 1024 + 100);
        let (a, b) = step();
        let e = w.read(&p).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{tier:?}");
        let m = w.session.metrics();
        assert_eq!((m.faults, w.values(&p)), (1, vec![1.0; 256]), "{tier:?}");
        w.sync().unwrap();
        for lost in [&a, &b] {
            assert_eq!(w.read(lost).unwrap_err().to_string(), e.to_string());
        }
        w.device.set_limit(0);
        let (a, b) = step();
        assert_eq!((w.values(&p), w.values(&a), w.values(&b)), (vec![3.0; 256], vec![4.0; 256], vec![4.0; 256]));
    }
}

/// Memory that runs short after a parameter was written: no later write of the segment happens.
#[test]
fn nothing_is_written_after_memory_ran_short() {
    let w = World::new(Tier::Eager);
    let (p, x) = (w.tensor(&[1.0]), w.tensor(&[2.0]));
    w.do_("add_", &[&p, &x]);
    w.session.inject(FaultPoint::Oom, 1);
    let a = w.op("add", &[&x, &x]);
    let b = w.op("mul", &[&x, &x]);
    w.do_("mul_", &[&p, &x]);
    w.cut();
    assert_eq!(w.read(&p).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!((w.values(&p), w.values(&b)), (vec![3.0], vec![4.0]));
    assert!(w.read(&a).is_err());
    w.do_("mul_", &[&p, &x]);
    assert_eq!(w.values(&p), [6.0]);
}
