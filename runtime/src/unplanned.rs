//! The plan that plans nothing: the source graph op by op in its own order, each tensor in device memory of its own, every
//! copy where it is needed and nothing beside it. What a planned run on the same device must equal bit for bit.
//!
//! Kernels are entries of the plan's own table, with their workspaces, so that a device which chooses among
//! implementations by kernel and workspace chooses the same.

use std::collections::BTreeMap;

use memc_ir::{Id, Module, OpId, TensorType, ValueId};
use memc_plan::{Action, Command, Kernel, Plan, Queue, Slice, StateRole};

use crate::Error;
use crate::reference::{named, output, parse, source};

/// Alignment of every tensor.
const ALIGN: u64 = 256;

/// The events of a step: inputs are on the device, everything is computed, outputs are in host memory.
const ARRIVED: u32 = 0;
const COMPUTED: u32 = 1;
const TAKEN: u32 = 2;

/// The unplanned plan of a plan's source graph, with the same tables of states, inputs and outputs.
///
/// # Errors
/// [`Error::Plan`] if the source is no valid graph or lacks something that the plan's tables name.
pub(crate) fn plan(of: &Plan) -> Result<Plan, Error> {
    let module = parse(of)?;
    let mut maker = Maker { plan: of.clone(), places: vec![None; module.values.len()], dev: 0, host: 0 };
    maker.tables(&module)?;
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
    let stored = states.zip(&plan.states).filter(|(_, s)| s.role != StateRole::Const);
    plan.epilogue = stored.map(|(state, _)| on(Queue::Host, Action::Store { state })).collect();
    Ok(plan)
}

fn on(queue: Queue, action: Action) -> Command {
    Command { queue, action, label: String::new() }
}

struct Maker {
    plan: Plan,
    /// Where each value is, once it has a place.
    places: Vec<Option<Slice>>,
    dev: u64,
    host: u64,
}

impl Maker {
    fn fresh(&mut self, bytes: u64) -> Slice {
        let at = self.dev;
        self.dev = at.saturating_add(bytes).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        Slice::dev(at, bytes)
    }

    fn fresh_on_host(&mut self, bytes: u64) -> Slice {
        let at = self.host;
        self.host = at.saturating_add(bytes).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
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
    fn tables(&mut self, module: &Module) -> Result<(), Error> {
        for index in 0..self.plan.states.len() {
            let Some(state) = self.plan.states.get(index) else { continue };
            let value = named(module, "state", &state.name, &state.ty)?;
            let home = self.fresh(state.home.bytes);
            self.put(value, home);
            self.plan.states.get_mut(index).into_iter().for_each(|state| state.home = home);
        }
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
        for &op in &module.order {
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
        }
        Ok(())
    }

    /// Copies that take next states to their homes, once all of them are read.
    fn carries(&mut self, module: &Module) -> Result<Vec<Command>, Error> {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for state in module.states.values() {
            let Some(next) = state.next else { continue };
            let (home, mut from) = (self.place(state.value)?, self.place(next)?);
            if from == home {
                continue;
            }
            if self.plan.states.iter().any(|other| other.home == from) {
                let kept = self.fresh(from.bytes);
                first.extend(copy(Queue::D2H, from, kept));
                from = kept;
            }
            second.extend(copy(Queue::D2H, from, home));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FeedOptions, Feeder, Initial, Program, Reference, Session, cpu};

    /// States that trade places, what is handed out before it changes, views, a kernel with a workspace, one that is run
    /// twice.
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

    /// The plan that plans nothing computes what the interpreter computes, step by step.
    #[test]
    fn it_is_the_source_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.plan");
        let mut of = memc_plan::text::parse(PLAN).unwrap();
        of.meta.set_source(of.meta.source.clone());
        let (slots, homes) = ([0, 64, 128], [0, 64, 128]);
        of.outputs.iter_mut().zip(slots).for_each(|(o, at)| o.slot.offset = 64 + at);
        of.states.iter_mut().zip(homes).for_each(|(s, at)| s.home.offset = at);
        (of.meta.dev_bytes, of.meta.host_bytes) = (256, 256);
        memc_plan::write(&path, &of, &mut memc_plan::NoData, &|| false).unwrap();
        let file = memc_plan::PlanFile::open(&path).unwrap();
        let initial = Initial::new(&file, None, None).unwrap();
        let unplanned = plan(file.plan()).unwrap();
        assert_eq!(unplanned.kernels.len(), 3, "{:?}", unplanned.kernels);
        let program = std::sync::Arc::new(Program::new(&unplanned).unwrap());
        let feed = FeedOptions { steps: 3, ..FeedOptions::default() };
        let feeder = || Feeder::new(&unplanned, &program, &feed).unwrap();
        let (mut one, mut other) = (feeder(), feeder());
        let mut reference = Reference::new(&file, &initial).unwrap();
        let device = cpu::Cpu::new(cpu::Options { check_memory: true, ..cpu::Options::default() }).unwrap();
        let mut session = Session::start(&device, &unplanned, program.clone(), &initial, &mut one).unwrap();
        for step in 1..=3 {
            session.step().unwrap();
            reference.step(&mut other, step).unwrap();
            for o in 0..3 {
                assert_eq!(session.output(o), reference.output(o), "step {step}, output {o}");
            }
        }
        let mut seen = 0;
        session
            .finish(&mut |state, bytes| {
                assert_eq!(bytes, reference.state(state), "state {state}");
                seen += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, 3);
    }
}
