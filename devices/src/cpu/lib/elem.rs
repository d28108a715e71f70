//! Element types of the library and their scalar arithmetic.

use std::cmp::Ordering;

/// The element type of a view. The order is the promotion order within each class.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Elem {
    Bool,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl Elem {
    pub const ALL: [Elem; 13] = [
        Elem::Bool,
        Elem::U8,
        Elem::I8,
        Elem::I16,
        Elem::U16,
        Elem::I32,
        Elem::U32,
        Elem::I64,
        Elem::U64,
        Elem::F16,
        Elem::BF16,
        Elem::F32,
        Elem::F64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Elem::Bool | Elem::U8 | Elem::I8 => 1,
            Elem::I16 | Elem::U16 | Elem::F16 | Elem::BF16 => 2,
            Elem::I32 | Elem::U32 | Elem::F32 => 4,
            Elem::I64 | Elem::U64 | Elem::F64 => 8,
        }
    }

    pub const fn is_float(self) -> bool {
        matches!(self, Elem::F16 | Elem::BF16 | Elem::F32 | Elem::F64)
    }

    /// Reads one element as f64 (64-bit integers are rounded).
    ///
    /// # Safety
    /// `p` is valid for a read of one element; it need not be aligned.
    pub unsafe fn load_f64(self, p: *const u8) -> f64 {
        // SAFETY: the caller's promise.
        crate::dispatch_elem!(self, T => unsafe { p.cast::<T>().read_unaligned() }.to_f64())
    }

    /// Reads one element as i64 (floats truncate as PyTorch's `to(int64)`).
    ///
    /// # Safety
    /// As [`Elem::load_f64`].
    pub unsafe fn load_i64(self, p: *const u8) -> i64 {
        // SAFETY: the caller's promise.
        crate::dispatch_elem!(self, T => unsafe { p.cast::<T>().read_unaligned() }.to_i64())
    }

    /// Writes `v` converted to this type.
    ///
    /// # Safety
    /// `p` is valid for a write of one element; it need not be aligned.
    pub unsafe fn store_f64(self, p: *mut u8, v: f64) {
        // SAFETY: the caller's promise.
        crate::dispatch_elem!(self, T => unsafe { p.cast::<T>().write_unaligned(T::from_f64(v)) })
    }

    /// Writes `v` converted to this type (integers wrap).
    ///
    /// # Safety
    /// As [`Elem::store_f64`].
    pub unsafe fn store_i64(self, p: *mut u8, v: i64) {
        // SAFETY: the caller's promise.
        crate::dispatch_elem!(self, T => unsafe { p.cast::<T>().write_unaligned(T::from_i64(v)) })
    }
}

/// Runs `$body` with `$T` bound to the Rust type of the element type `$e`.
#[macro_export]
macro_rules! dispatch_elem {
    ($e:expr, $T:ident => $body:expr) => {{
        use $crate::cpu::lib::elem as elem_types;
        match $e {
            elem_types::Elem::Bool => {
                type $T = elem_types::Bool;
                $body
            }
            elem_types::Elem::U8 => {
                type $T = u8;
                $body
            }
            elem_types::Elem::I8 => {
                type $T = i8;
                $body
            }
            elem_types::Elem::I16 => {
                type $T = i16;
                $body
            }
            elem_types::Elem::U16 => {
                type $T = u16;
                $body
            }
            elem_types::Elem::I32 => {
                type $T = i32;
                $body
            }
            elem_types::Elem::U32 => {
                type $T = u32;
                $body
            }
            elem_types::Elem::I64 => {
                type $T = i64;
                $body
            }
            elem_types::Elem::U64 => {
                type $T = u64;
                $body
            }
            elem_types::Elem::F16 => {
                type $T = elem_types::F16;
                $body
            }
            elem_types::Elem::BF16 => {
                type $T = elem_types::BF16;
                $body
            }
            elem_types::Elem::F32 => {
                type $T = f32;
                $body
            }
            elem_types::Elem::F64 => {
                type $T = f64;
                $body
            }
        }
    }};
}

/// A truth value in one byte; any non-zero byte reads as true.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Bool(pub u8);

/// IEEE binary16 bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct F16(pub u16);

/// bfloat16 bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BF16(pub u16);

impl BF16 {
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }

    /// Rounds to nearest even; NaN becomes the quiet NaN PyTorch writes (0x7FC0).
    #[inline(always)]
    pub const fn from_f32(v: f32) -> BF16 {
        let b = v.to_bits();
        if v.is_nan() {
            return BF16(0x7FC0);
        }
        BF16(((b.wrapping_add(0x7FFF + ((b >> 16) & 1))) >> 16) as u16)
    }
}

