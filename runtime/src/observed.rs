//! Times of a plan's kernels in service.
//!
//! One step of every so many is traced, from the second on. A kernel's time in it is the mean of its launches
//! on the device. It goes into an exponentially weighted average (TENSILE, section 4.3). A time far from the
//! average counts only if the next one is far on the same side, too: one such time is noise, and two are a
//! device that has changed, where another average begins.

use memc_plan::{Queue, Section, Span};

use crate::Program;
use crate::profile::Op;
use crate::program::Action;

/// Weight of the newest time in an average.
const ALPHA: f64 = 0.25;
/// Factor between a time and the average from which on the time is far from it.
const FAR: f64 = 1.5;

/// Measuring in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureOptions {
    /// Steps of which one is measured, at least 1; of a plan of several jobs, rounds.
    pub every: u64,
    /// File for the profile at the end of the run.
    pub profile: Option<std::path::PathBuf>,
}

impl MeasureOptions {
    /// Whether the step after `done` steps of this run is measured. The first warms up.
    pub(crate) fn is_due(&self, done: u64) -> bool {
        done.checked_sub(1).is_some_and(|done| done.is_multiple_of(self.every.max(1)))
    }
}

/// Average of a kernel's times in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average {
    ns: f64,
    /// The newest time, where it is far from the average.
    far: Option<f64>,
}

impl Average {
    /// The average of one time.
    pub(crate) fn new(ns: f64) -> Average {
        Average { ns, far: None }
    }

    pub(crate) fn ns(&self) -> f64 {
        self.ns
    }

    /// Takes one more time.
    pub(crate) fn add(&mut self, ns: f64) {
        let far = |a: f64, b: f64| a > b * FAR;
        if !far(ns, self.ns) && !far(self.ns, ns) {
            self.far = None;
            self.ns += ALPHA * (ns - self.ns);
            return;
        }
        match self.far.take().filter(|&before| (before > self.ns) == (ns > self.ns)) {
            Some(before) => self.ns = before.midpoint(ns),
            None => self.far = Some(ns),
        }
    }
}

/// Launches, but for the first one, that began only when a copy back had ended; inputs are no copies back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Their number in the newest step that was measured.
    pub launches: u64,
    /// Time in ns that they waited for copies beyond the launch before them.
    pub ns: u64,
}

/// Times of a plan's kernels so far.
#[derive(Clone, Debug)]
pub struct Observed {
    /// By kernel, on the device.
    averages: Vec<Option<Average>>,
    /// Launches of each kernel on the device in a step.
    launches: Vec<u64>,
    /// Steps measured.
    steps: u64,
    late: Late,
}

impl Observed {
    /// Nothing is measured yet.
    pub(crate) fn new(program: &Program) -> Observed {
        let mut launches = vec![0; program.kernels.len()];
        for command in program.section(Section::Body).iter().filter(|c| c.queue == Queue::COMPUTE) {
            if let Action::Launch(launch) = &command.action {
                launches.iter_mut().skip(launch.kernel).take(1).for_each(|n| *n += 1);
            }
        }
        Observed { averages: vec![None; launches.len()], launches, steps: 0, late: Late::default() }
    }

    /// Takes the times of a step.
    pub(crate) fn add(&mut self, program: &Program, spans: &[Span]) {
        let body = program.section(Section::Body);
        let mut sums = vec![0u64; self.launches.len()];
        for span in spans {
            let Some(command) = body.get(span.command).filter(|c| c.queue == Queue::COMPUTE) else {
                continue;
            };
            if let Action::Launch(launch) = &command.action {
                let ns = span.end_ns.saturating_sub(span.start_ns);
                sums.iter_mut().skip(launch.kernel).take(1).for_each(|sum| *sum += ns);
            }
        }
        for ((average, sum), launches) in self.averages.iter_mut().zip(sums).zip(&self.launches) {
            if *launches > 0 {
                let ns = (sum as f64 / *launches as f64).max(1.0);
                average.get_or_insert(Average::new(ns)).add(ns);
            }
        }
        self.steps += 1;
        self.late = late(program, spans);
    }

