//! Adds events to a list of work until every conflicting pair of accesses is ordered.

use std::collections::BTreeSet;

use memc_plan::{Action, Command, Plan, Queue, Slice};

/// Slices that a command reads and writes.
fn accesses(plan: &Plan, action: &Action) -> (Vec<Slice>, Vec<Slice>) {
    match action {
        Action::Launch { reads, writes, workspace, .. } => {
            (reads.clone(), writes.iter().chain(workspace).copied().collect())
        }
        Action::Copy { src, dst } => (vec![*src], vec![*dst]),
        Action::Free { slice } => (vec![], vec![*slice]),
        Action::HostWrite { input } => (vec![], vec![plan.inputs[*input as usize].slot]),
        Action::HostRead { output } => (vec![plan.outputs[*output as usize].slot], vec![]),
        Action::Load { .. } | Action::Store { .. } | Action::Record { .. } | Action::Wait { .. } => {
            (vec![], vec![])
        }
    }
}

fn conflict(a: &(Vec<Slice>, Vec<Slice>), b: &(Vec<Slice>, Vec<Slice>)) -> bool {
    let meet = |xs: &[Slice], ys: &[Slice]| xs.iter().any(|x| ys.iter().any(|y| x.overlaps(y)));
    meet(&a.1, &b.0) || meet(&a.0, &b.1) || meet(&a.1, &b.1)
}

fn axis(queue: Queue) -> usize {
    queue.index()
}

const HOST: usize = Queue::Host.index();

type Clock = [usize; Queue::ALL.len()];

fn join(clock: &mut Clock, other: &Clock) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

/// Per command of `body`, the commands it must wait for: earlier ones of the same step, later ones of the
/// step before.
fn waits(plan: &Plan, body: &[Command]) -> Vec<BTreeSet<usize>> {
    let touched: Vec<_> = body.iter().map(|c| accesses(plan, &c.action)).collect();
    let axes: Vec<usize> = body.iter().map(|c| axis(c.queue)).collect();
    let mut waits = vec![BTreeSet::new(); body.len()];
    let mut clocks = [[0usize; Queue::ALL.len()]; Queue::ALL.len()];
    let mut recorded: Vec<Option<Clock>> = vec![None; body.len()];
    // The executions so far: command, and its number on its axis.
    let mut past: Vec<(usize, usize)> = Vec::new();
    for _step in 0..2 {
        for j in 0..body.len() {
            let on = axes[j];
            let mut clock = clocks[on];
            join(&mut clock, &clocks[HOST]);
            for &i in &waits[j] {
                if let Some(event) = &recorded[i] {
                    join(&mut clock, event);
                }
            }
            for &(i, number) in past.iter().rev() {
                if clock[axes[i]] < number && conflict(&touched[i], &touched[j]) {
                    waits[j].insert(i);
                    join(&mut clock, &recorded[i].expect("it ran"));
                }
            }
            clock[on] += 1;
            clocks[on] = clock;
            recorded[j] = Some(clock);
            past.push((j, clock[on]));
        }
    }
    waits
}

/// Fills in the plan's prologue and body.
pub(crate) fn synchronise(plan: &mut Plan, body: &[Command]) {
    let waits = waits(plan, body);
    let sources: Vec<usize> = waits.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let event = |i: usize| sources.binary_search(&i).expect("a source") as u32;
    let plain = |queue, action| Command { queue, action, label: String::new() };
    for state in 0..plan.states.len() {
        plan.prologue.push(plain(Queue::Host, Action::Load { state: state as u32 }));
    }
    for &i in &sources {
        if waits.iter().enumerate().any(|(j, sources)| j <= i && sources.contains(&i)) {
            plan.prologue.push(plain(body[i].queue, Action::Record { event: event(i) }));
        }
    }
    for (j, command) in body.iter().enumerate() {
        for &i in &waits[j] {
            plan.body.push(plain(command.queue, Action::Wait { event: event(i) }));
        }
        plan.body.push(command.clone());
        if sources.contains(&j) {
            plan.body.push(plain(command.queue, Action::Record { event: event(j) }));
        }
    }
    plan.events = sources.len() as u32;
}

/// Fills in the epilogue: waits for all queues, stores the first `states` states.
pub(crate) fn with_stores(plan: &mut Plan, states: usize) {
    let plain = |queue, action| Command { queue, action, label: String::new() };
    for queue in [Queue::COMPUTE, Queue::D2H, Queue::H2D] {
        plan.epilogue.push(plain(queue, Action::Record { event: plan.events }));
        plan.epilogue.push(plain(Queue::Host, Action::Wait { event: plan.events }));
        plan.events += 1;
    }
    for state in 0..states {
        plan.epilogue.push(plain(Queue::Host, Action::Store { state: state as u32 }));
    }
}
