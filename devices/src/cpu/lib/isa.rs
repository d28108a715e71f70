//! Which instruction set the kernels use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Instruction set levels with kernels of their own, in rising order.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// Rust's baseline for the target; no explicit vectors.
    Portable = 0,
    /// AVX2 + FMA + F16C.
    Avx2 = 1,
    /// AVX-512 F, BW, VL, DQ.
    Avx512 = 2,
    /// The above and AVX512_BF16 (`vdpbf16ps`).
    Avx512Bf16 = 3,
}

/// Upper bound set by [`set_max`]; starts at the highest level.
static CAP: AtomicU8 = AtomicU8::new(Isa::Avx512Bf16 as u8);

fn detect() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        if avx512 && is_x86_feature_detected!("avx512bf16") {
            return Isa::Avx512Bf16;
        }
        if avx512 {
            return Isa::Avx512;
        }
        if avx2 {
            return Isa::Avx2;
        }
    }
    Isa::Portable
}

/// The level in use: the processor's, bounded by `RSX_CPU_ISA` (`portable`, `avx2`, `avx512`,
/// `avx512bf16`) and by [`set_max`].
pub fn current() -> Isa {
    static HOST: OnceLock<Isa> = OnceLock::new();
    let host = *HOST.get_or_init(|| {
        let cap = match std::env::var("RSX_CPU_ISA").as_deref() {
            Ok("portable") => Isa::Portable,
            Ok("avx2") => Isa::Avx2,
            Ok("avx512") => Isa::Avx512,
            _ => Isa::Avx512Bf16,
        };
        detect().min(cap)
    });
    let cap = match CAP.load(Ordering::Relaxed) {
        0 => Isa::Portable,
        1 => Isa::Avx2,
        2 => Isa::Avx512,
        _ => Isa::Avx512Bf16,
    };
    host.min(cap)
}

/// Bounds the level for the whole process, for tests and comparisons; never raises it above what
/// the processor has.
pub fn set_max(cap: Isa) {
    CAP.store(cap as u8, Ordering::Relaxed);
}
