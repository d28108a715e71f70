//! Checked construction of graphs, with the sugar that lowerings and passes need.
//!
//! Every method appends one instruction (or none when the result already exists) and returns its value.
//! A violated type rule is a bug of the caller; it is kept (the first one) and reported by [`Builder::finish`], so
//! that lowering code stays free of `?` and nothing panics.
use super::*;
use smallvec::SmallVec;
use std::sync::Arc;

/// Builds one [`Graph`].
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    /// Location given to the instructions that follow.
    pub loc: u32,
    error: Option<TypeError>,
}

impl Builder {
    pub fn new(name: impl Into<String>) -> Self {
        Builder { graph: Graph::new(name), ..Builder::default() }
    }

    /// Makes room for a graph about as large as `other`.
    pub fn reserve_like(&mut self, other: &Graph) {
        self.graph.reserve_like(other);
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn ty(&self, v: Value) -> &TensorType {
        self.graph.ty(v)
    }

    pub fn dims(&self, v: Value) -> Dims {
        self.graph.ty(v).dims.clone()
    }

    pub fn dtype(&self, v: Value) -> DType {
        self.graph.ty(v).dtype
    }

    pub fn rank(&self, v: Value) -> usize {
        self.graph.ty(v).rank()
    }

    /// Ends construction with the given results; the first violated type rule, if any, is the error.
    pub fn finish(mut self, results: Vec<Value>) -> Result<Graph, TypeError> {
        self.graph.results = results;
        match self.error {
            Some(e) => Err(e),
            None => Ok(self.graph),
        }
    }

    /// The first violated type rule so far.
    pub fn error(&self) -> Option<&TypeError> {
        self.error.as_ref()
    }

    /// Notes a violated precondition found by the caller.
    pub fn fail(&mut self, error: TypeError) {
        self.error.get_or_insert(error);
    }

    /// Appends an instruction and returns its first result. `declared` as for [`infer`].
    pub fn op(&mut self, kind: OpKind, attrs: Attrs, operands: &[Value], declared: &[TensorType]) -> Value {
        let inferred = {
            let types: SmallVec<[&TensorType; 4]> = operands.iter().map(|&v| self.graph.ty(v)).collect();
            infer(kind, &attrs, &types, declared)
        };
        let types = match inferred {
            Ok(t) => t,
            Err(e) => {
                self.error.get_or_insert(e);
                // Keep going with a plausible type, so that the first error is the one reported.
                if declared.is_empty() { vec![TensorType::scalar(DType::F32); 3] } else { declared.to_vec() }
            }
        };
        let id = self.graph.push(kind, attrs, SmallVec::from_slice(operands), &types, self.loc);
        self.graph.inst(id).first
    }

    /// Result `n` of the instruction whose first result is `first`.
    pub fn result(&self, first: Value, n: u32) -> Value {
        Value(first.0 + n)
    }

    /// Adds an input of the function.
    pub fn parameter(&mut self, ty: TensorType, kind: ParamKind) -> Value {
        let index = self.graph.params.len() as u32;
        self.graph.params.push(Param { ty: ty.clone(), kind, donate_to: None });
        self.op(OpKind::Parameter, Attrs::Index(index), &[], &[ty])
    }

    /// Declares that the memory of input `param` may become graph result number `result`.
    pub fn donate(&mut self, param: u32, result: u32) {
        self.graph.params[param as usize].donate_to = Some(result);
    }

    pub fn literal(&mut self, literal: Literal) -> Value {
        self.op(OpKind::Constant, Attrs::Literal(Arc::new(literal)), &[], &[])
    }

    /// A tensor of type `ty` filled with `value`.
    pub fn splat(&mut self, ty: &TensorType, value: f64) -> Value {
        self.literal(Literal::splat(ty.clone(), value))
    }

    /// A tensor of type `ty` filled with an integer.
    pub fn splat_i64(&mut self, ty: &TensorType, value: i64) -> Value {
        self.literal(Literal::splat_i64(ty.clone(), value))
    }

    /// A constant of the type of `like`.
    pub fn full_like(&mut self, like: Value, value: f64) -> Value {
        let ty = self.ty(like).clone();
        self.splat(&ty, value)
    }

    /// 0-d constant.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Value {
        self.splat(&TensorType::scalar(dtype), value)
    }

