//! Ways to make a plan wrong.
//!
//! Each kind lists all its edits of a plan; an edit changes one thing. Edits may turn out to be harmless.

use std::collections::BTreeSet;

use memc_plan::{Action, Init, Plan, Section, Slice, Space, Stream};

/// One change of a plan.
pub(crate) type Edit = Box<dyn Fn(&mut Plan)>;

/// A kind of change: its name, and all changes of that kind for a plan.
pub(crate) type Kind = (&'static str, fn(&Plan) -> Vec<Edit>);

/// All kinds.
pub(crate) const KINDS: &[Kind] = &[
    ("drop a wait", |p| drop_where(p, |a| matches!(a, Action::Wait { .. }))),
    ("drop a record", |p| drop_where(p, |a| matches!(a, Action::Record { .. }))),
    ("drop a copy", |p| drop_where(p, |a| matches!(a, Action::Copy { .. }))),
    ("drop a free", |p| drop_where(p, |a| matches!(a, Action::Free { .. }))),
    ("drop a launch", |p| drop_where(p, |a| matches!(a, Action::Launch { .. }))),
    ("drop a host access", |p| drop_where(p, is_host_access)),
    ("duplicate a command", |p| each(p, |_| true, |list, i| list.insert(i, list[i].clone()))),
    ("swap neighbours", |p| shift_commands(p, |_| true, &[1])),
    ("move a command earlier", |p| shift_commands(p, |_| true, &[-2, -4])),
    ("move a command later", |p| shift_commands(p, |_| true, &[2, 4])),
    ("move a copy earlier", |p| shift_commands(p, |a| matches!(a, Action::Copy { .. }), &[-1, -3, -8])),
    ("move a free earlier", |p| shift_commands(p, |a| matches!(a, Action::Free { .. }), &[-1, -2, -5, -9])),
    ("move a wait later", |p| shift_commands(p, |a| matches!(a, Action::Wait { .. }), &[1, 2, 5])),
    ("move a record earlier", |p| shift_commands(p, |a| matches!(a, Action::Record { .. }), &[-1, -2, -5])),
    ("swap two launches", swap_launches),
    ("change the queue", change_stream),
    ("change an event", change_event),
    ("merge two events", merge_events),
    ("shift a slice by 64", |p| shift_slices(p, &[-64, 64])),
    ("shift a slice by 256", |p| shift_slices(p, &[-256, 256])),
    ("shift a slice by odd bytes", |p| shift_slices(p, &[-4, 1, 12])),
    ("shrink a slice", |p| {
        each_slice(p, |slice| vec![slice.bytes / 2, slice.bytes.saturating_sub(4)], |s, n| s.bytes = n)
    }),
    ("retarget a read", |p| retarget(p, true)),
    ("retarget a write", |p| retarget(p, false)),
    ("reverse a copy", reverse_copies),
    ("swap operands", swap_operands),
    ("change a launch's kernel", change_launch),
    ("change a kernel's operator", change_operator),
    ("change an attribute", change_attribute),
    ("halve an arena", halve_arena),
    ("move a home", move_home),
    ("swap tables' slots", swap_slots),
    ("change a table index", change_index),
    ("change initial contents", change_init),
];

fn is_host_access(action: &Action) -> bool {
    matches!(
        action,
        Action::Load { .. } | Action::Store { .. } | Action::HostRead { .. } | Action::HostWrite { .. }
    )
}

fn sites(plan: &Plan, wanted: impl Fn(&Action) -> bool) -> Vec<(Section, usize)> {
    plan.commands().filter(|(_, _, c)| wanted(&c.action)).map(|(section, i, _)| (section, i)).collect()
}

/// One edit per command that is wanted.
fn each(
    plan: &Plan,
    wanted: impl Fn(&Action) -> bool,
    edit: fn(&mut Vec<memc_plan::Command>, usize),
) -> Vec<Edit> {
    let edit = |(section, i)| -> Edit { Box::new(move |plan| edit(plan.section_mut(section), i)) };
    sites(plan, wanted).into_iter().map(edit).collect()
}

fn drop_where(plan: &Plan, wanted: impl Fn(&Action) -> bool) -> Vec<Edit> {
    each(plan, wanted, |list, i| {
        list.remove(i);
    })
}

fn shift_commands(plan: &Plan, wanted: impl Fn(&Action) -> bool, by: &[isize]) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i) in sites(plan, wanted) {
        for target in by.iter().filter_map(|&by| i.checked_add_signed(by)) {
            if target < plan.section(section).len() {
                edits.push(Box::new(move |plan| {
                    let list = plan.section_mut(section);
                    let command = list.remove(i);
                    list.insert(target, command);
                }));
            }
        }
    }
    edits
}

