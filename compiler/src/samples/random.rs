//! Random graphs over the whole op table, for differential tests.
//!
//! Two correct backends differ by rounding, so a random graph must not amplify rounding errors. Every float stays in
//! [-8, 8], ops get operands inside of their domain, and ops that jump (floor, comparisons, arg_reduce, ...) only get
//! operands that every backend computes to the bit: these are tracked as *exact*.
use super::Sample;
use super::elementwise::domain;
use super::maker::{Fill, Maker, Rng, SMALL, tensor};
use crate::interp::Tensor;
use crate::ir::{Attrs, CmpDir, DType, Literal, OpKind, ParamKind, TensorType, Value, infer};

/// How far two correct backends may differ on a float `w` of a random graph's results: `NOISE` times (1 + |w|) times
/// half an ulp of 1 in the shortest float type of the graph. Everything else is equal. Measured with every computed
/// float of 600 graphs of 60 ops moved to a neighbour at random: the worst was 340.
pub const NOISE: f64 = 512.0;

/// Tensors of random graphs have no more elements than this.
pub(super) const MAX_NUMEL: i64 = 2048;
/// All floats stay within this bound.
pub(super) const BOUND: f64 = 8.0;

/// A random graph of about `size` ops with one result or more, arguments, and perhaps donations. Equal seeds give equal
/// graphs. Parameters come first; there are no fusions, which passes make.
pub fn random_graph(seed: u64, size: usize) -> Sample {
    let mut g = Gen { m: Maker::new(format!("random {seed} {size}")), pool: Vec::new() };
    g.m.rng = Rng::new(seed);
    g.params();
    for _ in 0..size {
        let kind = OpKind::ALL[g.m.rng.below(OpKind::ALL.len())];
        // Ops that find no operands are skipped.
        let _ = g.grow(kind);
    }
    g.finish()
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) v: Value,
    /// The same bits on every backend.
    pub(super) exact: bool,
}

pub(super) struct Gen {
    pub(super) m: Maker,
    pool: Vec<Entry>,
}

impl Gen {
    pub(super) fn ty(&self, v: Value) -> TensorType {
        self.m.b.ty(v).clone()
    }

