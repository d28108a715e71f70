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
