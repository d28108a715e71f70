//! Copies and casts. Layouts are the driver's business: a result is written through its predicted strides.
use super::{Row, one};

pub(super) static ROWS: &[Row] = rows![
    "copy_" "copy" "copy.out" => |cx| one(cx.x(1)?);
    "_to_copy" "_to_copy.out" "clone" "clone.out" "_lazy_clone" "lift" "lift.out" "_copy_from" => |cx| one(cx.x(0)?);
];
