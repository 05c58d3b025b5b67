//! Measuring a plan on a device: what every kernel takes, and what the machine's memory and copies reach.
//!
//! The result is a device profile as `memc --device FILE` reads it (`memc-profile/1`, described with the cost
//! model). Kernels are timed in steps of the plan, one at a time; the first step, which warms up, does not
//! count.

pub(crate) mod machine;

use std::sync::Arc;
use std::time::Duration;

use memc_gpu::{Clock, Cuda, Facts, GpuError, Graphs, LibraryAlgorithms, LibraryOptions, Rounding};
use memc_plan::PlanFile;
use rayon::ThreadPool;
use serde_json::{Map, Value, json};

pub use machine::Machine;
use machine::median;

use crate::cpu::{self, timed::Timed};
use crate::gpu::{machine as gpu_machine, measure};
use crate::memory;
use crate::run::require_gpu;
use crate::{Device, DeviceName, Error, FeedOptions, Feeder, Initial, InputSource, Program, Session, Stages};

/// Options of a measurement.
#[derive(Clone, Debug, Default)]
pub struct ProfileOptions {
    /// Steps whose kernels are timed, at least 1.
    pub steps: u64,
    /// Device to measure on.
    pub device: DeviceName,
    /// Threads that kernels of the CPU device run on; 0 for as many as the machine has.
    pub threads: usize,
    /// Permissions of a GPU's libraries.
    pub libraries: LibraryOptions,
    /// Time that a GPU is kept busy before it is measured, so that its clocks are those of a long run.
    pub warm_up: Duration,
    /// Most bytes of a GPU plan's host arena; `None` for what the system has available.
    pub host_mem: Option<u64>,
    /// Files by the name under which the model takes the data; other inputs are synthetic.
    pub inputs: Vec<(String, InputSource)>,
    /// Receiver of the stages.
    pub stages: Stages,
}

/// Results of a measurement.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Name of the device in plans and listings.
    pub name: String,
    /// Estimator of ops that were not measured: `plain` or `gpu`.
    pub kernels: &'static str,
    /// Threads that kernels ran on, or multiprocessors.
    pub processors: u64,
    /// Rates of the machine.
    pub machine: Machine,
    /// Every kernel that ran.
    pub ops: Vec<Op>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A kernel and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Name of the op.
    pub op: String,
    /// Its attributes as in IR text; empty when all have their defaults.
    pub attrs: String,
    /// Types of its operands.
    pub operands: Vec<String>,
    /// Bytes of workspace that the plan has for it.
    pub workspace_bytes: u64,
    /// Its time in ns: a median, or the average of a run.
    pub time_ns: u64,
    /// Times that the median is of, or the average.
    pub samples: u64,
}

impl Op {
    /// A kernel that took so long.
    pub(crate) fn of(kernel: &memc_plan::Kernel, time_ns: u64, samples: u64) -> Op {
        Op {
            op: kernel.op.mnemonic().to_owned(),
            attrs: kernel.op.attrs_text(),
            operands: kernel.operands.iter().map(ToString::to_string).collect(),
            workspace_bytes: kernel.workspace_bytes,
            time_ns,
            samples,
        }
    }
}

/// Runs a plan and measures it.
///
/// # Errors
/// Those of a run.
pub fn profile(file: &PlanFile, options: &ProfileOptions) -> Result<Profile, Error> {
    require_gpu(options.device, options.libraries, false)?;
    if let DeviceName::Cuda(ordinal) = options.device {
        return profile_gpu(&|| Cuda::open(ordinal, options.libraries), file, options);
    }
    let program = Arc::new(Program::new(file.plan())?);
    let device = Timed::new(options.threads)?;
    let notes = steps(&device, file, &program, options, || {
        device.take();
    })?;
    let machine = Machine::measure(device.pool(), &options.stages)?;
    Ok(Profile { notes, ..Profile::of_cpu(device.pool(), machine, ops(&program, device.take())) })
}

/// [`profile`] on a device whose drivers `open` makes: one for the plan's steps, and then one for what it
/// reaches.
///
/// # Errors
/// Those of a run.
pub fn profile_gpu<D: Graphs + Clock + LibraryAlgorithms + 'static, F: Fn() -> Result<D, GpuError>>(
    open: &F,
    file: &PlanFile,
    options: &ProfileOptions,
) -> Result<Profile, Error> {
    let program = Arc::new(Program::new(file.plan())?);
    memory::limit(program.host_bytes, options.host_mem)?;
    let warm_ns = options.warm_up.as_nanos().try_into().unwrap_or(u64::MAX);
    let device = measure::Timed::new(open, options.host_mem, warm_ns);
    let notes = steps(&device, file, &program, options, || ())?;
    let taken = device.take();
    let is_tf32 = options.libraries.rounding == Rounding::Tf32;
    let host_is_granted = options.host_mem.is_some();
    let conditions = gpu_machine::Conditions { host_is_granted, is_tf32, warm_ns };
    let machine = gpu_machine::machine(open()?, conditions, &options.stages)?;
    let Some((facts, reserve_bytes)) = taken.device else {
        return Err(Error::Internal("no step was measured".to_owned()));
    };
    let machine = Machine { reserve_bytes, ..machine };
    Ok(Profile { notes, ..Profile::of_gpu(&facts, machine, ops(&program, taken.times)) })
}

