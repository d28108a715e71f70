//! Functions that neither std nor `libm` has.
use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// Derivative of ln |gamma(x)|.
///
/// Reflection below 0, recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.7, 6.3.5, 6.3.18).
/// As PyTorch has it, digamma(±0) is -+inf and negative integers give NaN.
pub(super) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.trunc() {
            return f64::NAN;
        }
        // The tangent has period pi, and the fraction is exact where pi * x is not.
        return digamma(1.0 - x) - PI / libm::tan(PI * x.fract());
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    if x.is_infinite() {
        return x;
    }
    // B_2k / 2k.
    const SERIES: [f64; 7] =
        [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0];
    let z = 1.0 / (x * x);
    let tail = SERIES.iter().rev().fold(0.0, |acc, &c| (acc + c) * z);
    sum + libm::log(x) - 0.5 / x - tail
}

/// Inverse of erf: a rational first guess (Giles' and Moro's coefficients as MATLAB and PyTorch use them), then
/// Newton steps on erf, or on erfc where erf is close to 1.
pub(super) fn erf_inv(y: f64) -> f64 {
    let a = y.abs();
    if a.is_nan() || a > 1.0 {
        return f64::NAN;
    }
    if a == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    if a == 0.0 {
        return y;
    }
    let polynomial = |c: &[f64], z: f64| c.iter().rev().fold(0.0, |acc, &c| acc * z + c);
    let mut x = if a <= 0.7 {
        let z = a * a;
        let num = polynomial(&[0.886226899, -1.645349621, 0.914624893, -0.140543331], z);
        a * num / polynomial(&[1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801], z)
    } else {
        let z = libm::sqrt(-libm::log((1.0 - a) / 2.0));
        let num = polynomial(&[-1.970840454, -1.624906493, 3.429567803, 1.641345311], z);
        num / polynomial(&[1.0, 3.543889200, 1.637067800], z)
    };
    for _ in 0..3 {
        let residual = if a <= 0.5 { libm::erf(x) - a } else { (1.0 - a) - libm::erfc(x) };
        x -= residual / (FRAC_2_SQRT_PI * libm::exp(-x * x));
    }
    x.copysign(y)
}

/// ln(e^a + e^b).
pub(super) fn log_add_exp(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let (hi, lo) = if a >= b { (a, b) } else { (b, a) };
    // Equal infinities: their difference is no number.
    if hi.is_infinite() { hi } else { hi + libm::log1p(libm::exp(lo - hi)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 4e-15 * want.abs().max(1.0), "{got} is not {want}");
    }

    #[test]
    fn digamma_values() {
        const EULER: f64 = 0.577_215_664_901_532_9;
        close(digamma(1.0), -EULER);
        close(digamma(2.0), 1.0 - EULER);
        close(digamma(0.5), -EULER - 2.0 * std::f64::consts::LN_2);
        close(digamma(-0.5), 2.0 - EULER - 2.0 * std::f64::consts::LN_2);
        close(digamma(100.0), 4.600_161_852_738_087);
        assert_eq!((digamma(0.0), digamma(-0.0)), (f64::NEG_INFINITY, f64::INFINITY));
        assert!(digamma(-3.0).is_nan());
        assert_eq!(digamma(f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn erf_inv_inverts() {
        for i in 1..200 {
            let y = f64::from(i) / 200.0;
            let x = erf_inv(y);
            close(libm::erf(x), y);
            assert_eq!(erf_inv(-y), -x);
        }
        // Close to 1, by the complement: erfc(x) of the result must be 1 - y.
        for k in 1..50 {
            let y = 1.0 - 0.5f64.powi(k);
            let x = erf_inv(y);
            assert!((libm::erfc(x) / (1.0 - y) - 1.0).abs() < 1e-13, "{y} {x}");
        }
        assert_eq!(erf_inv(1.0), f64::INFINITY);
        assert!(erf_inv(1.5).is_nan());
    }
}
