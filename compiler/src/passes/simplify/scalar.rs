//! Rules for elementwise ops: identities that hold for every bit pattern, and folding of splat constants.
use super::Simplifier;
use crate::ir::{Attrs, CmpDir, DType, OpKind, TensorType, Value};
use crate::passes::fold::{self, Num};

impl Simplifier<'_> {
    pub(super) fn elementwise(
        &mut self,
        kind: OpKind,
        attrs: &Attrs,
        operands: &[Value],
        ty: &TensorType,
    ) -> Option<Value> {
        if let Some(v) = self.fold_splats(kind, attrs, operands, ty) {
            return Some(v);
        }
        match (kind, operands) {
            (OpKind::Convert, [x]) => self.simplify_convert(*x, ty),
            (OpKind::BitcastConvert, [x]) => {
                if self.b.ty(*x) == ty {
                    return Some(*x);
                }
                let inner = self.defined_by(*x, kind)?;
                Some(self.emit(kind, Attrs::None, &[inner.operands[0]], std::slice::from_ref(ty)))
            }
            // Applied twice they cancel.
            (OpKind::Negate | OpKind::Not, [x]) => self.defined_by(*x, kind).map(|inner| inner.operands[0]),
            // Applied twice they do the same as once.
            (OpKind::Abs | OpKind::Sign | OpKind::Floor | OpKind::Ceil | OpKind::Trunc | OpKind::RoundEven, [x]) => {
                self.defined_by(*x, kind).map(|_| *x)
            }
            (OpKind::Select, [p, x, y]) => self.simplify_select(*p, *x, *y),
            (OpKind::Compare, [x, y]) => match attrs {
                Attrs::Compare(dir) => self.simplify_compare(*dir, *x, *y, ty),
                _ => None,
            },
            (_, [x, y]) => self.simplify_binary(kind, *x, *y, ty),
            _ => None,
        }
    }

    fn fold_splats(&mut self, kind: OpKind, attrs: &Attrs, operands: &[Value], ty: &TensorType) -> Option<Value> {
        let args: Option<Vec<Num>> = operands.iter().map(|&v| self.splat(v)).collect();
        let args = args?;
        let dtype = self.b.dtype(if kind == OpKind::Select { operands[1] } else { operands[0] });
        let cmp = match attrs {
            Attrs::Compare(dir) => Some(*dir),
            _ => None,
        };
        let folded = fold::elementwise(kind, cmp, &args, dtype, ty.dtype)?;
        Some(self.splat_like(ty, folded))
    }

    fn simplify_convert(&mut self, x: Value, ty: &TensorType) -> Option<Value> {
        if self.b.ty(x) == ty {
            return Some(x);
        }
        let inner = self.defined_by(x, OpKind::Convert)?;
        let source = inner.operands[0];
        // The first conversion lost nothing, so that the second may start from its operand.
        if !fold::widens(self.b.dtype(source), self.b.dtype(x)) {
            return None;
        }
        Some(self.emit(OpKind::Convert, Attrs::None, &[source], std::slice::from_ref(ty)))
    }

    fn simplify_select(&mut self, p: Value, x: Value, y: Value) -> Option<Value> {
        if x == y {
            return Some(x);
        }
        if let Some(Num::Int(p)) = self.splat(p) {
            return Some(if p != 0 { x } else { y });
        }
        if let Some(inner) = self.defined_by(p, OpKind::Not) {
            let ty = self.ty(x);
            return Some(self.emit(OpKind::Select, Attrs::None, &[inner.operands[0], y, x], &[ty]));
        }
        if self.b.dtype(x) == DType::Bool
            && let (Some(Num::Int(a)), Some(Num::Int(b))) = (self.splat(x), self.splat(y))
        {
            return Some(if a == b {
                x
            } else if a != 0 {
                p
            } else {
                let ty = self.ty(p);
                self.emit(OpKind::Not, Attrs::None, &[p], &[ty])
            });
        }
        None
    }

    fn simplify_compare(&mut self, dir: CmpDir, x: Value, y: Value, ty: &TensorType) -> Option<Value> {
        let dtype = self.b.dtype(x);
        if x == y && !dtype.is_float() {
            return Some(self.bool_splat(&ty.dims, matches!(dir, CmpDir::Eq | CmpDir::Le | CmpDir::Ge)));
        }
        if dtype == DType::Bool {
            for (a, b) in [(x, y), (y, x)] {
                if let (Some(Num::Int(c)), CmpDir::Eq | CmpDir::Ne) = (self.splat(b), dir) {
                    return Some(if (c != 0) == (dir == CmpDir::Eq) {
                        a
                    } else {
                        self.emit(OpKind::Not, Attrs::None, &[a], std::slice::from_ref(ty))
                    });
                }
            }
        }
        // An index is in 0..n whatever it is compared with.
        if let (Some(d), Some(Num::Int(c))) = (self.iota_dim(x), self.splat(y)) {
            let last = i128::from(ty.dims[d]) - 1;
            let (low, high) = (fold::holds(dir, 0, c), fold::holds(dir, last, c));
            let monotone = !matches!(dir, CmpDir::Eq | CmpDir::Ne);
            if monotone && low == high {
                return Some(self.bool_splat(&ty.dims, low));
            }
            if !monotone && (c < 0 || c > last) {
                return Some(self.bool_splat(&ty.dims, dir == CmpDir::Ne));
            }
        }
        None
    }

    fn simplify_binary(&mut self, kind: OpKind, x: Value, y: Value, ty: &TensorType) -> Option<Value> {
        use OpKind as K;
        let (cx, cy) = (self.splat(x), self.splat(y));
        let is = |c: Option<Num>, n: i128| c == Some(Num::Int(n));
        let is_f = |c: Option<Num>, f: f64| matches!(c, Some(Num::Float(g)) if g.to_bits() == f.to_bits());
        let boolean = ty.dtype == DType::Bool;
        match kind {
            K::Add if is(cy, 0) || is_f(cy, -0.0) => Some(x),
            K::Add if is(cx, 0) || is_f(cx, -0.0) => Some(y),
            K::Subtract if is(cy, 0) || is_f(cy, 0.0) => Some(x),
            K::Subtract if x == y && !ty.dtype.is_float() && !boolean => Some(self.splat_like(ty, Num::Int(0))),
            K::Multiply if is(cy, 1) || is_f(cy, 1.0) => Some(x),
            K::Multiply if is(cx, 1) || is_f(cx, 1.0) => Some(y),
            K::Multiply if is(cy, 0) => Some(y),
            K::Multiply if is(cx, 0) => Some(x),
            K::Divide if is(cy, 1) || is_f(cy, 1.0) => Some(x),
            K::Divide => {
                let Some(Num::Float(c)) = cy else { return None };
                let inverse = exact_inverse(ty.dtype, c)?;
                let inverse = self.splat_like(ty, Num::Float(inverse));
                Some(self.binary(K::Multiply, x, inverse))
            }
            // PyTorch computes these powers as products too.
            K::Power if is_f(cy, 1.0) || is(cy, 1) => Some(x),
            K::Power if is_f(cy, 2.0) || is(cy, 2) => Some(self.binary(K::Multiply, x, x)),
            K::Power if is_f(cy, 3.0) || is(cy, 3) => {
                let square = self.binary(K::Multiply, x, x);
                Some(self.binary(K::Multiply, square, x))
            }
            K::Maximum | K::Minimum | K::And | K::Or if x == y => Some(x),
            K::And | K::Or => {
                let zeros = |c: Option<Num>| c == Some(Num::Int(0));
                // All bits set; unsigned types hold them as their largest value.
                let ones = |c: Option<Num>| match c {
                    Some(n @ Num::Int(_)) => {
                        n.encode(ty.dtype) == Num::Int(if boolean { 1 } else { -1 }).encode(ty.dtype)
                    }
                    _ => false,
                };
                let (neutral, absorbing): (&dyn Fn(_) -> bool, &dyn Fn(_) -> bool) =
                    if kind == K::And { (&ones, &zeros) } else { (&zeros, &ones) };
                if neutral(cy) || absorbing(cx) {
                    Some(x)
                } else if neutral(cx) || absorbing(cy) {
                    Some(y)
                } else {
                    None
                }
            }
            K::Xor if is(cy, 0) => Some(x),
            K::Xor if is(cx, 0) => Some(y),
            K::ShiftLeft | K::ShiftRight if is(cy, 0) => Some(x),
            _ => None,
        }
    }
}

/// 1 / c where multiplying by it gives the same bits as dividing by c: c is a power of two and so far from the ends of
/// the exponent range that neither it nor its inverse is subnormal.
fn exact_inverse(dtype: DType, c: f64) -> Option<f64> {
    let exponent = match dtype {
        DType::F16 => 14,
        DType::BF16 | DType::F32 => 126,
        DType::F64 => 1022,
        _ => return None,
    };
    let bits = c.to_bits();
    let power = (bits >> 52 & 0x7ff) as i64 - 1023;
    let mantissa_zero = bits & ((1 << 52) - 1) == 0;
    (mantissa_zero && power.abs() <= exponent).then(|| 1.0 / c)
}
