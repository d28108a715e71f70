//! The text builder: SSA names, types, loops, and code that lands in the loop it depends on.
//!
//! Code is kept in one buffer per open loop. An instruction is appended to the buffer of the innermost loop that its
//! operands need, and a loop's text is put into its parent only when it is closed, so loop-invariant code is outside
//! by construction and no pass has to move it there.
use crate::cpu::target::Target;
use rsx_compiler::ir::DType;
use rsx_compiler::kernel::{Assumed, AtomId, ExprId, Kernel};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Stands before a literal that varies with the sizes even where two texts agree in it.
pub const VARIES: char = '$';

/// What a value is held as. `bool` is `i1`; f16 and bf16 are `f32`, always rounded to their own precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reg {
    I1,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl Reg {
    pub(super) fn of(dtype: DType) -> Reg {
        match dtype {
            DType::Bool => Reg::I1,
            DType::U8 | DType::I8 => Reg::I8,
            DType::I16 | DType::U16 => Reg::I16,
            DType::I32 | DType::U32 => Reg::I32,
            DType::I64 | DType::U64 => Reg::I64,
            DType::F16 | DType::BF16 | DType::F32 => Reg::F32,
            DType::F64 => Reg::F64,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Reg::I1 => "i1",
            Reg::I8 => "i8",
            Reg::I16 => "i16",
            Reg::I32 => "i32",
            Reg::I64 => "i64",
            Reg::F32 => "float",
            Reg::F64 => "double",
        }
    }

    /// Name in the mangled names of intrinsics.
    pub(super) const fn mangled(self) -> &'static str {
        match self {
            Reg::F32 => "f32",
            Reg::F64 => "f64",
            other => other.name(),
        }
    }

    pub(super) const fn bits(self) -> u32 {
        match self {
            Reg::I1 => 1,
            Reg::I8 => 8,
            Reg::I16 => 16,
            Reg::I32 | Reg::F32 => 32,
            Reg::I64 | Reg::F64 => 64,
        }
    }
}

/// A register type: one value or a vector of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ty {
    pub(super) reg: Reg,
    pub(super) vec: bool,
}

/// The lanes: consecutive values of one loop variable.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) var: u32,
    /// SSA name of the value of lane 0, less `shift`.
    pub(super) base: String,
    pub(super) shift: i64,
    /// `base` is known to be a multiple of this.
    pub(super) multiple: i64,
    /// Active lanes, if not all.
    pub(super) mask: Option<String>,
}

/// Which of the kernel's reductions can be read and how.
#[derive(Clone, Debug)]
pub(super) enum ReducedValue {
    None,
    /// SSA name of the finished value (a scalar).
    Ready(String),
    /// In memory: pointer to one accumulator per kept point, one such array for each of `parts`.
    Partial {
        pointer: String,
        parts: i64,
        stride: i64,
    },
}

#[derive(Default)]
pub(super) struct Scope {
    pub(super) code: String,
    pub(super) values: HashMap<(ExprId, bool), String>,
    pub(super) atoms: HashMap<AtomId, String>,
    pub(super) texts: HashMap<String, String>,
}

/// Where a loop variable lives.
#[derive(Clone, Debug)]
pub(super) struct Var {
    pub(super) name: String,
    pub(super) depth: usize,
}

