//! Expressions as code.
use super::emit::{Emit, ReducedValue, Reg, Ty};
use super::index::Across;
use rsx_compiler::ir::{CmpDir, DType, OpKind, ReduceKind};
use rsx_compiler::kernel::{Affine, Expr, ExprId, ExprOp};

impl Emit<'_> {
    /// The value of an expression that is the same for all lanes.
    pub(super) fn scalar(&mut self, e: ExprId) -> String {
        let depth = self.depth_of(self.needs[e.0 as usize]);
        if let Some(v) = self.scopes[depth].values.get(&(e, false)) {
            return v.clone();
        }
        let v = self.at_depth(depth, |me| me.compute(e, false));
        self.scopes[depth].values.insert((e, false), v.clone());
        v
    }

    /// The value of an expression in all lanes.
    pub(super) fn vector(&mut self, e: ExprId) -> String {
        let needs = self.needs[e.0 as usize];
        let depth = self.depth_of(needs);
        if let Some(v) = self.scopes[depth].values.get(&(e, true)) {
            return v.clone();
        }
        let v = if self.is_vector(needs) {
            self.at_depth(depth, |me| me.stashed(e))
        } else {
            let expr = self.k.exprs.get(e);
            match expr.op {
                ExprOp::Const(bits) => {
                    let ty = Ty { reg: Reg::of(expr.dtype), vec: true };
                    return self.constant(ty, expr.dtype, bits);
                }
                _ => {
                    let x = self.scalar(e);
                    self.at_depth(depth, |me| me.splat(Reg::of(expr.dtype), &x))
                }
            }
        };
        self.scopes[depth].values.insert((e, true), v.clone());
        v
    }

    /// A value in the lanes that may be kept in scratch memory between passes over a row.
    fn stashed(&mut self, e: ExprId) -> String {
        let Some(&(offset, written)) = self.stash.get(&e) else { return self.compute(e, true) };
        let dtype = self.k.exprs.get(e).dtype;
        let reg = if dtype == DType::Bool { Reg::I8 } else { Reg::of(dtype) };
        let (v, bytes) = (Ty { reg, vec: true }, reg.bits() as usize / 8);
        let value = if written { None } else { Some(self.compute(e, true)) };
        let position = self.reduced_position();
        let index = self.index_scalar(&position);
        let base =
            self.at_depth(0, |me| me.def_once(&format!("getelementptr i8, ptr %scratch, i64 {}", me.size(offset))));
        let p = self.def(format!("getelementptr {}, ptr {base}, i64 {index}", reg.name()));
        match value {
            Some(x) => {
                let raw = if dtype == DType::Bool { self.to_memory(dtype, true, &x) } else { x.clone() };
                // Rows of scratch memory are padded to whole vectors, so no mask is needed.
                let t = self.ty(v);
                self.line(format!("store {t} {raw}, ptr {p}, align {bytes}"));
                x
            }
            None => {
                let raw = self.load_contiguous(v, &p, bytes, None);
                if dtype == DType::Bool { self.from_memory(dtype, true, &raw) } else { raw }
            }
        }
    }

    /// Row-major position in the reduced loops.
    pub(super) fn reduced_position(&self) -> Affine {
        let mut a = Affine::default();
        let mut stride = 1;
        for (n, l) in self.k.loops.iter().enumerate().rev().filter(|(_, l)| l.reduced) {
            if let Some(atom) = self.k.ix.var_atom(n as u32) {
                a.terms.push((atom, stride));
            }
            stride *= l.extent;
        }
        a.terms.sort_by_key(|t| t.0);
        a
    }

    fn arg(&mut self, e: ExprId, vec: bool) -> String {
        if vec { self.vector(e) } else { self.scalar(e) }
    }

    fn constant(&self, ty: Ty, dtype: DType, bits: u64) -> String {
        let bytes = bits.to_le_bytes();
        if dtype.is_float() {
            return self.cf(ty, rsx_compiler::ir::decode_f64(dtype, &bytes));
        }
        // Sign-extended from the type's width; LLVM wants a value that fits.
        let shift = 64 - 8 * dtype.size() as u32;
        let value = ((bits << shift) as i64) >> shift;
        self.ci(ty, value)
    }

    fn compute(&mut self, e: ExprId, vec: bool) -> String {
        let Expr { op, dtype, args } = self.k.exprs.get(e).clone();
        let ty = Ty { reg: Reg::of(dtype), vec };
        match op {
            ExprOp::Const(bits) => self.constant(ty, dtype, bits),
            ExprOp::Scalar(n) => {
                let t = self.ty(ty);
                let p = self.def(format!("getelementptr i64, ptr %scalars, i64 {n}"));
                self.def(format!("load {t}, ptr {p}, align 8"))
            }
            ExprOp::Load { source, offset } => {
                let guard = args.first().copied();
                if let (true, Some(raw)) = (vec, self.tiled.get(&e).cloned()) {
                    return self.from_memory(dtype, true, &raw);
                }
                if vec {
                    let needs = self.needs[e.0 as usize].0;
                    let full = self.k.loops.iter().enumerate().all(|(v, l)| l.extent == 1 || needs >> v & 1 == 1);
                    self.load_vector(source, dtype, &offset, guard, full)
                } else {
                    self.load_scalar(source, dtype, &offset, guard)
                }
            }
            ExprOp::Index(a) if vec => {
                let x = self.index_vector(&a);
                match self.index {
                    Reg::I64 => x,
                    reg => self.cast("sext", Ty { reg, vec }, &x, Reg::I64),
                }
            }
            ExprOp::Index(a) => self.index_scalar(&a),
            ExprOp::InRange { index, lo, hi } => self.in_range(vec, &index, lo, hi),
            ExprOp::Checked { size } => self.checked(vec, &args, size),
            ExprOp::Op(OpKind::Convert) => {
                let from = self.k.exprs.get(args[0]);
                // Indices fit the index type: converting from it is much cheaper than from i64.
                if let (ExprOp::Index(a), true, true, Reg::I32) = (&from.op, vec, dtype.is_float(), self.index) {
                    let x = self.index_vector(a);
                    return self.convert(DType::I32, dtype, vec, &x);
                }
                let x = self.arg(args[0], vec);
                self.convert(from.dtype, dtype, vec, &x)
            }
            ExprOp::Op(OpKind::Power) => self.power(e, vec),
            ExprOp::Op(OpKind::Select) if vec => {
                let (a, b) = (self.vector(args[1]), self.vector(args[2]));
                match self.lane_uniform(args[0]) {
                    Some(c) => {
                        let t = self.ty(ty);
                        self.def(format!("select i1 {c}, {t} {a}, {t} {b}"))
                    }
                    None => {
                        let c = self.vector(args[0]);
                        self.select(ty, &c, &a, &b)
                    }
                }
            }
            ExprOp::Op(kind) => {
                if let Some(y) = self.tanh_gate(e, vec) {
                    return y;
                }
                let from = self.k.exprs.get(args[0]).dtype;
                let list: Vec<String> = args.iter().map(|&a| self.arg(a, vec)).collect();
                self.elementwise(kind, from, dtype, vec, &list)
            }
            ExprOp::Compare(dir) => {
                let from = self.k.exprs.get(args[0]).dtype;
                let (a, b) = (self.arg(args[0], vec), self.arg(args[1], vec));
                self.compare(dir, from, vec, &a, &b)
            }
            ExprOp::Rng { index, word } => {
                let (seed, offset) = (self.arg(args[0], vec), self.arg(args[1], vec));
                let at = self.k.exprs.get(e).index().cloned().unwrap_or(index);
                let at = if vec {
                    let x = self.index_vector(&at);
                    match self.index {
                        Reg::I64 => x,
                        reg => self.cast("sext", Ty { reg, vec }, &x, Reg::I64),
                    }
                } else {
                    self.index_scalar(&at)
                };
                self.philox(vec, &seed, &offset, &at, word)
            }
            ExprOp::Reduced(n) => self.read_reduced(n as usize, vec),
        }
    }

    fn in_range(&mut self, vec: bool, index: &Affine, lo: i64, hi: i64) -> String {
        if !vec {
            let x = self.index_scalar(index);
            let x = self.def(format!("sub nsw i64 {x}, {lo}"));
            return self.def(format!("icmp ult i64 {x}, {}", hi - lo));
        }
        // One unsigned comparison does for both bounds.
        match self.index_across(index) {
            Across::Step { base, step: 0 } => {
                let x = self.def(format!("sub nsw i64 {base}, {lo}"));
                let x = self.def(format!("icmp ult i64 {x}, {}", hi - lo));
                self.splat(Reg::I1, &x)
            }
            Across::Step { .. } | Across::Vector(_) => {
                let v = Ty { reg: self.index, vec };
                let x = self.index_vector(index);
                let x = self.bin("sub", v, &x, &self.ci(v, lo));
                self.cmp("icmp ult", v, &x, &self.ci(v, hi - lo))
            }
        }
    }

    /// An index clamped into range; one that was not in range is reported through `rsx_bad_index`.
    fn checked(&mut self, vec: bool, args: &[ExprId], size: i64) -> String {
        let (i, b) = (Ty { reg: Reg::I64, vec }, Ty { reg: Reg::I1, vec });
        let x = self.arg(args[0], vec);
        let good = self.cmp("icmp ult", i, &x, &self.ci(i, size));
        let mut bad = self.bin("xor", b, &good, &self.ci(b, 1));
        let mask = self.lane.as_ref().and_then(|l| l.mask.clone()).filter(|_| vec);
        let guard = args.get(1).map(|&g| self.arg(g, vec));
        for m in [mask, guard].into_iter().flatten() {
            bad = self.bin("and", b, &bad, &m);
        }
        let worst = self.select(i, &bad, &x, &self.ci(i, i64::MIN));
        let (any, worst) = if vec {
            let (it, bt, im, bm) = (self.ty(i), self.ty(b), self.mangled(i), self.mangled(b));
            let any = self.def(format!("call i1 @llvm.vector.reduce.or.{bm}({bt} {bad})"));
            (any, self.def(format!("call i64 @llvm.vector.reduce.smax.{im}({it} {worst})")))
        } else {
            (bad, worst)
        };
        let name = "rsx_bad_index";
        self.declares.insert(name.into(), format!("declare void @{name}(ptr, i64, i64) nounwind cold"));
        let n = self.fresh();
        self.line(
            format!("br i1 %v{n}.any, label %B{n}.bad, label %B{n}.join, !prof !1")
                .replace(&format!("%v{n}.any"), &any),
        );
        self.line(format!("B{n}.bad:\ncall void @{name}(ptr %fault, i64 {worst}, i64 {size})"));
        self.line(format!("br label %B{n}.join\nB{n}.join:"));
        let low = self.intrinsic2("smax", i, &x, &self.ci(i, 0));
        self.intrinsic2("smin", i, &low, &self.ci(i, (size - 1).max(0)))
    }

    fn read_reduced(&mut self, n: usize, vec: bool) -> String {
        let r = &self.k.reductions[n];
        let acc = Ty { reg: Reg::of(r.dtype.opmath()), vec };
        match self.reduced[n].clone() {
            // A value that is asked for before it exists would be a bug of the schedule; poison shows in any test.
            ReducedValue::None => "poison".to_owned(),
            ReducedValue::Ready(x) => x,
            ReducedValue::Partial { pointer, parts, stride } => {
                let memory = if acc.reg == Reg::I1 { Ty { reg: Reg::I8, vec } } else { acc };
                let bytes = memory.reg.bits() as usize / 8;
                let position = self.kept_position();
                let base = self.index_scalar(&position);
                let name = memory.reg.name();
                let read = |me: &mut Self, start: &str| {
                    let p = me.def(format!("getelementptr {name}, ptr {pointer}, i64 {start}"));
                    let p = me.def(format!("getelementptr {name}, ptr {p}, i64 {base}"));
                    let mask = me.lane.as_ref().and_then(|l| l.mask.clone());
                    let raw = if vec {
                        me.load_contiguous(memory, &p, bytes, mask.as_deref())
                    } else {
                        me.def(format!("load {name}, ptr {p}, align {bytes}"))
                    };
                    if acc.reg == Reg::I1 { me.from_memory(DType::Bool, vec, &raw) } else { raw }
                };
                let mut total = read(self, "0");
                if self.sizes_vary() {
                    // A loop of its own inside of what is one block of the loops around it.
                    let (n, t, at) = (self.fresh(), self.ty(acc), self.at);
                    let begin = self.scopes[at].code.len();
                    let start = self.def(format!("mul nsw i64 %q{n}, {stride}"));
                    let x = read(self, &start);
                    let new = self.combine(r.kind, r.dtype, vec, &format!("%q{n}.sum"), &x);
                    let body = self.scopes[at].code.split_off(begin);
                    self.line(format!("br label %P{n}.pre\nP{n}.pre:\nbr label %P{n}.head\nP{n}.head:"));
                    self.line(format!("%q{n} = phi i64 [ 1, %P{n}.pre ], [ %q{n}.next, %P{n}.body ]"));
                    self.line(format!("%q{n}.sum = phi {t} [ {total}, %P{n}.pre ], [ {new}, %P{n}.body ]"));
                    self.line(format!("%q{n}.more = icmp slt i64 %q{n}, {}", self.size(parts)));
                    self.line(format!("br i1 %q{n}.more, label %P{n}.body, label %P{n}.done\nP{n}.body:"));
                    self.line(body.trim_end());
                    self.line(format!("%q{n}.next = add nuw nsw i64 %q{n}, 1\nbr label %P{n}.head\nP{n}.done:"));
                    total = format!("%q{n}.sum");
                } else {
                    for part in 1..parts {
                        let x = read(self, &(part * stride).to_string());
                        total = self.combine(r.kind, r.dtype, vec, &total, &x);
                    }
                }
                self.round(r.dtype, vec, &total)
            }
        }
    }

    /// Row-major position in the kept loops.
    pub(super) fn kept_position(&self) -> Affine {
        let mut a = Affine::default();
        let mut stride = 1;
        for (n, l) in self.k.loops.iter().enumerate().rev().filter(|(_, l)| !l.reduced) {
            if let Some(atom) = self.k.ix.var_atom(n as u32) {
                a.terms.push((atom, stride));
            }
            stride *= l.extent;
        }
        a.terms.sort_by_key(|t| t.0);
        a
    }

    /// One step of a reduction on accumulators (f16 and bf16 accumulate in f32, unrounded).
    pub(super) fn combine(&mut self, kind: ReduceKind, dtype: DType, vec: bool, a: &str, b: &str) -> String {
        let ty = Ty { reg: Reg::of(dtype.opmath()), vec };
        let (float, bool) = (dtype.is_float(), dtype == DType::Bool);
        match kind {
            ReduceKind::Sum if bool => self.bin("or", ty, a, b),
            ReduceKind::Prod if bool => self.bin("and", ty, a, b),
            ReduceKind::Sum => self.bin(if float { "fadd" } else { "add" }, ty, a, b),
            ReduceKind::Prod => self.bin(if float { "fmul" } else { "mul" }, ty, a, b),
            ReduceKind::Max => self.extreme(true, dtype, ty, a, b),
            ReduceKind::Min => self.extreme(false, dtype, ty, a, b),
            ReduceKind::And => self.bin("and", ty, a, b),
            ReduceKind::Or => self.bin("or", ty, a, b),
        }
    }

    /// The identity of a reduction as an accumulator.
    pub(super) fn identity(&self, kind: ReduceKind, dtype: DType, vec: bool) -> String {
        let bits = rsx_compiler::kernel::identity(kind, dtype);
        self.constant(Ty { reg: Reg::of(dtype), vec }, dtype, bits)
    }

    /// Larger (or smaller) of two; NaN if either is.
    pub(super) fn extreme(&mut self, max: bool, dtype: DType, ty: Ty, a: &str, b: &str) -> String {
        if dtype.is_float() {
            // The first select is the hardware's instruction, which gives b if either is NaN; the second keeps a NaN in a.
            let c = self.cmp(if max { "fcmp ogt" } else { "fcmp olt" }, ty, a, b);
            let m = self.select(ty, &c, a, b);
            let nan = self.cmp("fcmp uno", ty, a, a);
            return self.select(ty, &nan, a, &m);
        }
        match (dtype, max) {
            (DType::Bool, true) => self.bin("or", ty, a, b),
            (DType::Bool, false) => self.bin("and", ty, a, b),
            (d, max) => {
                let name = match (d.is_signed(), max) {
                    (true, true) => "smax",
                    (true, false) => "smin",
                    (false, true) => "umax",
                    (false, false) => "umin",
                };
                self.intrinsic2(name, ty, a, b)
            }
        }
    }

    pub(super) fn compare(&mut self, dir: CmpDir, dtype: DType, vec: bool, a: &str, b: &str) -> String {
        let ty = Ty { reg: Reg::of(dtype), vec };
        let names = if dtype.is_float() {
            ["fcmp oeq", "fcmp une", "fcmp olt", "fcmp ole", "fcmp ogt", "fcmp oge"]
        } else if dtype.is_signed() {
            ["icmp eq", "icmp ne", "icmp slt", "icmp sle", "icmp sgt", "icmp sge"]
        } else {
            ["icmp eq", "icmp ne", "icmp ult", "icmp ule", "icmp ugt", "icmp uge"]
        };
        let op = match dir {
            CmpDir::Eq => names[0],
            CmpDir::Ne => names[1],
            CmpDir::Lt => names[2],
            CmpDir::Le => names[3],
            CmpDir::Gt => names[4],
            CmpDir::Ge => names[5],
        };
        self.cmp(op, ty, a, b)
    }

    /// Philox4x32-10 with key `seed` and counter `offset + at` (i64 each).
    fn philox(&mut self, vec: bool, seed: &str, offset: &str, at: &str, word: u32) -> String {
        let (q, i) = (Ty { reg: Reg::I64, vec }, Ty { reg: Reg::I32, vec });
        let counter = self.bin("add", q, offset, at);
        let low = |me: &mut Self, x: &str| me.cast("trunc", q, x, Reg::I32);
        let high = |me: &mut Self, x: &str| {
            let s = me.bin("lshr", q, x, &me.ci(q, 32));
            me.cast("trunc", q, &s, Reg::I32)
        };
        let mut c = [low(self, &counter), high(self, &counter), self.ci(i, 0), self.ci(i, 0)];
        let mut k = [low(self, seed), high(self, seed)];
        for round in 0..10 {
            if round > 0 {
                k[0] = self.bin("add", i, &k[0], &self.ci(i, 0x9E37_79B9u32 as i32 as i64));
                k[1] = self.bin("add", i, &k[1], &self.ci(i, 0xBB67_AE85u32 as i32 as i64));
            }
            let mut product = |x: &str, m: u32| {
                if vec {
                    return self.wide_product(x, m);
                }
                let x = self.cast("zext", i, x, Reg::I64);
                let p = self.bin("mul", q, &x, &self.ci(q, i64::from(m)));
                (high(self, &p), low(self, &p))
            };
            let (h0, l0) = product(&c[0], 0xD251_1F53);
            let (h1, l1) = product(&c[2], 0xCD9E_8D57);
            let a = self.bin("xor", i, &h1, &c[1]);
            let a = self.bin("xor", i, &a, &k[0]);
            let b = self.bin("xor", i, &h0, &c[3]);
            let b = self.bin("xor", i, &b, &k[1]);
            c = [a, l1, b, l0];
        }
        c[(word & 3) as usize].clone()
    }

    /// High and low words of the 64-bit products of `u32` lanes with `m`: even and odd lanes apart, as the processor
    /// multiplies.
    fn wide_product(&mut self, x: &str, m: u32) -> (String, String) {
        let (w, h) = (self.w, self.w / 2);
        let (narrow, wide) = (format!("<{w} x i32>"), format!("<{h} x i64>"));
        let k = |v: i64| format!("splat (i64 {v})");
        let both = self.def(format!("bitcast {narrow} {x} to {wide}"));
        let even = self.def(format!("and {wide} {both}, {}", k(0xffff_ffff)));
        let odd = self.def(format!("lshr {wide} {both}, {}", k(32)));
        let even = self.def(format!("mul nuw {wide} {even}, {}", k(i64::from(m))));
        let odd = self.def(format!("mul nuw {wide} {odd}, {}", k(i64::from(m))));
        let up = self.def(format!("lshr {wide} {even}, {}", k(32)));
        let down = self.def(format!("shl {wide} {odd}, {}", k(32)));
        let order: Vec<String> = (0..w).map(|l| format!("i32 {}", if l % 2 == 0 { l } else { w + l })).collect();
        let order = order.join(", ");
        let mut blend = |a: &str, b: &str| {
            let a = self.def(format!("bitcast {wide} {a} to {narrow}"));
            let b = self.def(format!("bitcast {wide} {b} to {narrow}"));
            self.def(format!("shufflevector {narrow} {a}, {narrow} {b}, <{w} x i32> <{order}>"))
        };
        let high = blend(&up, &odd);
        (high, blend(&even, &down))
    }

    /// A literal's bytes as a private constant of the module.
    pub(super) fn literal(&self, n: usize) -> String {
        let bytes = &self.k.literals[n].bytes;
        let text: String = bytes.iter().map(|b| format!("\\{b:02X}")).collect();
        format!("@KEY.lit{n} = private unnamed_addr constant [{} x i8] c\"{text}\", align 64\n", bytes.len())
    }
}
