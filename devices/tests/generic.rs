//! Kernels of many sizes share code: results against the interpreter, and how often code is generated.
mod common;

use rsx_compiler::interp::eval;
use rsx_compiler::ir::*;
use rsx_devices::cpu::jit::Origin;

fn param(b: &mut Builder, dtype: DType, dims: &[i64]) -> Value {
    b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor)
}

/// A body for a size.
type Body = fn(&mut Builder, i64) -> Vec<Value>;

fn softmax(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 3 * n]);
    let m = b.reduce(ReduceKind::Max, x, &[1]);
    let m = b.broadcast_in_dim(m, [n, 3 * n], [0]);
    let d = b.sub(x, m);
    let e = b.unary(OpKind::Exp, d);
    let s = b.reduce(ReduceKind::Sum, e, &[1]);
    let s = b.broadcast_in_dim(s, [n, 3 * n], [0]);
    vec![b.div(e, s)]
}

/// The mean of each column, whose divisor is a constant of the body.
fn column_mean(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 24]);
    let s = b.reduce(ReduceKind::Sum, x, &[0]);
    let k = b.full_like(s, 1.0 / n as f64);
    vec![b.mul(s, k)]
}

/// Bias and a transposed read, in heads: indices that are taken apart.
fn heads(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, 4, 16]);
    let y = param(b, DType::F32, &[4, n, 16]);
    let t = b.transpose(x, [1, 0, 2]);
    vec![b.add(t, y)]
}

/// Positions and a mask made of them.
fn causal(b: &mut Builder, n: i64) -> Vec<Value> {
    let x = param(b, DType::F32, &[n, n]);
    let (r, c) = (b.iota(&TensorType::new(DType::I64, [n, n]), 0), b.iota(&TensorType::new(DType::I64, [n, n]), 1));
    let keep = b.compare(CmpDir::Ge, r, c);
    let minus = b.full_like(x, f64::NEG_INFINITY);
    vec![b.select(keep, x, minus)]
}

/// Compiles `body` for each of `sizes`, checks the results, and returns how many kernels needed code of their own.
fn compiled(name: &str, kind: FusionKind, body: Body, sizes: &[i64]) -> usize {
    let mut count = 0;
    for &n in sizes {
        let s = common::sample(name, |b| body(b, n));
        let want = eval(&s.graph, &s.args).expect("it evaluates");
        for target in common::targets() {
            let (origin, got) = common::run(kind, &s, target).unwrap_or_else(|e| panic!("{name} of size {n}: {e}"));
            count += usize::from(origin == Origin::Compiled);
            for (g, w) in got.iter().zip(&want) {
                // Relative to the largest element: sums of many cancel.
                let largest = w.to_f64().iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
                let size = w.ty.dtype.size();
                for (i, want) in w.to_f64().into_iter().enumerate() {
                    let got = decode_f64(w.ty.dtype, &g[i * size..(i + 1) * size]);
                    assert!(
                        got == want || (got - want).abs() <= 1e-6 * largest,
                        "{name} of size {n}: {got} for {want}"
                    );
                }
            }
        }
    }
    count / common::targets().len()
}

#[test]
fn one_code_for_many_sizes() {
    let sizes: Vec<i64> = vec![67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137];
    let cases: [(&str, FusionKind, Body); 4] = [
        ("softmax", FusionKind::Row, softmax),
        ("column_mean", FusionKind::Column, column_mean),
        ("heads", FusionKind::Loop, heads),
        ("causal", FusionKind::Loop, causal),
    ];
    for (name, kind, body) in cases {
        let n = compiled(name, kind, body, &sizes);
        // The first has code of its own, the second makes the template, a third may differ where those two agree.
        assert!(n <= 3, "{name}: {n} kernels for {} sizes", sizes.len());
    }
}
