//! Dumps: every stage of a compilation as text, one file per stage, for people.
//!
//! Files are `<dir>/<graph>-<compilation>.<number>.<stage>.txt`: compilations are numbered in the order of the process, stages
//! in the order they run. A dump that cannot be written is
//! reported in the log and otherwise ignored: it must never fail a compilation.
mod text;

use crate::buffers::Plan;
use crate::compile::Stats;
use crate::fusion::Decision;
use crate::ir::Graph;
use crate::passes::LedgerEntry;
use crate::program::Program;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
pub use text::program_text;

/// Writes the stages of one compilation.
pub struct Dump {
    /// Directory and file name prefix.
    to: Option<(PathBuf, String)>,
    number: usize,
}

impl Dump {
    pub fn new(dir: Option<&Path>, graph: &str) -> Self {
        let name: String =
            graph.chars().map(|c| if c.is_alphanumeric() || "-_".contains(c) { c } else { '_' }).collect();
        let name = if name.is_empty() { "graph".to_owned() } else { name };
        static COMPILATIONS: AtomicU32 = AtomicU32::new(0);
        let number = if dir.is_some() { COMPILATIONS.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let name = format!("{name}-{number:03}");
        Dump { to: dir.map(|d| (d.to_owned(), name)), number: 0 }
    }

    fn write(&mut self, stage: &str, text: impl FnOnce() -> String) {
        let Some((dir, name)) = &self.to else { return };
        let path = dir.join(format!("{name}.{:02}.{stage}.txt", self.number));
        self.number += 1;
        let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text()));
        if let Err(e) = written {
            tracing::warn!("cannot write dump {}: {e}", path.display());
        }
    }

    pub(crate) fn graph(&mut self, stage: &str, graph: &Graph, before: Option<&Graph>) {
        let _ = before;
        self.write(stage, || text::graph_text(graph));
    }

    pub(crate) fn decisions(&mut self, graph: &Graph, decisions: &[Decision]) {
        self.write("decisions", || text::decisions_text(graph, decisions));
    }

    pub(crate) fn plan(&mut self, graph: &Graph, plan: &Plan) {
        self.write("buffers", || text::plan_text(graph, plan));
    }

    pub(crate) fn program(&mut self, program: &Program) {
        self.write("program", || text::program_text(program));
    }

    pub(crate) fn ledger(&mut self, ledger: &[LedgerEntry], stats: &Stats) {
        self.write("ledger", || text::ledger_text(ledger, stats));
    }
}
