//! The plan that plans nothing: the source graph op by op in its own order on one stream, each tensor in
//! memory of its own while something reads it. A planned run on the same device must equal it bit for bit.
//!
//! Contract: reads nothing of the plan but the source text, the tables of states, inputs and outputs, and the
//! kernel table. Schedule, slots and recomputation play no part. Kernels are entries of the plan's own table,
//! with their workspaces, so that a device which chooses among implementations by kernel and workspace
//! chooses the same.

use std::collections::BTreeMap;

use memc_ir::{Def, Id, Module, OpId, Phase, TensorType, ValueId};
use memc_plan::{Action, Command, Kernel, Plan, Queue, Slice};

use crate::Error;

/// Alignment of every tensor.
const ALIGN: u64 = 256;

/// The events of a step: inputs are on the device, everything is computed, outputs are in host memory.
const ARRIVED: u32 = 0;
const COMPUTED: u32 = 1;
const TAKEN: u32 = 2;

/// The unplanned plan of a plan's source graph, with the same tables of states, inputs and outputs. That of a
/// plan with buckets has an unplanned plan for each. They have the variable states in the same places, and
/// constants apart from each other. The rest shares its bytes: steps take turns.
///
/// # Errors
/// [`Error::Plan`] if the source is no valid graph or lacks something that the plan's tables name.
pub(crate) fn plan(of: &Plan) -> Result<Plan, Error> {
    let bytes = |plan: &Plan, variable: bool| {
        let states = plan.states.iter().filter(|state| state.is_variable() == variable);
        states.fold(0u64, |sum, state| sum.saturating_add(aligned(state.resident.bytes)))
    };
    let mut constants = bytes(of, true);
    let kept = of.with_buckets().fold(constants, |sum, plan| sum.saturating_add(bytes(plan, false)));
    let mut plans = Vec::new();
    for bucket in of.with_buckets() {
        plans.push(unplanned(bucket, Begins { constants, rest: kept })?);
        constants = constants.saturating_add(bytes(bucket, false));
    }
    let most = |of: &dyn Fn(&Plan) -> u64| plans.iter().map(of).max().unwrap_or(0);
    let (dev_bytes, host_bytes) = (most(&|plan| plan.meta.dev_bytes), most(&|plan| plan.meta.host_bytes));
    for plan in &mut plans {
        (plan.meta.dev_bytes, plan.meta.host_bytes) = (dev_bytes, host_bytes);
    }
    let mut plans = plans.into_iter();
    let mut plan = plans.next().ok_or_else(|| source("there is none"))?;
    plan.buckets = plans.collect();
    Ok(plan)
}

/// First bytes of the device arena that a bucket may use.
#[derive(Clone, Copy)]
struct Begins {
    /// For constants.
    constants: u64,
    /// For all that does not stay from step to step.
    rest: u64,
}

/// The unplanned plan of one bucket.
fn unplanned(of: &Plan, begins: Begins) -> Result<Plan, Error> {
    let module = parse(of)?;
    let places = vec![None; module.values.len()];
    let plan = Plan { buckets: Vec::new(), ..of.clone() };
    let mut maker = Maker { plan, places, unused: BTreeMap::new(), dev: 0, host: 0 };
    maker.tables(&module, begins)?;
    let body = maker.body(&module)?;
    let mut plan = maker.plan;
    plan.events = TAKEN + 1;
    (plan.meta.dev_bytes, plan.meta.host_bytes) = (maker.dev, maker.host);
    // It may take what the device has.
    plan.meta.budget_bytes = i64::MAX.unsigned_abs();
    let states = 0u32..;
    plan.prologue =
        states.clone().zip(&plan.states).map(|(state, _)| on(Queue::Host, Action::Load { state })).collect();
    plan.body = body;
    let stored = states.zip(&plan.states).filter(|(_, s)| s.is_variable());
    plan.epilogue = stored.map(|(state, _)| on(Queue::Host, Action::Store { state })).collect();
    Ok(plan)
}

/// Bytes that a tensor takes of an arena.
fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

fn on(queue: Queue, action: Action) -> Command {
    Command { queue, action, label: String::new() }
}

struct Maker {
    plan: Plan,
    /// Place of each value, once it has one.
    places: Vec<Option<Slice>>,
    /// Offsets of device memory that nothing needs any more, by length.
    unused: BTreeMap<u64, Vec<u64>>,
    dev: u64,
    host: u64,
}

