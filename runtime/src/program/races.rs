//! Proof that no two commands touch the same bytes at the same time, one of them writing.
//!
//! The commands are replayed once in issue order with a vector clock for each stream (Mattern, "Virtual time and
//! global states of distributed systems", 1989) and the last accesses to every range of bytes: an access is ordered
//! after an earlier one if the clock of its stream has reached that access. The sequences with no, one and two bodies
//! between prologue and epilogue stand for all: an access conflicts with one of an earlier body only if it conflicts
//! with the same command's repetition in the body just before, and the waits of every body but the first find the
//! records of the body just before it.

use std::collections::BTreeMap;

use memc_plan::{Plan, Queue, Section, Space};

use super::{Action, Place, Program};
use crate::Error;

const STREAMS: usize = Queue::ALL.len();
const HOST: usize = Queue::Host.index();

pub(super) fn check(program: &Program, plan: &Plan) -> Result<(), Error> {
    use Section::{Body, Epilogue, Prologue};
    for sequence in
        [&[Prologue, Body, Epilogue][..], &[Prologue, Body, Body, Epilogue], &[Prologue, Epilogue]]
    {
        let mut replay = Replay::new(program, plan);
        for &section in sequence {
            for index in 0..program.section(section).len() {
                replay.command(At { section, index })?;
            }
        }
    }
    Ok(())
}

/// A command.
#[derive(Clone, Copy)]
struct At {
    section: Section,
    index: usize,
}

/// What has happened before the next command of a stream: how many commands of each stream.
type Clock = [u64; STREAMS];

fn join(into: &mut Clock, from: &Clock) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

#[derive(Clone, Copy)]
struct Access {
    tick: u64,
    at: At,
}

/// The last accesses to the bytes from the key up to `end`: reads by stream, and the write with its stream.
#[derive(Clone, Copy)]
struct Range {
    end: usize,
    write: Option<(usize, Access)>,
    reads: [Option<Access>; STREAMS],
}

struct Replay<'a> {
    program: &'a Program,
    plan: &'a Plan,
    clocks: [Clock; STREAMS],
    events: Vec<Option<Clock>>,
    dev: BTreeMap<usize, Range>,
    host: BTreeMap<usize, Range>,
}

impl<'a> Replay<'a> {
    fn new(program: &'a Program, plan: &'a Plan) -> Replay<'a> {
        let fresh = |end| BTreeMap::from([(0, Range { end, write: None, reads: [None; STREAMS] })]);
        Replay {
            program,
            plan,
            clocks: [[0; STREAMS]; STREAMS],
            events: vec![None; program.events],
            dev: fresh(program.dev_bytes),
            host: fresh(program.host_bytes),
        }
    }

    fn command(&mut self, at: At) -> Result<(), Error> {
        let program = self.program;
        let Some(command) = program.section(at.section).get(at.index) else { return Ok(()) };
        let stream = command.queue.index();
        let issued = self.clocks[HOST];
        let clock = &mut self.clocks[stream];
        join(clock, &issued);
        clock[stream] += 1;
        match command.action {
            Action::Record(event) => {
                if let Some(slot) = self.events.get_mut(event) {
                    *slot = Some(*clock);
                }
            }
            Action::Wait(event) => match self.events.get(event) {
                Some(Some(recorded)) => join(clock, recorded),
                _ => return Err(self.fail(at, "waits for an event that nothing has recorded")),
            },
            _ => {}
        }
        let mut conflict = None;
        program.accesses(&command.action, |place, write| {
            let found = self.access(stream, at, place, write);
            conflict = conflict.or(found.map(|other| (place, other)));
        });
        let Some((place, other)) = conflict else { return Ok(()) };
        let what = format!(
            "touches bytes {}..{} of the {} arena at the same time as {} command {} `{}`: no event orders them",
            place.start,
            place.end(),
            place.space.name(),
            other.section,
            other.index,
            self.text(other),
        );
        Err(self.fail(at, &what))
    }

    /// Notes an access and returns the command that it is in conflict with, if any.
    fn access(&mut self, stream: usize, at: At, place: Place, write: bool) -> Option<At> {
        if place.len == 0 {
            return None;
        }
        let clock = self.clocks[stream];
        let access = Access { tick: clock[stream], at };
        let ranges = match place.space {
            Space::Dev => &mut self.dev,
            Space::Host => &mut self.host,
        };
        split(ranges, place.start);
        split(ranges, place.end());
        let unordered = |by: usize, earlier: &Access| clock[by] < earlier.tick;
        let mut conflict = None;
        for range in ranges.range_mut(place.start..place.end()).map(|(_, range)| range) {
            if let Some((by, earlier)) = &range.write
                && unordered(*by, earlier)
            {
                conflict = conflict.or(Some(earlier.at));
            }
            if write {
                let reads =
                    range.reads.iter().enumerate().filter_map(|(by, read)| Some((by, read.as_ref()?)));
                let mut late = reads.filter(|(by, read)| unordered(*by, read)).map(|(_, read)| read.at);
                conflict = conflict.or(late.next());
            } else {
                range.reads[stream] = Some(access);
            }
        }
        if write {
            let inner: Vec<usize> = ranges.range(place.start..place.end()).map(|(start, _)| *start).collect();
            for start in inner {
                ranges.remove(&start);
            }
            let range = Range { end: place.end(), write: Some((stream, access)), reads: [None; STREAMS] };
            ranges.insert(place.start, range);
        }
        conflict
    }

    fn text(&self, at: At) -> String {
        self.plan.section(at.section).get(at.index).map(ToString::to_string).unwrap_or_default()
    }

    fn fail(&self, at: At, what: &str) -> Error {
        let (section, index) = (at.section, at.index);
        Error::Plan(format!(
            "{section} command {index} `{}` {what}; the plan is wrong, compile the model again",
            self.text(at)
        ))
    }
}

/// Makes `at` a boundary between two ranges.
fn split(ranges: &mut BTreeMap<usize, Range>, at: usize) {
    let Some((&start, range)) = ranges.range_mut(..at).next_back() else { return };
    if range.end <= at {
        return;
    }
    let tail = *range;
    range.end = at;
    debug_assert!(start < at);
    ranges.insert(at, tail);
}