    /// Indices along `dim` of a tensor of type `ty`.
    pub fn iota(&mut self, ty: &TensorType, dim: usize) -> Value {
        self.op(OpKind::Iota, Attrs::Dim(dim as i64), &[], std::slice::from_ref(ty))
    }

    /// Elementwise op of one operand.
    pub fn unary(&mut self, kind: OpKind, x: Value) -> Value {
        self.op(kind, Attrs::None, &[x], &[])
    }

    /// Elementwise op of two operands of equal type.
    pub fn binary(&mut self, kind: OpKind, x: Value, y: Value) -> Value {
        self.op(kind, Attrs::None, &[x, y], &[])
    }

    pub fn add(&mut self, x: Value, y: Value) -> Value {
        self.binary(OpKind::Add, x, y)
    }

    pub fn sub(&mut self, x: Value, y: Value) -> Value {
        self.binary(OpKind::Subtract, x, y)
    }

    pub fn mul(&mut self, x: Value, y: Value) -> Value {
        self.binary(OpKind::Multiply, x, y)
    }

    pub fn div(&mut self, x: Value, y: Value) -> Value {
        self.binary(OpKind::Divide, x, y)
    }

    pub fn compare(&mut self, dir: CmpDir, x: Value, y: Value) -> Value {
        self.op(OpKind::Compare, Attrs::Compare(dir), &[x, y], &[])
    }

    pub fn select(&mut self, pred: Value, on_true: Value, on_false: Value) -> Value {
        self.op(OpKind::Select, Attrs::None, &[pred, on_true, on_false], &[])
    }

    /// Conversion to `dtype`; the value itself if it has it already.
    pub fn convert(&mut self, x: Value, dtype: DType) -> Value {
        if self.dtype(x) == dtype {
            return x;
        }
        let ty = self.ty(x).with_dtype(dtype);
        self.op(OpKind::Convert, Attrs::None, &[x], &[ty])
    }

    pub fn bitcast(&mut self, x: Value, dtype: DType) -> Value {
        let ty = self.ty(x).with_dtype(dtype);
        self.op(OpKind::BitcastConvert, Attrs::None, &[x], &[ty])
    }

    /// `x` with sizes `dims`; the value itself if it has them already.
    pub fn reshape(&mut self, x: Value, dims: impl AsRef<[i64]>) -> Value {
        if self.ty(x).dims[..] == *dims.as_ref() {
            return x;
        }
        let ty = self.ty(x).with_dims(dims);
        self.op(OpKind::Reshape, Attrs::None, &[x], &[ty])
    }

    /// Result dimension i is dimension `perm[i]` of `x`; the value itself for the identity.
    pub fn transpose(&mut self, x: Value, perm: impl AsRef<[i64]>) -> Value {
        let perm = Dims::from_slice(perm.as_ref());
        if perm.iter().copied().eq(0..perm.len() as i64) {
            return x;
        }
        self.op(OpKind::Transpose, Attrs::Dims(perm), &[x], &[])
    }

    /// Dimension i of `x` becomes dimension `dims[i]` (increasing) of sizes `to`; the value itself if nothing changes.
    pub fn broadcast_in_dim(&mut self, x: Value, to: impl AsRef<[i64]>, dims: impl AsRef<[i64]>) -> Value {
        if self.ty(x).dims[..] == *to.as_ref() {
            return x;
        }
        let ty = self.ty(x).with_dims(to);
        self.op(OpKind::BroadcastInDim, Attrs::Dims(Dims::from_slice(dims.as_ref())), &[x], &[ty])
    }

    /// NumPy broadcasting of `x` to sizes `to` (dimensions are aligned at the end).
    pub fn broadcast_to(&mut self, x: Value, to: impl AsRef<[i64]>) -> Value {
        let to = to.as_ref();
        let skip = to.len().saturating_sub(self.rank(x)) as i64;
        let dims: Dims = (0..self.rank(x) as i64).map(|i| i + skip).collect();
        self.broadcast_in_dim(x, to, dims)
    }

    /// Elements start, start + stride, ... below limit, per dimension.
    pub fn slice(&mut self, x: Value, start: &[i64], limit: &[i64], stride: &[i64]) -> Value {
        let whole = start.iter().all(|&s| s == 0) && stride.iter().all(|&s| s == 1) && self.ty(x).dims[..] == *limit;
        if whole {
            return x;
        }
        let attrs = Attrs::Slice {
            start: Dims::from_slice(start),
            limit: Dims::from_slice(limit),
            stride: Dims::from_slice(stride),
        };
        self.op(OpKind::Slice, attrs, &[x], &[])
    }

