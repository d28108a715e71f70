//! How two graphs differ. Values are renumbered by every pass, so that lines are compared by what they say of ops and
//! types, not of numbers: an instruction is known by its op, attributes, types and the ops of its operands.
use crate::ir::{Graph, Inst, OpKind};
use crate::passes::rewriter::live_insts;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How often each op occurs, live ones only.
fn histogram(g: &Graph) -> BTreeMap<OpKind, i64> {
    let live = live_insts(g);
    let mut count = BTreeMap::new();
    for (_, inst) in g.iter().filter(|(id, i)| live[id.0 as usize] && i.kind != OpKind::Parameter) {
        *count.entry(inst.kind).or_insert(0) += 1;
    }
    count
}

/// `-117 reshape, +3 transpose`; ops whose number did not change are left out.
pub(super) fn summary(before: &Graph, after: &Graph) -> String {
    let mut change = histogram(after);
    for (kind, n) in histogram(before) {
        *change.entry(kind).or_insert(0) -= n;
    }
    let mut list: Vec<(i64, OpKind)> = change.into_iter().filter(|c| c.1 != 0).map(|(k, n)| (n, k)).collect();
    list.sort_by_key(|&(n, k)| (-n.abs(), k));
    if list.is_empty() {
        return "the same ops, in another arrangement".into();
    }
    list.into_iter().map(|(n, k)| format!("{n:+} {k}")).collect::<Vec<_>>().join(", ")
}

/// The instruction without numbers, operands by their ops.
fn line(g: &Graph, inst: &Inst) -> String {
    let mut out = inst.kind.to_string();
    for &v in &inst.operands {
        let _ = write!(out, " {}:{}", g.def_inst(v).kind, g.ty(v));
    }
    if inst.kind != OpKind::Fusion {
        let _ = write!(out, " {:?}", inst.attrs);
    }
    for v in inst.results() {
        let _ = write!(out, " -> {}", g.ty(v));
    }
    out
}

fn lines(g: &Graph) -> BTreeMap<String, Vec<u32>> {
    let live = live_insts(g);
    let mut out: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (_, inst) in g.iter().filter(|(id, i)| live[id.0 as usize] && i.kind != OpKind::Parameter) {
        out.entry(line(g, inst)).or_default().push(inst.first.0);
    }
    out
}

/// What only the one has (`-`) or only the other (`+`), with value numbers.
pub(super) fn diff(before: &Graph, after: &Graph) -> String {
    let (a, b) = (lines(before), lines(after));
    let mut out = format!("{}\n\n", summary(before, after));
    let mut side = |sign: char, x: &BTreeMap<String, Vec<u32>>, y: &BTreeMap<String, Vec<u32>>| {
        for (text, at) in x {
            let extra = at.len().saturating_sub(y.get(text).map_or(0, Vec::len));
            if extra > 0 {
                let values: Vec<String> = at.iter().take(8).map(|v| format!("%{v}")).collect();
                let more = if at.len() > 8 { ".." } else { "" };
                let _ = writeln!(out, "{sign} {extra} x {text}   (among {}{more})", values.join(" "));
            }
        }
    };
    side('-', &a, &b);
    side('+', &b, &a);
    out
}
