//! Values with operators: compositions read like the formulas they implement.
//!
//! Binary operations broadcast as NumPy does and take operands of one element type; a bare `f64` takes the type and
//! sizes of the other operand. Nothing converts silently: rows decide in which type they compute.
use rsx_compiler::ir::{Builder, CmpDir, CumKind, DType, Dims, OpKind, ReduceKind, ScatterKind, TensorType, Value};
use std::cell::RefCell;

/// The builder that all expressions of a piece append to.
pub type Ctx = RefCell<Builder>;

/// A value of the graph under construction.
#[derive(Clone, Copy)]
pub struct Ex<'g> {
    pub v: Value,
    g: &'g Ctx,
}

/// What can stand beside an [`Ex`] in a binary operation.
pub trait IntoEx<'g> {
    /// As a value; numbers become constants of the element type of `like`.
    fn ex(self, like: Ex<'g>) -> Ex<'g>;
}

impl<'g> IntoEx<'g> for Ex<'g> {
    fn ex(self, _: Ex<'g>) -> Ex<'g> {
        self
    }
}

impl<'g> IntoEx<'g> for f64 {
    fn ex(self, like: Ex<'g>) -> Ex<'g> {
        like.lit(self)
    }
}

/// Sizes that both broadcast to. Sizes that do not match are left to the type rule to report.
pub fn broadcast_dims(a: &[i64], b: &[i64]) -> Dims {
    let n = a.len().max(b.len());
    let at = |d: &[i64], i: usize| if i + d.len() < n { 1 } else { d[i + d.len() - n] };
    (0..n).map(|i| if at(a, i) == 1 { at(b, i) } else { at(a, i) }).collect()
}

impl<'g> Ex<'g> {
    pub fn new(g: &'g Ctx, v: Value) -> Self {
        Ex { v, g }
    }

    /// Runs `f` on the builder and wraps its result.
    pub fn with(self, f: impl FnOnce(&mut Builder) -> Value) -> Self {
        let v = f(&mut self.g.borrow_mut());
        Ex { v, g: self.g }
    }

    pub fn ctx(self) -> &'g Ctx {
        self.g
    }

    pub fn dims(self) -> Dims {
        self.g.borrow().dims(self.v)
    }

    pub fn ty(self) -> TensorType {
        self.g.borrow().ty(self.v).clone()
    }

    pub fn dtype(self) -> DType {
        self.g.borrow().dtype(self.v)
    }

    pub fn rank(self) -> usize {
        self.g.borrow().rank(self.v)
    }

    pub fn size(self, d: usize) -> i64 {
        self.g.borrow().ty(self.v).dims[d]
    }

    pub fn numel(self) -> i64 {
        self.g.borrow().ty(self.v).numel()
    }

    /// Converted to `dtype`.
    pub fn to(self, dtype: DType) -> Self {
        self.with(|b| b.convert(self.v, dtype))
    }

    /// Converted to the type arithmetic on it is carried out in.
    pub fn opmath(self) -> Self {
        self.to(self.dtype().opmath())
    }

    /// A constant of this element type and these sizes.
    pub fn lit(self, value: f64) -> Self {
        self.with(|b| b.full_like(self.v, value))
    }

    /// A constant of this element type with other sizes.
    pub fn full(self, dims: &[i64], value: f64) -> Self {
        let ty = TensorType::new(self.dtype(), dims);
        self.with(|b| b.splat(&ty, value))
    }

    /// A constant of type `dtype` with these sizes, exact for 64-bit integers.
    pub fn int(self, dtype: DType, value: i64) -> Self {
        let ty = self.ty().with_dtype(dtype);
        self.with(|b| b.splat_i64(&ty, value))
    }

    /// Index along `dim` (i64), of these sizes.
    pub fn iota(self, dim: usize) -> Self {
        let ty = self.ty().with_dtype(DType::I64);
        self.with(|b| b.iota(&ty, dim))
    }

    pub fn un(self, kind: OpKind) -> Self {
        self.with(|b| b.unary(kind, self.v))
    }

    /// Both operands at their common sizes.
    fn meet(self, o: impl IntoEx<'g>) -> (Self, Self) {
        let o = o.ex(self);
        let dims = broadcast_dims(&self.dims(), &o.dims());
        (self.broadcast(&dims), o.broadcast(&dims))
    }

    pub fn bin(self, kind: OpKind, o: impl IntoEx<'g>) -> Self {
        let (x, y) = self.meet(o);
        x.with(|b| b.binary(kind, x.v, y.v))
    }

    pub fn cmp(self, dir: CmpDir, o: impl IntoEx<'g>) -> Self {
        let (x, y) = self.meet(o);
        x.with(|b| b.compare(dir, x.v, y.v))
    }

