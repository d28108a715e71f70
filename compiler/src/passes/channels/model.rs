//! What a convolution takes in each order of dimensions: rates of the CPU's kernels, measured with `library_bench conv`
//! (figures in docs/compiler.md).
use crate::cost::DeviceModel;
use crate::ir::{Attrs, DType, Graph, Inst};

/// Share of the multiply-add peak that products on packed operands reach.
const PRODUCT: f64 = 0.95;
/// Nanoseconds (of one core) for a number of a patch that is gathered from channels-last images, and what that is in the
/// phases of a dilated input and in weight gradients.
const GATHER: f64 = 0.25;
const GATHER_PHASES: f64 = 1.4;
const GATHER_GRADIENT: f64 = 1.6;
/// The same from channels-first images, whose neighbours are not contiguous.
const GATHER_PLANES: f64 = 0.8;
/// 3×3 windows of stride 1 (Winograd): multiply-adds (of a vector) that it costs to transform a channel of a tile of four
/// outputs, in channels first, which are turned, and in channels last.
const TRANSFORM_FIRST: f64 = 110.0;
const TRANSFORM_LAST: f64 = 75.0;
/// The same for the weight of two features, once for all tiles; a gradient has none. (Kept ones cost nothing, others four
/// times this.)
const TRANSFORM_WEIGHTS: f64 = 80.0;
/// Fewest features of either side.
const TRANSFORM_FEATURES: i64 = 12;
/// Copies between the orders move bytes at this share of the streaming rate.
const COPY: f64 = 0.35;
/// Gain that pays for the risk that the model is wrong: of the time, and nanoseconds.
const WORTH: f64 = 0.04;
const WORTH_NS: f64 = 30_000.0;

/// A convolution in numbers.
pub(super) struct Conv {
    flops: f64,
    /// Numbers that one number of a patch is multiplied with.
    uses: f64,
    /// Input features of a group.
    features: i64,
    groups: i64,
    taps: i64,
    /// Positions in a row that a kernel takes side by side, and in an image.
    width: i64,
    positions: i64,
    strided: bool,
    dilated: bool,
    gradient: bool,
    /// 3×3 windows of stride 1: outputs for each output of whole tiles.
    tiled: Option<f64>,
    bytes: [u64; 2],
}

impl Conv {
    pub(super) fn new(graph: &Graph, inst: &Inst, gradient: bool) -> Conv {
        let (x, w, out) = (graph.ty(inst.operands[0]), graph.ty(inst.operands[1]), graph.ty(inst.result()));
        let flops = crate::cost::inst_flops(graph, inst).0;
        let Attrs::Conv { window, dims: d, feature_groups, .. } = &inst.attrs else {
            return Conv {
                flops,
                uses: 1.0,
                features: 1,
                groups: 1,
                taps: 1,
                width: 1,
                positions: 1,
                strided: false,
                dilated: false,
                gradient,
                tiled: None,
                bytes: [0; 2],
            };
        };
        let at = |dims: &[i64], i: i64| dims[i as usize];
        let go = at(&out.dims, d.output_feature) / feature_groups.max(&1);
        let outputs: Vec<i64> = d.output_spatial.iter().map(|&s| at(&out.dims, s)).collect();
        let sizes: Vec<i64> = window.iter().map(|w| w.size).collect();
        // Of a weight gradient, the window is the gradient's image and the result's positions are the taps.
        let (rows, taps) = if gradient { (sizes, outputs) } else { (outputs, sizes) };
        let dilation = window.iter().map(|w| w.base_dilation).max().unwrap_or(1);
        let features =
            if gradient { at(&x.dims, d.input_batch) } else { at(&x.dims, d.input_feature) / feature_groups };
        let strided = window.iter().any(|w| w.stride > 1 || w.window_dilation > 1);
        let tiled = taps == [3, 3]
            && !strided
            && dilation == 1
            && rows.iter().all(|&n| n >= 3)
            && features.min(go) >= TRANSFORM_FEATURES
            && out.dtype != DType::F64
            && !(gradient && *feature_groups > 1);
        let filled = rows.iter().map(|&n| n as f64 / ((n + 1) / 2 * 2) as f64).product::<f64>();
        Conv {
            flops,
            uses: go as f64,
            features,
            groups: *feature_groups,
            taps: taps.iter().product(),
            width: rows.last().map_or(1, |w| (w + dilation - 1) / dilation),
            positions: rows.iter().product(),
            strided,
            dilated: dilation > 1,
            gradient,
            tiled: tiled.then_some(filled),
            bytes: if gradient { [x.bytes(), w.bytes()] } else { [x.bytes(), out.bytes()] },
        }
    }

