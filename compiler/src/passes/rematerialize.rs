//! `rematerialize`: values that wait long for their last users are computed again there instead of being kept.
//!
//! ```text
//! %g = gelu %h                     =>    %g = gelu %h
//! %y = dot_general %g, %w                %y = dot_general %g, %w
//! ... (the peak of memory)               ...
//! %dh = gelu_backward %dy, %h            %b = optimization_barrier %h
//! %dw = dot_general %dyt, %g             %dh = gelu_backward %dy, %b
//!                                        %g2 = gelu %b
//!                                        %dw = dot_general %dyt, %g2
//! ```
//! The graph is seen as a timeline: which values are in memory when (an estimate: fusion comes later). At its peak, a
//! value that is only held for later users is dropped if it can be computed from values that are in memory at that
//! time anyway (or are much smaller), at a price: a few times its own traffic, and a small part of the program's time in
//! all. Where a memory limit would be passed, every value is a candidate, matrix products included, the cheapest per
//! byte first. The copies are emitted right before their first late user and numbered, so that they meet what the
//! backward pass computes again by itself; fusion then usually makes them one more result of a kernel that reads the
//! same operands. What they are computed from goes through a barrier for all late users, or fusion would compute the copy
//! where its operand is made.
//!
//! Safety: ops are pure, so that a copy has the same bits. Nothing is copied across an `optimization_barrier`, whose
//! results are values of their own. Results of the graph are never dropped.
use super::PassContext;
use super::rewriter::{Rewriter, Values, live_insts};
use crate::cost;
use crate::ir::{Attrs, Class, Graph, Inst, InstId, OpKind, ParamKind, TensorType, TypeError, Value};
use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;

/// When memory is worth computing again.
#[derive(Clone, Debug, PartialEq)]
pub struct RematOptions {
    /// Peaks below this are left alone, in bytes.
    pub min_peak: u64,
    /// Values below this are left alone, in bytes.
    pub min_bytes: u64,
    /// Most time spent on it, as a part of the program's.
    pub slowdown: f64,
    /// Arguments, results and intermediate values together should fit in this many bytes, whatever it costs.
    pub memory_limit: Option<u64>,
}

impl Default for RematOptions {
    fn default() -> Self {
        RematOptions { min_peak: 4 << 20, min_bytes: 64 << 10, slowdown: 0.03, memory_limit: None }
    }
}

/// Rounds: each works on the peak that the one before left.
const ROUNDS: usize = 24;
/// A round has to lower the peak to this part of what it was for another to follow.
const GAIN: (u64, u64) = (9, 10);
/// Most instructions copied for one value without a limit, and with one.
const MAX_CONE: (usize, usize) = (24, 96);
/// A value this many times smaller than the one in question may be kept in its stead.
const SMALLER: u64 = 8;
/// Price of a value, in times of its own traffic, that is paid without a limit.
const TRAFFIC: f64 = 4.0;
/// Time of attention's products, in times of a matrix product's (softmax between them, half of it masked).
const ATTENTION: f64 = 2.0;
/// Contractions between a copy and an equal recorded instruction that may use it.
const NEAR: usize = 4;

pub(super) fn run(graph: &Graph, cx: &PassContext<'_>) -> Result<Graph, TypeError> {
    let options = &cx.options.remat;
    let mut graph = graph.clone();
    let mut budget = None;
    let mut before = u64::MAX;
    for _ in 0..ROUNDS {
        let t = Timeline::new(&graph);
        let over = options.memory_limit.map_or(0, |limit| (fixed_bytes(&graph) + t.peak).saturating_sub(limit));
        // Without a limit, little is left once a round has gained little.
        if over == 0 && (t.peak < options.min_peak || t.peak > before / GAIN.1 * GAIN.0) {
            break;
        }
        before = t.peak;
        let left = *budget.get_or_insert_with(|| program_ns(&graph, cx) * options.slowdown);
        let mut c = Chooser::new(&graph, &t, cx, if over > 0 { 0 } else { options.min_bytes });
        let spent = c.cheap(left) + if over > 0 { c.whatever(over) } else { 0.0 };
        budget = Some(left - spent);
        if !c.dropped.contains(&true) {
            break;
        }
        let (dropped, cone, kept) = (c.dropped, c.cone, c.kept);
        let copied: AHashSet<(OpKind, &TensorType)> = graph
            .iter()
            .filter(|(id, _)| cone[id.0 as usize])
            .map(|(_, inst)| (inst.kind, graph.ty(inst.first)))
            .collect();
        let mut transposed = vec![false; graph.n_values()];
        for inst in graph.insts.iter().filter(|i| i.kind == OpKind::Transpose) {
            transposed[inst.operands[0].0 as usize] = true;
        }
        graph = Copier {
            t: &t,
            dropped,
            cone,
            kept,
            transposed,
            copied,
            r: Rewriter::new(&graph),
            late: AHashMap::new(),
            numbers: AHashMap::new(),
            heavy: 0,
        }
        .run()?;
    }
    Ok(graph)
}

