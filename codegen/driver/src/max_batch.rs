//! The largest size of a symbolic dimension whose step fits a budget.
//!
//! By doubling and bisection, which takes for granted that what fits at one size fits at every smaller one.

use std::collections::BTreeMap;

use memc_planner::NoPlan;
use serde::Serialize;

use crate::anytime::Anytime;
use crate::device;
use crate::error::Error;
use crate::instance::{Instance, Size};
use crate::plan::Search;
use crate::source::{Model, Target};
use crate::watch::{Event, Watch};
use crate::workload::Workload;

/// Options of [`max_batch`].
#[derive(Clone)]
pub struct MaxBatchOptions {
    /// The model or jobs, every other symbolic dimension sized.
    pub workload: Workload,
    /// Device and rewrites.
    pub target: Target,
    /// Name of the dimension to enlarge.
    pub dim: String,
    /// Name of the job whose dimension it is; `None`: of all.
    pub job: Option<String>,
    /// Device memory the step may take; `None`: that of the device.
    pub budget: Option<Size>,
    /// Longest step that counts as planned, in times of the ideal one.
    pub max_slowdown: Option<f64>,
    /// The largest size to try.
    pub up_to: u64,
    /// Planner, permissions and effort.
    pub search: Search,
}

/// The largest sizes, and the sizes that were tried.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct MaxBatch {
    pub problem: String,
    pub planner: &'static str,
    pub dim: String,
    /// The budget.
    pub gpu_mem_bytes: u64,
    pub max_slowdown: Option<f64>,
    pub up_to: u64,
    /// 0 where no size fits.
    pub largest_unplanned: u64,
    pub largest_planned: u64,
    /// Whether a request to stop came before the answer was final.
    pub interrupted: bool,
    /// Whether more time might have found more.
    pub stopped: bool,
    /// By size.
    pub probes: Vec<Probe>,
    #[serde(skip)]
    pub reserve_bytes: u64,
    /// Error where no size fits.
    #[serde(skip)]
    pub failure: Option<Error>,
}

/// One size. Times in ns; `None` where no plan was made.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct Probe {
    pub size: u64,
    pub unplanned_peak_bytes: u64,
    pub ideal_ns: u64,
    pub fits_unplanned: bool,
    /// Whether a plan was looked for.
    pub planned: bool,
    /// Whether there is a plan, and one that is fast enough.
    pub fits: Option<bool>,
    pub verdict: Option<&'static str>,
    pub step_ns: Option<u64>,
    pub bound_ns: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub swap_out_bytes: Option<u64>,
    pub swap_in_bytes: Option<u64>,
    /// Whether a time limit or a request to stop ended the search.
    pub stopped: bool,
    /// The unplanned step.
    #[serde(skip)]
    pub unplanned_ns: u64,
}

impl Probe {
    fn decide(&mut self, fits: bool, verdict: &'static str) {
        (self.planned, self.fits, self.verdict) = (true, Some(fits), Some(verdict));
    }
}

/// Finds the largest size that fits unplanned, and the largest with a plan.
///
/// A request to stop ends the search with the largest size known so far, or with [`Error::Interrupted`] where
/// none is.
pub fn max_batch(options: &MaxBatchOptions, watch: &dyn Watch) -> Result<MaxBatch, Error> {
    // An unknown device is the first thing to say.
    device::find(&options.target.device)?;
    watch.event(Event::Stage("importing"));
    if options.workload.import().is_ok() {
        return Err(Error::Model(format!(
            "{}: every shape has a size, so there is no `{}` to enlarge: export the model with a symbolic \
             batch",
            options.workload, options.dim
        )));
    }
    if matches!(options.budget, Some(Size::PeakPercent(_))) {
        let text = "a share of the peak grows with the batch; give the device's memory, as 16G or 90%";
        return Err(Error::Usage(text.into()));
    }
    let series = Anytime::new(watch);
    let mut hunt = Hunt { options, watch, probes: BTreeMap::new(), budget: 0, series };
    let first = hunt.instance(1, watch)?;
    hunt.budget = first.budget(options.budget)?;
    let unplanned = hunt.largest(0, &Hunt::fits_unplanned)?;
    let planned = hunt.largest(unplanned, &Hunt::fits_planned)?;
    watch.event(Event::Subject(""));
    let interrupted = hunt.series.interrupted();
    if interrupted && planned == 0 {
        return Err(Error::Interrupted);
    }
    let planner = options.search.planner.name;
    let mut failure = None;
    if planned == 0 {
        let why = format!("{planner} finds no plan for {} = 1 that is fast enough", options.dim);
        failure = Some(first.infeasible(&[planner], &why, hunt.budget, options.search.allow)?);
    }
    Ok(MaxBatch {
        problem: first.name().to_string(),
        planner,
        dim: options.dim.clone(),
        gpu_mem_bytes: hunt.budget,
        max_slowdown: options.max_slowdown,
        up_to: options.up_to,
        largest_unplanned: unplanned,
        largest_planned: planned,
        interrupted,
        stopped: interrupted || hunt.probes.values().any(|p| p.stopped),
        probes: hunt.probes.into_values().collect(),
        reserve_bytes: first.reserve_bytes,
        failure,
    })
}

/// Sizes tried so far.
struct Hunt<'a> {
    options: &'a MaxBatchOptions,
    watch: &'a dyn Watch,
    probes: BTreeMap<u64, Probe>,
    budget: u64,
    series: Anytime<'a>,
}

