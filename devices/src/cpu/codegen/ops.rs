//! Elementwise ops as code.
use super::emit::{Emit, Reg, Ty};
use rsx_compiler::ir::{DType, OpKind};
use rsx_compiler::kernel::{ExprId, ExprOp};

impl Emit<'_> {
    /// `kind` on operands of type `from`, with a result of type `to`.
    pub(super) fn elementwise(&mut self, kind: OpKind, from: DType, to: DType, vec: bool, x: &[String]) -> String {
        use OpKind as K;
        let ty = Ty { reg: Reg::of(from), vec };
        let a = x[0].as_str();
        match kind {
            K::Select => self.select(Ty { reg: Reg::of(to), vec }, a, &x[1], &x[2]),
            K::BitcastConvert => self.bitcast(from, to, vec, a),
            K::IsFinite if from.is_float() => {
                let m = self.intrinsic1("fabs", ty, a);
                self.cmp("fcmp olt", ty, &m, &self.cf(ty, f64::INFINITY))
            }
            K::IsFinite => self.ci(Ty { reg: Reg::I1, vec }, 1),
            _ if from == DType::Bool => self.logical(kind, ty, x),
            _ if from.is_float() => {
                let y = self.float_op(kind, from, ty, x);
                // These give a number of the operand's own precision already.
                let exact = matches!(
                    kind,
                    K::Abs
                        | K::Negate
                        | K::Sign
                        | K::Maximum
                        | K::Minimum
                        | K::Floor
                        | K::Ceil
                        | K::Trunc
                        | K::RoundEven
                        | K::NextAfter
                );
                if exact { y } else { self.round(to, vec, &y) }
            }
            _ => self.integer_op(kind, from, ty, x),
        }
    }

    fn bitcast(&mut self, from: DType, to: DType, vec: bool, x: &str) -> String {
        let narrow = |d: DType| matches!(d, DType::F16 | DType::BF16 | DType::Bool);
        if narrow(from) || narrow(to) {
            let raw = self.to_memory(from, vec, x);
            return self.from_memory(to, vec, &raw);
        }
        let (a, b) = (Reg::of(from), Reg::of(to));
        if a == b { x.to_owned() } else { self.cast("bitcast", Ty { reg: a, vec }, x, b) }
    }

    fn logical(&mut self, kind: OpKind, ty: Ty, x: &[String]) -> String {
        use OpKind as K;
        let one = self.ci(ty, 1);
        match kind {
            K::Add | K::Or | K::Maximum => self.bin("or", ty, &x[0], &x[1]),
            K::Multiply | K::And | K::Minimum | K::Divide => self.bin("and", ty, &x[0], &x[1]),
            K::Subtract | K::Xor => self.bin("xor", ty, &x[0], &x[1]),
            K::Not => self.bin("xor", ty, &x[0], &one),
            K::Power => {
                let n = self.bin("xor", ty, &x[1], &one);
                self.bin("or", ty, &x[0], &n)
            }
            // -1 is not 0: the sign ops leave truth values alone.
            K::Abs | K::Negate | K::Sign => x[0].clone(),
            // Remainders and shifts out of range.
            _ => self.ci(ty, 0),
        }
    }

    fn integer_op(&mut self, kind: OpKind, dtype: DType, ty: Ty, x: &[String]) -> String {
        use OpKind as K;
        let (signed, a) = (dtype.is_signed(), x[0].as_str());
        let zero = self.ci(ty, 0);
        match kind {
            K::Abs if signed => {
                let (t, m) = (self.ty(ty), self.mangled(ty));
                self.def(format!("call {t} @llvm.abs.{m}({t} {a}, i1 false)"))
            }
            K::Abs => a.to_owned(),
            K::Negate => self.bin("sub", ty, &zero, a),
            K::Sign => {
                let one = self.ci(ty, 1);
                let up = self.cmp(if signed { "icmp sgt" } else { "icmp ne" }, ty, a, &zero);
                let y = self.select(ty, &up, &one, &zero);
                if !signed {
                    return y;
                }
                let down = self.cmp("icmp slt", ty, a, &zero);
                self.select(ty, &down, &self.ci(ty, -1), &y)
            }
            K::Not => self.bin("xor", ty, a, &self.ci(ty, -1)),
            K::Add => self.bin("add", ty, a, &x[1]),
            K::Subtract => self.bin("sub", ty, a, &x[1]),
            K::Multiply => self.bin("mul", ty, a, &x[1]),
            K::And => self.bin("and", ty, a, &x[1]),
            K::Or => self.bin("or", ty, a, &x[1]),
            K::Xor => self.bin("xor", ty, a, &x[1]),
            K::Maximum => self.extreme(true, dtype, ty, a, &x[1]),
            K::Minimum => self.extreme(false, dtype, ty, a, &x[1]),
            K::Divide | K::Remainder => self.division(kind == K::Divide, signed, ty, a, &x[1]),
            K::ShiftLeft | K::ShiftRight => {
                let width = i64::from(ty.reg.bits());
                let good = self.cmp("icmp ult", ty, &x[1], &self.ci(ty, width));
                let by = self.select(ty, &good, &x[1], &zero);
                let (op, fill) = match (kind, signed) {
                    (K::ShiftLeft, _) => ("shl", zero),
                    (_, true) => ("ashr", self.bin("ashr", ty, a, &self.ci(ty, width - 1))),
                    (_, false) => ("lshr", zero),
                };
                let y = self.bin(op, ty, a, &by);
                self.select(ty, &good, &y, &fill)
            }
            K::Power => {
                let (wide, name) = if signed { ("sext", "rsx_ipow_i64") } else { ("zext", "rsx_ipow_u64") };
                let q = Ty { reg: Reg::I64, vec: ty.vec };
                let widen = |me: &mut Self, v: &str| {
                    if ty.reg == Reg::I64 { v.to_owned() } else { me.cast(wide, ty, v, Reg::I64) }
                };
                let (base, exponent) = (widen(self, a), widen(self, &x[1]));
                let y = self.call_extern(name, q, &[&base, &exponent], Reg::I64);
                if ty.reg == Reg::I64 { y } else { self.cast("trunc", q, &y, ty.reg) }
            }
            // Float functions never see integers (the type rules).
            _ => a.to_owned(),
        }
    }

    /// Truncating division where x / 0 = 0 and x rem 0 = 0; the processor would trap on it and on MIN / -1.
    fn division(&mut self, quotient: bool, signed: bool, ty: Ty, a: &str, b: &str) -> String {
        let (zero, one) = (self.ci(ty, 0), self.ci(ty, 1));
        let by_zero = self.cmp("icmp eq", ty, b, &zero);
        let mut safe = self.select(ty, &by_zero, &one, b);
        let minus = signed.then(|| self.cmp("icmp eq", ty, b, &self.ci(ty, -1)));
        if let Some(m) = &minus {
            safe = self.select(ty, m, &one, &safe);
        }
        let op = match (quotient, signed) {
            (true, true) => "sdiv",
            (true, false) => "udiv",
            (false, true) => "srem",
            (false, false) => "urem",
        };
        let mut y = self.bin(op, ty, a, &safe);
        if let (Some(m), true) = (&minus, quotient) {
            let negated = self.bin("sub", ty, &zero, a);
            y = self.select(ty, m, &negated, &y);
        }
        self.select(ty, &by_zero, &zero, &y)
    }

    fn float_op(&mut self, kind: OpKind, dtype: DType, ty: Ty, x: &[String]) -> String {
        use OpKind as K;
        let a = x[0].as_str();
        let single = ty.reg == Reg::F32;
        match kind {
            K::Abs => self.intrinsic1("fabs", ty, a),
            K::Negate => {
                let t = self.ty(ty);
                self.def(format!("fneg {t} {a}"))
            }
            K::Sign => {
                let zero = self.cf(ty, 0.0);
                let one = self.cf(ty, 1.0);
                let t = self.ty(ty);
                let m = self.mangled(ty);
                let y = self.def(format!("call {t} @llvm.copysign.{m}({t} {one}, {t} {a})"));
                // Not ordered and different from zero: zeros and NaN stay.
                let c = self.cmp("fcmp one", ty, a, &zero);
                self.select(ty, &c, &y, a)
            }
            K::Sqrt => self.intrinsic1("sqrt", ty, a),
            K::Rsqrt => {
                let s = self.intrinsic1("sqrt", ty, a);
                self.bin("fdiv", ty, &self.cf(ty, 1.0), &s)
            }
            K::Floor => self.intrinsic1("floor", ty, a),
            K::Ceil => self.intrinsic1("ceil", ty, a),
            K::Trunc => self.intrinsic1("trunc", ty, a),
            K::RoundEven => self.intrinsic1("roundeven", ty, a),
            K::Add => self.bin("fadd", ty, a, &x[1]),
            K::Subtract => self.bin("fsub", ty, a, &x[1]),
            K::Multiply => self.bin("fmul", ty, a, &x[1]),
            K::Divide => self.bin("fdiv", ty, a, &x[1]),
            K::Maximum => self.extreme(true, dtype, ty, a, &x[1]),
            K::Minimum => self.extreme(false, dtype, ty, a, &x[1]),
            K::Logistic => {
                let t = self.ty(ty);
                let n = self.def(format!("fneg {t} {a}"));
                let e = self.float_op(K::Exp, dtype, ty, &[n]);
                let one = self.cf(ty, 1.0);
                let d = self.bin("fadd", ty, &e, &one);
                self.bin("fdiv", ty, &one, &d)
            }
            K::Exp if single => self.exp(ty, a),
            K::Expm1 if single => self.expm1(ty, a),
            K::Log if single => self.log(ty, a),
            K::Log1p if single => self.log1p(ty, a),
            K::Tanh if single => self.tanh(ty, a),
            K::Sin if single => self.sin_cos(ty, a, false),
            K::Cos if single => self.sin_cos(ty, a, true),
            K::Erf if single => self.erf(ty, a),
            K::NextAfter => {
                let name = format!("rsx_next_after_{dtype}");
                self.call_extern(&name, ty, &[a, &x[1]], ty.reg)
            }
            kind => {
                // The rarer functions: scalar code of this crate.
                let suffix = if single { "f32" } else { "f64" };
                let name = format!("rsx_{}_{suffix}", kind.name());
                let args: Vec<&str> = x.iter().map(String::as_str).collect();
                self.call_extern(&name, ty, &args, ty.reg)
            }
        }
    }

    /// `power`, with the exponents that PyTorch computes by multiplication.
    pub(super) fn power(&mut self, e: ExprId, vec: bool) -> String {
        let expr = self.k.exprs.get(e).clone();
        let dtype = expr.dtype;
        let ty = Ty { reg: Reg::of(dtype), vec };
        let get = |me: &mut Self, e: ExprId| if vec { me.vector(e) } else { me.scalar(e) };
        let x = get(self, expr.args[0]);
        if let (true, ExprOp::Const(bits)) = (dtype.is_float(), &self.k.exprs.get(expr.args[1]).op) {
            let exponent = rsx_compiler::ir::decode_f64(dtype, &bits.to_le_bytes());
            if exponent == 1.0 {
                return x;
            }
            if exponent == 2.0 || exponent == 3.0 {
                let square = self.bin("fmul", ty, &x, &x);
                let y = if exponent == 2.0 { square } else { self.bin("fmul", ty, &square, &x) };
                return self.round(dtype, vec, &y);
            }
        }
        let y = get(self, expr.args[1]);
        if ty.reg == Reg::F32 {
            let z = self.pow(ty, &x, &y);
            return self.round(dtype, vec, &z);
        }
        match dtype {
            DType::F64 => self.call_extern("rsx_power_f64", ty, &[&x, &y], Reg::F64),
            DType::Bool => self.logical(OpKind::Power, ty, &[x, y]),
            _ => self.integer_op(OpKind::Power, dtype, ty, &[x, y]),
        }
    }
}
