//! Plans with measured times.
//!
//! Measured times of the plan that runs may depart from those of the profile that it was made with. Then they
//! take the place of these, and the jobs are planned again beside the run. The new plan takes over at the
//! border of a round, if it is faster by more than noise. No round is measured while a plan is made: on the
//! CPU device both would take the same cores.

use memc::device::{self, DeviceProfile};
use memc::{Error, KernelTime, corrected, departure};
use memc_runtime::{Late, Observed};

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

/// The profile of the plans: the target's. With --adapt it is that of the folder, where that is of the same
/// device.
pub(super) fn profile(options: &Options) -> Result<DeviceProfile, Error> {
    let own = device::find(&options.target.device)?.into_owned();
    let kept = options.adapt.and_then(|_| device::read(&profile_path(&options.folder)).ok());
    Ok(kept.filter(|kept| kept.name == own.name).unwrap_or(own))
}

impl Controller {
    /// Takes the times of a leg, and plans again where they depart too far.
    pub(super) fn measured(&mut self, number: u64, observed: &Observed, tell: &dyn Fn(&str)) {
        let Some((_, leg)) = self.leg.as_ref().filter(|_| number == self.legs) else { return };
        let time = |(kernel, ns, launches)| KernelTime { kernel, ns, launches };
        let times: Vec<KernelTime> = observed.kernels().map(time).collect();
        let plan = leg.file.plan();
        // The plan was proved, so that its kernels are right.
        let Ok(departure) = departure(plan, &self.profile, &times) else { return };
        self.seen = Seen { rounds: observed.steps(), departure, late: observed.late() };
        let is_idle = self.planning.is_none() && self.change.is_none() && self.changes.is_empty();
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

    /// Goes on with the plan that runs where planning with measured times fails.
    pub(super) fn stay_without(&mut self, set: Set, error: &Error, tell: &dyn Fn(&str)) {
        tell(&format!("no plan with the measured times: {error}; the plan stays"));
        self.leg.iter_mut().for_each(|(running, _)| *running = set.clone());
        self.planned.iter_mut().for_each(|planned| planned.set = set.clone());
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
