//! Ways to make a plan wrong.
//!
//! Each kind lists all its edits of a plan; an edit changes one thing. Edits may turn out to be harmless.

mod slices;
mod tables;

use memc_plan::{Action, Plan, Queue, Section};

use slices::{
    each_slice, merge_slots, move_all, move_slot, retarget, reverse_copies, shift_slices, swap_operands,
    swap_slots_from, used_slices,
};
use tables::{
    change_attribute, change_index, change_init, change_launch, change_operator, halve_arena, move_resident,
    swap_slots,
};

/// One change of a plan.
pub(crate) type Edit = Box<dyn Fn(&mut Plan)>;

/// A kind of change: its name, and all changes of that kind for a plan.
pub(crate) type Kind = (&'static str, fn(&Plan) -> Vec<Edit>);

/// Most alternatives for one number or slice, so that large plans do not have too many edits.
const ALTERNATIVES: u32 = 24;

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
    ("merge two slots", merge_slots),
    ("move a slot", move_slot),
    ("swap two slots from here", swap_slots_from),
    ("reverse a copy", reverse_copies),
    ("swap operands", swap_operands),
    ("change a launch's kernel", change_launch),
    ("change a kernel's operator", change_operator),
    ("change an attribute", change_attribute),
    ("halve an arena", halve_arena),
    ("move a resident slot", move_resident),
    ("swap tables' slots", swap_slots),
    ("change a table index", change_index),
    ("change initial contents", change_init),
];

/// The plan, or one of its buckets.
pub(crate) fn bucket_mut(plan: &mut Plan, index: usize) -> &mut Plan {
    match index.checked_sub(1) {
        Some(index) => &mut plan.buckets[index],
        None => plan,
    }
}

/// Edits of the plan itself and of each of its buckets.
pub(crate) fn in_buckets(plan: &Plan, kind: fn(&Plan) -> Vec<Edit>) -> Vec<Edit> {
    let mut all: Vec<Edit> = Vec::new();
    for (index, bucket) in plan.with_buckets().enumerate() {
        for edit in kind(bucket) {
            all.push(Box::new(move |plan| edit(bucket_mut(plan, index))));
        }
    }
    all
}

/// Edits that keep a constant of one bucket in bytes that another uses, with all that reads it there.
pub(crate) fn move_constants(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (index, bucket) in plan.with_buckets().enumerate() {
        let others = plan.with_buckets().enumerate().filter(|(other, _)| *other != index);
        let used: Vec<_> = others.flat_map(|(_, other)| used_slices(other)).collect();
        for (s, state) in bucket.states.iter().enumerate().filter(|(_, state)| !state.is_variable()) {
            let old = state.resident;
            let places = used.iter().filter(|slice| slice.space == old.space && slice.offset != old.offset);
            for offset in places.map(|slice| slice.offset) {
                edits.push(Box::new(move |plan| {
                    let bucket = bucket_mut(plan, index);
                    bucket.states[s].resident.offset = offset;
                    move_all(bucket, old, offset);
                }));
            }
        }
    }
    edits
}

fn is_host_access(action: &Action) -> bool {
    matches!(
        action,
        Action::Load { .. } | Action::Store { .. } | Action::HostRead { .. } | Action::HostWrite { .. }
    )
}

/// Numbers below `n` other than `not`: all of a few, the next ones of many.
fn others(n: u32, not: u32) -> impl Iterator<Item = u32> {
    (1..n.min(ALTERNATIVES)).map(move |by| (not + by) % n)
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
        for stream in Queue::ALL.into_iter().filter(|&stream| stream != command.queue) {
            edits.push(Box::new(move |plan| plan.section_mut(section)[i].queue = stream));
        }
    }
    edits
}

fn change_event(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (section, i, command) in plan.commands() {
        let (Action::Record { event } | Action::Wait { event }) = command.action else { continue };
        for other in others(plan.events, event) {
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
        for kept in others(plan.events, gone) {
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
