//! What the benchmarks share: the machine's multiply-add peak and a clock.
#![allow(dead_code, reason = "each benchmark uses its own part")]

use rsx_devices::cpu::lib::isa;
use rsx_devices::cpu::pool;
use std::time::Instant;

/// Multiply-adds on registers only, GFLOP/s of one thread.
pub(crate) fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn avx2(n: usize) -> f32 {
            use std::arch::x86_64::*;
            let x = _mm256_set1_ps(std::hint::black_box(0.999));
            let mut s = [x; 12];
            for _ in 0..n {
                for v in &mut s {
                    *v = _mm256_fmadd_ps(*v, x, x);
                }
            }
            let t = s.iter().fold(_mm256_setzero_ps(), |a, &b| _mm256_add_ps(a, b));
            _mm256_cvtss_f32(t)
        }
        #[target_feature(enable = "avx512f")]
        fn avx512(n: usize) -> f32 {
            use std::arch::x86_64::*;
            let x = _mm512_set1_ps(std::hint::black_box(0.999));
            let mut s = [x; 12];
            for _ in 0..n {
                for v in &mut s {
                    *v = _mm512_fmadd_ps(*v, x, x);
                }
            }
            let t = s.iter().fold(_mm512_setzero_ps(), |a, &b| _mm512_add_ps(a, b));
            _mm512_cvtss_f32(t)
        }
        let wide = isa::current() >= isa::Isa::Avx512;
        let n = 2_000_000;
        let secs = best(5, || {
            // SAFETY: the instruction set was checked.
            std::hint::black_box(unsafe { if wide { avx512(n) } else { avx2(n) } });
        });
        return (n * 12 * 2 * if wide { 16 } else { 8 }) as f64 / secs / 1e9;
    }
    f64::NAN
}

/// Seconds: processor time of this thread with one thread (other processes do not count), else
/// wall time.
pub(crate) fn now() -> f64 {
    if pool::num_threads() > 1 {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        return START.get_or_init(Instant::now).elapsed().as_secs_f64();
    }
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Least seconds of `n` runs.
pub(crate) fn best(n: usize, mut f: impl FnMut()) -> f64 {
    (0..n)
        .map(|_| {
            let t = now();
            f();
            now() - t
        })
        .fold(f64::INFINITY, f64::min)
}
