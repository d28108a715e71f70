//! Matrix products, convolutions and attention. Floats accumulate in `f64`; the result is rounded once.
use super::index::{flat, for_each};
use super::reduction::{product, sum};
use super::window::source;
use super::{Tensor, reduction};
use crate::ir::{ConvDims, Dims, DotDims, ReduceKind, TensorType, WindowDim};

pub(super) fn dot_general(ty: &TensorType, x: &Tensor, y: &Tensor, d: &DotDims) -> Tensor {
    let free = |t: &Tensor, batch: &[i64], contract: &[i64]| -> Dims {
        (0..t.ty.rank() as i64).filter(|i| !batch.contains(i) && !contract.contains(i)).collect()
    };
    let x_free = free(x, &d.lhs_batch, &d.lhs_contract);
    let y_free = free(y, &d.rhs_batch, &d.rhs_contract);
    let contracted: Dims = d.lhs_contract.iter().map(|&i| x.ty.dims[i as usize]).collect();
    let (n_batch, n_x) = (d.lhs_batch.len(), x_free.len());
    let mut nums = Vec::with_capacity(ty.numel() as usize);
    for_each(&ty.dims, |out| {
        let (batch, rest) = out.split_at(n_batch);
        let (out_x, out_y) = rest.split_at(n_x);
        let mut acc = reduction::identity(ReduceKind::Sum, x.ty.dtype);
        for_each(&contracted, |k| {
            let at = |t: &Tensor, parts: [(&Dims, &[i64]); 3]| {
                let mut index = Dims::from_elem(0, t.ty.rank());
                for (dims, values) in parts {
                    for (&dim, &value) in dims.iter().zip(values) {
                        index[dim as usize] = value;
                    }
                }
                t.num(flat(&t.ty.dims, &index))
            };
            let a = at(x, [(&d.lhs_batch, batch), (&x_free, out_x), (&d.lhs_contract, k)]);
            let b = at(y, [(&d.rhs_batch, batch), (&y_free, out_y), (&d.rhs_contract, k)]);
            acc = sum(acc, product(a, b));
        });
        nums.push(acc);
    });
    Tensor::from_nums(ty, nums)
}

/// Groups split the input's features (or its batch) and the kernel's output features evenly; group g of the one meets
/// group g of the other.
pub(super) fn convolution(
    ty: &TensorType,
    x: &Tensor,
    kernel: &Tensor,
    window: &[WindowDim],
    d: &ConvDims,
    feature_groups: i64,
    batch_groups: i64,
) -> Tensor {
    let size = |t: &TensorType, dim: i64| t.dims[dim as usize];
    let features = size(&kernel.ty, d.kernel_output_feature);
    let group_inputs = size(&kernel.ty, d.kernel_input_feature);
    let batch = size(ty, d.output_batch);
    let taps: Dims = window.iter().map(|w| w.size).collect();
    let mut nums = Vec::with_capacity(ty.numel() as usize);
    for_each(&ty.dims, |out| {
        let feature = out[d.output_feature as usize];
        let feature_group = feature / (features / feature_groups);
        let batch_group = feature / (features / batch_groups);
        let mut acc = reduction::identity(ReduceKind::Sum, x.ty.dtype);
        let mut at_x = Dims::from_elem(0, x.ty.rank());
        let mut at_kernel = Dims::from_elem(0, kernel.ty.rank());
        at_x[d.input_batch as usize] = batch_group * batch + out[d.output_batch as usize];
        at_kernel[d.kernel_output_feature as usize] = feature;
        for_each(&taps, |k| {
            for (s, w) in window.iter().enumerate() {
                let dim = d.input_spatial[s];
                let Some(from) = source(w, size(&x.ty, dim), out[d.output_spatial[s] as usize], k[s]) else { return };
                at_x[dim as usize] = from;
                at_kernel[d.kernel_spatial[s] as usize] = if w.reversed { w.size - 1 - k[s] } else { k[s] };
            }
            for i in 0..group_inputs {
                at_x[d.input_feature as usize] = feature_group * group_inputs + i;
                at_kernel[d.kernel_input_feature as usize] = i;
                let pair = (x.num(flat(&x.ty.dims, &at_x)), kernel.num(flat(&kernel.ty.dims, &at_kernel)));
                acc = sum(acc, product(pair.0, pair.1));
            }
        });
        nums.push(acc);
    });
    Tensor::from_nums(ty, nums)
}

/// Operands of attention as floats.
struct Heads {
    /// batch * heads.
    n: usize,
    /// Queries, keys, depth of queries and keys, depth of values.
    t: usize,
    s: usize,
    e: usize,
    f: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    scale: f64,
    /// Of the sizes of the scores.
    bias: Option<Vec<f64>>,
    causal: bool,
}

