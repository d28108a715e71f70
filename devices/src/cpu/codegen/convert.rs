//! Conversions between element types and rounding to the 16-bit floats.
use super::emit::{Emit, Reg, Ty};
use rsx_compiler::ir::DType;

impl Emit<'_> {
    /// Rounds an `f32` register to the precision of `dtype` (nothing to do for other types than f16 and bf16).
    pub(super) fn round(&mut self, dtype: DType, vec: bool, x: &str) -> String {
        let (f, i) = (Ty { reg: Reg::F32, vec }, Ty { reg: Reg::I32, vec });
        match dtype {
            DType::BF16 => {
                // To nearest, ties to even, on the bits; denormals stay (hardware conversions flush them).
                let bits = self.cast("bitcast", f, x, Reg::I32);
                let high = self.bin("lshr", i, &bits, &self.ci(i, 16));
                let odd = self.bin("and", i, &high, &self.ci(i, 1));
                let sum = self.bin("add", i, &bits, &self.ci(i, 0x7fff));
                let sum = self.bin("add", i, &sum, &odd);
                let nan = self.cmp("fcmp uno", f, x, x);
                let quiet = self.bin("or", i, &bits, &self.ci(i, 0x40_0000));
                let sum = self.select(i, &nan, &quiet, &sum);
                let cut = self.bin("and", i, &sum, &self.ci(i, 0xffff_0000u32 as i32 as i64));
                self.cast("bitcast", i, &cut, Reg::F32)
            }
            DType::F16 => {
                let raw = self.to_half(vec, x);
                self.from_half(vec, &raw)
            }
            _ => x.to_owned(),
        }
    }

    fn half_type(&self, vec: bool) -> String {
        if vec { format!("<{} x half>", self.w) } else { "half".to_owned() }
    }

    /// `f32` to the bits of the nearest f16.
    pub(super) fn to_half(&mut self, vec: bool, x: &str) -> String {
        let (f, i, s) = (Ty { reg: Reg::F32, vec }, Ty { reg: Reg::I32, vec }, Ty { reg: Reg::I16, vec });
        if self.t.has_f16() {
            let (h, ft, st) = (self.half_type(vec), self.ty(f), self.ty(s));
            let y = self.def(format!("fptrunc {ft} {x} to {h}"));
            return self.def(format!("bitcast {h} {y} to {st}"));
        }
        // On the magnitude's bits: denormal results by a float addition that rounds at the right place, normal ones by
        // re-biasing, everything from 65520 up is infinite.
        let bits = self.cast("bitcast", f, x, Reg::I32);
        let sign = self.bin("and", i, &bits, &self.ci(i, i32::MIN as i64));
        let mag = self.bin("xor", i, &bits, &sign);
        let magf = self.cast("bitcast", i, &mag, Reg::F32);
        let magic = 126i64 << 23;
        let shifted = self.bin("fadd", f, &magf, &self.cf(f, 0.5));
        let small = self.cast("bitcast", f, &shifted, Reg::I32);
        let small = self.bin("sub", i, &small, &self.ci(i, magic));
        let odd = self.bin("lshr", i, &mag, &self.ci(i, 13));
        let odd = self.bin("and", i, &odd, &self.ci(i, 1));
        let normal = self.bin("add", i, &mag, &self.ci(i, ((15i64 - 127) << 23) + 0xfff));
        let normal = self.bin("add", i, &normal, &odd);
        let normal = self.bin("lshr", i, &normal, &self.ci(i, 13));
        let is_small = self.cmp("icmp ult", i, &mag, &self.ci(i, 113 << 23));
        let finite = self.select(i, &is_small, &small, &normal);
        let is_big = self.cmp("icmp uge", i, &mag, &self.ci(i, (127 + 16) << 23));
        let nan = self.cmp("icmp ugt", i, &mag, &self.ci(i, 255 << 23));
        let payload = self.bin("lshr", i, &mag, &self.ci(i, 13));
        let payload = self.bin("and", i, &payload, &self.ci(i, 0x3ff));
        let payload = self.bin("or", i, &payload, &self.ci(i, 0x7e00));
        let special = self.select(i, &nan, &payload, &self.ci(i, 0x7c00));
        let out = self.select(i, &is_big, &special, &finite);
        let sign = self.bin("lshr", i, &sign, &self.ci(i, 16));
        let out = self.bin("or", i, &out, &sign);
        self.cast("trunc", i, &out, Reg::I16)
    }

    /// The bits of an f16 to `f32`.
    pub(super) fn from_half(&mut self, vec: bool, raw: &str) -> String {
        let (f, i, s) = (Ty { reg: Reg::F32, vec }, Ty { reg: Reg::I32, vec }, Ty { reg: Reg::I16, vec });
        if self.t.has_f16() {
            let (h, ft, st) = (self.half_type(vec), self.ty(f), self.ty(s));
            let y = self.def(format!("bitcast {st} {raw} to {h}"));
            return self.def(format!("fpext {h} {y} to {ft}"));
        }
        let bits = self.cast("zext", s, raw, Reg::I32);
        let mag = self.bin("and", i, &bits, &self.ci(i, 0x7fff));
        let up = self.bin("shl", i, &mag, &self.ci(i, 13));
        // Scaling by 2^112 re-biases the exponent and normalises denormals.
        let x = self.cast("bitcast", i, &up, Reg::F32);
        let x = self.bin("fmul", f, &x, &self.cf(f, 2f64.powi(112)));
        let x = self.cast("bitcast", f, &x, Reg::I32);
        let special = self.cmp("icmp uge", i, &mag, &self.ci(i, 0x7c00));
        let inf = self.bin("or", i, &up, &self.ci(i, 255 << 23));
        let x = self.select(i, &special, &inf, &x);
        let sign = self.bin("and", i, &bits, &self.ci(i, 0x8000));
        let sign = self.bin("shl", i, &sign, &self.ci(i, 16));
        let x = self.bin("or", i, &x, &sign);
        self.cast("bitcast", i, &x, Reg::F32)
    }

    /// `convert` between element types: floats truncate to integers, integers wrap, anything to `bool` is `x != 0`.
    pub(super) fn convert(&mut self, from: DType, to: DType, vec: bool, x: &str) -> String {
        let (a, b) = (Ty { reg: Reg::of(from), vec }, Ty { reg: Reg::of(to), vec });
        if to == DType::Bool {
            return match a.reg {
                Reg::I1 => x.to_owned(),
                Reg::F32 | Reg::F64 => self.cmp("fcmp une", a, x, &self.cf(a, 0.0)),
                _ => self.cmp("icmp ne", a, x, &self.ci(a, 0)),
            };
        }
        match (from.is_float(), to.is_float()) {
            (true, true) => match (a.reg, b.reg) {
                (Reg::F32, Reg::F64) => self.cast("fpext", a, x, Reg::F64),
                (Reg::F64, Reg::F32) => {
                    let y = self.cast("fptrunc", a, x, Reg::F32);
                    self.round(to, vec, &y)
                }
                // To a wider type nothing is lost; between the 16-bit types both may matter.
                _ => self.round(to, vec, x),
            },
            (true, false) => self.float_to_int(a, b, to, x),
            (false, true) => {
                let y = match (from, a.reg) {
                    (DType::Bool, _) => self.cast("uitofp", a, x, b.reg),
                    (d, _) if d.is_signed() => self.cast("sitofp", a, x, b.reg),
                    _ => self.cast("uitofp", a, x, b.reg),
                };
                self.round(to, vec, &y)
            }
            (false, false) => match a.reg.bits().cmp(&b.reg.bits()) {
                std::cmp::Ordering::Equal => x.to_owned(),
                std::cmp::Ordering::Greater => self.cast("trunc", a, x, b.reg),
                std::cmp::Ordering::Less => {
                    let op = if from.is_signed() && from != DType::Bool { "sext" } else { "zext" };
                    self.cast(op, a, x, b.reg)
                }
            },
        }
    }

    /// Truncation, saturated to 64 bits and then wrapped for values that do not fit (32-bit targets saturate at 32
    /// bits, which is one instruction; such values have no defined meaning in PyTorch either).
    fn float_to_int(&mut self, a: Ty, b: Ty, to: DType, x: &str) -> String {
        let (op, via) = match (to, b.reg) {
            (DType::U64, _) => ("fptoui", Reg::I64),
            (DType::I64 | DType::U32, _) => ("fptosi", Reg::I64),
            _ => ("fptosi", Reg::I32),
        };
        let v = Ty { reg: via, vec: a.vec };
        let (at, vt, am, vm) = (self.ty(a), self.ty(v), self.mangled(a), self.mangled(v));
        let y = self.def(format!("call {vt} @llvm.{op}.sat.{vm}.{am}({at} {x})"));
        if via == b.reg { y } else { self.cast("trunc", v, &y, b.reg) }
    }
}
