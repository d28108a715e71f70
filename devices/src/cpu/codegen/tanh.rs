//! The hyperbolic tangent: one polynomial per interval, whose coefficients permutations of registers look up.
//!
//! The constant coefficient is the function's value inside of the interval, so what is added last to it is small, and no
//! division is needed: the error is at most 1.19 ulp with AVX-512 and 1.42 ulp with AVX2. With e^2x and a division, which
//! remain where registers cannot be permuted, it is 2.42 ulp. The coefficients are minimax ones in units of the last place
//! of the result, each rounded before the next are fitted to the rest.
use super::emit::{Emit, Reg, Ty};
use super::math::EXP;
use crate::cpu::target::Level;
use rsx_compiler::ir::{DType, OpKind};
use rsx_compiler::kernel::{ExprId, ExprOp};

/// From here on the result is 1.
const END: f64 = 9.5;
const STEP: f64 = 0.218_567_639_589_309_7;

/// Two intervals per power of two: [0, 3/4], [3/4, 1], [1, 3/2], ... [6, END]; which one a number is in, the low bits of
/// exponent and first bit of the mantissa tell, and they number the columns. First the points that the intervals are
/// developed around, near the middle, where the hyperbolic tangent is an `f32` to a hundredth of its last place; then the
/// coefficients. The first interval's are those of an odd polynomial.
const OCTAVES: [[f32; 8]; 8] = [
    [2.4997172, 3.5005865, 4.99977, 7.7514305, 0.0, 0.875142, 1.2497119, 1.749765],
    [0.9866068, 0.99818003, 0.99990916, 0.99999964, 0.0, 0.7039772, 0.8482028, 0.9413488],
    [0.026607161, 0.0036366922, 1.8192056e-4, 7.5998e-7, 1.0, 0.50441605, 0.28055185, 0.1138624],
    [-0.026250508, -0.003630052, -1.8184177e-4, -7.861584e-7, -0.333331, -0.3550974, -0.23796503, -0.107184224],
    [0.017026749, 0.0024089578, 1.18953096e-4, 4.1159635e-7, 0.13326965, 0.08184418, 0.10834045, 0.06295026],
    [-0.008055863, -0.0011959126, -5.9592283e-5, -1.950408e-7, -0.053415056, 0.060751583, -0.012554686, -0.02352856],
    [0.0028880183, 4.8970943e-4, 2.8440587e-5, 1.5665253e-7, 0.019719135, -0.05877152, -0.019714685, 0.0034802586],
    [-6.961972e-4, -1.5764529e-4, -9.379218e-6, -5.3554285e-8, -0.0048094764, 0.0130479485, 0.015070936, 0.0020971429],
];
/// Intervals around the multiples of STEP, the last one up to END. STEP is such that the hyperbolic tangents of its first
/// few multiples are almost `f32`s.
#[rustfmt::skip]
const EVEN: [[f32; 32]; 6] = [
    [
        0.0, 0.21515243, 0.41126707, 0.5754966, 0.7035374, 0.7979117, 0.8646307, 0.91042006,
        0.94120926, 0.96162856, 0.975047, 0.98381174, 0.9895142, 0.9932148, 0.99561226, 0.99716383,
        0.9981672, 0.9988159, 0.99923503, 0.9995059, 0.9996808, 0.9997938, 0.99986684, 0.999914,
        0.99994445, 0.9999641, 0.9999768, 0.99998504, 0.99999034, 0.99999374, 0.99999595, 0.9999974,
    ],
    [
        1.0, 0.9537095, 0.8308594, 0.66880363, 0.5050351, 0.36333692, 0.25241375, 0.17113532,
        0.11412511, 0.07527047, 0.049283378, 0.032114495, 0.020861657, 0.013524384, 0.00875621, 0.005664294,
        0.0036621543, 0.002366863, 0.0015293602, 9.88057e-4, 6.382819e-4, 4.1230273e-4, 2.663192e-4, 1.7201944e-4,
        1.11108e-4, 7.17643e-5, 4.6352e-5, 2.9938265e-5, 1.933675e-5, 1.2489341e-5, 8.066684e-6, 5.2097403e-6,
    ],
    [
        1.4347658e-7, -0.20518926, -0.34170255, -0.3848915, -0.35531545, -0.28991166, -0.21824676, -0.15580775,
        -0.1074107, -0.07237291, -0.048056163, -0.031598825, -0.020635115, -0.013431751, -0.008716045, -0.005648596,
        -0.0036465386, -0.0023729762, -0.001530426, -9.969663e-4, -6.41103e-4, -4.122684e-4, -2.7019525e-4, -1.7331437e-4,
        -1.1244395e-4, -7.2027426e-5, -4.3025848e-5, -3.277458e-5, -2.3508675e-5, -7.872629e-6, -1.4531525e-6, -4.7139483e-6,
    ],
    [
        -0.3333456, -0.27378243, -0.1364284, -0.0014264722, 0.08163592, 0.110209264, 0.10456588, 0.084803775,
        0.063058116, 0.044514656, 0.030426778, 0.020377876, 0.013472577, 0.008833221, 0.0057608113, 0.0037440886,
        0.0024280143, 0.001572291, 0.0010172431, 6.577315e-4, 4.2512035e-4, 2.746989e-4, 1.774763e-4, 1.14648996e-4,
        7.4058866e-5, 4.7836642e-5, 3.0899424e-5, 1.9957906e-5, 1.2890661e-5, 8.326034e-6, 5.3777185e-6, 2.273596e-6,
    ],
    [
        3.0574313e-4, 0.1262515, 0.16907533, 0.12868752, 0.061525635, 0.0089926375, -0.017332077, -0.02499308,
        -0.023849614, -0.019302676, -0.013487162, -0.009244697, -0.006979744, -0.0043598847, -0.0029506362, -0.0018290707,
        -0.0018028609, -1.870533e-4, -3.5828605e-4, 3.0011145e-4, -1.0221673e-5, -1.3407416e-4, 1.7291546e-4, 3.0244657e-5,
        5.273021e-5, -6.1746705e-6, -2.3798457e-4, 1.7983791e-4, 2.7273703e-4, -3.1310975e-4, -4.4526107e-4, -5.536418e-7,
    ],
    [
        0.13081467, 0.08689138, -0.005275051, -0.058820505, -0.05912774, -0.035543635, -0.014210718, -0.0015583024,
        0.0036969807, 0.0047871415, 0.0042567262, 0.0033108327, 0.002355983, 0.0016317099, 0.0010920455, 7.2552223e-4,
        4.7610834e-4, 3.1129693e-4, 2.0131421e-4, 1.3074515e-4, 8.44187e-5, 5.4850003e-5, 3.541855e-5, 2.2997694e-5,
        1.486796e-5, 9.639665e-6, 6.1718483e-6, 3.9984116e-6, 2.589032e-6, 1.6694845e-6, 1.077221e-6, 5.276908e-8,
    ],
];
impl Emit<'_> {
    pub(super) fn tanh(&mut self, ty: Ty, x: &str) -> String {
        let a = self.intrinsic1("fabs", ty, x);
        let lanes = if ty.vec { self.w } else { 1 };
        let y = match self.t.level {
            Level::Avx512 if lanes == 1 || lanes == 16 => self.tanh_even(ty, &a),
            Level::Avx2 if [1, 8, 16].contains(&lanes) => self.tanh_octaves(ty, &a),
            _ => self.tanh_exp(ty, &a),
        };
        self.intrinsic2("copysign", ty, &y, x)
    }

    /// `x`, but at most `limit`; NaN stays.
    fn at_most(&mut self, ty: Ty, x: &str, limit: f64) -> String {
        let limit = self.cf(ty, limit);
        let c = self.cmp("fcmp ogt", ty, x, &limit);
        self.select(ty, &c, &limit, x)
    }

    fn tanh_even(&mut self, ty: Ty, a: &str) -> String {
        let a = self.at_most(ty, a, END);
        let inside = self.at_most(ty, &a, STEP * 31.0);
        let (n, index) = self.nearest(ty, &inside, 1.0 / STEP);
        // Exact: STEP has few enough bits.
        let r = self.fma(ty, &n, &self.cf(ty, -STEP), &a);
        let [head @ .., last] = &EVEN;
        let mut y = self.look_up(ty, &index, last);
        for row in head.iter().rev() {
            let c = self.look_up(ty, &index, row);
            y = self.fma(ty, &y, &r, &c);
        }
        y
    }

    fn tanh_octaves(&mut self, ty: Ty, a: &str) -> String {
        let i = Ty { reg: Reg::I32, vec: ty.vec };
        let a = self.at_most(ty, a, END);
        let bits = self.cast("bitcast", ty, &a, Reg::I32);
        let bits = self.intrinsic2("smax", i, &bits, &self.ci(i, i64::from(0.5f32.to_bits())));
        let bits = self.intrinsic2("smin", i, &bits, &self.ci(i, i64::from(8f32.to_bits() - 1)));
        let index = self.bin("lshr", i, &bits, &self.ci(i, 22));
        let [middle, constant, linear, rest @ .., last] = &OCTAVES;
        let middle = self.look_up(ty, &index, middle);
        let r = self.bin("fsub", ty, &a, &middle);
        // The higher coefficients are those of powers of r, in the first interval of r^2.
        let first = self.cmp("fcmp olt", ty, &a, &self.cf(ty, 0.75));
        let s = self.select(ty, &first, &r, &self.cf(ty, 1.0));
        let s = self.bin("fmul", ty, &s, &r);
        let mut y = self.look_up(ty, &index, last);
        for (row, factor) in rest.iter().rev().map(|row| (row, &s)).chain([(linear, &s), (constant, &r)]) {
            let c = self.look_up(ty, &index, row);
            y = self.fma(ty, &y, factor, &c);
        }
        y
    }

    /// m / (m + 2) with m = e^2a - 1.
    fn tanh_exp(&mut self, ty: Ty, a: &str) -> String {
        let a = self.at_most(ty, a, 10.0);
        let two = self.bin("fadd", ty, &a, &a);
        let (_, n, r) = self.split_ln2(ty, &two);
        let e = self.expm1_reduced(ty, &r);
        let t = self.power_of_two(ty, &n);
        let less = self.bin("fsub", ty, &t, &self.cf(ty, 1.0));
        let m = self.fma(ty, &t, &e, &less);
        let d = self.bin("fadd", ty, &m, &self.cf(ty, 2.0));
        self.bin("fdiv", ty, &m, &d)
    }

    /// The product `e` if it is `a (1 + tanh w)`, which is 2a / (1 + e^-2w): less work, and nothing cancels where w is far
    /// below 0. With a = x / 2 (tanh-gelu) that is x over the same. Not where tanh or the sum are needed anyway.
    pub(super) fn tanh_gate(&mut self, e: ExprId, vec: bool) -> Option<String> {
        let k = self.k;
        let is =
            |id: ExprId, kind: OpKind| k.exprs.get(id).op == ExprOp::Op(kind) && k.exprs.get(id).dtype == DType::F32;
        let constant = |id: ExprId, value: f32| k.exprs.get(id).op == ExprOp::Const(u64::from(value.to_bits()));
        // The other operand of `id` if it is `kind` with constant `value`.
        let other = |id: ExprId, kind: OpKind, value: f32| {
            let args = if is(id, kind) { k.exprs.get(id).args.as_slice() } else { &[] };
            match *args {
                [a, c] if constant(c, value) => Some(a),
                [c, a] if constant(c, value) => Some(a),
                _ => None,
            }
        };
        let tanh = |e: &Self, sum: ExprId| {
            let t = other(sum, OpKind::Add, 1.0)?;
            (is(t, OpKind::Tanh) && e.uses[t.0 as usize] == 1 && e.uses[sum.0 as usize] == 1)
                .then(|| k.exprs.get(t).args[0])
        };
        if !is(e, OpKind::Multiply) || !self.t.has_fma() {
            return None;
        }
        let [p, q] = k.exprs.get(e).args[..] else { return None };
        let (a, w) = tanh(self, q).map(|w| (p, w)).or_else(|| tanh(self, p).map(|w| (q, w)))?;
        let get = |me: &mut Self, e: ExprId| if vec { me.vector(e) } else { me.scalar(e) };
        let ty = Ty { reg: Reg::F32, vec };
        let whole = other(a, OpKind::Multiply, 0.5);
        let factor = get(self, whole.unwrap_or(a));
        let w = get(self, w);
        let d = self.one_plus_exp(ty, &w);
        if whole.is_some() {
            return Some(self.bin("fdiv", ty, &factor, &d));
        }
        // Twice the factor might be infinite.
        let y = self.bin("fdiv", ty, &self.cf(ty, 2.0), &d);
        Some(self.bin("fmul", ty, &factor, &y))
    }

    /// 1 + e^-2w; infinite where it is more than 2^127.
    fn one_plus_exp(&mut self, ty: Ty, w: &str) -> String {
        // e^-2w from 2^-126 to infinity.
        let w = self.clamp(ty, w, -44.5, 43.5);
        let (n, ni) = self.nearest(ty, &w, -2.0 * std::f64::consts::LOG2_E);
        // -2w = n ln 2 - 2r. The product's error is felt in the last place from n = 20 on.
        let r = self.fma(ty, &n, &self.cf(ty, 0.5 * std::f64::consts::LN_2), &w);
        let mut power = 128.0;
        let c = EXP.map(|c| {
            power /= -2.0;
            -c * power
        });
        let p = self.polynomial(ty, &r, &c);
        let t = self.power_of_two(ty, &ni);
        self.fma(ty, &p, &t, &self.cf(ty, 1.0))
    }

    /// `table[index]`, whose length is 8 with AVX2 and 32 with AVX-512; only as many low bits of the index count.
    fn look_up<const N: usize>(&mut self, ty: Ty, index: &str, table: &[f32; N]) -> String {
        let constant = |part: &[f32]| {
            let list: Vec<String> = part.iter().map(|&c| format!("float 0x{:016X}", f64::from(c).to_bits())).collect();
            format!("<{} x float> <{}>", part.len(), list.join(", "))
        };
        let i = Ty { reg: Reg::I32, vec: ty.vec };
        if !ty.vec {
            let index = self.bin("and", i, index, &self.ci(i, N as i64 - 1));
            return self.def(format!("extractelement {}, i32 {index}", constant(table)));
        }
        if N == 32 {
            let (low, high) = (constant(&table[..16]), constant(&table[16..]));
            const NAME: &str = "llvm.x86.avx512.vpermi2var.ps.512";
            return self.def(format!("call <16 x float> @{NAME}({low}, <16 x i32> {index}, {high})"));
        }
        let table = constant(table);
        let permute = |e: &mut Self, index: &str| {
            e.def(format!("call <8 x float> @llvm.x86.avx2.permps({table}, <8 x i32> {index})"))
        };
        if self.w == 8 {
            return permute(self, index);
        }
        // Vectors of two registers.
        let numbers = |from: usize, n: usize| {
            let list: Vec<String> = (from..from + n).map(|l| format!("i32 {l}")).collect();
            format!("<{n} x i32> <{}>", list.join(", "))
        };
        let t = self.ty(i);
        let halves: Vec<String> = (0..self.w / 8)
            .map(|h| {
                let part = self.def(format!("shufflevector {t} {index}, {t} poison, {}", numbers(8 * h, 8)));
                permute(self, &part)
            })
            .collect();
        let [low, high] = &halves[..] else { return halves.into_iter().next().unwrap_or_default() };
        self.def(format!("shufflevector <8 x float> {low}, <8 x float> {high}, {}", numbers(0, 16)))
    }
}
