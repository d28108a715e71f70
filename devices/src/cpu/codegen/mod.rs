//! Kernel IR to LLVM IR text with explicit vectors.
mod column;
mod convert;
mod emit;
mod flat;
mod index;
mod interleave;
mod math;
mod memory;
mod ops;
mod row;
mod tanh;
mod tile;
mod value;
mod walk;

use super::target::Target;
pub use emit::VARIES;
use emit::{Emit, Reg};
use rsx_compiler::ir::{DType, FusionKind, OpKind};
use rsx_compiler::kernel::{Affine, Assumed, Atom, ExprId, ExprOp, Kernel, Source};
use std::fmt::Write;

/// One pass of a launch: a function to be called on disjoint ranges of `0..units`, in any order, on any threads.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Step {
    /// Number of the function in [`Module::symbols`].
    pub function: usize,
    pub units: i64,
    /// Ranges begin at multiples of this.
    pub grain: i64,
    /// Scratch memory that each call in flight needs for itself, bytes.
    pub scratch: u64,
}

/// A module of generated functions and how to run them.
#[derive(Clone, Debug)]
pub struct Module {
    /// LLVM IR; `KEY` stands for the content's hash.
    pub text: String,
    /// Names of the functions.
    pub symbols: Vec<String>,
    /// What a launch does, in order. Empty for an epilogue, whose one function is
    /// `f(args, scalars, r0, r1, c0, c1, acc, ld, fault)`.
    pub steps: Vec<Step>,
    /// Memory shared by the steps of one launch (partial results), bytes.
    pub shared: u64,
    /// Estimated duration on one thread, nanoseconds.
    pub cost_ns: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// The signature of all functions but epilogues.
const SIGNATURE: &str = "(ptr %args, ptr %scalars, i64 %lo, i64 %hi, ptr %scratch, ptr %shared, ptr %fault) #0";
const EPILOGUE: &str =
    "(ptr %args, ptr %scalars, i64 %r0, i64 %r1, i64 %c0, i64 %c1, ptr %blk, i64 %ld, ptr %fault) #0";

/// Outputs from this size on are written past the caches: a share of L3.
const STREAM_FROM: u64 = 8 << 20;

/// Loop variables (a bit each) and reductions that every expression needs.
fn needs(k: &Kernel) -> Vec<(u64, bool)> {
    fn index(k: &Kernel, a: &Affine, known: &[(u64, bool)]) -> (u64, bool) {
        a.terms.iter().fold((0, false), |n, &(atom, _)| {
            let m = match k.ix.atom(atom) {
                Atom::Var(v) => (1 << v, false),
                Atom::Div(a, _) | Atom::Mod(a, _) => index(k, a, known),
                Atom::Value(e) => known[e.0 as usize],
            };
            (n.0 | m.0, n.1 | m.1)
        })
    }
    let mut known: Vec<(u64, bool)> = Vec::with_capacity(k.exprs.len());
    for i in 0..k.exprs.len() {
        let e = k.exprs.get(ExprId(i as u32));
        let mut n = e.args.iter().fold((0, false), |n, a| {
            let m = known[a.0 as usize];
            (n.0 | m.0, n.1 | m.1)
        });
        if let Some(a) = e.index() {
            let m = index(k, a, &known);
            n = (n.0 | m.0, n.1 | m.1);
        }
        if let ExprOp::Reduced(_) = e.op {
            let kept = k.loops.iter().enumerate().filter(|(_, l)| !l.reduced).map(|(v, _)| 1u64 << v).sum::<u64>();
            n = (n.0 | kept, true);
        }
        known.push(n);
    }
    known
}

/// In how many places every expression that is needed is an operand or a result.
fn uses(k: &Kernel) -> Vec<u32> {
    let (mut uses, roots) = (vec![0; k.exprs.len()], k.roots());
    roots.iter().for_each(|r| uses[r.0 as usize] += 1);
    k.exprs.walk(&k.ix, &roots, &mut |e| k.exprs.get(e).args.iter().for_each(|a| uses[a.0 as usize] += 1));
    uses
}

/// Lanes per vector: as many as fill a register with the most common wide type.
fn lanes(k: &Kernel, t: Target) -> usize {
    let (mut four, mut eight, mut two) = (false, false, false);
    k.exprs.walk(&k.ix, &k.roots(), &mut |e| {
        let e = k.exprs.get(e);
        if !matches!(e.op, ExprOp::Const(_) | ExprOp::Scalar(_) | ExprOp::Index(_) | ExprOp::Checked { .. }) {
            match Reg::of(e.dtype).bits() {
                32 => four = true,
                64 => eight = true,
                16 => two = true,
                _ => {}
            }
        }
    });
    let bytes = match (four, eight, two) {
        (true, ..) => 4,
        (_, true, _) => 8,
        (_, _, true) => 2,
        _ => 1,
    };
    (t.vector_bytes as usize / bytes).max(2)
}

/// Vectors of indices have 32-bit elements if every index of the kernel fits.
fn index_reg(k: &Kernel) -> Reg {
    let mut fits = k.args.iter().all(|a| a.numel() < 1 << 30);
    fits &= k.loops.iter().map(|l| l.extent.max(1)).fold(1i64, i64::saturating_mul) < 1 << 30;
    k.exprs.walk(&k.ix, &k.roots(), &mut |e| {
        if let Some(a) = k.exprs.get(e).index() {
            let (lo, hi) = k.ix.range(a);
            fits &= lo > -(1 << 30) && hi < 1 << 30;
        }
    });
    if fits { Reg::I32 } else { Reg::I64 }
}

/// Rough cost of one expression at one point, in tenths of a nanosecond of one vector lane.
fn op_cost(k: &Kernel, e: ExprId) -> u64 {
    let expr = k.exprs.get(e);
    match &expr.op {
        ExprOp::Const(_) | ExprOp::Scalar(_) | ExprOp::Index(_) | ExprOp::Reduced(_) => 0,
        ExprOp::Load { .. } | ExprOp::InRange { .. } | ExprOp::Compare(_) => 1,
        ExprOp::Checked { .. } => 2,
        ExprOp::Rng { .. } => 30,
        ExprOp::Op(kind) => match kind {
            OpKind::Divide | OpKind::Sqrt | OpKind::Rsqrt if expr.dtype.is_float() => 3,
            OpKind::Divide | OpKind::Remainder => 30,
            OpKind::Exp | OpKind::Log | OpKind::Log1p | OpKind::Expm1 | OpKind::Logistic | OpKind::Tanh => 6,
            OpKind::Erf | OpKind::Sin | OpKind::Cos => 8,
            OpKind::Power => 20,
            OpKind::Tan
            | OpKind::Erfc
            | OpKind::ErfInv
            | OpKind::Lgamma
            | OpKind::Digamma
            | OpKind::Asin
            | OpKind::Acos
            | OpKind::Atan
            | OpKind::Sinh
            | OpKind::Cosh
            | OpKind::Asinh
            | OpKind::Acosh
            | OpKind::Atanh
            | OpKind::Atan2
            | OpKind::NextAfter => 300,
            _ => 1,
        },
    }
}

/// (bytes moved, duration on one thread in nanoseconds) of a launch, roughly.
fn estimate(k: &Kernel, w: usize) -> (u64, u64) {
    let points = k.loops.iter().map(|l| l.extent.max(0)).product::<i64>() as u64;
    let (mut bytes, mut compute) = (0u64, 0u64);
    let stored = k.stores.iter().map(|s| k.args[s.arg as usize].bytes()).sum::<u64>();
    k.exprs.walk(&k.ix, &k.roots(), &mut |e| {
        let expr = k.exprs.get(e);
        compute += op_cost(k, e);
        if let ExprOp::Load { source: Source::Arg(n), .. } = expr.op {
            // Gathers read at most one element per point of tables of any size.
            bytes += k.args[n as usize].bytes().min(points * expr.dtype.size() as u64);
        }
    });
    bytes += stored;
    let compute = points * compute / 10 * 8 / w.min(8) as u64;
    (bytes, (bytes / 12).max(compute) + 100)
}

/// True if no output of the kernel is empty, so that there is something to do.
fn has_work(k: &Kernel) -> bool {
    !k.stores.is_empty() && k.loops.iter().all(|l| l.extent > 0)
}

/// One function's text around its code.
fn function(e: &Emit, name: &str, signature: &str) -> String {
    let mut s = format!("define void @{name}{signature} {{\nentry:\n");
    for n in 0..e.k.args.len() {
        let _ = writeln!(s, "%a{n} = getelementptr ptr, ptr %args, i64 {n}\n%p{n} = load ptr, ptr %a{n}, align 8");
    }
    s.push_str(&e.scopes[0].code);
    if e.non_temporal {
        // Streamed stores pass by the order that other threads rely on.
        s.push_str("call void @llvm.x86.sse.sfence()\n");
    }
    s.push_str("ret void\n}\n");
    s
}

/// Collects functions into a module.
struct Assembly<'k> {
    k: &'k Kernel,
    w: usize,
    text: String,
    symbols: Vec<String>,
    declares: std::collections::BTreeMap<String, String>,
}

