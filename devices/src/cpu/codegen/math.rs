//! Transcendental functions of `f32` as polynomials, for scalars and vectors alike.
//!
//! Errors are at most a few ulp on every level; zeros keep their sign, NaN and infinities come out as in libm,
//! denormals are not flushed. Coefficients: exp, log and erf after N. Juffa's single-precision routines; `pow` goes through `f64` so that the error of the logarithm is not magnified by the exponent.
use super::emit::{Emit, Reg, Ty};
use crate::cpu::target::Level;

/// Coefficients of e^r for |r| at most half of ln 2, the highest first.
pub(super) const EXP: [f64; 7] = [1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0];

const MAGIC_F32: f64 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
const MAGIC_F64: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

fn int(ty: Ty) -> Ty {
    Ty { reg: if ty.reg == Reg::F64 { Reg::I64 } else { Reg::I32 }, vec: ty.vec }
}

impl Emit<'_> {
    pub(super) fn polynomial(&mut self, ty: Ty, x: &str, coefficients: &[f64]) -> String {
        let mut r = self.cf(ty, coefficients[0]);
        for &c in &coefficients[1..] {
            let c = self.cf(ty, c);
            r = self.fma(ty, &r, x, &c);
        }
        r
    }

    /// `x` limited to `lo..=hi`; NaN stays.
    pub(super) fn clamp(&mut self, ty: Ty, x: &str, lo: f64, hi: f64) -> String {
        let (lo, hi) = (self.cf(ty, lo), self.cf(ty, hi));
        let c = self.cmp("fcmp olt", ty, x, &lo);
        let y = self.select(ty, &c, &lo, x);
        // Of what came out: so it is one instruction.
        let c = self.cmp("fcmp ogt", ty, &y, &hi);
        self.select(ty, &c, &hi, &y)
    }

    /// Nearest integer n of `x * factor`: as a float, and as an integer of which only the low bits (12 or more) count.
    /// Garbage, but no trap, if it does not fit.
    pub(super) fn nearest(&mut self, ty: Ty, x: &str, factor: f64) -> (String, String) {
        let m = self.cf(ty, if ty.reg == Reg::F64 { MAGIC_F64 } else { MAGIC_F32 });
        let t = if factor == 1.0 { self.bin("fadd", ty, x, &m) } else { self.fma(ty, x, &self.cf(ty, factor), &m) };
        let float = self.bin("fsub", ty, &t, &m);
        (float, self.cast("bitcast", ty, &t, int(ty).reg))
    }

    /// 2^n for integers n of the normal range (of which only the low bits are looked at).
    pub(super) fn power_of_two(&mut self, ty: Ty, n: &str) -> String {
        let (i, bias, shift) = (int(ty), if ty.reg == Reg::F64 { 1023 } else { 127 }, mantissa(ty));
        let e = self.bin("add", i, n, &self.ci(i, bias));
        let e = self.bin("shl", i, &e, &self.ci(i, shift));
        self.cast("bitcast", i, &e, ty.reg)
    }

    /// `x * 2^n` for n in -252..=254, given as a float and as an integer: results may be denormal or infinite.
    fn scale(&mut self, ty: Ty, x: &str, (float, n): (&str, &str)) -> String {
        let i = int(ty);
        if ty.vec && self.w == 16 && ty.reg == Reg::F32 && self.t.level == Level::Avx512 {
            let t = self.ty(ty);
            return self.def(format!(
                "call {t} @llvm.x86.avx512.mask.scalef.ps.512({t} {x}, {t} {float}, {t} zeroinitializer, i16 -1, i32 4)"
            ));
        }
        // In two steps, of which the second rounds.
        let half = self.bin("ashr", i, n, &self.ci(i, 1));
        let rest = self.bin("sub", i, n, &half);
        let (a, b) = (self.power_of_two(ty, &half), self.power_of_two(ty, &rest));
        let y = self.bin("fmul", ty, x, &a);
        self.bin("fmul", ty, &y, &b)
    }

    /// x = n ln 2 + r with |r| at most half of ln 2: (n as a float, n as an integer, r). The constant's high part has few bits, so that its
    /// product with n is exact even without a fused multiply-add.
    pub(super) fn split_ln2(&mut self, ty: Ty, x: &str) -> (String, String, String) {
        let (n, ni) = self.nearest(ty, x, std::f64::consts::LOG2_E);
        let (hi, lo) = (self.cf(ty, -0.693145752), self.cf(ty, -1.42860677e-6));
        let r = self.fma(ty, &n, &hi, x);
        let r = self.fma(ty, &n, &lo, &r);
        (n, ni, r)
    }

    pub(super) fn exp(&mut self, ty: Ty, x: &str) -> String {
        // Beyond these the result is 0 or infinite.
        let x = self.clamp(ty, x, -104.0, 89.0);
        let (n, ni, r) = self.split_ln2(ty, &x);
        let p = self.polynomial(ty, &r, &EXP);
        self.scale(ty, &p, (&n, &ni))
    }

    /// e^r - 1 = r + r^2 (1/2 + ...) for |r| at most half of ln 2.
    pub(super) fn expm1_reduced(&mut self, ty: Ty, r: &str) -> String {
        let series = [1.98412698e-4, 1.38888889e-3, 8.33333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5];
        let q = self.polynomial(ty, r, &series);
        let r2 = self.bin("fmul", ty, r, r);
        self.fma(ty, &q, &r2, r)
    }

    pub(super) fn expm1(&mut self, ty: Ty, x: &str) -> String {
        let y = self.clamp(ty, x, -20.0, 89.0);
        let (_, n, r) = self.split_ln2(ty, &y);
        let e = self.expm1_reduced(ty, &r);
        // 2^n may overflow where the result does not: work with half of it.
        let i = int(ty);
        let less = self.bin("sub", i, &n, &self.ci(i, 1));
        let t = self.power_of_two(ty, &less);
        let high = self.bin("fsub", ty, &t, &self.cf(ty, 0.5));
        let half = self.fma(ty, &t, &e, &high);
        let big = self.bin("fadd", ty, &half, &half);
        // Small numbers are their own result: keeps -0 and denormals.
        let a = self.intrinsic1("fabs", ty, x);
        let small = self.cmp("fcmp olt", ty, &a, &self.cf(ty, 1e-6));
        let x2 = self.bin("fmul", ty, x, &self.cf(ty, 0.5));
        let tiny = self.fma(ty, &x2, x, x);
        let zero = self.cmp("fcmp oeq", ty, x, &self.cf(ty, 0.0));
        let tiny = self.select(ty, &zero, x, &tiny);
        self.select(ty, &small, &tiny, &big)
    }

    pub(super) fn log(&mut self, ty: Ty, x: &str) -> String {
        let i = int(ty);
        let denormal = self.cmp("fcmp olt", ty, x, &self.cf(ty, f64::from(f32::MIN_POSITIVE)));
        let up = self.bin("fmul", ty, x, &self.cf(ty, 8_388_608.0));
        let y = self.select(ty, &denormal, &up, x);
        let shift = self.select(ty, &denormal, &self.cf(ty, -23.0), &self.cf(ty, 0.0));
        // y = m 2^e with m in 2/3..4/3
        let bits = self.cast("bitcast", ty, &y, Reg::I32);
        let d = self.bin("sub", i, &bits, &self.ci(i, 0x3f2a_aaab));
        let e = self.bin("ashr", i, &d, &self.ci(i, 23));
        let es = self.bin("shl", i, &e, &self.ci(i, 23));
        let m = self.bin("sub", i, &bits, &es);
        let m = self.cast("bitcast", i, &m, Reg::F32);
        let e = self.cast("sitofp", i, &e, Reg::F32);
        let e = self.bin("fadd", ty, &e, &shift);
        let f = self.bin("fsub", ty, &m, &self.cf(ty, 1.0));
        let s = self.bin("fmul", ty, &f, &f);
        let high = self.polynomial(ty, &f, &[-0.130310059, 0.140869141]);
        let low = self.polynomial(ty, &f, &[-0.121483512, 0.139814854]);
        let mut r = self.fma(ty, &high, &s, &low);
        for c in [-0.166846126, 0.200120345, -0.249996200, 0.333331972, -0.5] {
            let c = self.cf(ty, c);
            r = self.fma(ty, &r, &f, &c);
        }
        let r = self.fma(ty, &r, &s, &f);
        let r = self.fma(ty, &e, &self.cf(ty, std::f64::consts::LN_2), &r);
        // Infinity and NaN are their own logarithm; below 0 there is none.
        let zero = self.cf(ty, 0.0);
        let finite = self.cmp("fcmp olt", ty, x, &self.cf(ty, f64::INFINITY));
        let r = self.select(ty, &finite, &r, x);
        let negative = self.cmp("fcmp olt", ty, x, &zero);
        let r = self.select(ty, &negative, &self.cf(ty, f64::NAN), &r);
        let at_zero = self.cmp("fcmp oeq", ty, x, &zero);
        self.select(ty, &at_zero, &self.cf(ty, f64::NEG_INFINITY), &r)
    }

    /// ln(u) x / (u - 1) with u = 1 + x rounded: the rounding error of u cancels (Kahan).
    pub(super) fn log1p(&mut self, ty: Ty, x: &str) -> String {
        let one = self.cf(ty, 1.0);
        let u = self.bin("fadd", ty, x, &one);
        let l = self.log(ty, &u);
        let d = self.bin("fsub", ty, &u, &one);
        let q = self.bin("fdiv", ty, x, &d);
        let y = self.bin("fmul", ty, &l, &q);
        let small = self.cmp("fcmp oeq", ty, &u, &one);
        let y = self.select(ty, &small, x, &y);
        let inf = self.cmp("fcmp oeq", ty, x, &self.cf(ty, f64::INFINITY));
        self.select(ty, &inf, x, &y)
    }

    fn copysign(&mut self, ty: Ty, magnitude: &str, sign: &str) -> String {
        self.intrinsic2("copysign", ty, magnitude, sign)
    }

    pub(super) fn erf(&mut self, ty: Ty, x: &str) -> String {
        let a = self.intrinsic1("fabs", ty, x);
        // From 4 on the result is 1; keeps infinities out of the polynomial.
        let four = self.cf(ty, 4.0);
        let c = self.cmp("fcmp olt", ty, &a, &four);
        let t = self.select(ty, &c, &a, &four);
        let s = self.bin("fmul", ty, &t, &t);
        let r = self.polynomial(ty, &t, &[-1.72853470e-5, 3.83197126e-4]);
        let u = self.polynomial(ty, &t, &[-3.88396438e-3, 2.42546219e-2]);
        let mut r = self.fma(ty, &r, &s, &u);
        for c in [-1.06777877e-1, -6.34846687e-1, -1.28717512e-1] {
            let c = self.cf(ty, c);
            r = self.fma(ty, &r, &t, &c);
        }
        let tt = self.ty(ty);
        let minus = self.def(format!("fneg {tt} {t}"));
        let r = self.fma(ty, &r, &t, &minus);
        let e = self.exp(ty, &r);
        let big = self.bin("fsub", ty, &self.cf(ty, 1.0), &e);
        let big = self.copysign(ty, &big, x);
        let p = self.polynomial(
            ty,
            &s,
            &[-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1],
        );
        let small = self.fma(ty, &p, x, x);
        let c = self.cmp("fcmp ogt", ty, &a, &self.cf(ty, 0.927734375));
        self.select(ty, &c, &big, &small)
    }

    /// Sine or cosine. The range is reduced in `f64`, which is good up to 2^28 (2^20 without a fused multiply-add);
    /// beyond that (rare) libm does it.
    pub(super) fn sin_cos(&mut self, ty: Ty, x: &str, cosine: bool) -> String {
        let (d, i) = (Ty { reg: Reg::F64, vec: ty.vec }, int(ty));
        let wide = self.cast("fpext", ty, x, Reg::F64);
        let (n, ni) = self.nearest(d, &wide, std::f64::consts::FRAC_2_PI);
        // pi/2 in two parts; the first has 33 bits, so that n times it is exact.
        let (hi, lo) = (self.cf(d, -1.570_796_310_901_641_8), self.cf(d, -1.589_325_477_352_819_6e-8));
        let r = self.fma(d, &n, &hi, &wide);
        let r = self.fma(d, &n, &lo, &r);
        let r = self.cast("fptrunc", d, &r, Reg::F32);
        let mut q = self.cast("trunc", int(d), &ni, Reg::I32);
        if cosine {
            q = self.bin("add", i, &q, &self.ci(i, 1));
        }
        let s = self.bin("fmul", ty, &r, &r);
        let p = self.polynomial(ty, &s, &[2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1]);
        let t = self.bin("fmul", ty, &r, &s);
        let sine = self.fma(ty, &p, &t, &r);
        let cosine_value = self.polynomial(ty, &s, &[2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0]);
        let odd = self.bin("and", i, &q, &self.ci(i, 1));
        let odd = self.cmp("icmp ne", i, &odd, &self.ci(i, 0));
        let y = self.select(ty, &odd, &cosine_value, &sine);
        let sign = self.bin("and", i, &q, &self.ci(i, 2));
        let sign = self.bin("shl", i, &sign, &self.ci(i, 30));
        let bits = self.cast("bitcast", ty, &y, Reg::I32);
        let bits = self.bin("xor", i, &bits, &sign);
        let mut y = self.cast("bitcast", i, &bits, Reg::F32);
        if !cosine {
            let zero = self.cmp("fcmp oeq", ty, x, &self.cf(ty, 0.0));
            y = self.select(ty, &zero, x, &y);
        }
        let a = self.intrinsic1("fabs", ty, x);
        let far = self.cmp("fcmp ogt", ty, &a, &self.cf(ty, 2f64.powi(if self.t.has_fma() { 28 } else { 20 })));
        let any = if ty.vec {
            let b = Ty { reg: Reg::I1, vec: true };
            let (bt, bm) = (self.ty(b), self.mangled(b));
            self.def(format!("call i1 @llvm.vector.reduce.or.{bm}({bt} {far})"))
        } else {
            far.clone()
        };
        let (n, t) = (self.fresh(), self.ty(ty));
        // `near` names the block that the result comes from when nothing is far.
        self.line(format!("br label %B{n}.near\nB{n}.near:"));
        self.line(format!("br i1 {any}, label %B{n}.far, label %B{n}.join, !prof !1\nB{n}.far:"));
        let name = if cosine { "rsx_cosine_f32" } else { "rsx_sine_f32" };
        let slow = self.call_extern(name, ty, &[x], Reg::F32);
        let mixed = self.select(ty, &far, &slow, &y);
        self.line(format!("br label %B{n}.join\nB{n}.join:"));
        self.def(format!("phi {t} [ {y}, %B{n}.near ], [ {mixed}, %B{n}.far ]"))
    }

    /// x^y through 2^(y log2 |x|) in `f64`.
    pub(super) fn pow(&mut self, ty: Ty, x: &str, y: &str) -> String {
        let d = Ty { reg: Reg::F64, vec: ty.vec };
        let q = int(d);
        let a = self.intrinsic1("fabs", ty, x);
        let wide = self.cast("fpext", ty, &a, Reg::F64);
        // |x| = m 2^e with m in sqrt(1/2)..sqrt(2); f32's denormals are normal here.
        let bits = self.cast("bitcast", d, &wide, Reg::I64);
        let from = std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64;
        let delta = self.bin("sub", q, &bits, &self.ci(q, from));
        let e = self.bin("ashr", q, &delta, &self.ci(q, 52));
        let es = self.bin("shl", q, &e, &self.ci(q, 52));
        let m = self.bin("sub", q, &bits, &es);
        let m = self.cast("bitcast", q, &m, Reg::F64);
        // Small integers to f64 without a 64-bit conversion.
        let raw = self.bin("add", q, &e, &self.ci(q, MAGIC_F64.to_bits() as i64));
        let raw = self.cast("bitcast", q, &raw, Reg::F64);
        let e = self.bin("fsub", d, &raw, &self.cf(d, MAGIC_F64));
        // log2 m = 2/ln2 atanh(s), s = (m - 1) / (m + 1)
        let one = self.cf(d, 1.0);
        let (up, down) = (self.bin("fsub", d, &m, &one), self.bin("fadd", d, &m, &one));
        let s = self.bin("fdiv", d, &up, &down);
        let z = self.bin("fmul", d, &s, &s);
        let odd: Vec<f64> = (0..8).rev().map(|k| 2.0 * std::f64::consts::LOG2_E / f64::from(2 * k + 1)).collect();
        let p = self.polynomial(d, &z, &odd);
        let l = self.fma(d, &p, &s, &e);
        // 2^t
        let yw = self.cast("fpext", ty, y, Reg::F64);
        let t = self.bin("fmul", d, &yw, &l);
        let t = self.clamp(d, &t, -400.0, 400.0);
        let (n, ni) = self.nearest(d, &t, 1.0);
        let f = self.bin("fsub", d, &t, &n);
        let ln2 = std::f64::consts::LN_2;
        let mut series = vec![1.0];
        for k in 1..11 {
            series.push(series[k - 1] * ln2 / k as f64);
        }
        series.reverse();
        let p = self.polynomial(d, &f, &series);
        let scale = self.power_of_two(d, &ni);
        let r = self.bin("fmul", d, &p, &scale);
        let r = self.cast("fptrunc", d, &r, Reg::F32);
        // Zero and infinite bases.
        let (zero, one, inf) = (self.cf(ty, 0.0), self.cf(ty, 1.0), self.cf(ty, f64::INFINITY));
        let y_negative = self.cmp("fcmp olt", ty, y, &zero);
        let at_zero = self.select(ty, &y_negative, &inf, &zero);
        let at_inf = self.select(ty, &y_negative, &zero, &inf);
        let is_zero = self.cmp("fcmp oeq", ty, &a, &zero);
        let r = self.select(ty, &is_zero, &at_zero, &r);
        let is_inf = self.cmp("fcmp oeq", ty, &a, &inf);
        let r = self.select(ty, &is_inf, &at_inf, &r);
        let is_one = self.cmp("fcmp oeq", ty, &a, &one);
        let y_number = self.cmp("fcmp ord", ty, y, y);
        let b = Ty { reg: Reg::I1, vec: ty.vec };
        let c = self.bin("and", b, &is_one, &y_number);
        let r = self.select(ty, &c, &one, &r);
        // Negative bases: the sign of odd powers, no real value for fractions.
        let floor = self.intrinsic1("floor", ty, y);
        let whole = self.cmp("fcmp oeq", ty, &floor, y);
        let half = self.bin("fmul", ty, y, &self.cf(ty, 0.5));
        let half_floor = self.intrinsic1("floor", ty, &half);
        let odd = self.cmp("fcmp one", ty, &half_floor, &half);
        let odd = self.bin("and", b, &odd, &whole);
        let i = int(ty);
        let xbits = self.cast("bitcast", ty, x, Reg::I32);
        let minus = self.cmp("icmp slt", i, &xbits, &self.ci(i, 0));
        let flip = self.bin("and", b, &odd, &minus);
        let tt = self.ty(ty);
        let negated = self.def(format!("fneg {tt} {r}"));
        let r = self.select(ty, &flip, &negated, &r);
        let below = self.cmp("fcmp olt", ty, x, &zero);
        let finite = self.cmp("fcmp one", ty, &a, &inf);
        let no_whole = self.bin("xor", b, &whole, &self.ci(b, 1));
        let bad = self.bin("and", b, &below, &no_whole);
        let bad = self.bin("and", b, &bad, &finite);
        let r = self.select(ty, &bad, &self.cf(ty, f64::NAN), &r);
        // NaN in, NaN out; except that x^0 and 1^y are 1.
        let nan = self.cmp("fcmp uno", ty, x, y);
        let r = self.select(ty, &nan, &self.cf(ty, f64::NAN), &r);
        let y_zero = self.cmp("fcmp oeq", ty, y, &zero);
        let x_one = self.cmp("fcmp oeq", ty, x, &one);
        let c = self.bin("or", b, &y_zero, &x_one);
        self.select(ty, &c, &one, &r)
    }
}

fn mantissa(ty: Ty) -> i64 {
    if ty.reg == Reg::F64 { 52 } else { 23 }
}
