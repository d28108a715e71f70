//! Reads and writes by index tensors.
use super::compare::sole_mask;
use super::expr::{Ex, broadcast_dims};
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{CumKind, DType, Dims, ReduceKind, ScatterKind};

type Res<T> = Result<T, super::Unsupported>;

/// Negative indices count from the end.
fn wrapped(i: Ex, n: i64) -> Ex {
    (i + n as f64).when(i.lt(0.0), i)
}

/// At least one dimension: 0-d tensors are indexed like tensors of one element.
fn one_d(x: Ex) -> Ex {
    if x.rank() == 0 { x.reshape(&[1]) } else { x }
}

/// A parsed `Tensor?[] indices` argument over a tensor.
struct Indices<'a> {
    /// Indexed dimensions, increasing.
    dims: Dims,
    /// Equal sizes, wrapped, i64.
    at: Vec<Ex<'a>>,
    /// Where the index dimensions go in the result, and how many there are.
    place: usize,
    count: usize,
}

impl<'a> Indices<'a> {
    fn read(cx: &mut Cx<'a>, i: usize, x: Ex<'a>) -> Res<Indices<'a>> {
        let list = cx.opt_list(i)?;
        let mut dims = Dims::new();
        let mut at = Vec::new();
        for (d, index) in list.into_iter().enumerate() {
            let Some(index) = index else { continue };
            if !index.dtype().is_int() || (index.dtype() == DType::U8) {
                return cx.decline("index by a mask");
            }
            dims.push(d as i64);
            at.push(wrapped(index.to(DType::I64), x.size(d)));
        }
        let sizes = at.iter().fold(Dims::new(), |s, e| broadcast_dims(&s, &e.dims()));
        let at: Vec<Ex<'a>> = at.into_iter().map(|e| e.broadcast(&sizes)).collect();
        if at.is_empty() {
            return cx.decline("no index");
        }
        let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
        let place = if adjacent { dims[0] as usize } else { 0 };
        Ok(Indices { dims, at, place, count: sizes.len() })
    }

    /// From (index dimensions, rest) to the result's order.
    fn to_result(&self, x: Ex<'a>) -> Ex<'a> {
        let (m, p) = (self.count as i64, self.place as i64);
        let perm: Dims = (m..m + p).chain(0..m).chain(m + p..x.rank() as i64).collect();
        x.permute(&perm)
    }

    /// Inverse of [`Indices::to_result`].
    fn from_result(&self, x: Ex<'a>) -> Ex<'a> {
        let (m, p) = (self.count as i64, self.place as i64);
        let perm: Dims = (p..p + m).chain(0..p).chain(p + m..x.rank() as i64).collect();
        x.permute(&perm)
    }

    /// Sizes of the result of indexing `x`.
    fn result_dims(&self, x: Ex) -> Dims {
        let rest: Dims = (0..x.rank()).filter(|d| !self.dims.contains(&(*d as i64))).map(|d| x.size(d)).collect();
        let mut out: Dims = Dims::from_slice(&rest[..self.place]);
        out.extend_from_slice(&self.at[0].dims());
        out.extend_from_slice(&rest[self.place..]);
        out
    }
}

fn index(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let i = Indices::read(cx, 1, x)?;
    one(i.to_result(x.gather(&i.dims, &i.at)))
}

fn index_put(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let values = cx.x_as(2, x.dtype())?;
    let accumulate = cx.bool(3)?;
    if let Some(mask) = sole_mask(cx, 1)
        && values.numel() == 1
    {
        let mask = cx.value(mask)?.to(DType::Bool);
        let mut dims = mask.dims();
        dims.resize(x.rank(), 1);
        let value = values.reshape(&[]);
        let value = if accumulate { x + value } else { value };
        return one(value.when(mask.reshape(&dims), x));
    }
    let i = Indices::read(cx, 1, x)?;
    let updates = i.from_result(values.broadcast(&i.result_dims(x)));
    one(if accumulate {
        add_at(x, &i.dims, &i.at, updates)
    } else {
        x.scatter(ScatterKind::Set, &i.dims, &i.at, updates)
    })
}

/// Adds in the opmath type, so that many small summands are not lost in bf16.
fn add_at<'a>(x: Ex<'a>, dims: &[i64], at: &[Ex<'a>], updates: Ex<'a>) -> Ex<'a> {
    x.opmath().scatter(ScatterKind::Add, dims, at, updates.opmath()).to(x.dtype())
}

/// Tensor argument 0, a dimension and a 1-d index of it (arguments 1 and 2).
fn by_dim<'a>(cx: &mut Cx<'a>) -> Res<(Ex<'a>, usize, Ex<'a>)> {
    let x = one_d(cx.x(0)?);
    let d = cx.dim(1, x.rank())?;
    let index = cx.x_as(2, DType::I64)?;
    Ok((x, d, index.flatten()))
}

fn index_select(cx: &mut Cx) -> Lowered {
    let rank = cx.x(0)?.rank();
    let (x, d, index) = by_dim(cx)?;
    let y = x.gather(&[d as i64], &[index]).move_dim(0, d);
    one(if rank == 0 { y.reshape(&[]) } else { y })
}

