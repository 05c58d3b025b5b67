//! Streams as threads: bounded queues, records, waits, delays, and stopping at the first error.
//!
//! Contract: commands of a stream run in the order of issue; a stream that waits for a record of another runs
//! nothing until that record is passed. A wait binds to a record that was issued before it, so that streams
//! cannot wait for each other in a circle. After an error or panic in any stream all streams stop, and the
//! issuing thread gets the error at its next call, before it runs anything on the host. Sections run only in
//! the order for which the program's accesses are proved to be ordered. Queues have their room from the
//! start.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use memc_ir::Stream;
use memc_plan::{Queue, Section, Span};
use rayon::ThreadPool;

use super::{
    Options,
    arena::Arenas,
    delays::{Delays, Slowed},
    event::{Events, Ticket},
    exec::Runner,
    spans::Spans,
};
use crate::device::{Executor, HostSide};
use crate::program::{Action, Command};
use crate::progress::Progress;
use crate::{Error, Program, Programs, StatePlace};

/// Streams; the issuing thread comes after them in arrays of [`PARTIES`].
const QUEUES: usize = Stream::ALL.len();
const PARTIES: usize = QUEUES + 1;
const HOST: usize = Queue::Host.index();

/// Entry of a queue.
#[derive(Clone, Copy)]
enum Item {
    Command(Position),
    Record,
    Wait(Ticket),
}

/// A command by its bucket, section and index.
#[derive(Clone, Copy)]
struct Position {
    /// Index of its program.
    bucket: usize,
    section: Section,
    index: usize,
}

/// State shared by the issuing thread and the streams.
struct Board {
    queues: [VecDeque<Item>; QUEUES],
    /// Most items of each queue.
    room: [usize; QUEUES],
    /// Records that each stream has passed.
    passed: [u64; QUEUES],
    /// Condition that each party sleeps for.
    sleeps: [Option<Sleep>; PARTIES],
    /// The streams are to end; no more items are taken.
    stopped: bool,
    failure: Option<Error>,
}

#[derive(Clone, Copy)]
enum Sleep {
    /// A stream: until its queue has an item.
    Empty,
    /// The issuing thread: until this queue has room.
    Full(usize),
    /// Until a record is passed.
    Record(Ticket),
}