/// Bytes that no pass can change: arguments, and results outside of donated ones.
fn fixed_bytes(g: &Graph) -> u64 {
    let tensors = g.params.iter().filter(|p| p.kind == ParamKind::Tensor);
    let donated: Vec<u32> = tensors.clone().filter_map(|p| p.donate_to).collect();
    let results = g.results.iter().enumerate().filter(|(n, _)| !donated.contains(&(*n as u32)));
    tensors.map(|p| p.ty.bytes()).sum::<u64>() + results.map(|(_, &v)| g.ty(v).bytes()).sum::<u64>()
}

fn program_ns(g: &Graph, cx: &PassContext<'_>) -> f64 {
    let live = live_insts(g);
    g.iter().filter(|(id, _)| live[id.0 as usize]).map(|(_, inst)| inst_ns(g, inst, cx)).sum()
}

/// Time of one instruction inside of some kernel; its traffic is not part of it.
fn inst_ns(g: &Graph, inst: &Inst, cx: &PassContext<'_>) -> f64 {
    let model = &cx.options.model;
    match inst.kind.class() {
        Class::Contraction => cost::inst_flops(g, inst).0 / model.flops_per_ns,
        Class::Leaf | Class::Movement | Class::Structural => 0.0,
        Class::Elementwise | Class::Indexed | Class::Random => {
            model.compute_ns(g.ty(inst.first).numel() as f64 * cost::element_ops(inst.kind))
        }
        Class::Library if matches!(inst.kind, OpKind::Attention | OpKind::AttentionBackward) => {
            cost::inst_flops(g, inst).0 / model.flops_per_ns * ATTENTION
        }
        Class::Reduction | Class::Library => {
            let n: i64 = inst.operands.iter().map(|&v| g.ty(v).numel()).sum();
            model.compute_ns(n as f64 * cost::element_ops(inst.kind)) + model.launch_ns
        }
    }
}

/// Leaves no memory behind: a movement op, or a barrier for one value.
fn is_view(inst: &Inst) -> bool {
    let renames = inst.kind.class() == Class::Movement || inst.kind == OpKind::OptimizationBarrier;
    renames && inst.operands.len() == 1
}

fn is_heavy(inst: &Inst) -> bool {
    matches!(inst.kind.class(), Class::Contraction | Class::Library)
}

/// What is in memory when. Times are instruction numbers.
struct Timeline {
    /// What a value is a view of.
    root: Vec<Value>,
    /// Last user, through views, of every root; its own definition if there is none.
    last: Vec<usize>,
    /// In memory between its definition and its last user.
    stored: Vec<bool>,
    is_result: Vec<bool>,
    live: Vec<bool>,
    /// Time of the peak.
    at: usize,
    peak: u64,
    /// Used at the time of the peak.
    busy: Vec<bool>,
}

impl Timeline {
    fn new(g: &Graph) -> Self {
        let live = live_insts(g);
        let n = g.n_values();
        let mut t = Timeline {
            root: (0..n as u32).map(Value).collect(),
            last: (0..n as u32).map(|v| g.def(Value(v)).0 as usize).collect(),
            stored: vec![false; n],
            is_result: vec![false; n],
            live,
            at: 0,
            peak: 0,
            busy: vec![false; n],
        };
        // Kernels do not reach across contractions: what is read behind one is in memory.
        let mut epoch = vec![0u32; g.insts.len()];
        let mut now = 0;
        for (id, inst) in g.iter().filter(|(id, _)| t.live[id.0 as usize]) {
            let i = id.0 as usize;
            now += u32::from(is_heavy(inst));
            epoch[i] = now;
            if is_view(inst) {
                t.root[inst.first.0 as usize] = t.root[inst.operands[0].0 as usize];
                continue;
            }
            let opaque = is_heavy(inst) || inst.kind.class() == Class::Structural;
            for v in inst.results() {
                t.stored[v.0 as usize] = opaque;
            }
            for &o in &inst.operands {
                let r = t.root[o.0 as usize];
                t.last[r.0 as usize] = t.last[r.0 as usize].max(i);
                let far = epoch[g.def(r).0 as usize] != now;
                t.stored[r.0 as usize] |= opaque || far;
            }
        }
        for &v in &g.results {
            t.is_result[t.root[v.0 as usize].0 as usize] = true;
        }
        t.find_peak(g);
        for &o in &g.insts.get(t.at).map(|i| i.operands.clone()).unwrap_or_default() {
            t.busy[t.root[o.0 as usize].0 as usize] = true;
        }
        t
    }

