//! Comparison of device results with the interpreter's.
#![allow(dead_code, reason = "each test binary uses its own part")]
use rsx_compiler::interp::Tensor;
use rsx_compiler::ir::{Builder, DType, FusionKind, ParamKind, Value, decode_f64};
use rsx_compiler::program::KernelSpec;
use rsx_compiler::samples::Sample;
use rsx_devices::cpu::extern_math::Fault;
use rsx_devices::cpu::jit::Origin;
use rsx_devices::cpu::kernel::{Kernel, generate};
use rsx_devices::cpu::target::{Level, Target};
use rsx_devices::memory::{Block, MemoryPool};
use std::sync::Arc;

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
    // log2(0) is the least i32.
    let exponent = (want.abs().log2().floor() as i32).saturating_sub(mantissa).max(least);
    (got - want).abs() / f64::from(exponent).exp2()
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

/// Runs a graph as one kernel on copies of its arguments: where its code came from, and the results' bytes.
pub(crate) fn run(kind: FusionKind, s: &Sample, target: Target) -> Result<(Origin, Vec<Vec<u8>>), String> {
    let spec = KernelSpec { name: s.name.clone(), kind, body: Arc::new(s.graph.clone()) };
    let kernel = Kernel::compile(&spec, target, false, None).map_err(|e| match generate(&spec, target) {
        Ok(m) => format!("{e}\n{}", m.text),
        Err(_) => e.to_string(),
    })?;
    let pool = MemoryPool::new(None);
    let (mut blocks, mut scalars) = (Vec::new(), Vec::new());
    for (p, a) in s.graph.params.iter().zip(&s.args) {
        if p.kind == ParamKind::Scalar {
            scalars.push(rsx_compiler::kernel::bits(&a.bytes));
            continue;
        }
        blocks.push(block(&pool, &a.bytes));
    }
    let n_inputs = blocks.len();
    let types = s.graph.result_types();
    for ty in &types {
        blocks.push(block(&pool, &vec![0xAA; ty.bytes() as usize + 64]));
    }
    let args: Vec<*mut u8> = blocks.iter().map(Block::as_ptr).collect();
    let fault = Fault::default();
    // SAFETY: the blocks are as large as the types say and live through the call.
    unsafe { kernel.launch(&args, n_inputs, &scalars, &pool, &fault) }.map_err(|e| e.to_string())?;
    if let Some((index, size)) = fault.take() {
        // Samples of gather have bad indices on purpose: values are then those of the clamped index.
        if !s.name.starts_with("gather") || (0..size).contains(&index) {
            return Err(format!("index {index} of {size}"));
        }
    }
    let mut out = Vec::new();
    for (ty, b) in types.iter().zip(&blocks[n_inputs..]) {
        let n = ty.bytes() as usize;
        // SAFETY: the block has this many bytes and 64 more.
        let bytes = unsafe { std::slice::from_raw_parts(b.as_ptr(), n + 64) };
        if bytes[n..].iter().any(|&b| b != 0xAA) {
            return Err("wrote beyond the end".into());
        }
        out.push(bytes[..n].to_vec());
    }
    Ok((kernel.origin, out))
}

pub(crate) fn block(pool: &MemoryPool, bytes: &[u8]) -> Block {
    let b = pool.alloc(bytes.len().max(1)).unwrap();
    // SAFETY: the block is at least as long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), b.as_ptr(), bytes.len()) };
    b
}

/// A graph with pseudo-random arguments in -2..2 (integers: -9..9).
pub(crate) fn sample(name: &str, build: impl FnOnce(&mut Builder) -> Vec<Value>) -> Sample {
    let mut b = Builder::new("sample");
    let results = build(&mut b);
    let graph = b.finish(results).unwrap();
    let mut state = 0x9e3779b97f4a7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f64 / (1u64 << 24) as f64 * 4.0 - 2.0
    };
    let args = graph
        .params
        .iter()
        .map(|p| {
            let n = p.ty.numel() as usize;
            if p.ty.dtype.is_float() {
                Tensor::from_f64(&p.ty, &(0..n).map(|_| next()).collect::<Vec<_>>())
            } else {
                Tensor::from_i64(&p.ty, &(0..n).map(|_| (next() * 4.5) as i64).collect::<Vec<_>>())
            }
        })
        .collect();
    Sample { name: name.to_owned(), graph, args }
}
