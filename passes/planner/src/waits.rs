//! Events on other streams that every command has to wait for.
//!
//! Works on bytes, once slots have offsets. Two commands conflict when they touch a common byte of one arena
//! and at least one writes it, or when one is to come after the other. The commands of one stream run in
//! order anyway.
//!
//! Of every other such pair, in issue order and across the boundary to the previous step, the later command
//! waits for the earlier one. Waits that others imply are left out (vector clocks over the streams):
//! the rest is minimal. The step is walked twice. A wait that the first walk needs within a step stays even
//! if the second walk finds it implied, because it may be among those that imply it.

use std::collections::BTreeMap;

use memc_ir::{Arena, ByteRange, Stream};

use crate::ids::CommandIx;

/// Number of streams.
const STREAMS: usize = Stream::ALL.len();

/// A command as far as ordering is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Its queue.
    pub stream: Stream,
    /// Bytes it reads.
    pub reads: Vec<ByteRange>,
    /// Bytes it writes.
    pub writes: Vec<ByteRange>,
    /// An earlier command that it comes after, whatever the two touch.
    pub after: Option<CommandIx>,
}

/// A dependence on a command of another stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wait {
    /// The command.
    pub command: CommandIx,
    /// Whether the previous step's run of it is meant.
    pub previous: bool,
}

/// An execution: command, walk (0 or 1), its sequence number on its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    command: CommandIx,
    walk: u8,
    stream: usize,
    number: u64,
}

/// Bytes with a common history: who wrote them last, and who read them since, per stream.
#[derive(Clone)]
struct Cell {
    end: u64,
    writer: Option<Run>,
    readers: [Option<Run>; STREAMS],
}

/// The waits of every command, ascending.
pub fn waits(commands: &Arena<CommandIx, Access>) -> Arena<CommandIx, Vec<Wait>> {
    let mut w = Walker {
        after: [Arena::filled([0; STREAMS], commands.len()), Arena::filled([0; STREAMS], commands.len())],
        ran: Arena::filled(None, commands.len()),
        ..Walker::default()
    };
    let mut out = Arena::filled(Vec::new(), commands.len());
    for walk in 0..2u8 {
        for (i, access) in commands.iter() {
            w.visit(i, access, walk, &mut out[i]);
        }
    }
    for list in out.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    out
}

#[derive(Default)]
struct Walker {
    shadow: [BTreeMap<u64, Cell>; 2],
    /// Commands that each stream is known to come after, by number on each stream.
    clocks: [[u64; STREAMS]; STREAMS],
    /// The clock right after every execution, by walk and command.
    after: [Arena<CommandIx, [u64; STREAMS]>; 2],
    /// The last execution of every command.
    ran: Arena<CommandIx, Option<Run>>,
}

impl Walker {
    fn visit(&mut self, command: CommandIx, access: &Access, walk: u8, out: &mut Vec<Wait>) {
        let stream = access.stream as usize;
        let mut needs: Vec<Run> = Vec::new();
        for &range in access.reads.iter().chain(&access.writes) {
            let map = &mut self.shadow[range.space as usize];
            split(map, range.start);
            split(map, range.end);
        }
        for &range in &access.reads {
            self.cells(range, |cell| needs.extend(cell.writer));
        }
        for &range in &access.writes {
            self.cells(range, |cell| {
                needs.extend(cell.writer);
                needs.extend(cell.readers.iter().flatten());
            });
        }
        needs.extend(access.after.and_then(|after| self.ran.get(after).copied().flatten()));
        needs.retain(|r| self.clocks[stream][r.stream] < r.number);
        let clock = |r: &Run| self.after[usize::from(r.walk)][r.command];
        // The last of a stream implies what is before it there; it may be implied by that of the other
        // stream.
        let last = |of: usize| needs.iter().filter(|r| r.stream == of).max_by_key(|r| r.number);
        let lasts: Vec<Run> = (0..STREAMS).filter_map(last).copied().collect();
        let implies = |a: &Run, b: &Run| a.stream != b.stream && clock(a)[b.stream] >= b.number;
        let needed = lasts.iter().filter(|b| !lasts.iter().any(|a| implies(a, b)));
        let needed: Vec<(Run, [u64; STREAMS])> = needed.map(|r| (*r, clock(r))).collect();
        for (need, clock) in needed {
            for (mine, theirs) in self.clocks[stream].iter_mut().zip(clock) {
                *mine = (*mine).max(theirs);
            }
            out.push(Wait { command: need.command, previous: need.walk < walk });
        }
        self.clocks[stream][stream] += 1;
        let run = Run { command, walk, stream, number: self.clocks[stream][stream] };
        self.after[usize::from(walk)][command] = self.clocks[stream];
        self.ran[command] = Some(run);
        for &range in &access.reads {
            self.cells(range, |cell| cell.readers[stream] = Some(run));
        }
        for &range in &access.writes {
            self.overwrite(range, run);
        }
    }

    /// Gives bytes, whose ends are boundaries, one history: written by `run`.
    fn overwrite(&mut self, range: ByteRange, run: Run) {
        let (from, to) = (range.start, range.end);
        if from >= to {
            return;
        }
        let map = &mut self.shadow[range.space as usize];
        let rest: Vec<u64> = map.range(from + 1..to).map(|(&at, _)| at).collect();
        for at in rest {
            map.remove(&at);
        }
        map.insert(from, Cell { end: to, writer: Some(run), readers: [None; STREAMS] });
    }

    /// Calls `f` on the cells that make up exactly the bytes, whose ends are boundaries.
    fn cells(&mut self, range: ByteRange, mut f: impl FnMut(&mut Cell)) {
        let (from, to) = (range.start, range.end);
        let map = &mut self.shadow[range.space as usize];
        let (mut at, mut holes) = (from, Vec::new());
        let mut hole = |at: u64, end: u64| {
            if at < end {
                let mut cell = Cell { end, writer: None, readers: [None; STREAMS] };
                f(&mut cell);
                holes.push((at, cell));
            }
        };
        for (&start, cell) in map.range_mut(from..to.max(from)) {
            hole(at, start);
            at = cell.end;
        }
        hole(at, to);
        for (_, cell) in map.range_mut(from..to.max(from)) {
            f(cell);
        }
        map.extend(holes);
    }
}

/// Makes `at` a boundary between cells.
fn split(map: &mut BTreeMap<u64, Cell>, at: u64) {
    if let Some((_, cell)) = map.range_mut(..at).next_back()
        && cell.end > at
    {
        let right = cell.clone();
        cell.end = at;
        map.insert(at, right);
    }
}
