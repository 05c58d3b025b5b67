//! Models that a plan serves: one, or each of its jobs.
//!
//! Contract: the steps that a job has in a round are *lanes*: each takes a batch of its own. A model whose
//! inputs and outputs all begin with the same extent takes requests of up to so many rows, which share a
//! batch; any other takes requests of exactly the plan's shapes.

use std::collections::BTreeMap;

use memc_ir::{DType, TensorType};
use memc_plan::{Feed, Plan};

use crate::feed::legal::{self, Legal};
use crate::jobs::{self, Job};
use crate::{Error, Program};

/// An input or output of a model.
#[derive(Debug)]
pub(super) struct Port {
    /// The model's own name of it.
    pub(super) name: String,
    /// Type of a whole batch.
    pub(super) ty: TensorType,
    /// Index among the plan's inputs or outputs, by lane.
    pub(super) at: Vec<usize>,
    /// Values that an input may hold.
    pub(super) legal: Vec<Legal>,
}

impl Port {
    /// Bytes of a number of rows; of a whole tensor where there are no rows.
    pub(super) fn bytes(&self, rows: Option<(u64, u64)>) -> usize {
        let all = self.ty.bytes();
        let bytes = rows.map_or(all, |(rows, batch)| (all / batch.max(1)).saturating_mul(rows));
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// A model that is served.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    /// Rows of a batch; `None` where requests have the plan's shapes.
    pub(super) batch: Option<u64>,
    pub(super) lanes: usize,
}

impl Model {
    /// Rows that a lane takes: requests without rows count as one.
    pub(super) fn rows(&self) -> u64 {
        self.batch.unwrap_or(1)
    }

    /// Bytes of an input or output of a request.
    pub(super) fn bytes(&self, port: &Port, rows: u64) -> usize {
        port.bytes(self.batch.map(|batch| (rows, batch)))
    }
}

/// An input that the server sets itself: the number of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    pub(super) input: usize,
    pub(super) dtype: DType,
    pub(super) turn: memc_ir::Turn,
}

/// The models of a plan, named by its jobs or else `name`.
///
/// # Errors
/// [`Error::Plan`] for a plan that is not for inference.
pub(super) fn models(
    plan: &Plan,
    program: &Program,
    name: Option<&str>,
    default: &str,
    batches: bool,
) -> Result<(Vec<Model>, Vec<Counter>), Error> {
    if !plan.meta.is_inference() {
        let text = "the plan is not for inference; compile one with `memc compile --inference`";
        return Err(Error::Plan(text.to_owned()));
    }
    let limits = legal::of(plan, program);
    let mut counters = Vec::new();
    let jobs = jobs::of(plan);
    let mut models = Vec::new();
    for job in &jobs {
        let name = match (job.name.as_str(), name) {
            ("", given) => given.unwrap_or(default).to_owned(),
            (job, None) => job.to_owned(),
            (job, Some(given)) => format!("{given}.{job}"),
        };
        let inputs = inputs(plan, program, job, &limits)?;
        let outputs = outputs(plan, program, job)?;
        let batch = batch(&inputs, &outputs).filter(|_| batches);
        models.push(Model { name, inputs, outputs, batch, lanes: job.steps.max(1) as usize });
    }
    for (input, entry) in plan.inputs.iter().enumerate() {
        match entry.feed {
            Feed::Step { turn } => counters.push(Counter { input, dtype: entry.ty.dtype, turn }),
            Feed::LearningRate { .. } => {
                return Err(Error::Plan(format!("input `{}`: inference has no learning rate", entry.name)));
            }
            Feed::Data { .. } => {}
        }
    }
    Ok((models, counters))
}

/// The inputs of a job, in the plan's order.
fn inputs(
    plan: &Plan,
    program: &Program,
    job: &Job,
    limits: &BTreeMap<usize, Vec<Legal>>,
) -> Result<Vec<Port>, Error> {
    let mut ports: Vec<Port> = Vec::new();
    for (at, (input, ty)) in plan.inputs.iter().zip(&program.types.inputs).enumerate() {
        let Feed::Data { source, micro, .. } = &input.feed else { continue };
        let Some(own) = job.own_name(source) else { continue };
        let legal = limits.get(&at).cloned().unwrap_or_default();
        match ports.iter_mut().find(|port| port.name == own) {
            Some(port) if port.at.len() == *micro as usize && port.ty == *ty => port.at.push(at),
            None if *micro == 0 => {
                ports.push(Port { name: own.to_owned(), ty: ty.clone(), at: vec![at], legal });
            }
            _ => {
                return Err(Error::Plan(format!(
                    "input `{}`: its steps do not follow each other",
                    input.name
                )));
            }
        }
    }
    complete(ports, job, "input")
}

/// The outputs of a job: those of its first step, then those of the next.
fn outputs(plan: &Plan, program: &Program, job: &Job) -> Result<Vec<Port>, Error> {
    let own = |(at, (output, ty)): (usize, (&memc_plan::Output, &TensorType))| {
        Some((job.own_name(&output.name)?.to_owned(), ty.clone(), at))
    };
    let all: Vec<(String, TensorType, usize)> =
        plan.outputs.iter().zip(&program.types.outputs).enumerate().filter_map(own).collect();
    let each = all.len() / job.steps.max(1) as usize;
    let mut ports: Vec<Port> = Vec::new();
    for (place, (name, ty, at)) in all.into_iter().enumerate() {
        if place < each {
            ports.push(Port { name, ty, at: vec![at], legal: Vec::new() });
        } else if let Some(port) = ports.get_mut(place.checked_rem(each).unwrap_or(0))
            && port.ty == ty
        {
            port.at.push(at);
        }
    }
    complete(ports, job, "output")
}

/// The ports, each of which must have every lane.
fn complete(ports: Vec<Port>, job: &Job, what: &str) -> Result<Vec<Port>, Error> {
    match ports.iter().find(|port| port.at.len() != job.steps.max(1) as usize) {
        None => Ok(ports),
        Some(port) => Err(Error::Plan(format!("{what} `{}` is not there in every step", port.name))),
    }
}

/// First extent of all inputs and outputs, where there is one.
fn batch(inputs: &[Port], outputs: &[Port]) -> Option<u64> {
    let mut extents = inputs.iter().chain(outputs).map(|port| port.ty.shape.first().copied());
    let first = extents.next()?.filter(|&extent| extent > 0)?;
    (!inputs.is_empty() && extents.all(|extent| extent == Some(first))).then_some(first)
}
