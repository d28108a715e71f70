//! The dependency graph of thunks: every topological order gives the same results, bit for bit.
mod models;

use models::{Gpt, clipped, gpt, math_attention, mlp};
use petgraph::Direction;
use petgraph::algo::is_cyclic_directed;
use rsx_compiler::interp::{Num, Tensor};
use rsx_compiler::ir::{DType, Graph, ParamKind};
use rsx_compiler::program::depend::ThunkGraph;
use rsx_compiler::program::reference;
use rsx_compiler::samples::random_graph;
use rsx_compiler::{CompileOptions, compile, dump};

/// A small generator: tests must not depend on chance.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// A topological order, chosen by `pick` among the thunks that are ready.
fn order(graph: &ThunkGraph, mut pick: impl FnMut(usize) -> usize) -> Vec<usize> {
    let mut waits: Vec<usize> =
        graph.node_indices().map(|n| graph.neighbors_directed(n, Direction::Incoming).count()).collect();
    let mut ready: Vec<_> = graph.externals(Direction::Incoming).collect();
    let mut out = Vec::new();
    while !ready.is_empty() {
        let n = ready.swap_remove(pick(ready.len()));
        out.push(n.index());
        for next in graph.neighbors(n) {
            waits[next.index()] -= 1;
            if waits[next.index()] == 0 {
                ready.push(next);
            }
        }
    }
    out
}

fn arguments(graph: &Graph, bound: i64) -> Vec<Tensor> {
    let mut rng = Lcg(7);
    let tensor = |ty: &rsx_compiler::ir::TensorType, rng: &mut Lcg| {
        let nums = (0..ty.numel()).map(|_| match ty.dtype {
            d if d.is_float() => Num::F(rng.below(1000) as f64 / 1000.0 + 0.05),
            DType::Bool => Num::B(rng.below(2) == 0),
            _ => Num::I(rng.below(bound as usize) as i128),
        });
        Tensor::from_nums(ty, nums.collect::<Vec<_>>())
    };
    graph.params.iter().map(|p| tensor(&p.ty, &mut rng)).collect()
}

/// Runs some orders; the number of thunks that had a choice.
fn check(graph: &Graph, args: &[Tensor]) {
    let program = compile(graph.clone(), &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}\n{graph}")).program;
    let of = |kind| graph.params.iter().zip(args).filter(move |(p, _)| p.kind == kind).map(|(_, t)| t.clone());
    let (tensors, scalars): (Vec<_>, Vec<_>) = (of(ParamKind::Tensor).collect(), of(ParamKind::Scalar).collect());
    let Ok(want) = reference::run(&program, &tensors, &scalars) else { return };
    let deps = program.thunk_graph();
    assert!(!is_cyclic_directed(&deps));
    let mut rng = Lcg(1);
    let mut orders = vec![order(&deps, |n| n - 1), order(&deps, |_| 0)];
    orders.extend((0..4).map(|_| order(&deps, |n| rng.below(n))));
    for o in orders {
        assert_eq!(o.len(), program.thunks.len());
        let got = reference::run_in_order(&program, o.iter().copied(), &tensors, &scalars)
            .unwrap_or_else(|e| panic!("{e}\n{o:?}\n{}", dump::program_text(&program)));
        let same = got.iter().zip(&want).all(|(a, b)| a.bytes == b.bytes);
        assert!(same, "order {o:?}\n{}", dump::program_text(&program));
    }
}

#[test]
fn any_order_of_a_training_step() {
    for g in [
        mlp(2, 4, 8),
        clipped(&[&[64, 32], &[32], &[40, 50]]),
        math_attention(2, 3, 8, 4),
        gpt(Gpt { layers: 2, batch: 2, time: 5, width: 8, heads: 2, vocab: 11 }),
    ] {
        check(&g, &arguments(&g, 4));
    }
}

#[test]
fn any_order_of_random_programs() {
    for seed in 0..60 {
        let sample = random_graph(3000 + seed, 40);
        check(&sample.graph, &sample.args);
    }
}

#[test]
fn a_step_has_thunks_to_run_at_once() {
    let g = gpt(Gpt { layers: 2, batch: 2, time: 5, width: 8, heads: 2, vocab: 11 });
    let program = compile(g, &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}")).program;
    let deps = program.thunk_graph();
    let mut depth = vec![0usize; program.thunks.len()];
    for n in deps.node_indices() {
        for next in deps.neighbors(n) {
            depth[next.index()] = depth[next.index()].max(depth[n.index()] + 1);
        }
    }
    let longest = depth.iter().max().map_or(0, |d| d + 1);
    assert!(longest * 10 <= program.thunks.len() * 9, "{longest} of {}", program.thunks.len());
}
