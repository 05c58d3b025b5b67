//! Replaying a program's sections on a driver's queues.
//!
//! Everything that a command needs is worked out when the program is opened: functions, parameters, places.
//! The first body is issued command by command; then it is captured, unless that was declined, and replayed
//! from the next step on.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use memc_gpu::{Clock, Function, GpuError, Graphs, HostCall, LibraryAlgorithms, Sizes, Space, Stream, Word};
use memc_plan::{Section, Span};

use super::at_host::HostKernels;
use super::library::{Call, LibraryKernels};
use super::lower::Lowered;
use super::places::{on_device, region};
use super::refused::RefusedCall;
use super::report::Reports;
use super::split::{Captured, HALVES, Split};
use super::trial::Trial;
use super::turns::Turns;
use super::{library, lower, memory, units};
use crate::clock::{elapsed_ns, now};
use crate::device::{Executor, HostSide};
use crate::program::{Action, Command, Launch, Place, Source};
use crate::progress::Progress;
use crate::{Error, Program, StatePlace, memory as host_memory};

/// Value of undefined bytes in checking mode.
const POISON: u8 = 0xff;

/// A launch, ready to be issued.
enum Ready {
    /// Of a generated kernel.
    Kernel { function: Function, grid: [u32; 3], block: u32, words: Vec<Word> },
    /// A library's.
    Call(Call),
    /// A kernel on the host, in each turn.
    Host([HostCall; HALVES]),
}

impl Ready {
    fn issue(&self, driver: &mut impl memc_gpu::Driver, turn: usize) -> Result<(), GpuError> {
        match self {
            Ready::Kernel { function, grid, block, words } => driver.launch(*function, *grid, *block, words),
            Ready::Call(call) => driver.call(call.op, &call.places, call.workspace),
            Ready::Host([first, second]) => {
                driver.call_host(Stream::HostCompute, if turn == 0 { *first } else { *second })
            }
        }
    }
}

/// Options of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplayOptions {
    /// Fill undefined memory with [`POISON`].
    pub(super) check_memory: bool,
    /// Issue every command of every step.
    pub(super) no_graph: bool,
    /// Launch every update by itself.
    pub(super) no_batched: bool,
    /// Refuse a program where a library that its kernels could be calls of cannot be used.
    pub(super) all_libraries: bool,
    /// Host memory in bytes that the caller grants, whatever the system says is available.
    pub(super) granted: Option<u64>,
    /// Leave each input in one place of host memory.
    pub(super) one_place: bool,
    /// Let libraries compute a kernel in another form than the first, where there is one.
    pub(super) is_other: bool,
}

impl ReplayOptions {
    /// Kernel by kernel, for measuring them.
    pub(super) const MEASURED: ReplayOptions = ReplayOptions {
        check_memory: false,
        no_graph: true,
        no_batched: true,
        all_libraries: false,
        granted: None,
        one_place: true,
        is_other: false,
    };
}

/// A program on a device.
pub(super) struct Replay<D> {
    pub(super) program: Arc<Program>,
    pub(super) driver: D,
    launches: Vec<Ready>,
    /// For each section and command the launches that it issues.
    issued: [Vec<Range<usize>>; Section::ALL.len()],
    reports: Reports,
    /// Room for a tensor that the host loads to or stores from the device arena.
    staging: Vec<u8>,
    options: ReplayOptions,
    /// For each event of the program the driver's event that stands for its last record.
    pub(super) latest: Vec<usize>,
    /// The places of inputs.
    pub(super) turns: Turns,
    /// The body as graphs; `None` where it is not to be captured.
    pub(super) captured: Option<Captured>,
    /// Where the plan swaps, which of both ways is the faster one.
    trial: Option<Trial>,
    notes: Vec<String>,
    refused: Vec<RefusedCall>,
    /// Kernels on the host, where there are any.
    host_kernels: Option<Arc<HostKernels>>,
    /// Bytes of the device that were free before anything of the program was there, until what it takes is
    /// looked at.
    pub(super) free_bytes: Option<u64>,
    /// Bytes of the device arena.
    pub(super) arena: usize,
    pub(super) progress: Progress,
}

