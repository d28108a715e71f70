//! Dumps: every stage of a compilation as text, one file per stage, for people.
//!
//! Files are `<dir>/<graph>-<compilation>.<number>.<stage>.<txt|svg|..>`: compilations are numbered in the order of the
//! process, stages in the order they run. `<graph>-<compilation>.html` shows one compilation (what each pass did, the slab
//! over time, memory, links to the files), `index.html` links those. Whoever turns the program into code adds to it with
//! [`attach`]. A dump that cannot be written is reported in the log and otherwise ignored: it must never fail a
//! compilation.
mod diff;
mod html;
mod kernel;
mod svg;
mod text;

use crate::buffers::Plan;
use crate::compile::Stats;
use crate::fusion::Decision;
use crate::ir::Graph;
use crate::passes::LedgerEntry;
use crate::program::Program;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

pub use kernel::kernel_text;
pub use text::program_text;

/// One written file, for the page.
#[derive(Clone, Debug)]
struct Written {
    file: String,
    stage: String,
    /// What the stage did, in words.
    about: String,
}

/// Writes the stages of one compilation.
#[derive(Clone, Debug)]
pub struct Dump {
    /// Directory and file name prefix.
    to: Option<(PathBuf, String)>,
    files: Vec<Written>,
    /// Parts of the page, in order.
    parts: Vec<String>,
}

/// Dumps of programs that devices may still add to.
static OPEN: Mutex<Vec<(Program, Dump)>> = Mutex::new(Vec::new());
/// Compilations that are remembered for [`attach`].
const REMEMBERED: usize = 8;

impl Dump {
    pub fn new(dir: Option<&Path>, graph: &str) -> Self {
        let name: String =
            graph.chars().map(|c| if c.is_alphanumeric() || "-_".contains(c) { c } else { '_' }).collect();
        let name = if name.is_empty() { "graph".to_owned() } else { name };
        static COMPILATIONS: AtomicU32 = AtomicU32::new(0);
        let number = if dir.is_some() { COMPILATIONS.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let name = format!("{name}-{number:03}");
        Dump { to: dir.map(|d| (d.to_owned(), name)), files: vec![], parts: vec![] }
    }

    fn is_on(&self) -> bool {
        self.to.is_some()
    }

    fn write(&mut self, stage: &str, ext: &str, about: String, text: impl FnOnce() -> String) {
        let Some((dir, name)) = &self.to else { return };
        let file = format!("{name}.{:02}.{stage}.{ext}", self.files.len());
        if save(dir, &file, &text()) {
            self.files.push(Written { file, stage: stage.to_owned(), about });
        }
    }

    /// The graph after a stage, and how it differs from the one before.
    pub(crate) fn graph(&mut self, stage: &str, graph: &Graph, before: Option<&Graph>) {
        if !self.is_on() {
            return;
        }
        let about = before.map_or(format!("{} instructions", graph.insts.len()), |b| diff::summary(b, graph));
        self.write(stage, "txt", about, || text::graph_text(graph));
        if let Some(before) = before {
            self.write(&format!("{stage}.diff"), "txt", String::new(), || diff::diff(before, graph));
        }
    }

    pub(crate) fn decisions(&mut self, graph: &Graph, decisions: &[Decision]) {
        if self.is_on() {
            let taken = decisions.iter().filter(|d| d.merged.is_ok()).count();
            let about = format!("{taken} taken, {} refused", decisions.len() - taken);
            self.write("decisions", "txt", about, || text::decisions_text(graph, decisions));
        }
    }

    pub(crate) fn plan(&mut self, graph: &Graph, plan: &Plan) {
        if self.is_on() {
            let about = format!("{} storages", plan.storages.len());
            self.write("buffers", "txt", about, || text::plan_text(graph, plan));
            let picture = svg::slab(graph, plan);
            self.parts.push(format!("<h2>The slab over time</h2>\n{picture}"));
            self.write("slab", "svg", "the slab over time".into(), || picture);
        }
    }

    pub(crate) fn program(&mut self, program: &Program) {
        if self.is_on() {
            let about = format!("{} thunks, {} kernels", program.thunks.len(), program.kernels.len());
            self.write("program", "txt", about, || text::program_text(program));
            self.write("graph", "txt", "what each thunk waits for".into(), || text::dependencies_text(program));
            self.write("kernels", "txt", "loops and expressions".into(), || kernel::kernels_text(program));
        }
    }

    /// Ends the middle end's part.
    pub(crate) fn finish(mut self, program: &Program, ledger: &[LedgerEntry], stats: &Stats) {
        if !self.is_on() {
            return;
        }
        self.write("ledger", "txt", String::new(), || text::ledger_text(ledger, stats));
        self.parts.insert(0, html::ledger(ledger, stats));
        self.page();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() == REMEMBERED {
            open.remove(0);
        }
        open.push((program.clone(), self));
    }

    fn page(&self) {
        let Some((dir, name)) = &self.to else { return };
        save(dir, &format!("{name}.html"), &html::page(name, &self.files, &self.parts));
        let mut pages: Vec<String> = std::fs::read_dir(dir)
            .map(|d| d.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        pages.retain(|p| p.ends_with(".html") && p != "index.html");
        pages.sort();
        save(dir, "index.html", &html::index(&pages));
    }
}

/// `program` has a dump that files can be added to.
pub fn is_open(program: &Program) -> bool {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().any(|(p, _)| p == program)
}

/// Adds a file to the dump of `program`, if it has one: generated code, say. Called by devices, on any thread; `text` is
/// not called without a dump.
pub fn attach(program: &Program, stage: &str, ext: &str, about: &str, text: impl FnOnce() -> String) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, dump)) = open.iter_mut().rev().find(|(p, _)| p == program) {
        dump.write(stage, ext, about.to_owned(), text);
        dump.page();
    }
}

fn save(dir: &Path, file: &str, text: &str) -> bool {
    /// One warning is news: a compilation writes dozens of files.
    static COMPLAINED: AtomicBool = AtomicBool::new(false);
    let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(dir.join(file), text));
    if let Err(e) = &written
        && !COMPLAINED.swap(true, Ordering::Relaxed)
    {
        let dir = dir.display();
        tracing::warn!(
            "dumps cannot be written to {dir} ({e}): work goes on without them; RSX_DUMP_TO names the directory"
        );
    }
    written.is_ok()
}
