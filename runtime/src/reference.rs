//! The unplanned run: the source graph that a plan carries, op by op in its own order, each tensor in memory of its
//! own, with the same kernels as the planned run.
//!
//! Contract: reads nothing of the plan but the source text, the tables of states, inputs and outputs, and the initial
//! contents; schedule, slots and recomputation play no part. It is what a planned run must equal bit for bit.

use memc_ir::{Bytes, Code, Def, Module, OpId, Phase, TensorType, ValueId};
use memc_kernels::{
    KernelError,
    interp::{Tensor, eval},
};
use memc_plan::{Plan, PlanFile};

use crate::{Error, Feeder, Initial, available};

/// The source graph, run step by step.
#[derive(Debug)]
pub struct Reference {
    module: Module,
    /// Contents by value; states and constants always, others while they are needed.
    values: Vec<Option<Tensor>>,
    /// For each entry of `module.order`, the values that nothing reads afterwards.
    dead: Vec<Vec<ValueId>>,
    /// Value of each input, output and state of the plan.
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    states: Vec<ValueId>,
    /// The outputs of the last step.
    results: Vec<Option<Tensor>>,
}

impl Reference {
    /// Parses and verifies the source graph and takes the initial states.
    ///
    /// # Errors
    /// [`Error::Plan`] if the source is no valid graph or lacks something that the plan's tables name,
    /// [`Error::Memory`] if the unplanned run does not fit into memory, and the errors of [`Initial::write`].
    pub fn new(file: &PlanFile, initial: &Initial) -> Result<Reference, Error> {
        let plan = file.plan();
        let module = parse(plan)?;
        let inputs = plan.inputs.iter().map(|input| named(&module, "input", &input.name, &input.ty));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let states = plan.states.iter().map(|state| named(&module, "state", &state.name, &state.ty));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let outputs = plan.outputs.iter().map(|o| output(&module, &o.name, &o.ty));
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        let dead = dead_after(&module);
        let values = vec![None; module.values.len()];
        let mut reference = Reference { values, module, dead, inputs, outputs, states, results: Vec::new() };
        reference.check_memory()?;
        reference.fill(plan, initial)?;
        Ok(reference)
    }

    /// Compares the most bytes that live at once with the available memory.
    fn check_memory(&self) -> Result<(), Error> {
        let m = &self.module;
        let bytes = |value: ValueId| m.values.get(value).map_or(0, |v| v.ty.bytes());
        let fixed = m.values.values().filter(|v| !matches!(v.def, Def::Op(..)));
        // A state may need room for its old and its new contents.
        let mut live = fixed.map(|v| v.ty.bytes()).fold(0, u64::saturating_add).saturating_mul(2);
        let mut peak = live;
        for (&op, dead) in m.order.iter().zip(&self.dead) {
            let results = m.ops.get(op).map_or(&[][..], |op| &op.results);
            live = results.iter().fold(live, |sum, &value| sum.saturating_add(bytes(value)));
            peak = peak.max(live);
            live = dead.iter().fold(live, |sum, &value| sum.saturating_sub(bytes(value)));
        }
        match available() {
            Some(have) if peak > have => Err(Error::Memory(format!(
                "--verify needs up to {} for the unplanned run, but {} are available; run without it",
                Bytes(peak),
                Bytes(have)
            ))),
            _ => Ok(()),
        }
    }

    fn fill(&mut self, plan: &Plan, initial: &Initial) -> Result<(), Error> {
        let mut constants = Vec::with_capacity(self.module.consts.len());
        for constant in self.module.consts.values() {
            let Some(value) = self.module.values.get(constant.value) else { continue };
            let mut tensor = zeros(&value.ty)?;
            if tensor.data.bytes().len() != constant.data.len() {
                return Err(source(&format!("constant %{} has {} bytes", value.name, constant.data.len())));
            }
            tensor.data.bytes_mut().copy_from_slice(&constant.data);
            constants.push((constant.value, tensor));
        }
        constants.into_iter().for_each(|(value, tensor)| self.set(value, Some(tensor)));
        for index in 0..plan.states.len() {
            let Some(&value) = self.states.get(index) else { continue };
            let Some(entry) = self.module.values.get(value) else { continue };
            if matches!(entry.def, Def::State(_)) {
                let mut tensor = zeros(&entry.ty)?;
                initial.write(index, &entry.ty, tensor.data.bytes_mut())?;
                self.set(value, Some(tensor));
            }
        }
        for state in self.module.states.values() {
            if self.get(state.value).is_none() {
                let name = self.module.values.get(state.value).map_or("", |v| &v.name);
                return Err(source(&format!("the plan has no contents for state %{name}")));
            }
        }
        Ok(())
    }

    /// Runs one step, counted from 1 over resumed runs.
    ///
    /// # Errors
    /// The errors of [`Feeder::write`]; [`Error::Data`] if a kernel refuses the data.
    pub fn step(&mut self, feeder: &mut Feeder, step: u64) -> Result<(), Error> {
        for index in 0..self.inputs.len() {
            let Some(&value) = self.inputs.get(index) else { continue };
            let Some(entry) = self.module.values.get(value) else { continue };
            let mut tensor = zeros(&entry.ty)?;
            feeder.write(index, step, tensor.data.bytes_mut())?;
            self.set(value, Some(tensor));
        }
        for at in 0..self.module.order.len() {
            self.op(at)?;
        }
        // Before the states change, since an output may be what a state held.
        self.results = self.outputs.iter().map(|&value| self.get(value).cloned()).collect();
        let carried = self.module.states.values().filter_map(|state| Some((state.value, state.next?)));
        let next: Vec<(ValueId, Option<Tensor>)> =
            carried.map(|(value, next)| (value, self.get(next).cloned())).collect();
        for (value, contents) in next {
            if contents.is_none() {
                return Err(source("a state's next contents are not computed"));
            }
            self.set(value, contents);
        }
        Ok(())
    }

