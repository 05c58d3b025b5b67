//! A plan on a device: runs rounds of batches for as long as requests come.
//!
//! Contract: a round feeds each lane the rows of its requests and zeros behind them, runs the body once, and
//! hands each request its own rows of the outputs. After an error the plan is opened anew; where that fails,
//! it takes no more requests. Where a kernel refuses data, each request of the round runs again by itself, so
//! that one gets the error and the others their outputs. Any other error all of them get.

use std::sync::Arc;

use memc_gpu::LibraryOptions;
use memc_plan::{PlanFile, Section};

use super::metrics::Metrics;
use super::model::{Counter, Model, Port};
use super::queue::{Answer, Queues, Round, Ticket};
use crate::cpu::{self, Cpu};
use crate::ends::{self, Outputs};
use crate::{Device, DeviceName, Error, Executor, HostSide, Initial, Program, StateFile, gpu};

/// A plan that is served.
pub(super) struct Engine {
    pub(super) file: PlanFile,
    pub(super) program: Arc<Program>,
    pub(super) models: Arc<Vec<Model>>,
    pub(super) counters: Vec<Counter>,
    pub(super) queues: Arc<Queues>,
    pub(super) metrics: Arc<Metrics>,
}

/// Device that each plan is opened on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Where {
    pub(super) device: DeviceName,
    pub(super) cpu: cpu::Options,
    pub(super) libraries: LibraryOptions,
    /// Whether the caller has granted the host memory.
    pub(super) host_is_granted: bool,
}

impl Where {
    fn open(self) -> Result<Box<dyn Device>, Error> {
        Ok(match self.device {
            DeviceName::Cpu => Box::new(Cpu::new(self.cpu)?),
            DeviceName::Cuda(ordinal) => {
                let device = gpu::cuda(ordinal, self.libraries, self.cpu.check_memory);
                // Several plans share what is granted, and take no more than they say.
                Box::new(device.with_host_memory(self.host_is_granted.then_some(0)))
            }
        })
    }
}

impl Engine {
    /// Opens the plan, says whether that worked, and runs until its queues are closed and empty.
    pub(super) fn run(self, at: Where, init: Option<StateFile>, opened: impl FnOnce(Result<(), Error>)) {
        let _closes = Closes(self.queues.clone());
        let made = at.open().and_then(|device| {
            let initial = Initial::new(&self.file, Vec::new(), init.into_iter().collect())?;
            Ok((device, initial))
        });
        let (device, initial) = match made {
            Ok(made) => made,
            Err(error) => return opened(Err(error)),
        };
        let mut host = Host::new(&self.program, &initial, &self.counters);
        let mut executor = match load(&*device, &self.program, &mut host) {
            Ok(executor) => executor,
            Err(error) => return opened(Err(error)),
        };
        opened(Ok(()));
        while let Some(round) = self.queues.next(&self.models) {
            let mut todo = vec![round];
            while let Some(round) = todo.pop() {
                host.fill(&self.models, &round);
                host.round = host.round.saturating_add(1);
                let Err(error) = executor.run(Section::Body, &mut host) else {
                    self.answer(&host, round);
                    continue;
                };
                if matches!(error, Error::Data(_)) && round.iter().flatten().flatten().count() > 1 {
                    todo.extend(self.alone(round));
                } else {
                    fail(round.into_iter().flatten().flatten(), &error);
                }
                drop(executor);
                executor = match load(&*device, &self.program, &mut host) {
                    Ok(executor) => executor,
                    Err(error) => {
                        fail(todo.into_iter().flatten().flatten().flatten(), &error);
                        return fail(self.queues.fail(), &error);
                    }
                };
            }
        }
    }

    /// A round for each request of a round.
    fn alone(&self, round: Round) -> Vec<Round> {
        let empty = || -> Round {
            self.models.iter().map(|model| (0..model.lanes).map(|_| Vec::new()).collect()).collect()
        };
        let mut rounds = Vec::new();
        for (model, tickets) in round.into_iter().enumerate() {
            for ticket in tickets.into_iter().flatten() {
                let mut round = empty();
                if let Some(lane) = round.get_mut(model).and_then(|lanes| lanes.first_mut()) {
                    lane.push(ticket);
                }
                rounds.push(round);
            }
        }
        rounds
    }

