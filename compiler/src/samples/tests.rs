//! What holds for every op: its type rule, evaluator, text form and verifier agree.
use super::{NOISE, Sample, random_graph, samples, with_rounding_noise};
use crate::interp::{Tensor, eval};
use crate::ir::{DType, OpKind, Value};
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

/// The promise that makes random graphs useful for differential tests.
#[test]
fn rounding_noise_stays_small_in_random_graphs() {
    for seed in 0..60 {
        let sample = random_graph(seed, 40);
        let plain = eval(&sample.graph, &sample.args).unwrap();
        // The precision of a result is that of the shortest float on the way to it; the worst in the graph bounds it.
        let short = (0..sample.graph.n_values() as u32).map(|v| sample.graph.ty(Value(v)).dtype);
        let eps = short.fold(0.0f64, |eps, dtype| {
            eps.max(match dtype {
                DType::BF16 => 2f64.powi(-8),
                DType::F16 => 2f64.powi(-11),
                DType::F32 => 2f64.powi(-24),
                _ => 2f64.powi(-53),
            })
        });
        for (i, (got, want)) in with_rounding_noise(&sample, seed + 1000, |_| 1).unwrap().iter().zip(&plain).enumerate()
        {
            if !want.ty.dtype.is_float() {
                assert_eq!(got, want, "seed {seed} result {i}\n{}", sample.graph);
                continue;
            }
            for (g, w) in got.to_f64().into_iter().zip(want.to_f64()) {
                let noise = (g - w).abs() / (eps * (1.0 + w.abs()));
                assert!(noise <= NOISE, "seed {seed} result {i}: {noise} eps: {g} is not {w}\n{}", sample.graph);
            }
        }
    }
}