    /// Takes room among the intermediate values.
    fn counts(&self, g: &Graph, v: Value) -> bool {
        let i = v.0 as usize;
        let inst = g.def_inst(v);
        self.stored[i]
            && !self.is_result[i]
            && self.live[g.def(v).0 as usize]
            && inst.kind.class() != Class::Leaf
            && g.ty(v).rank() > 0
    }

    fn find_peak(&mut self, g: &Graph) {
        let mut change = vec![0i64; g.insts.len() + 1];
        for v in (0..g.n_values() as u32).map(Value) {
            if self.counts(g, v) {
                let bytes = g.ty(v).bytes() as i64;
                change[g.def(v).0 as usize] += bytes;
                change[self.last[v.0 as usize] + 1] -= bytes;
            }
        }
        let mut now = 0;
        for (i, c) in change.into_iter().enumerate() {
            now += c;
            if now as u64 > self.peak {
                (self.peak, self.at) = (now as u64, i);
            }
        }
    }

    /// In memory before and after the peak.
    fn spans(&self, g: &Graph, v: Value) -> bool {
        (g.def(v).0 as usize) < self.at && self.last[v.0 as usize] > self.at
    }
}

/// What computing a value again takes.
struct Cone {
    insts: Vec<InstId>,
    leaves: Vec<Value>,
    /// Bytes of leaves that would not be kept otherwise.
    added: u64,
    ns: f64,
}

struct Chooser<'c> {
    g: &'c Graph,
    t: &'c Timeline,
    cx: &'c PassContext<'c>,
    min_bytes: u64,
    /// By value: computed again behind the peak.
    dropped: Vec<bool>,
    /// By value: must stay for the sake of one that is dropped.
    kept: Vec<bool>,
    /// By instruction: copied behind the peak.
    cone: Vec<bool>,
    /// What is computed behind the peak.
    late: AHashMap<(OpKind, &'c Attrs, &'c [Value]), InstId>,
}

impl<'c> Chooser<'c> {
    fn new(g: &'c Graph, t: &'c Timeline, cx: &'c PassContext<'c>, min_bytes: u64) -> Self {
        let late = (t.at + 1..g.insts.len())
            .filter(|&i| t.live[i])
            .map(|i| ((g.insts[i].kind, &g.insts[i].attrs, &g.insts[i].operands[..]), InstId(i as u32)))
            .collect();
        let (values, insts) = (g.n_values(), g.insts.len());
        Chooser {
            g,
            t,
            cx,
            min_bytes,
            dropped: vec![false; values],
            kept: vec![false; values],
            cone: vec![false; insts],
            late,
        }
    }

    fn candidates(&self) -> Vec<Value> {
        let wanted = |&v: &Value| {
            let i = v.0 as usize;
            self.t.counts(self.g, v)
                && self.t.spans(self.g, v)
                && !self.t.busy[i]
                && !self.kept[i]
                && !self.dropped[i]
                && self.g.ty(v).bytes() >= self.min_bytes.max(1)
        };
        (0..self.g.n_values() as u32).map(Value).filter(wanted).collect()
    }

    /// Drops what costs little, in program order; the time that costs.
    fn cheap(&mut self, budget: f64) -> f64 {
        let mut spent = 0.0;
        for v in self.candidates() {
            let bytes = self.g.ty(v).bytes() as f64;
            let price = TRAFFIC * bytes / self.cx.options.model.bytes_per_ns;
            let Some(cone) = self.cone_of(v, false) else { continue };
            if !self.kept[v.0 as usize] && cone.ns <= price && spent + cone.ns <= budget {
                spent += cone.ns;
                self.take(v, &cone);
            }
        }
        spent
    }

