//! Explanations of compiles, as text.
mod common;
use common::*;
use rsx_capture::{Options, Tier};

/// `rsx.explain()` with times replaced.
fn explain(w: &World) -> String {
    let text = w.session.explain();
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let time = |w: &str| w.trim_start_matches('(').parse::<f64>().is_ok() && w.contains('.');
        out.extend(words.iter().map(|&w| {
            if time(w) { format!("{}T ", if w.starts_with('(') { "(" } else { "" }) } else { format!("{w} ") }
        }));
        out.pop();
        out.push('\n');
    }
    out
}

fn check(w: &World, want: &str) {
    assert_eq!(explain(w), want.trim_start_matches('\n'));
}

#[test]
fn sizes_in_the_users_terms() {
    let w = World::new(Tier::Compiled);
    let run = |n: usize| {
        let (x, p) = (w.tensor(&vec![1.0; n]), w.tensor(&vec![1.0; n]));
        let y = w.at(12, "mul", &[&x, &p], None).unwrap();
        w.at(13, "add_", &[&p, &y], None);
        w.cut();
        w.sync().unwrap();
    };
    [4, 6, 4].into_iter().for_each(run);
    check(
        &w,
        "
Compiles: 2 (T ms), 0 from disk, 0 failed
  #1 compiled 2 ops from aten::mul.Tensor at test.py:12 (f), T ms
       the first segment
  #2 compiled 2 ops from aten::mul.Tensor at test.py:12 (f), T ms
       input 1 (`self` of aten::mul.Tensor at test.py:12 (f)): 4 became 6
       input 2 (`other` of aten::mul.Tensor at test.py:12 (f)): 4 became 6
",
    );
}

#[test]
fn ops_results_and_calls() {
    let w = World::new(Tier::Compiled);
    let (x, p) = (w.tensor(&[1.0; 4]), w.tensor(&[1.0; 4]));
    let run = |log: bool, keep: bool, which: &str| {
        let y = w.at(20, which, &[&x, &p], None).unwrap();
        let z = w.at(21, "mul", &[&y, &p], None).unwrap();
        let kept = keep.then_some(y);
        let logged = log.then(|| w.at(22, "add", &[&z, &z], None).unwrap());
        w.cut();
        w.sync().unwrap();
        drop((kept, logged, z));
    };
    run(false, false, "add");
    run(false, true, "add");
    run(true, false, "add");
    run(false, false, "mul");
    check(
        &w,
        "
Compiles: 4 (T ms), 0 from disk, 0 failed
  #1 compiled 2 ops from aten::add.Tensor at test.py:20 (f), T ms
       the first segment
  #2 compiled 2 ops from aten::add.Tensor at test.py:20 (f), T ms
       the result of aten::add.Tensor at test.py:20 (f) is kept now
  #3 compiled 3 ops from aten::add.Tensor at test.py:20 (f), T ms
       1 more ops, from aten::add.Tensor at test.py:22 (f) on
  #4 compiled 2 ops from aten::mul.Tensor at test.py:20 (f), T ms
       op 1 of 2: aten::add.Tensor at test.py:20 (f) became aten::mul.Tensor at test.py:20 (f)
",
    );
}

#[test]
fn the_ledger_is_bounded() {
    let w = World::with(Options { tier: Tier::Compiled, cache_capacity: 16, ..Options::default() });
    for n in 1..=300usize {
        let x = w.tensor(&vec![1.0; n]);
        w.values(&w.op("add", &[&x, &x]));
    }
    let text = w.session.explain();
    assert!(text.contains("(44 older ones are not shown)\n  #45 "), "{text}");
    assert_eq!(text.lines().count(), 2 + 2 * 256);
    w.session.reset_metrics();
    check(&w, "Compiles: 0 (T ms), 0 from disk, 0 failed\n");
}
