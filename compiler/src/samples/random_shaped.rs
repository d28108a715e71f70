//! Random ops that are not elementwise: the other half of [`super::random`].
use super::maker::Fill;
use super::random::{Gen, MAX_NUMEL};
use crate::ir::{
    ConvDims, CumKind, DType, Dims, DotDims, OpKind, ReduceKind, ScatterKind, TensorType, Value, WindowDim,
};

impl Gen {
    pub(super) fn movement(&mut self, kind: OpKind) -> Option<()> {
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

    pub(super) fn indexed(&mut self, kind: OpKind) -> Option<()> {
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

    pub(super) fn reduction(&mut self, kind: OpKind) -> Option<()> {
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

    pub(super) fn windows(&mut self, kind: OpKind) -> Option<()> {
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

    pub(super) fn dot(&mut self) -> Option<()> {
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

    pub(super) fn convolution(&mut self) -> Option<()> {
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
        let numbers = ConvDims::channels_first(ty.rank() - 2);
        let kernel = self.like(&ty.with_dims(kernel), false).v;
        let (x, kernel) = (self.limit(x.v, -2.0, 2.0), self.limit(kernel, -2.0, 2.0));
        let v = self.m.b.convolution(x, kernel, window, numbers, groups, 1);
        if self.m.b.ty(v).numel() > 4 * MAX_NUMEL {
            return None;
        }
        self.put_limited(v, false)
    }

    pub(super) fn attention(&mut self, kind: OpKind) -> Option<()> {
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

    pub(super) fn sort(&mut self, kind: OpKind) -> Option<()> {
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
}
