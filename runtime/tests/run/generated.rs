//! Generated plans: the proof that there are no races, against plain reachability; and mutants, which must
//! never crash.

use std::collections::BTreeMap;

use arbtest::{
    arbitrary::{Result, Unstructured},
    arbtest,
};
use memc_plan::{Action, Command, Plan, Queue, Section, Slice, Space};
use memc_runtime::{Program, RunOptions, cpu};

use crate::{CLASSIFIER, Folder, parse, steps};

const EVENTS: u32 = 3;

/// A plan of copies, frees, records and waits between few bytes.
fn copies(u: &mut Unstructured) -> Result<Plan> {
    let mut plan = Plan { events: EVENTS, ..Plan::default() };
    // Enough commands for a plan of so many events, without an access.
    let none = Action::Free { slice: Slice::dev(0, 0) };
    let none = Command { queue: Queue::COMPUTE, action: none, label: String::new() };
    plan.prologue = vec![none; EVENTS as usize];
    plan.meta.set_source("");
    (plan.meta.dev_bytes, plan.meta.host_bytes, plan.meta.budget_bytes) = (4, 2, 4);
    let most = u.int_in_range(1..=10)?;
    for (section, count) in [(Section::Prologue, 3), (Section::Body, most), (Section::Epilogue, 2)] {
        for _ in 0..u.int_in_range(0..=count)? {
            let queue = *u.choose(&Queue::ALL)?;
            let mut slice = || -> Result<Slice> {
                let (space, most) = *u.choose(&[(Space::Dev, 4u64), (Space::Host, 2)])?;
                let offset = u.int_in_range(0..=most - 1)?;
                Ok(Slice { space, offset, bytes: u.int_in_range(1..=(most - offset).min(2))? })
            };
            let (mut src, mut dst) = (slice()?, slice()?);
            (src.bytes, dst.bytes) = (1, 1);
            let event = u.int_in_range(0..=EVENTS - 1)?;
            let action = match u.int_in_range(0..=3)? {
                0 if queue != Queue::Host && src != dst => Action::Copy { src, dst },
                1 if queue != Queue::Host => Action::Record { event },
                2 => Action::Wait { event },
                _ => Action::Free { slice: src },
            };
            plan.section_mut(section).push(Command { queue, action, label: String::new() });
        }
    }
    Ok(plan)
}

/// Whether the plan is free of races over so many bodies, and finds every event that it waits for recorded: a
/// graph with a node for each command, and for each pair of conflicting commands a search for a path.
fn ordered(plan: &Plan, bodies: usize) -> bool {
    let body = std::iter::repeat_n(&plan.body, bodies).flatten();
    let all: Vec<&Command> = plan.prologue.iter().chain(body).chain(&plan.epilogue).collect();
    let mut before: Vec<Vec<usize>> = Vec::new();
    let mut last: BTreeMap<Queue, usize> = BTreeMap::new();
    let mut records: BTreeMap<u32, usize> = BTreeMap::new();
    for (i, command) in all.iter().enumerate() {
        let mut edges: Vec<usize> = last.get(&command.queue).copied().into_iter().collect();
        edges.extend(last.get(&Queue::Host));
        match &command.action {
            Action::Record { event } => {
                records.insert(*event, i);
            }
            Action::Wait { event } => match records.get(event) {
                Some(record) => edges.push(*record),
                None => return false,
            },
            _ => {}
        }
        last.insert(command.queue, i);
        before.push(edges);
    }
    let accesses = |command: &Command| match &command.action {
        Action::Copy { src, dst } => vec![(*src, false), (*dst, true)],
        Action::Free { slice } => vec![(*slice, true)],
        _ => Vec::new(),
    };
    for (i, command) in all.iter().enumerate() {
        let mut reached = vec![false; i + 1];
        let mut stack = vec![i];
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                stack.extend(&before[node]);
            }
        }
        for (j, other) in all[..i].iter().enumerate().filter(|(j, _)| !reached[*j]) {
            let conflict = accesses(command).into_iter().any(|(a, write)| {
                accesses(other).into_iter().any(|(b, other_write)| (write || other_write) && a.overlaps(&b))
            });
            assert!(j < i);
            if conflict {
                return false;
            }
        }
    }
    true
}

