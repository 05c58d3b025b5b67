//! How long a script takes when bytes have no addresses.
//!
//! An allocation takes the free bytes that were ready last before it needs them, or else those that are ready first, in
//! pieces if need be: what layouts can hope for, as good as a greedy choice is. Everything else is as in [`realise`](crate::realise): three streams, awaits on contents, the event simulation.

use memc_ir::ByteRange;

use crate::awaits::{Access, Await, awaits};
use crate::place::{Command, Slot, Space, Trace};
use crate::problem::Problem;
use crate::realise::jobs;
use crate::simulate::simulate;

/// Steps walked before the one whose awaits count.
const WARM_UP: usize = 2;

/// Free bytes: how many, when, and the commands that used them last with the walk in which they ran.
struct Piece {
    bytes: u64,
    ready: u64,
    users: Vec<(usize, u32)>,
}

/// An allocation or a release of a slot on the device, before a command: script time, number of the command, slot,
/// whether it takes.
type Event = (u32, u32, u32, bool);

/// Time in ns from one step to the next; `None` where the script waits for itself or needs more than `capacity`.
pub(super) fn step_ns(p: &Problem, trace: &Trace, capacity: u64) -> Option<u64> {
    let accesses = apart(trace);
    let mut lists = awaits(&accesses);
    for (i, list) in memory_awaits(trace, &lists, capacity)?.into_iter().enumerate() {
        lists[i].extend(list);
        lists[i].sort_unstable();
        lists[i].dedup();
    }
    Some(simulate(&p.device, &jobs(p, trace), &lists).ok()?.step_ns)
}

/// Accesses as if no two slots had a byte in common.
fn apart(trace: &Trace) -> Vec<Access> {
    let mut offset = 0;
    let ranges: Vec<ByteRange> = trace
        .slots
        .iter()
        .map(|s| {
            offset += s.bytes;
            ByteRange { space: s.space, start: offset - s.bytes, end: offset }
        })
        .collect();
    let of = |list: &[u32]| list.iter().map(|&s| ranges[s as usize]).collect();
    let access =
        |c: &Command| Access { stream: c.stream, reads: of(&c.reads), writes: of(&c.writes), after: c.after };
    trace.commands.iter().map(access).collect()
}

/// What commands await because of the bytes that they take.
fn memory_awaits(trace: &Trace, data: &[Vec<Await>], capacity: u64) -> Option<Vec<Vec<Await>>> {
    let events = events(trace);
    let mut last: Vec<Vec<(usize, u32)>> = vec![Vec::new(); trace.slots.len()];
    let begin: u64 = homes(trace).map(|s| s.bytes).sum();
    let mut pool = vec![Piece { bytes: capacity.checked_sub(begin)?, ready: 0, users: Vec::new() }];
    let mut out: Vec<Vec<Await>> = vec![Vec::new(); trace.commands.len()];
    let mut ends: Vec<[u64; 2]> = vec![[0; 2]; trace.commands.len()];
    let mut clocks = [0u64; 3];
    for walk in 0..=WARM_UP {
        let mut next = events.iter().peekable();
        for c in 0..=trace.commands.len() {
            let mut claims: Vec<u64> = Vec::new();
            while let Some(&(_, _, slot, takes)) = next.next_if(|e| e.1 as usize == c) {
                let slot = slot as usize;
                let bytes = trace.slots[slot].bytes;
                if takes {
                    claims.push(bytes);
                } else {
                    let users = std::mem::take(&mut last[slot]);
                    let ready = users.iter().map(|&(w, u)| ends[u as usize][w % 2]).max().unwrap_or(0);
                    pool.push(Piece { bytes, ready, users });
                }
            }
            let Some(command) = trace.commands.get(c) else { break };
            let mut start = clocks[command.stream as usize];
            for a in &data[c] {
                let w = walk.wrapping_sub(usize::from(a.previous));
                if w <= walk {
                    start = start.max(ends[a.command as usize][w % 2]);
                }
            }
            // What a command claims it touches.
            let (claimed, users) = take(&mut pool, claims.iter().sum(), start)?;
            start = start.max(claimed);
            for (w, user) in users {
                if walk == WARM_UP && w + 1 >= walk {
                    out[c].push(Await { command: user, previous: w < walk });
                }
            }
            for &slot in command.reads.iter().chain(&command.writes) {
                let users = &mut last[slot as usize];
                users.retain(|&(_, u)| trace.commands[u as usize].stream != command.stream);
                users.push((walk, c as u32));
            }
            ends[c][walk % 2] = start + command.ns;
            clocks[command.stream as usize] = start + command.ns;
        }
    }
    Some(out)
}

/// Slots that are taken when the script begins.
fn homes(trace: &Trace) -> impl Iterator<Item = &Slot> {
    trace.slots.iter().filter(|s| s.space == Space::Dev && s.is_home())
}

/// Allocations and releases in order; what a step has at its end it has at the next one's beginning, if it is a home.
fn events(trace: &Trace) -> Vec<Event> {
    let end = trace.end;
    let mut ticks: Vec<bool> = vec![false; end as usize + 1];
    let mut out: Vec<Event> = Vec::new();
    for (i, slot) in trace.slots.iter().enumerate() {
        let home = slot.is_home();
        for (k, &(from, to)) in slot.live.iter().enumerate() {
            ticks[from as usize] = true;
            ticks[to as usize] |= to < end;
            if slot.space == Space::Dev {
                if !home || k > 0 {
                    out.push((from, 0, i as u32, true));
                }
                if !home || to < end {
                    out.push((to, 0, i as u32, false));
                }
            }
        }
    }
    // Every other tick is a command.
    let before: Vec<u32> = ticks
        .iter()
        .scan(0, |commands, &taken| {
            let now = *commands;
            *commands += u32::from(!taken);
            Some(now)
        })
        .collect();
    for e in &mut out {
        e.1 = before[e.0 as usize].min(trace.commands.len() as u32);
    }
    out.sort_unstable();
    out
}

/// Takes bytes: those ready last but before `start`, and of the rest those ready first.
fn take(pool: &mut Vec<Piece>, bytes: u64, start: u64) -> Option<(u64, Vec<(usize, u32)>)> {
    // From the back.
    pool.sort_by_key(|p| (p.ready <= start, if p.ready <= start { p.ready } else { u64::MAX - p.ready }));
    let (mut left, mut ready, mut users) = (bytes, 0, Vec::new());
    while left > 0 {
        let piece = pool.last_mut()?;
        let part = left.min(piece.bytes);
        if part > 0 {
            ready = ready.max(piece.ready);
            users.extend_from_slice(&piece.users);
        }
        piece.bytes -= part;
        left -= part;
        if piece.bytes == 0 {
            pool.pop();
        }
    }
    Some((ready, users))
}
