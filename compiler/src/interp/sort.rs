//! Sorts: stable, with NaN above everything.
use super::index::for_each_line;
use super::{Num, Tensor, elementwise};
use crate::ir::{DType, TensorType};

/// Order of the elements at `line` after a stable sort, as indices into it.
fn sorted(x: &Tensor, line: &[usize], descending: bool) -> Vec<usize> {
    let nums: Vec<Num> = line.iter().map(|&p| x.num(p)).collect();
    let mut order: Vec<usize> = (0..line.len()).collect();
    order.sort_by(|&a, &b| {
        let up = elementwise::total_order(nums[a], nums[b]);
        if descending { up.reverse() } else { up }
    });
    order
}

/// (values, indices) of the type of `x`.
pub(super) fn sort(x: &Tensor, dim: usize, descending: bool) -> Vec<Tensor> {
    let mut values = x.clone();
    let mut indices = Tensor::zeros(&x.ty.with_dtype(DType::I64));
    for_each_line(&x.ty.dims, dim, |line| {
        for (&to, i) in line.iter().zip(sorted(x, line, descending)) {
            values.element_mut(to).copy_from_slice(x.element(line[i]));
            indices.element_mut(to).copy_from_slice(&(i as i64).to_le_bytes());
        }
    });
    vec![values, indices]
}

/// (values, indices) of types `types`; of equal elements the first comes first.
pub(super) fn top_k(types: &[TensorType], x: &Tensor, k: usize, largest: bool) -> Vec<Tensor> {
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for_each_line(&x.ty.dims, x.ty.rank() - 1, |line| {
        for &i in &sorted(x, line, largest)[..k] {
            values.extend_from_slice(x.element(line[i]));
            indices.extend_from_slice(&(i as i64).to_le_bytes());
        }
    });
    vec![Tensor { ty: types[0].clone(), bytes: values }, Tensor { ty: types[1].clone(), bytes: indices }]
}
