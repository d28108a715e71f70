//! `channels`: convolutions, and what is between them, in the order of dimensions in which their kernels are fastest.
//!
//! ```text
//! %c = convolution %x, %w {.. b f 0 1 ..}       =>   %t = transpose %x, [0, 2, 3, 1]
//! %r = maximum %c, ..                                %c = convolution %t, %w {.. b 0 1 f ..}
//! %d = convolution %r, %v {.. b f 0 1 ..}            %r = maximum %c, ..
//! return %d                                          %d = convolution %r, %v {.. b 0 1 f ..}
//!                                                    %o = transpose %d, [0, 3, 1, 2]
//! ```
//! Recorded convolutions are channels first, whatever the strides of the user's tensors are: those are transposes at the
//! border. Values that ops tie together element by element are a *region*; each region is channels first or last. The
//! choice is the cheapest that flips of single regions, and of two that a convolution joins, find: time of the
//! convolutions by the rates of [`Model`] and a copy wherever a value leaves or enters a region in the other order
//! (none where a recorded transpose does that already). Channels first stays unless the gain is worth it.
//!
//! Runs before shapes are moved: dimensions of size 1 are still there, so an image has four.
//!
//! Safety: only names of dimensions change. A value that an op without a form of its own reads, and every result of the
//! graph, is transposed back.
mod model;

use super::rewriter::{Rewriter, live_order};
use super::simplify::Simplifier;
use crate::cost::DeviceModel;
use crate::ir::{Attrs, Class, ConvDims, Dims, Graph, Inst, InstId, OpKind, TypeError, Value};
use model::{Conv, Model};
use petgraph::unionfind::UnionFind;

/// To channels last and back.
const LAST: [i64; 4] = [0, 2, 3, 1];
const FIRST: [i64; 4] = [0, 3, 1, 2];

/// The dimension of a channels-last value that dimension `d` of the channels-first one is.
fn moved(d: i64) -> i64 {
    FIRST[d as usize]
}

/// What there is of every dimension, in the order of the channels-last value.
fn reordered(list: &Dims) -> Dims {
    LAST.iter().map(|&d| list[d as usize]).collect()
}

pub(super) fn run(graph: &Graph, device: &DeviceModel) -> Result<Graph, TypeError> {
    if !graph.insts.iter().any(|i| i.kind == OpKind::Convolution) {
        return Ok(graph.clone());
    }
    let order = live_order(graph);
    let model = Model::new(device);
    let regions = Regions::new(graph, &order);
    match choose(graph, &order, &regions, &model) {
        Some(last) => emit(graph, &order, &regions, &model, &last),
        None => Ok(graph.clone()),
    }
}

/// The graph with regions in the orders given for their numbers.
fn emit(graph: &Graph, order: &[InstId], regions: &Regions, model: &Model, last: &[bool]) -> Result<Graph, TypeError> {
    let chosen = (0..graph.n_values()).map(|v| last[regions.of(Value(v as u32))]).collect();
    let mut e = Emit { model, r: Rewriter::new(graph), last: vec![None; graph.n_values()], chosen };
    for &id in order {
        e.inst(id);
    }
    for &v in &graph.results {
        e.first(v);
    }
    e.r.finish()
}

/// A convolution whose images may be in either order: its image operands and, unless it is a weight gradient, its result.
struct Images {
    /// The weight gradient's second operand is the result's gradient.
    gradient: bool,
    values: [Value; 2],
}

/// The images of a two-dimensional convolution as recorded; none if it is in another form.
fn images(inst: &Inst) -> Option<Images> {
    let Attrs::Conv { dims: d, window, batch_groups, .. } = &inst.attrs else { return None };
    let plain = |s: &Dims| s[..] == [2, 3];
    if window.len() != 2 || *batch_groups != 1 || !plain(&d.input_spatial) || !plain(&d.output_spatial) {
        return None;
    }
    match (d.input_batch, d.output_batch) {
        (0, 0) => Some(Images { gradient: false, values: [inst.operands[0], inst.result()] }),
        (1, 1) if plain(&d.kernel_spatial) && d.kernel_input_feature == 0 => {
            Some(Images { gradient: true, values: [inst.operands[0], inst.operands[1]] })
        }
        _ => None,
    }
}

/// Values tied together element by element.
struct Regions(UnionFind<u32>);

