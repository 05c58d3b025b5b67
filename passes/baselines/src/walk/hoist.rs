//! Moves copies to the device ahead of their need, as prefetchers do, and releases behind copies to the host,
//! as allocators do that take free memory first.

use memc_ir::Arena;
use memc_planner::{Action, Decisions, Problem, Resident, Run, TensorId};

/// A copy to the device: tensor, the slot that it is in, the first slot that it may be in.
struct Copy {
    tensor: TensorId,
    slot: usize,
    first: usize,
}

/// Puts releases off until the copies to the host before them are done, by the ops' times without stalls, as
/// far as memory allows: until then, bytes that are free anyway are better taken by others.
pub(crate) fn put_off(p: &Problem, d: Decisions, capacity: u64) -> Decisions {
    let mut used = usage(p, &d);
    let mut slots: Vec<Vec<Action>> = vec![Vec::new()];
    let mut runs = Vec::new();
    let (mut clock, mut link) = (0u64, 0u64);
    let mut start = Vec::with_capacity(used.len());
    for action in &d.actions {
        if let Action::Run(run) = action {
            start.push(clock);
            clock += p.ops[run.op].time_ns;
        }
    }
    // The first slot in which each tensor is wanted again, from the end.
    let mut wanted = Arena::filled(start.len(), p.tensors.len());
    let mut until = vec![None; d.actions.len()];
    let mut slot = start.len();
    for (i, action) in d.actions.iter().enumerate().rev() {
        match action {
            Action::Run(run) => {
                slot -= 1;
                let op = &p.ops[run.op];
                op.reads.iter().chain(&op.writes).for_each(|&t| wanted[t] = slot);
            }
            Action::In((t, _)) => wanted[*t] = slot,
            Action::Drop(t) => until[i] = Some(wanted[*t]),
            Action::Out(_) => {}
        }
    }
    let mut late: Vec<Vec<Action>> = vec![Vec::new(); start.len() + 1];
    let mut done = Arena::filled(0u64, p.tensors.len());
    for (i, action) in d.actions.iter().enumerate() {
        let k = runs.len();
        match action {
            Action::Run(run) => {
                runs.push(run.clone());
                slots.push(Vec::new());
                continue;
            }
            Action::Out(t) => {
                link = link.max(start.get(k).copied().unwrap_or(clock));
                link += p.device.d2h_ns(p.tensors[*t].size);
                done[*t] = link;
            }
            Action::Drop(t) => {
                let bytes = p.tensors[*t].bytes;
                let mut to = k;
                while to + 1 < until[i].unwrap_or(0) && start[to] < done[*t] && used[to] + bytes <= capacity {
                    used[to] += bytes;
                    to += 1;
                }
                if to > k {
                    late[to].push(action.clone());
                    continue;
                }
            }
            Action::In(_) => {}
        }
        slots[k].push(action.clone());
    }
    let mut actions = Vec::with_capacity(d.actions.len());
    for ((k, mut slot), mut late) in slots.into_iter().enumerate().zip(late) {
        actions.append(&mut late);
        actions.append(&mut slot);
        actions.extend(runs.get_mut(k).map(|run| Action::Run(std::mem::take(run))));
    }
    // Releases that moved come before copies to the device.
    hoist(p, Decisions { actions, ..d }, capacity, &|_, slot| (slot, slot))
}

/// Decisions by runs: what happens before each of them, and after the last.
struct Slots {
    runs: Vec<Run>,
    /// Copies to the host and releases, in order.
    before: Vec<Vec<Action>>,
    copies: Vec<Copy>,
}