/// Said of a body that cannot be one graph.
const UNSPLIT: &str = "the plan's step has host commands between those of the device, and is issued command \
    by command instead of as one graph; memc writes no such plans";

/// Note that a plan was made with the profile of another device than the GPU `gpu`; none where the plan does
/// not say.
fn made_for_another(profile: &str, gpu: &str) -> Option<String> {
    let own = memc_support::profile_name(gpu);
    let is_own = profile.is_empty() || profile == own || memc_support::builtin_profile(gpu) == Some(profile);
    let text = || {
        format!(
            "the plan was made for the profile `{profile}`, and this is {gpu}: its steps take other times \
             than planned, and its scratch memory may be too small for the libraries; compile it here, or \
             with --device {own}.json from `memrun profile`"
        )
    };
    (!is_own).then(text)
}

/// The places of a program's inputs; `split` is that of its body.
fn turns(program: &Arc<Program>, split: Option<&Arc<Split>>, options: ReplayOptions) -> Turns {
    let Some(split) = split.filter(|_| !options.one_place) else { return Turns::one_place(program) };
    let turns = Turns::of(program, split, options.granted.unwrap_or(u64::MAX));
    let fits = host_memory::check(0, turns.host_bytes, options.granted.is_some()).is_ok();
    if fits { turns } else { Turns::one_place(program) }
}

/// Whether a step copies more than its inputs and outputs.
fn swaps(program: &Program) -> bool {
    let body = program.section(Section::Body).iter();
    let copies = body.filter(|command| matches!(command.action, Action::Copy { .. })).count();
    copies > program.slots.len() + program.results.len()
}

impl<D: Graphs + Clock + LibraryAlgorithms> Replay<D> {
    /// Asks libraries for the program's kernels, compiles the others and reserves its memory.
    pub(super) fn open(
        mut driver: D,
        program: Arc<Program>,
        options: ReplayOptions,
    ) -> Result<Replay<D>, Error> {
        host_memory::check(0, program.host_bytes, options.granted.is_some())?;
        let by_library = library::take(&program, &mut driver, options.is_other)?;
        // Another form may be of a library that no kernel needs otherwise.
        if options.all_libraries && !options.is_other && !by_library.lacks.is_empty() {
            let lacks: Vec<String> = by_library.lacks.into_iter().collect();
            return Err(Error::Device(format!(
                "a plan is tuned where all libraries that its kernels call can be used: {}",
                lacks.join("; and ")
            )));
        }
        let lowered = lower::lower(&program, &by_library)?;
        Replay::new(program, &lowered, by_library, driver, options)
    }
}

