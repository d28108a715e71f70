//! Ops that copy elements: whole bytes, so that NaN payloads survive.
use super::index::{flat, for_each};
use super::{Num, Tensor, elementwise};
use crate::ir::{Dims, ScatterKind, TensorType};

/// A tensor of type `ty` whose element at an index is the element of `x` at the position that `from` gives.
fn collect(ty: &TensorType, x: &Tensor, mut from: impl FnMut(&[i64]) -> usize) -> Tensor {
    let mut bytes = Vec::with_capacity(ty.bytes() as usize);
    for_each(&ty.dims, |index| bytes.extend_from_slice(x.element(from(index))));
    Tensor { ty: ty.clone(), bytes }
}

pub(super) fn iota(ty: &TensorType, dim: usize) -> Tensor {
    let mut nums = Vec::with_capacity(ty.numel() as usize);
    for_each(&ty.dims, |index| nums.push(Num::I(i128::from(index[dim]))));
    Tensor::from_nums(ty, nums)
}

pub(super) fn select(pred: &Tensor, on_true: &Tensor, on_false: &Tensor) -> Tensor {
    let mut out = on_false.clone();
    for i in (0..pred.numel()).filter(|&i| pred.num(i).to_bool()) {
        out.element_mut(i).copy_from_slice(on_true.element(i));
    }
    out
}

pub(super) fn broadcast_in_dim(ty: &TensorType, x: &Tensor, dims: &[i64]) -> Tensor {
    collect(ty, x, |index| {
        let from = dims.iter().zip(&x.ty.dims).map(|(&d, &n)| if n == 1 { 0 } else { index[d as usize] });
        flat(&x.ty.dims, &from.collect::<Dims>())
    })
}

pub(super) fn transpose(ty: &TensorType, x: &Tensor, perm: &[i64]) -> Tensor {
    collect(ty, x, |index| {
        let mut from = Dims::from_elem(0, perm.len());
        for (i, &p) in perm.iter().enumerate() {
            from[p as usize] = index[i];
        }
        flat(&x.ty.dims, &from)
    })
}

pub(super) fn slice(ty: &TensorType, x: &Tensor, start: &[i64], stride: &[i64]) -> Tensor {
    collect(ty, x, |index| {
        let from = (0..index.len()).map(|d| start[d] + index[d] * stride[d]);
        flat(&x.ty.dims, &from.collect::<Dims>())
    })
}

pub(super) fn pad(ty: &TensorType, x: &Tensor, value: &Tensor, lo: &[i64], interior: &[i64]) -> Tensor {
    let mut bytes = Vec::with_capacity(ty.bytes() as usize);
    for_each(&ty.dims, |index| {
        // Where the index falls on an element of the operand, per dimension.
        let from: Option<Dims> = (0..index.len())
            .map(|d| {
                let (at, step) = (index[d] - lo[d], interior[d] + 1);
                (at >= 0 && at % step == 0 && at / step < x.ty.dims[d]).then_some(at / step)
            })
            .collect();
        bytes.extend_from_slice(match from {
            Some(from) => x.element(flat(&x.ty.dims, &from)),
            None => value.element(0),
        });
    });
    Tensor { ty: ty.clone(), bytes }
}

pub(super) fn concatenate(ty: &TensorType, parts: &[&Tensor], dim: usize) -> Tensor {
    let mut bytes = Vec::with_capacity(ty.bytes() as usize);
    for_each(&ty.dims, |index| {
        let mut from = Dims::from_slice(index);
        for part in parts {
            let n = part.ty.dims[dim];
            if from[dim] < n {
                bytes.extend_from_slice(part.element(flat(&part.ty.dims, &from)));
                return;
            }
            from[dim] -= n;
        }
    });
    Tensor { ty: ty.clone(), bytes }
}

pub(super) fn reverse(x: &Tensor, dims: &[i64]) -> Tensor {
    collect(&x.ty, x, |index| {
        let mut from = Dims::from_slice(index);
        for &d in dims {
            from[d as usize] = x.ty.dims[d as usize] - 1 - index[d as usize];
        }
        flat(&x.ty.dims, &from)
    })
}

