//! Tensors of a plan by the names and purposes that its source graph gives them.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{Def, Module, OpId, OutputRole, Role, ValueId};

/// Purpose of bytes on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Part {
    /// Parameters, trained or frozen.
    Weights,
    /// Gradients of parameters, and buffers that accumulate them.
    Gradients,
    /// State of the optimizer.
    Optimizer,
    /// Statistics and constants.
    Other,
    /// Tensors that the host feeds.
    Inputs,
    /// All else that ops compute.
    Activations,
    /// Scratch bytes of one launch.
    Workspace,
}

impl Part {
    pub(super) const ALL: [Part; 7] = [
        Part::Weights,
        Part::Optimizer,
        Part::Other,
        Part::Inputs,
        Part::Gradients,
        Part::Activations,
        Part::Workspace,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Weights => "weights",
            Part::Gradients => "gradients",
            Part::Optimizer => "optimizer state",
            Part::Other => "buffers and constants",
            Part::Inputs => "inputs",
            Part::Activations => "activations",
            Part::Workspace => "workspace",
        }
    }

    /// Position in [`Part::ALL`]; the page's classes are `p0` and so on.
    pub(super) fn index(self) -> usize {
        Part::ALL.iter().position(|part| *part == self).unwrap_or(0)
    }

    fn of(role: Role) -> Part {
        match role {
            Role::Param | Role::Frozen => Part::Weights,
            Role::Optimizer => Part::Optimizer,
            Role::Gradient => Part::Gradients,
            Role::Buffer => Part::Other,
        }
    }
}

/// Legend of all parts, and of `more`.
pub(super) fn legend(more: &str) -> String {
    let entry = |part: Part| format!("<li><i class=\"p{}\"></i>{}</li>", part.index(), part.name());
    let entries: String = Part::ALL.into_iter().map(entry).collect();
    format!("<ul class=\"legend\">{entries}{more}</ul>\n")
}

/// A tensor. A state before and after its update is one.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) part: Part,
    /// Whether it lives from step to step.
    pub(super) persists: bool,
}

/// The tensors of a plan; others name them by index.
pub(super) struct Tensors<'a> {
    pub(super) all: Vec<Tensor>,
    module: &'a Module,
    of_value: BTreeMap<ValueId, usize>,
    by_name: BTreeMap<String, usize>,
    /// Ops by the name of their first result.
    ops: BTreeMap<String, OpId>,
}

impl<'a> Tensors<'a> {
    pub(super) fn of(module: &'a Module) -> Tensors<'a> {
        let (all, of_value, by_name, ops) = Default::default();
        let mut tensors = Tensors { all, module, of_value, by_name, ops };
        tensors.define();
        tensors
    }

    /// The tensor with a name; one that the graph does not have is of the part given.
    pub(super) fn named(&mut self, name: &str, part: Part) -> usize {
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        self.add(Tensor { name: name.to_owned(), part, persists: false })
    }

    /// The results of a launch with a label, and the op that it runs where the graph has that.
    pub(super) fn results(&mut self, label: &str, count: usize) -> (Vec<usize>, Option<OpId>) {
        let found = self.op(label).and_then(|id| Some((id, self.module.ops.get(id)?)));
        if let Some((id, op)) = found.filter(|(_, op)| op.results.len() == count) {
            return (op.results.iter().filter_map(|v| self.of_value.get(v).copied()).collect(), Some(id));
        }
        let name = |n: usize| if n == 0 { label.to_owned() } else { format!("{label} (result {})", n + 1) };
        ((0..count).map(|n| self.named(&name(n), Part::Activations)).collect(), None)
    }

    /// The tensor with a name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Names of the graph's values, and their tensors. A view's is that of what it views.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, usize)> {
        let named = |(value, tensor): (&ValueId, &usize)| {
            Some((self.module.values.get(*value)?.name.as_str(), *tensor))
        };
        self.of_value.iter().filter_map(named)
    }

