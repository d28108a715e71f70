//! Comparisons, selection by masks.
use super::{Lowered, Row, one};
use crate::Cx;
use crate::words::Arg;
use rsx_compiler::ir::{CmpDir, DType, ReduceKind};

/// Comparison in the common type of both operands.
fn compare(cx: &mut Cx, dir: CmpDir) -> Lowered {
    let d = cx.common(&[0, 1]);
    let x = cx.x_as(0, d)?;
    one(x.cmp(dir, cx.x_as(1, d)?))
}

fn select(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[1, 2]);
    let pred = cx.x_as(0, DType::Bool)?;
    let (x, y) = (cx.x_as(1, d)?, cx.x_as(2, d)?);
    one(x.when(pred, y))
}

fn masked_fill(cx: &mut Cx) -> Lowered {
    let x = cx.x(0)?;
    let mask = cx.x_as(1, DType::Bool)?;
    one(cx.x_as(2, x.dtype())?.when(mask, x))
}

/// Which elements of the first argument occur in the second: all pairs compared, for small products.
fn is_in(cx: &mut Cx) -> Lowered {
    let d = cx.common(&[0, 1]);
    let (x, set) = (cx.x_as(0, d)?, cx.x_as(1, d)?.flatten());
    if x.numel().saturating_mul(set.numel()) > 1 << 24 {
        return cx.decline("too many pairs to compare");
    }
    let found = x.unsqueeze(x.rank()).eq(set).reduce(ReduceKind::Or, &[x.rank() as i64]);
    one(if cx.bool(3)? { found.not() } else { found })
}

/// Number of elements of a sorted sequence (argument `seq`, last dimension) before each value: those below it, or not
/// above it if `right`. NaN comes last.
fn search(cx: &mut Cx, seq: usize, values: usize, right: bool) -> Lowered {
    let d = cx.common(&[seq, values]);
    let (s, v) = (cx.x_as(seq, d)?, cx.x_as(values, d)?);
    let n = s.size(s.rank() - 1);
    if v.numel().saturating_mul(n) > 1 << 24 {
        return cx.decline("too many pairs to compare");
    }
    let s = if s.rank() == 1 { s } else { s.unsqueeze(s.rank() - 1) };
    let v = v.unsqueeze(v.rank());
    let after = if right { s.gt(v) } else { s.ge(v) };
    let last = after.rank() as i64 - 1;
    one(after.not().to(DType::I64).sum(&[last]))
}

fn searchsorted(cx: &mut Cx) -> Lowered {
    if !cx.is_none(5) {
        return cx.decline("sequence in another order");
    }
    let right = cx.bool(3)? || matches!(cx.arg(4), Arg::Str(s) if s == "right");
    search(cx, 0, 1, right)
}

macro_rules! comparisons {
    ($($f:literal => $dir:ident;)*) => {
        &[ $( Row {
            names: &[
                concat!($f, ".Tensor"), concat!($f, "_.Tensor"), concat!($f, ".Tensor_out"),
                concat!($f, ".Scalar"), concat!($f, "_.Scalar"), concat!($f, ".Scalar_out"),
            ],
            lower: |cx| compare(cx, CmpDir::$dir),
        } ),* ]
    };
}

pub(super) static COMPARISONS: &[Row] = comparisons![
    "eq" => Eq;
    "ne" => Ne;
    "lt" => Lt;
    "le" => Le;
    "gt" => Gt;
    "ge" => Ge;
];

pub(super) static ROWS: &[Row] = rows![
    "where.self" "where.self_out" => select;
    "masked_fill.Scalar" "masked_fill.Tensor" "masked_fill_.Scalar" "masked_fill_.Tensor" "masked_fill.Scalar_out"
        "masked_fill.Tensor_out" => masked_fill;
    "bucketize.Tensor" "bucketize.Scalar" "bucketize.Tensor_out" "bucketize.Scalar_out" => |cx| {
        let right = cx.bool(3)?;
        search(cx, 1, 0, right)
    };
    "searchsorted.Tensor" "searchsorted.Scalar" "searchsorted.Tensor_out" "searchsorted.Scalar_out" => searchsorted;
    "isin.Tensor_Tensor" "isin.Tensor_Scalar" "isin.Scalar_Tensor" "isin.Tensor_Tensor_out" "isin.Tensor_Scalar_out"
        "isin.Scalar_Tensor_out" => is_in;
];

/// The mask of `index` and `index_put` if it is their only index: then no positions need be known.
pub(super) fn sole_mask<'a>(cx: &Cx<'a>, i: usize) -> Option<&'a Arg> {
    match cx.arg(i) {
        Arg::List(l) => match &l[..] {
            [a @ Arg::Tensor(t)] if matches!(t.dtype.dtype(), Some(DType::Bool | DType::U8)) => Some(a),
            _ => None,
        },
        _ => None,
    }
}
