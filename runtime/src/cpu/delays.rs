//! Adversarial timing: seeded pauses before commands.

use std::time::Duration;

use crate::init::mix;

/// Random delays that make a party fast for some commands and slow for the next ones.
pub(super) struct Delays {
    key: u64,
    count: u64,
}

impl Delays {
    /// Commands between two changes of pace.
    const PHASE: u64 = 8;
    /// Longest delay, in microseconds.
    const LONGEST: u64 = 250;

    pub(super) fn new(seed: u64, party: usize) -> Delays {
        Delays { key: mix(seed ^ mix(party as u64)), count: 0 }
    }

    pub(super) fn next(&mut self) -> Option<Duration> {
        self.count += 1;
        let slow = mix(self.key ^ mix(self.count / Self::PHASE)) & 1 == 1;
        slow.then(|| Duration::from_micros(mix(self.key.wrapping_add(self.count)) % Self::LONGEST))
    }
}