impl Heads {
    fn new(q: &Tensor, k: &Tensor, v: &Tensor, scale: &Tensor, bias: Option<&&Tensor>, causal: bool) -> Heads {
        let [b, h, t, e] = [0, 1, 2, 3].map(|i| q.ty.dims[i]);
        let s = k.ty.dims[2];
        let bias = bias.map(|bias| {
            let skip = 4 - bias.ty.rank();
            let mut out = Vec::new();
            for_each(&[b, h, t, s], |index| {
                let from = bias.ty.dims.iter().enumerate().map(|(d, &n)| if n == 1 { 0 } else { index[skip + d] });
                out.push(bias.num(flat(&bias.ty.dims, &from.collect::<Dims>())).to_f64());
            });
            out
        });
        Heads {
            n: (b * h) as usize,
            t: t as usize,
            s: s as usize,
            e: e as usize,
            f: v.ty.dims[3] as usize,
            q: q.to_f64(),
            k: k.to_f64(),
            v: v.to_f64(),
            scale: scale.num(0).to_f64(),
            bias,
            causal,
        }
    }

    /// Scores of query `i` of head `n` against all keys. Causal: a query sees the keys up to its own number.
    fn scores(&self, n: usize, i: usize) -> Vec<f64> {
        let row = |x: &[f64], r: usize| x[r * self.e..(r + 1) * self.e].to_vec();
        let q = row(&self.q, n * self.t + i);
        (0..self.s)
            .map(|j| {
                if self.causal && j > i {
                    return f64::NEG_INFINITY;
                }
                let k = row(&self.k, n * self.s + j);
                let dot = total(q.iter().zip(&k).map(|(a, b)| a * b));
                dot * self.scale + self.bias.as_ref().map_or(0.0, |bias| bias[(n * self.t + i) * self.s + j])
            })
            .collect()
    }
}

/// Sum from +0, which std's sum of no terms is not.
fn total(terms: impl Iterator<Item = f64>) -> f64 {
    terms.fold(0.0, |acc, term| acc + term)
}

/// ln of the sum of e^x: -inf if nothing (or only -inf) is summed.
fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().fold(f64::NEG_INFINITY, |a, &b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) });
    if max.is_infinite() || max.is_nan() {
        return max;
    }
    max + libm::log(total(x.iter().map(|v| libm::exp(v - max))))
}

/// Softmax weights given the log of their sum; a row that sees no key has weights 0.
fn weights(scores: &[f64], lse: f64) -> Vec<f64> {
    let weight = |s: f64| if lse == f64::NEG_INFINITY { 0.0 } else { libm::exp(s - lse) };
    scores.iter().map(|&s| weight(s)).collect()
}

/// (out, logsumexp). A query whose keys are all masked has out 0 and logsumexp -inf.
pub(super) fn attention(types: &[TensorType], x: &[&Tensor], causal: bool) -> Vec<Tensor> {
    let h = Heads::new(x[0], x[1], x[2], x[3], x.get(4), causal);
    let (mut out, mut lses) = (Vec::new(), Vec::new());
    for n in 0..h.n {
        for i in 0..h.t {
            let scores = h.scores(n, i);
            let lse = log_sum_exp(&scores);
            let p = weights(&scores, lse);
            for c in 0..h.f {
                out.push(total((0..h.s).map(|j| p[j] * h.v[(n * h.s + j) * h.f + c])));
            }
            lses.push(lse);
        }
    }
    vec![Tensor::from_f64(&types[0], &out), Tensor::from_f64(&types[1], &lses)]
}

/// (dq, dk, dv) by the formulas of FlashAttention (Dao et al. 2022, appendix B.4): with P the weights, dV = Pᵀ dO,
/// dP = dO Vᵀ, dS = P ∘ (dP - rowsum(dO ∘ O)), dQ = scale · dS K, dK = scale · dSᵀ Q.
pub(super) fn attention_backward(types: &[TensorType], x: &[&Tensor], causal: bool) -> Vec<Tensor> {
    let h = Heads::new(x[0], x[1], x[2], x[3], x.get(7), causal);
    let (out, lses, dout) = (x[4].to_f64(), x[5].to_f64(), x[6].to_f64());
    let (mut dq, mut dk, mut dv) = (vec![0.0; h.q.len()], vec![0.0; h.k.len()], vec![0.0; h.v.len()]);
    for n in 0..h.n {
        for i in 0..h.t {
            let row = n * h.t + i;
            let p = weights(&h.scores(n, i), lses[row]);
            let delta = total((0..h.f).map(|c| dout[row * h.f + c] * out[row * h.f + c]));
            for (j, &weight) in p.iter().enumerate() {
                let key = n * h.s + j;
                let mut dp = 0.0;
                for c in 0..h.f {
                    dp += dout[row * h.f + c] * h.v[key * h.f + c];
                    dv[key * h.f + c] += weight * dout[row * h.f + c];
                }
                let ds = weight * (dp - delta) * h.scale;
                for c in 0..h.e {
                    dq[row * h.e + c] += ds * h.k[key * h.e + c];
                    dk[key * h.e + c] += ds * h.q[row * h.e + c];
                }
            }
        }
    }
    [dq, dk, dv].iter().zip(types).map(|(values, ty)| Tensor::from_f64(ty, values)).collect()
}