    /// Larger of both; NaN if either is NaN.
    pub fn max(self, o: impl IntoEx<'g>) -> Self {
        self.bin(OpKind::Maximum, o)
    }

    /// Smaller of both; NaN if either is NaN.
    pub fn min(self, o: impl IntoEx<'g>) -> Self {
        self.bin(OpKind::Minimum, o)
    }

    pub fn pow(self, o: impl IntoEx<'g>) -> Self {
        self.bin(OpKind::Power, o)
    }

    pub fn rem(self, o: impl IntoEx<'g>) -> Self {
        self.bin(OpKind::Remainder, o)
    }

    pub fn and(self, o: Ex<'g>) -> Self {
        self.bin(OpKind::And, o)
    }

    pub fn or(self, o: Ex<'g>) -> Self {
        self.bin(OpKind::Or, o)
    }

    pub fn xor(self, o: Ex<'g>) -> Self {
        self.bin(OpKind::Xor, o)
    }

    pub fn eq(self, o: impl IntoEx<'g>) -> Self {
        self.cmp(CmpDir::Eq, o)
    }

    pub fn ne(self, o: impl IntoEx<'g>) -> Self {
        self.cmp(CmpDir::Ne, o)
    }

    pub fn lt(self, o: impl IntoEx<'g>) -> Self {
        self.cmp(CmpDir::Lt, o)
    }

    pub fn le(self, o: impl IntoEx<'g>) -> Self {
        self.cmp(CmpDir::Le, o)
    }

    pub fn gt(self, o: impl IntoEx<'g>) -> Self {
        self.cmp(CmpDir::Gt, o)
    }

    pub fn ge(self, o: impl IntoEx<'g>) -> Self {
        self.cmp(CmpDir::Ge, o)
    }

    pub fn is_nan(self) -> Self {
        self.ne(self)
    }

    /// `self` where `pred` holds, else `otherwise`.
    pub fn when(self, pred: Ex<'g>, otherwise: impl IntoEx<'g>) -> Self {
        let (x, y) = self.meet(otherwise);
        let dims = broadcast_dims(&x.dims(), &pred.dims());
        let (p, x, y) = (pred.broadcast(&dims), x.broadcast(&dims), y.broadcast(&dims));
        x.with(|b| b.select(p.v, x.v, y.v))
    }

    pub fn abs(self) -> Self {
        self.un(OpKind::Abs)
    }

    pub fn not(self) -> Self {
        self.un(OpKind::Not)
    }

    pub fn exp(self) -> Self {
        self.un(OpKind::Exp)
    }

    pub fn expm1(self) -> Self {
        self.un(OpKind::Expm1)
    }

    pub fn log(self) -> Self {
        self.un(OpKind::Log)
    }

    pub fn log1p(self) -> Self {
        self.un(OpKind::Log1p)
    }

    pub fn sqrt(self) -> Self {
        self.un(OpKind::Sqrt)
    }

    pub fn rsqrt(self) -> Self {
        self.un(OpKind::Rsqrt)
    }

    pub fn tanh(self) -> Self {
        self.un(OpKind::Tanh)
    }

    pub fn sigmoid(self) -> Self {
        self.un(OpKind::Logistic)
    }

    pub fn erf(self) -> Self {
        self.un(OpKind::Erf)
    }

    pub fn floor(self) -> Self {
        self.un(OpKind::Floor)
    }

    pub fn ceil(self) -> Self {
        self.un(OpKind::Ceil)
    }

    pub fn trunc(self) -> Self {
        self.un(OpKind::Trunc)
    }

    pub fn sign(self) -> Self {
        self.un(OpKind::Sign)
    }

    pub fn square(self) -> Self {
        self * self
    }

    pub fn recip(self) -> Self {
        self.lit(1.0) / self
    }

    pub fn reduce(self, kind: ReduceKind, dims: &[i64]) -> Self {
        self.with(|b| b.reduce(kind, self.v, dims))
    }

    /// Reduction whose dimensions stay with size 1.
    pub fn reduce_keep(self, kind: ReduceKind, dims: &[i64]) -> Self {
        self.with(|b| b.reduce_keep(kind, self.v, dims))
    }

    pub fn sum(self, dims: &[i64]) -> Self {
        self.reduce(ReduceKind::Sum, dims)
    }

    pub fn sum_keep(self, dims: &[i64]) -> Self {
        self.reduce_keep(ReduceKind::Sum, dims)
    }

    /// Sum of all elements (0-d).
    pub fn sum_all(self) -> Self {
        self.sum(&self.all_dims())
    }

    pub fn all_dims(self) -> Dims {
        (0..self.rank() as i64).collect()
    }

    pub fn cumulative(self, kind: CumKind, dim: usize) -> Self {
        self.with(|b| b.cumulative(kind, self.v, dim as i64))
    }