    /// Hands each request its rows of the outputs.
    fn answer(&self, host: &Host<'_>, round: Round) {
        for (model, lanes) in self.models.iter().zip(round) {
            for (lane, tickets) in lanes.into_iter().enumerate().filter(|(_, tickets)| !tickets.is_empty()) {
                let mut row = 0;
                for ticket in tickets {
                    let part = |port: &Port| {
                        let (from, len) = (model.bytes(port, row), model.bytes(port, ticket.rows));
                        let from = if model.batch.is_some() { from } else { 0 };
                        let bytes = port.at.get(lane).and_then(|&at| host.outputs.get(at));
                        bytes.and_then(|b| b.get(from..from.checked_add(len)?)).map(<[u8]>::to_vec)
                    };
                    let outputs: Option<Vec<Vec<u8>>> = model.outputs.iter().map(part).collect();
                    row = row.saturating_add(ticket.rows);
                    let missing = || (500, "an output of the plan is not whole".to_owned());
                    // A client that has gone needs no answer.
                    let _ = ticket.reply.send(outputs.ok_or_else(missing));
                }
                self.metrics.ran(&model.name, row);
            }
        }
    }
}

/// Closes the queues when the plan's thread ends, in whatever way: nobody waits for it then.
struct Closes(Arc<Queues>);

impl Drop for Closes {
    fn drop(&mut self) {
        drop(self.0.fail());
    }
}

/// Reserves the memory and brings the states to their slots.
fn load(
    device: &dyn Device,
    program: &Arc<Program>,
    host: &mut Host<'_>,
) -> Result<Box<dyn Executor>, Error> {
    let mut executor = device.open(program.clone())?;
    executor.run(Section::Prologue, host)?;
    executor.synchronize()?;
    Ok(executor)
}

/// Tells requests of an error of the plan.
fn fail(tickets: impl IntoIterator<Item = Ticket>, error: &Error) {
    let status = if matches!(error, Error::Data(_)) { 400 } else { 500 };
    for ticket in tickets {
        let _: Result<(), std::sync::mpsc::SendError<Answer>> =
            ticket.reply.send(Err((status, error.to_string())));
    }
}

/// The host's end: contents of inputs and outputs of a round.
struct Host<'e> {
    program: &'e Program,
    initial: &'e Initial<'e>,
    counters: &'e [Counter],
    inputs: Vec<Vec<u8>>,
    outputs: Outputs,
    /// Rounds begun.
    round: u64,
}

impl<'e> Host<'e> {
    fn new(program: &'e Program, initial: &'e Initial<'e>, counters: &'e [Counter]) -> Host<'e> {
        let inputs = program.slots.iter().map(|place| vec![0; place.len]).collect();
        Host { program, initial, counters, inputs, outputs: Outputs::of(program), round: 0 }
    }

    /// Puts the requests of a round in their places, and zeros behind them.
    fn fill(&mut self, models: &[Model], round: &Round) {
        for (model, lanes) in models.iter().zip(round) {
            for (lane, tickets) in lanes.iter().enumerate() {
                for (place, port) in model.inputs.iter().enumerate() {
                    let Some(input) = port.at.get(lane).and_then(|&at| self.inputs.get_mut(at)) else {
                        continue;
                    };
                    // Requests were compared with the model, so that all of them fit.
                    let mut at = 0usize;
                    for bytes in tickets.iter().filter_map(|ticket| ticket.inputs.get(place)) {
                        let end = at.saturating_add(bytes.len());
                        input.get_mut(at..end).into_iter().for_each(|to| to.copy_from_slice(bytes));
                        at = end;
                    }
                    input.get_mut(at..).into_iter().for_each(|rest| rest.fill(0));
                }
            }
        }
    }
}

impl HostSide for Host<'_> {
    fn load(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        ends::load(self.program, self.initial, (0, state), bytes)
    }

    fn store(&mut self, _state: usize, _bytes: &[u8]) -> Result<(), Error> {
        Err(Error::Plan("a state is stored before the end".to_owned()))
    }

    fn write(&mut self, input: usize, bytes: &mut [u8]) -> Result<(), Error> {
        if let Some(counter) = self.counters.iter().find(|counter| counter.input == input) {
            ends::write_step(bytes, counter.dtype, counter.turn.step(self.round));
            return Ok(());
        }
        match self.inputs.get(input).filter(|from| from.len() == bytes.len()) {
            Some(from) => bytes.copy_from_slice(from),
            None => {
                return Err(Error::Internal(format!("input {input} has other than {} bytes", bytes.len())));
            }
        }
        Ok(())
    }

    fn read(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error> {
        self.outputs.keep(output, bytes)
    }
}