/// Source (argument 3) with its dimension `d` first.
fn source_first<'a>(cx: &mut Cx<'a>, x: Ex<'a>, d: usize) -> Res<Ex<'a>> {
    Ok(one_d(cx.x_as(3, x.dtype())?).move_dim(d, 0))
}

fn index_add(cx: &mut Cx) -> Lowered {
    let dims = cx.x(0)?.dims();
    let (x, d, index) = by_dim(cx)?;
    let mut source = source_first(cx, x, d)?;
    if !cx.is_one(4) {
        source = source.opmath() * cx.x_as(4, x.dtype().opmath())?;
    }
    one(add_at(x, &[d as i64], &[index], source).reshape(&dims))
}

fn index_copy(cx: &mut Cx) -> Lowered {
    let dims = cx.x(0)?.dims();
    let (x, d, index) = by_dim(cx)?;
    let source = source_first(cx, x, d)?;
    let mut want = x.dims();
    want.remove(d);
    want.insert(0, index.numel());
    let source = source.reshape(&want);
    one(x.scatter(ScatterKind::Set, &[d as i64], &[index], source).reshape(&dims))
}

fn index_fill(cx: &mut Cx) -> Lowered {
    let dims = cx.x(0)?.dims();
    let (x, d, index) = by_dim(cx)?;
    let index = wrapped(index, x.size(d));
    let value = cx.x_as(3, x.dtype())?;
    // A mask over the dimension: cheaper than a scatter of whole slices.
    let n = x.size(d);
    let hit = cx.iota(&[n, index.numel()], 0).eq(index).reduce(ReduceKind::Or, &[1]);
    one(value.reshape(&[]).when(hit.along(d, x.rank()), x).reshape(&dims))
}

/// Index operands of `gather` and `scatter` along one dimension: the index there, own positions elsewhere.
fn along<'a>(cx: &Cx<'a>, index: Ex<'a>, d: usize) -> (Dims, Vec<Ex<'a>>) {
    let dims = index.dims();
    let at = (0..dims.len()).map(|k| if k == d { index } else { cx.iota(&dims, k) });
    ((0..dims.len() as i64).collect(), at.collect())
}

fn gather(cx: &mut Cx) -> Lowered {
    let x = one_d(cx.x(0)?);
    let index = cx.x_as(2, DType::I64)?;
    let dims = index.dims();
    let index = one_d(index);
    let d = cx.dim(1, x.rank())?;
    let (all, at) = along(cx, index, d);
    one(x.gather(&all, &at).reshape(&dims))
}

/// What `scatter` and its kin do with what is there.
fn scatter_kind(cx: &Cx, name: &str) -> Res<ScatterKind> {
    Ok(match name {
        "add" | "sum" | "mean" => ScatterKind::Add,
        "multiply" | "prod" => ScatterKind::Mul,
        "amax" => ScatterKind::Max,
        "amin" => ScatterKind::Min,
        other => return cx.decline(format!("reduction {other}")),
    })
}

/// Operands of the scatter family: self, index, and the source cut to the index's sizes.
struct Scatter<'a> {
    x: Ex<'a>,
    dims: Dims,
    at: Vec<Ex<'a>>,
    updates: Ex<'a>,
}

impl<'a> Scatter<'a> {
    fn read(cx: &mut Cx<'a>) -> Res<Scatter<'a>> {
        let x = one_d(cx.x(0)?);
        let index = one_d(cx.x_as(2, DType::I64)?);
        let d = cx.dim(1, x.rank())?;
        let mut updates = cx.x_as(3, x.dtype())?;
        let sizes = index.dims();
        if updates.rank() == sizes.len() {
            for (k, &n) in sizes.iter().enumerate() {
                updates = updates.slice(k, 0, n, 1);
            }
        } else {
            updates = updates.broadcast(&sizes);
        }
        let (dims, at) = along(cx, index, d);
        Ok(Scatter { x, dims, at, updates })
    }

    fn apply(&self, kind: ScatterKind) -> Ex<'a> {
        match kind {
            ScatterKind::Add => add_at(self.x, &self.dims, &self.at, self.updates),
            _ => self.x.scatter(kind, &self.dims, &self.at, self.updates),
        }
    }

    fn with_base(&self, x: Ex<'a>) -> Scatter<'a> {
        Scatter { x, dims: self.dims.clone(), at: self.at.clone(), updates: self.updates }
    }

    /// How often each element is written, on top of `start`.
    fn counts(&self, start: f64) -> Ex<'a> {
        let d = DType::F32;
        let base = self.x.int(d, start as i64);
        base.scatter(ScatterKind::Add, &self.dims, &self.at, self.updates.int(d, 1))
    }
}

fn scatter(cx: &mut Cx, reduce: Option<usize>) -> Lowered {
    let dims = cx.x(0)?.dims();
    let kind = match reduce {
        Some(i) => scatter_kind(cx, cx.str(i)?)?,
        None => ScatterKind::Set,
    };
    one(Scatter::read(cx)?.apply(kind).reshape(&dims))
}