/// Starts clamped so that a block of sizes `block` lies inside `dims`.
fn clamped_starts(dims: &[i64], block: &[i64], starts: &[&Tensor]) -> Dims {
    let starts = starts.iter().map(|t| t.num(0).to_i128() as i64);
    starts.enumerate().map(|(d, s)| s.clamp(0, dims[d] - block[d])).collect()
}

pub(super) fn dynamic_slice(ty: &TensorType, x: &Tensor, starts: &[&Tensor]) -> Tensor {
    let starts = clamped_starts(&x.ty.dims, &ty.dims, starts);
    slice(ty, x, &starts, &Dims::from_elem(1, starts.len()))
}

pub(super) fn dynamic_update_slice(x: &Tensor, update: &Tensor, starts: &[&Tensor]) -> Tensor {
    let starts = clamped_starts(&x.ty.dims, &update.ty.dims, starts);
    let mut out = x.clone();
    for_each(&update.ty.dims, |index| {
        let to: Dims = starts.iter().zip(index).map(|(s, i)| s + i).collect();
        out.element_mut(flat(&x.ty.dims, &to)).copy_from_slice(update.element(flat(&update.ty.dims, index)));
    });
    out
}

/// Calls `f` with the position in the indexed operand (sizes `operand`) and in the gathered tensor, for every element
/// of the latter in row-major order. Indices are clamped into range.
fn for_each_indexed(
    operand: &[i64],
    dims: &[i64],
    indices: &[&Tensor],
    mut f: impl FnMut(usize, usize),
) -> Result<(), String> {
    let rest: Vec<usize> = (0..operand.len()).filter(|d| !dims.contains(&(*d as i64))).collect();
    let rest_sizes: Dims = rest.iter().map(|&d| operand[d]).collect();
    let count = indices[0].numel();
    if count > 0
        && !rest_sizes.contains(&0)
        && let Some(d) = dims.iter().find(|&&d| operand[d as usize] == 0)
    {
        return Err(format!("an index into dimension {d}, which has no elements"));
    }
    let mut gathered = 0;
    for i in 0..count {
        let mut at = Dims::from_elem(0, operand.len());
        for (&d, index) in dims.iter().zip(indices) {
            let max = i128::from(operand[d as usize] - 1);
            at[d as usize] = index.num(i).to_i128().clamp(0, max.max(0)) as i64;
        }
        for_each(&rest_sizes, |r| {
            for (&d, &r) in rest.iter().zip(r) {
                at[d] = r;
            }
            f(flat(operand, &at), gathered);
            gathered += 1;
        });
    }
    Ok(())
}

pub(super) fn gather(ty: &TensorType, x: &Tensor, dims: &[i64], indices: &[&Tensor]) -> Result<Tensor, String> {
    let mut bytes = Vec::with_capacity(ty.bytes() as usize);
    for_each_indexed(&x.ty.dims, dims, indices, |from, _| bytes.extend_from_slice(x.element(from)))?;
    Ok(Tensor { ty: ty.clone(), bytes })
}

/// Elements that no update reaches keep their bytes; the others are rounded once, after their last update.
pub(super) fn scatter(
    kind: ScatterKind,
    x: &Tensor,
    dims: &[i64],
    indices: &[&Tensor],
    updates: &Tensor,
) -> Result<Tensor, String> {
    let mut out = x.clone();
    let mut combined: Vec<Option<Num>> = vec![None; x.numel()];
    for_each_indexed(&x.ty.dims, dims, indices, |to, from| {
        if kind == ScatterKind::Set {
            out.element_mut(to).copy_from_slice(updates.element(from));
            return;
        }
        let old = combined[to].unwrap_or_else(|| x.num(to));
        combined[to] = Some(combine_scatter(kind, old, updates.num(from)));
    })?;
    for (i, num) in combined.into_iter().enumerate() {
        if let Some(num) = num {
            out.element_mut(i).copy_from_slice(&num.encode(x.ty.dtype));
        }
    }
    Ok(out)
}

fn combine_scatter(kind: ScatterKind, old: Num, update: Num) -> Num {
    use super::reduction::{product, sum};
    match kind {
        ScatterKind::Set => update,
        ScatterKind::Add => sum(old, update),
        ScatterKind::Mul => product(old, update),
        ScatterKind::Max => elementwise::larger(old, update),
        ScatterKind::Min => elementwise::smaller(old, update),
    }
}
