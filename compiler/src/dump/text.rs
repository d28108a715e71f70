//! The text of dumps.
use crate::buffers::{Kind, Plan};
use crate::compile::Stats;
use crate::fusion::Decision;
use crate::ir::{FusionKind, Graph, InstId};
use crate::passes::LedgerEntry;
use crate::program::{KernelCall, Place, Program, Thunk, View};
use std::fmt::Write as _;

pub(super) fn graph_text(graph: &Graph) -> String {
    format!("{graph}\n")
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

pub(super) fn decisions_text(graph: &Graph, decisions: &[Decision]) -> String {
    let name = |id: InstId| {
        let inst = graph.inst(id);
        format!("%{} {}", inst.first.0, inst.kind)
    };
    let mut out = String::new();
    for d in decisions {
        let what = match d.merged {
            Ok(()) => "yes".to_owned(),
            Err(reason) => format!("no: {reason:?}, {reason}"),
        };
        let _ = writeln!(out, "{}: {} -> {}: {what}", d.how, name(d.from), name(d.into));
    }
    out
}

pub(super) fn plan_text(graph: &Graph, plan: &Plan) -> String {
    let mut out = String::new();
    for (s, storage) in plan.storages.iter().enumerate() {
        let place = plan.assigned[s]
            .map_or("nowhere".to_owned(), |a| format!("{} from {} to {}", place_text(a.place), a.from, a.to));
        let of = match storage.kind {
            Kind::Temp(id) => {
                let inst = graph.inst(id);
                format!("computed by %{} {}", inst.first.0, inst.kind)
            }
            other => format!("{other:?}"),
        };
        let reused = plan.reused.iter().find(|r| r.0 == s);
        let reused = reused.map_or(String::new(), |r| format!(", in place of storage {}", r.1));
        let _ = writeln!(out, "storage {s}: {} bytes, {of}, {place}{reused}", storage.bytes);
    }
    for (n, r) in plan.results.iter().enumerate() {
        let _ = writeln!(out, "result {n}: {r:?}");
    }
    let _ = writeln!(out, "{:?}", plan.memory);
    let (slab, peak, sum) = (plan.memory.temp_bytes, plan.memory.peak_bytes.max(1), plan.memory.sum_bytes.max(1));
    let _ = writeln!(
        out,
        "slab {slab}: {:.3} of what is live at the peak, {:.3} of all intermediate values",
        slab as f64 / peak as f64,
        slab as f64 / sum as f64
    );
    out
}

fn place_text(place: Place) -> String {
    match place {
        Place::Param(n) => format!("param{n}"),
        Place::Result(n) => format!("result{n}"),
        Place::Slab { offset } => format!("slab+{offset}"),
        Place::Constant { offset } => format!("constant+{offset}"),
        Place::Scalar(n) => format!("scalar{n}"),
    }
}

fn view_text(v: &View) -> String {
    let dims = v.dims.iter().map(ToString::to_string).chain([v.dtype.to_string()]).collect::<Vec<_>>().join("x");
    let dense = v.offset == 0 && *v.strides == *crate::ir::row_major_strides(&v.dims);
    let how = if dense { String::new() } else { format!(" strides {:?} offset {}", &v.strides[..], v.offset) };
    format!("{}:{dims}{how}", place_text(v.place))
}

fn views(list_of: &[View]) -> String {
    list(list_of.iter().map(view_text))
}

fn call_text(program: &Program, call: &KernelCall) -> String {
    let name = program.kernels.get(call.kernel as usize).map_or("?", |k| k.name.as_str());
    let scalars = list(call.scalars.iter().map(|s| format!("scalar{s}")));
    let comma = if scalars.is_empty() || call.inputs.is_empty() { "" } else { ", " };
    format!("{name}({}{comma}{scalars}) -> {}{}", views(&call.inputs), views(&call.outputs), copied_text(call))
}

/// Which outputs of a kernel are copies, and why.
fn copied_text(call: &KernelCall) -> String {
    call.copied.iter().map(|(n, rule)| format!(" // output {n} is a copy: {rule}")).collect()
}

/// A program, one line per thunk, kernels below.
pub fn program_text(program: &Program) -> String {
    let mut out = format!(
        "program {}: {} parameters, {} scalars, {} thunks, {} kernels, slab {} bytes, constants {} bytes\n",
        program.name,
        program.params.len(),
        program.n_scalars,
        program.thunks.len(),
        program.kernels.len(),
        program.slab_bytes,
        program.constants.len()
    );
    for (n, r) in program.results.iter().enumerate() {
        let alias = r.alias.map_or(String::new(), |p| format!(" in param{p}"));
        let _ = writeln!(out, "result {n}: {}{alias}", r.ty);
    }
    for (t, thunk) in program.thunks.iter().enumerate() {
        let line = match thunk {
            Thunk::Kernel(call) => call_text(program, call),
            Thunk::Library { op, inputs, outputs, epilogue, work, .. } => {
                let then = epilogue.as_ref().map_or(String::new(), |call| {
                    let name = &program.kernels[call.kernel as usize].name;
                    format!(" then {name}({})", views(&call.inputs[1..]))
                });
                let with = work.as_ref().map_or(String::new(), |w| format!(" // work {}", view_text(w)));
                let copied = epilogue.as_ref().map_or(String::new(), copied_text);
                format!("{op}({}){then} -> {}{with}{copied}", views(inputs), views(outputs))
            }
            Thunk::Copy { from, to, rule } => format!("copy({}) -> {} // {rule}", view_text(from), view_text(to)),
            Thunk::Group(calls) => {
                let calls: Vec<String> = calls.iter().map(|c| format!("    {}", call_text(program, c))).collect();
                format!("group of {}\n{}", calls.len(), calls.join("\n"))
            }
        };
        let _ = writeln!(out, "thunk {t}: {line}");
    }
    for (k, spec) in program.kernels.iter().enumerate() {
        let kind = match spec.kind {
            FusionKind::Loop => "loop",
            FusionKind::Row => "row",
            FusionKind::Column => "column",
            FusionKind::Epilogue => "epilogue",
        };
        let _ = writeln!(out, "kernel {k} {} ({kind})", spec.name);
        let _ = writeln!(out, "{}", spec.body);
    }
    out
}

/// What every thunk waits for, and how many steps the longest chain has.
pub(super) fn dependencies_text(program: &Program) -> String {
    let graph = program.thunk_graph();
    let mut depth = vec![0usize; program.thunks.len()];
    let mut out = String::new();
    for n in graph.node_indices() {
        let mut waits: Vec<usize> =
            graph.neighbors_directed(n, petgraph::Direction::Incoming).map(|m| m.index()).collect();
        waits.sort_unstable();
        depth[n.index()] = waits.iter().map(|&m| depth[m] + 1).max().unwrap_or(0);
        let list: Vec<String> = waits.iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "thunk {}: waits for [{}]", n.index(), list.join(", "));
    }
    let longest = depth.iter().max().map_or(0, |d| d + 1);
    let _ = writeln!(out, "{} thunks, the longest chain has {longest}", program.thunks.len());
    out
}

pub(super) fn ledger_text(ledger: &[LedgerEntry], stats: &Stats) -> String {
    let mut out = String::new();
    for e in ledger {
        let _ = writeln!(out, "{:>8} us  {:<14} {} -> {}", e.micros, e.pass, e.insts_before, e.insts_after);
    }
    let _ = writeln!(out, "{stats:#?}");
    out
}
