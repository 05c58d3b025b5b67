//! Device profiles and the cost model: the times of kernels and copies on a device.
//!
//! Contract: times are whole nanoseconds, and the same for the same profile on every machine. The time of an
//! op is its measured time where the profile has one for exactly this op on these types, of several the one
//! with the workspace that plans have. Otherwise it is the
//! roofline of the op's family ([`roofline`]), corrected from the measured ops ([`measured`]). The model
//! leaves out caches that keep an op's operands, and clocks that change.

mod builtin;
mod file;
mod measured;
mod ridge;
mod roofline;

use std::borrow::Cow;

use memc_ir::ops::Class;
use memc_ir::{OpKind, TensorType};
use memc_planner::SLOWDOWN_UNIT;

pub use builtin::PROFILES;
pub use file::ProfileError;
pub use measured::{FOLDS, Judgement, Measured, Quality, Sample};
pub use memc_ir::ops::Family;
pub use roofline::Kernels;

/// Arithmetic throughput in FLOP per second, a multiplication and an addition being two.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Peaks {
    /// `f32`, outside of units for matrix products.
    pub f32: f64,
    /// Matrix products of `f16`; `None` where they run no faster than those of `f32`.
    pub f16: Option<f64>,
    /// Matrix products of `bf16`.
    pub bf16: Option<f64>,
    /// Matrix products of `f32` rounded to 19 bits. A listing shows it; no op is timed by it, since none is
    /// run so.
    pub tf32: Option<f64>,
}

/// Longest time of an op on the host, a day: none that takes longer is worth it.
const MOST_HOST_NS: u64 = 86_400_000_000_000;

/// Fixed time of an op on the host in ns: threads are woken and joined.
const HOST_LATENCY_NS: u64 = 20_000;

/// Throughputs and latencies of one device and its link to the host.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceProfile {
    /// Name on the command line.
    pub name: Cow<'static, str>,
    /// Description for listings.
    pub summary: Cow<'static, str>,
    /// Arithmetic throughputs.
    pub peaks: Peaks,
    /// Share of the peak that units for matrix products of 16-bit floats are fed for.
    pub tensor_share: f64,
    /// Units that work side by side, such as streaming multiprocessors.
    pub processors: u32,
    /// Device memory throughput in bytes per second.
    pub memory_bytes_per_s: f64,
    /// Copy throughput from device to host in bytes per second; 0 for a device that copies nothing to the
    /// host.
    pub d2h_bytes_per_s: f64,
    /// Copy throughput from host to device in bytes per second; 0 for a device that copies nothing from the
    /// host.
    pub h2d_bytes_per_s: f64,
    /// Copy throughput of both directions together while both run, in bytes per second.
    pub duplex_total_bytes_per_s: f64,
    /// Throughput of host memory for updates of an optimizer on the host, in bytes per second; `None` where
    /// no op runs there.
    pub host_bytes_per_s: Option<f64>,
    /// Time in ns from one kernel on the host to the next, beyond what the kernels take; `None` where it is
    /// not measured.
    pub host_latency_ns: Option<u64>,
    /// Fixed time of every kernel in ns.
    pub kernel_latency_ns: u64,
    /// Fixed time of every copy in ns.
    pub copy_latency_ns: u64,
    /// Device memory in bytes; `None` where it is that of the machine.
    pub memory_bytes: Option<u64>,
    /// Bytes of the budget that the driver and its libraries take.
    pub reserve_bytes: u64,
    /// Factor by which a kernel that only moves memory takes longer beside copies in both directions, where
    /// it was measured.
    pub compute_slowdown: Option<f64>,
    /// Most bytes of workspace that a plan sets aside for a convolution, within
    /// [`CONV_WORKSPACE`](crate::CONV_WORKSPACE). Every device begins with the least; no file says it.
    pub conv_workspace: u64,
    /// Share of the peaks that kernels reach.
    pub kernels: Kernels,
    /// Measured ops, and the correction learned from them.
    pub measured: Option<Box<Measured>>,
}

