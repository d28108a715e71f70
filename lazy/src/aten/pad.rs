//! Padding, and reads along one dimension by constant index tables.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{Dims, ScatterKind};

/// Elements `table` of dimension `d`.
pub(super) fn read_by_table<'a>(cx: &Cx<'a>, x: Ex<'a>, d: usize, table: &[i64]) -> Ex<'a> {
    if table.iter().copied().eq(0..x.size(d)) {
        return x;
    }
    x.gather(&[d as i64], &[cx.table(table)]).move_dim(0, d)
}

/// The adjoint of [`read_by_table`]: `g` added up into `n` elements of dimension `d`.
pub(super) fn add_by_table<'a>(cx: &Cx<'a>, g: Ex<'a>, d: usize, table: &[i64], n: i64) -> Ex<'a> {
    if table.iter().copied().eq(0..n) {
        return g;
    }
    let g = g.opmath();
    let mut dims = g.dims();
    dims[d] = n;
    g.full(&dims, 0.0).scatter(ScatterKind::Add, &[d as i64], &[cx.table(table)], g.move_dim(d, 0))
}

fn constant_pad(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let pads = cx.ints(1)?;
    let value = cx.num_or(2, x.dtype(), 0.0)?;
    let r = x.rank();
    let (mut lo, mut hi) = (Dims::from_elem(0, r), Dims::from_elem(0, r));
    // Pairs (before, after) from the last dimension on.
    for (k, p) in pads.chunks_exact(2).enumerate() {
        (lo[r - 1 - k], hi[r - 1 - k]) = (p[0], p[1]);
    }
    one(x.pad(value, &lo, &hi, &Dims::from_elem(0, r)))
}

/// Source of each padded element: mirrored at the first and last element, or the nearest one.
fn pad_table(n: i64, lo: i64, hi: i64, reflect: bool) -> Vec<i64> {
    (-lo..n + hi)
        .map(|i| match () {
            () if !reflect => i.clamp(0, n - 1),
            () if i < 0 => -i,
            () if i >= n => 2 * (n - 1) - i,
            () => i,
        })
        .collect()
}

fn mirror_pad(cx: &mut Cx, reflect: bool) -> Lowered {
    let mut x = cx.x(0)?;
    let r = x.rank();
    for (k, p) in cx.ints(1)?.chunks_exact(2).enumerate() {
        let d = r - 1 - k;
        x = read_by_table(cx, x, d, &pad_table(x.size(d), p[0], p[1], reflect));
    }
    one(x)
}

fn mirror_pad_backward(cx: &mut Cx, reflect: bool) -> Lowered {
    let (mut g, dims) = (cx.x(0)?, cx.x(1)?.dims());
    for (k, p) in cx.ints(2)?.chunks_exact(2).enumerate() {
        let d = dims.len() - 1 - k;
        g = add_by_table(cx, g, d, &pad_table(dims[d], p[0], p[1], reflect), dims[d]);
    }
    one(g)
}

pub(super) static ROWS: &[Row] = rows![
    "constant_pad_nd" "constant_pad_nd.out" => constant_pad;
    "reflection_pad1d" "reflection_pad1d.out" "reflection_pad2d" "reflection_pad2d.out" "reflection_pad3d"
        "reflection_pad3d.out" => |cx| mirror_pad(cx, true);
    "replication_pad1d" "replication_pad1d.out" "replication_pad2d" "replication_pad2d.out" "replication_pad3d"
        "replication_pad3d.out" => |cx| mirror_pad(cx, false);
    "reflection_pad1d_backward" "reflection_pad1d_backward.grad_input" "reflection_pad2d_backward"
        "reflection_pad2d_backward.grad_input" "reflection_pad3d_backward" "reflection_pad3d_backward.grad_input"
        => |cx| mirror_pad_backward(cx, true);
    "replication_pad1d_backward" "replication_pad1d_backward.grad_input" "replication_pad2d_backward"
        "replication_pad2d_backward.grad_input" "replication_pad3d_backward" "replication_pad3d_backward.grad_input"
        => |cx| mirror_pad_backward(cx, false);
];
