//! Ops that move elements: concatenation, repetition, triangles, diagonals, gradients of views.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use crate::cx::wrap_dim;
use rsx_compiler::ir::Dims;

fn concat<'a>(cx: &Cx<'a>, parts: &[Ex<'a>], d: usize) -> Lowered {
    match Ex::concat(parts, d) {
        Some(x) => one(x),
        None => cx.decline("nothing to concatenate"),
    }
}

fn cat(cx: &mut Cx) -> Lowered {
    let (dtype, rank) = (cx.out(0)?.dtype, cx.out(0)?.rank());
    // 1-d tensors without elements are skipped, whatever the rank of the others.
    let mut parts: Vec<Ex> = cx.list(0)?.into_iter().filter(|p| p.rank() != 1 || p.numel() > 0).collect();
    parts.iter_mut().for_each(|p| *p = p.to(dtype));
    if parts.is_empty() {
        return one(cx.fill(dtype, &cx.out(0)?.dims.clone(), 0.0));
    }
    let d = cx.dim(1, rank)?;
    concat(cx, &parts, d)
}

fn stack(cx: &mut Cx) -> Lowered {
    let (dtype, rank) = (cx.out(0)?.dtype, cx.out(0)?.rank());
    let d = cx.dim(1, rank)?;
    let parts: Vec<Ex> = cx.list(0)?.into_iter().map(|p| p.to(dtype).unsqueeze(d)).collect();
    concat(cx, &parts, d)
}

fn repeat(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let times = cx.ints(1)?;
    let lead = times.len() - x.rank();
    // [r0, n0, r1, n1, ..], then pairs merge.
    let (mut narrow, mut wide, mut merged) = (Dims::new(), Dims::new(), Dims::new());
    for (k, &r) in times.iter().enumerate() {
        let n = if k < lead { 1 } else { x.size(k - lead) };
        narrow.extend_from_slice(&[1, n]);
        wide.extend_from_slice(&[r, n]);
        merged.push(r * n);
    }
    one(x.reshape(&narrow).broadcast(&wide).reshape(&merged))
}

fn rolled(x: Ex<'_>, d: usize, shift: i64) -> Ex<'_> {
    let n = x.size(d);
    let s = if n == 0 { 0 } else { shift.rem_euclid(n) };
    if s == 0 {
        return x;
    }
    Ex::concat(&[x.slice(d, n - s, n, 1), x.slice(d, 0, n - s, 1)], d).unwrap_or(x)
}

fn roll(cx: &mut Cx) -> Lowered {
    let mut x = cx.x(0)?;
    let (shifts, dims) = (cx.ints(1)?, cx.ints(2)?);
    if dims.is_empty() {
        let dims = x.dims();
        return one(rolled(x.flatten(), 0, shifts.first().copied().unwrap_or(0)).reshape(&dims));
    }
    for (&s, &d) in shifts.iter().zip(dims) {
        x = rolled(x, wrap_dim(d, x.rank()), s);
    }
    one(x)
}

fn flip(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let mut dims: Dims = cx.ints(1)?.iter().map(|&d| wrap_dim(d, x.rank()) as i64).collect();
    dims.sort_unstable();
    one(if x.rank() == 0 { x } else { x.reverse(&dims) })
}

/// Elements below (or on) diagonal `k` if `lower`, else above (or on) it.
fn triangle(cx: &mut Cx, lower: bool) -> Lowered {
    let x = cx.x(0)?;
    let k = cx.int_or(1, 0)?;
    let (r, dims) = (x.rank(), x.dims());
    let plane = &dims[r - 2..];
    let offset = cx.iota(plane, 1) - cx.iota(plane, 0);
    one(x.when(if lower { offset.le(k as f64) } else { offset.ge(k as f64) }, 0.0))
}

/// `g` (diagonal last) spread over a tensor of sizes `dims` with the diagonal in dimensions `d1`, `d2`, and the mask
/// of that diagonal.
fn on_diagonal<'a>(cx: &Cx<'a>, g: Ex<'a>, dims: &[i64], offset: i64, d1: usize, d2: usize) -> (Ex<'a>, Ex<'a>) {
    let r = dims.len();
    let (len, lo) = (g.size(g.rank() - 1), (-offset).max(0));
    let mut pads = [Dims::from_elem(0, g.rank()), Dims::from_elem(0, g.rank())];
    (pads[0][g.rank() - 1], pads[1][g.rank() - 1]) = (lo, dims[d1] - lo - len);
    let zeros = Dims::from_elem(0, g.rank());
    let rows = g.pad(0.0, &pads[0], &pads[1], &zeros);
    let rows = rows.unsqueeze(rows.rank());
    let mut rest = 0..r as i64 - 2;
    let perm: Dims = (0..r)
        .map(|o| match o {
            _ if o == d1 => r as i64 - 2,
            _ if o == d2 => r as i64 - 1,
            _ => rest.next().unwrap_or_default(),
        })
        .collect();
    let mask = (cx.iota(dims, d2) - cx.iota(dims, d1)).eq(offset as f64);
    (rows.permute(&perm).broadcast(dims), mask)
}