fn swap_launches(plan: &Plan) -> Vec<Edit> {
    let launches = sites(plan, |a| matches!(a, Action::Launch { .. }));
    let mut edits: Vec<Edit> = Vec::new();
    for (n, &(section, i)) in launches.iter().enumerate() {
        for &(_, j) in launches.iter().skip(n + 1).take(3) {
            edits.push(Box::new(move |plan| plan.section_mut(section).swap(i, j)));
        }
    }
    edits
}

fn change_stream(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        for stream in Stream::ALL.into_iter().filter(|&stream| stream != command.stream) {
            edits.push(Box::new(move |plan| plan.section_mut(section)[i].stream = stream));
        }
    }
    edits
}

fn change_event(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        let (Action::Record { event } | Action::Wait { event }) = command.action else { continue };
        for other in (0..plan.events).filter(|&other| other != event) {
            edits.push(Box::new(move |plan| match &mut plan.section_mut(section)[i].action {
                Action::Record { event } | Action::Wait { event } => *event = other,
                _ => {}
            }));
        }
    }
    edits
}

fn merge_events(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for gone in 0..plan.events {
        for kept in (0..plan.events).filter(|&kept| kept != gone) {
            edits.push(Box::new(move |plan| {
                for section in Section::ALL {
                    for command in plan.section_mut(section) {
                        if let Action::Record { event } | Action::Wait { event } = &mut command.action
                            && *event == gone
                        {
                            *event = kept;
                        }
                    }
                }
            }));
        }
    }
    edits
}

/// The slices that a command spells out, to be changed.
fn slices_mut(action: &mut Action) -> Vec<&mut Slice> {
    match action {
        Action::Launch { reads, writes, workspace, .. } => {
            reads.iter_mut().chain(writes).chain(workspace).collect()
        }
        Action::Copy { src, dst } => vec![src, dst],
        Action::Free { slice } => vec![slice],
        _ => vec![],
    }
}

fn each_slice<T: Copy + 'static>(
    plan: &Plan,
    choices: fn(&Slice) -> Vec<T>,
    set: fn(&mut Slice, T),
) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        for (n, slice) in command.action.slices().enumerate() {
            for choice in choices(slice) {
                edits.push(Box::new(move |plan| {
                    if let Some(slice) =
                        slices_mut(&mut plan.section_mut(section)[i].action).into_iter().nth(n)
                    {
                        set(slice, choice);
                    }
                }));
            }
        }
    }
    edits
}

fn shift_slices(plan: &Plan, by: &'static [i64]) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        for (n, slice) in command.action.slices().enumerate() {
            for offset in by.iter().filter_map(|&by| slice.offset.checked_add_signed(by)) {
                edits.push(Box::new(move |plan| {
                    if let Some(slice) =
                        slices_mut(&mut plan.section_mut(section)[i].action).into_iter().nth(n)
                    {
                        slice.offset = offset;
                    }
                }));
            }
        }
    }
    edits
}

