//! What code is generated for: instruction set levels and vector widths.
use std::sync::OnceLock;

/// Instruction set levels, in rising order. Code of one level runs on every processor of that level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// x86-64-v2 (SSE 4.2), 128-bit vectors.
    Portable,
    /// x86-64-v3 (AVX2, FMA, F16C), 256-bit vectors.
    Avx2,
    /// x86-64-v4 (AVX-512 F, BW, CD, DQ, VL), 512-bit vectors.
    Avx512,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// Inverse of [`Level::name`].
    pub fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|l| l.name() == name)
    }

    /// The highest level of this processor.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                return Level::Avx512;
            }
            if avx2 {
                return Level::Avx2;
            }
        }
        Level::Portable
    }

    /// LLVM's name of the processor family.
    pub(crate) const fn cpu(self) -> &'static str {
        match self {
            Level::Portable => "x86-64-v2",
            Level::Avx2 => "x86-64-v3",
            Level::Avx512 => "x86-64-v4",
        }
    }

    /// LLVM's feature string on top of [`Level::cpu`].
    pub(crate) const fn features(self) -> &'static str {
        match self {
            Level::Portable | Level::Avx2 => "",
            // The generic v4 tuning would split explicit 512-bit vectors.
            Level::Avx512 => "-prefer-256-bit",
        }
    }
}

/// A level with the vector width that kernels are written in (normally the level's own; tests mix them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub level: Level,
    /// Bytes of one vector register as the generator sees it: a power of two, at least 16.
    pub vector_bytes: u32,
}

impl Target {
    pub const fn of(level: Level) -> Target {
        let vector_bytes = match level {
            Level::Portable => 16,
            Level::Avx2 => 32,
            Level::Avx512 => 64,
        };
        Target { level, vector_bytes }
    }

    /// This processor's, bounded by `RSX_CPU_LEVEL` (`portable`, `avx2`, `avx512`).
    pub fn host() -> Target {
        static HOST: OnceLock<Level> = OnceLock::new();
        let level = *HOST.get_or_init(|| {
            let cap = std::env::var("RSX_CPU_LEVEL").ok().and_then(|v| Level::parse(v.trim()));
            cap.unwrap_or(Level::Avx512).min(Level::detect())
        });
        Target::of(level)
    }

    pub(crate) fn has_fma(self) -> bool {
        self.level >= Level::Avx2
    }

    /// Half-precision conversions in hardware (F16C).
    pub(crate) fn has_f16(self) -> bool {
        self.level >= Level::Avx2
    }
}