impl Regions {
    fn new(graph: &Graph, order: &[InstId]) -> Regions {
        let mut regions = Regions(UnionFind::new(graph.n_values()));
        for inst in order.iter().map(|&id| graph.inst(id)).filter(|i| follows(graph, i)) {
            if inst.kind == OpKind::OptimizationBarrier {
                inst.operands.iter().zip(inst.results()).for_each(|(&a, b)| regions.join(a, b));
                continue;
            }
            for &v in &inst.operands {
                if graph.ty(v).rank() == 4 && !made_anyhow(graph.def_inst(v).kind) {
                    regions.join(v, inst.result());
                }
            }
        }
        regions
    }

    fn of(&self, v: Value) -> usize {
        self.0.find(v.0) as usize
    }

    fn join(&mut self, a: Value, b: Value) {
        self.0.union(a.0, b.0);
    }
}

/// The op has the same form in any order of dimensions.
fn follows(graph: &Graph, inst: &Inst) -> bool {
    let image = |v: Value| graph.ty(v).rank() == 4;
    match inst.kind {
        OpKind::Pad | OpKind::Concatenate | OpKind::OptimizationBarrier => inst.results().all(image),
        kind => kind.class() == Class::Elementwise && inst.results().all(image),
    }
}

/// In whatever order this is wanted, it is made in that order.
fn made_anyhow(kind: OpKind) -> bool {
    matches!(kind, OpKind::Constant | OpKind::BroadcastInDim | OpKind::Iota)
}

/// What a choice costs.
struct Costs {
    /// Extra time of a region in channels first and last: copies at its border.
    border: Vec<(usize, [f64; 2])>,
    convs: Vec<(Conv, [usize; 2])>,
}

impl Costs {
    fn new(graph: &Graph, order: &[InstId], regions: &Regions, model: &Model) -> Costs {
        let mut border = vec![[0.0; 2]; graph.n_values()];
        let mut convs = Vec::new();
        let copy = |v: Value| model.copy_ns(graph.ty(v).bytes());
        let mut counted = vec![false; graph.n_values()];
        let mut leaves = |v: Value, border: &mut Vec<[f64; 2]>| {
            if graph.ty(v).rank() == 4 && !std::mem::replace(&mut counted[v.0 as usize], true) {
                border[regions.of(v)][1] += copy(v);
            }
        };
        for p in graph.insts.iter().filter(|i| i.kind == OpKind::Parameter && graph.ty(i.first).rank() == 4) {
            border[regions.of(p.first)][1] += copy(p.first);
        }
        for &id in order {
            let inst = graph.inst(id);
            if let Some(images) = images(inst) {
                convs.push((Conv::new(graph, inst, images.gradient), images.values.map(|v| regions.of(v))));
                continue;
            }
            if follows(graph, inst) || made_anyhow(inst.kind) || inst.kind == OpKind::Reduce {
                continue;
            }
            if let (OpKind::Transpose, Attrs::Dims(p)) = (inst.kind, &inst.attrs) {
                // The user's own channels-last tensors.
                if p[..] == LAST {
                    border[regions.of(inst.operands[0])][0] += copy(inst.result());
                    continue;
                }
                if p[..] == FIRST {
                    border[regions.of(inst.result())][0] += copy(inst.result());
                    continue;
                }
            }
            for &v in &inst.operands {
                leaves(v, &mut border);
            }
            for v in inst.results().filter(|&v| graph.ty(v).rank() == 4) {
                border[regions.of(v)][1] += copy(v);
            }
        }
        for &v in &graph.results {
            leaves(v, &mut border);
        }
        let border = border.into_iter().enumerate().filter(|(_, b)| *b != [0.0; 2]).collect();
        Costs { border, convs }
    }

    fn total(&self, model: &Model, last: &[bool]) -> f64 {
        let border: f64 = self.border.iter().map(|(r, b)| b[usize::from(last[*r])]).sum();
        let convs: f64 = self.convs.iter().map(|(c, [a, b])| model.ns(c, [last[*a], last[*b]]).0).sum();
        border + convs
    }
}