struct Shared {
    board: Mutex<Board>,
    wake: [Condvar; PARTIES],
    /// Whether commands note their times.
    traces: AtomicBool,
    spans: Spans,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        // No code that can panic runs under the lock.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(
        &self,
        party: usize,
        mut board: MutexGuard<'a, Board>,
        what: Sleep,
    ) -> MutexGuard<'a, Board> {
        board.sleeps[party] = Some(what);
        let mut board = self.wake[party].wait(board).unwrap_or_else(PoisonError::into_inner);
        board.sleeps[party] = None;
        board
    }

    /// Stops everything, for `failure` if nothing failed before.
    fn stop(&self, failure: Option<Error>) {
        let mut board = self.lock();
        if !board.stopped {
            board.stopped = true;
            board.failure = failure;
        }
        drop(board);
        self.wake.iter().for_each(Condvar::notify_one);
    }

    /// The next command of a stream, once its turn has come; `None` when the stream is to end.
    fn next(&self, stream: usize) -> Option<Position> {
        let mut board = self.lock();
        loop {
            if board.stopped {
                return None;
            }
            match board.queues[stream].front().copied() {
                None => board = self.sleep(stream, board, Sleep::Empty),
                Some(Item::Wait(ticket)) if board.passed[ticket.stream] < ticket.record => {
                    board = self.sleep(stream, board, Sleep::Record(ticket));
                }
                Some(item) => {
                    board.queues[stream].pop_front();
                    if matches!(board.sleeps[HOST], Some(Sleep::Full(s)) if s == stream) {
                        self.wake[HOST].notify_one();
                    }
                    match item {
                        Item::Command(place) => return Some(place),
                        Item::Wait(_) => {}
                        Item::Record => {
                            board.passed[stream] += 1;
                            let passed = board.passed[stream];
                            for (party, sleep) in board.sleeps.iter().enumerate() {
                                let due = |t: &Ticket| t.stream == stream && t.record <= passed;
                                if matches!(sleep, Some(Sleep::Record(ticket)) if due(ticket)) {
                                    self.wake[party].notify_one();
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Runs a command, and notes its time where that is asked for.
    fn timed<T>(&self, section: Section, index: usize, run: impl FnOnce() -> T) -> T {
        match section == Section::Body && self.traces.load(Ordering::Relaxed) {
            true => self.spans.time(index, run),
            false => run(),
        }
    }

    /// The error of a stopped board.
    fn failed(board: &mut Board) -> Error {
        let again = || Error::Internal("the device was used after an error".to_owned());
        board.failure.take().unwrap_or_else(again)
    }

    /// The error, once the streams are stopped.
    fn check(&self) -> Result<(), Error> {
        let mut board = self.lock();
        if board.stopped { Err(Self::failed(&mut board)) } else { Ok(()) }
    }

    fn push(&self, stream: usize, item: Item) -> Result<(), Error> {
        let mut board = self.lock();
        while !board.stopped && board.queues[stream].len() >= board.room[stream] {
            board = self.sleep(HOST, board, Sleep::Full(stream));
        }
        if board.stopped {
            return Err(Self::failed(&mut board));
        }
        board.queues[stream].push_back(item);
        if matches!(board.sleeps[stream], Some(Sleep::Empty)) {
            self.wake[stream].notify_one();
        }
        Ok(())
    }

    /// Blocks the issuing thread until a record is passed.
    fn await_record(&self, ticket: Ticket) -> Result<(), Error> {
        let mut board = self.lock();
        while !board.stopped && board.passed[ticket.stream] < ticket.record {
            board = self.sleep(HOST, board, Sleep::Record(ticket));
        }
        if board.stopped { Err(Self::failed(&mut board)) } else { Ok(()) }
    }
}

/// Threads of kernels. A stream of kernels takes one of its pool for good, so each has its own.
pub(super) struct Pools<'a> {
    /// Of kernels on the device.
    pub(super) device: &'a Arc<ThreadPool>,
    /// Of kernels on the host, where the program has any.
    pub(super) host: Option<Arc<ThreadPool>>,
}

/// The programs of a plan and its buckets on the CPU device.
pub(super) struct Streams {
    /// The plan, then its buckets.
    parts: Vec<Part>,
    /// Index of the part whose sections run.
    bucket: usize,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Records issued to each stream.
    issued: [u64; QUEUES],
    delays: Option<Delays>,
    notes: Vec<String>,
}

/// One program, as the issuing thread sees it.
struct Part {
    program: Arc<Program>,
    /// Runs what the issuing thread runs itself.
    host: Runner,
    events: Events,
    progress: Progress,
}

impl Streams {
    pub(super) fn start(
        programs: &Programs,
        arenas: Arenas,
        options: &Options,
        pools: Pools<'_>,
    ) -> Result<Streams, Error> {
        let arenas = Arc::new(arenas);
        let room = std::array::from_fn(|queue| programs.iter().map(|p| room(p, queue)).max().unwrap_or(1));
        let shared = Arc::new(Shared {
            board: Mutex::new(Board {
                queues: room.map(VecDeque::with_capacity),
                room,
                passed: [0; QUEUES],
                sleeps: [None; PARTIES],
                stopped: false,
                failure: None,
            }),
            wake: Default::default(),
            traces: AtomicBool::new(false),
            spans: Spans::default(),
        });
        let runner =
            |program: &Arc<Program>| Runner::new(program.clone(), arenas.clone(), options.check_memory);
        let part = |program: &Arc<Program>| Part {
            events: Events::new(program.events),
            progress: Progress::New,
            host: runner(program),
            program: program.clone(),
        };
        let mut streams = Streams {
            parts: programs.iter().map(part).collect(),
            bucket: 0,
            issued: [0; QUEUES],
            delays: options.delay_seed.map(|seed| Delays::new(seed, HOST)),
            threads: Vec::with_capacity(QUEUES),
            notes: programs.first().ok().and_then(|p| made_for_a_gpu(&p.profile)).into_iter().collect(),
            shared,
        };
        for (queue, stream) in Stream::ALL.into_iter().enumerate() {
            let delays = options.delay_seed.map(|seed| Delays::new(seed, queue));
            let worker = |program: &Arc<Program>| Worker {
                program: program.clone(),
                runner: runner(program),
                slowed: options.slow.map(|slow| Slowed::new(slow, program)),
            };
            let workers: Vec<Worker> = programs.iter().map(worker).collect();
            let shared = streams.shared.clone();
            let pool = match stream {
                Stream::Compute => Some(pools.device.clone()),
                Stream::HostCompute => pools.host.clone(),
                Stream::DeviceToHost | Stream::HostToDevice => None,
            };
            let work = move || match pool {
                // A worker of the pool splits work in its own queue, without allocating.
                Some(pool) => pool.install(|| drain(&shared, queue, workers, delays)),
                None => drain(&shared, queue, workers, delays),
            };
            let thread = thread::Builder::new().name(format!("memrun-{}", stream.name())).spawn(work);
            let thread = thread.map_err(|e| Error::Memory(format!("cannot start a stream thread: {e}")))?;
            streams.threads.push(thread);
        }
        Ok(streams)
    }

    fn record(&mut self, stream: usize) -> Result<Ticket, Error> {
        self.shared.push(stream, Item::Record)?;
        self.issued[stream] += 1;
        Ok(Ticket { stream, record: self.issued[stream] })
    }

    /// The program whose sections run.
    fn part(&mut self) -> Result<&mut Part, Error> {
        let missing = || Error::Internal("a bucket runs that there is not".to_owned());
        self.parts.get_mut(self.bucket).ok_or_else(missing)
    }

    /// The program between two of its steps, when no stream has anything to run.
    fn between_steps(&mut self) -> Result<&mut Part, Error> {
        self.synchronize()?;
        let part = self.part()?;
        part.progress.between_steps()?;
        Ok(part)
    }

    fn issue(&mut self, section: Section, index: usize, host: &mut dyn HostSide) -> Result<(), Error> {
        self.shared.check()?;
        let program = self.part()?.program.clone();
        let Some(command) = program.section(section).get(index) else { return Ok(()) };
        let stream = command.queue.index();
        let item = Item::Command(Position { bucket: self.bucket, section, index });
        match command.action {
            Action::Record(event) => {
                let ticket = self.record(stream)?;
                self.part()?.events.record(event, ticket);
            }
            Action::Wait(event) => {
                let ticket = self.part()?.events.ticket(event).ok_or_else(|| {
                    Error::Plan(format!(
                        "{section} command {index} waits for event {event}, which was never recorded"
                    ))
                })?;
                if stream == HOST {
                    self.shared.await_record(ticket)?;
                } else {
                    self.shared.push(stream, Item::Wait(ticket))?;
                }
            }
            Action::Launch(_) | Action::Copy { .. } => self.shared.push(stream, item)?,
            Action::Free(place) => {
                if stream == HOST {
                    self.part()?.host.run(&Action::Free(place))?;
                } else {
                    self.shared.push(stream, item)?;
                }
            }
            Action::Load(_) | Action::Store(_) | Action::Write(_) | Action::Read(_) => {
                let shared = self.shared.clone();
                let part = self.part()?;
                shared.timed(section, index, || part.host.exchange(&command.action, host))?;
            }
        }
        Ok(())
    }
}

/// Note on a plan that was made with the profile of a GPU.
fn made_for_a_gpu(profile: &str) -> Option<String> {
    let text = || {
        format!(
            "the plan was made for the profile `{profile}` and runs on the embedded CPU device, which takes \
             other times than planned; --device cuda runs it on a GPU"
        )
    };
    memc_support::is_gpu_profile(profile).then(text)
}

impl Executor for Streams {
    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        self.shared.check()?;
        let part = self.part()?;
        let progress = std::mem::replace(&mut part.progress, Progress::Within);
        let length = part.program.section(section).len();
        if !progress.allows(section) {
            self.shared.stop(None);
            return Err(Progress::refuse(section));
        }
        for index in 0..length {
            if let Some(delay) = self.delays.as_mut().and_then(Delays::next) {
                thread::sleep(delay);
            }
            if let Err(error) = self.issue(section, index, host) {
                self.shared.stop(None);
                return Err(error);
            }
        }
        self.part()?.progress = Progress::After(section);
        Ok(())
    }

    fn select(&mut self, bucket: usize) -> Result<(), Error> {
        if bucket != self.bucket {
            // Nothing orders commands of one program after those of another.
            self.synchronize()?;
            self.bucket = bucket;
        }
        self.part().map(drop)
    }

    fn prepare_trace(&mut self) -> Result<(), Error> {
        let bodies = self.parts.iter().map(|part| part.program.section(Section::Body).len());
        self.shared.spans.prepare(bodies.max().unwrap_or(0));
        Ok(())
    }

    fn traced(&mut self, host: &mut dyn HostSide) -> Result<Vec<Span>, Error> {
        // Commands of the step before that are still running note their times too, and those of this step
        // replace them.
        self.shared.traces.store(true, Ordering::Relaxed);
        let ran = self.run(Section::Body, host).and_then(|()| self.synchronize());
        self.shared.traces.store(false, Ordering::Relaxed);
        let program = self.part()?.program.clone();
        let body = program.section(Section::Body).iter();
        ran.map(|()| self.shared.spans.take(body.map(Command::takes_time)))
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        for stream in 0..QUEUES {
            let ticket = self.record(stream)?;
            self.shared.await_record(ticket)?;
        }
        Ok(())
    }

    fn read_state(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.between_steps()?.host.read_state(state, bytes)
    }

    fn write_state(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        self.between_steps()?.host.write_state(state, bytes)
    }

    fn state_place(&mut self, state: usize) -> Result<StatePlace, Error> {
        self.between_steps()?.host.state_place(state)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.shared.stop(None);
        for thread in self.threads.drain(..) {
            // A panic within a command was caught and reported; the threads themselves have nothing else to
            // say.
            let _ = thread.join();
        }
    }
}

/// Room for two runs of the longest section.
fn room(program: &Program, queue: usize) -> usize {
    let items = |section| program.section(section).iter().filter(|c| c.queue.index() == queue).count();
    Section::ALL.into_iter().map(items).max().unwrap_or(0).saturating_mul(2).saturating_add(1)
}

/// One program, as the thread of a stream sees it.
struct Worker {
    program: Arc<Program>,
    runner: Runner,
    slowed: Option<Slowed>,
}

/// Runs the commands of a stream until it is to end. There is a worker for each program.
fn drain(shared: &Shared, queue: usize, mut workers: Vec<Worker>, mut delays: Option<Delays>) {
    while let Some(Position { bucket, section, index }) = shared.next(queue) {
        if let Some(delay) = delays.as_mut().and_then(Delays::next) {
            thread::sleep(delay);
        }
        let Some(Worker { program, runner, slowed }) = workers.get_mut(bucket) else { continue };
        let Some(command) = program.section(section).get(index) else { continue };
        let run = || {
            shared.timed(section, index, || match slowed.as_mut().filter(|_| section == Section::Body) {
                Some(slowed) => slowed.run(index, || runner.run(&command.action)),
                None => runner.run(&command.action),
            })
        };
        if let Err(failure) = guarded(section, index, run) {
            shared.stop(Some(failure));
        }
    }
}

/// Runs a command; a panic is an error.
pub(crate) fn guarded(
    section: Section,
    index: usize,
    run: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(Error::Internal(format!("{section} command {index} panicked: {}", panic_text(panic.as_ref()))))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests;