impl F16 {
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let h = self.0 as u32;
        let sign = (h & 0x8000) << 16;
        let mag = h & 0x7FFF;
        if mag >= 0x7C00 {
            return f32::from_bits(sign | 0x7F80_0000 | ((mag & 0x3FF) << 13));
        }
        if mag >= 0x0400 {
            return f32::from_bits(sign | ((mag << 13) + ((127 - 15) << 23)));
        }
        // Denormal: the magnitude is an integer multiple of 2^-24, exact in f32.
        let v = mag as f32 * f32::from_bits(0x3380_0000);
        f32::from_bits(v.to_bits() | sign)
    }

    /// Rounds to nearest even, overflows to infinity.
    #[inline(always)]
    pub const fn from_f32(v: f32) -> F16 {
        let b = v.to_bits();
        let sign = ((b >> 16) & 0x8000) as u16;
        let mag = b & 0x7FFF_FFFF;
        if mag > 0x7F80_0000 {
            return F16(sign | 0x7E00);
        }
        // 65520 and above round to infinity.
        if mag >= 0x477F_F000 {
            return F16(sign | 0x7C00);
        }
        if mag >= 0x3880_0000 {
            let r = mag - 0x3800_0000;
            return F16(sign | ((r + 0xFFF + ((r >> 13) & 1)) >> 13) as u16);
        }
        // Denormal result: adding 0.5 aligns the mantissa so that the FPU rounds at 2^-24.
        let d = f32::from_bits(mag) + 0.5;
        F16(sign | (d.to_bits() - 0x3F00_0000) as u16)
    }
}

/// Scalar arithmetic of one element type, with PyTorch's meaning.
///
/// 16-bit floats compute in f32 and round after each operation; integers wrap; comparisons put NaN
/// above everything; `max_nan`/`min_nan` return NaN when either side is.
pub trait Scalar: Copy + Send + Sync + 'static {
    const ELEM: Elem;
    const IS_FLOAT: bool = false;
    /// The type that sums of this type are kept in: f32 for 16-bit floats, itself otherwise.
    type Acc: Scalar;
    fn to_acc(self) -> Self::Acc;
    fn from_acc(a: Self::Acc) -> Self;
    fn to_f64(self) -> f64;
    fn to_f32(self) -> f32;
    fn to_i64(self) -> i64;
    fn from_f64(v: f64) -> Self;
    fn from_f32(v: f32) -> Self;
    fn from_i64(v: i64) -> Self;
    fn zero() -> Self;
    fn one() -> Self;
    /// Identity of max: -inf, the least integer, false.
    fn lowest() -> Self;
    /// Identity of min: +inf, the greatest integer, true.
    fn highest() -> Self;
    fn is_nan(self) -> bool {
        false
    }
    fn add(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    /// Total order with NaN greatest (all NaNs equal, -0 equals +0).
    fn order(self, o: Self) -> Ordering;
    /// Plain `<`; false with NaN.
    fn lt(self, o: Self) -> bool;
    #[inline(always)]
    fn max_nan(self, o: Self) -> Self {
        if o.is_nan() || (!self.is_nan() && self.lt(o)) { o } else { self }
    }
    #[inline(always)]
    fn min_nan(self, o: Self) -> Self {
        if o.is_nan() || (!self.is_nan() && o.lt(self)) { o } else { self }
    }
}

/// x86's float → int64 conversion: out of range and NaN give the least integer.
#[inline(always)]
fn f64_to_i64(v: f64) -> i64 {
    if (-9.223_372_036_854_775_8e18..9.223_372_036_854_775_8e18).contains(&v) { v as i64 } else { i64::MIN }
}

macro_rules! int_scalar {
    ($($t:ty, $e:ident);*) => {$(
        impl Scalar for $t {
            const ELEM: Elem = Elem::$e;
            type Acc = $t;
            #[inline(always)] fn to_acc(self) -> $t { self }
            #[inline(always)] fn from_acc(a: $t) -> $t { a }
            #[inline(always)] fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)] fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)] fn to_i64(self) -> i64 { self as i64 }
            #[inline(always)] fn from_f64(v: f64) -> $t {
                // 32-bit and narrower go through int64 as PyTorch's scalar casts do.
                if std::mem::size_of::<$t>() == 8 && <$t>::MIN == 0 && v >= 9.223_372_036_854_775_8e18 { v as $t } else { f64_to_i64(v) as $t }
            }
            #[inline(always)] fn from_f32(v: f32) -> $t { Self::from_f64(v as f64) }
            #[inline(always)] fn from_i64(v: i64) -> $t { v as $t }
            #[inline(always)] fn zero() -> $t { 0 }
            #[inline(always)] fn one() -> $t { 1 }
            #[inline(always)] fn lowest() -> $t { <$t>::MIN }
            #[inline(always)] fn highest() -> $t { <$t>::MAX }
            #[inline(always)] fn add(self, o: $t) -> $t { self.wrapping_add(o) }
            #[inline(always)] fn mul(self, o: $t) -> $t { self.wrapping_mul(o) }
            #[inline(always)] fn order(self, o: $t) -> Ordering { self.cmp(&o) }
            #[inline(always)] fn lt(self, o: $t) -> bool { self < o }
        }
    )*};
}
int_scalar!(u8, U8; i8, I8; i16, I16; u16, U16; i32, I32; u32, U32; i64, I64; u64, U64);