    /// Drops until `over` bytes are gained, the cheapest per byte first.
    fn whatever(&mut self, over: u64) -> f64 {
        let gained = |c: &Self| -> u64 {
            (0..c.dropped.len()).filter(|&v| c.dropped[v]).map(|v| c.g.ty(Value(v as u32)).bytes()).sum()
        };
        let per_byte = |c: &Self, v: Value, cone: &Cone| cone.ns / c.g.ty(v).bytes().saturating_sub(cone.added) as f64;
        let mut ranked: Vec<(f64, Value)> = Vec::new();
        for v in self.candidates() {
            if let Some(cone) = self.cone_of(v, true) {
                ranked.push((per_byte(self, v, &cone), v));
            }
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut spent = 0.0;
        for (_, v) in ranked {
            if gained(self) >= over {
                break;
            }
            if self.kept[v.0 as usize] {
                continue;
            }
            // What was dropped meanwhile is no leaf any more.
            if let Some(cone) = self.cone_of(v, true) {
                spent += cone.ns;
                self.take(v, &cone);
            }
        }
        spent
    }

    fn take(&mut self, v: Value, cone: &Cone) {
        self.dropped[v.0 as usize] = true;
        cone.insts.iter().for_each(|i| self.cone[i.0 as usize] = true);
        cone.leaves.iter().for_each(|l| self.kept[l.0 as usize] = true);
    }

    /// Instructions from values that are in memory behind the peak to `v`; `None` if there are none or too many.
    fn cone_of(&self, v: Value, anything: bool) -> Option<Cone> {
        let (g, model) = (self.g, &self.cx.options.model);
        let bytes = g.ty(v).bytes();
        let most = if anything { MAX_CONE.1 } else { MAX_CONE.0 };
        let mut cone = Cone { insts: vec![], leaves: vec![], added: 0, ns: bytes as f64 / model.bytes_per_ns };
        let mut stack = vec![g.def(v)];
        while let Some(id) = stack.pop() {
            if cone.insts.contains(&id) {
                continue;
            }
            let inst = g.inst(id);
            let simple =
                matches!(inst.kind.class(), Class::Elementwise | Class::Movement | Class::Random | Class::Leaf);
            let possible = inst.kind.class() != Class::Structural && inst.kind != OpKind::Parameter;
            if !possible || !(simple || anything) || cone.insts.len() == most {
                return None;
            }
            cone.insts.push(id);
            if !self.late.contains_key(&(inst.kind, &inst.attrs, &inst.operands[..])) {
                cone.ns += inst_ns(g, inst, self.cx);
            }
            for &o in &inst.operands {
                let root = self.t.root[o.0 as usize];
                if root != v && self.is_there(root) {
                    cone.leaves.push(root);
                } else if root != v && self.is_small(root, bytes) {
                    cone.leaves.push(root);
                    cone.added += g.ty(root).bytes();
                } else {
                    stack.push(g.def(o));
                }
            }
        }
        Some(cone).filter(|c| c.added * 2 <= bytes)
    }

    /// In memory behind the peak whatever is decided here.
    fn is_there(&self, v: Value) -> bool {
        let i = v.0 as usize;
        let inst = self.g.def_inst(v);
        inst.kind == OpKind::Parameter
            || self.t.is_result[i]
            || self.kept[i]
            || (self.t.stored[i] && !self.dropped[i] && self.t.spans(self.g, v))
    }

    /// So much smaller than `bytes` that keeping it costs nothing, and no constant.
    fn is_small(&self, v: Value, bytes: u64) -> bool {
        let inst = self.g.def_inst(v);
        inst.kind.class() != Class::Leaf && self.g.ty(v).bytes() * SMALLER <= bytes && !self.dropped[v.0 as usize]
    }
}

/// Rebuilds the graph with copies behind the peak.
struct Copier<'c> {
    t: &'c Timeline,
    dropped: Vec<bool>,
    cone: Vec<bool>,
    kept: Vec<bool>,
    /// By value: some user is a transpose.
    transposed: Vec<bool>,
    /// Ops and types of the instructions of cones: no others can be equal to a copy.
    copied: AHashSet<(OpKind, &'c TensorType)>,
    r: Rewriter<'c>,
    /// What users behind the peak take instead, by old value.
    late: AHashMap<Value, Value>,
    /// Instructions emitted behind the peak, and how many contractions came before each.
    numbers: AHashMap<(OpKind, Attrs, Values, SmallVec<[TensorType; 2]>), (Value, usize)>,
    heavy: usize,
}

impl Copier<'_> {
    fn run(mut self) -> Result<Graph, TypeError> {
        let src = self.r.src;
        for (id, inst) in src.iter() {
            let i = id.0 as usize;
            if !self.t.live[i] || inst.kind == OpKind::Parameter {
                continue;
            }
            if i <= self.t.at {
                self.r.copy(inst);
                continue;
            }
            self.heavy += usize::from(is_heavy(inst));
            let operands: Values = inst.operands.iter().map(|&o| self.behind(o)).collect();
            // Barriers are never merged, heavy ops have been.
            let mergeable = !is_heavy(inst)
                && inst.kind.class() != Class::Structural
                && self.copied.contains(&(inst.kind, src.ty(inst.first)));
            let first = self.emit(inst, operands, mergeable);
            self.r.set_results(inst, first);
        }
        self.r.finish()
    }

