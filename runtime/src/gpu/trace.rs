//! A step with the time of every command: issued one by one, a mark before and after each.

use memc_gpu::{Clock, Graphs, Stream};
use memc_plan::{Section, Span};

use super::replay::Replay;
use crate::Error;
use crate::clock::{elapsed_ns, from_first, now};
use crate::device::HostSide;
use crate::program::Command;

/// Times that the two clocks are compared.
const LOOKS: usize = 5;

impl<D: Graphs + Clock> Replay<D> {
    /// Commands that run in queues and have times.
    fn timed(&self) -> impl Iterator<Item = &Command> {
        let body = self.program.section(Section::Body).iter();
        body.filter(|command| command.takes_time() && command.queue.stream().is_some())
    }

    /// Makes the marks: two for each command, and two that relate the device's time to the host's.
    pub(super) fn prepare_marks(&mut self) -> Result<(), Error> {
        let marks = 2 * self.timed().count() + 2;
        Ok(self.driver.reserve_marks(marks)?)
    }

    /// Runs the body and says when its commands ran.
    pub(super) fn trace(&mut self, host: &mut dyn HostSide) -> Result<Vec<Span>, Error> {
        let program = self.turns.next_program();
        let body = program.section(Section::Body);
        let (first, last) = (2 * self.timed().count(), 2 * self.timed().count() + 1);
        let mut on_host: Vec<(usize, i64, i64)> = Vec::with_capacity(body.len());
        let mut in_queues = Vec::with_capacity(body.len());
        let begin = now();
        let time = || elapsed_ns(begin).cast_signed();
        self.driver.mark(Stream::Compute, first)?;
        for (index, command) in body.iter().enumerate() {
            match command.queue.stream().filter(|_| command.takes_time()) {
                Some(queue) => {
                    let mark = 2 * in_queues.len();
                    self.driver.mark(queue, mark)?;
                    self.command(Section::Body, index, command, host)?;
                    self.driver.mark(queue, mark + 1)?;
                    in_queues.push((index, mark));
                }
                None => {
                    let start = time();
                    self.command(Section::Body, index, command, host)?;
                    if command.takes_time() {
                        on_host.push((index, start, time()));
                    }
                }
            }
        }
        // With all queues empty a mark is passed while the host looks at its clock; the shortest look tells
        // best.
        self.driver.synchronize()?;
        let mut best = (i64::MAX, 0);
        for _ in 0..LOOKS {
            let before = time();
            self.driver.mark(Stream::Compute, last)?;
            self.driver.synchronize()?;
            let after = time();
            let shift = before.midpoint(after) - self.driver.elapsed_ns(first, last)?;
            best = best.min((after - before, shift));
        }
        let (_, shift) = best;
        let mut spans = on_host;
        for (index, mark) in in_queues {
            let mut at = |mark| Ok::<_, Error>(self.driver.elapsed_ns(first, mark)? + shift);
            spans.push((index, at(mark)?, at(mark + 1)?));
        }
        self.turns.pass();
        Ok(from_first(&spans))
    }
}