impl<D: Graphs + Clock> Replay<D> {
    fn new(
        program: Arc<Program>,
        lowered: &Lowered,
        by_library: LibraryKernels,
        mut driver: D,
        options: ReplayOptions,
    ) -> Result<Replay<D>, Error> {
        let fill = if options.check_memory { POISON } else { 0 };
        let split = Split::of(&program).map(Arc::new);
        let turns = turns(&program, split.as_ref(), options);
        let events = split.as_ref().map_or(program.events, |split| split.all_events());
        let reports = Reports::of(&program, |launch| lowered.checks(launch));
        let (device, host) = (lowered.device_bytes, turns.host_bytes);
        driver
            .reserve(Sizes { device, host, reports: reports.bytes() }, events, fill)
            .map_err(|error| memory::refused(error, &program))?;
        reports.clear(&mut driver);
        let mut notes: Vec<String> = by_library.notes.iter().cloned().collect();
        notes.extend(made_for_another(&program.profile, &driver.facts()?.name));
        notes.extend((split.is_none() && !options.no_graph).then(|| UNSPLIT.to_owned()));
        if !driver.is_page_locked() {
            notes.push(memory::pageable(&mut driver, &program)?);
        }
        let split = split.filter(|_| !options.no_graph && driver.is_page_locked());
        let calls = |section| {
            lowered.section(&program, section, &reports, !(options.check_memory || options.no_batched))
        };
        let calls = Section::ALL.into_iter().map(calls).collect::<Result<Vec<_>, _>>()?;
        let all = || calls.iter().flatten().flatten();
        if all().next().is_some() {
            driver.build(&units::texts(all().map(|call| &call.launch.kernel)))?;
        }
        let host_kernels = match program.has_host_kernels() {
            true => {
                let host = driver.host(0, turns.host_bytes)?;
                Some(HostKernels::new(&turns, host, options.check_memory)?)
            }
            false => None,
        };
        let mut functions = BTreeMap::new();
        let mut launches = Vec::new();
        let mut issued = [const { Vec::new() }; Section::ALL.len()];
        for ((section, calls), issued) in Section::ALL.into_iter().zip(&calls).zip(&mut issued) {
            for (index, (command, calls)) in program.section(section).iter().zip(calls).enumerate() {
                let begin = launches.len();
                match (on_device(command), &command.action, &host_kernels) {
                    (Some(launch), ..) => launches.extend(by_library.call(launch).map(Ready::Call)),
                    (None, Action::Launch(_), Some(kernels)) => {
                        let mut call = |turn| driver.take_work(kernels.work(turn, section, index));
                        launches.push(Ready::Host([call(0), call(1)]));
                    }
                    _ => {}
                }
                for call in calls {
                    let name = call.launch.kernel.name.as_str();
                    let function = match functions.get(name) {
                        Some(function) => *function,
                        None => *functions.entry(name).or_insert(driver.function(name)?),
                    };
                    let (grid, block, words) = (call.launch.grid, call.launch.block, call.words.clone());
                    launches.push(Ready::Kernel { function, grid, block, words });
                }
                issued.push(begin..launches.len());
            }
        }
        let resident_slots = program.resident_slots.iter().filter(|resident| resident.space == Space::Dev);
        let staging = vec![0; resident_slots.map(|resident| resident.len).max().unwrap_or(0)];
        Ok(Replay {
            free_bytes: Some(by_library.free_bytes),
            arena: device,
            driver,
            launches,
            issued,
            reports,
            staging,
            options,
            latest: (0..program.events).collect(),
            turns,
            trial: swaps(&program).then(Trial::new),
            captured: split.map(Captured::new),
            notes,
            refused: by_library.refused,
            host_kernels,
            progress: Progress::New,
            program,
        })
    }

    /// Issues a command.
    pub(super) fn command(
        &mut self,
        section: Section,
        index: usize,
        command: &Command,
        host: &mut dyn HostSide,
    ) -> Result<(), Error> {
        match (&command.action, command.queue.stream()) {
            (Action::Wait(event), None) => match self.turns.same_turn(section, index, *event) {
                Some(same_turn) => Ok(self.gate(*event, same_turn)?),
                None => self.on_host(&command.action, host),
            },
            (action, None) => self.on_host(action, host),
            (Action::Load(_) | Action::Store(_) | Action::Write(_) | Action::Read(_), Some(_)) => {
                self.on_host(&command.action, host)
            }
            (action, Some(queue)) => Ok(self.on_device(section, index, queue, action)?),
        }
    }

    /// A command of a queue.
    pub(super) fn on_device(
        &mut self,
        section: Section,
        index: usize,
        queue: Stream,
        action: &Action,
    ) -> Result<(), GpuError> {
        let driver = &mut self.driver;
        match action {
            Action::Launch(launch) => self.launch(section, index, queue, launch)?,
            Action::Copy { src, dst } => driver.copy(queue, region(*src), region(*dst))?,
            Action::Free(place) => {
                if self.options.check_memory && place.space == Space::Dev {
                    driver.fill(queue, place.start, place.len, POISON)?;
                }
            }
            Action::Record(event) => {
                let recorded = self.turns.recorded(section, *event);
                driver.record(queue, recorded)?;
                self.latest.get_mut(*event).into_iter().for_each(|latest| *latest = recorded);
            }
            Action::Wait(event) => driver.wait(queue, self.latest.get(*event).copied().unwrap_or(*event))?,
            Action::Load(_) | Action::Store(_) | Action::Write(_) | Action::Read(_) => {}
        }
        Ok(())
    }

