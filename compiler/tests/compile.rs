//! The whole middle end against the interpreter: on samples of every op and on random graphs, the compiled program (run
//! by the reference executor) gives what the recorded graph gives, and so does every single pass.
use rsx_compiler::interp::{Tensor, eval};
use rsx_compiler::ir::{DType, Graph, OpKind, ParamKind};
use rsx_compiler::program::reference;
use rsx_compiler::samples::{Sample, random_graph, samples};
use rsx_compiler::{CompileOptions, buffers, compile, dump, passes, verify};

/// (relative, absolute) difference allowed: reductions may be merged, and short floats round once more in an epilogue.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-14, 1e-14),
        DType::F32 => (4e-6, 1e-6),
        DType::F16 => (2e-3, 1e-4),
        DType::BF16 => (1.6e-2, 1e-3),
        _ => (0.0, 0.0),
    }
}

fn check_close(what: &str, got: &[Tensor], want: &[Tensor]) {
    assert_eq!(got.len(), want.len(), "{what}: number of results");
    for (n, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.ty, w.ty, "{what}: type of result {n}");
        let (relative, absolute) = tolerance(g.ty.dtype);
        for (i, (x, y)) in g.to_f64().into_iter().zip(w.to_f64()).enumerate() {
            let same = x == y || (x.is_nan() && y.is_nan());
            let near = (x - y).abs() <= absolute + relative * y.abs() && y.is_finite();
            assert!(same || near, "{what}: result {n}, element {i}: {x:?}, expected {y:?}");
        }
    }
}

/// Arguments of a graph as a program takes them: tensors, then scalars.
fn split(graph: &Graph, args: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    let pairs = || graph.params.iter().zip(args);
    let of = |kind| pairs().filter(|(p, _)| p.kind == kind).map(|(_, t)| t.clone()).collect();
    (of(ParamKind::Tensor), of(ParamKind::Scalar))
}

fn check(sample: &Sample, options: &CompileOptions) {
    let Ok(want) = eval(&sample.graph, &sample.args) else { return };
    // RSX_DUMP_TO shows the stages of a failing sample.
    let options = &CompileOptions { dump_to: CompileOptions::from_env().dump_to, ..options.clone() };
    let compiled =
        compile(sample.graph.clone(), options).unwrap_or_else(|e| panic!("{}: {e}\n{}", sample.name, sample.graph));
    let describe = || format!("{}\n{}\n{}", sample.name, sample.graph, dump::program_text(&compiled.program));
    if let Err(e) = buffers::check::check(&compiled.program) {
        panic!("{e}\n{}", describe());
    }
    let (tensors, scalars) = split(&sample.graph, &sample.args);
    match reference::run(&compiled.program, &tensors, &scalars) {
        Ok(got) => check_close(&describe(), &got, &want),
        Err(e) => panic!("{e}\n{}", describe()),
    }
}

/// Nothing is too small to be computed again.
fn remat_all() -> CompileOptions {
    let remat = passes::RematOptions { min_peak: 0, min_bytes: 0, slowdown: f64::INFINITY, memory_limit: Some(0) };
    CompileOptions { remat, ..CompileOptions::default() }
}

fn unfused() -> CompileOptions {
    CompileOptions { passes: vec!["-fusion".into()], ..CompileOptions::default() }
}

#[test]
fn samples_of_every_op() {
    for &kind in OpKind::ALL {
        for sample in samples(kind) {
            check(&sample, &CompileOptions::default());
        }
    }
}

#[test]
fn random_graphs() {
    // `RSX_COUNT` graphs from number `RSX_SEED` on: thousands by night.
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (first, count) = (number("RSX_SEED", 0), number("RSX_COUNT", 300));
    for seed in first..first + count {
        let sample = random_graph(seed, 8 + (seed % 40) as usize);
        check(&sample, &CompileOptions::default());
        if seed % 8 == 0 {
            check(&sample, &unfused());
        }
        if seed % 4 == 0 {
            check(&sample, &remat_all());
        }
    }
}

#[test]
fn large_random_graphs() {
    for seed in 0..10 {
        check(&random_graph(1000 + seed, 200), &CompileOptions::default());
    }
}

#[test]
fn every_pass_keeps_the_meaning() {
    for seed in 0..60 {
        let sample = random_graph(500 + seed, 30);
        let Ok(want) = eval(&sample.graph, &sample.args) else { continue };
        for pass in passes::PASSES {
            let after = passes::run_named(pass.name, &sample.graph, &remat_all())
                .unwrap_or_else(|e| panic!("{}: {e}\n{}", sample.name, sample.graph));
            let what = format!("{} on {}\n{}\n=>\n{after}", pass.name, sample.name, sample.graph);
            verify::check(&after).unwrap_or_else(|e| panic!("{e}\n{what}"));
            let got = eval(&after, &sample.args).unwrap_or_else(|e| panic!("{e}\n{what}"));
            check_close(&what, &got, &want);
        }
    }
}

#[test]
fn any_number_of_passes_keeps_the_meaning() {
    for seed in 0..12 {
        let sample = random_graph(700 + seed, 30);
        for n in 0..passes::pipeline().len() {
            check(&sample, &CompileOptions { bisect: Some(n), ..CompileOptions::default() });
        }
    }
}

#[test]
fn bisection_of_a_right_program_finds_nothing() {
    let sample = random_graph(3, 20);
    let found = rsx_compiler::bisect(&sample.graph, &sample.args, &CompileOptions::default());
    assert_eq!(found, Ok(rsx_compiler::Bisection::Right));
}