    fn op(&mut self, at: usize) -> Result<(), Error> {
        let Some(op) = self.module.order.get(at).and_then(|&id: &OpId| self.module.ops.get(id)) else {
            return Ok(());
        };
        let Code::Compute(kind) = &op.code else {
            return Err(source("a source graph has neither copies nor slots"));
        };
        let operands: Option<Vec<&Tensor>> = op.operands.iter().map(|&value| self.get(value)).collect();
        let operands = operands.ok_or_else(|| source("an op runs before its operands are computed"))?;
        let results = eval(kind, &operands).map_err(|error| {
            let name = op.results.first().and_then(|&v| self.module.values.get(v)).map_or("", |v| &v.name);
            let text = format!("at %{name} (unplanned): {error}");
            if matches!(error, KernelError::Index { .. }) { Error::Data(text) } else { Error::Internal(text) }
        })?;
        let ids = op.results.clone();
        for (value, tensor) in ids.into_iter().zip(results) {
            self.set(value, Some(tensor));
        }
        for value in self.dead.get(at).cloned().unwrap_or_default() {
            self.set(value, None);
        }
        Ok(())
    }

    fn get(&self, value: ValueId) -> Option<&Tensor> {
        self.values.get(memc_ir::Id::index(value))?.as_ref()
    }

    fn set(&mut self, value: ValueId, contents: Option<Tensor>) {
        if let Some(slot) = self.values.get_mut(memc_ir::Id::index(value)) {
            *slot = contents;
        }
    }

    /// Bytes of the plan's output with this index after the last step.
    pub fn output(&self, output: usize) -> &[u8] {
        self.results.get(output).and_then(Option::as_ref).map_or(&[], |t| t.data.bytes())
    }

    /// Bytes of the plan's state with this index.
    pub fn state(&self, state: usize) -> &[u8] {
        self.states.get(state).and_then(|&value| self.get(value)).map_or(&[], |t| t.data.bytes())
    }
}

/// An error of a plan's source graph.
pub(crate) fn source(what: &str) -> Error {
    Error::Plan(format!("the plan's source graph: {what}; compile the model again"))
}

fn unknown(what: &str, name: &str) -> Error {
    source(&format!("it has no {what} `{name}`"))
}

fn zeros(ty: &TensorType) -> Result<Tensor, Error> {
    Tensor::zeros(ty.clone()).map_err(|error| Error::Memory(error.to_string()))
}

/// A plan's source graph, verified.
pub(crate) fn parse(plan: &Plan) -> Result<Module, Error> {
    let module = memc_ir::parse(&plan.meta.source).map_err(|error| source(&error.to_string()))?;
    memc_ir::verify(&module).map_err(|errors| source(&errors.to_string()))?;
    if module.phase != Phase::Graph {
        return Err(source("it is not in the graph phase"));
    }
    Ok(module)
}

/// The value of this name and type.
pub(crate) fn named(module: &Module, what: &str, name: &str, ty: &TensorType) -> Result<ValueId, Error> {
    let value = module.value_named(name).ok_or_else(|| unknown(what, name))?;
    typed(module, value, what, name, ty)
}

/// The value of the output of this name and type.
pub(crate) fn output(module: &Module, name: &str, ty: &TensorType) -> Result<ValueId, Error> {
    let found = module.outputs.iter().find(|output| output.name == name);
    typed(module, found.ok_or_else(|| unknown("output", name))?.value, "output", name, ty)
}

fn typed(module: &Module, value: ValueId, what: &str, name: &str, ty: &TensorType) -> Result<ValueId, Error> {
    match module.values.get(value) {
        Some(v) if v.ty == *ty => Ok(value),
        _ => Err(source(&format!("{what} `{name}` is not of type {ty} there"))),
    }
}

/// For each entry of `order`, the results of ops that nothing reads afterwards.
fn dead_after(module: &Module) -> Vec<Vec<ValueId>> {
    let mut last: Vec<Option<usize>> = vec![None; module.values.len()];
    let mut note = |value: ValueId, at: usize| {
        if let Some(slot) = last.get_mut(memc_ir::Id::index(value)) {
            *slot = Some(at);
        }
    };
    for (at, &op) in module.order.iter().enumerate() {
        if let Some(op) = module.ops.get(op) {
            op.results.iter().chain(&op.operands).for_each(|&value| note(value, at));
        }
    }
    // Outputs and new states are read at the end of the step.
    module.roots().for_each(|value| note(value, usize::MAX));
    let mut dead = vec![Vec::new(); module.order.len()];
    for ((value, entry), at) in module.values.iter().zip(last) {
        if let (Def::Op(..), Some(list)) = (&entry.def, at.and_then(|at| dead.get_mut(at))) {
            list.push(value);
        }
    }
    dead
}
