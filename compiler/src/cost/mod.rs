//! What things cost: a few device numbers and the price of one element of each op.
//!
//! The model only has to rank alternatives (write and read back, or compute twice), so it is small: a kernel takes the
//! larger of its memory time and its compute time, plus a launch.
use crate::ir::{Attrs, Class, Graph, Inst, OpKind};

/// What the cost model knows of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// Starting a kernel and waiting for it.
    pub launch_ns: f64,
    /// Streaming memory traffic, bytes per ns (all cores).
    pub bytes_per_ns: f64,
    /// Simple element operations per ns (all cores).
    pub ops_per_ns: f64,
    /// Floating-point operations of matrix products per ns (all cores); a multiply-add is two.
    pub flops_per_ns: f64,
    /// f32 numbers in a vector.
    pub lanes: i64,
}

impl Default for DeviceModel {
    /// A small x86 server: two cores with 512-bit vectors.
    fn default() -> Self {
        DeviceModel { launch_ns: 500.0, bytes_per_ns: 25.0, ops_per_ns: 60.0, flops_per_ns: 150.0, lanes: 16 }
    }
}

impl DeviceModel {
    /// Time to move `bytes`.
    pub fn memory_ns(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_ns
    }

    /// Time for `ops` simple element operations.
    pub fn compute_ns(&self, ops: f64) -> f64 {
        ops / self.ops_per_ns
    }
}

/// Price of one result element, in simple operations (one add is 1). Exact counts do not matter; the step between cheap
/// and expensive (about 10) does.
pub fn element_ops(kind: OpKind) -> f64 {
    use OpKind as K;
    match kind {
        K::Parameter | K::Constant | K::Reshape | K::OptimizationBarrier => 0.0,
        K::Iota
        | K::Abs
        | K::Negate
        | K::Floor
        | K::Ceil
        | K::RoundEven
        | K::Trunc
        | K::Not
        | K::IsFinite
        | K::Convert
        | K::BitcastConvert
        | K::Add
        | K::Subtract
        | K::Multiply
        | K::Maximum
        | K::Minimum
        | K::And
        | K::Or
        | K::Xor
        | K::ShiftLeft
        | K::ShiftRight
        | K::Compare
        | K::Select => 1.0,
        K::Sign => 2.0,
        K::BroadcastInDim | K::Transpose | K::Slice | K::Pad | K::Concatenate | K::Reverse => 1.0,
        K::DynamicSlice | K::DynamicUpdateSlice => 1.0,
        K::Gather => 4.0,
        K::Divide | K::Sqrt | K::Rsqrt => 5.0,
        K::Remainder | K::NextAfter => 10.0,
        K::Exp | K::Expm1 | K::Log | K::Log1p | K::Logistic => 15.0,
        K::Sin | K::Cos | K::Tanh | K::Erf | K::Erfc | K::RngBits => 20.0,
        K::Tan
        | K::ErfInv
        | K::Asin
        | K::Acos
        | K::Atan
        | K::Atan2
        | K::Sinh
        | K::Cosh
        | K::Asinh
        | K::Acosh
        | K::Atanh
        | K::Power => 40.0,
        K::Lgamma | K::Digamma => 100.0,
        // One combination per operand element; counted there.
        K::Reduce | K::ArgReduce | K::Cumulative | K::ReduceWindow | K::MaxPoolWithIndex => 1.0,
        K::Scatter => 4.0,
        K::Sort | K::TopK => 30.0,
        K::DotGeneral | K::Convolution | K::Attention | K::AttentionBackward | K::Fusion => 0.0,
    }
}

/// An op whose element costs enough that computing it again for a re-read is not obviously free.
pub fn is_expensive(kind: OpKind) -> bool {
    element_ops(kind) >= 10.0
}

/// Totals over a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostAnalysis {
    /// Floating-point and integer operations; a multiply-add is two.
    pub flops: f64,
    /// Elements of transcendental functions.
    pub transcendentals: f64,
    /// Bytes the program's thunks read and write.
    pub bytes: f64,
}

/// Operations of one instruction: (flops, transcendentals). Fusions count their body.
pub fn inst_flops(graph: &Graph, inst: &Inst) -> (f64, f64) {
    let numel = |v: crate::ir::Value| graph.ty(v).numel() as f64;
    let out: f64 = inst.results().map(numel).sum();
    match (inst.kind, &inst.attrs) {
        (OpKind::Fusion, Attrs::Fusion { body, .. }) => body.insts.iter().fold((0.0, 0.0), |(f, t), i| {
            let (df, dt) = inst_flops(body, i);
            (f + df, t + dt)
        }),
        (OpKind::DotGeneral, Attrs::Dot(d)) => {
            let x = graph.ty(inst.operands[0]);
            let k: i64 = d.lhs_contract.iter().map(|&i| x.dims[i as usize]).product();
            (2.0 * out * k as f64, 0.0)
        }
        (OpKind::Convolution, Attrs::Conv { dims, .. }) => {
            let w = graph.ty(inst.operands[1]);
            let per_output = w.numel() / w.dims[dims.kernel_output_feature as usize].max(1);
            (2.0 * out * per_output as f64, 0.0)
        }
        (OpKind::Attention | OpKind::AttentionBackward, _) => {
            let (q, k) = (graph.ty(inst.operands[0]), graph.ty(inst.operands[1]));
            let scores = (q.numel() * k.dims[2]) as f64;
            let products = if inst.kind == OpKind::Attention { 2.0 } else { 5.0 };
            (2.0 * scores * products, scores / q.dims[3].max(1) as f64)
        }
        (kind, _) => match kind.class() {
            Class::Elementwise if element_ops(kind) >= 10.0 => (0.0, out),
            Class::Elementwise => (out, 0.0),
            Class::Reduction => (inst.operands.first().map_or(0.0, |&v| numel(v)), 0.0),
            Class::Leaf
            | Class::Movement
            | Class::Indexed
            | Class::Contraction
            | Class::Library
            | Class::Random
            | Class::Structural => (0.0, 0.0),
        },
    }
}
