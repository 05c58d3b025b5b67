//! Measuring a plan on the CPU device: what every kernel takes, and what the machine's memory and copies reach.
//!
//! The result is a device profile as `memc --device FILE` reads it (`memc-profile/1`, described with the cost model).
//! Kernels are timed in steps of the plan, one at a time; the first step, which warms up, does not count.

mod machine;

use std::{path::PathBuf, sync::Arc};

use memc_plan::PlanFile;
use serde_json::{Map, Value, json};

pub use machine::Machine;

use crate::cpu::timed::Timed;
use crate::{Error, FeedOptions, Feeder, Initial, Program, Session};

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct ProfileOptions {
    /// Steps whose kernels are timed, at least 1.
    pub steps: u64,
    /// Threads that kernels run on; 0 for as many as the machine has.
    pub threads: usize,
    /// Files by the name under which the model takes the data; other inputs are synthetic.
    pub inputs: Vec<(String, PathBuf)>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Threads that kernels ran on.
    pub threads: usize,
    /// What the machine reaches.
    pub machine: Machine,
    /// Every kernel that ran.
    pub ops: Vec<Op>,
}

/// A kernel and its time.
#[derive(Clone, Debug)]
pub struct Op {
    /// Name of the op.
    pub op: String,
    /// Its attributes as in IR text; empty when all have their defaults.
    pub attrs: String,
    /// Types of its operands.
    pub operands: Vec<String>,
    /// Median time in ns.
    pub time_ns: u64,
    /// Times that the median is of.
    pub samples: usize,
}

/// Runs a plan and measures it.
///
/// # Errors
/// Those of a run.
pub fn profile(file: &PlanFile, options: &ProfileOptions) -> Result<Profile, Error> {
    let plan = file.plan();
    let program = Arc::new(Program::new(plan)?);
    let initial = Initial::new(file, None, None)?;
    let steps = options.steps.max(1).saturating_add(1);
    let feed = FeedOptions { inputs: options.inputs.clone(), lr: None, seed: 0, done: 0, steps };
    let mut feeder = Feeder::new(plan, &program, &feed)?;
    let device = Timed::new(options.threads)?;
    let mut session = Session::start(&device, plan, program.clone(), &initial, &mut feeder)?;
    for step in 0..steps {
        session.step()?;
        if step == 0 {
            device.take();
        }
    }
    drop(session);
    let measured = program.kernels.iter().zip(device.take()).filter(|(_, times)| !times.is_empty());
    let ops = measured.map(|(kernel, mut times)| Op {
        op: kernel.op.mnemonic().to_owned(),
        attrs: kernel.op.attrs_text(),
        operands: kernel.operands.iter().map(ToString::to_string).collect(),
        time_ns: median(&mut times),
        samples: times.len(),
    });
    let ops = ops.collect();
    Ok(Profile {
        threads: device.pool().current_num_threads(),
        machine: Machine::measure(device.pool())?,
        ops,
    })
}

/// The middle of some numbers, the lower of two; 0 of none.
pub(crate) fn median(numbers: &mut [u64]) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

impl Profile {
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
            row.insert("time_ns".to_owned(), json!(op.time_ns));
            row.insert("samples".to_owned(), json!(op.samples));
            Value::Object(row)
        });
        json!({
            "format": "memc-profile/1",
            "name": format!("cpu-{}-threads", self.threads),
            "kernels": "plain",
            "processors": self.threads,
            "f32_flops_per_s": m.flops_per_s,
            "memory_bytes_per_s": m.memory_bytes_per_s,
            "d2h_bytes_per_s": m.copy_bytes_per_s,
            "h2d_bytes_per_s": m.copy_bytes_per_s,
            "duplex_total_bytes_per_s": m.duplex_bytes_per_s,
            "kernel_latency_ns": least,
            "copy_latency_ns": m.hand_over_ns,
            "reserve_bytes": 0,
            "ops": ops.collect::<Vec<_>>(),
        })
    }
}