    /// The source of the op of a label: a node's name or a place `FILE:LINE`; empty where there is none.
    pub(super) fn origin(&self, label: &str) -> Option<&str> {
        self.op(label).and_then(|id| self.module.ops.get(id)).map(|op| op.origin.as_str())
    }

    pub(super) fn get(&self, index: usize) -> Option<&Tensor> {
        self.all.get(index)
    }

    fn add(&mut self, tensor: Tensor) -> usize {
        let index = self.all.len();
        self.by_name.entry(tensor.name.clone()).or_insert(index);
        self.all.push(tensor);
        index
    }

    /// The op of a label. Repetitions of an op have a number after its name.
    fn op(&self, label: &str) -> Option<OpId> {
        let base = || {
            let (base, number) = label.rsplit_once('.')?;
            let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| self.ops.get(base)).flatten()
        };
        self.ops.get(label).or_else(base).copied()
    }

    fn define(&mut self) {
        let module = self.module;
        let name = |v: ValueId| module.values.get(v).map(|value| value.name.clone()).unwrap_or_default();
        for state in module.states.values() {
            let tensor = Tensor { name: name(state.value), part: Part::of(state.role), persists: true };
            let index = self.add(tensor);
            self.of_value.insert(state.value, index);
            state.next.iter().for_each(|next| _ = self.of_value.entry(*next).or_insert(index));
        }
        let others = module.consts.values().map(|c| (c.value, Part::Other, true));
        for (v, part, persists) in
            others.chain(module.inputs.values().map(|i| (i.value, Part::Inputs, false)))
        {
            let index = self.add(Tensor { name: name(v), part, persists });
            self.of_value.insert(v, index);
        }
        let gradients = gradients(module);
        for &id in &module.order {
            let Some(op) = module.ops.get(id) else { continue };
            let viewed =
                op.operands.first().filter(|_| op.is_view()).and_then(|v| self.of_value.get(v)).copied();
            for v in &op.results {
                if self.of_value.contains_key(v) {
                    continue;
                }
                let part = if gradients.contains(v) { Part::Gradients } else { Part::Activations };
                let index =
                    viewed.unwrap_or_else(|| self.add(Tensor { name: name(*v), part, persists: false }));
                self.of_value.insert(*v, index);
            }
            op.results.first().iter().for_each(|v| _ = self.ops.insert(name(**v), id));
        }
    }
}

/// Arithmetic of gradients: sums over micro-steps, scales, clipping.
const ARITHMETIC: [&str; 4] = ["add", "sub", "mul", "div"];

/// Gradients of parameters: what optimizer ops read as one, outputs that are, and what those are sums and
/// multiples of.
fn gradients(module: &Module) -> BTreeSet<ValueId> {
    let read = module.ops.values().filter_map(|op| {
        let is_update = op.kind().is_some_and(|kind| kind.def().operands.get(1) == Some(&"g"));
        op.operands.get(1).filter(|_| is_update).copied()
    });
    let told = module.outputs.iter().filter(|o| o.role == OutputRole::Gradient).map(|o| o.value);
    let mut rest: Vec<ValueId> = read.chain(told).collect();
    let mut found = BTreeSet::new();
    let ty = |v: ValueId| module.values.get(v).map(|value| &value.ty);
    while let Some(v) = rest.pop() {
        if !found.insert(v) {
            continue;
        }
        let Some(Def::Op(id, _)) = module.values.get(v).map(|value| value.def) else { continue };
        let Some(op) = module.ops.get(id) else { continue };
        let is_arithmetic = op.kind().is_some_and(|kind| ARITHMETIC.contains(&kind.mnemonic()));
        if op.is_view() {
            rest.extend(op.operands.first());
        } else if is_arithmetic {
            rest.extend(op.operands.iter().filter(|operand| ty(**operand) == ty(v)));
        }
    }
    found
}