impl Maker {
    fn fresh(&mut self, bytes: u64) -> Slice {
        if let Some(at) = self.unused.get_mut(&bytes).and_then(Vec::pop) {
            return Slice::dev(at, bytes);
        }
        let at = self.dev;
        self.dev = aligned(at.saturating_add(bytes));
        Slice::dev(at, bytes)
    }

    /// Device memory that the compute stream alone has used, and needs no more.
    fn release(&mut self, place: Slice) {
        self.unused.entry(place.bytes).or_default().push(place.offset);
    }

    fn fresh_on_host(&mut self, bytes: u64) -> Slice {
        let at = self.host;
        self.host = aligned(at.saturating_add(bytes));
        Slice::host(at, bytes)
    }

    fn place(&self, value: ValueId) -> Result<Slice, Error> {
        let place = self.places.get(value.index()).copied().flatten();
        place.ok_or_else(|| source("a value is used before it is computed"))
    }

    fn put(&mut self, value: ValueId, place: Slice) {
        self.places.get_mut(value.index()).into_iter().for_each(|slot| *slot = Some(place));
    }

    /// Gives states and inputs places on the device, and inputs and outputs slots in host memory.
    fn tables(&mut self, module: &Module, begins: Begins) -> Result<(), Error> {
        let [mut variable, mut constant] = [0, begins.constants];
        for index in 0..self.plan.states.len() {
            let Some(state) = self.plan.states.get(index) else { continue };
            let next = if state.is_variable() { &mut variable } else { &mut constant };
            let resident = Slice::dev(*next, state.resident.bytes);
            *next = next.saturating_add(aligned(resident.bytes));
            let value = named(module, "state", &state.name, &state.ty)?;
            self.put(value, resident);
            self.plan.states.get_mut(index).into_iter().for_each(|state| state.resident = resident);
        }
        self.dev = begins.rest;
        for index in 0..self.plan.inputs.len() {
            let Some(input) = self.plan.inputs.get(index) else { continue };
            let (value, bytes) = (named(module, "input", &input.name, &input.ty)?, input.slot.bytes);
            let (place, slot) = (self.fresh(bytes), self.fresh_on_host(bytes));
            self.put(value, place);
            self.plan.inputs.get_mut(index).into_iter().for_each(|input| input.slot = slot);
        }
        for index in 0..self.plan.outputs.len() {
            let slot = self.plan.outputs.get(index).map_or(0, |output| output.slot.bytes);
            let slot = self.fresh_on_host(slot);
            self.plan.outputs.get_mut(index).into_iter().for_each(|output| output.slot = slot);
        }
        Ok(())
    }

    fn body(&mut self, module: &Module) -> Result<Vec<Command>, Error> {
        let mut body = Vec::new();
        let host = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
        for (i, _) in self.plan.inputs.iter().enumerate() {
            body.push(on(Queue::Host, Action::HostWrite { input: host(i) }));
        }
        for input in self.plan.inputs.clone() {
            let dst = self.place(named(module, "input", &input.name, &input.ty)?)?;
            body.extend(copy(Queue::H2D, input.slot, dst));
        }
        body.push(on(Queue::H2D, Action::Record { event: ARRIVED }));
        body.push(on(Queue::COMPUTE, Action::Wait { event: ARRIVED }));
        self.launches(module, &mut body)?;
        body.push(on(Queue::COMPUTE, Action::Record { event: COMPUTED }));
        body.push(on(Queue::D2H, Action::Wait { event: COMPUTED }));
        for entry in self.plan.outputs.clone() {
            let src = self.place(output(module, &entry.name, &entry.ty)?)?;
            body.extend(copy(Queue::D2H, src, entry.slot));
        }
        body.extend(self.carries(module)?);
        body.push(on(Queue::D2H, Action::Record { event: TAKEN }));
        body.push(on(Queue::Host, Action::Wait { event: TAKEN }));
        for (i, _) in self.plan.outputs.iter().enumerate() {
            body.push(on(Queue::Host, Action::HostRead { output: host(i) }));
        }
        Ok(body)
    }

