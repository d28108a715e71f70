//! Recorded calls run again.
use crate::common::*;
use rsx_capture::{Recording, Replay, ReplayArgs, Tier};
use rsx_lazy::Storage;
use std::sync::Arc;

const TIERS: [Tier; 3] = [Tier::Eager, Tier::Auto, Tier::Compiled];

/// Records `call`, which gives its result; `x` is its argument.
fn record(w: &World, x: &T, call: impl FnOnce(&T) -> T) -> (T, Recording) {
    w.session.recording_begin(HERE).unwrap();
    let out = call(x);
    let mut got = w.session.recording_end(HERE).unwrap();
    assert_eq!(got.len(), 1);
    let mut recording = got.remove(0);
    let fresh = recording.place(&out.storage).unwrap();
    assert!(fresh.made);
    recording.bind(&[&x.storage], vec![fresh.index]);
    (out, recording)
}

fn replay(w: &World, replay: &Arc<Replay>, x: &T) -> Option<T> {
    let storages: [&Arc<Storage>; 1] = [&x.storage];
    let args = ReplayArgs { storages: &storages, seed: 0, offset: 0, frame: HERE };
    let fresh = w.session.replay(replay, &args).unwrap()?;
    fresh.into_iter().next().map(|storage| T { storage })
}

fn make(w: &World, before: &Recording, after: Recording) -> Arc<Replay> {
    Arc::new(Replay::new(&w.session, after, Some(before), 0, 0, 0).unwrap())
}

#[test]
fn steps_replay_without_recording() {
    for tier in TIERS {
        let (w, plain) = (World::new(tier), World::new(Tier::Eager));
        let (param, reference) = (w.tensor(&[1.0, 2.0]), plain.tensor(&[1.0, 2.0]));
        let check = |w: &World, got: &T, values: &[f32]| {
            let x = plain.tensor(values);
            let want = plain.step(&reference, &x, 0.5);
            assert_eq!(w.values(got), plain.values(&want), "{tier:?}");
        };
        let mut recordings = Vec::new();
        for values in [[1.0, 0.5], [2.0, -1.0]] {
            let x = w.tensor(&values);
            let (out, recording) = record(&w, &x, |x| w.step(&param, x, 0.5));
            check(&w, &out, &values);
            recordings.push(recording);
        }
        let after = recordings.pop().unwrap();
        assert!(after.is_like(&recordings[0]) && after.differences(&recordings[0]).is_empty());
        let r = make(&w, &recordings[0], after);
        let records = w.session.metrics().records;
        for values in [[0.25, 1.0], [-1.0, 3.0], [2.0, 2.0]] {
            let x = w.tensor(&values);
            let out = replay(&w, &r, &x).unwrap();
            check(&w, &out, &values);
        }
        assert_eq!(w.values(&param), plain.values(&reference));
        let m = w.session.metrics();
        assert_eq!((m.records - records, m.replays), (0, 3));
    }
}

#[test]
fn numbers_that_differ_are_named_and_set() {
    for tier in TIERS {
        let w = World::new(tier);
        let x = w.tensor(&[1.0, 2.0]);
        let (_, first) = record(&w, &x, |x| w.scale(x, 2.0));
        let (_, second) = record(&w, &x, |x| w.scale(x, 3.0));
        let differences = second.differences(&first);
        let [d] = &differences[..] else { panic!("{differences:?}") };
        assert_eq!((f64::from_bits(d.before), f64::from_bits(d.after), d.op.as_str()), (2.0, 3.0, "aten::mul.Scalar"));
        let word = d.word;
        let r = make(&w, &first, second);
        for factor in [3.0, 5.0, -1.0] {
            r.set_words(&[(word, f64::to_bits(factor))]);
            let got = replay(&w, &r, &x).unwrap();
            assert_eq!(w.values(&got), [factor as f32, 2.0 * factor as f32]);
        }
    }
}

#[test]
fn what_is_gone_or_shared_is_noticed() {
    let w = World::new(Tier::Eager);
    let (x, param) = (w.tensor(&[1.0]), w.tensor(&[4.0]));
    let (_, first) = record(&w, &x, |x| w.op("add", &[x, &param]));
    let (_, second) = record(&w, &x, |x| w.op("add", &[x, &param]));
    let r = make(&w, &first, second);
    assert!(replay(&w, &r, &x).is_some());
    assert!(replay(&w, &r, &param).is_none(), "the argument is a captured tensor");
    drop(param);
    assert!(replay(&w, &r, &x).is_none(), "a captured tensor is gone");
}

#[test]
fn tensors_that_change_are_refused_or_carried() {
    let w = World::new(Tier::Eager);
    let x = w.tensor(&[1.0]);
    let call = || {
        let other = w.tensor(&[2.0]);
        record(&w, &x, |x| w.op("add", &[x, &other])).1
    };
    let (first, second) = (call(), call());
    let refused = Replay::new(&w.session, second, Some(&first), 0, 0, 0).unwrap_err();
    assert!(refused.0.contains("is another one in every call"), "{refused:?}");

    // state = state + x; the result is twice that.
    let mut state = w.tensor(&[0.0]);
    let mut recordings = Vec::new();
    for _ in 0..2 {
        let old = state;
        let mut new = None;
        recordings.push(
            record(&w, &x, |x| {
                let next = w.op("add", &[&old, x]);
                let out = w.op("add", &[&next, &next]);
                new = Some(next);
                drop(old);
                out
            })
            .1,
        );
        state = new.unwrap();
    }
    let after = recordings.pop().unwrap();
    let r = make(&w, &recordings[0], after);
    for n in 3..6 {
        let out = replay(&w, &r, &x).unwrap();
        assert_eq!((w.values(&out), w.values(&state)), (vec![2.0 * n as f32], vec![n as f32]));
    }
}

#[test]
fn recordings_survive_as_bytes() {
    let w = World::new(Tier::Compiled);
    let (x, param) = (w.tensor(&[1.0, 2.0]), w.tensor(&[10.0, 20.0]));
    let (_, recording) = record(&w, &x, |x| {
        let y = w.op("mul", &[x, &param]);
        w.scale(&y, 0.5)
    });
    let bytes = recording.to_bytes();
    let other = World::new(Tier::Compiled);
    let warm = other.tensor(&[1.0, 1.0]);
    other.scale(&other.op("mul", &[&warm, &warm]), 1.0); // registers the ops
    let load = |bytes: &[u8]| Recording::from_bytes(&other.session, bytes, &mut |name| other.known(name));
    let mut loaded = load(&bytes).unwrap();
    assert_eq!(recording.captured().unwrap(), loaded.captured().unwrap());
    let weights = other.tensor(&[10.0, 20.0]);
    loaded.hold(loaded.captured().unwrap()[0], &weights.storage);
    let r = Arc::new(Replay::new(&other.session, loaded, None, 0, 0, 0).unwrap());
    for values in [[1.0, 2.0], [3.0, -4.0]] {
        let x = other.tensor(&values);
        let out = replay(&other, &r, &x).unwrap();
        assert_eq!(other.values(&out), [5.0 * values[0], 10.0 * values[1]]);
    }
    for cut in [0, 7, 20, bytes.len() / 2, bytes.len() - 1] {
        assert!(load(&bytes[..cut]).is_err());
    }
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    assert!(load(&damaged).is_err_and(|e| e.contains("damaged")));
}
