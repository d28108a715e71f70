//! The table of recordable ATen ops: each row lowers a family of overloads to a composition of primitives.
use crate::lower::{Cx, Unsupported};
use rsx_compiler::ir::Value;

/// What a row gives: one value per result, fresh outputs first, then written arguments.
///
/// The driver converts each to the predicted element type, broadcasts it to the predicted sizes and writes it through
/// the destination's geometry.
pub type Lowered = Result<Vec<Value>, Unsupported>;

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

/// The families of rows.
static TABLES: &[&[Row]] = &[];

/// The row that serves `name` (`aten::add.Tensor`).
pub fn find(name: &str) -> Option<&'static Row> {
    let short = name.strip_prefix("aten::")?;
    TABLES.iter().flat_map(|t| t.iter()).find(|r| r.names.contains(&short))
}
