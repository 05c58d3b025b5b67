//! Plans with measured times.
//!
//! Measured times of the plan that runs may depart from those of the profile that it was made with. Then they
//! take the place of these, and the jobs are planned again beside the run. The new plan takes over at the
//! border of a round, if it is faster by more than noise. No round is measured while a plan is made: on the
//! CPU device both would take the same cores.

use memc::device::{self, DeviceProfile};
use memc::{Error, KernelTime, corrected, departure};
use memc_runtime::{DeviceName, Late, Observed};

use super::Controller;
use crate::Options;
use crate::leg::Leg;
use crate::planning::{Planned, Set, profile_path};

/// Departure from which on jobs are planned again, and the most that it rises to: it doubles each time that
/// the plan stays, since noise departs, too.
pub(super) const DEPARTS: f64 = 0.1;
const MOST: f64 = 0.4;
/// Rounds that are measured before.
const SETTLED: u64 = 3;

/// Measurements of a leg.
#[derive(Default)]
pub(super) struct Seen {
    /// Rounds measured.
    pub(super) rounds: u64,
    /// Departure of the kernels' times from the profile's.
    pub(super) departure: f64,
    /// Launches that waited for copies back in the last round.
    pub(super) late: Late,
}

/// The profile of the plans: the target's. With --adapt it has the times that are kept in the folder, where
/// they are of the same device.
pub(super) fn profile(options: &Options) -> Result<DeviceProfile, Error> {
    let mut profile = device::find(&options.target.device)?.into_owned();
    let path = profile_path(&options.folder);
    if options.adapt.is_none() {
        return Ok(profile);
    }
    if options.device != DeviceName::Cpu {
        let text = "--adapt measures the CPU device; on a GPU, memrun profile measures what memc plans with";
        return Err(Error::Usage(text.into()));
    }
    if path.exists() {
        let kept = device::read(&path).map_err(|error| {
            Error::Usage(format!("{error}; remove the file, which has measured times, or leave --adapt out"))
        })?;
        let samples = kept.measured.iter().flat_map(|measured| measured.samples()).cloned();
        if kept.name == profile.name {
            profile.observe(samples.collect());
        }
    }
    Ok(profile)
}

impl Controller {
    /// Takes the times of a leg, and plans again where they depart too far.
    pub(super) fn measured(&mut self, number: u64, observed: &Observed, tell: &dyn Fn(&str)) {
        let Some((set, leg)) = self.leg.as_ref().filter(|_| number == self.legs) else { return };
        let time = |(kernel, ns, launches)| KernelTime { kernel, ns, launches };
        let times: Vec<KernelTime> = observed.kernels().map(time).collect();
        let plan = leg.file.plan();
        // The plan was proved, so that its kernels are right.
        let Ok(departure) = departure(plan, &self.profile, &times) else { return };
        self.seen = Seen { rounds: observed.steps(), departure, late: observed.late() };
        // A leg that is to end has times of jobs that are others by now.
        let stays = *set == self.wanted() && self.changes.is_empty();
        let is_idle = stays && self.planning.is_none() && self.change.is_none();
        if is_idle && observed.steps() >= SETTLED && departure > self.departs {
            let percent = departure * 100.0;
            tell(&format!("measured times are {percent:.0} % off: planning again with them"));
            self.profile = corrected(plan, &self.profile, &times);
            self.revision += 1;
        }
    }

    /// The leg that runs, where it is of the same jobs within the same budget.
    pub(super) fn same_leg(&self, set: &Set) -> Option<&(Set, Leg)> {
        self.leg.as_ref().filter(|(running, _)| running.jobs == set.jobs && running.budget == set.budget)
    }

    /// Takes back a change that has no plan. Without a change the plan that runs stays, or where the jobs are
    /// others by now, those are planned next.
    pub(super) fn not_planned(&mut self, set: Set, error: &Error, tell: &dyn Fn(&str)) {
        if self.change.is_none() && self.same_leg(&set).is_some() {
            tell(&format!("no plan with the measured times: {error}; the plan stays"));
            self.departs = (2.0 * self.departs).min(MOST);
            self.leg.iter_mut().for_each(|(running, _)| *running = set.clone());
            self.planned.iter_mut().for_each(|planned| planned.set = set.clone());
        } else if self.change.is_none() && set != self.wanted() {
            tell(&format!("no plan: {error}"));
        } else {
            self.undo(&error.to_string(), tell);
        }
    }

    /// Goes on with the plan that runs.
    pub(super) fn stay(&mut self, planned: Planned, tell: &dyn Fn(&str)) {
        let ms = planned.round_ns as f64 / 1e6;
        tell(&format!("the plan stays: {ms:.3} ms a round by measured times"));
        self.departs = (2.0 * self.departs).min(MOST);
        self.leg.iter_mut().for_each(|(set, _)| *set = planned.set.clone());
        self.planned = Some(planned);
    }
}
