//! What holds for every op: its type rule, evaluator, text form and verifier agree.
use super::{Sample, random_graph, samples};
use crate::interp::{Tensor, eval};
use crate::ir::OpKind;
use crate::{text, verify};

fn check(sample: &Sample) {
    let Sample { name, graph, args } = sample;
    assert_eq!(verify::check(graph), Ok(()), "{name}\n{graph}");
    let printed = graph.to_string();
    let parsed = text::parse(&printed).unwrap_or_else(|e| panic!("{name}: {e}\n{printed}"));
    assert_eq!(parsed, *graph, "{name}\n{printed}");
    assert_eq!(parsed.to_string(), printed, "{name}");
    let results = eval(graph, args).unwrap_or_else(|e| panic!("{name}: {e}\n{printed}"));
    let types: Vec<_> = results.iter().map(|t| t.ty.clone()).collect();
    assert_eq!(types, graph.result_types(), "{name}\n{printed}");
    for Tensor { ty, bytes } in &results {
        assert_eq!(bytes.len() as u64, ty.bytes(), "{name}\n{printed}");
    }
}

#[test]
fn samples_of_every_op() {
    for &kind in OpKind::ALL {
        let all = samples(kind);
        assert!(!all.is_empty(), "{kind} has no samples");
        for sample in &all {
            assert!(sample.graph.insts.iter().any(|i| i.kind == kind), "{} has no {kind}", sample.name);
            check(sample);
        }
        let mut names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len(), "{kind}: names repeat");
    }
}

#[test]
fn random_graphs() {
    let mut seen = vec![0; OpKind::ALL.len()];
    for seed in 0..150 {
        let sample = random_graph(seed, 30);
        assert!(!sample.graph.results.is_empty(), "seed {seed} has no results");
        check(&sample);
        for inst in &sample.graph.insts {
            seen[inst.kind as usize] += 1;
        }
        // The promise that random graphs make: no rounding error grows without bound.
        for t in eval(&sample.graph, &sample.args).unwrap().iter().filter(|t| t.ty.dtype.is_float()) {
            let wild = t.to_f64().into_iter().find(|v| v.is_nan() || v.abs() > 16.0);
            assert_eq!(wild, None, "seed {seed}\n{}", sample.graph);
        }
    }
    let missing: Vec<_> = OpKind::ALL.iter().filter(|k| seen[**k as usize] == 0).collect();
    assert_eq!(missing, [&OpKind::Fusion]);
}

#[test]
fn random_graphs_are_reproducible() {
    assert_eq!(random_graph(3, 20).graph, random_graph(3, 20).graph);
    assert_ne!(random_graph(3, 20).graph, random_graph(4, 20).graph);
}