    /// Share of the peak (of a direct sum's multiply-adds; more than one) by Winograd's form, if that is worth it.
    fn winograd(&self, transform: f64, lanes: i64) -> Option<f64> {
        let (i, o) = (self.features as f64, self.uses);
        // Vectors run over features.
        let full = |n: f64| (n / lanes as f64).ceil() * lanes as f64;
        let tiles = self.flops / (72.0 * i * o * self.groups as f64);
        let weights = if self.gradient { 0.0 } else { TRANSFORM_WEIGHTS * i * o / tiles };
        let domain = 16.0 * i * full(o) / PRODUCT + transform * (full(i) + full(o)) + weights;
        let share = self.tiled? * 36.0 * i * o / domain * if self.gradient { 0.85 } else { 1.0 };
        (share > 1.0).then_some(share)
    }

    /// Share of the peak, in channels first.
    fn first(&self, lanes: i64, peak: f64) -> f64 {
        if let Some(share) = self.winograd(TRANSFORM_FIRST, lanes) {
            return share;
        }
        let vectors = if self.width > lanes / 2 { lanes } else { lanes / 2 };
        let full = self.width as f64 / ((self.width + vectors - 1) / vectors * vectors) as f64;
        if self.gradient {
            // Partial vectors are masked on both sides.
            let masked = if self.width % vectors == 0 { 1.0 } else { 0.85 };
            let short = if self.width < 8 { 0.6 } else { 1.0 };
            return 0.85 * full * masked * short * if self.strided { 0.8 } else { 1.0 };
        }
        let wide = (self.positions + lanes - 1) / lanes * lanes;
        if self.taps == 1 && !self.strided && !self.dilated && 8 * self.positions >= 7 * wide {
            return 0.83 * self.positions as f64 / wide as f64;
        }
        let narrow = if vectors < lanes { 0.55 } else { 1.0 };
        let read = if self.strided || self.dilated { 0.8 } else { 0.92 };
        let short = if self.taps == 1 { 0.75 } else { 1.0 };
        (read * full * narrow * short).max(gathered(GATHER_PLANES, self.uses, peak))
    }

    /// Share of the peak, in channels last.
    fn last(&self, lanes: i64, peak: f64) -> f64 {
        if let Some(share) = self.winograd(TRANSFORM_LAST, lanes) {
            return share;
        }
        if self.groups > 1 || self.features < 8 {
            return 0.05;
        }
        let gather = match (self.gradient, self.dilated) {
            (true, _) => GATHER_GRADIENT,
            (_, true) => GATHER_PHASES,
            _ => GATHER,
        };
        gathered(gather, self.uses, peak)
    }
}

/// Share of the peak (flops per nanosecond of one core) of a product whose patches take `ns` a number.
fn gathered(ns: f64, uses: f64, peak: f64) -> f64 {
    1.0 / (1.0 / PRODUCT + ns * peak / (2.0 * uses.max(1.0)))
}

/// The device, in numbers.
pub(super) struct Model {
    lanes: i64,
    /// Flops per nanosecond of one core, and of all.
    peak: f64,
    all: f64,
    bytes_per_ns: f64,
}

/// Flops per nanosecond of one core for each lane of its vectors.
const PER_LANE: f64 = 7.0;

impl Model {
    pub(super) fn new(device: &DeviceModel) -> Model {
        let lanes = device.lanes.max(2);
        Model { lanes, peak: PER_LANE * lanes as f64, all: device.flops_per_ns, bytes_per_ns: device.bytes_per_ns }
    }

    /// Time to copy so many bytes from one order to the other.
    pub(super) fn copy_ns(&self, bytes: u64) -> f64 {
        2.0 * bytes as f64 / (self.bytes_per_ns * COPY)
    }

    /// Nanoseconds of a convolution channels first, as recorded.
    pub(super) fn first_ns(&self, c: &Conv) -> f64 {
        c.flops / (self.all * c.first(self.lanes, self.peak))
    }

    /// Nanoseconds of a convolution, and whether it runs channels last; `last`: the orders of its two images.
    pub(super) fn ns(&self, c: &Conv, last: [bool; 2]) -> (f64, bool) {
        let (first, in_last) = (self.first_ns(c), c.flops / (self.all * c.last(self.lanes, self.peak)));
        let copies = |to: bool| (0..2).filter(|&i| last[i] != to).map(|i| self.copy_ns(c.bytes[i])).sum::<f64>();
        let (a, b) = (first + copies(false), in_last + copies(true));
        if b < a { (b, true) } else { (a, false) }
    }

    /// Whether the change is worth it.
    pub(super) fn is_worth_it(&self, from: f64, to: f64) -> bool {
        from - to > WORTH_NS && from - to > WORTH * from
    }
}
