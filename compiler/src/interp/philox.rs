//! Philox4x32-10: random bits as a function of key and counter (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011). The one definition; backends are tested against it.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key before every round but the first (the golden ratio and sqrt(3) - 1).
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The block of four words for `key` and `counter`.
pub fn philox4x32_10(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut k, mut c) = (key, counter);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
    }
    c
}

/// Element `i` of `rng_bits`: word `word` (0 to 3) of the block with key `seed` (low word, high word) and counter
/// `offset + i` (low word, high word, 0, 0; the sum wraps).
pub fn rng_bits(seed: i64, offset: i64, i: i64, word: u32) -> u32 {
    let counter = offset.wrapping_add(i);
    let halves = |v: i64| [v as u32, (v as u64 >> 32) as u32];
    let [lo, hi] = halves(counter);
    philox4x32_10(halves(seed), [lo, hi, 0, 0])[word as usize & 3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors published with Random123 (kat_vectors, `philox4x32 10`).
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 2], [0; 4], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([!0; 2], [!0; 4], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0xa4093822, 0x299f31d0],
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (key, counter, want) in cases {
            assert_eq!(philox4x32_10(key, counter), want);
        }
    }

    #[test]
    fn elements_are_words_of_consecutive_blocks() {
        let seed = 0x1234_5678_9abc_def0;
        let block = philox4x32_10([0x9abc_def0, 0x1234_5678], [2, 1, 0, 0]);
        for word in 0..4 {
            assert_eq!(rng_bits(seed, 0xffff_ffff, 3, word), block[word as usize]);
        }
    }
}
