//! `dce`: drops instructions no result depends on.
//!
//! ```text
//! %a = exponential %x          =>    %b = negate %x
//! %b = negate %x                     return %b
//! return %b
//! ```
//! Safety: every op is pure, so that an unused one can only cost time. Parameters stay: they are the calling convention.
use super::rewriter::{Rewriter, live_order};
use crate::ir::{Graph, TypeError};

pub(super) fn run(graph: &Graph) -> Result<Graph, TypeError> {
    let mut r = Rewriter::new(graph);
    for id in live_order(graph) {
        r.copy(graph.inst(id));
    }
    r.finish()
}
