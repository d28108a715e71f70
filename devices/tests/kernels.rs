//! Generated kernels against the interpreter, at all levels: the samples of every op that kernels are made of.
mod common;

use common::{difference, targets};
use rsx_compiler::interp::{self, Tensor};
use rsx_compiler::ir::{Attrs, Class, FusionKind, Graph, OpKind, ParamKind};
use rsx_compiler::program::KernelSpec;
use rsx_compiler::samples::{Sample, samples};
use rsx_devices::cpu::extern_math::Fault;
use rsx_devices::cpu::kernel::{Kernel, generate};
use rsx_devices::cpu::target::Target;
use rsx_devices::memory::{Block, MemoryPool};
use std::sync::Arc;

/// Runs a graph as one kernel on copies of its arguments; the results' bytes.
fn run(kind: FusionKind, s: &Sample, target: Target) -> Result<Vec<Vec<u8>>, String> {
    let spec = KernelSpec { name: s.name.clone(), kind, body: Arc::new(s.graph.clone()) };
    let kernel = Kernel::compile(&spec, target).map_err(|e| match generate(&spec, target) {
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
    Ok(out)
}

fn block(pool: &MemoryPool, bytes: &[u8]) -> Block {
    let b = pool.alloc(bytes.len().max(1)).unwrap();
    // SAFETY: the block is at least as long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), b.as_ptr(), bytes.len()) };
    b
}

fn check(kind: FusionKind, s: &Sample, failures: &mut Vec<String>) {
    let want: Vec<Tensor> = match interp::eval(&s.graph, &s.args) {
        Ok(w) => w,
        Err(e) => return failures.push(format!("{}: interpreter: {e}", s.name)),
    };
    for target in targets() {
        let what = format!("{} {kind:?} {}/{}", s.name, target.level.name(), target.vector_bytes);
        match run(kind, s, target) {
            Err(e) => failures.push(format!("{what}: {e}")),
            Ok(got) => {
                for (g, w) in got.iter().zip(&want) {
                    if let Some(d) = difference(g, w, 1.0) {
                        failures.push(format!("{what}: {d}"));
                    }
                }
            }
        }
    }
}

fn report(failures: Vec<String>) {
    let n = failures.len();
    let text: Vec<String> = failures.into_iter().take(40).collect();
    assert!(n == 0, "{n} failures\n{}", text.join("\n"));
}

fn is_loop(g: &Graph) -> bool {
    g.insts.iter().all(|i| match i.kind.class() {
        Class::Leaf | Class::Elementwise | Class::Movement | Class::Random => true,
        Class::Indexed => i.kind != OpKind::Scatter,
        _ => false,
    })
}

#[test]
fn samples_of_loop_ops() {
    let mut failures = Vec::new();
    let only = std::env::var("RSX_ONLY").ok();
    for &kind in OpKind::ALL {
        for s in samples(kind) {
            if is_loop(&s.graph) && only.as_ref().is_none_or(|o| s.name.contains(o.as_str())) {
                check(FusionKind::Loop, &s, &mut failures);
            }
        }
    }
    report(failures);
}

#[test]
fn samples_of_reduce() {
    let mut failures = Vec::new();
    for s in samples(OpKind::Reduce) {
        let trailing = s.graph.insts.iter().all(|i| match &i.attrs {
            Attrs::Reduce { dims, .. } => {
                let rank = s.graph.ty(i.operands[0]).rank() as i64;
                dims.iter().rev().zip((0..rank).rev()).all(|(&d, r)| d == r)
            }
            _ => true,
        });
        check(FusionKind::Column, &s, &mut failures);
        if trailing {
            check(FusionKind::Row, &s, &mut failures);
        }
    }
    report(failures);
}