/// A program is accepted exactly if no number of steps has a race.
#[test]
fn the_proof_agrees_with_reachability() {
    let (mut accepted, mut refused) = (0, 0);
    arbtest(|u| {
        let plan = copies(u)?;
        let expected = (0..=4).all(|bodies| ordered(&plan, bodies));
        let found = Program::new(&plan);
        assert_eq!(found.is_ok(), expected, "{}\n{:?}", memc_plan::text::print(&plan), found.err());
        *(if expected { &mut accepted } else { &mut refused }) += 1;
        Ok(())
    })
    .budget_ms(1000);
    assert!(accepted > 50 && refused > 50, "{accepted} accepted, {refused} refused");
}

/// Changes one thing.
fn mutate(plan: &mut Plan, u: &mut Unstructured) -> Result<()> {
    fn slice(slice: &mut Slice, u: &mut Unstructured) -> Result<()> {
        match u.int_in_range(0..=4)? {
            0 => slice.offset = slice.offset.wrapping_add(64),
            1 => slice.offset = u.int_in_range(0..=300u64)? * 64,
            2 => slice.bytes = u.arbitrary()?,
            3 => slice.offset = u.arbitrary()?,
            _ => slice.space = *u.choose(&[Space::Dev, Space::Host])?,
        }
        Ok(())
    }
    let section =
        *u.choose(&[Section::Prologue, Section::Body, Section::Body, Section::Body, Section::Epilogue])?;
    let commands = plan.section_mut(section);
    let at = u.choose_index(commands.len())?;
    match u.int_in_range(0..=9)? {
        0 => drop(commands.remove(at)),
        1 => {
            let with = u.choose_index(commands.len())?;
            commands.swap(at, with);
        }
        2 => commands.insert(at, commands[u.choose_index(commands.len())?].clone()),
        3 => commands[at].queue = *u.choose(&Queue::ALL)?,
        4 => {
            let index = u.choose_index(plan.states.len())?;
            slice(&mut plan.states[index].resident, u)?;
        }
        5 => {
            let index = u.choose_index(plan.kernels.len())?;
            let other = plan.kernels[u.choose_index(plan.kernels.len())?].clone();
            plan.kernels[index].operands = other.operands;
        }
        _ => match &mut commands[at].action {
            Action::Launch { kernel, reads, writes, workspace } => match u.int_in_range(0..=4)? {
                0 => *kernel = u.int_in_range(0..=7)?,
                1 => {
                    let at = u.choose_index(reads.len())?;
                    slice(&mut reads[at], u)?;
                }
                2 => {
                    *workspace = Some(Slice::dev(u.int_in_range(0..=200u64)? * 64, u.int_in_range(0..=256)?))
                }
                _ => {
                    let at = u.choose_index(writes.len())?;
                    slice(&mut writes[at], u)?;
                }
            },
            Action::Copy { src, dst } => {
                slice(src, u)?;
                dst.bytes = src.bytes;
            }
            Action::Record { event } | Action::Wait { event } => *event = u.int_in_range(0..=6)?,
            Action::Free { slice: freed } => slice(freed, u)?,
            Action::Load { state: index } | Action::Store { state: index } => {
                *index = u.int_in_range(0..=5)?
            }
            Action::HostWrite { input: index } | Action::HostRead { output: index } => {
                *index = u.int_in_range(0..=4)?
            }
        },
    }
    Ok(())
}

/// Changed plans are refused, or run to an end that is no internal error, whatever they compute.
#[test]
fn mutants_do_not_crash() {
    let (mut refused, mut ran) = (0, 0);
    arbtest(|u| {
        let mut plan = parse(CLASSIFIER);
        for _ in 0..u.int_in_range(1..=3)? {
            mutate(&mut plan, u)?;
        }
        match Program::new(&plan) {
            Err(error) => {
                assert_eq!(error.exit_code(), 7, "{error}");
                refused += 1;
            }
            Ok(_) => {
                let cpu = cpu::Options { threads: 2, check_memory: true, delay_seed: None, slow: None };
                if let Err(error) = Folder::new(&plan).run(&RunOptions { cpu, ..steps(2) }) {
                    assert_ne!(error.exit_code(), 70, "{error}\n{}", memc_plan::text::print(&plan));
                }
                ran += 1;
            }
        }
        Ok(())
    })
    .budget_ms(2000);
    assert!(refused > 20 && ran > 20, "{refused} refused, {ran} ran");
}