    fn launch(
        &mut self,
        section: Section,
        index: usize,
        queue: Stream,
        launch: &Launch,
    ) -> Result<(), GpuError> {
        if self.options.check_memory && queue == Stream::Compute {
            // Results that share their bytes with an operand are still to be read.
            let shared = |j| launch.operands.iter().any(|o| matches!(o, Source::Result(k) if *k == j));
            for (_, place) in launch.results.iter().enumerate().filter(|(j, _)| !shared(*j)) {
                self.driver.fill(Stream::Compute, place.start, place.len, POISON)?;
            }
        }
        let range = self.issued.get(section as usize).and_then(|issued| issued.get(index)).cloned();
        let ready = self.launches.get(range.unwrap_or_default()).unwrap_or_default();
        ready.iter().try_for_each(|ready| ready.issue(&mut self.driver, self.turns.next))
    }

    /// Issues what a library leaves of a launch to generated kernels.
    pub(super) fn rest(&mut self, section: Section, index: usize) -> Result<(), GpuError> {
        let range = self.issued.get(section as usize).and_then(|issued| issued.get(index)).cloned();
        let ready = self.launches.get(range.unwrap_or_default()).unwrap_or_default();
        let mut rest = ready.iter().filter(|ready| matches!(ready, Ready::Kernel { .. }));
        rest.try_for_each(|ready| ready.issue(&mut self.driver, self.turns.next))
    }

    /// Lets the queues wait for the last step's record of an event, and the host for `same_turn`, that of the
    /// last step of the same turn.
    fn gate(&mut self, event: usize, same_turn: usize) -> Result<(), GpuError> {
        self.driver.await_event(same_turn)?;
        let latest = self.latest.get(event).copied().unwrap_or(event);
        // The record of a prologue: no step has come between.
        if latest == event {
            self.driver.await_event(latest)?;
        }
        Stream::ALL.into_iter().try_for_each(|queue| self.driver.wait(queue, latest))
    }

    /// Fails where a kernel has refused its operands, or one on the host has failed.
    pub(super) fn check_kernels(&mut self) -> Result<(), Error> {
        let program = self.program.clone();
        self.reports.read(&mut self.driver, &program)?;
        self.host_kernels.as_ref().map_or(Ok(()), |kernels| kernels.check())
    }

    /// A command of the issuing thread.
    pub(super) fn on_host(&mut self, action: &Action, host: &mut dyn HostSide) -> Result<(), Error> {
        let program = self.turns.next_program();
        let place = |places: &[Place], i: usize| places.get(i).copied();
        match *action {
            Action::Wait(event) => {
                self.driver.await_event(self.latest.get(event).copied().unwrap_or(event))?;
            }
            Action::Load(state) => {
                let Some(resident) = place(&program.resident_slots, state) else { return Ok(()) };
                match resident.space {
                    Space::Host => host.load(state, self.driver.host(resident.start, resident.len)?)?,
                    Space::Dev => {
                        let bytes = self.staging.get_mut(..resident.len).unwrap_or_default();
                        host.load(state, bytes)?;
                        self.driver.upload(resident.start, bytes)?;
                    }
                }
            }
            Action::Store(state) => {
                let Some(resident) = place(&program.resident_slots, state) else { return Ok(()) };
                self.check_kernels()?;
                match resident.space {
                    Space::Host => host.store(state, self.driver.host(resident.start, resident.len)?)?,
                    Space::Dev => {
                        let bytes = self.staging.get_mut(..resident.len).unwrap_or_default();
                        self.driver.download(resident.start, bytes)?;
                        host.store(state, bytes)?;
                    }
                }
            }
            Action::Write(input) => {
                let Some(slot) = place(&program.slots, input) else { return Ok(()) };
                host.write(input, self.driver.host(slot.start, slot.len)?)?;
            }
            Action::Read(output) => {
                let Some(slot) = place(&program.results, output) else { return Ok(()) };
                self.check_kernels()?;
                host.read(output, self.driver.host(slot.start, slot.len)?)?;
            }
            Action::Free(place) => {
                if self.options.check_memory && place.space == Space::Host {
                    self.driver.host(place.start, place.len)?.fill(POISON);
                }
            }
            Action::Record(_) | Action::Launch(_) | Action::Copy { .. } => {
                return Err(Error::Internal("the host has no queue for this command".to_owned()));
            }
        }
        Ok(())
    }
}