fn scatter_add(cx: &mut Cx) -> Lowered {
    let dims = cx.x(0)?.dims();
    one(Scatter::read(cx)?.apply(ScatterKind::Add).reshape(&dims))
}

/// Smallest and largest value of an integer type (bits of the largest for `U64`).
fn int_range(d: DType) -> (i64, i64) {
    let bits = d.size() as u32 * 8;
    match (d, d.is_signed()) {
        (DType::Bool, _) => (0, 1),
        (_, true) => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
        (_, false) => (0, (u64::MAX >> (64 - bits)) as i64),
    }
}

fn scatter_reduce(cx: &mut Cx) -> Lowered {
    let dims = cx.x(0)?.dims();
    let name = cx.str(4)?;
    let kind = scatter_kind(cx, name)?;
    let include = cx.bool(5)?;
    let s = Scatter::read(cx)?;
    let (x, float) = (s.x, s.x.dtype().is_float());
    let counts = s.counts(f64::from(u8::from(include)));
    let base = if include {
        x
    } else {
        // Elements that are written start from the identity.
        let identity = match kind {
            ScatterKind::Mul => x.lit(1.0),
            ScatterKind::Max if float => x.lit(f64::NEG_INFINITY),
            ScatterKind::Min if float => x.lit(f64::INFINITY),
            ScatterKind::Max => x.int(x.dtype(), int_range(x.dtype()).0),
            ScatterKind::Min => x.int(x.dtype(), int_range(x.dtype()).1),
            ScatterKind::Add | ScatterKind::Set => x.lit(0.0),
        };
        identity.when(counts.gt(0.0), x)
    };
    let y = s.with_base(base).apply(kind);
    if name != "mean" {
        return one(y.reshape(&dims));
    }
    let counts = counts.max(1.0).to(if float { x.dtype() } else { DType::I64 });
    if !float && x.dtype().is_signed() {
        // Integers round down, as eager does.
        let (y, c) = (y.to(DType::I64), counts);
        let (q, r) = (y / c, y.rem(c));
        return one((q - 1.0).when(r.lt(0.0), q).reshape(&dims));
    }
    one((y.opmath() / counts.to(y.dtype()).opmath()).reshape(&dims))
}

fn take(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?.flatten();
    let index = cx.x_as(1, DType::I64)?;
    one(x.gather(&[0], &[wrapped(index, x.numel())]))
}

fn put(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let flat = x.flatten();
    let index = wrapped(cx.x_as(1, DType::I64)?.flatten(), x.numel());
    let source = cx.x_as(2, x.dtype())?.flatten();
    one(if cx.bool(3)? {
        add_at(flat, &[0], &[index], source)
    } else {
        flat.scatter(ScatterKind::Set, &[0], &[index], source)
    }
    .reshape(&x.dims()))
}

/// The k-th true element of the mask takes the k-th element of the source.
fn masked_scatter(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let mask = cx.x_as(1, DType::Bool)?.broadcast(&x.dims()).flatten();
    let source = cx.x_as(2, x.dtype())?.flatten();
    if source.numel() == 0 || mask.numel() == 0 {
        return one(x);
    }
    let k = (mask.to(DType::I64).cumulative(CumKind::Sum, 0) - 1.0).max(0.0).min(source.numel() as f64 - 1.0);
    one(source.gather(&[0], &[k]).when(mask, x.flatten()).reshape(&x.dims()))
}

pub(super) static ROWS: &[Row] = rows![
    "index.Tensor" "index.Tensor_out" "_unsafe_index.Tensor" => index;
    "index_put" "index_put_" "index_put.out" "_index_put_impl" "_index_put_impl_" "_index_put_impl.out"
        "_unsafe_index_put" => index_put;
    "index_select" "index_select.out" => index_select;
    "index_add" "index_add_" "index_add.out" => index_add;
    "index_copy" "index_copy_" "index_copy.out" => index_copy;
    "index_fill.int_Scalar" "index_fill.int_Tensor" "index_fill_.int_Scalar" "index_fill_.int_Tensor"
        "index_fill.int_Scalar_out" "index_fill.int_Tensor_out" => index_fill;
    "gather" "gather.out" => gather;
    "scatter.src" "scatter_.src" "scatter.src_out" "scatter.value" "scatter_.value" "scatter.value_out"
        => |cx| scatter(cx, None);
    "scatter.reduce" "scatter_.reduce" "scatter.reduce_out" "scatter.value_reduce" "scatter_.value_reduce"
        "scatter.value_reduce_out" => |cx| scatter(cx, Some(4));
    "scatter_add" "scatter_add_" "scatter_add.out" => scatter_add;
    "scatter_reduce.two" "scatter_reduce_.two" "scatter_reduce.two_out" => scatter_reduce;
    "take" "take.out" => take;
    "put" "put_" "put.out" => put;
    "masked_scatter" "masked_scatter_" "masked_scatter.out" => masked_scatter;
];
