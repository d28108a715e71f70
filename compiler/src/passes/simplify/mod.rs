//! `simplify`: local rewrites that are exact for every input.
//!
//! ```text
//! %a = reshape %x : 6x4         =>    %c = multiply %x, %x
//! %b = reshape %a : 24                return %c
//! %c = multiply %b, %b
//! return %c                           (where %x is 24 already)
//! ```
//! One forward walk: an instruction is emitted through [`Simplifier::emit`], whose rules look at the already simplified
//! definitions of its operands and may emit others in turn. So the walk reaches what a fix-point of local rules would,
//! except where a rule looks at users.
//!
//! Safety: a rule replaces a value by one with the same bits, NaN payloads aside (sums reordered by `reduce` of `reduce`
//! stay within the freedom reductions have anyway). Nothing looks through `optimization_barrier`.
mod indexed;
mod movement;
mod reduce;
mod scalar;

use super::fold::{self, Num};
use super::rewriter::{Rewriter, live_order};
use crate::ir::{Attrs, Builder, Class, DType, Dims, Graph, Inst, Literal, OpKind, TensorType, TypeError, Value};
use std::sync::Arc;

pub(super) fn run(graph: &Graph) -> Result<Graph, TypeError> {
    let mut r = Rewriter::new(graph);
    for id in live_order(graph) {
        let inst = graph.inst(id);
        let operands = r.operands(inst);
        let types = r.types(inst);
        r.b.loc = inst.loc;
        let first = Simplifier { b: &mut r.b }.emit(inst.kind, inst.attrs.clone(), &operands, &types);
        r.set_results(inst, first);
    }
    // What the rules bypassed is dead now.
    super::dce::run(&r.finish()?)
}

/// Emission with rules. Also used by other passes, so that what they build is simple from the start.
pub(crate) struct Simplifier<'b> {
    pub(crate) b: &'b mut Builder,
}

impl Simplifier<'_> {
    /// The value of `kind` applied to `operands` (first of them, for several results), simplified.
    /// `types` are the result types.
    pub(crate) fn emit(&mut self, kind: OpKind, attrs: Attrs, operands: &[Value], types: &[TensorType]) -> Value {
        let simpler = match kind.class() {
            Class::Elementwise => self.elementwise(kind, &attrs, operands, &types[0]),
            Class::Movement => self.movement(kind, &attrs, operands, &types[0]),
            Class::Indexed => self.indexed(kind, &attrs, operands, &types[0]),
            Class::Reduction if kind == OpKind::Reduce => self.reduction(&attrs, operands),
            Class::Library if kind == OpKind::Scatter => self.simplify_scatter(&attrs, operands, &types[0]),
            Class::Leaf
            | Class::Reduction
            | Class::Contraction
            | Class::Library
            | Class::Random
            | Class::Structural => None,
        };
        simpler.unwrap_or_else(|| self.b.op(kind, attrs, operands, types))
    }

    fn def(&self, v: Value) -> &Inst {
        self.b.graph().def_inst(v)
    }

    fn ty(&self, v: Value) -> TensorType {
        self.b.ty(v).clone()
    }

    /// The instruction that defines `v`, if it is a `kind`.
    fn defined_by(&self, v: Value, kind: OpKind) -> Option<Inst> {
        let inst = self.def(v);
        (inst.kind == kind).then(|| inst.clone())
    }

    fn constant(&self, v: Value) -> Option<Arc<Literal>> {
        match &self.def(v).attrs {
            Attrs::Literal(l) => Some(l.clone()),
            _ => None,
        }
    }

    /// The repeated element, if `v` is a constant with only one.
    pub(crate) fn splat(&self, v: Value) -> Option<Num> {
        match &self.def(v).attrs {
            Attrs::Literal(l) => fold::splat_of(l),
            _ => None,
        }
    }

    fn splat_like(&mut self, ty: &TensorType, value: Num) -> Value {
        self.b.literal(fold::splat(ty, value))
    }

    /// The dimension along which `v` counts, if it is an `iota`.
    fn iota_dim(&self, v: Value) -> Option<usize> {
        match (self.def(v).kind, &self.def(v).attrs) {
            (OpKind::Iota, Attrs::Dim(d)) => Some(*d as usize),
            _ => None,
        }
    }

    pub(crate) fn reshape(&mut self, x: Value, dims: &[i64]) -> Value {
        let ty = self.b.ty(x).with_dims(dims);
        self.emit(OpKind::Reshape, Attrs::None, &[x], &[ty])
    }

    pub(crate) fn transpose(&mut self, x: Value, perm: &[i64]) -> Value {
        let dims: Dims = perm.iter().map(|&p| self.b.ty(x).dims[p as usize]).collect();
        let ty = self.b.ty(x).with_dims(dims);
        self.emit(OpKind::Transpose, Attrs::Dims(Dims::from_slice(perm)), &[x], &[ty])
    }

    pub(crate) fn broadcast(&mut self, x: Value, to: &[i64], dims: &[i64]) -> Value {
        let ty = self.b.ty(x).with_dims(to);
        self.emit(OpKind::BroadcastInDim, Attrs::Dims(Dims::from_slice(dims)), &[x], &[ty])
    }

    pub(crate) fn slice(&mut self, x: Value, start: Dims, limit: Dims, stride: Dims) -> Value {
        let dims: Dims = (0..start.len()).map(|i| (limit[i] - start[i] + stride[i] - 1) / stride[i]).collect();
        let ty = self.b.ty(x).with_dims(dims);
        self.emit(OpKind::Slice, Attrs::Slice { start, limit, stride }, &[x], &[ty])
    }

    pub(crate) fn concatenate(&mut self, parts: &[Value], dim: usize) -> Value {
        let mut ty = self.ty(parts[0]);
        ty.dims[dim] = parts.iter().map(|&p| self.b.ty(p).dims[dim]).sum();
        self.emit(OpKind::Concatenate, Attrs::Dim(dim as i64), parts, &[ty])
    }

    fn binary(&mut self, kind: OpKind, x: Value, y: Value) -> Value {
        let ty = self.ty(x);
        self.emit(kind, Attrs::None, &[x, y], &[ty])
    }

    fn bool_splat(&mut self, dims: &[i64], value: bool) -> Value {
        self.splat_like(&TensorType::new(DType::Bool, dims), Num::Int(value.into()))
    }
}
