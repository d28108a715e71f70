//! Pooling over the last dimensions.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{DType, Dims, ReduceKind, ScatterKind, WindowDim};

type Res<T> = Result<T, super::Unsupported>;

/// Windows over the last `n` dimensions of a tensor.
struct Pool {
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
}

impl Pool {
    /// Kernel, stride (default: the kernel) and padding from argument `at` on; dilation from argument `dilation`.
    fn read(cx: &Cx, at: usize, n: usize, dilation: Option<usize>) -> Res<Pool> {
        let kernel = cx.ints_n(at, n, 1)?;
        let stride = if cx.ints(at + 1)?.is_empty() { kernel.clone() } else { cx.ints_n(at + 1, n, 1)? };
        let padding = cx.ints_n(at + 2, n, 0)?;
        let dilation = dilation.map_or(Ok(Dims::from_elem(1, n)), |d| cx.ints_n(d, n, 1))?;
        Ok(Pool { kernel, stride, padding, dilation })
    }

    /// One window per dimension of `x`, such that the result has the sizes `out`: in ceiling mode the last windows
    /// reach beyond the padding.
    fn window(&self, x: Ex, out: &[i64]) -> Vec<WindowDim> {
        let lead = x.rank() - self.kernel.len();
        let mut window = vec![WindowDim::UNIT; lead];
        for k in 0..self.kernel.len() {
            let span = (self.kernel[k] - 1) * self.dilation[k] + 1;
            let pad_lo = self.padding[k];
            window.push(WindowDim {
                size: self.kernel[k],
                stride: self.stride[k],
                pad_lo,
                pad_hi: (out[lead + k] - 1) * self.stride[k] + span - x.size(lead + k) - pad_lo,
                window_dilation: self.dilation[k],
                ..WindowDim::UNIT
            });
        }
        window
    }
}

/// Maxima over windows of the last `n` dimensions and their places in the flattened last `n` dimensions.
fn max_with_places<'a>(cx: &Cx<'a>, x: Ex<'a>, window: Vec<WindowDim>, n: usize) -> (Ex<'a>, Ex<'a>) {
    let lead = x.rank() - n;
    let sizes = x.dims();
    // The primitive takes dimensions whose window is one element for batch dimensions: put them back into the place.
    let passes: Vec<bool> = window.iter().map(|w| *w == WindowDim::UNIT).collect();
    let mut place = x.v;
    let values = x.with(|b| {
        let (v, p) = b.max_pool_with_index(x.v, window);
        place = p;
        v
    });
    let mut rest = Ex::new(x.ctx(), place);
    if !passes[lead..].contains(&true) {
        return (values, rest);
    }
    let out = values.dims();
    let mut full = rest.lit(0.0);
    let mut stride = 1;
    for d in (lead..x.rank()).rev() {
        let coordinate = if passes[d] {
            cx.iota(&out, d)
        } else {
            let c = rest.rem(sizes[d] as f64);
            rest = rest / sizes[d] as f64;
            c
        };
        full = full + coordinate * stride as f64;
        stride *= sizes[d];
    }
    (values, full)
}

fn max_pool(cx: &mut Cx, n: usize) -> Lowered {
    let x = cx.x(0)?;
    let pool = Pool::read(cx, 1, n, Some(4))?;
    let window = pool.window(x, &cx.out(0)?.dims.clone());
    let (v, i) = max_with_places(cx, x, window, n);
    Ok(vec![v.v, i.v])
}

/// Adds `dy` up at `places` of the flattened last `n` dimensions of a zero tensor of the sizes of `like`.
fn scatter_to<'a>(cx: &Cx<'a>, dy: Ex<'a>, places: Ex<'a>, sizes: &[i64], n: usize) -> Ex<'a> {
    let lead: i64 = sizes[..sizes.len() - n].iter().product();
    let inner: i64 = sizes[sizes.len() - n..].iter().product();
    let per = if lead == 0 { 0 } else { dy.numel() / lead };
    let (dy, places) = (dy.opmath().reshape(&[lead, per]), places.to(DType::I64).reshape(&[lead, per]));
    let rows = cx.iota(&[lead, per], 0);
    dy.full(&[lead, inner], 0.0).scatter(ScatterKind::Add, &[0, 1], &[rows, places], dy).reshape(sizes)
}

/// `places`: argument number of the indices.
fn max_pool_backward(cx: &mut Cx, n: usize, places: usize) -> Lowered {
    let (dy, x, places) = (cx.x(0)?, cx.x(1)?, cx.x(places)?);
    one(scatter_to(cx, dy, places, &x.dims(), n))
}