pub(super) struct Emit<'k> {
    pub(super) k: &'k Kernel,
    pub(super) t: Target,
    /// Code for many sizes: what may be assumed of them. Everything else that depends on a size is computed at run time,
    /// so that the text is the same for all of them up to literals.
    pub(super) assumed: Option<&'k Assumed>,
    /// Lanes of a vector.
    pub(super) w: usize,
    /// Element type of vectors of indices.
    pub(super) index: Reg,
    /// Open loops, outermost (the function) first.
    pub(super) scopes: Vec<Scope>,
    /// The scope that code goes to.
    pub(super) at: usize,
    pub(super) vars: Vec<Option<Var>>,
    pub(super) lane: Option<Lane>,
    pub(super) reduced: Vec<ReducedValue>,
    /// The scope in which finished reductions live.
    pub(super) reduced_depth: usize,
    /// Per expression: loop variables it needs (a bit each) and whether it needs a reduction.
    pub(super) needs: Vec<(u64, bool)>,
    /// Per expression: in how many places it is an operand or a result.
    pub(super) uses: Vec<u32>,
    /// Kept between passes: expression to (scratch offset in bytes, written already).
    pub(super) stash: HashMap<ExprId, (u64, bool)>,
    /// Loads that a tile has read already: the raw elements of the present row in the present lanes.
    pub(super) tiled: HashMap<ExprId, String>,
    /// The accumulation buffer of an epilogue: the argument it stands for, and the pointer to column 0 of the row.
    pub(super) acc: Option<(u32, String)>,
    pub(super) non_temporal: bool,
    /// Inputs as large as the space are asked for some way ahead of their use.
    pub(super) ahead: bool,
    /// Elements from a row to one that comes some rows later and is asked for meanwhile: rows of a block that is part of
    /// a larger array lie apart, so that the processor's own prefetching does not see the next.
    pub(super) next_rows: Option<usize>,
    pub(super) declares: BTreeMap<String, String>,
    next: u32,
}

impl<'k> Emit<'k> {
    pub(super) fn new(k: &'k Kernel, t: Target, assumed: Option<&'k Assumed>, w: usize, index: Reg) -> Self {
        Emit {
            k,
            t,
            assumed,
            w,
            index,
            scopes: vec![Scope::default()],
            at: 0,
            vars: vec![None; k.loops.len()],
            lane: None,
            reduced: vec![ReducedValue::None; k.reductions.len()],
            reduced_depth: 0,
            needs: super::needs(k),
            uses: super::uses(k),
            stash: HashMap::new(),
            tiled: HashMap::new(),
            acc: None,
            non_temporal: false,
            ahead: false,
            next_rows: None,
            declares: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Some size of the kernel varies.
    pub(super) fn sizes_vary(&self) -> bool {
        self.assumed.is_some_and(Assumed::varies)
    }

    /// The extent of loop `v` varies.
    pub(super) fn varies(&self, v: u32) -> bool {
        self.assumed.is_some_and(|a| a.extent(v).is_some())
    }

    /// What the extent of loop `v` is a multiple of.
    pub(super) fn multiple(&self, v: u32) -> i64 {
        self.assumed.and_then(|a| a.extent(v)).unwrap_or(self.k.loops[v as usize].extent)
    }

    /// The text of a number that was computed from sizes. Those of two sizes may happen to be equal, so it is marked as
    /// one that varies.
    pub(super) fn size(&self, n: impl std::fmt::Display) -> String {
        if self.sizes_vary() { format!("{VARIES}{n}") } else { n.to_string() }
    }

    /// Begin and end of range `number` of ranges of `size` each, of which the last may be cut off at `limit`.
    pub(super) fn range(&mut self, number: &str, size: i64, limit: &str) -> (String, String) {
        let size = self.size(size);
        let lo = self.def(format!("mul nsw i64 {number}, {size}"));
        let end = self.def(format!("add nsw i64 {lo}, {size}"));
        let hi = self.def(format!("call i64 @llvm.smin.i64(i64 {end}, i64 {limit})"));
        (lo, hi)
    }

    /// The text of the extent of loop `v`.
    pub(super) fn extent(&self, v: u32) -> String {
        let n = self.k.loops[v as usize].extent;
        if self.varies(v) { format!("{VARIES}{n}") } else { n.to_string() }
    }

    /// Appends a line to the current scope.
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        let code = &mut self.scopes[self.at].code;
        code.push_str(line.as_ref());
        code.push('\n');
    }

    /// Appends `%n = <text>` and returns `%n`.
    pub(super) fn def(&mut self, text: impl AsRef<str>) -> String {
        let n = self.fresh();
        let code = &mut self.scopes[self.at].code;
        // Writing to a string cannot fail.
        let _ = writeln!(code, "%v{n} = {}", text.as_ref());
        format!("%v{n}")
    }

    /// As [`Emit::def`], but the same text in the same scope is one value.
    pub(super) fn def_once(&mut self, text: &str) -> String {
        if let Some(v) = self.scopes[self.at].texts.get(text) {
            return v.clone();
        }
        let v = self.def(text);
        self.scopes[self.at].texts.insert(text.to_owned(), v.clone());
        v
    }

    /// Runs `f` with code going to scope `depth`.
    pub(super) fn at_depth<R>(&mut self, depth: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.at, depth);
        let r = f(self);
        self.at = before;
        r
    }

