//! The table of recordable ATen ops: each row lowers a family of overloads to a composition of primitives.
//!
//! To add an op: put its names and a composition into the table of its family. Names come from
//! `torch.ops.aten.<op>.<overload>._schema`, arguments are numbered in schema order, and the witness test
//! (`tests/witness/`) needs a case for it. See [`structural`] if it takes numbers whose value must be known.
/// A table: names of the overloads, then the composition.
macro_rules! rows {
    ($($($name:literal)+ => $f:expr;)*) => {
        &[ $( $crate::aten::Row { names: &[ $($name),+ ], lower: $f } ),* ]
    };
}

/// Rows of elementwise functions that have the overloads `f`, `f_` and `f.out`.
macro_rules! unary_rows {
    ($($name:literal => $f:expr;)*) => {
        &[ $( $crate::aten::Row {
            names: &[$name, concat!($name, "_"), concat!($name, ".out")],
            lower: $f,
        } ),* ]
    };
}

mod activation;
mod amp;
mod attention;
mod binary;
mod blend;
mod compare;
mod conv;
mod copy;
mod distance;
mod embedding;
pub mod expr;
mod factory;
mod foreach;
mod grid;
mod index;
mod interpolate;
mod linalg;
mod loss;
mod norm;
mod optim;
mod pad;
mod pool;
pub mod promote;
mod reduce;
mod rng;
mod rnn;
mod shape;
mod softmax;
mod stats;
pub mod structural;
mod unary;

use crate::Cx;
use ahash::AHashMap;
use expr::Ex;
use rsx_compiler::ir::Value;
use std::sync::OnceLock;

/// Why an op cannot be lowered: it becomes a call node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("no lowering for {0}")]
    NoRow(String),
    #[error("{op}: {reason}")]
    Declined { op: String, reason: String },
    /// The row violates a type rule: a bug of the table.
    #[error("{op}: broken lowering: {error}")]
    Broken { op: String, error: String },
}

/// What a row gives: one value per result of the schema (lists spread out), then one per written argument; [`KEEP`]
/// for those that are undefined, are no tensors, or stay as they are.
///
/// The driver converts each to the predicted element type, broadcasts it to the predicted sizes and writes it through
/// the destination's geometry.
pub type Lowered = Result<Vec<Value>, Unsupported>;

/// In the place of a result: nothing to write.
pub const KEEP: Value = Value(u32::MAX);

/// One row: the overloads it serves and how they lower.
pub struct Row {
    /// Full overload names without `aten::`, e.g. `add.Tensor`, `add_.Tensor`, `add.out`.
    pub names: &'static [&'static str],
    pub lower: fn(&mut Cx) -> Lowered,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Row({:?})", self.names)
    }
}

type Table = &'static [Row];

/// The families of rows.
static TABLES: &[Table] = &[
    unary::ROWS,
    unary::SAME,
    unary::FLOAT,
    activation::ROWS,
    activation::BACKWARD,
    binary::ROWS,
    compare::COMPARISONS,
    compare::ROWS,
    blend::ROWS,
    reduce::ROWS,
    stats::ROWS,
    softmax::ROWS,
    linalg::ROWS,
    conv::ROWS,
    pool::ROWS,
    norm::ROWS,
    loss::ROWS,
    attention::ROWS,
    embedding::ROWS,
    index::ROWS,
    shape::ROWS,
    pad::ROWS,
    interpolate::ROWS,
    grid::ROWS,
    distance::ROWS,
    rng::ROWS,
    factory::ROWS,
    copy::ROWS,
    rnn::ROWS,
    amp::ROWS,
    optim::ROWS,
    foreach::ROWS,
];

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    TABLES.iter().flat_map(|t| t.iter())
}

/// The row that serves `name` (`aten::add.Tensor`).
pub fn find(name: &str) -> Option<&'static Row> {
    static BY_NAME: OnceLock<AHashMap<&'static str, &'static Row>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| rows().flat_map(|r| r.names.iter().map(move |&n| (n, r))).collect());
    by_name.get(name.strip_prefix("aten::")?).copied()
}

/// A result of one value.
fn one(x: Ex) -> Lowered {
    Ok(vec![x.v])
}
