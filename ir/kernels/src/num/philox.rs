//! Philox-4x32-10: random words as a function of a key and a counter.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

/// Multipliers of one round.
const FACTORS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Growth of the key from round to round.
const GROWTH: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// The four words of `counter` under `key`.
#[inline(always)]
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], mut key) = (counter, key);
    for _ in 0..ROUNDS {
        let (p, q) = (u64::from(FACTORS[0]) * u64::from(a), u64::from(FACTORS[1]) * u64::from(c));
        (a, b, c, d) = ((q >> 32) as u32 ^ b ^ key[0], q as u32, (p >> 32) as u32 ^ d ^ key[1], p as u32);
        key = [key[0].wrapping_add(GROWTH[0]), key[1].wrapping_add(GROWTH[1])];
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the authors' library, Random123.
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in cases {
            assert_eq!(philox(counter, key), words, "{counter:x?} under {key:x?}");
        }
    }
}