    pub(super) fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    // Types and constants.

    pub(super) fn ty(&self, ty: Ty) -> String {
        if ty.vec { format!("<{} x {}>", self.w, ty.reg.name()) } else { ty.reg.name().to_owned() }
    }

    pub(super) fn mangled(&self, ty: Ty) -> String {
        if ty.vec { format!("v{}{}", self.w, ty.reg.mangled()) } else { ty.reg.mangled().to_owned() }
    }

    /// The text of a constant of scalar text `text`.
    pub(super) fn splat_text(&self, ty: Ty, text: &str) -> String {
        if ty.vec { format!("splat ({} {text})", ty.reg.name()) } else { text.to_owned() }
    }

    pub(super) fn cf(&self, ty: Ty, value: f64) -> String {
        let bits = match ty.reg {
            Reg::F32 => f64::from(value as f32).to_bits(),
            _ => value.to_bits(),
        };
        self.splat_text(ty, &format!("0x{bits:016X}"))
    }

    pub(super) fn ci(&self, ty: Ty, value: i64) -> String {
        match ty.reg {
            Reg::I1 => self.splat_text(ty, if value != 0 { "true" } else { "false" }),
            _ => self.splat_text(ty, &value.to_string()),
        }
    }

    // Instructions.

    pub(super) fn bin(&mut self, op: &str, ty: Ty, a: &str, b: &str) -> String {
        let t = self.ty(ty);
        self.def(format!("{op} {t} {a}, {b}"))
    }

    pub(super) fn fma(&mut self, ty: Ty, a: &str, b: &str, c: &str) -> String {
        if self.t.has_fma() {
            let (t, m) = (self.ty(ty), self.mangled(ty));
            return self.def(format!("call {t} @llvm.fma.{m}({t} {a}, {t} {b}, {t} {c})"));
        }
        let p = self.bin("fmul", ty, a, b);
        self.bin("fadd", ty, &p, c)
    }

    pub(super) fn intrinsic1(&mut self, name: &str, ty: Ty, a: &str) -> String {
        let (t, m) = (self.ty(ty), self.mangled(ty));
        self.def(format!("call {t} @llvm.{name}.{m}({t} {a})"))
    }

    pub(super) fn intrinsic2(&mut self, name: &str, ty: Ty, a: &str, b: &str) -> String {
        let (t, m) = (self.ty(ty), self.mangled(ty));
        self.def(format!("call {t} @llvm.{name}.{m}({t} {a}, {t} {b})"))
    }

    /// `icmp` or `fcmp` with its predicate in `op`.
    pub(super) fn cmp(&mut self, op: &str, ty: Ty, a: &str, b: &str) -> String {
        let t = self.ty(ty);
        self.def(format!("{op} {t} {a}, {b}"))
    }

    pub(super) fn select(&mut self, ty: Ty, c: &str, a: &str, b: &str) -> String {
        let (t, b1) = (self.ty(ty), self.ty(Ty { reg: Reg::I1, vec: ty.vec }));
        self.def(format!("select {b1} {c}, {t} {a}, {t} {b}"))
    }

    pub(super) fn cast(&mut self, op: &str, from: Ty, a: &str, to: Reg) -> String {
        let (f, t) = (self.ty(from), self.ty(Ty { reg: to, vec: from.vec }));
        self.def(format!("{op} {f} {a} to {t}"))
    }

