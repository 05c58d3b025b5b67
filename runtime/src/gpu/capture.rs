//! The body as two captured graphs; see [`super::split`].
//!
//! A wait for an event that the body records only later stands for the previous step: the other half's record
//! of it. One for an event that no body records was met by the prologue, and is left out: before the first
//! launch, and after commands that were issued one by one, the host waits for the device.

use memc_gpu::{Clock, GpuError, Graph, Graphs, Stream};
use memc_plan::Section;

use super::replay::Replay;
use super::split::{Captured, HALVES, Split};
use crate::Error;
use crate::device::HostSide;
use crate::program::Action;

impl<D: Graphs + Clock> Replay<D> {
    /// Captures the body; the kernels must have run before, since what loads them late cannot be captured.
    pub(super) fn capture(&mut self, captured: &mut Captured) -> Result<(), Error> {
        if captured.split.device.is_empty() || captured.ready() {
            return Ok(());
        }
        // The first launch of a half waits for what the other half has not recorded yet.
        for event in self.program.events..captured.split.all_events() {
            self.driver.record(Stream::Compute, event)?;
        }
        self.driver.synchronize()?;
        for half in 0..HALVES {
            let graph = self.half(&captured.split, half).map_err(|error| match error {
                GpuError::Call { .. } | GpuError::Symbol { .. } => Error::Device(format!(
                    "the step cannot be captured as a CUDA graph: {error}; try --no-graph"
                )),
                other => other.into(),
            })?;
            captured.graphs.push(graph);
        }
        // An event that was captured means nothing outside; everything that it stood for has happened.
        for (event, latest) in self.latest.iter_mut().enumerate() {
            *latest = captured.split.outside(HALVES - 1, event).unwrap_or(*latest);
        }
        Ok(())
    }

    fn half(&mut self, split: &Split, half: usize) -> Result<Graph, GpuError> {
        self.driver.begin_capture()?;
        // Kernels on the host are those of the turn.
        let next = std::mem::replace(&mut self.turns.next, half);
        let issued = self.issue_half(split, half);
        self.turns.next = next;
        let graph = self.driver.end_capture();
        issued.and(graph)
    }

    fn issue_half(&mut self, split: &Split, half: usize) -> Result<(), GpuError> {
        let (program, other) = (self.turns.program(half).clone(), HALVES - 1 - half);
        let body = program.section(Section::Body);
        for queue in Stream::ALL {
            self.driver.wait_outside(queue, split.end(other, queue))?;
            for event in self.turns.gates().iter().filter_map(|event| split.outside(other, *event)) {
                self.driver.wait_outside(queue, event)?;
            }
        }
        let mut last = vec![None; program.events];
        for index in split.device.clone() {
            if let Some(Action::Record(event)) = body.get(index).map(|command| &command.action) {
                last.get_mut(*event).into_iter().for_each(|last| *last = Some(index));
            }
        }
        let mut recorded = vec![false; program.events];
        for index in split.device.clone() {
            let Some((command, queue)) = body.get(index).and_then(|c| Some((c, c.queue.stream()?))) else {
                continue;
            };
            match command.action {
                Action::Wait(event) if recorded.get(event) == Some(&true) => {
                    self.driver.wait(queue, event)?
                }
                Action::Wait(event) => {
                    if let Some(event) = split.outside(other, event) {
                        self.driver.wait_outside(queue, event)?;
                    }
                }
                Action::Record(event) => {
                    self.driver.record(queue, event)?;
                    recorded.get_mut(event).into_iter().for_each(|seen| *seen = true);
                    if let Some(outside) = split.outside(half, event)
                        && last.get(event) == Some(&Some(index))
                    {
                        self.driver.record_outside(queue, outside)?;
                    }
                }
                _ => self.on_device(Section::Body, index, queue, &command.action)?,
            }
        }
        for queue in Stream::ALL {
            self.driver.record_outside(queue, split.end(half, queue))?;
        }
        Ok(())
    }

    /// Runs the body by its graph.
    pub(super) fn launch_half(
        &mut self,
        captured: &mut Captured,
        host: &mut dyn HostSide,
    ) -> Result<(), Error> {
        let (split, half) = (&captured.split, self.turns.next);
        let program = self.turns.program(half).clone();
        let body = program.section(Section::Body);
        for (index, command) in body.get(..split.device.start).unwrap_or_default().iter().enumerate() {
            match command.action {
                // The graph has the queues' waits.
                Action::Wait(event)
                    if let Some(event) = self.turns.same_turn(Section::Body, index, event) =>
                {
                    self.driver.await_event(event)?;
                }
                _ => self.on_host(&command.action, host)?,
            }
        }
        if captured.behind {
            self.driver.synchronize()?;
        }
        if let Some(&graph) = captured.graphs.get(half) {
            self.driver.replay(graph)?;
        }
        for (event, last) in self.latest.iter_mut().enumerate() {
            *last = split.outside(half, event).unwrap_or(*last);
        }
        for command in body.get(split.device.end..).unwrap_or_default() {
            self.on_host(&command.action, host)?;
        }
        captured.behind = false;
        self.turns.pass();
        Ok(())
    }

    /// Orders commands that are issued one by one after the graph that was launched last.
    pub(super) fn after_graphs(&mut self) -> Result<(), GpuError> {
        let Some(captured) = &mut self.captured else { return Ok(()) };
        if !captured.behind {
            let last = HALVES - 1 - self.turns.next;
            for queue in Stream::ALL {
                self.driver.wait(queue, captured.split.end(last, queue))?;
            }
        }
        captured.behind = true;
        Ok(())
    }
}