impl<D: Graphs + Clock> Replay<D> {
    /// Begins a section.
    pub(super) fn enter(&mut self, section: Section) -> Result<(), Error> {
        let progress = std::mem::replace(&mut self.progress, Progress::Within);
        if progress.allows(section) { Ok(()) } else { Err(Progress::refuse(section)) }
    }

    /// Issues the commands of a section one by one.
    fn issue(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        self.after_graphs()?;
        let program = self.turns.next_program();
        for (index, command) in program.section(section).iter().enumerate() {
            self.command(section, index, command, host)?;
        }
        if section == Section::Body {
            self.turns.pass();
        }
        Ok(())
    }
}

impl<D: Graphs + Clock> Executor for Replay<D> {
    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        self.enter(section)?;
        match self.captured.take_if(|_| section == Section::Body) {
            None => self.issue(section, host)?,
            Some(mut captured) => {
                let is_ready = captured.ready();
                if is_ready {
                    let start = now();
                    if self.trial.as_ref().is_none_or(Trial::is_graph) {
                        self.launch_half(&mut captured, host)?;
                        self.captured = Some(captured);
                    } else {
                        self.captured = Some(captured);
                        self.issue(section, host)?;
                    }
                    self.trial.iter_mut().for_each(|trial| trial.took(elapsed_ns(start)));
                } else {
                    self.issue(section, host)?;
                    self.capture(&mut captured)?;
                    self.captured = Some(captured);
                }
            }
        }
        if section == Section::Body
            && let Some(before) = self.free_bytes.take()
        {
            // Code is loaded when it first runs, and graphs have memory of their own.
            let (facts, arena) = (self.driver.facts()?, self.arena as u64);
            self.notes.extend(memory::loaded(&facts, &self.program, before, arena));
        }
        self.progress = Progress::After(section);
        Ok(())
    }

    fn prepare_trace(&mut self) -> Result<(), Error> {
        self.prepare_marks()
    }

    fn traced(&mut self, host: &mut dyn HostSide) -> Result<Vec<Span>, Error> {
        self.enter(Section::Body)?;
        self.after_graphs()?;
        let spans = self.trace(host)?;
        self.progress = Progress::After(Section::Body);
        Ok(spans)
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(self.driver.synchronize()?)
    }

    fn read_state(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.take_state(state, bytes)
    }

    fn write_state(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        self.give_state(state, bytes)
    }

    fn state_place(&mut self, state: usize) -> Result<StatePlace, Error> {
        self.place_of_state(state)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn refused(&self) -> &[RefusedCall] {
        &self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::made_for_another;

    #[test]
    fn plans_of_other_devices_are_told() {
        let h100 = "NVIDIA H100 80GB HBM3";
        assert_eq!(made_for_another("h100", h100), None);
        assert_eq!(made_for_another("nvidia-h100-80gb-hbm3", h100), None);
        assert_eq!(made_for_another("", h100), None);
        for profile in ["cpu", "a100-80g", "nvidia-l4"] {
            let note = made_for_another(profile, h100).unwrap_or_default();
            assert!(note.contains(profile) && note.contains(h100), "{note}");
        }
    }
}
