//! Scalar expressions: what one point of a kernel's iteration space computes.
use super::{Affine, Atom, Indices};
use crate::ir::{CmpDir, DType, OpKind};
use ahash::AHashMap;
use smallvec::SmallVec;

/// An expression, by its place in [`Exprs`]. Operands always have smaller numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(pub u32);

/// Memory an expression reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Tensor argument number n of the kernel (inputs, then outputs).
    Arg(u32),
    /// Literal number n of [`super::Kernel::literals`].
    Literal(u32),
}

/// What an expression computes from its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExprOp {
    /// The raw little-endian bits of one element.
    Const(u64),
    /// Runtime scalar number n of the kernel.
    Scalar(u32),
    /// Element `offset` of `source`; 0 without touching memory where the guard (argument 0, if any) is false.
    Load { source: Source, offset: Affine },
    /// The index itself (`i64`).
    Index(Affine),
    /// `lo <= index < hi`.
    InRange { index: Affine, lo: i64, hi: i64 },
    /// Argument 0 clamped into `0..size`; the kernel reports a value that was not in range as a bad index
    /// (unless argument 1, a guard, is false).
    Checked { size: i64 },
    /// An elementwise op of the IR on arguments of the op's operand types.
    Op(OpKind),
    /// `compare`.
    Compare(CmpDir),
    /// Philox bits: arguments seed and offset (`i64`), at this element.
    Rng { index: Affine, word: u32 },
    /// Result of reduction number n of the kernel.
    Reduced(u32),
}

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr {
    pub op: ExprOp,
    pub dtype: DType,
    pub args: SmallVec<[ExprId; 3]>,
}

impl Expr {
    /// The index expressions it contains.
    pub fn index(&self) -> Option<&Affine> {
        match &self.op {
            ExprOp::Load { offset: index, .. }
            | ExprOp::Index(index)
            | ExprOp::InRange { index, .. }
            | ExprOp::Rng { index, .. } => Some(index),
            ExprOp::Const(_)
            | ExprOp::Scalar(_)
            | ExprOp::Checked { .. }
            | ExprOp::Op(_)
            | ExprOp::Compare(_)
            | ExprOp::Reduced(_) => None,
        }
    }
}

/// The expressions of one kernel; equal ones are one.
#[derive(Clone, Debug, Default)]
pub struct Exprs {
    list: Vec<Expr>,
    known: AHashMap<Expr, ExprId>,
}

impl Exprs {
    pub fn get(&self, id: ExprId) -> &Expr {
        &self.list[id.0 as usize]
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn add(&mut self, op: ExprOp, dtype: DType, args: &[ExprId]) -> ExprId {
        let expr = Expr { op, dtype, args: SmallVec::from_slice(args) };
        if let Some(&id) = self.known.get(&expr) {
            return id;
        }
        let id = ExprId(self.list.len() as u32);
        self.known.insert(expr.clone(), id);
        self.list.push(expr);
        id
    }

    /// Calls `visit` once for every expression that `roots` need, operands first.
    pub fn walk(&self, ix: &Indices, roots: &[ExprId], visit: &mut dyn FnMut(ExprId)) {
        let mut seen = vec![false; self.list.len()];
        for &r in roots {
            self.mark(ix, r, &mut seen);
        }
        for (i, _) in seen.iter().enumerate().filter(|(_, s)| **s) {
            visit(ExprId(i as u32));
        }
    }

    fn mark(&self, ix: &Indices, id: ExprId, seen: &mut [bool]) {
        if std::mem::replace(&mut seen[id.0 as usize], true) {
            return;
        }
        let e = self.get(id);
        for &a in &e.args {
            self.mark(ix, a, seen);
        }
        if let Some(a) = e.index() {
            self.mark_index(ix, a, seen);
        }
    }

    fn mark_index(&self, ix: &Indices, a: &Affine, seen: &mut [bool]) {
        for &(atom, _) in &a.terms {
            match ix.atom(atom) {
                Atom::Var(_) => {}
                Atom::Div(inner, _) | Atom::Mod(inner, _) => self.mark_index(ix, inner, seen),
                Atom::Value(v) => self.mark(ix, *v, seen),
            }
        }
    }
}