    pub fn reshape(self, dims: &[i64]) -> Self {
        self.with(|b| b.reshape(self.v, dims))
    }

    pub fn flatten(self) -> Self {
        self.reshape(&[self.numel()])
    }

    /// A new dimension of size 1 at `d`.
    pub fn unsqueeze(self, d: usize) -> Self {
        let mut dims = self.dims();
        dims.insert(d, 1);
        self.reshape(&dims)
    }

    /// Without dimension `d`, which must have size 1.
    pub fn squeeze(self, d: usize) -> Self {
        let mut dims = self.dims();
        dims.remove(d);
        self.reshape(&dims)
    }

    pub fn permute(self, perm: &[i64]) -> Self {
        self.with(|b| b.transpose(self.v, perm))
    }

    /// Dimensions `a` and `b` exchanged.
    pub fn swap(self, a: usize, b: usize) -> Self {
        let mut perm = self.all_dims();
        perm.swap(a, b);
        self.permute(&perm)
    }

    /// Dimension `from` moved to position `to`; the others keep their order.
    pub fn move_dim(self, from: usize, to: usize) -> Self {
        let mut perm = self.all_dims();
        let d = perm.remove(from);
        perm.insert(to, d);
        self.permute(&perm)
    }

    /// NumPy broadcasting to `dims`.
    pub fn broadcast(self, dims: &[i64]) -> Self {
        self.with(|b| b.broadcast_to(self.v, dims))
    }

    /// Dimension i becomes dimension `into[i]` of sizes `dims`.
    pub fn broadcast_in(self, dims: &[i64], into: &[i64]) -> Self {
        self.with(|b| b.broadcast_in_dim(self.v, dims, into))
    }

    /// A 1-d value along dimension `d` of sizes `dims`, to be broadcast against them (other sizes are 1).
    pub fn along(self, d: usize, rank: usize) -> Self {
        let mut dims = Dims::from_elem(1, rank);
        dims[d] = self.numel();
        self.reshape(&dims)
    }

    pub fn slice(self, dim: usize, start: i64, limit: i64, stride: i64) -> Self {
        self.with(|b| b.slice_dim(self.v, dim, start, limit, stride))
    }

    /// Parts of `n` equal chunks along `dim`.
    pub fn chunk(self, k: i64, n: i64, dim: usize) -> Self {
        let w = self.size(dim) / n;
        self.slice(dim, k * w, (k + 1) * w, 1)
    }

    /// Padded with a constant; see [`OpKind::Pad`].
    pub fn pad(self, value: impl IntoEx<'g>, lo: &[i64], hi: &[i64], interior: &[i64]) -> Self {
        let zero_d = self.full(&[], 0.0);
        let value = value.ex(zero_d);
        self.with(|b| b.pad(self.v, value.v, lo, hi, interior))
    }

    pub fn reverse(self, dims: &[i64]) -> Self {
        if dims.is_empty() { self } else { self.with(|b| b.reverse(self.v, dims)) }
    }

    pub fn gather(self, dims: &[i64], indices: &[Ex<'g>]) -> Self {
        let idx: Vec<Value> = indices.iter().map(|e| e.v).collect();
        self.with(|b| b.gather(self.v, dims, &idx))
    }

    pub fn scatter(self, kind: ScatterKind, dims: &[i64], indices: &[Ex<'g>], updates: Ex<'g>) -> Self {
        let idx: Vec<Value> = indices.iter().map(|e| e.v).collect();
        self.with(|b| b.scatter(kind, self.v, dims, &idx, updates.v))
    }

    pub fn concat(parts: &[Ex<'g>], dim: usize) -> Option<Self> {
        let vs: Vec<Value> = parts.iter().map(|e| e.v).collect();
        parts.first().map(|p| p.with(|b| b.concatenate(&vs, dim)))
    }
}

macro_rules! operator {
    ($($Trait:ident $f:ident $Kind:ident),*) => { $(
        impl<'g, R: IntoEx<'g>> std::ops::$Trait<R> for Ex<'g> {
            type Output = Ex<'g>;
            fn $f(self, o: R) -> Ex<'g> {
                self.bin(OpKind::$Kind, o)
            }
        }
        impl<'g> std::ops::$Trait<Ex<'g>> for f64 {
            type Output = Ex<'g>;
            fn $f(self, o: Ex<'g>) -> Ex<'g> {
                o.lit(self).bin(OpKind::$Kind, o)
            }
        }
    )* };
}
operator!(Add add Add, Sub sub Subtract, Mul mul Multiply, Div div Divide);

impl<'g> std::ops::Neg for Ex<'g> {
    type Output = Ex<'g>;
    fn neg(self) -> Ex<'g> {
        self.un(OpKind::Negate)
    }
}