impl Scalar for Bool {
    const ELEM: Elem = Elem::Bool;
    type Acc = Bool;
    #[inline(always)]
    fn to_acc(self) -> Bool {
        self
    }
    #[inline(always)]
    fn from_acc(a: Bool) -> Bool {
        a
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        (self.0 != 0) as u8 as f64
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        (self.0 != 0) as u8 as f32
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        (self.0 != 0) as i64
    }
    #[inline(always)]
    fn from_f64(v: f64) -> Bool {
        Bool((v != 0.0) as u8)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> Bool {
        Bool((v != 0.0) as u8)
    }
    #[inline(always)]
    fn from_i64(v: i64) -> Bool {
        Bool((v != 0) as u8)
    }
    #[inline(always)]
    fn zero() -> Bool {
        Bool(0)
    }
    #[inline(always)]
    fn one() -> Bool {
        Bool(1)
    }
    #[inline(always)]
    fn lowest() -> Bool {
        Bool(0)
    }
    #[inline(always)]
    fn highest() -> Bool {
        Bool(1)
    }
    #[inline(always)]
    fn add(self, o: Bool) -> Bool {
        Bool((self.0 != 0 || o.0 != 0) as u8)
    }
    #[inline(always)]
    fn mul(self, o: Bool) -> Bool {
        Bool((self.0 != 0 && o.0 != 0) as u8)
    }
    #[inline(always)]
    fn order(self, o: Bool) -> Ordering {
        (self.0 != 0).cmp(&(o.0 != 0))
    }
    #[inline(always)]
    fn lt(self, o: Bool) -> bool {
        self.0 == 0 && o.0 != 0
    }
}

macro_rules! float_scalar {
    ($($t:ty, $e:ident, $acc:ty, |$x:ident| $to32:expr, $to64:expr, |$v:ident| $from32:expr, |$w:ident| $from64:expr);*) => {$(
        impl Scalar for $t {
            const ELEM: Elem = Elem::$e;
            const IS_FLOAT: bool = true;
            type Acc = $acc;
            #[inline(always)] fn to_acc(self) -> $acc { <$acc>::from_f64_exact(self) }
            #[inline(always)] fn from_acc(a: $acc) -> $t { a.to_narrow() }
            #[inline(always)] fn to_f64(self) -> f64 { let $x = self; $to64 }
            #[inline(always)] fn to_f32(self) -> f32 { let $x = self; $to32 }
            #[inline(always)] fn to_i64(self) -> i64 { f64_to_i64(self.to_f64()) }
            #[inline(always)] fn from_f64($w: f64) -> $t { $from64 }
            #[inline(always)] fn from_f32($v: f32) -> $t { $from32 }
            #[inline(always)] fn from_i64(v: i64) -> $t { <$acc>::int(v).to_narrow() }
            #[inline(always)] fn zero() -> $t { Self::from_f32(0.0) }
            #[inline(always)] fn one() -> $t { Self::from_f32(1.0) }
            #[inline(always)] fn lowest() -> $t { Self::from_f32(f32::NEG_INFINITY) }
            #[inline(always)] fn highest() -> $t { Self::from_f32(f32::INFINITY) }
            #[inline(always)] fn is_nan(self) -> bool { self.to_acc().is_nan_acc() }
            #[inline(always)] fn add(self, o: $t) -> $t { (self.to_acc() + o.to_acc()).to_narrow() }
            #[inline(always)] fn mul(self, o: $t) -> $t { (self.to_acc() * o.to_acc()).to_narrow() }
            #[inline(always)] fn order(self, o: $t) -> Ordering {
                let (a, b) = (self.to_acc(), o.to_acc());
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan_acc().cmp(&b.is_nan_acc()))
            }
            #[inline(always)] fn lt(self, o: $t) -> bool { self.to_acc() < o.to_acc() }
        }
    )*};
}