impl<'k> Assembly<'k> {
    fn new(k: &'k Kernel, w: usize) -> Self {
        Assembly { k, w, text: String::new(), symbols: Vec::new(), declares: Default::default() }
    }

    fn add(&mut self, e: Emit, signature: &str) -> usize {
        let n = self.symbols.len();
        let name = format!("KEY.f{n}");
        self.text.push_str(&function(&e, &name, signature));
        self.declares.extend(e.declares);
        self.symbols.push(name);
        n
    }

    fn finish(self, t: Target, steps: Vec<Step>, shared: u64) -> Module {
        let mut text = String::new();
        let probe = Emit::new(self.k, t, None, self.w, Reg::I64);
        for n in 0..self.k.literals.len() {
            text.push_str(&probe.literal(n));
        }
        let zeros = self.w * 8;
        let _ = writeln!(text, "@KEY.zeros = private unnamed_addr constant [{zeros} x i8] zeroinitializer, align 64");
        text.push_str(&self.text);
        for d in self.declares.values() {
            text.push_str(d);
            text.push('\n');
        }
        let width = t.vector_bytes * 8;
        let _ = writeln!(text, "attributes #0 = {{ nounwind \"prefer-vector-width\"=\"{width}\" }}");
        text.push_str("attributes #1 = { nounwind willreturn memory(none) }\n");
        text.push_str("!0 = !{i32 1}\n!1 = !{!\"branch_weights\", i32 1, i32 2000}\n");
        let (bytes, cost_ns) = estimate(self.k, self.w);
        Module { text, symbols: self.symbols, steps, shared, cost_ns, bytes }
    }
}

