//! Adversarial timing: seeded pauses before commands, and kernels that take longer than they need.

use std::thread::sleep;
use std::time::Duration;

use memc_plan::Section;

use super::Slow;
use crate::Program;
use crate::clock::{elapsed_ns, now};
use crate::init::mix;
use crate::program::{Action, Command};

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

/// The kernels of a stream that are to be slow.
pub(super) struct Slowed {
    slow: Slow,
    /// By index in the body.
    is_slow: Vec<bool>,
    /// Bodies begun.
    bodies: u64,
    /// The command that ran last.
    last: Option<usize>,
}

impl Slowed {
    pub(super) fn new(slow: Slow, program: &Program) -> Slowed {
        let is_slow = |command: &Command| match &command.action {
            Action::Launch(launch) => program.kernels.get(launch.kernel).is_some_and(|kernel| {
                let [operands, results] =
                    [&kernel.operands, &kernel.results].map(|types| types.iter().collect::<Vec<_>>());
                kernel.op.family(&operands, &results) == slow.family
            }),
            _ => false,
        };
        let is_slow = program.section(Section::Body).iter().map(is_slow).collect();
        Slowed { slow, is_slow, bodies: 0, last: None }
    }

    /// Runs a command of the body.
    pub(super) fn run<T>(&mut self, index: usize, run: impl FnOnce() -> T) -> T {
        if self.last.replace(index).is_none_or(|last| index <= last) {
            self.bodies += 1;
        }
        if self.bodies <= self.slow.after || !self.is_slow.get(index).copied().unwrap_or(false) {
            return run();
        }
        let start = now();
        let result = run();
        let more = elapsed_ns(start).saturating_mul(u64::from(self.slow.factor.saturating_sub(1)));
        sleep(Duration::from_nanos(more));
        result
    }
}
