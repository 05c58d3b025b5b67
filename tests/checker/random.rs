//! A small deterministic generator, and the hash that stands for values.

/// SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.0)
    }

    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which are not none.
    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash of two numbers that depends on their order.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    finish(a.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ finish(b.wrapping_add(0x51_7c_c1)))
}

/// A hash of bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(mix(bytes.len() as u64, 7), |hash, &byte| mix(hash, u64::from(byte)))
}
