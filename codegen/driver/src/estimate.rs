//! Memory that a training step needs: no budget, no plan.

use std::collections::BTreeSet;

use memc_ir::{Arena, OutputRole, Role, TensorType};
use memc_passes::plan::{Problem, TensorKind};
use memc_planner::Allow;
use memc_planner::{OpPos, Tensor, TensorId};
use serde::Serialize;

use crate::candidate::Poses;
use crate::error::Error;
use crate::instance::Instance;
use crate::memory::{Sample, memory_over_time};
use crate::source::{Model, SavedActivations, Work};
use crate::watch::{Event, Watch};

/// Memory of an unplanned step in bytes, by purpose.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct Estimate {
    pub model: String,
    pub ops: usize,
    pub tensors: usize,
    pub distinct_tensor_sizes: usize,
    /// Elements of all parameters, trained and frozen.
    pub parameters: u64,
    pub weights_bytes: u64,
    /// All gradients of parameters at once.
    pub gradients_bytes: u64,
    pub optimizer_bytes: u64,
    pub buffers_bytes: u64,
    pub constants_bytes: u64,
    /// Most activations live at once in the given order, gradients of activations included.
    pub activations_bytes: u64,
    /// Largest scratch of one op.
    pub workspace_bytes: u64,
    pub persistent_bytes: u64,
    pub reserve_bytes: u64,
    /// Memory of the device.
    pub memory_bytes: Option<u64>,
    /// Arena of the unplanned step, reserve included.
    pub peak_bytes: u64,
    pub smallest_feasible_bytes: u64,
    pub largest_working_set_bytes: u64,
    pub largest_working_set_op: String,
    /// Step when nothing waits.
    pub ideal_ns: u64,
    #[serde(rename = "stash")]
    pub saved: SavedActivations,
    pub work: Work,
    pub work_unfused: Work,
    /// Live bytes over the step, reserve left out.
    #[serde(skip)]
    pub live: Vec<Sample>,
}

/// Estimates a model's step on its device, in the order as given.
pub fn estimate(model: &Model, watch: &dyn Watch) -> Result<Estimate, Error> {
    watch.event(Event::Stage("estimating"));
    let instance = Instance::of_model(model, Poses::GIVEN)?;
    let smallest = instance.smallest(Allow::ALL)?;
    let Some(p) = instance.given().model() else {
        return Err(Error::Internal("the problem is not a model's".into()));
    };
    let (b, own) = (p.breakdown(), model.own());
    let (position, working_set) = p.numbers.largest_working_set();
    Ok(Estimate {
        model: p.module.name.clone(),
        ops: p.ops.len(),
        tensors: p.numbers.tensors.len(),
        distinct_tensor_sizes: distinct_sizes(p),
        parameters: parameters(p),
        weights_bytes: b.weights,
        gradients_bytes: b.gradients + transient_gradients(p),
        optimizer_bytes: b.optimizer,
        buffers_bytes: b.buffers,
        constants_bytes: b.constants,
        activations_bytes: activation_peak(p),
        workspace_bytes: b.workspace,
        persistent_bytes: b.weights + b.gradients + b.optimizer + b.buffers + b.constants,
        reserve_bytes: instance.reserve_bytes,
        memory_bytes: model.profile.memory_bytes,
        peak_bytes: instance.given().kept().evaluation.dev_bytes + instance.reserve_bytes,
        smallest_feasible_bytes: smallest,
        largest_working_set_bytes: working_set,
        largest_working_set_op: p.numbers.ops.get(position).map(|op| op.label.clone()).unwrap_or_default(),
        ideal_ns: instance.ideal_ns(),
        saved: model.smallest().saved.clone(),
        work: own.work,
        work_unfused: own.unfused.unwrap_or(own.work),
        live: memory_over_time(instance.given().kept()),
    })
}

/// Different sizes of tensors, in bytes.
fn distinct_sizes(p: &Problem) -> usize {
    p.numbers.tensors.values().map(|t| t.size).collect::<BTreeSet<u64>>().len()
}

/// Elements of all parameters that are trained, or where none is, of all that are frozen.
fn parameters(p: &Problem) -> u64 {
    let trains = p.module.states.values().any(|s| s.role == Role::Param);
    let role = if trains { Role::Param } else { Role::Frozen };
    let params = p.module.states.values().filter(|s| s.role == role);
    params.map(|s| p.module.values[s.value].ty.numel()).sum()
}

/// For every tensor, whether it is a parameter's gradient: what an optimizer op reads as one. In a module
/// without such ops, what is shaped like a parameter and first written after the loss.
fn gradients(p: &Problem) -> Arena<TensorId, bool> {
    let module = &p.module;
    let updates =
        |op: &memc_ir::OpId| module.ops[*op].kind().is_some_and(|k| k.def().operands.get(1) == Some(&"g"));
    let ops = p.ops.values().zip(p.numbers.ops.values()).filter(|(op, _)| updates(op));
    let read: BTreeSet<TensorId> = ops.flat_map(|(_, op)| op.reads.clone()).collect();
    if !read.is_empty() {
        let transient = |(t, k): (TensorId, &TensorKind)| *k == TensorKind::Transient && read.contains(&t);
        return p.kinds.iter().map(transient).collect();
    }
    let is_param = |role: Role| role == Role::Param;
    let shapes: BTreeSet<&TensorType> =
        module.states.values().filter(|s| is_param(s.role)).map(|s| &module.values[s.value].ty).collect();
    let losses: Vec<usize> = p.losses();
    let completes = |(_, outputs): &(OpPos, &Vec<usize>)| outputs.iter().any(|o| losses.contains(o));
    let loss = p.outputs.iter().find(completes).map_or(OpPos(0), |(op, _)| op);
    let gradient_output = |t: &Tensor| {
        module.outputs.iter().any(|o| o.role == OutputRole::Gradient && module.values[o.value].name == t.name)
    };
    let is_gradient = |(id, t): (TensorId, &Tensor)| {
        let late = t.writes.first().is_some_and(|&w| w > loss) && shapes.contains(p.tensor_type(id));
        p.kinds[id] == TensorKind::Transient && (late || gradient_output(t))
    };
    p.numbers.tensors.iter().map(is_gradient).collect()
}

fn transient_gradients(p: &Problem) -> u64 {
    p.numbers.tensors.values().zip(gradients(p).into_values()).filter(|(_, g)| *g).map(|(t, _)| t.bytes).sum()
}

/// Most bytes of activations live at once in the given order.
fn activation_peak(p: &Problem) -> u64 {
    let mut delta: Arena<OpPos, i128> = Arena::filled(0, p.ops.len() + 1);
    for (t, gradient) in p.numbers.tensors.values().zip(gradients(p).into_values()) {
        if t.persistent() || gradient {
            continue;
        }
        if let (Some(&first), Some(&last)) = (t.touches.first(), t.touches.last()) {
            delta[first] += i128::from(t.bytes);
            delta[last.next()] -= i128::from(t.bytes);
        }
    }
    let mut live = 0i128;
    let peak = delta
        .values()
        .map(|d| {
            live += d;
            live
        })
        .max()
        .unwrap_or(0);
    u64::try_from(peak).unwrap_or(0)
}
