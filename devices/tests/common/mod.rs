//! Comparison of device results with the interpreter's.
#![allow(dead_code, reason = "each test binary uses its own part")]
use rsx_compiler::interp::Tensor;
use rsx_compiler::ir::{DType, decode_f64};
use rsx_devices::cpu::target::{Level, Target};

/// The levels this processor can run, and the widest vectors on lesser levels too: the generator's 512-bit code is
/// then checked on processors without AVX-512.
pub(crate) fn targets() -> Vec<Target> {
    let mut list: Vec<Target> = Level::ALL.into_iter().filter(|&l| l <= Level::detect()).map(Target::of).collect();
    if Level::detect() == Level::Avx2 {
        list.push(Target { level: Level::Avx2, vector_bytes: 64 });
    }
    list
}

/// Units in the last place that results may be off, per element type.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 16.0,
        DType::F32 => 6.0,
        DType::F16 | DType::BF16 => 1.0,
        _ => 0.0,
    }
}

/// Distance of two floats in units in the last place of `dtype`; 0 for equal ones and two NaN.
pub(crate) fn ulps(dtype: DType, got: f64, want: f64) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    let (mantissa, least) = match dtype {
        DType::F64 => (52, -1074),
        DType::F32 => (23, -149),
        DType::F16 => (10, -24),
        _ => (7, -133),
    };
    let exponent = (want.abs().log2().floor() as i32 - mantissa).max(least);
    (got - want).abs() / 2f64.powi(exponent)
}

/// The first difference of `got` to `want` that is more than `scale` times the tolerance.
pub(crate) fn difference(got: &[u8], want: &Tensor, scale: f64) -> Option<String> {
    let dtype = want.ty.dtype;
    let size = dtype.size();
    for i in 0..want.ty.numel() as usize {
        let (g, w) = (&got[i * size..(i + 1) * size], &want.bytes[i * size..(i + 1) * size]);
        if g == w {
            continue;
        }
        let (gv, wv) = (decode_f64(dtype, g), decode_f64(dtype, w));
        if !dtype.is_float() || ulps(dtype, gv, wv) > tolerance(dtype) * scale {
            return Some(format!("element {i} of {}: {gv:e}, expected {wv:e}", want.ty));
        }
    }
    None
}