    fn emit(&mut self, inst: &Inst, operands: Values, mergeable: bool) -> Value {
        let types = self.r.types(inst);
        if !mergeable {
            self.r.b.loc = inst.loc;
            return self.r.b.op(inst.kind, inst.attrs.clone(), &operands, &types);
        }
        let key = (inst.kind, inst.attrs.clone(), operands.clone(), types.clone());
        let near = self.numbers.get(&key).filter(|n| n.1 + NEAR >= self.heavy);
        if let Some(&(v, _)) = near {
            return v;
        }
        self.r.b.loc = inst.loc;
        let first = self.r.b.op(inst.kind, inst.attrs.clone(), &operands, &types);
        self.numbers.insert(key, (first, self.heavy));
        first
    }

    /// The new value of `old` for a user behind the peak.
    fn behind(&mut self, old: Value) -> Value {
        let src = self.r.src;
        let id = src.def(old);
        if let Some(&v) = self.late.get(&old) {
            return v;
        }
        if id.0 as usize > self.t.at {
            return self.r.get(old);
        }
        let inst = src.inst(id);
        if self.dropped[old.0 as usize] {
            return self.copy_of(old);
        }
        if !is_view(inst) {
            let new = self.r.get(old);
            if !self.guarded(old) {
                return new;
            }
            self.r.b.loc = inst.loc;
            let barrier = self.r.b.op(OpKind::OptimizationBarrier, Attrs::None, &[new], &self.r.types(inst));
            self.late.insert(old, barrier);
            return barrier;
        }
        // A view of a dropped value.
        let of = self.behind(inst.operands[0]);
        if of == self.r.get(inst.operands[0]) {
            return self.r.get(old);
        }
        let v = self.emit(inst, Values::from_slice(&[of]), true);
        self.late.insert(old, v);
        v
    }

    /// Copies are computed from `old`, which is computed in a kernel that could compute them too. (Transposed products are
    /// stored transposed if nobody else looks at them.)
    fn guarded(&self, old: Value) -> bool {
        let src = self.r.src;
        let inst = src.def_inst(old);
        let fusible = match inst.kind.class() {
            Class::Elementwise | Class::Random | Class::Indexed => true,
            Class::Contraction => inst.kind == OpKind::DotGeneral && !self.transposed[old.0 as usize],
            _ => inst.kind == OpKind::Reduce,
        };
        let i = old.0 as usize;
        fusible && self.kept[i] && self.t.stored[i] && self.t.spans(src, old) && src.ty(old).rank() > 0
    }

    /// Copies the instruction of `old` and what it needs of the cones.
    fn copy_of(&mut self, old: Value) -> Value {
        if let Some(&v) = self.late.get(&old) {
            return v;
        }
        let src = self.r.src;
        let inst = src.def_inst(old);
        let operands: Values = inst
            .operands
            .iter()
            .map(|&o| {
                let kept = self.kept[self.t.root[o.0 as usize].0 as usize];
                if self.cone[src.def(o).0 as usize] && !kept { self.copy_of(o) } else { self.behind(o) }
            })
            .collect();
        let first = self.emit(inst, operands, true);
        for (n, v) in inst.results().enumerate() {
            self.late.insert(v, Value(first.0 + n as u32));
        }
        self.late.get(&old).copied().unwrap_or(first)
    }
}
