//! Reductions and running combinations. Floats accumulate in `f64`; the result is rounded once.
use super::index::{flat, for_each, for_each_line};
use super::{Num, Tensor, elementwise, math};
use crate::ir::{CumKind, DType, Dims, ReduceKind, TensorType};
use std::cmp::Ordering;

/// Sum of two elements; or of `i1`.
pub(super) fn sum(a: Num, b: Num) -> Num {
    match (a, b) {
        (Num::B(a), Num::B(b)) => Num::B(a || b),
        (Num::I(a), Num::I(b)) => Num::I(a.wrapping_add(b)),
        (a, b) => Num::F(a.to_f64() + b.to_f64()),
    }
}

/// Product of two elements; and of `i1`. Wraps: only the low 64 bits of integers matter.
pub(super) fn product(a: Num, b: Num) -> Num {
    match (a, b) {
        (Num::B(a), Num::B(b)) => Num::B(a && b),
        (Num::I(a), Num::I(b)) => Num::I(a.wrapping_mul(b)),
        (a, b) => Num::F(a.to_f64() * b.to_f64()),
    }
}

pub(super) fn combine(kind: ReduceKind, a: Num, b: Num) -> Num {
    match kind {
        ReduceKind::Sum => sum(a, b),
        ReduceKind::Prod => product(a, b),
        ReduceKind::Max => elementwise::larger(a, b),
        ReduceKind::Min => elementwise::smaller(a, b),
        ReduceKind::And => Num::B(a.to_bool() && b.to_bool()),
        ReduceKind::Or => Num::B(a.to_bool() || b.to_bool()),
    }
}

/// What a combination starts from: leaves every element of type `dtype` as it is.
pub(super) fn identity(kind: ReduceKind, dtype: DType) -> Num {
    let number = |v: i128| match dtype {
        DType::Bool => Num::B(v != 0),
        d if d.is_float() => Num::F(v as f64),
        _ => Num::I(v),
    };
    let width = 8 * dtype.size() as u32;
    match kind {
        ReduceKind::Sum | ReduceKind::Or => number(0),
        ReduceKind::Prod | ReduceKind::And => number(1),
        ReduceKind::Max if dtype.is_float() => Num::F(f64::NEG_INFINITY),
        ReduceKind::Min if dtype.is_float() => Num::F(f64::INFINITY),
        ReduceKind::Max if dtype.is_signed() => number(-(1 << (width - 1))),
        ReduceKind::Min if dtype.is_signed() => number((1 << (width - 1)) - 1),
        ReduceKind::Max => number(0),
        ReduceKind::Min => number((1 << width) - 1),
    }
}

pub(super) fn reduce(ty: &TensorType, kind: ReduceKind, x: &Tensor, dims: &[i64]) -> Tensor {
    let mut out = vec![identity(kind, x.ty.dtype); ty.numel() as usize];
    let mut position = 0;
    for_each(&x.ty.dims, |index| {
        let kept = (0..index.len()).filter(|d| !dims.contains(&(*d as i64))).map(|d| index[d]);
        let to = &mut out[flat(&ty.dims, &kept.collect::<Dims>())];
        *to = combine(kind, *to, x.num(position));
        position += 1;
    });
    Tensor::from_nums(ty, out)
}

/// An empty line has index 0.
pub(super) fn arg_reduce(ty: &TensorType, max: bool, x: &Tensor, dim: usize) -> Tensor {
    let wins = if max { Ordering::Greater } else { Ordering::Less };
    let mut out = Vec::with_capacity(ty.numel() as usize);
    for_each_line(&x.ty.dims, dim, |line| {
        let mut best = 0;
        for (i, &position) in line.iter().enumerate().skip(1) {
            let (new, old) = (x.num(position), x.num(line[best]));
            let better = elementwise::total_order(new, old) == wins;
            if !old.is_nan() && (new.is_nan() || better) {
                best = i;
            }
        }
        out.push(Num::I(best as i128));
    });
    Tensor::from_nums(ty, out)
}

pub(super) fn cumulative(kind: CumKind, x: &Tensor, dim: usize) -> Tensor {
    let mut out = vec![Num::I(0); x.numel()];
    for_each_line(&x.ty.dims, dim, |line| {
        let mut running: Option<Num> = None;
        for &position in line {
            let new = x.num(position);
            let next = running.map_or(new, |old| match kind {
                CumKind::Sum => sum(old, new),
                CumKind::Prod => product(old, new),
                CumKind::Max => elementwise::larger(old, new),
                CumKind::Min => elementwise::smaller(old, new),
                CumKind::LogSumExp => Num::F(math::log_add_exp(old.to_f64(), new.to_f64())),
            });
            running = Some(next);
            out[position] = next;
        }
    });
    Tensor::from_nums(&x.ty, out)
}
