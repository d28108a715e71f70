//! Walking index spaces.
use crate::ir::{Dims, row_major_strides};

/// Calls `f` with every index of a tensor of sizes `dims`, in row-major order.
pub(super) fn for_each(dims: &[i64], mut f: impl FnMut(&[i64])) {
    if dims.contains(&0) {
        return;
    }
    let mut index = Dims::from_elem(0, dims.len());
    loop {
        f(&index);
        // Count up like an odometer.
        let Some(d) = (0..dims.len()).rev().find(|&d| index[d] + 1 < dims[d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

/// Position of `index` in a row-major tensor of sizes `dims`.
pub(super) fn flat(dims: &[i64], index: &[i64]) -> usize {
    row_major_strides(dims).iter().zip(index).map(|(s, i)| s * i).sum::<i64>() as usize
}

/// Lines of a tensor along `dim`: calls `f` with the positions of the elements of every line, in order.
pub(super) fn for_each_line(dims: &[i64], dim: usize, mut f: impl FnMut(&[usize])) {
    let mut outer = Dims::from_slice(dims);
    outer[dim] = 1;
    let stride = row_major_strides(dims)[dim] as usize;
    let mut line = vec![0; dims[dim] as usize];
    for_each(&outer, |index| {
        let first = flat(dims, index);
        for (i, position) in line.iter_mut().enumerate() {
            *position = first + i * stride;
        }
        f(&line);
    });
}
