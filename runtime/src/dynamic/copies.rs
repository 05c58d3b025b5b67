//! Copies between the arenas beside the ops: a thread for each direction.
//!
//! Contract: whoever touches bytes of an arena calls [`Copies::settle`] for them before. It waits for the
//! copies in flight that write them, and where they are to be written, for those that read them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::Error;
use crate::clock::{elapsed_ns, now};
use crate::cpu::arena::Arenas;
use crate::cpu::exec::Runner;
use crate::dynamic::flow::internal;
use crate::program::{Action, Place};
use crate::{Program, cpu::guarded};

/// Direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    In,
}

/// Weight of the newest copy in the bandwidth.
const ALPHA: f64 = 0.25;
/// Copies of fewer bytes say nothing about the bandwidth.
const COUNTS: usize = 1 << 16;

/// Copies in flight.
pub(super) struct Copies {
    lanes: [Lane; 2],
    /// Bytes per ns of the copies so far.
    bytes_per_ns: f64,
}

/// The copies of a direction, in the order in which they run.
struct Lane {
    to: Option<Sender<(Place, Place)>>,
    /// Time of each copy that has ended, in ns.
    ended: Receiver<Result<u64, Error>>,
    flying: VecDeque<(Place, Place)>,
    thread: Option<JoinHandle<()>>,
}

impl Copies {
    pub(super) fn start(program: &Arc<Program>, arenas: &Arc<Arenas>) -> Result<Copies, Error> {
        let runner = || Runner::new(program.clone(), arenas.clone(), false);
        let lanes = [Lane::start("memrun-d2h", runner())?, Lane::start("memrun-h2d", runner())?];
        Ok(Copies { lanes, bytes_per_ns: first_bandwidth() })
    }

    /// Bytes per ns of copies.
    pub(super) fn bytes_per_ns(&self) -> f64 {
        self.bytes_per_ns
    }

    /// Issues a copy, after those of the other direction that touch its bytes.
    pub(super) fn issue(&mut self, direction: Direction, src: Place, dst: Place) -> Result<(), Error> {
        if src.len == 0 {
            return Ok(());
        }
        let other = if direction == Direction::Out { Direction::In } else { Direction::Out };
        self.settle_in(other, src, false)?;
        self.settle_in(other, dst, true)?;
        let lane = self.lane(direction);
        lane.flying.push_back((src, dst));
        let sent = lane.to.as_ref().is_some_and(|to| to.send((src, dst)).is_ok());
        if sent { Ok(()) } else { Err(internal("a copy thread has ended")) }
    }

    /// Waits for all copies in flight that a command has to come after which reads or writes a place.
    pub(super) fn settle(&mut self, place: Place, writes: bool) -> Result<(), Error> {
        self.settle_in(Direction::Out, place, writes)?;
        self.settle_in(Direction::In, place, writes)
    }

    /// Waits for all copies.
    pub(super) fn drain(&mut self) -> Result<(), Error> {
        for direction in [Direction::Out, Direction::In] {
            while !self.lane(direction).flying.is_empty() {
                self.finish(direction, true)?;
            }
        }
        Ok(())
    }

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        let [out, into] = &mut self.lanes;
        if direction == Direction::Out { out } else { into }
    }

    fn settle_in(&mut self, direction: Direction, place: Place, writes: bool) -> Result<(), Error> {
        while self.finish(direction, false)? {}
        let conflicts =
            |(src, dst): &(Place, Place)| dst.overlaps(&place) || (writes && src.overlaps(&place));
        // Copies end in the order of issue.
        while self.lane(direction).flying.iter().any(conflicts) {
            self.finish(direction, true)?;
        }
        Ok(())
    }

    /// Takes note of the end of the oldest copy, and says whether there was one to note.
    fn finish(&mut self, direction: Direction, waits: bool) -> Result<bool, Error> {
        let lane = self.lane(direction);
        if lane.flying.is_empty() {
            return Ok(false);
        }
        let ended = if waits {
            lane.ended.recv().map_err(|_| internal("a copy thread has ended"))?
        } else {
            let Ok(ended) = lane.ended.try_recv() else { return Ok(false) };
            ended
        };
        let bytes = lane.flying.pop_front().map_or(0, |(src, _)| src.len);
        let ns = ended?.max(1);
        if bytes >= COUNTS {
            self.bytes_per_ns += ALPHA * (bytes as f64 / ns as f64 - self.bytes_per_ns);
        }
        Ok(true)
    }
}

impl Lane {
    fn start(name: &str, mut runner: Runner) -> Result<Lane, Error> {
        let (to, copies) = channel::<(Place, Place)>();
        let (end, ended) = channel();
        let work = move || {
            while let Ok((src, dst)) = copies.recv() {
                let start = now();
                let copy = || runner.run(&Action::Copy { src, dst });
                let done = guarded(memc_plan::Section::Body, 0, copy);
                let ns = elapsed_ns(start);
                if end.send(done.map(|()| ns)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|e| Error::Memory(format!("cannot start a copy thread: {e}")))?;
        Ok(Lane { to: Some(to), ended, flying: VecDeque::new(), thread: Some(thread) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.to = None;
        // Its panics were caught and reported.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Bandwidth of a copy of a few MiB, in bytes per ns.
fn first_bandwidth() -> f64 {
    let from = vec![1u8; 4 << 20];
    // Pages that were written before: a first write takes as long again.
    let mut to = vec![2u8; 4 << 20];
    let start = now();
    to.copy_from_slice(std::hint::black_box(&from));
    let ns = elapsed_ns(start).max(1);
    std::hint::black_box(&to).len() as f64 / ns as f64
}