    /// `start..limit` of one dimension.
    pub fn slice_dim(&mut self, x: Value, dim: usize, start: i64, limit: i64, stride: i64) -> Value {
        let mut limits = self.dims(x);
        let mut starts = Dims::from_elem(0, limits.len());
        let mut strides = Dims::from_elem(1, limits.len());
        (starts[dim], limits[dim], strides[dim]) = (start, limit, stride);
        self.slice(x, &starts, &limits, &strides)
    }

    /// Padding with a 0-d value; see [`OpKind::Pad`].
    pub fn pad(&mut self, x: Value, value: Value, lo: &[i64], hi: &[i64], interior: &[i64]) -> Value {
        let attrs =
            Attrs::Pad { lo: Dims::from_slice(lo), hi: Dims::from_slice(hi), interior: Dims::from_slice(interior) };
        self.op(OpKind::Pad, attrs, &[x, value], &[])
    }

    pub fn concatenate(&mut self, parts: &[Value], dim: usize) -> Value {
        if let [one] = parts {
            return *one;
        }
        self.op(OpKind::Concatenate, Attrs::Dim(dim as i64), parts, &[])
    }

    pub fn reverse(&mut self, x: Value, dims: &[i64]) -> Value {
        self.op(OpKind::Reverse, Attrs::Dims(Dims::from_slice(dims)), &[x], &[])
    }

    pub fn dynamic_slice(&mut self, x: Value, starts: &[Value], sizes: &[i64]) -> Value {
        let ty = self.ty(x).with_dims(sizes);
        let operands: SmallVec<[Value; 8]> = std::iter::once(x).chain(starts.iter().copied()).collect();
        self.op(OpKind::DynamicSlice, Attrs::None, &operands, &[ty])
    }

    pub fn dynamic_update_slice(&mut self, x: Value, update: Value, starts: &[Value]) -> Value {
        let operands: SmallVec<[Value; 8]> = [x, update].into_iter().chain(starts.iter().copied()).collect();
        self.op(OpKind::DynamicUpdateSlice, Attrs::None, &operands, &[])
    }

    /// See [`OpKind::Gather`].
    pub fn gather(&mut self, x: Value, dims: &[i64], indices: &[Value]) -> Value {
        let operands: SmallVec<[Value; 8]> = std::iter::once(x).chain(indices.iter().copied()).collect();
        self.op(OpKind::Gather, Attrs::Dims(Dims::from_slice(dims)), &operands, &[])
    }

    /// See [`OpKind::Scatter`].
    pub fn scatter(&mut self, kind: ScatterKind, x: Value, dims: &[i64], indices: &[Value], updates: Value) -> Value {
        let operands: SmallVec<[Value; 8]> =
            std::iter::once(x).chain(indices.iter().copied()).chain([updates]).collect();
        self.op(OpKind::Scatter, Attrs::Scatter { kind, dims: Dims::from_slice(dims) }, &operands, &[])
    }

    /// Combines along `dims`, which disappear.
    pub fn reduce(&mut self, kind: ReduceKind, x: Value, dims: &[i64]) -> Value {
        if dims.is_empty() {
            return x;
        }
        let mut dims = Dims::from_slice(dims);
        dims.sort_unstable();
        self.op(OpKind::Reduce, Attrs::Reduce { kind, dims }, &[x], &[])
    }

    /// As [`Builder::reduce`], but the dimensions stay with size 1.
    pub fn reduce_keep(&mut self, kind: ReduceKind, x: Value, dims: &[i64]) -> Value {
        let mut kept = self.dims(x);
        for &d in dims {
            kept[d as usize] = 1;
        }
        let r = self.reduce(kind, x, dims);
        self.reshape(r, kept)
    }

    pub fn arg_reduce(&mut self, max: bool, x: Value, dim: i64) -> Value {
        self.op(OpKind::ArgReduce, Attrs::ArgReduce { max, dim }, &[x], &[])
    }

    pub fn cumulative(&mut self, kind: CumKind, x: Value, dim: i64) -> Value {
        self.op(OpKind::Cumulative, Attrs::Cumulative { kind, dim }, &[x], &[])
    }

    pub fn reduce_window(&mut self, kind: ReduceKind, x: Value, window: Vec<WindowDim>) -> Value {
        self.op(OpKind::ReduceWindow, Attrs::Window { kind, window }, &[x], &[])
    }

