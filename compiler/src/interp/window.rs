//! Windows over the dimensions of a tensor.
use super::index::{flat, for_each};
use super::{Num, Tensor, elementwise, reduction};
use crate::ir::{Dims, ReduceKind, TensorType, WindowDim};
use std::cmp::Ordering;

/// Which element of a dimension of `n` elements lies under element `k` of the window at position `out`: none for
/// padding and for the holes of a dilated input.
pub(super) fn source(w: &WindowDim, n: i64, out: i64, k: i64) -> Option<i64> {
    let at = out * w.stride + k * w.window_dilation - w.pad_lo;
    (at >= 0 && at % w.base_dilation == 0 && at / w.base_dilation < n).then_some(at / w.base_dilation)
}

/// Calls `f` with the index of every element of `x` under the window at position `out`, in row-major order.
fn for_each_under(x: &Tensor, window: &[WindowDim], out: &[i64], mut f: impl FnMut(&[i64])) {
    let sizes: Dims = window.iter().map(|w| w.size).collect();
    for_each(&sizes, |k| {
        let from: Option<Dims> = (0..k.len()).map(|d| source(&window[d], x.ty.dims[d], out[d], k[d])).collect();
        if let Some(from) = from {
            f(&from);
        }
    });
}

pub(super) fn reduce_window(ty: &TensorType, kind: ReduceKind, x: &Tensor, window: &[WindowDim]) -> Tensor {
    let mut nums = Vec::with_capacity(ty.numel() as usize);
    for_each(&ty.dims, |out| {
        let mut acc = reduction::identity(kind, x.ty.dtype);
        for_each_under(x, window, out, |from| {
            acc = reduction::combine(kind, acc, x.num(flat(&x.ty.dims, from)));
        });
        nums.push(acc);
    });
    Tensor::from_nums(ty, nums)
}

/// (values, indices). The first of equal maxima wins, and a NaN wins over everything (the last NaN, as in PyTorch);
/// padding is never chosen. A window of padding only has the identity and index 0.
pub(super) fn max_pool_with_index(types: &[TensorType], x: &Tensor, window: &[WindowDim]) -> Vec<Tensor> {
    // Batch dimensions do not count in the index.
    let windowed: Vec<usize> = (0..window.len()).filter(|&d| window[d].size != 1 || window[d].stride != 1).collect();
    let plane: Dims = windowed.iter().map(|&d| x.ty.dims[d]).collect();
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for_each(&types[0].dims, |out| {
        let mut best: Option<(Num, usize)> = None;
        for_each_under(x, window, out, |from| {
            let new = x.num(flat(&x.ty.dims, from));
            let wins =
                best.is_none_or(|(old, _)| new.is_nan() || elementwise::total_order(new, old) == Ordering::Greater);
            if wins {
                best = Some((new, flat(&plane, &windowed.iter().map(|&d| from[d]).collect::<Dims>())));
            }
        });
        let (value, index) = best.unwrap_or((reduction::identity(ReduceKind::Max, x.ty.dtype), 0));
        values.push(value);
        indices.push(Num::I(index as i128));
    });
    vec![Tensor::from_nums(&types[0], values), Tensor::from_nums(&types[1], indices)]
}
