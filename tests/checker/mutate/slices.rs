//! Edits of slices and operands.

use std::collections::{BTreeMap, BTreeSet};

use memc_plan::{Action, Plan, Section, Slice, Space};

use super::{Edit, each, others};

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

/// The slices of a plan's commands, each once.
pub(super) fn used_slices(plan: &Plan) -> BTreeSet<Slice> {
    plan.commands().flat_map(|(_, _, command)| command.action.slices().copied()).collect()
}

/// Moves a slice in all commands.
pub(super) fn move_all(plan: &mut Plan, old: Slice, offset: u64) {
    for section in Section::ALL {
        let slices = plan.section_mut(section).iter_mut().flat_map(|command| slices_mut(&mut command.action));
        slices.filter(|slice| **slice == old).for_each(|slice| slice.offset = offset);
    }
}

pub(super) fn each_slice<T: Copy + 'static>(
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

pub(super) fn shift_slices(plan: &Plan, by: &'static [i64]) -> Vec<Edit> {
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
pub(super) fn retarget(plan: &Plan, reading: bool) -> Vec<Edit> {
    let groups = Groups::new(plan);
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
            for new in groups.others(old) {
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

pub(super) fn reverse_copies(plan: &Plan) -> Vec<Edit> {
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

pub(super) fn swap_operands(plan: &Plan) -> Vec<Edit> {
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

/// The slices that a plan spells out, grouped by what may stand for each other.
struct Groups(BTreeMap<(Space, u64), Vec<Slice>>);

impl Groups {
    fn new(plan: &Plan) -> Groups {
        let mut groups: BTreeMap<(Space, u64), BTreeSet<Slice>> = BTreeMap::new();
        for slice in plan.commands().flat_map(|(_, _, c)| c.action.slices()) {
            groups.entry((slice.space, slice.bytes)).or_default().insert(*slice);
        }
        Groups(groups.into_iter().map(|(key, set)| (key, set.into_iter().collect())).collect())
    }

    /// Other slices of the same length in the same arena.
    fn others(&self, slice: Slice) -> Vec<Slice> {
        let Some(group) = self.0.get(&(slice.space, slice.bytes)) else { return Vec::new() };
        let Ok(at) = group.binary_search(&slice) else { return Vec::new() };
        others(group.len() as u32, at as u32).map(|i| group[i as usize]).collect()
    }

    /// Pairs of slices that may stand for each other.
    fn pairs(&self) -> Vec<(Slice, Slice)> {
        let all = self.0.values().flatten();
        all.flat_map(|&a| self.others(a).into_iter().map(move |b| (a, b))).collect()
    }
}

/// Replaces one slice by another in every command.
fn replace(plan: &mut Plan, old: Slice, new: Slice) {
    for section in Section::ALL {
        for command in plan.section_mut(section) {
            for slice in slices_mut(&mut command.action) {
                if *slice == old {
                    *slice = new;
                }
            }
        }
    }
}

/// Lets one slot stand for two, as a layout that takes their lifetimes for disjoint.
pub(super) fn merge_slots(plan: &Plan) -> Vec<Edit> {
    let merge = |(old, new)| -> Edit { Box::new(move |plan| replace(plan, old, new)) };
    Groups::new(plan).pairs().into_iter().map(merge).collect()
}

/// Moves one slot wherever it is used, as a layout that mistakes the size of its neighbour.
pub(super) fn move_slot(plan: &Plan) -> Vec<Edit> {
    let known: BTreeSet<Slice> = plan.commands().flat_map(|(_, _, c)| c.action.slices().copied()).collect();
    let mut edits: Vec<Edit> = Vec::new();
    for old in known {
        for offset in [-128, -64, 64, 128].iter().filter_map(|&by| old.offset.checked_add_signed(by)) {
            edits.push(Box::new(move |plan| replace(plan, old, Slice { offset, ..old })));
        }
    }
    edits
}

/// Swaps two slots in one command list from some command on, as a swap-in to another place than its readers
/// think.
pub(super) fn swap_slots_from(plan: &Plan) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for (a, b) in Groups::new(plan).pairs().into_iter().filter(|(a, b)| a < b) {
        for from in (0..plan.body.len()).step_by(5) {
            edits.push(Box::new(move |plan| {
                for command in plan.body.iter_mut().skip(from) {
                    for slice in slices_mut(&mut command.action) {
                        if *slice == a {
                            *slice = b;
                        } else if *slice == b {
                            *slice = a;
                        }
                    }
                }
            }));
        }
    }
    edits
}