fn diag_embed(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let dims = cx.out(0)?.dims.clone();
    let offset = cx.int_or(1, 0)?;
    let (d1, d2) = (wrap_dim(cx.int_or(2, -2)?, dims.len()), wrap_dim(cx.int_or(3, -1)?, dims.len()));
    let (v, mask) = on_diagonal(cx, x, &dims, offset, d1, d2);
    one(v.when(mask, 0.0))
}

fn diagonal_backward(cx: &mut Cx) -> Lowered {
    let (g, dims) = (cx.x(0)?, cx.ints(1)?);
    let (offset, d1, d2) = (cx.int(2)?, cx.dim(3, dims.len())?, cx.dim(4, dims.len())?);
    let (v, mask) = on_diagonal(cx, g, dims, offset, d1, d2);
    one(v.when(mask, 0.0))
}

fn diagonal_scatter(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let src = cx.x_as(1, x.dtype())?;
    let dims = x.dims();
    let (offset, d1, d2) =
        (cx.int_or(2, 0)?, wrap_dim(cx.int_or(3, 0)?, dims.len()), wrap_dim(cx.int_or(4, 1)?, dims.len()));
    let (v, mask) = on_diagonal(cx, src, &dims, offset, d1, d2);
    one(v.when(mask, x))
}

/// `g` at positions start, start + step, .. of dimension `d` of a tensor of `n` elements there, else `fill`.
pub(super) fn placed<'a>(g: Ex<'a>, d: usize, n: i64, start: i64, step: i64, fill: Ex<'a>) -> Ex<'a> {
    let r = g.rank();
    let len = g.size(d);
    let span = if len == 0 { 0 } else { (len - 1) * step + 1 };
    let mut pads = [Dims::from_elem(0, r), Dims::from_elem(0, r), Dims::from_elem(0, r)];
    (pads[0][d], pads[1][d], pads[2][d]) = (start, n - start - span, step - 1);
    g.pad(fill, &pads[0], &pads[1], &pads[2])
}

/// Start of a slice over `n` elements (`None` is the beginning).
fn slice_start(start: i64, n: i64) -> i64 {
    (if start < 0 { start + n } else { start }).clamp(0, n)
}

fn slice_backward(cx: &mut Cx) -> Lowered {
    let (g, dims) = (cx.x(0)?, cx.ints(1)?);
    let d = cx.dim(2, dims.len())?;
    let start = slice_start(cx.int(3)?, dims[d]);
    one(placed(g, d, dims[d], start, cx.int(5)?, g.full(&[], 0.0)))
}

fn select_backward(cx: &mut Cx) -> Lowered {
    let (g, dims) = (cx.x(0)?, cx.ints(1)?);
    let d = cx.dim(2, dims.len())?;
    let i = cx.int(3)?;
    let i = if i < 0 { i + dims[d] } else { i };
    one(placed(g.unsqueeze(d), d, dims[d], i, 1, g.full(&[], 0.0)))
}