    /// A vector of `value` in every lane.
    pub(super) fn splat(&mut self, reg: Reg, value: &str) -> String {
        if value.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            return self.splat_text(Ty { reg, vec: true }, value);
        }
        let (v, s) = (self.ty(Ty { reg, vec: true }), reg.name());
        let one = self.def_once(&format!("insertelement {v} poison, {s} {value}, i64 0"));
        let w = self.w;
        self.def_once(&format!("shufflevector {v} {one}, {v} poison, <{w} x i32> zeroinitializer"))
    }

    /// The vector 0, 1, 2, ...
    pub(super) fn lane_numbers(&self, reg: Reg) -> String {
        let list: Vec<String> = (0..self.w).map(|i| format!("{} {i}", reg.name())).collect();
        format!("<{}>", list.join(", "))
    }

    /// Calls a registered function of scalars, lane by lane for vectors.
    pub(super) fn call_extern(&mut self, name: &str, ty: Ty, args: &[&str], result: Reg) -> String {
        let s = ty.reg.name();
        let params = vec![s; args.len()].join(", ");
        self.declares.insert(name.to_owned(), format!("declare {} @{name}({params}) #1", result.name()));
        let call = |me: &mut Self, args: &[String]| {
            let list: Vec<String> = args.iter().map(|a| format!("{s} {a}")).collect();
            me.def(format!("call {} @{name}({})", result.name(), list.join(", ")))
        };
        if !ty.vec {
            let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
            return call(self, &args);
        }
        let (v, r) = (self.ty(ty), self.ty(Ty { reg: result, vec: true }));
        let mut out = "poison".to_owned();
        for l in 0..self.w {
            let lane: Vec<String> = args.iter().map(|a| self.def(format!("extractelement {v} {a}, i64 {l}"))).collect();
            let x = call(self, &lane);
            out = self.def(format!("insertelement {r} {out}, {} {x}, i64 {l}", result.name()));
        }
        out
    }

    // Loops.

    /// Opens a loop body: everything until [`Emit::close`] is inside. Returns the number that names the loop.
    pub(super) fn open(&mut self) -> u32 {
        self.scopes.push(Scope::default());
        self.at = self.depth();
        self.fresh()
    }

    /// Closes the innermost loop: `%i<n>` counts from `lo` while below `hi` by `step`; `carried` are (type, name,
    /// first value, next value) of what goes from one trip to the next. The names hold the last values afterwards.
    pub(super) fn close(
        &mut self,
        n: u32,
        lo: &str,
        hi: &str,
        step: i64,
        carried: &[(String, String, String, String)],
    ) {
        let Some(body) = self.scopes.pop() else { return };
        self.at = self.depth();
        let mut s = format!("br label %L{n}.pre\nL{n}.pre:\nbr label %L{n}.head\nL{n}.head:\n");
        let _ = writeln!(s, "%i{n} = phi i64 [ {lo}, %L{n}.pre ], [ %i{n}.next, %L{n}.latch ]");
        for (ty, name, first, next) in carried {
            let _ = writeln!(s, "{name} = phi {ty} [ {first}, %L{n}.pre ], [ {next}, %L{n}.latch ]");
        }
        let _ = writeln!(s, "%i{n}.more = icmp slt i64 %i{n}, {hi}");
        let _ = writeln!(s, "br i1 %i{n}.more, label %L{n}.body, label %L{n}.exit\nL{n}.body:");
        s.push_str(&body.code);
        let _ = writeln!(s, "br label %L{n}.latch\nL{n}.latch:\n%i{n}.next = add nuw nsw i64 %i{n}, {step}");
        let _ = write!(s, "br label %L{n}.head\nL{n}.exit:");
        self.line(s);
    }

    /// Runs `f` with the lanes set to `lane`, forgetting what other lanes computed.
    pub(super) fn on<R>(&mut self, lane: &Lane, f: impl FnOnce(&mut Self) -> R) -> R {
        self.lane = Some(lane.clone());
        self.at = self.depth();
        if let Some(s) = self.scopes.last_mut() {
            s.values.clear();
            s.atoms.clear();
        }
        let r = f(self);
        self.lane = None;
        r
    }

    /// Sets up loop variables `vars` from the flat position `flat` (an SSA name) in the current scope.
    pub(super) fn set_flat(&mut self, vars: &[u32], flat: &str) {
        let depth = self.at;
        let mut rest = flat.to_owned();
        for (n, &v) in vars.iter().enumerate().rev() {
            let extent = self.extent(v);
            let name = if n == 0 {
                rest.clone()
            } else {
                let name = self.def(format!("urem i64 {rest}, {extent}"));
                rest = self.def(format!("udiv i64 {rest}, {extent}"));
                name
            };
            self.vars[v as usize] = Some(Var { name, depth });
        }
    }
}
