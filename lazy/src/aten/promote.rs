//! PyTorch's type promotion (`c10::promoteTypes`, `at::native::result_type`).
use crate::Cx;
use crate::words::{Arg, DataKind};
use rsx_compiler::ir::DType;

/// How strongly an operand takes part in type promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weakness {
    /// A tensor with dimensions.
    Dimensioned,
    /// A 0-d tensor.
    ZeroDim,
    /// A Python number.
    Number,
}

/// Element type and weakness of an argument in type promotion; `None` for what takes no part.
pub fn promotion_class(arg: &Arg) -> Option<(DType, Weakness)> {
    Some(match arg {
        Arg::Tensor(t) => (
            t.dtype.dtype()?,
            match (t.wrapped, t.sizes.is_empty()) {
                (true, _) => Weakness::Number,
                (false, true) => Weakness::ZeroDim,
                (false, false) => Weakness::Dimensioned,
            },
        ),
        Arg::CpuScalar { dtype, wrapped, .. } => {
            (dtype.dtype()?, if *wrapped { Weakness::Number } else { Weakness::ZeroDim })
        }
        Arg::Int(_) | Arg::Data { kind: DataKind::Int, .. } => (DType::I64, Weakness::Number),
        Arg::Double(_) | Arg::Data { kind: DataKind::Double, .. } => (DType::F64, Weakness::Number),
        Arg::Bool(_) | Arg::Data { kind: DataKind::Bool, .. } => (DType::Bool, Weakness::Number),
        _ => return None,
    })
}

/// `c10::promoteTypes`: the smallest type that holds both, floats before integers before bool.
pub fn promote(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    match (a.is_float(), b.is_float()) {
        (true, false) => return a,
        (false, true) => return b,
        (true, true) => {
            return if a.size() == b.size() {
                F32
            } else if a.size() > b.size() {
                a
            } else {
                b
            };
        }
        (false, false) => {}
    }
    match (a, b) {
        (Bool, x) | (x, Bool) => x,
        // An unsigned type needs the next wider signed one.
        (U8, I8) | (I8, U8) => I16,
        _ if a.is_signed() == b.is_signed() => {
            if a.size() > b.size() {
                a
            } else {
                b
            }
        }
        _ => {
            let (u, s) = if a.is_signed() { (b, a) } else { (a, b) };
            match u.size().max(s.size() / 2) {
                1 => {
                    if s.size() > 1 {
                        s
                    } else {
                        I16
                    }
                }
                2 => {
                    if s.size() > 2 {
                        s
                    } else {
                        I32
                    }
                }
                _ => I64,
            }
        }
    }
}

/// `at::native::result_type` of operands by class. `default_float` is what Python floats are.
pub fn result_type(operands: impl IntoIterator<Item = (DType, Weakness)>, default_float: DType) -> DType {
    let mut best: [Option<DType>; 3] = [None; 3];
    for (d, w) in operands {
        let d = if w == Weakness::Number && d.is_float() { default_float } else { d };
        let slot = &mut best[w as usize];
        *slot = Some(slot.map_or(d, |p| promote(p, d)));
    }
    let combine = |higher: Option<DType>, lower: Option<DType>| match (higher, lower) {
        (Some(h), Some(l)) if !h.is_float() && (h == DType::Bool || l.is_float()) => Some(promote(h, l)),
        (h, l) => h.or(l),
    };
    let [dimensioned, zero_dim, number] = best;
    combine(dimensioned, combine(zero_dim, number)).unwrap_or(default_float)
}

impl Cx<'_> {
    /// Common type of the arguments in `indices` (those that are `None` take no part).
    pub fn common(&self, indices: &[usize]) -> DType {
        // The default float is not recorded; a predicted f64 result of integers and a Python float gives it away.
        let default = match self.result_dtype() {
            Some(DType::F64) => DType::F64,
            _ => DType::F32,
        };
        let classes = || indices.iter().filter_map(|&i| promotion_class(self.arg(i)));
        let with_default = result_type(classes(), default);
        let only_numbers_float = classes().all(|(d, w)| w == Weakness::Number || !d.is_float());
        if only_numbers_float { with_default } else { result_type(classes(), DType::F32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    use Weakness::*;

    #[test]
    fn promotion_table() {
        for (a, b, want) in [
            (U8, I8, I16),
            (U8, I16, I16),
            (I32, I64, I64),
            (Bool, U8, U8),
            (I64, F16, F16),
            (F16, BF16, F32),
            (BF16, F32, F32),
            (F32, F64, F64),
        ] {
            assert_eq!(promote(a, b), want, "{a} {b}");
            assert_eq!(promote(b, a), want, "{b} {a}");
        }
    }

    #[test]
    fn categories() {
        for (operands, want) in [
            (vec![(F32, Dimensioned), (F64, ZeroDim)], F32),
            (vec![(I64, Dimensioned), (F64, Number)], F32),
            (vec![(I64, Dimensioned), (F64, ZeroDim)], F64),
            (vec![(Bool, Dimensioned), (I64, Number)], I64),
            (vec![(U8, Dimensioned), (I64, Number)], U8),
            (vec![(BF16, Dimensioned), (F32, ZeroDim), (F64, Number)], BF16),
            (vec![(F16, ZeroDim), (F64, Number)], F16),
            (vec![(I32, Dimensioned), (I64, ZeroDim)], I32),
        ] {
            assert_eq!(result_type(operands.clone(), F32), want, "{operands:?}");
        }
    }
}
