//! Several jobs in processes of their own: the best part of a budget for each.
//!
//! Kernels of different processes take turns on a device, so that a round takes the steps of all jobs one
//! after the other. Their copies share the link.

use memc_passes::DeviceProfile;
use serde::Serialize;

use crate::error::Error;
use crate::instance::{Instance, Size};
use crate::plan::Search;
use crate::source::{Model, Target};
use crate::watch::{Event, Watch};
use crate::workload::{Job, Workload, check_jobs};

/// Options of [`split`].
#[derive(Clone)]
pub struct SplitOptions {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Device and rewrites.
    pub target: Target,
    /// Device memory of all jobs together; `None`: that of the device.
    pub budget: Option<Size>,
    /// Share of the link's throughput that each job has, above 0 and at most 1.
    pub link_share: f64,
    /// Parts of the budget that are given out: a plan for each number of parts that a job may have is made.
    pub parts: u64,
    /// Planner, permissions and effort.
    pub search: Search,
}

/// A job's part of the budget.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct Part {
    pub job: String,
    pub gpu_mem_bytes: u64,
    pub step_ns: u64,
    /// Steps in a round.
    pub steps: u32,
    /// Step by budget in bytes: the budgets that were tried and have a plan.
    pub curve: Vec<(u64, u64)>,
}

/// The best parts that were found.
#[derive(Clone, Debug, Serialize)]
pub struct Split {
    /// Budget of all jobs in bytes.
    pub gpu_mem_bytes: u64,
    /// Steps of all jobs in a round, in ns.
    pub round_ns: u64,
    /// The jobs.
    pub parts: Vec<Part>,
}

/// Plans each job at budgets of one part, two, and so on, and gives each the part with which a round is
/// shortest. A job's reserve is in its part.
///
/// # Errors
///
/// Those of the models, [`Error::Usage`] where the options are wrong, and [`Error::Infeasible`] where the
/// smallest budgets of all jobs together are more than there is.
pub fn split(options: &SplitOptions, watch: &dyn Watch) -> Result<Split, Error> {
    check_jobs(&options.jobs)?;
    if options.jobs.iter().any(|job| job.swap_limit.is_some()) {
        let text = "swap= limits a job beside others in one plan; leave it out where each has a process";
        return Err(Error::Usage(text.into()));
    }
    if !(options.link_share > 0.0 && options.link_share <= 1.0) {
        return Err(Error::Usage("--link-share: write a share above 0 and at most 1, such as 1/2".into()));
    }
    let mut instances = Vec::new();
    for job in &options.jobs {
        watch.event(Event::Subject(&job.name));
        let model = Model::read(&Workload::from(job.source.clone()), &options.target, watch)?;
        let profile = with_link(&model.profile, options.link_share);
        instances.push(Instance::on(&model, &profile, options.search.poses())?);
    }
    let budget = match (options.budget, &instances[..]) {
        (Some(Size::PeakPercent(_)), _) => {
            return Err(Error::Usage(
                "jobs have peaks of their own: give the device's memory, as 24G".into(),
            ));
        }
        (size, [first, ..]) => first.budget(size)?,
        _ => 0,
    };
    let allow = options.search.allow;
    let least: Result<Vec<u64>, Error> = instances.iter().map(|instance| instance.smallest(allow)).collect();
    let least = least?;
    let needed: u64 = least.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes));
    if needed > budget {
        let each: Vec<String> =
            options.jobs.iter().zip(&least).map(|(job, bytes)| format!("{} {bytes} B", job.name)).collect();
        return Err(Error::no_fit(format!(
            "the jobs need {needed} B in processes of their own ({}), more than the budget of {budget} B; \
             give --gpu-mem {needed}B or more, or plan them as one, as memc compile --job does",
            each.join(", ")
        )));
    }
    let curves = curves(options, &instances, &least, budget - needed, watch)?;
    let chosen = best(options, &curves);
    watch.event(Event::Subject(""));
    if let Some((job, _)) = options.jobs.iter().zip(&chosen).find(|(_, (_, step_ns))| *step_ns == u64::MAX) {
        let planner = options.search.planner.name;
        return Err(Error::no_fit(format!("{planner} finds no plan for job {} within its part", job.name)));
    }
    let part = |((job, mut curve), (bytes, step_ns)): ((&Job, Curve), (u64, u64))| {
        curve.retain(|(_, step_ns)| *step_ns < u64::MAX);
        Part { job: job.name.clone(), gpu_mem_bytes: bytes, step_ns, steps: job.steps, curve }
    };
    let parts: Vec<Part> = options.jobs.iter().zip(curves).zip(chosen).map(part).collect();
    let round = |part: &Part| part.step_ns.saturating_mul(part.steps.into());
    Ok(Split { gpu_mem_bytes: budget, round_ns: parts.iter().map(round).sum(), parts })
}

