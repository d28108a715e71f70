//! Arguments for graphs that come from a file: the same for the same seed.
use crate::interp::{Num, Tensor};
use crate::ir::{Graph, Param, ParamKind};

/// A value for every parameter of `graph`: floats in 0.05..1.05, integers in 0..`bound`. `seed` picks another set.
/// Integers among the runtime scalars are 0: they are where ranges and slices start, most of the time.
pub fn arguments(graph: &Graph, seed: u64, bound: i64) -> Vec<Tensor> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let mut tensor = |Param { ty, kind, .. }: &Param| {
        let nums = (0..ty.numel()).map(|_| match ty.dtype {
            d if d.is_float() => Num::F((next() % 1000) as f64 / 1000.0 + 0.05),
            crate::ir::DType::Bool => Num::B(next() % 2 == 0),
            _ if *kind == ParamKind::Scalar => Num::I(0),
            _ => Num::I(i128::from(next() as i64 % bound.max(1))),
        });
        Tensor::from_nums(ty, nums.collect::<Vec<_>>())
    };
    graph.params.iter().map(&mut tensor).collect()
}

/// Arguments as a program takes them: tensors, then runtime scalars.
pub fn split_arguments(graph: &Graph, args: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    let of = |kind| {
        graph.params.iter().zip(args).filter(move |(p, _)| p.kind == kind).map(|(_, t)| t.clone()).collect::<Vec<_>>()
    };
    (of(ParamKind::Tensor), of(ParamKind::Scalar))
}
