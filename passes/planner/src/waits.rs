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

use std::ops::Range;

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

/// An execution: command, its stream, and walk (0 or 1).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    command: CommandIx,
    stream: Stream,
    walk: u8,
}

/// History of some bytes: who wrote them last, and who read them since, per stream.
#[derive(Clone, Copy, Default)]
struct History {
    writer: Option<Run>,
    readers: [Option<Run>; STREAMS],
}

/// The bytes of one arena, in stretches with a common history.
struct Shadow {
    /// First byte of every stretch, ascending from 0; the next one's is its end, and the last has none.
    starts: Vec<u64>,
    history: Vec<History>,
}

impl Default for Shadow {
    fn default() -> Shadow {
        Shadow { starts: vec![0], history: vec![History::default()] }
    }
}

impl Shadow {
    /// Index of the stretch that begins at a byte; if need be one is split there.
    fn split(&mut self, at: u64) -> usize {
        self.starts.binary_search(&at).unwrap_or_else(|i| {
            let before = self.history[i - 1];
            self.starts.insert(i, at);
            self.history.insert(i, before);
            i
        })
    }

    /// Indices of the stretches that make up exactly some bytes.
    fn stretches(&mut self, range: ByteRange) -> Range<usize> {
        if range.start >= range.end {
            return 0..0;
        }
        let from = self.split(range.start);
        from..self.split(range.end)
    }
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
    shadow: [Shadow; 2],
    /// Commands that each stream is known to come after, by number on each stream.
    clocks: [[u64; STREAMS]; STREAMS],
    /// The clock right after every execution, by walk and command.
    after: [Arena<CommandIx, [u64; STREAMS]>; 2],
    /// The last execution of every command.
    ran: Arena<CommandIx, Option<Run>>,
    /// Executions that the visited command needs; kept for its memory.
    needs: Vec<Run>,
}

impl Walker {
    /// The clock right after an execution.
    fn clock(&self, r: &Run) -> [u64; STREAMS] {
        self.after[usize::from(r.walk)][r.command]
    }

    /// Number of an execution on its stream.
    fn number(&self, r: &Run) -> u64 {
        self.clock(r)[r.stream as usize]
    }

    fn visit(&mut self, command: CommandIx, access: &Access, walk: u8, out: &mut Vec<Wait>) {
        let stream = access.stream as usize;
        let run = Run { command, stream: access.stream, walk };
        let mut needs = std::mem::take(&mut self.needs);
        needs.clear();
        needs.extend(access.after.and_then(|after| self.ran.get(after).copied().flatten()));
        self.touch(access, run, &mut needs);
        needs.retain(|r| *r != run && self.clocks[stream][r.stream as usize] < self.number(r));
        // The last of a stream implies what is before it there; it may be implied by that of the other
        // stream.
        let last =
            |of: usize| needs.iter().filter(|r| r.stream as usize == of).max_by_key(|r| self.number(r));
        let lasts: [Option<Run>; STREAMS] = std::array::from_fn(|of| last(of).copied());
        let implies =
            |a: &Run, b: &Run| a.stream != b.stream && self.clock(a)[b.stream as usize] >= self.number(b);
        let lasts = lasts.iter().flatten();
        let is_needed = |b: &&Run| !lasts.clone().any(|a| implies(a, b));
        let mut clock = self.clocks[stream];
        for need in lasts.clone().filter(is_needed) {
            for (mine, theirs) in clock.iter_mut().zip(self.clock(need)) {
                *mine = (*mine).max(theirs);
            }
            out.push(Wait { command: need.command, previous: need.walk < walk });
        }
        clock[stream] += 1;
        self.clocks[stream] = clock;
        self.after[usize::from(walk)][command] = clock;
        self.ran[command] = Some(run);
        self.needs = needs;
    }

    /// Enters an execution into the history of its bytes; `needs` gets those that it conflicts with, itself
    /// among them where it reads what it writes.
    fn touch(&mut self, access: &Access, run: Run, needs: &mut Vec<Run>) {
        for &range in &access.reads {
            let shadow = &mut self.shadow[range.space as usize];
            for i in shadow.stretches(range) {
                let history = &mut shadow.history[i];
                needs.extend(history.writer);
                history.readers[run.stream as usize] = Some(run);
            }
        }
        for &range in &access.writes {
            let shadow = &mut self.shadow[range.space as usize];
            let stretches = shadow.stretches(range);
            for history in &shadow.history[stretches.clone()] {
                needs.extend(history.writer);
                needs.extend(history.readers.iter().flatten());
            }
            if !stretches.is_empty() {
                let rest = stretches.start + 1..stretches.end;
                shadow.history[stretches.start] = History { writer: Some(run), readers: [None; STREAMS] };
                shadow.starts.drain(rest.clone());
                shadow.history.drain(rest);
            }
        }
    }
}