/// Bridges a float type to the type it computes in, without rounding on the way in.
trait FloatAcc<T> {
    fn from_f64_exact(v: T) -> Self;
    fn to_narrow(self) -> T;
}
impl FloatAcc<F16> for f32 {
    #[inline(always)]
    fn from_f64_exact(v: F16) -> f32 {
        v.to_f32()
    }
    #[inline(always)]
    fn to_narrow(self) -> F16 {
        F16::from_f32(self)
    }
}
impl FloatAcc<BF16> for f32 {
    #[inline(always)]
    fn from_f64_exact(v: BF16) -> f32 {
        v.to_f32()
    }
    #[inline(always)]
    fn to_narrow(self) -> BF16 {
        BF16::from_f32(self)
    }
}
impl FloatAcc<f32> for f32 {
    #[inline(always)]
    fn from_f64_exact(v: f32) -> f32 {
        v
    }
    #[inline(always)]
    fn to_narrow(self) -> f32 {
        self
    }
}
impl FloatAcc<f64> for f64 {
    #[inline(always)]
    fn from_f64_exact(v: f64) -> f64 {
        v
    }
    #[inline(always)]
    fn to_narrow(self) -> f64 {
        self
    }
}
/// What `float_scalar!` needs of an accumulator.
trait FloatBase {
    fn is_nan_acc(self) -> bool;
    fn int(v: i64) -> Self;
}
impl FloatBase for f32 {
    #[inline(always)]
    fn is_nan_acc(self) -> bool {
        self != self
    }
    #[inline(always)]
    fn int(v: i64) -> f32 {
        v as f32
    }
}
impl FloatBase for f64 {
    #[inline(always)]
    fn is_nan_acc(self) -> bool {
        self != self
    }
    #[inline(always)]
    fn int(v: i64) -> f64 {
        v as f64
    }
}
float_scalar!(
    F16, F16, f32, |x| F16::to_f32(x), F16::to_f32(x) as f64, |v| F16::from_f32(v), |w| F16::from_f32(w as f32);
    BF16, BF16, f32, |x| BF16::to_f32(x), BF16::to_f32(x) as f64, |v| BF16::from_f32(v), |w| BF16::from_f32(w as f32);
    f32, F32, f32, |x| x, x as f64, |v| v, |w| w as f32;
    f64, F64, f64, |x| x as f32, x, |v| v as f64, |w| w
);

/// Converts between element types with one rounding: integers through int64, floats through their
/// own width (uint64 above 2^63 goes through f64 when the target is a float).
#[inline(always)]
pub fn cast<S: Scalar, D: Scalar>(s: S) -> D {
    if !S::IS_FLOAT {
        if matches!(S::ELEM, Elem::U64) && D::IS_FLOAT { D::from_f64(s.to_f64()) } else { D::from_i64(s.to_i64()) }
    } else if matches!(S::ELEM, Elem::F64) {
        D::from_f64(s.to_f64())
    } else {
        D::from_f32(s.to_f32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_roundtrip_and_rounding() {
        for b in 0..=u16::MAX {
            let f = F16(b).to_f32();
            if f.is_nan() {
                assert!(F16::from_f32(f).to_f32().is_nan());
            } else {
                assert_eq!(F16::from_f32(f).0, b, "{b:#x}");
            }
        }
        assert_eq!(F16::from_f32(65519.0).to_f32(), 65504.0);
        assert_eq!(F16::from_f32(65520.0).to_f32(), f32::INFINITY);
        // Ties go to even: 2049 lies between 2048 and 2050.
        assert_eq!(F16::from_f32(2049.0).to_f32(), 2048.0);
        assert_eq!(F16::from_f32(2051.0).to_f32(), 2052.0);
        // Half of the least denormal ties to zero, a little more does not.
        assert_eq!(F16::from_f32(2f32.powi(-25)).0, 0);
        assert_eq!(F16::from_f32(2f32.powi(-25) * 1.01).0, 1);
    }

    #[test]
    fn bf16_roundtrip() {
        for b in 0..=u16::MAX {
            let f = BF16(b).to_f32();
            assert!(f.is_nan() || BF16::from_f32(f).0 == b);
        }
        assert!(BF16::from_f32(f32::NAN).to_f32().is_nan());
    }

    #[test]
    fn casts_and_order() {
        assert_eq!(cast::<f32, u8>(-1.0), 255);
        assert_eq!(cast::<f32, i64>(f32::NAN), i64::MIN);
        assert_eq!(cast::<f64, Bool>(0.3).0, 1);
        assert_eq!(cast::<i64, f32>(16_777_217), 16_777_216.0);
        assert_eq!(f32::NAN.order(1.0), Ordering::Greater);
        assert_eq!(f32::NAN.order(-f32::NAN), Ordering::Equal);
        assert!(Scalar::max_nan(1.0f32, f32::NAN).is_nan() && Scalar::max_nan(f32::NAN, 1.0f32).is_nan());
        assert_eq!(Scalar::max_nan(1i32, 3), 3);
    }
}
