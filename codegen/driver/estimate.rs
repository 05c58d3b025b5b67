//! `memc estimate`.

use std::collections::BTreeSet;

use memc_ir::{Bytes, OutputRole, Role, TensorType, counted};
use memc_passes::plan::{Kind, Problem, keep_all, smallest_feasible};
use memc_planner::Tensor;
use serde_json::json;

use crate::cli::Estimate;
use crate::device;
use crate::exit::Error;
use crate::output::{Progress, emit, table};
use crate::report::ms;
use crate::source;

pub(crate) fn run(args: &Estimate) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let profile = &*device::find(&args.device)?;
    progress.stage("importing");
    let loaded = source::load(&args.source)?;
    progress.notes(&loaded.notes, &loaded.warnings);
    let mut graph = loaded.module;
    let source::Rewritten { stash, work, unfused } = source::canonicalise(&mut graph, profile, args.rewrite)?;
    progress.stage("estimating");
    let p = Problem::new(&graph, profile).map_err(Error::Model)?;
    let unplanned = keep_all(&p)?;
    let smallest = smallest_feasible(&p)? + profile.reserve_bytes;
    progress.done();

    let b = p.breakdown();
    let gradients = b.gradients + transient_gradients(&p);
    let persistent = b.weights + b.gradients + b.optimizer + b.buffers + b.constants;
    let activations = activation_peak(&p);
    let (position, working_set) = p.numbers.largest_working_set();
    let op = p.numbers.ops.get(position).map(|op| op.label.clone()).unwrap_or_default();
    let peak = unplanned.dev_bytes + profile.reserve_bytes;
    if args.json {
        return emit(&format!(
            "{}\n",
            json!({
                "model": p.module.name, "ops": p.ops.len(), "tensors": p.numbers.tensors.len(),
                "distinct_tensor_sizes": distinct_sizes(&p), "parameters": parameters(&p), "weights_bytes": b.weights, "gradients_bytes": gradients,
                "optimizer_bytes": b.optimizer, "buffers_bytes": b.buffers, "constants_bytes": b.constants,
                "activations_bytes": activations, "workspace_bytes": b.workspace, "persistent_bytes": persistent,
                "reserve_bytes": profile.reserve_bytes, "memory_bytes": profile.memory_bytes, "peak_bytes": peak, "smallest_feasible_bytes": smallest, "largest_working_set_bytes": working_set,
                "largest_working_set_op": op, "ideal_ns": p.numbers.compute_ns(), "stash": stash.json(),
                "work": work.json(), "work_unfused": unfused.unwrap_or(work).json(),
            })
        ));
    }
    let row = |name: &str, bytes: u64, note: &str| {
        vec![name.to_string(), Bytes(bytes).short(), bytes.to_string(), note.to_string()]
    };
    let has = profile.memory_bytes.map(|bytes| format!("; {} has {}", profile.name, Bytes(bytes).short()));
    let has = has.unwrap_or_default();
    let mut rows = vec![
        row("weights", b.weights, "parameters, trained and frozen"),
        row("gradients", gradients, "all at once; fewer where the optimizer follows closely"),
        row("optimizer", b.optimizer, "state kept between steps"),
        row("buffers", b.buffers + b.constants, "running statistics and constants"),
        row("activations", activations, "most live at once, gradients of activations included"),
        row("workspace", b.workspace, "largest scratch of one op"),
    ];
    if profile.reserve_bytes > 0 {
        rows.push(row("reserve", profile.reserve_bytes, "set aside for the driver, libraries and code"));
    }
    rows.push(row("peak", peak, &format!("unplanned, laid out{has}")));
    rows.push(row("smallest", smallest, &format!("feasible --gpu-mem; working set of {op}")));
    let text = table(&[p.module.name.as_str(), "size", "bytes", ""], &rows);
    emit(&format!("{text}\n{}\n{}\n", stash.text(), kernels(work, unfused)))
}

/// A line for people.
fn kernels(work: source::Work, unfused: Option<source::Work>) -> String {
    let text = |w: source::Work| {
        format!("{} moving {} in {}", counted(w.kernels, "kernel"), Bytes(w.bytes).short(), ms(w.ns))
    };
    match unfused.filter(|u| u.kernels != work.kernels) {
        Some(unfused) => format!("{} (modelled); without fusion {}", text(work), text(unfused)),
        None => format!("{} (modelled)", text(work)),
    }
}

/// Different sizes of tensors, in bytes.
fn distinct_sizes(p: &Problem) -> usize {
    p.numbers.tensors.iter().map(|t| t.size).collect::<BTreeSet<u64>>().len()
}

/// Elements of all parameters, trained and frozen.
fn parameters(p: &Problem) -> u64 {
    let params = p.module.states.values().filter(|s| s.role == Role::Param);
    params.map(|s| p.module.values[s.value].ty.numel()).sum()
}

/// For every tensor, whether it is a parameter's gradient: what an optimizer op reads as one. In a module without such
/// ops, what is shaped like a parameter and first written after the loss.
fn gradients(p: &Problem) -> Vec<bool> {
    let module = &p.module;
    let updates =
        |op: &memc_ir::OpId| module.ops[*op].kind().is_some_and(|k| k.def().operands.get(1) == Some(&"g"));
    let ops = p.ops.iter().zip(&p.numbers.ops).filter(|(op, _)| updates(op));
    let read: BTreeSet<u32> = ops.flat_map(|(_, op)| op.reads.clone()).collect();
    if !read.is_empty() {
        let transient = |(i, k): (usize, &Kind)| *k == Kind::Transient && read.contains(&(i as u32));
        return p.kinds.iter().enumerate().map(transient).collect();
    }
    let is_param = |role: Role| role == Role::Param;
    let shapes: BTreeSet<&TensorType> =
        module.states.values().filter(|s| is_param(s.role)).map(|s| &module.values[s.value].ty).collect();
    let losses: Vec<usize> = p.losses();
    let loss =
        p.outputs.iter().position(|outputs| outputs.iter().any(|o| losses.contains(o))).unwrap_or(0) as u32;
    let gradient_output = |t: &Tensor| {
        module.outputs.iter().any(|o| o.role == OutputRole::Gradient && module.values[o.value].name == t.name)
    };
    let is_gradient = |(i, t): (usize, &Tensor)| {
        let late = t.writes.first().is_some_and(|&w| w > loss) && shapes.contains(p.tensor_type(i as u32));
        p.kinds[i] == Kind::Transient && (late || gradient_output(t))
    };
    p.numbers.tensors.iter().enumerate().map(is_gradient).collect()
}

fn transient_gradients(p: &Problem) -> u64 {
    p.numbers.tensors.iter().zip(gradients(p)).filter(|(_, g)| *g).map(|(t, _)| t.bytes).sum()
}

/// Most bytes of activations live at once in the given order.
fn activation_peak(p: &Problem) -> u64 {
    let mut delta = vec![0i128; p.ops.len() + 1];
    for (t, gradient) in p.numbers.tensors.iter().zip(gradients(p)) {
        if t.persistent() || gradient {
            continue;
        }
        if let (Some(&first), Some(&last)) = (t.touches.first(), t.touches.last()) {
            delta[first as usize] += i128::from(t.bytes);
            delta[last as usize + 1] -= i128::from(t.bytes);
        }
    }
    let mut live = 0i128;
    let peak = delta
        .iter()
        .map(|d| {
            live += d;
            live
        })
        .max()
        .unwrap_or(0);
    u64::try_from(peak).unwrap_or(0)
}
