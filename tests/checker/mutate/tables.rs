//! Edits of tables: kernels, states, inputs, outputs, arenas.

use memc_ir::{OpKind, parse_op};
use memc_plan::{Action, Init, Plan, Space};

use super::{Edit, is_host_access, sites};

pub(super) fn change_launch(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        let Action::Launch { kernel, .. } = command.action else { continue };
        for other in (0..plan.kernels.len() as u32).filter(|&other| other != kernel) {
            edits.push(Box::new(move |plan| {
                if let Action::Launch { kernel, .. } = &mut plan.section_mut(section)[i].action {
                    *kernel = other;
                }
            }));
        }
    }
    edits
}

/// An operator with these attributes. Where the table has none, no plan can hold it, since its reader refuses
/// it: a view stands in for it, which no launch may run either.
fn operator(op: &str, attrs: &str) -> OpKind {
    let stand_in = || parse_op("reshape", "{shape = [1]}").expect("an op of the table");
    parse_op(op, attrs).unwrap_or_else(|_| stand_in())
}

pub(super) fn change_operator(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (i, kernel) in plan.kernels.iter().enumerate() {
        let attrs = kernel.op.attrs_text();
        for op in
            ["exp", "tanh", "relu", "add", "mul", "relu_grad", "sum_squares", "reshape", "copy", "bogus"]
        {
            if kernel.op.mnemonic() != op {
                let op = operator(op, &attrs);
                edits.push(Box::new(move |plan| plan.kernels[i].op = op.clone()));
            }
        }
    }
    edits
}

pub(super) fn change_attribute(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (i, kernel) in plan.kernels.iter().enumerate() {
        let (op, attrs) = (kernel.op.mnemonic(), kernel.op.attrs_text());
        let changed = [
            attrs.replace("axis = 1", "axis = 0"),
            attrs.replace("alpha = 0.9", "alpha = 0.8"),
            attrs.replace("weight_decay = 0.01", "weight_decay = 0.01, decay_first"),
            attrs.replace("epsilon = 0.001, ", ""),
            attrs.replace("{tanh}", ""),
            if op == "gelu" { "{tanh}".to_owned() } else { "{alpha = 2.0}".to_owned() },
        ];
        for new in changed.into_iter().filter(|new| *new != attrs) {
            let new = operator(op, &new);
            edits.push(Box::new(move |plan| plan.kernels[i].op = new.clone()));
        }
    }
    edits
}

pub(super) fn halve_arena(plan: &Plan) -> Vec<Edit> {
    let (dev, host) = (plan.meta.dev_bytes, plan.meta.host_bytes);
    let mut edits: Vec<Edit> = Vec::new();
    for bytes in [dev / 2, dev.saturating_sub(64), 0] {
        edits.push(Box::new(move |plan| plan.meta.dev_bytes = bytes));
    }
    for bytes in [host / 2, host.saturating_sub(64), 0] {
        edits.push(Box::new(move |plan| plan.meta.host_bytes = bytes));
    }
    edits
}

pub(super) fn move_resident(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (i, state) in plan.states.iter().enumerate() {
        for offset in
            [64, -64, 128, -256].iter().filter_map(|&by| state.resident.offset.checked_add_signed(by))
        {
            edits.push(Box::new(move |plan| plan.states[i].resident.offset = offset));
        }
        let space = if state.resident.space == Space::Dev { Space::Host } else { Space::Dev };
        edits.push(Box::new(move |plan| plan.states[i].resident.space = space));
    }
    edits
}

pub(super) fn swap_slots(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for i in 1..plan.states.len() {
        edits.push(Box::new(move |plan| {
            let resident = plan.states[i].resident;
            plan.states[i].resident = plan.states[i - 1].resident;
            plan.states[i - 1].resident = resident;
        }));
    }
    for i in 1..plan.inputs.len() {
        edits.push(Box::new(move |plan| {
            let slot = plan.inputs[i].slot;
            plan.inputs[i].slot = plan.inputs[i - 1].slot;
            plan.inputs[i - 1].slot = slot;
        }));
    }
    for i in 0..plan.outputs.len() {
        edits.push(Box::new(move |plan| plan.outputs[i].slot = plan.inputs[0].slot));
    }
    edits
}

pub(super) fn change_index(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i) in sites(plan, is_host_access) {
        for new in [0, 1, 2, u32::MAX] {
            edits.push(Box::new(move |plan| match &mut plan.section_mut(section)[i].action {
                Action::Load { state } | Action::Store { state } => *state = new,
                Action::HostWrite { input } => *input = new,
                Action::HostRead { output } => *output = new,
                _ => {}
            }));
        }
    }
    edits
}

pub(super) fn change_init(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for i in 0..plan.states.len() {
        for init in [Init::Zeros, Init::Random { seed: 1, kind: "uniform:0.25".into() }] {
            edits.push(Box::new(move |plan| plan.states[i].init = init.clone()));
        }
    }
    edits
}
