//! Scalar functions that generated code calls, lane by lane: the rarer mathematical ones and error reports.
//!
//! The JIT is told their addresses; kernels depend on no symbol of the process.
use rsx_compiler::interp::scalar;
use rsx_compiler::ir::OpKind;
use std::sync::atomic::{AtomicI64, Ordering};

/// Where kernels report a bad index. One is shared by all threads of a launch; the first report stays.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Fault {
    /// 0: nothing happened.
    set: AtomicI64,
    index: AtomicI64,
    size: AtomicI64,
}

impl Fault {
    /// (index, size) of the report, if there was one.
    pub fn take(&self) -> Option<(i64, i64)> {
        (self.set.load(Ordering::Acquire) != 0).then(|| {
            let report = (self.index.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
            self.set.store(0, Ordering::Relaxed);
            report
        })
    }

    /// Reports that `index` is not in `0..size`.
    pub fn report(&self, index: i64, size: i64) {
        if self.set.load(Ordering::Relaxed) == 0 {
            self.index.store(index, Ordering::Relaxed);
            self.size.store(size, Ordering::Relaxed);
            self.set.store(1, Ordering::Release);
        }
    }
}

extern "C" fn bad_index(fault: &Fault, index: i64, size: i64) {
    fault.report(index, size);
}

extern "C" fn ipow_i64(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    ipow_u64(base as u64, exponent as u64) as i64
}

extern "C" fn ipow_u64(base: u64, mut exponent: u64) -> u64 {
    let (mut result, mut square) = (1u64, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        exponent >>= 1;
    }
    result
}

macro_rules! symbols {
    (unary { $($kind:ident)* } binary { $($kind2:ident)* } after { $($dtype:ident $t:ty),* }) => {
        /// Names and addresses of all functions.
        pub fn symbols() -> Vec<(String, usize)> {
            let mut all: Vec<(String, usize)> = vec![
                ("rsx_bad_index".into(), bad_index as extern "C" fn(&Fault, i64, i64) as usize),
                ("rsx_ipow_i64".into(), ipow_i64 as extern "C" fn(i64, i64) -> i64 as usize),
                ("rsx_ipow_u64".into(), ipow_u64 as extern "C" fn(u64, u64) -> u64 as usize),
            ];
            $({
                extern "C" fn single(x: f32) -> f32 {
                    scalar::float(OpKind::$kind, f64::from(x)).unwrap_or(f64::NAN) as f32
                }
                extern "C" fn double(x: f64) -> f64 {
                    scalar::float(OpKind::$kind, x).unwrap_or(f64::NAN)
                }
                let name = OpKind::$kind.name();
                all.push((format!("rsx_{name}_f32"), single as extern "C" fn(f32) -> f32 as usize));
                all.push((format!("rsx_{name}_f64"), double as extern "C" fn(f64) -> f64 as usize));
            })*
            $({
                extern "C" fn single(x: f32, y: f32) -> f32 {
                    let f64 = rsx_compiler::ir::DType::F64;
                    scalar::float2(OpKind::$kind2, f64, f64::from(x), f64::from(y)).unwrap_or(f64::NAN) as f32
                }
                extern "C" fn double(x: f64, y: f64) -> f64 {
                    scalar::float2(OpKind::$kind2, rsx_compiler::ir::DType::F64, x, y).unwrap_or(f64::NAN)
                }
                let name = OpKind::$kind2.name();
                all.push((format!("rsx_{name}_f32"), single as extern "C" fn(f32, f32) -> f32 as usize));
                all.push((format!("rsx_{name}_f64"), double as extern "C" fn(f64, f64) -> f64 as usize));
            })*
            $({
                extern "C" fn after(x: $t, y: $t) -> $t {
                    scalar::float2(OpKind::NextAfter, rsx_compiler::ir::DType::$dtype, f64::from(x), f64::from(y)).unwrap_or(f64::NAN) as $t
                }
                let name = rsx_compiler::ir::DType::$dtype.name();
                all.push((format!("rsx_next_after_{name}"), after as extern "C" fn($t, $t) -> $t as usize));
            })*
            all
        }
    };
}

symbols! {
    unary {
        Exp Expm1 Log Log1p Sin Cos Tan Tanh Erf Erfc ErfInv Lgamma Digamma Asin Acos Atan Sinh Cosh Asinh Acosh Atanh
    }
    binary { Remainder Power Atan2 }
    after { F16 f32, BF16 f32, F32 f32, F64 f64 }
}
