//! Time of decisions when bytes have no addresses.
//!
//! An allocation takes the free bytes that were ready last before it needs them, or else those that are ready
//! first, in pieces if need be: what layouts can hope for, as good as a greedy choice is. Everything else is
//! as in [`evaluate`](crate::evaluate): three streams, waits on contents, the event simulation.

use memc_ir::{Arena, ByteRange, Stream};

use crate::evaluate::jobs;
use crate::ids::{CommandIx, SlotIx};
use crate::place::{Command, Event, Space, Trace};
use crate::problem::Problem;
use crate::simulate::{Waits, simulate};
use crate::waits::{Access, Wait, waits};

/// Steps walked before the one whose waits count.
const WARM_UP: usize = 2;

/// Free bytes: how many, when, and the commands that used them last with the walk in which they ran.
struct Piece {
    bytes: u64,
    ready: u64,
    users: Users,
}

/// Time in ns from one step to the next; `None` where the decisions wait for themselves or needs more than
/// `capacity`.
pub(super) fn step_ns(p: &Problem, trace: &Trace, capacity: u64) -> Option<u64> {
    let accesses = apart(trace);
    let mut lists = waits(&accesses);
    for (i, list) in memory_waits(trace, &lists, capacity)?.iter() {
        lists[i].extend_from_slice(list);
        lists[i].sort_unstable();
        lists[i].dedup();
    }
    Some(simulate(&p.device, &jobs(p, trace), &lists).ok()?.step_ns)
}

/// Accesses as if no two slots had a byte in common.
fn apart(trace: &Trace) -> Arena<CommandIx, Access> {
    let mut offset = 0;
    let ranges: Arena<SlotIx, ByteRange> = trace
        .slots
        .values()
        .map(|s| {
            offset += s.bytes;
            ByteRange { space: s.space, start: offset - s.bytes, end: offset }
        })
        .collect();
    let of = |list: &[SlotIx]| list.iter().map(|&s| ranges[s]).collect();
    let access =
        |c: &Command| Access { stream: c.stream, reads: of(&c.reads), writes: of(&c.writes), after: c.after };
    trace.commands.values().map(access).collect()
}

/// For every command, the commands that used the bytes that it takes.
fn memory_waits(trace: &Trace, data: &Waits, capacity: u64) -> Option<Waits> {
    let on_device = |slot: &SlotIx| trace.slots[*slot].space == Space::Dev;
    let (residents, others): (Vec<SlotIx>, Vec<SlotIx>) =
        trace.slots.ids().filter(on_device).partition(|&slot| trace.slots[slot].is_resident());
    let begin: u64 = residents.iter().map(|&slot| trace.slots[slot].bytes).sum();
    let ends_with_step =
        |slot: &SlotIx| trace.slots[*slot].live.last().is_some_and(|live| live.1 == trace.end);
    let mut events = trace.events();
    events.extend(others.into_iter().filter(ends_with_step).map(Event::Free));
    let mut x = Bytes {
        trace,
        pool: vec![Piece { bytes: capacity.checked_sub(begin)?, ready: 0, users: Vec::new() }],
        users: Arena::filled(Vec::new(), trace.slots.len()),
        ends: Arena::filled([0; 2], trace.commands.len()),
        clocks: [0; Stream::ALL.len()],
    };
    let mut out = Arena::filled(Vec::new(), trace.commands.len());
    for walk in 0..=WARM_UP {
        let mut claimed = 0;
        for &event in &events {
            match event {
                Event::Alloc(slot) if on_device(&slot) => claimed += trace.slots[slot].bytes,
                Event::Free(slot) if on_device(&slot) => x.free(slot),
                Event::Alloc(_) | Event::Free(_) => {}
                Event::Command(c) => {
                    for (w, command) in x.run(c, walk, &data[c], std::mem::take(&mut claimed))? {
                        if walk == WARM_UP && w + 1 >= walk {
                            out[c].push(Wait { command, previous: w < walk });
                        }
                    }
                }
            }
        }
    }
    Some(out)
}

/// Commands with the walk in which they ran.
type Users = Vec<(usize, CommandIx)>;

/// Bytes of the device without addresses while commands run one after the other.
struct Bytes<'a> {
    trace: &'a Trace,
    /// Free bytes.
    pool: Vec<Piece>,
    /// For every slot, its last users on each stream.
    users: Arena<SlotIx, Users>,
    /// Ends of every command in ns, in even and in odd walks.
    ends: Arena<CommandIx, [u64; 2]>,
    /// Time at which each stream is done, in ns.
    clocks: [u64; Stream::ALL.len()],
}

impl Bytes<'_> {
    fn free(&mut self, slot: SlotIx) {
        let users = std::mem::take(&mut self.users[slot]);
        let ready = users.iter().map(|&(w, u)| self.ends[u][w % 2]).max().unwrap_or(0);
        self.pool.push(Piece { bytes: self.trace.slots[slot].bytes, ready, users });
    }

    /// Runs a command that claims bytes; returns their last users.
    fn run(&mut self, c: CommandIx, walk: usize, data: &[Wait], claimed: u64) -> Option<Users> {
        let command = &self.trace.commands[c];
        let stream = command.stream as usize;
        let mut start = self.clocks[stream];
        for a in data {
            let w = walk.wrapping_sub(usize::from(a.previous));
            if w <= walk {
                start = start.max(self.ends[a.command][w % 2]);
            }
        }
        let (ready, claimed_of) = take(&mut self.pool, claimed, start)?;
        for &slot in command.reads.iter().chain(&command.writes) {
            let users = &mut self.users[slot];
            users.retain(|&(_, u)| self.trace.commands[u].stream != command.stream);
            users.push((walk, c));
        }
        let end = start.max(ready) + command.ns;
        self.ends[c][walk % 2] = end;
        self.clocks[stream] = end;
        Some(claimed_of)
    }
}

/// Takes bytes: those ready last but before `start`, and of the rest those ready first.
fn take(pool: &mut Vec<Piece>, bytes: u64, start: u64) -> Option<(u64, Users)> {
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