    /// A launch for every op that is no view.
    fn launches(&mut self, module: &Module, body: &mut Vec<Command>) -> Result<(), Error> {
        let key = |kernel: &Kernel| (kernel.op.clone(), kernel.operands.clone(), kernel.results.clone());
        let mut kernels = BTreeMap::new();
        for (k, kernel) in (0u32..).zip(&self.plan.kernels) {
            kernels.insert(key(kernel), k);
        }
        let largest = self.plan.kernels.iter().map(|kernel| kernel.workspace_bytes).max().unwrap_or(0);
        let mut scratch = self.fresh(largest);
        let dead = dead_after(module);
        for (&op, dead) in module.order.iter().zip(&dead) {
            let Some(entry) = module.ops.get(op) else { continue };
            let reads = entry.operands.iter().map(|&v| self.place(v)).collect::<Result<Vec<_>, _>>()?;
            if entry.is_view() {
                if let (Some(&read), Some(&result)) = (reads.first(), entry.results.first()) {
                    self.put(result, read);
                }
                continue;
            }
            let own = kernel(module, op)?;
            let next = u32::try_from(self.plan.kernels.len()).unwrap_or(u32::MAX);
            let index: u32 = *kernels.entry(key(&own)).or_insert(next);
            if index == next {
                self.plan.kernels.push(own);
            }
            let needs = usize::try_from(index).ok().and_then(|k| self.plan.kernels.get(k));
            let needs = needs.map_or(0, |kernel| kernel.workspace_bytes);
            if needs > scratch.bytes {
                scratch = self.fresh(needs);
            }
            let mut writes = Vec::with_capacity(entry.results.len());
            for &result in &entry.results {
                let place = self.fresh(module.values.get(result).map_or(0, |value| value.ty.bytes()));
                self.put(result, place);
                writes.push(place);
            }
            let workspace = (needs > 0).then_some(Slice { bytes: needs, ..scratch });
            let label = entry.results.first().and_then(|&v| module.values.get(v));
            let label = label.map(|value| value.name.clone()).unwrap_or_default();
            let action = Action::Launch { kernel: index, reads, writes, workspace };
            body.push(Command { label, ..on(Queue::COMPUTE, action) });
            for &value in dead {
                let place = self.place(value)?;
                self.release(place);
            }
        }
        Ok(())
    }

    /// Copies that take next states to their resident slots, once all of them are read.
    fn carries(&mut self, module: &Module) -> Result<Vec<Command>, Error> {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for state in module.states.values() {
            let Some(next) = state.next else { continue };
            let (resident, mut from) = (self.place(state.value)?, self.place(next)?);
            if from == resident {
                continue;
            }
            if self.plan.states.iter().any(|other| other.resident == from) {
                let kept = self.fresh(from.bytes);
                first.extend(copy(Queue::D2H, from, kept));
                from = kept;
            }
            second.extend(copy(Queue::D2H, from, resident));
        }
        first.append(&mut second);
        Ok(first)
    }
}

/// A copy, unless there is nothing to copy.
fn copy(queue: Queue, src: Slice, dst: Slice) -> Option<Command> {
    (src.bytes > 0).then(|| on(queue, Action::Copy { src, dst }))
}

/// The kernel of an op, with the workspace that its row asks for.
fn kernel(module: &Module, op: OpId) -> Result<Kernel, Error> {
    let Some(kind) = module.ops.get(op).and_then(|op| op.kind()) else {
        return Err(source("a source graph has neither copies nor slots"));
    };
    let (operands, results) = (module.operand_types(op), module.result_types(op));
    let owned = |types: &[&TensorType]| types.iter().map(|&ty| ty.clone()).collect();
    Ok(Kernel {
        op: kind.clone(),
        operands: owned(&operands),
        results: owned(&results),
        workspace_bytes: kind.cost(&operands, &results).workspace,
    })
}

/// An error of a plan's source graph.
fn source(what: &str) -> Error {
    Error::Plan(format!("the plan's source graph: {what}; compile the model again"))
}

fn unknown(what: &str, name: &str) -> Error {
    source(&format!("it has no {what} `{name}`"))
}

/// A plan's source graph, verified.
fn parse(plan: &Plan) -> Result<Module, Error> {
    let module = memc_ir::parse(&plan.meta.source).map_err(|error| source(&error.to_string()))?;
    memc_ir::verify(&module).map_err(|errors| source(&errors.to_string()))?;
    if module.phase != Phase::Graph {
        return Err(source("it is not in the graph phase"));
    }
    Ok(module)
}

/// The value of this name and type.
fn named(module: &Module, what: &str, name: &str, ty: &TensorType) -> Result<ValueId, Error> {
    let value = module.value_named(name).ok_or_else(|| unknown(what, name))?;
    typed(module, value, what, name, ty)
}

/// The value of the output of this name and type.
fn output(module: &Module, name: &str, ty: &TensorType) -> Result<ValueId, Error> {
    let found = module.outputs.iter().find(|output| output.name == name);
    typed(module, found.ok_or_else(|| unknown("output", name))?.value, "output", name, ty)
}