/// Moves every copy to the device as early as it has to begin for its op to find it done, by the ops' times
/// without stalls, as far as memory, the tensor's last release and `lead` allow.
///
/// `lead` gets a tensor and the index of the run that needs it, and says before which run its copy may begin,
/// and before which it has to as far as memory allows, whether or not that is early. Copies keep the order of
/// their needs.
pub(crate) fn hoist(
    p: &Problem,
    d: Decisions,
    capacity: u64,
    lead: &dyn Fn(TensorId, usize) -> (usize, usize),
) -> Decisions {
    let mut used = usage(p, &d);
    let mut s = Slots::new(p, &d);
    let mut start = vec![0u64];
    for run in &s.runs {
        start.push(start.last().copied().unwrap_or(0) + p.ops[run.op].time_ns);
    }
    let mut to: Vec<usize> = s.copies.iter().map(|c| c.slot).collect();
    let mut latest = u64::MAX;
    for (c, to) in s.copies.iter().zip(&mut to).rev() {
        let tensor = &p.tensors[c.tensor];
        latest = latest.min(start[c.slot]).saturating_sub(p.device.h2d_ns(tensor.size));
        let (first, by) = lead(c.tensor, c.slot);
        let limit = c.first.max(first);
        while *to > limit && (*to > by || start[*to] > latest) && used[*to - 1] + tensor.bytes <= capacity {
            *to -= 1;
            used[*to] += tensor.bytes;
        }
    }
    let mut ins: Vec<Vec<TensorId>> = vec![Vec::new(); s.before.len()];
    for (c, to) in s.copies.iter().zip(to) {
        ins[to].push(c.tensor);
    }
    let mut actions = Vec::with_capacity(d.actions.len());
    for (k, before) in s.before.iter_mut().enumerate() {
        actions.append(before);
        actions.extend(ins[k].iter().map(|&t| Action::In((t, None))));
        actions.extend(s.runs.get_mut(k).map(|run| Action::Run(std::mem::take(run))));
    }
    Decisions { actions, ..d }
}

impl Slots {
    fn new(p: &Problem, d: &Decisions) -> Slots {
        let mut s = Slots { runs: Vec::new(), before: vec![Vec::new()], copies: Vec::new() };
        let mut released = Arena::filled(0, p.tensors.len());
        for action in &d.actions {
            let slot = s.runs.len();
            match action {
                Action::Run(run) => {
                    s.runs.push(run.clone());
                    s.before.push(Vec::new());
                }
                Action::In((t, _)) => {
                    s.copies.push(Copy { tensor: *t, slot, first: released[*t] });
                }
                Action::Drop(t) => {
                    released[*t] = slot;
                    // A copy that is dropped with no run between was not needed.
                    let first = s.copies.partition_point(|c| c.slot < slot);
                    match s.copies[first..].iter().rposition(|c| c.tensor == *t) {
                        Some(k) => drop(s.copies.remove(first + k)),
                        None => s.before[slot].push(action.clone()),
                    }
                }
                Action::Out(_) => s.before[slot].push(action.clone()),
            }
        }
        s
    }
}

/// Bytes on the device during every run of decisions.
pub(crate) fn usage(p: &Problem, d: &Decisions) -> Vec<u64> {
    let bytes = |t: TensorId| p.tensors[t].bytes;
    let mut here = Arena::filled(false, p.tensors.len());
    let mut used = 0u64;
    for (&t, resident) in &d.residents {
        if matches!(resident, Resident::Dev(_)) {
            here[t] = true;
            used += bytes(t);
        }
    }
    let mut out = Vec::new();
    for action in &d.actions {
        match action {
            Action::In((t, _)) => {
                here[*t] = true;
                used += bytes(*t);
            }
            Action::Drop(t) => {
                here[*t] = false;
                used = used.saturating_sub(bytes(*t));
            }
            Action::Out(_) => {}
            Action::Run(run) => {
                for &(t, _) in &run.at {
                    here[t] = true;
                    used += bytes(t);
                }
                let op = &p.ops[run.op];
                let scratch = |t: &TensorId| {
                    run.recompute && !run.at.iter().any(|a| a.0 == *t) && !op.reads.contains(t)
                };
                let extra: u64 = op.writes.iter().filter(|t| scratch(t)).map(|&t| bytes(t)).sum();
                out.push(used + extra + op.workspace);
            }
        }
    }
    out
}