/// For every region: it is channels last. None if nothing is gained.
fn choose(graph: &Graph, order: &[InstId], regions: &Regions, model: &Model) -> Option<Vec<bool>> {
    let costs = Costs::new(graph, order, regions, model);
    let mut moves: Vec<[usize; 2]> =
        costs.convs.iter().flat_map(|(_, [a, b])| [[*a, *a], [*b, *b], [*a, *b]]).collect();
    moves.sort_unstable();
    moves.dedup();
    let nothing = vec![false; graph.n_values()];
    // As recorded.
    let present = costs.convs.iter().map(|(c, _)| model.first_ns(c)).sum::<f64>()
        + costs.border.iter().map(|(_, b)| b[0]).sum::<f64>();
    let mut best = (f64::INFINITY, nothing.clone());
    let mut all = nothing.clone();
    moves.iter().flatten().for_each(|&r| all[r] = true);
    for mut last in [nothing, all] {
        let mut cost = costs.total(model, &last);
        loop {
            let flip = |last: &mut Vec<bool>, m: &[usize; 2]| {
                last[m[0]] ^= true;
                if m[1] != m[0] {
                    last[m[1]] ^= true;
                }
            };
            let mut found = None;
            for m in &moves {
                flip(&mut last, m);
                let new = costs.total(model, &last);
                flip(&mut last, m);
                if new < cost - 1.0 {
                    (cost, found) = (new, Some(*m));
                }
            }
            let Some(m) = found else { break };
            flip(&mut last, &m);
        }
        if cost < best.0 {
            best = (cost, last);
        }
    }
    let (cost, last) = best;
    model.is_worth_it(present, cost).then_some(last)
}

struct Emit<'g, 'm> {
    model: &'m Model,
    /// Values as recorded.
    r: Rewriter<'g>,
    /// Values channels last.
    last: Vec<Option<Value>>,
    chosen: Vec<bool>,
}

impl Emit<'_, '_> {
    /// `v` as recorded.
    fn first(&mut self, v: Value) -> Value {
        if !self.r.has(v)
            && let Some(x) = self.last[v.0 as usize]
        {
            let new = Simplifier { b: &mut self.r.b }.transpose(x, &FIRST);
            self.r.set(v, new);
        }
        self.r.get(v)
    }

    /// `v` channels last.
    fn last(&mut self, v: Value) -> Value {
        if let Some(x) = self.last[v.0 as usize] {
            return x;
        }
        let x = self.r.get(v);
        let new = Simplifier { b: &mut self.r.b }.transpose(x, &LAST);
        self.last[v.0 as usize] = Some(new);
        new
    }

    fn is_last(&self, v: Value) -> bool {
        self.chosen[v.0 as usize] && self.r.src.ty(v).rank() == 4
    }

    /// The sizes of `v` channels last.
    fn dims(&self, v: Value) -> Dims {
        reordered(&self.r.src.ty(v).dims)
    }

    fn inst(&mut self, id: InstId) {
        let src = self.r.src;
        let inst = src.inst(id);
        self.r.b.loc = inst.loc;
        if let Some(images) = images(inst) {
            return self.convolution(inst, &images);
        }
        if follows(src, inst) && inst.results().any(|v| self.is_last(v)) {
            let operands: Vec<Value> = inst
                .operands
                .iter()
                .map(|&v| if src.ty(v).rank() == 4 { self.last(v) } else { self.first(v) })
                .collect();
            let types: Vec<_> = inst.results().map(|v| src.ty(v).with_dims(self.dims(v))).collect();
            let attrs = match &inst.attrs {
                Attrs::Dim(d) if inst.kind == OpKind::Concatenate => Attrs::Dim(moved(*d)),
                Attrs::Pad { lo, hi, interior } => {
                    Attrs::Pad { lo: reordered(lo), hi: reordered(hi), interior: reordered(interior) }
                }
                other => other.clone(),
            };
            let first = self.r.b.op(inst.kind, attrs, &operands, &types);
            for (n, v) in inst.results().enumerate() {
                self.last[v.0 as usize] = Some(Value(first.0 + n as u32));
            }
            return;
        }
        if let (OpKind::Reduce, Attrs::Reduce { kind, dims }) = (inst.kind, &inst.attrs)
            && self.is_last(inst.operands[0])
        {
            let x = self.last(inst.operands[0]);
            let mut to: Dims = dims.iter().map(|&d| moved(d)).collect();
            to.sort_unstable();
            // What is left, in the order it has now; then in the recorded one.
            let left: Vec<i64> = LAST.into_iter().filter(|d| !dims.contains(d)).collect();
            let sizes: Dims = left.iter().map(|&d| src.ty(inst.operands[0]).dims[d as usize]).collect();
            let ty = src.ty(inst.result()).with_dims(sizes);
            let y = self.r.b.op(inst.kind, Attrs::Reduce { kind: *kind, dims: to }, &[x], &[ty]);
            let mut back: Vec<i64> = (0..left.len() as i64).collect();
            back.sort_by_key(|&i| left[i as usize]);
            let y = Simplifier { b: &mut self.r.b }.transpose(y, &back);
            self.r.set(inst.result(), y);
            return;
        }
        for &v in &inst.operands {
            self.first(v);
        }
        if let (OpKind::Transpose, Attrs::Dims(p)) = (inst.kind, &inst.attrs) {
            let x = match (&p[..], self.last[inst.operands[0].0 as usize]) {
                (p, Some(x)) if *p == LAST => x,
                _ => {
                    let x = self.first(inst.operands[0]);
                    Simplifier { b: &mut self.r.b }.transpose(x, p)
                }
            };
            self.r.set(inst.result(), x);
            return;
        }
        self.r.copy(inst);
    }