fn typed(module: &Module, value: ValueId, what: &str, name: &str, ty: &TensorType) -> Result<ValueId, Error> {
    match module.values.get(value) {
        Some(v) if v.ty == *ty => Ok(value),
        _ => Err(source(&format!("{what} `{name}` is not of type {ty} there"))),
    }
}

/// For each op of `order`, the results of launches that nothing reads afterwards, under the name that they
/// were computed under or a view's.
fn dead_after(module: &Module) -> Vec<Vec<ValueId>> {
    let mut viewed: Vec<usize> = (0..module.values.len()).collect();
    for op in module.order.iter().filter_map(|&op| module.ops.get(op)).filter(|op| op.is_view()) {
        if let (Some(from), Some(to)) = (op.operands.first(), op.results.first()) {
            let root = viewed.get(from.index()).copied();
            viewed.get_mut(to.index()).into_iter().zip(root).for_each(|(slot, root)| *slot = root);
        }
    }
    let mut last: Vec<Option<usize>> = vec![None; module.values.len()];
    let mut read = |value: ValueId, at: usize| {
        let root = viewed.get(value.index()).and_then(|&root| last.get_mut(root));
        root.into_iter().for_each(|slot| *slot = Some(at));
    };
    // A view is no launch: what it was made of is released after a launch.
    for (at, op) in module.order.iter().enumerate().filter_map(|(at, &op)| Some((at, module.ops.get(op)?))) {
        if !op.is_view() {
            op.results.iter().chain(&op.operands).for_each(|&value| read(value, at));
        }
    }
    // Outputs and new states are read at the end of the step.
    module.roots().for_each(|value| read(value, usize::MAX));
    let mut dead = vec![Vec::new(); module.order.len()];
    for ((value, entry), at) in module.values.iter().zip(last) {
        if let (Def::Op(..), Some(list)) = (&entry.def, at.and_then(|at| dead.get_mut(at))) {
            list.push(value);
        }
    }
    dead
}

#[cfg(test)]
mod tests {
    use memc_kernels::interp::{Tensor, eval};

    use super::*;
    use crate::{FeedOptions, Feeder, Initial, Program, Session, cpu};

    /// States that trade places, what is handed out before it changes, views, a kernel with a workspace, one
    /// that is run twice.
    const PLAN: &str = "plan 1
producer hand
model trade
budget 65536 reserve 0
arena dev 0 host 0
kernel k0 = neg(f32[1,1,4,4]) -> (f32[1,1,4,4])
state s0 a param f32[1,1,4,4] dev+0:64 random 1 uniform:1
state s1 b param f32[1,1,4,4] dev+0:64 random 2 uniform:1
state s2 w frozen f32[1,1,3,3] dev+0:36 random 3 uniform:1
input i0 x f32[1,1,4,4] host+0:64 data x micro 0 range 0..0
output o0 old f32[16] host+0:64 output
output o1 same f32[1,1,4,4] host+0:64 output
output o2 y f32[1,1,4,4] host+0:64 output
events 0
prologue {
}
body {
}
epilogue {
}
source text
|module @trade graph
|
|%x = input {source = \"x\"} : f32[1,1,4,4]
|%a = state {role = param, init = uniform(1, 1.0)} : f32[1,1,4,4]
|%b = state {role = param, init = uniform(2, 1.0)} : f32[1,1,4,4]
|%w = state {role = frozen, init = uniform(3, 1.0)} : f32[1,1,3,3]
|%flat = reshape %a {shape = [16]} : f32[16]
|%c = conv %x, %w {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1]} : f32[1,1,4,4]
|%n = neg %c : f32[1,1,4,4]
|%m = neg %n : f32[1,1,4,4]
|%y = add %m, %b : f32[1,1,4,4]
|yield output %flat as \"old\"
|yield output %x as \"same\"
|yield output %y as \"y\"
|carry %a <- %b
|carry %b <- %a
";

    /// Op by op, with each tensor in memory of its own.
    struct Interpreter {
        module: Module,
        values: Vec<Option<Tensor>>,
    }

    impl Interpreter {
        fn new(plan: &Plan, initial: &Initial) -> Interpreter {
            let module = parse(plan).unwrap();
            let mut values = vec![None; module.values.len()];
            for (index, state) in plan.states.iter().enumerate() {
                let mut tensor = Tensor::zeros(state.ty.clone()).unwrap();
                initial.write((0, index), &state.ty, tensor.data.bytes_mut()).unwrap();
                values[module.value_named(&state.name).unwrap().index()] = Some(tensor);
            }
            Interpreter { module, values }
        }