fn max_unpool(cx: &mut Cx, n: usize) -> Lowered {
    let (x, places) = (cx.x(0)?, cx.x(1)?.to(DType::I64));
    let sizes = cx.out(0)?.dims.clone();
    let lead: i64 = sizes[..sizes.len() - n].iter().product();
    let inner: i64 = sizes[sizes.len() - n..].iter().product();
    let per = if lead == 0 { 0 } else { x.numel() / lead };
    let rows = cx.iota(&[lead, per], 0);
    let zero = x.full(&[lead, inner], 0.0);
    let (x, places) = (x.reshape(&[lead, per]), places.reshape(&[lead, per]));
    one(zero.scatter(ScatterKind::Set, &[0, 1], &[rows, places], x).reshape(&sizes))
}

/// Number of elements each window averages over, of sizes 1.., out.. (broadcasts against the result), or a constant.
fn divisor<'a>(cx: &Cx<'a>, pool: &Pool, sizes: &[i64], out: &[i64], flags: usize, dtype: DType) -> Res<Ex<'a>> {
    let n = pool.kernel.len();
    if !cx.is_none(flags + 2) {
        return Ok(cx.scalar(dtype, cx.int(flags + 2)? as f64));
    }
    let with_padding = cx.bool(flags + 1)?;
    let lead = sizes.len() - n;
    let mut total = cx.scalar(dtype, 1.0);
    for k in 0..n {
        let size = sizes[lead + k];
        let counts: Vec<f64> = (0..out[lead + k])
            .map(|o| {
                let start = o * pool.stride[k] - pool.padding[k];
                let end = (start + pool.kernel[k]).min(size + pool.padding[k]);
                (if with_padding { end - start } else { end.min(size) - start.max(0) }) as f64
            })
            .collect();
        let first = counts.first().copied().unwrap_or(1.0);
        total = if counts.iter().all(|&c| c == first) {
            total * first
        } else {
            total * cx.table_f64(&counts).to(dtype).along(lead + k, sizes.len())
        };
    }
    Ok(total)
}

fn avg_pool(cx: &mut Cx, n: usize) -> Lowered {
    let x = cx.math(0)?;
    let pool = Pool::read(cx, 1, n, None)?;
    let out = cx.out(0)?.dims.clone();
    let window = pool.window(x, &out);
    let sum = x.with(|b| b.reduce_window(ReduceKind::Sum, x.v, window));
    one(sum / divisor(cx, &pool, &x.dims(), &out, 4, x.dtype())?)
}

fn avg_pool_backward(cx: &mut Cx, n: usize) -> Lowered {
    let (dy, sizes) = (cx.math(0)?, cx.x(1)?.dims());
    let pool = Pool::read(cx, 2, n, None)?;
    let share = dy / divisor(cx, &pool, &sizes, &dy.dims(), 5, dy.dtype())?;
    let lead = sizes.len() - n;
    let mut window = vec![WindowDim::UNIT; lead];
    for k in 0..n {
        let (size, stride) = (pool.kernel[k], pool.stride[k]);
        let dilated = (dy.size(lead + k) - 1) * stride + 1;
        let pad_lo = size - 1 - pool.padding[k];
        window.push(WindowDim {
            size,
            stride: 1,
            pad_lo,
            pad_hi: sizes[lead + k] + size - 1 - dilated - pad_lo,
            base_dilation: stride,
            ..WindowDim::UNIT
        });
    }
    one(share.with(|b| b.reduce_window(ReduceKind::Sum, share.v, window)))
}

/// First element and length of adaptive window `o` of `out` over `n` elements.
fn adaptive_window(o: i64, out: i64, n: i64) -> (i64, i64) {
    let (start, end) = (o * n / out, ((o + 1) * n + out - 1) / out);
    (start, end - start)
}

/// Row-major matrix [out, n] that averages n elements to `out`, rounded to `dtype`.
fn averaging<'a>(cx: &Cx<'a>, out: i64, n: i64, dtype: DType) -> Ex<'a> {
    let mut m = vec![0.0; (out * n) as usize];
    for o in 0..out {
        let (start, len) = adaptive_window(o, out, n);
        for i in start..start + len {
            m[(o * n + i) as usize] = 1.0 / len as f64;
        }
    }
    cx.table_f64(&m).to(dtype).reshape(&[out, n])
}

/// Contracts dimension `d` of `x` with the columns of `m` (or its rows if `adjoint`).
fn apply_along<'a>(x: Ex<'a>, d: usize, m: Ex<'a>, adjoint: bool) -> Ex<'a> {
    let one = |d: usize| Dims::from_slice(&[d as i64]);
    let dims = rsx_compiler::ir::DotDims {
        lhs_contract: one(d),
        rhs_contract: one(usize::from(!adjoint)),
        ..Default::default()
    };
    let y = super::linalg::dot(x, m, dims, x.dtype());
    y.move_dim(x.rank() - 1, d)
}