/// Makes a read or a write use another slice of the same length that the plan uses.
fn retarget(plan: &Plan, reading: bool) -> Vec<Edit> {
    let known: BTreeSet<Slice> = plan.commands().flat_map(|(_, _, c)| c.action.slices().copied()).collect();
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        let range = match &command.action {
            Action::Launch { reads, .. } if reading => 0..reads.len(),
            Action::Launch { reads, writes, .. } => reads.len()..reads.len() + writes.len(),
            Action::Copy { .. } if reading => 0..1,
            Action::Copy { .. } => 1..2,
            _ => continue,
        };
        for n in range {
            let Some(&old) = command.action.slices().nth(n) else { continue };
            for &new in
                known.iter().filter(|new| (new.space, new.bytes) == (old.space, old.bytes) && **new != old)
            {
                edits.push(Box::new(move |plan| {
                    if let Some(slice) =
                        slices_mut(&mut plan.section_mut(section)[i].action).into_iter().nth(n)
                    {
                        *slice = new;
                    }
                }));
            }
        }
    }
    edits
}

fn reverse_copies(plan: &Plan) -> Vec<Edit> {
    each(
        plan,
        |a| matches!(a, Action::Copy { .. }),
        |list, i| {
            if let Action::Copy { src, dst } = &mut list[i].action {
                std::mem::swap(src, dst);
            }
        },
    )
}

fn swap_operands(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        let Action::Launch { reads, writes, .. } = &command.action else { continue };
        for n in 1..reads.len() {
            edits.push(Box::new(move |plan| {
                if let Action::Launch { reads, .. } = &mut plan.section_mut(section)[i].action {
                    reads.swap(n - 1, n);
                }
            }));
        }
        for n in 1..writes.len() {
            edits.push(Box::new(move |plan| {
                if let Action::Launch { writes, .. } = &mut plan.section_mut(section)[i].action {
                    writes.swap(n - 1, n);
                }
            }));
        }
    }
    edits
}

fn change_launch(plan: &Plan) -> Vec<Edit> {
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

fn change_operator(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (i, kernel) in plan.kernels.iter().enumerate() {
        for op in
            ["exp", "tanh", "relu", "add", "mul", "relu_grad", "sum_squares", "reshape", "copy", "bogus"]
        {
            if kernel.op != op {
                edits.push(Box::new(move |plan| plan.kernels[i].op = op.to_owned()));
            }
        }
    }
    edits
}

fn change_attribute(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (i, kernel) in plan.kernels.iter().enumerate() {
        let attrs = &kernel.attrs;
        let changed = [
            attrs.replace("axis = 1", "axis = 0"),
            attrs.replace("alpha = 0.9", "alpha = 0.8"),
            attrs.replace("weight_decay = 0.01", "weight_decay = 0.01, decay_first"),
            attrs.replace("epsilon = 0.001, ", ""),
            attrs.replace("{tanh}", ""),
            if kernel.op == "gelu" { "{tanh}".to_owned() } else { "{alpha = 2.0}".to_owned() },
        ];
        for new in changed.into_iter().filter(|new| new != attrs) {
            edits.push(Box::new(move |plan| plan.kernels[i].attrs.clone_from(&new)));
        }
    }
    edits
}

fn halve_arena(plan: &Plan) -> Vec<Edit> {
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

fn move_home(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (i, state) in plan.states.iter().enumerate() {
        for offset in [64, -64, 128, -256].iter().filter_map(|&by| state.home.offset.checked_add_signed(by)) {
            edits.push(Box::new(move |plan| plan.states[i].home.offset = offset));
        }
        let space = if state.home.space == Space::Dev { Space::Host } else { Space::Dev };
        edits.push(Box::new(move |plan| plan.states[i].home.space = space));
    }
    edits
}

fn swap_slots(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for i in 1..plan.states.len() {
        edits.push(Box::new(move |plan| {
            let home = plan.states[i].home;
            plan.states[i].home = plan.states[i - 1].home;
            plan.states[i - 1].home = home;
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

fn change_index(plan: &Plan) -> Vec<Edit> {
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

fn change_init(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for i in 0..plan.states.len() {
        for init in [Init::Zeros, Init::Random { seed: 1, kind: "uniform:0.25".into() }] {
            edits.push(Box::new(move |plan| plan.states[i].init = init.clone()));
        }
    }
    edits
}