impl DeviceProfile {
    /// The built-in profile called `name`.
    pub fn named(name: &str) -> Option<&'static DeviceProfile> {
        PROFILES.iter().find(|p| p.name == name)
    }

    /// Time of an op on operands and results of these types, in ns; 0 for a view, which is no kernel.
    ///
    /// The types must satisfy [`OpKind::infer`].
    pub fn op_ns(&self, op: &OpKind, operands: &[&TensorType], results: &[&TensorType]) -> u64 {
        if op.def().class == Class::View {
            return 0;
        }
        let ns = roofline::kernel_ns(self, op, operands, results);
        let workspace = || self.workspace(op, operands, results);
        whole(self.measured.as_ref().map_or(ns, |m| m.op_ns(op, operands, results, ns, workspace)))
    }

    /// Time of an op on the host in ns, where it can run there: an update of an optimizer, which takes as
    /// long as its bytes do.
    ///
    /// The types must satisfy [`OpKind::infer`].
    pub fn host_ns(&self, op: &OpKind, operands: &[&TensorType], results: &[&TensorType]) -> Option<u64> {
        let rate = self.host_bytes_per_s.filter(|_| op.def().family == Family::Optimizer)?;
        let cost = op.cost(operands, results);
        let bytes = cost.bytes_read as f64 + cost.bytes_written as f64;
        let latency = self.host_latency_ns.unwrap_or(HOST_LATENCY_NS);
        Some(latency.saturating_add(whole(bytes / rate * 1e9))).filter(|&ns| ns < MOST_HOST_NS)
    }

    /// Excess of an op's time beside copies in both directions, in parts of [`SLOWDOWN_UNIT`].
    ///
    /// An op that only moves memory takes twice the measured excess: part of what it moves is in the cache
    /// otherwise. One that moves none takes a third of that. Source: tests/bench/results/gpu.md.
    pub fn slowdown(&self, op: &OpKind, operands: &[&TensorType], results: &[&TensorType]) -> u32 {
        let Some(times) = self.compute_slowdown else { return 0 };
        let cost = op.cost(operands, results);
        let bytes = cost.bytes_read as f64 + cost.bytes_written as f64;
        let ns = self.op_ns(op, operands, results).max(1) as f64;
        let share = (bytes / self.memory_bytes_per_s * 1e9 / ns).min(1.0);
        let part = share + (1.0 - share) / 3.0;
        (2.0 * (times - 1.0) * part * f64::from(SLOWDOWN_UNIT)).round() as u32
    }

    /// Scratch bytes of an op on operands and results of these types. At least those of the op's row, so that
    /// the plan also runs on the embedded device; on a GPU also those of its kernels.
    ///
    /// The types must satisfy [`OpKind::infer`].
    pub fn workspace(&self, op: &OpKind, operands: &[&TensorType], results: &[&TensorType]) -> u64 {
        let row = op.cost(operands, results).workspace;
        match self.kernels {
            Kernels::Plain => row,
            Kernels::Gpu => row.max(memc_cuda::workspace(op, operands, self.conv_workspace)),
        }
    }

    /// Scratch bytes, up to `most`, with which an op may run faster than with [`DeviceProfile::workspace`],
    /// if there are such.
    pub fn ample_workspace(&self, op: &OpKind, operands: &[TensorType], most: u64) -> Option<u64> {
        let ample = memc_cuda::ample_allowance(op, operands, most);
        (self.kernels == Kernels::Gpu && ample > memc_cuda::allowance(op, operands)).then_some(ample)
    }

    /// The profile whose times are those with the workspaces of a plan's kernels, in bytes.
    pub fn with_workspaces(&self, bytes: impl Iterator<Item = u64>) -> DeviceProfile {
        let conv_workspace = bytes.max().unwrap_or(0).max(self.conv_workspace);
        DeviceProfile { conv_workspace, ..self.clone() }
    }

    /// Whether tensors can leave the device for the host and come back.
    pub fn can_swap(&self) -> bool {
        self.d2h_bytes_per_s > 0.0 && self.h2d_bytes_per_s > 0.0
    }

    /// Time of a copy of `bytes` from device to host in ns; `None` where there is no such copy.
    pub fn d2h_ns(&self, bytes: u64) -> Option<u64> {
        self.copy_ns(bytes, self.d2h_bytes_per_s)
    }

    /// Time of a copy of `bytes` from host to device in ns; `None` where there is no such copy.
    pub fn h2d_ns(&self, bytes: u64) -> Option<u64> {
        self.copy_ns(bytes, self.h2d_bytes_per_s)
    }

    /// Time of a tensor's copies to the host and back in ns; `None` where it cannot go.
    pub fn round_trip_ns(&self, bytes: u64) -> Option<u64> {
        Some(self.d2h_ns(bytes)?.saturating_add(self.h2d_ns(bytes)?))
    }

    fn copy_ns(&self, bytes: u64, bytes_per_s: f64) -> Option<u64> {
        let ns = bytes as f64 / bytes_per_s * 1e9;
        (bytes_per_s > 0.0).then(|| self.copy_latency_ns.saturating_add(whole(ns)))
    }
}

/// The least whole number of ns that is not less.
fn whole(ns: f64) -> u64 {
    ns.ceil() as u64
}
