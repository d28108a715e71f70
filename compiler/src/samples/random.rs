//! Random graphs over the whole op table, for differential tests.
//!
//! Two correct backends differ by rounding, so a random graph must not amplify rounding errors. Every float stays in
//! [-8, 8], ops get operands inside of their domain, and ops that jump (floor, comparisons, arg_reduce, ...) only get
//! operands that every backend computes to the bit: these are tracked as *exact*.
use super::Sample;
use super::elementwise::domain;
use super::maker::{Fill, Maker, Rng, SMALL, tensor};
use crate::interp::Tensor;
use crate::ir::{
    Attrs, CmpDir, ConvDims, CumKind, DType, Dims, DotDims, Literal, OpKind, ParamKind, ReduceKind, ScatterKind,
    TensorType, Value, WindowDim, infer,
};

/// Tensors of random graphs have no more elements than this.
const MAX_NUMEL: i64 = 2048;
/// All floats stay within this bound.
const BOUND: f64 = 8.0;

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
struct Entry {
    v: Value,
    /// The same bits on every backend.
    exact: bool,
}

struct Gen {
    m: Maker,
    pool: Vec<Entry>,
}

impl Gen {
    fn ty(&self, v: Value) -> TensorType {
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
    fn pick(&mut self, fits: impl Fn(&TensorType, Entry) -> bool) -> Option<Entry> {
        let all: Vec<Entry> = self.pool.iter().copied().filter(|&e| fits(self.m.b.ty(e.v), e)).collect();
        let i = self.m.rng.below(all.len()).max(self.m.rng.below(all.len()));
        all.get(i).copied()
    }

    /// Another value of type `ty`: from the pool, or a constant.
    fn like(&mut self, ty: &TensorType, exact: bool) -> Entry {
        if !self.m.rng.once_in(3)
            && let Some(e) = self.pick(|t, e| t == ty && (e.exact || !exact))
        {
            return e;
        }
        Entry { v: self.constant(ty, SMALL), exact: true }
    }

    /// A constant: a splat, or a line of elements broadcast along the last dimension.
    fn constant(&mut self, ty: &TensorType, fill: Fill) -> Value {
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
    fn limit(&mut self, v: Value, lo: f64, hi: f64) -> Value {
        if !self.m.b.dtype(v).is_float() {
            return v;
        }
        let (lo, hi) = (self.m.b.full_like(v, lo), self.m.b.full_like(v, hi));
        let above = self.m.b.binary(OpKind::Maximum, v, lo);
        self.m.b.binary(OpKind::Minimum, above, hi)
    }

    /// Adds a result that is within the bound already.
    fn put(&mut self, v: Value, exact: bool) -> Option<()> {
        self.pool.push(Entry { v, exact });
        Some(())
    }

    /// Adds a result that may exceed the bound.
    fn put_limited(&mut self, v: Value, exact: bool) -> Option<()> {
        let v = self.limit(v, -BOUND, BOUND);
        self.put(v, exact)
    }

    /// Whether a computation on this element type is the same everywhere.
    fn exact_math(&self, v: Value) -> bool {
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

    fn movement(&mut self, kind: OpKind) -> Option<()> {
        use OpKind as K;
        let x = self.pick(|t, _| t.rank() > 0 || matches!(kind, K::BroadcastInDim | K::Reshape))?;
        let ty = self.ty(x.v);
        let rank = ty.rank();
        let mut exact = x.exact;
        let v = match kind {
            K::BroadcastInDim => {
                // Size-1 dimensions stretch, and a new one appears somewhere.
                let at = self.m.rng.below(rank + 1);
                let mut to = ty.dims.clone();
                for n in to.iter_mut().filter(|n| **n == 1) {
                    *n = self.m.rng.pick(&[1, 2, 5]);
                }
                to.insert(at, self.m.rng.pick(&[1, 3, 8]));
                let dims: Dims = (0..=rank as i64).filter(|&d| d != at as i64).collect();
                if rank > 5 || to.iter().product::<i64>() > MAX_NUMEL {
                    return None;
                }
                self.m.b.broadcast_in_dim(x.v, to, dims)
            }
            K::Reshape => {
                // Two dimensions merge, or a size-1 dimension appears.
                let mut to = ty.dims.clone();
                if rank >= 2 && self.m.rng.once_in(2) {
                    let d = self.m.rng.below(rank - 1);
                    to[d] *= to.remove(d + 1);
                } else {
                    to.insert(self.m.rng.below(rank + 1), 1);
                }
                if to.len() > 6 {
                    return None;
                }
                self.m.b.reshape(x.v, to)
            }
            K::Transpose => {
                let mut perm: Dims = (0..rank as i64).collect();
                for i in (1..rank).rev() {
                    perm.swap(i, self.m.rng.below(i + 1));
                }
                self.m.b.transpose(x.v, perm)
            }
            K::Slice => {
                let (mut start, mut limit, mut stride) = (Dims::new(), Dims::new(), Dims::new());
                for &n in &ty.dims {
                    let s = self.m.rng.range(0, n);
                    start.push(s.min(1));
                    limit.push(self.m.rng.range(s.max(s.min(1)), n));
                    stride.push(self.m.rng.range(1, 3));
                }
                self.m.b.slice(x.v, &start, &limit, &stride)
            }
            K::Pad => {
                let value = self.like(&ty.with_dims([]), false);
                exact &= value.exact;
                let mut edges = [Dims::new(), Dims::new(), Dims::new()];
                for &n in &ty.dims {
                    edges[0].push(self.m.rng.range(if n > 1 { -1 } else { 0 }, 2));
                    edges[1].push(self.m.rng.range(0, 2));
                    edges[2].push(self.m.rng.range(0, 1));
                }
                let out: i64 = ty.dims.iter().map(|n| 2 * n + 3).product();
                if out > 4 * MAX_NUMEL {
                    return None;
                }
                self.m.b.pad(x.v, value.v, &edges[0], &edges[1], &edges[2])
            }
            K::Concatenate => {
                let dim = self.m.rng.below(rank);
                let y = self.like(&ty, false);
                exact &= y.exact;
                if ty.numel() * 2 > MAX_NUMEL {
                    return None;
                }
                self.m.b.concatenate(&[x.v, y.v], dim)
            }
            K::Reverse => {
                let dim = self.m.rng.below(rank) as i64;
                self.m.b.reverse(x.v, &[dim])
            }
            _ => {
                let sizes: Dims = ty.dims.iter().map(|&n| self.m.rng.range(n.min(1), n)).collect();
                let scalar = TensorType::scalar(DType::I64);
                let starts: Vec<Value> = (0..rank).map(|_| self.like(&scalar, true).v).collect();
                if kind == K::DynamicSlice {
                    self.m.b.dynamic_slice(x.v, &starts, &sizes)
                } else {
                    let update = self.like(&ty.with_dims(&sizes), false);
                    exact &= update.exact;
                    self.m.b.dynamic_update_slice(x.v, update.v, &starts)
                }
            }
        };
        self.put(v, exact)
    }

    fn indexed(&mut self, kind: OpKind) -> Option<()> {
        let x = self.pick(|t, _| t.rank() > 0 && !t.dims.contains(&0))?;
        let ty = self.ty(x.v);
        let dim = self.m.rng.below(ty.rank()) as i64;
        let index = match self.pick(|t, e| e.exact && t.dtype == DType::I64 && t.rank() <= 2) {
            Some(e) if self.m.rng.once_in(2) => e.v,
            _ => {
                let n = self.m.rng.pick(&[1, 3, 6]);
                self.constant(&TensorType::new(DType::I64, [n]), Fill::Range(-1.0, 6.0))
            }
        };
        let rest = (0..ty.rank()).filter(|&d| d as i64 != dim).map(|d| ty.dims[d]);
        let gathered: Dims = self.ty(index).dims.iter().copied().chain(rest).collect();
        if gathered.iter().product::<i64>() > MAX_NUMEL || gathered.len() > 6 {
            return None;
        }
        if kind == OpKind::Gather {
            let v = self.m.b.gather(x.v, &[dim], &[index]);
            return self.put(v, x.exact);
        }
        let how = self.m.rng.pick(&[ScatterKind::Set, ScatterKind::Add, ScatterKind::Max, ScatterKind::Min]);
        let updates = self.like(&ty.with_dims(gathered), false);
        let v = self.m.b.scatter(how, x.v, &[dim], &[index], updates.v);
        let exact = x.exact && updates.exact && (how != ScatterKind::Add || self.exact_math(v));
        self.put_limited(v, exact)
    }

    fn reduction(&mut self, kind: OpKind) -> Option<()> {
        let x = self.pick(|t, e| t.rank() > 0 && (e.exact || kind != OpKind::ArgReduce))?;
        let ty = self.ty(x.v);
        let dim = self.m.rng.below(ty.rank()) as i64;
        if kind == OpKind::ArgReduce {
            let max = self.m.rng.once_in(2);
            let v = self.m.b.arg_reduce(max, x.v, dim);
            return self.put(v, true);
        }
        // Products of up to 33 elements of at most 1.25 stay far from overflow, in f16 too.
        if kind == OpKind::Cumulative {
            let kinds = [CumKind::Sum, CumKind::Prod, CumKind::Max, CumKind::Min, CumKind::LogSumExp];
            let how = self.m.rng.pick(&kinds[..if ty.dtype.is_float() { 5 } else { 4 }]);
            if how == CumKind::Prod && ty.dims[dim as usize] > 33 {
                return None;
            }
            let operand = if how == CumKind::Prod { self.limit(x.v, -1.25, 1.25) } else { x.v };
            let v = self.m.b.cumulative(how, operand, dim);
            let chooses = matches!(how, CumKind::Max | CumKind::Min);
            let exact = x.exact && (chooses || self.exact_math(v));
            return self.put_limited(v, exact);
        }
        let mut kinds = vec![ReduceKind::Sum, ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min];
        if ty.dtype == DType::Bool {
            kinds = vec![ReduceKind::And, ReduceKind::Or];
        }
        let how = self.m.rng.pick(&kinds);
        let mut dims = vec![dim];
        if how != ReduceKind::Prod {
            let other = self.m.rng.below(ty.rank()) as i64;
            dims.extend((other != dim).then_some(other));
        } else if ty.dims[dim as usize] > 33 {
            return None;
        }
        let operand = if how == ReduceKind::Prod { self.limit(x.v, -1.25, 1.25) } else { x.v };
        let v = self.m.b.reduce(how, operand, &dims);
        let chooses = matches!(how, ReduceKind::Max | ReduceKind::Min);
        let exact = x.exact && (chooses || self.exact_math(v));
        self.put_limited(v, exact)
    }

    /// A random window over the last dimensions, the first being batch dimensions.
    fn window(&mut self, dims: &[i64], batch: usize) -> Vec<WindowDim> {
        let mut window = vec![WindowDim::UNIT; dims.len()];
        for (w, &n) in window.iter_mut().zip(dims).skip(batch) {
            w.size = self.m.rng.range(1, n.clamp(1, 3));
            w.stride = self.m.rng.range(1, 2);
            w.pad_lo = self.m.rng.range(0, w.size - 1);
            w.pad_hi = self.m.rng.range(0, w.size - 1);
            w.window_dilation = self.m.rng.pick(&[1, 1, 2]);
        }
        window
    }

    fn windows(&mut self, kind: OpKind) -> Option<()> {
        let x = self.pick(|t, _| t.rank() >= 2 && t.dtype != DType::Bool)?;
        let ty = self.ty(x.v);
        let batch = self.m.rng.below(ty.rank() - 1);
        let window = self.window(&ty.dims, batch.max(ty.rank().saturating_sub(3)));
        if kind == OpKind::MaxPoolWithIndex {
            let (v, index) = self.m.b.max_pool_with_index(x.v, window);
            if x.exact {
                self.put(index, true);
            }
            return self.put_limited(v, x.exact);
        }
        let how = self.m.rng.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
        let v = self.m.b.reduce_window(how, x.v, window);
        let exact = x.exact && (how != ReduceKind::Sum || self.exact_math(v));
        self.put_limited(v, exact)
    }

    fn dot(&mut self) -> Option<()> {
        let x = self.pick(|t, _| (2..=3).contains(&t.rank()) && t.dtype != DType::Bool)?;
        let ty = self.ty(x.v);
        let n = self.m.rng.pick(&[1, 2, 5, 16, 17]);
        let batch = ty.rank() - 2;
        let (rows, inner) = (ty.dims[batch], ty.dims[batch + 1]);
        if ty.dims[..batch].iter().product::<i64>() * rows * n > MAX_NUMEL {
            return None;
        }
        let transposed = self.m.rng.once_in(2);
        let mut dims = Dims::from_slice(&ty.dims[..batch]);
        dims.extend(if transposed { [n, inner] } else { [inner, n] });
        let y = self.like(&ty.with_dims(dims), false);
        let batches: Dims = (0..batch as i64).collect();
        let contract = |d: usize| Dims::from_slice(&[d as i64]);
        let numbers = DotDims {
            lhs_batch: batches.clone(),
            rhs_batch: batches,
            lhs_contract: contract(batch + 1),
            rhs_contract: contract(if transposed { batch + 1 } else { batch }),
        };
        let (x_v, y_v) = (self.limit(x.v, -2.0, 2.0), self.limit(y.v, -2.0, 2.0));
        let v = self.m.b.dot_general(x_v, y_v, numbers, ty.dtype);
        let exact = x.exact && y.exact && self.exact_math(v);
        self.put_limited(v, exact)
    }

    fn convolution(&mut self) -> Option<()> {
        let x = self.pick(|t, _| (3..=4).contains(&t.rank()) && t.dtype.is_float() && !t.dims.contains(&0))?;
        let ty = self.ty(x.v);
        let mut window = self.window(&ty.dims, 2).split_off(2);
        if self.m.rng.once_in(3) {
            window[0].base_dilation = 2;
            window[0].reversed = true;
        }
        let groups = if ty.dims[1] % 2 == 0 { self.m.rng.pick(&[1, 2]) } else { 1 };
        let features = groups * self.m.rng.range(1, 3);
        let mut kernel = Dims::from_slice(&[features, ty.dims[1] / groups]);
        kernel.extend(window.iter().map(|w| w.size));
        let space: Dims = (2..ty.rank() as i64).collect();
        let numbers = ConvDims {
            input_batch: 0,
            input_feature: 1,
            input_spatial: space.clone(),
            kernel_input_feature: 1,
            kernel_output_feature: 0,
            kernel_spatial: space.clone(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: space,
        };
        let kernel = self.like(&ty.with_dims(kernel), false).v;
        let (x, kernel) = (self.limit(x.v, -2.0, 2.0), self.limit(kernel, -2.0, 2.0));
        let v = self.m.b.convolution(x, kernel, window, numbers, groups, 1);
        if self.m.b.ty(v).numel() > 4 * MAX_NUMEL {
            return None;
        }
        self.put_limited(v, false)
    }

    fn attention(&mut self, kind: OpKind) -> Option<()> {
        let q = self.pick(|t, _| t.rank() == 4 && t.dtype.is_float() && !t.dims.contains(&0))?;
        let ty = self.ty(q.v);
        let [b, h, _, e] = [0, 1, 2, 3].map(|d| ty.dims[d]);
        let s = self.m.rng.pick(&[1, 3, 8]);
        if b * h * s * e > MAX_NUMEL {
            return None;
        }
        let keys = ty.with_dims([b, h, s, e]);
        let qkv = [q.v, self.like(&keys, false).v, self.like(&keys, false).v].map(|v| self.limit(v, -1.0, 1.0));
        let scale = self.m.b.scalar(DType::F64, 0.5);
        let causal = self.m.rng.once_in(2);
        let (out, lse) = self.m.b.attention(qkv, scale, None, causal);
        if kind == OpKind::Attention {
            self.put(lse, false);
            return self.put(out, false);
        }
        let dout = self.like(&ty, false).v;
        let dout = self.limit(dout, -1.0, 1.0);
        let grads = self.m.b.attention_backward([qkv[0], qkv[1], qkv[2], scale, out, lse, dout], None, causal);
        for grad in grads {
            self.put_limited(grad, false);
        }
        Some(())
    }

    fn sort(&mut self, kind: OpKind) -> Option<()> {
        let x = self.pick(|t, _| t.rank() > 0)?;
        let ty = self.ty(x.v);
        let down = self.m.rng.once_in(2);
        let (values, indices) = if kind == OpKind::Sort {
            let dim = self.m.rng.below(ty.rank()) as i64;
            self.m.b.sort(x.v, dim, down)
        } else {
            let k = self.m.rng.range(0, ty.dims[ty.rank() - 1]);
            self.m.b.top_k(x.v, k, down)
        };
        // Which of two nearly equal elements comes first is not the same everywhere, but their values are close.
        if x.exact {
            self.put(indices, true);
        }
        self.put(values, x.exact)
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
