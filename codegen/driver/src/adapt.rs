//! Times of a plan's kernels as a run measures them, against those of a profile.

use memc_passes::{DeviceProfile, Sample};
use memc_plan::Plan;

use crate::error::Error;
use crate::trace::modelled;

/// Time of one of a plan's kernels in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Its index in the plan.
    pub kernel: usize,
    /// Time of a launch in ns.
    pub ns: u64,
    /// Launches in a step.
    pub launches: u64,
}

/// Departure of measured times from those of a profile: the differences of all launches, whatever their sign,
/// over the profile's times.
///
/// # Errors
/// [`Error::Plan`] where a kernel has other results than its op.
pub fn departure(plan: &Plan, profile: &DeviceProfile, times: &[KernelTime]) -> Result<f64, Error> {
    let profile = profile.with_workspaces(plan.kernels.iter().map(|kernel| kernel.workspace_bytes));
    let (mut apart, mut all) = (0.0, 0.0);
    for time in times {
        let Some(kernel) = plan.kernels.get(time.kernel) else { continue };
        let ns = modelled(kernel, &profile)?.ns;
        apart += time.ns.abs_diff(ns) as f64 * time.launches as f64;
        all += ns as f64 * time.launches as f64;
    }
    Ok(apart / f64::max(all, 1.0))
}

/// The profile with measured times in place of its own.
pub fn corrected(plan: &Plan, profile: &DeviceProfile, times: &[KernelTime]) -> DeviceProfile {
    let sample = |time: &KernelTime| {
        let kernel = plan.kernels.get(time.kernel)?;
        Some(Sample {
            op: kernel.op.clone(),
            operands: kernel.operands.clone(),
            results: kernel.results.clone(),
            workspace_bytes: kernel.workspace_bytes,
            time_ns: time.ns.max(1),
        })
    };
    let mut corrected = profile.clone();
    corrected.observe(times.iter().filter_map(sample).collect());
    corrected
}