        /// Runs a step and returns its outputs.
        fn step(&mut self, plan: &Plan, feeder: &mut Feeder, step: u64) -> Vec<Tensor> {
            let (m, values) = (&self.module, &mut self.values);
            for (index, input) in plan.inputs.iter().enumerate() {
                let mut tensor = Tensor::zeros(input.ty.clone()).unwrap();
                feeder.write(index, step, tensor.data.bytes_mut()).unwrap();
                values[m.value_named(&input.name).unwrap().index()] = Some(tensor);
            }
            for op in m.order.iter().map(|&op| &m.ops[op]) {
                let operands = op.operands.iter().map(|v| values[v.index()].as_ref().unwrap());
                let results = eval(op.kind().unwrap(), &operands.collect::<Vec<_>>()).unwrap();
                op.results.iter().zip(results).for_each(|(v, tensor)| values[v.index()] = Some(tensor));
            }
            let outputs =
                m.outputs.iter().map(|output| values[output.value.index()].clone().unwrap()).collect();
            let next = m.states.values().map(|state| state.next.unwrap_or(state.value));
            let next: Vec<Option<Tensor>> = next.map(|next| values[next.index()].clone()).collect();
            m.states.values().zip(next).for_each(|(state, next)| values[state.value.index()] = next);
            outputs
        }

        fn state(&self, name: &str) -> &[u8] {
            self.values[self.module.value_named(name).unwrap().index()].as_ref().unwrap().data.bytes()
        }
    }

    /// The plan that plans nothing computes what the interpreter computes, step by step.
    #[test]
    fn it_is_the_source_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.plan");
        let mut of = memc_plan::text::parse(PLAN).unwrap();
        of.meta.set_source(of.meta.source.clone());
        let (slots, resident_slots) = ([0, 64, 128], [0, 64, 128]);
        of.outputs.iter_mut().zip(slots).for_each(|(o, at)| o.slot.offset = 64 + at);
        of.states.iter_mut().zip(resident_slots).for_each(|(s, at)| s.resident.offset = at);
        (of.meta.dev_bytes, of.meta.host_bytes) = (256, 256);
        memc_plan::write(&path, &of, &mut memc_plan::NoData, &|| false).unwrap();
        let file = memc_plan::PlanFile::open(&path).unwrap();
        let initial = Initial::new(&file, Vec::new(), Vec::new()).unwrap();
        let unplanned = plan(file.plan()).unwrap();
        assert_eq!(unplanned.kernels.len(), 3, "{:?}", unplanned.kernels);
        let program = std::sync::Arc::new(Program::new(&unplanned).unwrap());
        let feed = FeedOptions { steps: 3, synthetic: true, ..FeedOptions::default() };
        let feeder = || Feeder::new(&unplanned, std::slice::from_ref(&program), &feed).unwrap();
        let (mut one, mut other) = (feeder(), feeder());
        let mut interpreter = Interpreter::new(&unplanned, &initial);
        let device = cpu::Cpu::new(cpu::Options { check_memory: true, ..cpu::Options::default() }).unwrap();
        let mut session = Session::start(&device, &unplanned, program.clone(), &initial, &mut one).unwrap();
        for step in 1..=3 {
            session.step().unwrap();
            let outputs = interpreter.step(&unplanned, &mut other, step);
            for (o, output) in outputs.iter().enumerate() {
                assert_eq!(session.output(o), output.data.bytes(), "step {step}, output {o}");
            }
        }
        let mut seen = 0;
        session
            .finish(&mut |state, bytes| {
                assert_eq!(bytes, interpreter.state(&unplanned.states[state].name), "state {state}");
                seen += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, 3);
    }
    /// Steps of buckets take turns in the arenas: they are as large as those of one bucket.
    #[test]
    fn buckets_share_their_bytes() {
        let mut of = memc_plan::text::parse(PLAN).unwrap();
        let bytes = |p: &Plan| (p.meta.dev_bytes, p.meta.host_bytes);
        let alone = bytes(&plan(&of).unwrap());
        of.buckets = vec![of.clone(), of.clone()];
        let all = plan(&of).unwrap();
        assert!(all.with_buckets().all(|plan| bytes(plan) == alone), "{alone:?}");
    }
}