/// The profile of a run on the CPU device whose kernels were measured in service; the machine is measured
/// now.
///
/// # Errors
/// Those of a measurement.
pub(crate) fn of_run(threads: usize, kernels: Vec<Op>) -> Result<Profile, Error> {
    let pool = cpu::pool(threads)?;
    let machine = Machine::measure(&pool, &Stages::default())?;
    Ok(Profile::of_cpu(&pool, machine, kernels))
}

/// Runs a step that warms up, and those that count; returns what the user should know.
fn steps(
    device: &dyn Device,
    file: &PlanFile,
    program: &Arc<Program>,
    options: &ProfileOptions,
    warm: impl Fn(),
) -> Result<Vec<String>, Error> {
    let plan = file.plan();
    let initial = Initial::new(file, Vec::new(), Vec::new())?;
    let steps = options.steps.max(1).saturating_add(1);
    let feed =
        FeedOptions { inputs: options.inputs.clone(), synthetic: true, steps, ..FeedOptions::default() };
    let mut feeder = Feeder::new(plan, std::slice::from_ref(program), &feed)?;
    options.stages.enter("reserving memory, preparing kernels");
    let mut session = Session::start(device, plan, program.clone(), &initial, &mut feeder)?;
    for step in 0..steps {
        options.stages.enter(&match step {
            0 => "a step that warms up".to_owned(),
            _ => format!("timing kernels: step {step} of {}", steps - 1),
        });
        session.step()?;
        if step == 0 {
            warm();
        }
    }
    Ok(session.notes().to_vec())
}

/// The kernels that have times.
fn ops(program: &Program, times: Vec<Vec<u64>>) -> Vec<Op> {
    let measured = program.kernels.iter().zip(times).filter(|(_, times)| !times.is_empty());
    measured.map(|(kernel, mut times)| Op::of(kernel, median(&mut times), times.len() as u64)).collect()
}

impl Profile {
    /// A profile of the CPU device.
    fn of_cpu(pool: &ThreadPool, machine: Machine, ops: Vec<Op>) -> Profile {
        let threads = pool.current_num_threads();
        let name = format!("cpu-{threads}-threads");
        Profile { name, kernels: "plain", processors: threads as u64, machine, ops, notes: Vec::new() }
    }

    /// A profile of a GPU.
    fn of_gpu(facts: &Facts, machine: Machine, ops: Vec<Op>) -> Profile {
        let name = memc_support::profile_name(&facts.name);
        let processors = facts.processors.max(1).into();
        Profile { name, kernels: "gpu", processors, machine, ops, notes: Vec::new() }
    }

    /// The profile as `memc --device FILE` reads it.
    pub fn to_json(&self) -> Value {
        let m = &self.machine;
        let least = self.ops.iter().map(|op| op.time_ns).min().unwrap_or(0);
        let ops = self.ops.iter().map(|op| {
            let mut row = Map::new();
            row.insert("op".to_owned(), json!(op.op));
            if !op.attrs.is_empty() {
                row.insert("attrs".to_owned(), json!(op.attrs));
            }
            row.insert("operands".to_owned(), json!(op.operands));
            if op.workspace_bytes > 0 {
                row.insert("workspace_bytes".to_owned(), json!(op.workspace_bytes));
            }
            row.insert("time_ns".to_owned(), json!(op.time_ns));
            row.insert("samples".to_owned(), json!(op.samples));
            Value::Object(row)
        });
        let mut profile = json!({
            "format": "memc-profile/1",
            "name": self.name,
            "kernels": self.kernels,
            "processors": self.processors,
            "f32_flops_per_s": m.flops_per_s,
            "memory_bytes_per_s": m.memory_bytes_per_s,
            "d2h_bytes_per_s": m.d2h_bytes_per_s,
            "h2d_bytes_per_s": m.h2d_bytes_per_s,
            "duplex_total_bytes_per_s": m.duplex_bytes_per_s,
            "kernel_latency_ns": m.kernel_latency_ns.unwrap_or(least),
            "copy_latency_ns": m.copy_latency_ns,
            "reserve_bytes": m.reserve_bytes,
        });
        let units = [
            ("f16_flops_per_s", m.f16_flops_per_s),
            ("bf16_flops_per_s", m.bf16_flops_per_s),
            ("tf32_flops_per_s", m.tf32_flops_per_s),
        ];
        for (name, rate) in units {
            rate.into_iter().for_each(|rate| profile[name] = json!(rate));
        }
        if let Some(rate) = m.host_bytes_per_s {
            profile["host_bytes_per_s"] = json!(rate);
        }
        if let Some(ns) = m.host_latency_ns {
            profile["host_latency_ns"] = json!(ns);
        }
        if let Some(bytes) = m.memory_bytes {
            profile["memory_bytes"] = json!(bytes);
        }
        if let Some(times) = m.compute_slowdown {
            profile["compute_slowdown_under_copies"] = json!(times);
        }
        profile["ops"] = ops.collect();
        profile
    }
}
