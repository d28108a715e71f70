//! Random numbers: the draws made from blocks of Philox4x32-10. The lowering of random ops and the eager engine both
//! follow this file, so that a value does not depend on the tier that drew it.
use rsx_compiler::interp::philox::philox4x32_10;

/// The four words of the block with key `seed` and counter `counter`.
pub fn block(seed: u64, counter: u64) -> [u32; 4] {
    let halves = |v: u64| [v as u32, (v >> 32) as u32];
    let [lo, hi] = halves(counter);
    philox4x32_10(halves(seed), [lo, hi, 0, 0])
}

/// A float in [0, 1) with 24 bits from one word: the draw of f32 (and narrower) uniforms and of dropout masks.
pub fn uniform_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A float in [0, 1) with 53 bits from two words: the draw of f64 uniforms.
pub fn uniform_f64(hi: u32, lo: u32) -> f64 {
    let bits = u64::from(hi) << 32 | u64::from(lo);
    (bits >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// A standard normal by Box and Muller from two words: cosine branch, with u1 in (0, 1].
pub fn normal_f32(w0: u32, w1: u32) -> f32 {
    let u1 = 1.0 - uniform_f32(w0);
    let u2 = uniform_f32(w1);
    (-2.0 * u1.ln()).sqrt() * (2.0 * std::f32::consts::PI * u2).cos()
}

/// As [`normal_f32`] from four words.
pub fn normal_f64(w: [u32; 4]) -> f64 {
    let u1 = 1.0 - uniform_f64(w[0], w[1]);
    let u2 = uniform_f64(w[2], w[3]);
    (-2.0 * u1.ln()).sqrt() * (2.0 * std::f64::consts::PI * u2).cos()
}

/// True with probability `p`: a 24-bit uniform below it, compared in f64. The draw of `bernoulli` and dropout.
pub fn bernoulli(word: u32, p: f64) -> bool {
    f64::from(uniform_f32(word)) < p
}

/// An integer in 0..range from two words (`random_`, `randint`). The bias of the modulus is below range / 2^64.
pub fn below(hi: u32, lo: u32, range: u64) -> u64 {
    let bits = u64::from(hi) << 32 | u64::from(lo);
    if range == 0 { bits } else { bits % range }
}

/// An exponential draw of rate 1 by inversion.
pub fn exponential_f32(word: u32) -> f32 {
    -(1.0 - uniform_f32(word)).ln()
}

/// As [`exponential_f32`] from two words.
pub fn exponential_f64(hi: u32, lo: u32) -> f64 {
    -(1.0 - uniform_f64(hi, lo)).ln()
}

/// Element i of a random op is drawn from block (seed, offset + i): this many counters are used up by `numel` elements.
pub fn advance(numel: u64) -> u64 {
    numel.max(1)
}