/// `x` with `src` at positions start, start + step, .. of dimension `d`.
fn replaced<'a>(cx: &Cx<'a>, x: Ex<'a>, src: Ex<'a>, d: usize, start: i64, step: i64) -> Ex<'a> {
    let n = x.size(d);
    let v = placed(src, d, n, start, step, src.full(&[], 0.0));
    let at = cx.iota(&[n], 0) - start as f64;
    let end = src.size(d) * step;
    let inside = at.ge(0.0).and(at.lt(end as f64)).and(at.rem(step as f64).eq(0.0));
    v.when(inside.along(d, x.rank()), x)
}

fn slice_scatter(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let src = cx.x_as(1, x.dtype())?;
    let d = wrap_dim(cx.int_or(2, 0)?, x.rank());
    let start = slice_start(cx.int_or(3, 0)?, x.size(d));
    one(replaced(cx, x, src, d, start, cx.int_or(5, 1)?))
}

fn select_scatter(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let src = cx.x_as(1, x.dtype())?;
    let d = cx.dim(2, x.rank())?;
    let i = cx.int(3)?;
    one(replaced(cx, x, src.unsqueeze(d), d, if i < 0 { i + x.size(d) } else { i }, 1))
}

fn pixel_shuffle(cx: &mut Cx) -> Lowered {
    let (x, r) = (cx.x(0)?, cx.int(1)?);
    let (dims, lead) = (x.dims(), x.rank() - 3);
    let (c, h, w) = (dims[lead] / (r * r), dims[lead + 1], dims[lead + 2]);
    let n: i64 = dims[..lead].iter().product();
    let y = x.reshape(&[n, c, r, r, h, w]).permute(&[0, 1, 4, 2, 5, 3]);
    one(y.reshape(&cx.out(0)?.dims.clone()))
}

fn pixel_unshuffle(cx: &mut Cx) -> Lowered {
    let (x, r) = (cx.x(0)?, cx.int(1)?);
    let (dims, lead) = (x.dims(), x.rank() - 3);
    let (c, h, w) = (dims[lead], dims[lead + 1] / r, dims[lead + 2] / r);
    let n: i64 = dims[..lead].iter().product();
    let y = x.reshape(&[n, c, h, r, w, r]).permute(&[0, 1, 3, 5, 2, 4]);
    one(y.reshape(&cx.out(0)?.dims.clone()))
}

fn channel_shuffle(cx: &mut Cx) -> Lowered {
    let (x, g) = (cx.x(0)?, cx.int(1)?);
    let dims = x.dims();
    let mut split = dims.clone();
    split[1] = dims[1] / g;
    split.insert(1, g);
    one(x.reshape(&split).swap(1, 2).reshape(&dims))
}

/// Windows of `unfold` added up where they came from.
fn unfold_backward(cx: &mut Cx) -> Lowered {
    let (g, dims) = (cx.x(0)?, cx.ints(1)?);
    if dims.is_empty() {
        return one(g.reshape(&[]));
    }
    let d = cx.dim(2, dims.len())?;
    let (size, step) = (cx.int(3)?, cx.int(4)?);
    let windows = g.size(d);
    let mut merged = Dims::from_slice(&g.dims()[..dims.len()]);
    merged[d] = windows * size;
    let g = g.move_dim(g.rank() - 1, d + 1).reshape(&merged);
    let table: Vec<i64> = (0..windows).flat_map(|w| (0..size).map(move |s| w * step + s)).collect();
    one(super::pad::add_by_table(cx, g, d, &table, dims[d]))
}

/// Windows of the last two dimensions as `im2col` numbers them: per spatial dimension, (padded size, positions in it of
/// kernel element and window, kernel-major). Kernel, dilation, padding and stride from argument `at` on.
fn columns(cx: &Cx, sizes: &[i64], at: usize) -> Result<[(i64, i64, Vec<i64>); 2], super::Unsupported> {
    let lists = [cx.ints_n(at, 2, 1)?, cx.ints_n(at + 1, 2, 1)?, cx.ints_n(at + 2, 2, 0)?, cx.ints_n(at + 3, 2, 1)?];
    Ok([0, 1].map(|k| {
        let [kernel, dilation, padding, stride] = [0, 1, 2, 3].map(|l: usize| lists[l][k]);
        let padded = sizes[k] + 2 * padding;
        let windows = (padded - dilation * (kernel - 1) - 1) / stride + 1;
        let table = (0..kernel).flat_map(|i| (0..windows).map(move |w| i * dilation + w * stride));
        (padding, kernel, table.collect())
    }))
}

