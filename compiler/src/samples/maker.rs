//! Building samples: parameters together with their arguments.
use super::Sample;
use crate::interp::{Num, Tensor, philox};
use crate::ir::{Builder, DType, ParamKind, TensorType, Value};

/// A deterministic stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    seed: i64,
    drawn: i64,
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng { seed: seed as i64, drawn: 0 }
    }

    pub(super) fn bits(&mut self) -> u32 {
        self.drawn += 1;
        philox::rng_bits(self.seed, self.drawn, 0, 0)
    }

    /// A number below `n` (at least 1).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n.max(1)
    }

    pub(super) fn range(&mut self, lo: i64, hi: i64) -> i64 {
        lo + self.below((hi - lo + 1) as usize) as i64
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// What the elements of an argument look like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    /// Multiples of 1/8 in [lo, hi]; integers in the same range, if the type has it.
    Range(f64, f64),
    /// Small numbers with the type's extreme and exceptional values among them.
    Special,
}

/// Ordinary small numbers.
pub(super) const SMALL: Fill = Fill::Range(-4.0, 4.0);

/// Exceptional floats; each is rounded to the element type.
const SPECIAL: [f64; 18] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    -0.0,
    0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1e-40,
    -1e-7,
    1e-300,
    65504.0,
    -3e38,
    1e300,
    100.0,
];

/// Element `i` of an argument.
fn element(dtype: DType, fill: Fill, i: usize, rng: &mut Rng) -> Num {
    if dtype == DType::Bool {
        return Num::B(rng.below(2) == 1);
    }
    let (lo, hi) = match fill {
        Fill::Range(lo, hi) => (lo, hi),
        Fill::Special => (-4.0, 4.0),
    };
    if dtype.is_float() {
        // Specials come first and in order, so that 18 elements have them all.
        if let (Fill::Special, Some(&v)) = (fill, SPECIAL.get(i)) {
            return Num::F(v);
        }
        return Num::F(rng.range((lo * 8.0).ceil() as i64, (hi * 8.0).floor() as i64) as f64 / 8.0);
    }
    let width = 8 * dtype.size() as u32;
    let (min, max) = if dtype.is_signed() {
        (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
    } else {
        (0, (1i128 << width) - 1)
    };
    if let (Fill::Special, Some(v)) = (fill, [min, max, 0, 1, -1, min + 1, max - 1].get(i)) {
        return Num::I((*v).clamp(min, max));
    }
    let drawn = rng.range(lo.ceil() as i64, hi.floor() as i64);
    Num::I(i128::from(drawn).clamp(min, max))
}

/// A tensor with elements by `fill`.
pub(super) fn tensor(ty: &TensorType, fill: Fill, rng: &mut Rng) -> Tensor {
    let nums: Vec<Num> = (0..ty.numel() as usize).map(|i| element(ty.dtype, fill, i, rng)).collect();
    Tensor::from_nums(ty, nums)
}

/// Builds a sample: the graph and its arguments side by side.
pub(super) struct Maker {
    pub(super) b: Builder,
    pub(super) args: Vec<Tensor>,
    pub(super) rng: Rng,
    name: String,
}

impl Maker {
    pub(super) fn new(name: impl Into<String>) -> Maker {
        let name = name.into();
        // The same name always gives the same numbers.
        let seed = name.bytes().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        Maker { b: Builder::new("sample"), args: Vec::new(), rng: Rng::new(seed), name }
    }

    /// A tensor parameter with elements by `fill`.
    pub(super) fn param(&mut self, ty: &TensorType, fill: Fill) -> Value {
        self.args.push(tensor(ty, fill, &mut self.rng));
        self.b.parameter(ty.clone(), ParamKind::Tensor)
    }

    pub(super) fn scalar_i64(&mut self, value: i64) -> Value {
        self.args.push(Tensor::scalar_i64(value));
        self.b.parameter(TensorType::scalar(DType::I64), ParamKind::Scalar)
    }

    pub(super) fn scalar_f64(&mut self, value: f64) -> Value {
        self.args.push(Tensor::scalar_f64(value));
        self.b.parameter(TensorType::scalar(DType::F64), ParamKind::Scalar)
    }

    /// All results of the instruction that defines `first`.
    pub(super) fn results(&self, first: Value) -> Vec<Value> {
        self.b.graph().def_inst(first).results().collect()
    }

    /// The sample with these results; `None` if a type rule was violated.
    pub(super) fn finish(self, results: Vec<Value>) -> Option<Sample> {
        let graph = self.b.finish(results).ok()?;
        Some(Sample { name: self.name, graph, args: self.args })
    }
}

/// A sample of one instruction made by `build`; all of its results are results of the graph.
///
/// Panics if the sample breaks a type rule: samples are written by hand, and the tests build them all.
pub(super) fn sample(name: impl Into<String>, build: impl FnOnce(&mut Maker) -> Value) -> Sample {
    let mut m = Maker::new(name);
    let first = build(&mut m);
    let results = m.results(first);
    if let Some(e) = m.b.error() {
        panic!("sample {}: {e}", m.name);
    }
    let (name, args) = (m.name.clone(), m.args.clone());
    let graph = m.b.finish(results).unwrap_or_default();
    Sample { name, graph, args }
}