    fn convolution(&mut self, inst: &Inst, images: &Images) {
        let src = self.r.src;
        let Attrs::Conv { window, dims: d, feature_groups, batch_groups } = &inst.attrs else { return };
        let conv = Conv::new(src, inst, images.gradient);
        // Where its images differ in order, and even where they do not, the cheaper of the two.
        if !self.model.ns(&conv, images.values.map(|v| self.is_last(v))).1 {
            for &v in &inst.operands {
                self.first(v);
            }
            return self.r.copy(inst);
        }
        let x = self.last(inst.operands[0]);
        let w = if images.gradient { self.last(inst.operands[1]) } else { self.first(inst.operands[1]) };
        let all = |s: &Dims| s.iter().map(|&d| moved(d)).collect::<Dims>();
        let mut to = ConvDims {
            input_batch: moved(d.input_batch),
            input_feature: moved(d.input_feature),
            input_spatial: all(&d.input_spatial),
            ..d.clone()
        };
        let out = src.ty(inst.result());
        let ty = if images.gradient {
            to.kernel_input_feature = moved(d.kernel_input_feature);
            to.kernel_output_feature = moved(d.kernel_output_feature);
            to.kernel_spatial = all(&d.kernel_spatial);
            out.clone()
        } else {
            to.output_batch = moved(d.output_batch);
            to.output_feature = moved(d.output_feature);
            to.output_spatial = all(&d.output_spatial);
            out.with_dims(self.dims(inst.result()))
        };
        let attrs = Attrs::Conv {
            window: window.clone(),
            dims: to,
            feature_groups: *feature_groups,
            batch_groups: *batch_groups,
        };
        let y = self.r.b.op(inst.kind, attrs, &[x, w], &[ty]);
        if images.gradient {
            self.r.set(inst.result(), y);
        } else {
            self.last[inst.result().0 as usize] = Some(y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::eval;
    use crate::ir::{Builder, DType, ParamKind, ReduceKind, TensorType, WindowDim};
    use crate::samples::{Rng, arguments};

    /// A network with every kind of op that regions and their borders know, forward and gradients.
    fn network() -> Graph {
        let mut b = Builder::new("network");
        let f32 = |d: &[i64]| TensorType::new(DType::F32, d);
        let [x, w, v, k, bias, user] =
            [&[2, 3, 8, 6][..], &[4, 3, 3, 3], &[5, 4, 3, 3], &[4, 4, 1, 1], &[4], &[2, 8, 6, 4]]
                .map(|d| b.parameter(f32(d), ParamKind::Tensor));
        let conv = |b: &mut Builder, x, w, window: WindowDim, gradient: bool, weights: bool| {
            let (i, o) = if gradient || weights { (0, 1) } else { (1, 0) };
            let (batch, feature) = if weights { (1, 0) } else { (0, 1) };
            let dims = ConvDims {
                input_batch: batch,
                input_feature: feature,
                kernel_input_feature: i,
                kernel_output_feature: o,
                output_batch: batch,
                output_feature: feature,
                ..ConvDims::channels_first(2)
            };
            b.convolution(x, w, vec![window, window], dims, 1, 1)
        };
        let same = WindowDim { size: 3, pad_lo: 1, pad_hi: 1, ..WindowDim::UNIT };
        let y = conv(&mut b, x, w, same, false, false);
        let wide = b.broadcast_in_dim(bias, [2, 4, 8, 6], [1]);
        let y = b.add(y, wide);
        let mean = b.reduce(ReduceKind::Sum, y, &[0, 2, 3]);
        let wide = b.broadcast_in_dim(mean, [2, 4, 8, 6], [1]);
        let y = b.sub(y, wide);
        let zero = b.full_like(y, 0.0);
        let relu = b.binary(OpKind::Maximum, y, zero);
        let point = conv(&mut b, relu, k, WindowDim::UNIT, false, false);
        let from_user = b.transpose(user, FIRST);
        let skip = b.add(point, from_user);
        let strided = WindowDim { size: 3, stride: 2, pad_lo: 1, pad_hi: 1, ..WindowDim::UNIT };
        let z = conv(&mut b, skip, v, strided, false, false);
        let pooled = b.reduce(ReduceKind::Max, z, &[2, 3]);
        let columns = b.reduce(ReduceKind::Max, z, &[0]);
        let window = WindowDim { size: 2, stride: 2, ..WindowDim::UNIT };
        let windows = b.reduce_window(ReduceKind::Max, skip, vec![WindowDim::UNIT, WindowDim::UNIT, window, window]);
        let scalar = b.scalar(DType::F32, 0.5);
        let padded = b.pad(skip, scalar, &[0, 0, 1, 0], &[0, 1, 2, 0], &[0, 0, 0, 1]);
        let both = b.concatenate(&[skip, relu], 1);
        let back = b.transpose(both, LAST);
        let dilated = WindowDim { pad_hi: 2, base_dilation: 2, reversed: true, ..same };
        let dx = conv(&mut b, z, v, dilated, true, false);
        let taps = |n| WindowDim { size: n, pad_lo: 1, pad_hi: 1, ..WindowDim::UNIT };
        let space = |b: &mut Builder, x, dy| {
            let dims = ConvDims {
                input_batch: 1,
                input_feature: 0,
                kernel_input_feature: 0,
                kernel_output_feature: 1,
                output_batch: 1,
                output_feature: 0,
                ..ConvDims::channels_first(2)
            };
            b.convolution(x, dy, vec![taps(8), taps(6)], dims, 1, 1)
        };
        let dw = space(&mut b, x, skip);
        b.finish(vec![pooled, columns, windows, padded, both, back, dx, dw, z]).unwrap()
    }

    #[test]
    fn every_choice_computes_the_same() {
        let graph = network();
        let args = arguments(&graph, 1, 2);
        let want = eval(&graph, &args).unwrap();
        let order = live_order(&graph);
        let regions = Regions::new(&graph, &order);
        let model = Model::new(&DeviceModel::default());
        let mut rng = Rng::new(7);
        for round in 0..64 {
            let last: Vec<bool> =
                (0..graph.n_values()).map(|_| round == 1 || (round > 1 && rng.below(2) == 1)).collect();
            let new = emit(&graph, &order, &regions, &model, &last).unwrap();
            crate::verify::check(&new).unwrap();
            assert_eq!(crate::first_difference(&eval(&new, &args).unwrap(), &want), None, "round {round}");
        }
    }

    #[test]
    fn a_chain_has_copies_at_its_ends_only() {
        let mut b = Builder::new("chain");
        let ty = |d: &[i64]| TensorType::new(DType::F32, d);
        let mut x = b.parameter(ty(&[8, 256, 14, 14]), ParamKind::Tensor);
        for _ in 0..4 {
            let w = b.parameter(ty(&[256, 256, 5, 5]), ParamKind::Tensor);
            let window = vec![WindowDim { size: 5, pad_lo: 2, pad_hi: 2, ..WindowDim::UNIT }; 2];
            let y = b.convolution(x, w, window, ConvDims::channels_first(2), 1, 1);
            let zero = b.full_like(y, 0.0);
            x = b.binary(OpKind::Maximum, y, zero);
        }
        let graph = b.finish(vec![x]).unwrap();
        let new = run(&graph, &DeviceModel::default()).unwrap();
        let transposes = new.insts.iter().filter(|i| i.kind == OpKind::Transpose).count();
        let last = |i: &&Inst| matches!(&i.attrs, Attrs::Conv { dims, .. } if dims.input_feature == 3);
        assert_eq!((transposes, new.insts.iter().filter(last).count()), (2, 4));
        // Rows that fill vectors of eight: nothing to gain.
        let narrow = run(&network(), &DeviceModel { lanes: 8, ..DeviceModel::default() }).unwrap();
        assert_eq!(narrow, network());
    }
}