fn im2col(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let (r, dims) = (x.rank(), x.dims());
    let spatial = columns(cx, &dims[r - 2..], 1)?;
    let mut pads = Dims::from_elem(0, r);
    (pads[r - 2], pads[r - 1]) = (spatial[0].0, spatial[1].0);
    let mut y = x.pad(0.0, &pads, &pads, &Dims::from_elem(0, r));
    for (k, (_, _, table)) in spatial.iter().enumerate() {
        y = super::pad::read_by_table(cx, y, r - 2 + k, table);
    }
    // [n, c, kh, windows, kw, windows] to [n, c * kh * kw, windows * windows].
    let lead: i64 = dims[..r - 2].iter().product();
    let split = spatial.each_ref().map(|s| (s.1, s.2.len() as i64 / s.1));
    let y = y.reshape(&[lead, split[0].0, split[0].1, split[1].0, split[1].1]).permute(&[0, 1, 3, 2, 4]);
    one(y.reshape(&cx.out(0)?.dims.clone()))
}

/// The adjoint of `im2col`.
fn col2im(cx: &mut Cx) -> Lowered {
    let g = cx.x(0)?;
    let sizes = cx.out(0)?.dims.clone();
    let r = sizes.len();
    let spatial = columns(cx, &sizes[r - 2..], 2)?;
    let split = spatial.each_ref().map(|s| (s.1, s.2.len() as i64 / s.1));
    let lead: i64 = sizes[..r - 2].iter().product();
    let y = g.reshape(&[lead, split[0].0, split[1].0, split[0].1, split[1].1]).permute(&[0, 1, 3, 2, 4]);
    let mut y = y.reshape(&[lead, spatial[0].2.len() as i64, spatial[1].2.len() as i64]);
    for (k, (padding, _, table)) in spatial.iter().enumerate() {
        let n = sizes[r - 2 + k];
        y = super::pad::add_by_table(cx, y, 1 + k, table, n + 2 * padding).slice(1 + k, *padding, padding + n, 1);
    }
    one(y.reshape(&sizes))
}

pub(super) static ROWS: &[Row] = rows![
    "cat" "cat.out" => cat;
    "stack" "stack.out" "_stack" "_stack.out" => stack;
    "repeat" "repeat.out" => repeat;
    "roll" "roll.out" => roll;
    "flip" "flip.out" => flip;
    "tril" "tril_" "tril.out" => |cx| triangle(cx, true);
    "triu" "triu_" "triu.out" => |cx| triangle(cx, false);
    "diag_embed" "diag_embed.out" => diag_embed;
    "diagonal_backward" "diagonal_backward.out" => diagonal_backward;
    "diagonal_scatter" "diagonal_scatter.out" => diagonal_scatter;
    "slice_backward" "slice_backward.out" => slice_backward;
    "select_backward" "select_backward.out" => select_backward;
    "slice_scatter" "slice_scatter.out" => slice_scatter;
    "select_scatter" "select_scatter.out" => select_scatter;
    "pixel_shuffle" "pixel_shuffle.out" => pixel_shuffle;
    "pixel_unshuffle" "pixel_unshuffle.out" => pixel_unshuffle;
    "channel_shuffle" "channel_shuffle.out" => channel_shuffle;
    "im2col" "im2col.out" => im2col;
    "col2im" "col2im.out" => col2im;
    "unfold_backward" "unfold_backward.out" => unfold_backward;
    "_unsafe_view" "_unsafe_view.out" => |cx| {
        let (x, dims) = (cx.x(0)?, cx.out(0)?.dims.clone());
        one(x.reshape(&dims))
    };
];