/// Passes stages and subjects on; notes and warnings were passed on at the first size.
struct Quiet<'a>(&'a dyn Watch);

impl Watch for Quiet<'_> {
    fn event(&self, event: Event<'_>) {
        if !matches!(event, Event::Note(_) | Event::Warning(_)) {
            self.0.event(event);
        }
    }
}

impl Hunt<'_> {
    /// The problem with the dimension at a size; news of the model go to `watch`.
    fn instance(&self, size: u64, watch: &dyn Watch) -> Result<Instance, Error> {
        let options = self.options;
        watch.event(Event::Subject(&format!("{} = {size}", options.dim)));
        let mut workload = options.workload.clone();
        for (job, source) in workload.sources_mut() {
            if options.job.is_none() || options.job.as_deref() == job {
                source.import.dims.push((options.dim.clone(), size));
            }
        }
        let model = Model::read(&workload, &options.target, watch)?;
        Instance::of_model(&model, options.search.poses())
    }

    /// The largest size that fits, between one that does (or 0) and the largest to try.
    fn largest(
        &mut self,
        known: u64,
        fits: &dyn Fn(&mut Self, u64) -> Result<bool, Error>,
    ) -> Result<u64, Error> {
        let most = self.options.up_to;
        let (mut low, mut high) = (known.min(most), most + 1);
        let mut next = (low * 2).max(1);
        while next < high && !self.series.interrupted() {
            if fits(self, next)? {
                low = next
            } else {
                high = next
            }
            next *= 2;
        }
        if high > most && low < most && !self.series.interrupted() {
            if fits(self, most)? { low = most } else { high = most }
        }
        while high - low > 1 && !self.series.interrupted() {
            let middle = low + (high - low) / 2;
            if fits(self, middle)? { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// The instance of a size, and a probe with its unplanned figures; `None`: too large for an instance,
    /// which only sizes above 1 may be.
    fn probe(&mut self, size: u64) -> Result<Option<(Instance, Probe)>, Error> {
        match self.instance(size, &Quiet(self.watch)) {
            Ok(instance) => {
                let kept = &instance.given().kept().evaluation;
                let unplanned_peak_bytes = kept.dev_bytes + instance.reserve_bytes;
                let probe = Probe {
                    size,
                    unplanned_peak_bytes,
                    ideal_ns: instance.ideal_ns(),
                    fits_unplanned: unplanned_peak_bytes <= self.budget,
                    unplanned_ns: kept.step_ns,
                    ..Probe::default()
                };
                Ok(Some((instance, probe)))
            }
            Err(Error::Model(_)) if size > 1 => {
                let mut probe = Probe { size, ..Probe::default() };
                probe.decide(false, "too large to plan");
                self.probes.insert(size, probe);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn fits_unplanned(&mut self, size: u64) -> Result<bool, Error> {
        let Some((_, probe)) = self.probe(size)? else { return Ok(false) };
        Ok(self.note(probe.fits_unplanned, probe))
    }

    fn fits_planned(&mut self, size: u64) -> Result<bool, Error> {
        let Some((instance, mut probe)) = self.probe(size)? else { return Ok(false) };
        self.plan(&instance, &mut probe)?;
        Ok(self.note(probe.fits == Some(true), probe))
    }

    fn note(&mut self, fits: bool, probe: Probe) -> bool {
        if fits {
            self.series.keep();
        }
        self.probes.insert(probe.size, probe);
        fits
    }

    /// Plans for a size, unless the bounds rule it out. The probe stays unplanned where a request to stop
    /// came before there was a plan.
    fn plan(&mut self, instance: &Instance, probe: &mut Probe) -> Result<(), Error> {
        let (search, budget, watch) = (&self.options.search, self.budget, self.watch);
        let ideal = instance.ideal_ns() as f64;
        let slow = |ns: u64| self.options.max_slowdown.is_some_and(|most| ns as f64 > ideal * most);
        watch.event(Event::Stage("proving a bound"));
        let bounds: Vec<_> = (0..instance.candidates().len())
            .filter_map(|at| instance.bound(at, budget, search.allow)?.least(!search.allow.reorder))
            .collect();
        if bounds.is_empty() {
            let reserve = instance.capacity(budget) == 0;
            let why = if reserve { "the reserve alone does not fit" } else { "an op does not fit" };
            probe.decide(false, why);
            return Ok(());
        }
        if bounds.iter().all(|&b| slow(b)) {
            probe.decide(false, "every plan is too slow");
            return Ok(());
        }
        let Some(outcome) = self.series.next(|| instance.plan(budget, search, watch))? else {
            return Ok(());
        };
        probe.stopped = outcome.stopped;
        let Some((_, r)) = outcome.of(instance) else {
            if let Err(NoPlan::Failed(text)) = outcome.plan {
                return Err(Error::Internal(text));
            }
            probe.decide(false, "no plan");
            return Ok(());
        };
        let e = &r.evaluation;
        probe.step_ns = Some(e.step_ns);
        probe.bound_ns = Some(outcome.bound(instance, search.allow).map_or(0, |b| b.0));
        probe.peak_bytes = Some(e.load_bytes + instance.reserve_bytes);
        probe.swap_out_bytes = Some(e.swap_out_bytes);
        probe.swap_in_bytes = Some(e.swap_in_bytes);
        let fits = !slow(e.step_ns);
        probe.decide(fits, if fits { "fits" } else { "too slow" });
        Ok(())
    }
}