/// Generates the code of a kernel, with streaming stores or without; with `assumed`, code for many sizes, in which numbers
/// that vary are literals (some of them marked with [`VARIES`]). Both compute the same bits.
///
/// Fails only for shapes of bodies that their kind does not allow.
pub fn generate(k: &Kernel, t: Target, assumed: Option<&Assumed>, stream: bool) -> Result<Module, &'static str> {
    let (w, index) = (lanes(k, t), index_reg(k));
    let mut assembly = Assembly::new(k, w);
    if !has_work(k) {
        return Ok(assembly.finish(t, Vec::new(), 0));
    }
    let new = || Emit::new(k, t, assumed, w, index);
    match k.kind {
        FusionKind::Epilogue => {
            let mut e = new();
            flat::epilogue(&mut e)?;
            assembly.add(e, EPILOGUE);
            Ok(assembly.finish(t, Vec::new(), 0))
        }
        FusionKind::Loop | FusionKind::Row | FusionKind::Column if k.reductions.is_empty() => {
            let loops: Vec<u32> = (0..k.loops.len() as u32).filter(|&v| k.loops[v as usize].extent > 1).collect();
            if loops.iter().any(|&v| k.loops[v as usize].reduced) && k.stores.iter().any(|s| !s.full) {
                return Err("results of different spaces without a reduction");
            }
            let mut e = new();
            (e.non_temporal, e.ahead) = (stream, stream);
            let (units, grain) = flat::emit(&mut e, &loops, &k.stores);
            let function = assembly.add(e, SIGNATURE);
            Ok(assembly.finish(t, vec![Step { function, units, grain, scratch: 0 }], 0))
        }
        FusionKind::Row if !column::fits(k) => {
            let mut e = new();
            e.non_temporal = stream;
            let (units, grain, scratch) = row::emit(&mut e);
            let function = assembly.add(e, SIGNATURE);
            Ok(assembly.finish(t, vec![Step { function, units, grain, scratch }], 0))
        }
        FusionKind::Row | FusionKind::Column => {
            column::check(k)?;
            let plan = column::Plan::of(k, w);
            let mut e = new();
            column::partial(&mut e, &plan);
            let function = assembly.add(e, SIGNATURE);
            let mut steps = vec![Step { function, units: plan.units(k), grain: 1, scratch: 0 }];
            let mut e = new();
            let (units, grain) = column::finish(&mut e, &plan);
            let function = assembly.add(e, SIGNATURE);
            steps.push(Step { function, units, grain, scratch: 0 });
            Ok(assembly.finish(t, steps, plan.shared_bytes(k)))
        }
        FusionKind::Loop => Err("a loop kernel with reductions"),
    }
}

/// True if the outputs are large enough to profit from stores that pass by the caches, and of a shape that such stores
/// can write. They need outputs aligned to 64 bytes none of which is also an input.
pub fn may_stream(k: &Kernel, t: Target) -> bool {
    let full = || k.stores.iter().filter(|s| s.full).map(|s| &k.args[s.arg as usize]);
    // Streams must begin at whole vectors in every row, and fill at least one register.
    let (w, inner) = (lanes(k, t), k.loops.last().map_or(1, |l| l.extent));
    let one_step = k.kind == FusionKind::Loop || k.kind == FusionKind::Row && !column::fits(k);
    one_step
        && full().any(|a| a.bytes() >= STREAM_FROM)
        && inner % w as i64 == 0
        && full().all(|a| a.dtype.size() * w >= 16)
}

/// Unrolling of a loop of `extent` in vectors of `w` lanes: enough independent work to fill the pipelines, less the more
/// there is in one vector already. A power of two, so that sizes that differ a little have the same code.
fn unroll(k: &Kernel, extent: i64, w: usize) -> usize {
    let whole = 1 << (extent / w as i64).max(1).ilog2();
    let mut cost = 0;
    k.exprs.walk(&k.ix, &k.roots(), &mut |e| cost += op_cost(k, e).clamp(1, 20));
    let wanted = match cost {
        0..=16 => 4,
        17..=60 => 2,
        _ => 1,
    };
    wanted.min(whole)
}

/// Element type of a reduction's accumulator in memory.
fn accumulator(dtype: DType) -> Reg {
    match Reg::of(dtype.opmath()) {
        Reg::I1 => Reg::I8,
        other => other,
    }
}

/// `a / b` rounded up, for sizes.
fn ceil_div(a: i64, b: i64) -> i64 {
    (a + b - 1) / b
}