    /// Steps measured.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Launches that waited for copies back in the newest step that was measured.
    pub fn late(&self) -> Late {
        self.late
    }

    /// The kernels, with their times.
    pub(crate) fn ops(&self, program: &Program) -> Vec<Op> {
        let times = program.kernels.iter().zip(&self.averages).zip(&self.launches);
        let op = |((kernel, average), launches): ((&memc_plan::Kernel, &Option<Average>), &u64)| {
            let ns = average.as_ref()?.ns.round() as u64;
            Some(Op::of(kernel, ns, self.steps.saturating_mul(*launches)))
        };
        times.filter_map(op).collect()
    }

    /// The plan's kernels by index, each with its time in ns and its launches in a step.
    pub fn kernels(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let times = self.averages.iter().zip(&self.launches).enumerate();
        times.filter_map(|(kernel, (average, launches))| {
            Some((kernel, average.as_ref()?.ns.round() as u64, *launches))
        })
    }
}

/// The launches of a step that waited for a copy back.
fn late(program: &Program, spans: &[Span]) -> Late {
    let body = program.section(Section::Body);
    let mut at = vec![None; body.len()];
    spans.iter().for_each(|span| at.iter_mut().skip(span.command).take(1).for_each(|at| *at = Some(*span)));
    // The ends of the newest copy back, and of the one behind each event.
    let mut copied = 0;
    let mut recorded = vec![0; program.events];
    // The end of the copies that the next launch waits for, and that of the launch before it.
    let (mut awaited, mut before) = (0, None);
    let mut late = Late::default();
    for (index, command) in body.iter().enumerate() {
        let span = at.get(index).copied().flatten();
        match (&command.action, command.queue) {
            (Action::Copy { src, .. }, Queue::H2D) if !program.slots.contains(src) => {
                copied = span.map_or(copied, |span| span.end_ns);
            }
            (Action::Record(event), Queue::H2D) => {
                recorded.iter_mut().skip(*event).take(1).for_each(|end| *end = copied);
            }
            (Action::Record(event), _) => {
                recorded.iter_mut().skip(*event).take(1).for_each(|end| *end = 0);
            }
            (Action::Wait(event), Queue::COMPUTE) => {
                awaited = awaited.max(recorded.get(*event).copied().unwrap_or(0));
            }
            (Action::Launch(_), Queue::COMPUTE) => {
                if let (Some(before), Some(span)) = (before, span)
                    && awaited > before
                    && span.start_ns >= awaited
                {
                    late.launches += 1;
                    late.ns += awaited - before;
                }
                awaited = 0;
                before = span.map(|span| span.end_ns).or(before);
            }
            _ => {}
        }
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(times: &[f64]) -> f64 {
        let mut average = Average::new(times[0]);
        times[1..].iter().for_each(|&ns| average.add(ns));
        average.ns
    }

    #[test]
    fn near_times_are_averaged() {
        assert_eq!(after(&[100.0, 120.0]), 105.0);
        assert_eq!(after(&[100.0, 80.0]), 95.0);
    }

    #[test]
    fn one_far_time_is_noise_and_two_are_a_change() {
        assert_eq!(after(&[100.0, 900.0]), 100.0);
        assert_eq!(after(&[100.0, 900.0, 100.0, 900.0]), 100.0);
        assert_eq!(after(&[100.0, 300.0, 310.0]), 305.0);
        assert_eq!(after(&[100.0, 300.0, 20.0]), 100.0);
        assert_eq!(after(&[300.0, 100.0, 100.0, 100.0]), 100.0);
    }

    #[test]
    fn the_first_step_warms_up() {
        let options = MeasureOptions { every: 4, profile: None };
        let due: Vec<u64> = (0..10).filter(|&done| options.is_due(done)).collect();
        assert_eq!(due, [1, 5, 9]);
    }
}