/// Averages over the last `n` dimensions down to the result's sizes.
fn adaptive_avg(cx: &mut Cx, n: usize) -> Lowered {
    let mut x = cx.math(0)?;
    let out = cx.out(0)?.dims.clone();
    for d in x.rank() - n..x.rank() {
        let (size, o) = (x.size(d), out[d]);
        if o > 0 && size % o == 0 {
            // Equal windows: a mean over an inner dimension.
            let mut split = x.dims();
            split[d] = o;
            split.insert(d + 1, size / o);
            x = x.reshape(&split).sum(&[d as i64 + 1]) / (size / o) as f64;
        } else {
            x = apply_along(x, d, averaging(cx, o, size, x.dtype()), false);
        }
    }
    one(x)
}

fn adaptive_avg_backward(cx: &mut Cx, n: usize) -> Lowered {
    let (mut g, sizes) = (cx.math(0)?, cx.x(1)?.dims());
    for d in sizes.len() - n..sizes.len() {
        let (size, o) = (sizes[d], g.size(d));
        if o > 0 && size % o == 0 {
            let mut wide = g.dims();
            wide.insert(d + 1, size / o);
            let mut merged = g.dims();
            merged[d] = size;
            g = (g / (size / o) as f64).unsqueeze(d + 1).broadcast(&wide).reshape(&merged);
        } else {
            g = apply_along(g, d, averaging(cx, o, size, g.dtype()), true);
        }
    }
    one(g)
}

fn adaptive_max(cx: &mut Cx, n: usize) -> Lowered {
    let x = cx.x(0)?;
    let out = cx.out(0)?.dims.clone();
    let lead = x.rank() - n;
    let mut window = vec![WindowDim::UNIT; lead];
    for d in lead..x.rank() {
        if out[d] == 0 || x.size(d) % out[d] != 0 {
            return cx.decline("adaptive maxima over windows of unequal sizes");
        }
        let size = x.size(d) / out[d];
        window.push(WindowDim { size, stride: size, ..WindowDim::UNIT });
    }
    let (v, i) = max_with_places(cx, x, window, n);
    Ok(vec![v.v, i.v])
}

pub(super) static ROWS: &[Row] = rows![
    "max_pool2d_with_indices" "max_pool2d_with_indices.out" => |cx| max_pool(cx, 2);
    "max_pool3d_with_indices" "max_pool3d_with_indices.out" => |cx| max_pool(cx, 3);
    "max_pool2d_with_indices_backward" "max_pool2d_with_indices_backward.grad_input"
        => |cx| max_pool_backward(cx, 2, 7);
    "max_pool3d_with_indices_backward" "max_pool3d_with_indices_backward.grad_input"
        => |cx| max_pool_backward(cx, 3, 7);
    "adaptive_max_pool2d_backward" "adaptive_max_pool2d_backward.grad_input" => |cx| max_pool_backward(cx, 2, 2);
    "adaptive_max_pool3d_backward" "adaptive_max_pool3d_backward.grad_input" => |cx| max_pool_backward(cx, 3, 2);
    "max_unpool2d" "max_unpool2d.out" => |cx| max_unpool(cx, 2);
    "max_unpool3d" "max_unpool3d.out" => |cx| max_unpool(cx, 3);
    "avg_pool2d" "avg_pool2d.out" => |cx| avg_pool(cx, 2);
    "avg_pool3d" "avg_pool3d.out" => |cx| avg_pool(cx, 3);
    "avg_pool2d_backward" "avg_pool2d_backward.grad_input" => |cx| avg_pool_backward(cx, 2);
    "avg_pool3d_backward" "avg_pool3d_backward.grad_input" => |cx| avg_pool_backward(cx, 3);
    "_adaptive_avg_pool2d" "_adaptive_avg_pool2d.out" "adaptive_avg_pool2d.out" => |cx| adaptive_avg(cx, 2);
    "_adaptive_avg_pool3d" "_adaptive_avg_pool3d.out" "adaptive_avg_pool3d.out" => |cx| adaptive_avg(cx, 3);
    "_adaptive_avg_pool2d_backward" "_adaptive_avg_pool2d_backward.out" => |cx| adaptive_avg_backward(cx, 2);
    "_adaptive_avg_pool3d_backward" "_adaptive_avg_pool3d_backward.out" "adaptive_avg_pool3d_backward.grad_input"
        => |cx| adaptive_avg_backward(cx, 3);
    "adaptive_max_pool2d" "adaptive_max_pool2d.out" => |cx| adaptive_max(cx, 2);
    "adaptive_max_pool3d" "adaptive_max_pool3d.out" => |cx| adaptive_max(cx, 3);
];
