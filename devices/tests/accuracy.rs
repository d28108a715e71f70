//! Errors of generated functions against `f64`, at all levels.
mod common;

use common::{run, targets, ulps};
use rsx_compiler::interp::Tensor;
use rsx_compiler::ir::*;
use rsx_compiler::samples::{Sample, gelu_tanh};
use rsx_devices::cpu::target::{Level, Target};

/// One result of `build` for each of `x`.
fn values(x: &[f32], target: Target, build: fn(&mut Builder, Value) -> Value) -> Vec<f32> {
    let ty = TensorType::new(DType::F32, [x.len() as i64]);
    let mut b = Builder::new("accuracy");
    let p = b.parameter(ty.clone(), ParamKind::Tensor);
    let y = build(&mut b, p);
    let graph = b.finish(vec![y]).expect("it is well typed");
    let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let s = Sample { name: "accuracy".into(), graph, args: vec![Tensor { ty, bytes }] };
    let (_, out) = run(FusionKind::Loop, &s, target).expect("it runs");
    out[0].chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// Finite numbers of both signs, `step` apart in their order, up to `limit` in size.
fn numbers(step: usize, limit: f32) -> Vec<f32> {
    let all = (0..=limit.to_bits()).step_by(step).map(f32::from_bits);
    all.flat_map(|x| [x, -x]).collect()
}

fn tanh(b: &mut Builder, x: Value) -> Value {
    b.unary(OpKind::Tanh, x)
}

#[test]
fn tanh_is_within_its_bound() {
    for target in targets() {
        // Measured over all numbers, and a little.
        let bound = match target.level {
            Level::Avx512 => 1.19,
            Level::Avx2 => 1.42,
            _ => 2.42,
        };
        // A prime, so that all low bits occur; and every number where intervals meet and where 1 is reached.
        let mut x = numbers(251, 12.0);
        for at in [0.109_283_82f32, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 6.775_597, 8.0, 9.01, 9.5] {
            x.extend((at.to_bits() - 500..at.to_bits() + 500).map(f32::from_bits));
        }
        x.resize(x.len().next_multiple_of(64) + 5, 0.3);
        let mut most = (0.0, 0.0);
        for (x, y) in x.iter().zip(values(&x, target, tanh)) {
            let want = f64::from(*x).tanh();
            let error = ulps(DType::F32, f64::from(y), want);
            if error > most.0 {
                most = (error, *x);
            }
            assert!(error <= bound, "{target:?}: tanh {x:e} is {y:e}, not {want:e}: {error:.3} ulp");
            assert!(y.abs() <= 1.0 && y.is_sign_negative() == x.is_sign_negative(), "{target:?}: tanh {x:e} is {y:e}");
        }
        eprintln!("{target:?}: at most {:.3} ulp, at {:e}", most.0, most.1);
    }
}

#[test]
fn tanh_of_what_is_special() {
    let same = [0.0f32, 1e-45, 3e-42, f32::MIN_POSITIVE, 1e-20, 1e-5];
    let far = [9.5f32, 10.0, 44.0, 1e10, f32::MAX, f32::INFINITY];
    for target in targets() {
        for sign in [1.0f32, -1.0] {
            // One by one and in vectors.
            for n in [1, 64] {
                for (x, want) in same.map(|x| (x, x)).into_iter().chain(far.map(|x| (x, 1.0))) {
                    let list = vec![sign * x; n];
                    for y in values(&list, target, tanh) {
                        assert_eq!(y.to_bits(), (sign * want).to_bits(), "{target:?}: tanh {x:e} is {y:e}");
                    }
                }
                assert!(values(&vec![sign * f32::NAN; n], target, tanh).iter().all(|y| y.is_nan()), "{target:?}");
            }
        }
    }
}

#[test]
fn tanh_gelu_keeps_what_one_plus_tanh_cancels() {
    for target in targets() {
        let x = numbers(1021, 20.0);
        for (x, y) in x.iter().zip(values(&x, target, gelu_tanh)) {
            let wide = f64::from(*x);
            let u = 0.797_884_560_802_865_4 * (wide + 0.044715 * wide.powi(3));
            let want = wide / (1.0 + (-2.0 * u).exp());
            let good = if *x >= -0.5 || target.level != Level::Portable {
                // The argument's rounding error is felt the more the steeper the function is.
                let bound = if *x >= -0.5 { 3.0 } else { 4.0 + 6.0 * u.abs() };
                *x < -8.0 || ulps(DType::F32, f64::from(y), want) <= bound
            } else {
                // 1 + tanh as it is.
                (f64::from(y) - want).abs() <= 2e-7 * wide.abs() + 2e-45
            };
            assert!(
                good && (f64::from(y) - want).abs() <= 2e-7 * wide.abs() + 2e-45,
                "{target:?}: {x:e}: {y:e}, not {want:e}"
            );
        }
        let ends = [0.0, -0.0, 1e10, f32::INFINITY, -20.0, -3e38, f32::NAN, 1e-45];
        let y = values(&ends, target, gelu_tanh);
        for (y, want) in y.iter().zip([0.0, -0.0, 1e10, f32::INFINITY, -0.0, -0.0, f32::NAN, 0.0]) {
            let same = y.to_bits() == f32::to_bits(want) || y.is_nan() && want.is_nan();
            // The product's sign in IEEE arithmetic is the factor's.
            assert!(same, "{target:?}: gelu at the ends is {y:e}, not {want:e}");
        }
    }
}

/// A factor that is no half, so large that twice of it is infinite.
fn gate(b: &mut Builder, x: Value) -> Value {
    let (one, large) = (b.full_like(x, 1.0), b.full_like(x, 3e38));
    let t = b.unary(OpKind::Tanh, x);
    let t = b.add(one, t);
    b.mul(t, large)
}

#[test]
fn a_large_factor_of_one_plus_tanh() {
    let x = [-30.0f32, -3.0, -1.0, -1e-3, 0.0];
    for target in targets() {
        for (x, y) in x.iter().zip(values(&x, target, gate)) {
            let want = 3e38 * 2.0 / (1.0 + (-2.0 * f64::from(*x)).exp());
            assert!((f64::from(y) - want).abs() <= 1e-6 * 3e38, "{target:?}: {x}: {y:e}, not {want:e}");
        }
    }
}

/// The hyperbolic tangent is a result of its own too: both results are of the same one.
fn both(b: &mut Builder, x: Value) -> Value {
    let one = b.full_like(x, 1.0);
    let t = b.unary(OpKind::Tanh, x);
    let s = b.add(t, one);
    let p = b.mul(x, s);
    b.sub(p, t)
}

#[test]
fn tanh_that_is_needed_otherwise() {
    let x = numbers(400_009, 10.0);
    for target in targets() {
        for (x, y) in x.iter().zip(values(&x, target, both)) {
            let (wide, t) = (f64::from(*x), f64::from(*x).tanh());
            let want = wide * (t + 1.0) - t;
            assert!((f64::from(y) - want).abs() <= 4e-7 * (1.0 + wide.abs()), "{target:?}: {x}: {y:e}, not {want:e}");
        }
    }
}
