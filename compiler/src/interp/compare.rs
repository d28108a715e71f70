//! Comparing tensors that were computed in different ways.
use super::Tensor;

/// Difference allowed between two floats; other elements must be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

/// Says how `got` differs from `want` by more than `tolerance`; `None` if it does not.
///
/// NaN equals NaN, infinities only equal themselves, and the zeros equal each other.
pub fn mismatch(got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Option<String> {
    if got.ty != want.ty {
        return Some(format!("{} is not {}", got.ty, want.ty));
    }
    for (i, (g, w)) in got.nums().zip(want.nums()).enumerate() {
        if !got.ty.dtype.is_float() {
            if g != w {
                return Some(format!("element {i}: {} is not {}", g.to_i128(), w.to_i128()));
            }
            continue;
        }
        let (g, w) = (g.to_f64(), w.to_f64());
        let near = w.is_finite() && (g - w).abs() <= tolerance.absolute + tolerance.relative * w.abs();
        if g != w && !(g.is_nan() && w.is_nan()) && !near {
            return Some(format!("element {i}: {g:?} is not {w:?}"));
        }
    }
    None
}