    fn random_type(&mut self) -> TensorType {
        // Every third type is f32: it is what most programs are made of.
        let dtype = if self.m.rng.once_in(3) { DType::F32 } else { self.m.rng.pick(&DType::ALL) };
        let rank = self.m.rng.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5]);
        let mut ty = TensorType::scalar(dtype);
        for _ in 0..rank {
            let size = if self.m.rng.once_in(40) { 0 } else { self.m.rng.pick(&[1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33]) };
            let fits = ty.numel() * size <= MAX_NUMEL;
            ty.dims.push(if fits { size } else { 1 });
        }
        ty
    }

    fn params(&mut self) {
        for _ in 0..2 + self.m.rng.below(4) {
            let ty = self.random_type();
            let v = self.m.param(&ty, SMALL);
            self.pool.push(Entry { v, exact: true });
            // A second one of the same type, so that binary ops find operands.
            if self.m.rng.once_in(2) {
                let v = self.m.param(&ty, SMALL);
                self.pool.push(Entry { v, exact: true });
            }
        }
        for i in 0..self.m.rng.below(3) {
            let v = if i == 0 { self.m.scalar_f64(0.75) } else { self.m.scalar_i64(3) };
            self.pool.push(Entry { v, exact: true });
        }
    }

    /// A random value that `fits`, the newer the likelier.
    pub(super) fn pick(&mut self, fits: impl Fn(&TensorType, Entry) -> bool) -> Option<Entry> {
        let all: Vec<Entry> = self.pool.iter().copied().filter(|&e| fits(self.m.b.ty(e.v), e)).collect();
        let i = self.m.rng.below(all.len()).max(self.m.rng.below(all.len()));
        all.get(i).copied()
    }

    /// Another value of type `ty`: from the pool, or a constant.
    pub(super) fn like(&mut self, ty: &TensorType, exact: bool) -> Entry {
        if !self.m.rng.once_in(3)
            && let Some(e) = self.pick(|t, e| t == ty && (e.exact || !exact))
        {
            return e;
        }
        Entry { v: self.constant(ty, SMALL), exact: true }
    }

    /// A constant: a splat, or a line of elements broadcast along the last dimension.
    pub(super) fn constant(&mut self, ty: &TensorType, fill: Fill) -> Value {
        let line = match ty.dims.last() {
            Some(&n) if self.m.rng.once_in(2) => ty.with_dims([n]),
            _ => ty.with_dims([]),
        };
        let elements = tensor(&line, fill, &mut self.m.rng);
        if line.rank() == 0 {
            return self.m.b.literal(Literal { ty: ty.clone(), bytes: elements.bytes.into() });
        }
        let v = self.m.b.literal(Literal::from(&elements));
        self.m.b.broadcast_to(v, &ty.dims)
    }

    /// `v` clamped to [lo, hi], if it is a float.
    pub(super) fn limit(&mut self, v: Value, lo: f64, hi: f64) -> Value {
        if !self.m.b.dtype(v).is_float() {
            return v;
        }
        let (lo, hi) = (self.m.b.full_like(v, lo), self.m.b.full_like(v, hi));
        let above = self.m.b.binary(OpKind::Maximum, v, lo);
        self.m.b.binary(OpKind::Minimum, above, hi)
    }

    /// Adds a result that is within the bound already.
    pub(super) fn put(&mut self, v: Value, exact: bool) -> Option<()> {
        self.pool.push(Entry { v, exact });
        Some(())
    }

    /// Adds a result that may exceed the bound.
    pub(super) fn put_limited(&mut self, v: Value, exact: bool) -> Option<()> {
        let v = self.limit(v, -BOUND, BOUND);
        self.put(v, exact)
    }

    /// Whether a computation on this element type is the same everywhere.
    pub(super) fn exact_math(&self, v: Value) -> bool {
        !self.m.b.dtype(v).is_float()
    }

    /// Adds instructions around one of kind `kind`; `None` if there are no operands for it.
    fn grow(&mut self, kind: OpKind) -> Option<()> {
        use OpKind as K;
        match kind {
            // Made at the start, or by passes.
            K::Parameter | K::Fusion => None,
            K::Constant => {
                let ty = self.random_type();
                let v = self.constant(&ty, SMALL);
                self.put(v, true)
            }
            K::Iota => {
                let ty = self.random_type();
                let dim = self.m.rng.below(ty.rank());
                if ty.rank() == 0 || ty.dtype == DType::Bool {
                    return None;
                }
                let v = self.m.b.iota(&ty, dim);
                self.put_limited(v, true)
            }
            K::Floor | K::Ceil | K::RoundEven | K::Trunc | K::Sign | K::IsFinite => {
                let x = self.pick(|t, e| e.exact && (t.dtype.is_float() || kind == K::Sign))?;
                let v = self.m.b.unary(kind, x.v);
                self.put(v, true)
            }
            K::Abs | K::Negate => {
                let x = self.pick(|_, _| true)?;
                let v = self.m.b.unary(kind, x.v);
                self.put(v, x.exact)
            }
            K::Not => {
                let x = self.pick(|t, _| !t.dtype.is_float())?;
                let v = self.m.b.unary(kind, x.v);
                self.put(v, x.exact)
            }
            K::Exp | K::Expm1 | K::Log | K::Log1p | K::Sqrt | K::Rsqrt | K::Sin | K::Cos | K::Tan | K::Tanh => {
                self.float_unary(kind)
            }
            K::Logistic | K::Erf | K::Erfc | K::ErfInv | K::Lgamma | K::Digamma | K::Asin | K::Acos | K::Atan => {
                self.float_unary(kind)
            }
            K::Sinh | K::Cosh | K::Asinh | K::Acosh | K::Atanh => self.float_unary(kind),
            K::Convert => self.convert(),
            K::BitcastConvert => {
                let x = self.pick(|t, e| e.exact && t.dtype != DType::Bool)?;
                let size = self.m.b.dtype(x.v).size();
                let to: Vec<DType> = DType::ALL.into_iter().filter(|d| d.is_int() && d.size() == size).collect();
                let to = self.m.rng.pick(&to);
                let v = self.m.b.bitcast(x.v, to);
                self.put(v, true)
            }
            K::Add | K::Subtract | K::Multiply | K::Maximum | K::Minimum => {
                let x = self.pick(|_, _| true)?;
                let ty = self.ty(x.v);
                let y = self.like(&ty, false);
                let v = self.m.b.binary(kind, x.v, y.v);
                let chooses = matches!(kind, K::Maximum | K::Minimum);
                let exact = x.exact && y.exact && (chooses || self.exact_math(v));
                if chooses { self.put(v, exact) } else { self.put_limited(v, exact) }
            }
            K::Divide | K::Power | K::Atan2 => self.partial_binary(kind),
            K::Remainder | K::NextAfter | K::And | K::Or | K::Xor | K::ShiftLeft | K::ShiftRight => {
                let takes = |t: &TensorType| infer(kind, &Attrs::None, &[t, t], &[]).is_ok();
                let x = self.pick(|t, e| e.exact && takes(t))?;
                let ty = self.ty(x.v);
                let mut y = self.like(&ty, true).v;
                if kind == K::Remainder && ty.dtype.is_float() {
                    y = self.limit(y, 0.5, BOUND);
                }
                let v = self.m.b.binary(kind, x.v, y);
                self.put(v, true)
            }
            K::Compare => {
                let x = self.pick(|_, e| e.exact)?;
                let ty = self.ty(x.v);
                let y = self.like(&ty, true);
                let dirs = [CmpDir::Eq, CmpDir::Ne, CmpDir::Lt, CmpDir::Le, CmpDir::Gt, CmpDir::Ge];
                let dir = self.m.rng.pick(&dirs);
                let v = self.m.b.compare(dir, x.v, y.v);
                self.put(v, true)
            }
            K::Select => {
                let x = self.pick(|_, _| true)?;
                let ty = self.ty(x.v);
                let y = self.like(&ty, false);
                let p = self.like(&ty.with_dtype(DType::Bool), true);
                let v = self.m.b.select(p.v, x.v, y.v);
                self.put(v, x.exact && y.exact)
            }
            K::BroadcastInDim
            | K::Reshape
            | K::Transpose
            | K::Slice
            | K::Pad
            | K::Concatenate
            | K::Reverse
            | K::DynamicSlice
            | K::DynamicUpdateSlice => self.movement(kind),
            K::Gather | K::Scatter => self.indexed(kind),
            K::Reduce | K::ArgReduce | K::Cumulative => self.reduction(kind),
            K::ReduceWindow | K::MaxPoolWithIndex => self.windows(kind),
            K::DotGeneral => self.dot(),
            K::Convolution => self.convolution(),
            K::Attention | K::AttentionBackward => self.attention(kind),
            K::Sort | K::TopK => self.sort(kind),
            K::RngBits => {
                let ty = self.random_type();
                let scalar = TensorType::scalar(DType::I64);
                let (seed, offset) = (self.like(&scalar, true), self.like(&scalar, true));
                let word = self.m.rng.below(4) as u32;
                let v = self.m.b.rng_bits(seed.v, offset.v, &ty.dims, word);
                self.put(v, true)
            }
            K::OptimizationBarrier => {
                let (x, y) = (self.pick(|_, _| true)?, self.pick(|_, _| true)?);
                for (v, from) in self.m.b.optimization_barrier(&[x.v, y.v]).into_iter().zip([x, y]) {
                    self.put(v, from.exact);
                }
                Some(())
            }
        }
    }

    fn float_unary(&mut self, kind: OpKind) -> Option<()> {
        let x = self.pick(|t, _| t.dtype.is_float())?;
        let (lo, hi) = domain(kind);
        let x = self.limit(x.v, lo, hi);
        let v = self.m.b.unary(kind, x);
        self.put_limited(v, false)
    }

    /// Binary ops with poles or cuts: operands are limited to a safe domain, integers go as they are.
    fn partial_binary(&mut self, kind: OpKind) -> Option<()> {
        let x = self.pick(|t, _| t.dtype.is_float() || kind != OpKind::Atan2)?;
        let ty = self.ty(x.v);
        let y = self.like(&ty, false);
        let (x_v, y_v) = match kind {
            OpKind::Power => (self.limit(x.v, 0.25, 4.0), self.limit(y.v, -2.0, 2.0)),
            _ => (x.v, self.limit(y.v, 0.25, BOUND)),
        };
        let v = self.m.b.binary(kind, x_v, y_v);
        let exact = x.exact && y.exact && self.exact_math(v);
        self.put_limited(v, exact)
    }

    fn convert(&mut self) -> Option<()> {
        let to = self.m.rng.pick(&DType::ALL);
        // Truncation jumps.
        let x = self.pick(|t, e| e.exact || (t.dtype.is_float() && to.is_float()))?;
        let from = self.m.b.dtype(x.v);
        // What a negative float becomes as an unsigned integer depends on the machine.
        let negative = from.is_float() && to.is_int() && !to.is_signed();
        let operand = if negative { self.m.b.unary(OpKind::Abs, x.v) } else { x.v };
        let v = self.m.b.convert(operand, to);
        self.put_limited(v, x.exact)
    }

    /// Results are the values that nothing uses, and some others; parameters of a result's type may be donated to it.
    fn finish(mut self) -> Sample {
        let users = self.m.b.graph().users();
        let mut results: Vec<Value> = Vec::new();
        for e in &self.pool {
            let unused = users[e.v.0 as usize].is_empty();
            if (unused || self.m.rng.once_in(8)) && !results.contains(&e.v) {
                results.push(e.v);
            }
        }
        if results.is_empty() {
            results.extend(self.pool.last().map(|e| e.v));
        }
        let mut taken = vec![false; results.len()];
        for (i, param) in self.m.b.graph().params.clone().iter().enumerate() {
            let fits = |r: usize, taken: &[bool]| !taken[r] && *self.m.b.ty(results[r]) == param.ty;
            let found = (0..results.len()).find(|&r| fits(r, &taken));
            if let Some(r) = found
                && param.kind == ParamKind::Tensor
                && self.m.rng.once_in(3)
            {
                taken[r] = true;
                self.m.b.donate(i as u32, r as u32);
            }
        }
        let args: Vec<Tensor> = self.m.args.clone();
        match self.m.finish(results) {
            Some(sample) => sample,
            // Not reached while the tests pass; an empty graph is a graph too.
            None => Sample { name: "random".into(), graph: crate::ir::Graph::new("random"), args },
        }
    }
}