/// The device as a process sees it that has a share of the link.
fn with_link(profile: &DeviceProfile, share: f64) -> DeviceProfile {
    DeviceProfile {
        d2h_bytes_per_s: profile.d2h_bytes_per_s * share,
        h2d_bytes_per_s: profile.h2d_bytes_per_s * share,
        duplex_total_bytes_per_s: profile.duplex_total_bytes_per_s * share,
        ..profile.clone()
    }
}

/// Step in ns by budget in bytes: the smallest, that and one part, and so on; `u64::MAX` where there is no
/// plan.
type Curve = Vec<(u64, u64)>;

/// Step of each job by budget: its smallest, and that with one of the parts more, two, and so on.
fn curves(
    options: &SplitOptions,
    instances: &[Instance],
    least: &[u64],
    left: u64,
    watch: &dyn Watch,
) -> Result<Vec<Curve>, Error> {
    let mut curves = Vec::new();
    for ((job, instance), least) in options.jobs.iter().zip(instances).zip(least) {
        let mut curve = Curve::new();
        let mut fastest = u64::MAX;
        for parts in 0..=options.parts {
            let budget = least + left / options.parts.max(1) * parts;
            watch.event(Event::Subject(&format!("{} ({} of {})", job.name, parts + 1, options.parts + 1)));
            let outcome = instance.plan(budget, &options.search, watch)?;
            if outcome.interrupted {
                return Err(Error::Interrupted);
            }
            if let Ok(solved) = &outcome.plan {
                // A plan fits in more memory, too.
                fastest = fastest.min(solved.schedule.evaluation.step_ns);
            }
            curve.push((budget, fastest));
            if fastest <= instance.ideal_ns() {
                break;
            }
        }
        curves.push(curve);
    }
    Ok(curves)
}

/// The budget of each job with which a round is shortest, and its step.
fn best(options: &SplitOptions, curves: &[Curve]) -> Vec<(u64, u64)> {
    let total = options.parts;
    // For each number of parts, the shortest round of the jobs so far and the parts of each.
    let mut rounds: Vec<(u64, Vec<u64>)> = vec![(0, Vec::new()); parts_len(total)];
    for (job, curve) in options.jobs.iter().zip(curves) {
        let with = |given: u64| {
            let one = |(own, (_, step)): (u64, &(u64, u64))| {
                let (before, parts) = rounds.get(parts_len(given.checked_sub(own)?) - 1)?;
                let round = before.saturating_add(step.saturating_mul(job.steps.into()));
                Some((round, [&parts[..], &[own]].concat()))
            };
            (0..).zip(curve).filter_map(one).min().unwrap_or((u64::MAX, Vec::new()))
        };
        rounds = (0..=total).map(with).collect();
    }
    let parts = rounds.pop().map_or_else(Vec::new, |(_, parts)| parts);
    let point = |(curve, own): (&Curve, u64)| curve.get(parts_len(own) - 1).copied().unwrap_or((0, u64::MAX));
    curves.iter().zip(parts).map(point).collect()
}

fn parts_len(parts: u64) -> usize {
    usize::try_from(parts).unwrap_or(0) + 1
}
