//! Finds the pass that breaks a program: by running it.
use crate::compile::{CompileOptions, compile};
use crate::interp::{Tensor, Tolerance, eval, mismatch};
use crate::ir::{DType, Graph};
use crate::program::reference;
use crate::samples::split_arguments;

/// Difference allowed to results of one type: sums may be reordered by compilation, nothing else.
pub fn tolerance(dtype: DType) -> Tolerance {
    let (relative, absolute) = match dtype {
        DType::F64 => (1e-12, 1e-12),
        DType::F32 => (2e-5, 1e-6),
        DType::F16 => (4e-3, 1e-4),
        DType::BF16 => (3.2e-2, 1e-3),
        _ => (0.0, 0.0),
    };
    Tolerance { relative, absolute }
}

/// First result that differs, in words.
pub fn first_difference(got: &[Tensor], want: &[Tensor]) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} results, expected {}", got.len(), want.len()));
    }
    got.iter()
        .zip(want)
        .enumerate()
        .find_map(|(n, (g, w))| mismatch(g, w, tolerance(w.ty.dtype)).map(|e| format!("result {n}: {e}")))
}

/// What [`bisect`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bisection {
    /// The compiled program agrees with the graph.
    Right,
    /// Not even without passes.
    WrongFromTheStart(String),
    /// Right with `passes - 1` passes that change something, wrong with this one more.
    Pass { name: &'static str, passes: usize, difference: String },
}

/// Compiles `graph` with more and fewer passes (as `RSX_BISECT` does), runs the program with the interpreter and compares
/// with the graph itself on `args`. Errors if the graph itself does not run.
pub fn bisect(graph: &Graph, args: &[Tensor], options: &CompileOptions) -> Result<Bisection, String> {
    let want = eval(graph, args).map_err(|e| e.to_string())?;
    let (tensors, scalars) = split_arguments(graph, args);
    // What is wrong with the first n passes, and the last of those that ran.
    let fault = |n: usize| -> (Option<String>, Option<&'static str>) {
        let options = CompileOptions { bisect: Some(n), dump_to: None, ..options.clone() };
        match compile(graph.clone(), &options) {
            Err(e) => (Some(e.to_string()), None),
            Ok(c) => {
                let last = c.ledger.iter().rev().find(|e| e.counted).map(|e| e.pass);
                match reference::run(&c.program, &tensors, &scalars) {
                    Err(e) => (Some(e.to_string()), last),
                    Ok(got) => (first_difference(&got, &want), last),
                }
            }
        }
    };
    let (mut good, mut bad) = (0, crate::passes::pipeline().len() + 1);
    let (Some(mut difference), mut name) = fault(bad) else { return Ok(Bisection::Right) };
    if let (Some(d), _) = fault(good) {
        return Ok(Bisection::WrongFromTheStart(d));
    }
    while bad - good > 1 {
        let middle = (good + bad) / 2;
        match fault(middle) {
            (Some(d), last) => (bad, difference, name) = (middle, d, last.or(name)),
            (None, _) => good = middle,
        }
    }
    Ok(Bisection::Pass { name: name.unwrap_or("fusion"), passes: bad, difference })
}