    /// (values, indices); see [`OpKind::MaxPoolWithIndex`].
    pub fn max_pool_with_index(&mut self, x: Value, window: Vec<WindowDim>) -> (Value, Value) {
        let v = self.op(OpKind::MaxPoolWithIndex, Attrs::Window { kind: ReduceKind::Max, window }, &[x], &[]);
        (v, self.result(v, 1))
    }

    /// Batched matrix product with result element type `dtype`.
    pub fn dot_general(&mut self, x: Value, y: Value, dims: DotDims, dtype: DType) -> Value {
        self.op(OpKind::DotGeneral, Attrs::Dot(dims), &[x, y], &[TensorType::scalar(dtype)])
    }

    /// Plain matrix product [m, k]·[k, n] in the operands' element type.
    pub fn matmul(&mut self, x: Value, y: Value) -> Value {
        let dims = DotDims {
            lhs_contract: Dims::from_slice(&[1]),
            rhs_contract: Dims::from_slice(&[0]),
            ..DotDims::default()
        };
        let dtype = self.dtype(x);
        self.dot_general(x, y, dims, dtype)
    }

    /// Batched matrix product [b, m, k]·[b, k, n].
    pub fn bmm(&mut self, x: Value, y: Value) -> Value {
        let one = |d: i64| Dims::from_slice(&[d]);
        let dims = DotDims { lhs_batch: one(0), rhs_batch: one(0), lhs_contract: one(2), rhs_contract: one(1) };
        let dtype = self.dtype(x);
        self.dot_general(x, y, dims, dtype)
    }

    pub fn convolution(
        &mut self,
        x: Value,
        kernel: Value,
        window: Vec<WindowDim>,
        dims: ConvDims,
        feature_groups: i64,
        batch_groups: i64,
    ) -> Value {
        let dtype = self.dtype(x);
        let attrs = Attrs::Conv { window, dims, feature_groups, batch_groups };
        self.op(OpKind::Convolution, attrs, &[x, kernel], &[TensorType::scalar(dtype)])
    }

    /// (out, logsumexp); see [`OpKind::Attention`].
    pub fn attention(
        &mut self,
        [q, k, v]: [Value; 3],
        scale: Value,
        bias: Option<Value>,
        causal: bool,
    ) -> (Value, Value) {
        let operands: SmallVec<[Value; 8]> = [q, k, v, scale].into_iter().chain(bias).collect();
        let out = self.op(OpKind::Attention, Attrs::Attention { causal }, &operands, &[]);
        (out, self.result(out, 1))
    }

    /// (dq, dk, dv); operands as in [`OpKind::AttentionBackward`]: q, k, v, scale, out, logsumexp, dout.
    pub fn attention_backward(&mut self, operands: [Value; 7], bias: Option<Value>, causal: bool) -> [Value; 3] {
        let operands: SmallVec<[Value; 8]> = operands.into_iter().chain(bias).collect();
        let dq = self.op(OpKind::AttentionBackward, Attrs::Attention { causal }, &operands, &[]);
        [dq, self.result(dq, 1), self.result(dq, 2)]
    }

    /// (values, indices).
    pub fn sort(&mut self, x: Value, dim: i64, descending: bool) -> (Value, Value) {
        let v = self.op(OpKind::Sort, Attrs::Sort { dim, descending }, &[x], &[]);
        (v, self.result(v, 1))
    }

    /// (values, indices) along the last dimension.
    pub fn top_k(&mut self, x: Value, k: i64, largest: bool) -> (Value, Value) {
        let v = self.op(OpKind::TopK, Attrs::TopK { k, largest }, &[x], &[]);
        (v, self.result(v, 1))
    }

    /// `ui32` bits of sizes `dims` from two 0-d i64 values; see [`OpKind::RngBits`].
    pub fn rng_bits(&mut self, seed: Value, offset: Value, dims: &[i64], word: u32) -> Value {
        let ty = TensorType::new(DType::U32, dims);
        self.op(OpKind::RngBits, Attrs::Word(word), &[seed, offset], &[ty])
    }

    pub fn optimization_barrier(&mut self, values: &[Value]) -> Vec<Value> {
        let first = self.op(OpKind::OptimizationBarrier, Attrs::None, values, &[]);
        (0..values.len() as u32).map(|i| self.result(first, i)).collect()
    }
}
