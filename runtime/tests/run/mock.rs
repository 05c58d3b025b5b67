//! A driver without a GPU: a thread for each queue, random delays, and kernels whose text g++ compiles for
//! the CPU.
//!
//! Events are CUDA's: a wait binds to the last record before it. Nothing but queues and events orders
//! commands, also of captured graphs, so that a schedule that lacks an order computes something else for some
//! seed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../codegen/cuda/tests/emulation/compiler.rs"]
mod compiler;

#[path = "mock/algorithms.rs"]
mod algorithms;
#[path = "mock/capture.rs"]
mod capture;
#[path = "mock/clock.rs"]
mod clock;
#[path = "mock/program.rs"]
pub(crate) mod program;
#[path = "mock/worker.rs"]
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

pub(crate) use compiler::has_compiler;
use memc_gpu::{
    Answer, Driver, Function, GpuError, HostCall, HostWork, LibraryCall, LibraryOp, Region, Sizes, Space,
    Stream, Word, check_region,
};
use program::Program;
use worker::{Board, Worker, worker};

use crate::arena::Bytes;
use crate::plain;

/// Meaning of an event.
#[derive(Clone, Copy)]
enum Record {
    /// A record that was issued.
    Outside(u64),
    /// A place in the capture with a number: after this node.
    Captured(usize, Option<usize>),
}

/// Behaviour of a mock.
#[derive(Clone, Copy, Default)]
pub(crate) struct Behaviour {
    /// Delay commands at random, by this seed.
    pub(crate) seed: Option<u64>,
    /// Fail at the launch with this number, and from then on.
    pub(crate) crash_at: Option<usize>,
    /// Do not wait for the events whose bits are set.
    pub(crate) ignored_waits: u64,
    /// Refuse every capture at its end.
    pub(crate) cannot_capture: bool,
    /// Take library calls.
    pub(crate) has_libraries: bool,
    /// Have libraries of a newer version.
    pub(crate) has_newer: bool,
    /// Have pageable memory for a host arena.
    pub(crate) pageable: bool,
    /// Bytes that kernels take, once they are built.
    pub(crate) loads: u64,
}

/// The driver; see the module.
pub(crate) struct Mock {
    behaviour: Behaviour,
    queues: Vec<Worker>,
    board: Arc<Board>,
    /// Records and launches issued.
    issued: u64,
    events: Vec<Option<Record>>,
    captures: usize,
    capture: Option<capture::Capture>,
    graphs: Vec<capture::Made>,
    marks: clock::Marks,
    arenas: [Arc<Bytes>; 2],
    reports: Arc<Bytes>,
    /// Programs, and numbers of kernels in them.
    kernels: Vec<(Arc<Program>, usize)>,
    functions: BTreeMap<String, usize>,
    calls: Vec<(LibraryCall, usize)>,
    launches: usize,
    work: Vec<HostWork>,
}

impl Mock {
    pub(crate) fn new(behaviour: Behaviour) -> Mock {
        let queue =
            |queue: u64| worker(behaviour.seed.map(|seed| ((seed + 1) * 0x9e37_79b9) ^ ((queue + 1) << 40)));
        let empty = || Arc::new(Bytes::new(0, 0));
        Mock {
            behaviour,
            queues: (0..Stream::ALL.len() as u64).map(queue).collect(),
            board: Arc::default(),
            issued: 0,
            events: Vec::new(),
            captures: 0,
            capture: None,
            graphs: Vec::new(),
            marks: clock::Marks::default(),
            arenas: [empty(), empty()],
            reports: empty(),
            kernels: Vec::new(),
            functions: BTreeMap::new(),
            calls: Vec::new(),
            launches: 0,
            work: Vec::new(),
        }
    }

    fn crashed(&self) -> Result<(), GpuError> {
        match self.behaviour.crash_at {
            Some(at) if self.launches > at => Err(GpuError::Crash { error: "the mock's".to_owned() }),
            _ => Ok(()),
        }
    }

    fn issue(&mut self, queue: Stream, job: impl Fn() + Send + Sync + 'static) -> Result<(), GpuError> {
        self.crashed()?;
        match &mut self.capture {
            Some(capture) => capture.command(queue, Arc::new(job)),
            None => self.queues[queue as usize].queue.send(Arc::new(job)).unwrap(),
        }
        Ok(())
    }

    /// A number for a record.
    fn fresh(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    /// The record that an event stands for, if it was issued.
    fn ticket(&self, event: usize) -> Option<u64> {
        match self.events[event] {
            Some(Record::Outside(ticket)) => Some(ticket),
            _ => None,
        }
    }

    fn ignores(&self, event: usize) -> bool {
        self.behaviour.ignored_waits >> event.min(63) & 1 == 1
    }

    fn arena(&self, arena: Space) -> Arc<Bytes> {
        self.arenas[arena as usize].clone()
    }
}

#[allow(unsafe_code, reason = "queues copy between the arenas")]
impl Driver for Mock {
    fn name(&self) -> String {
        "mock".to_owned()
    }

    fn build(&mut self, texts: &[String]) -> Result<(), GpuError> {
        for text in texts {
            let program = Arc::new(Program::build(text));
            for (number, name) in program.names.iter().enumerate() {
                self.functions.insert(name.clone(), self.kernels.len());
                self.kernels.push((program.clone(), number));
            }
        }
        Ok(())
    }

    fn function(&mut self, name: &str) -> Result<Function, GpuError> {
        let unknown = || GpuError::Call { function: "function", error: name.to_owned() };
        self.functions.get(name).map(|&number| Function(number)).ok_or_else(unknown)
    }

    fn reserve(&mut self, sizes: Sizes, events: usize, fill: u8) -> Result<(), GpuError> {
        self.arenas = [sizes.device, sizes.host].map(|len| Arc::new(Bytes::new(len, fill)));
        self.reports = Arc::new(Bytes::new(sizes.reports, fill));
        self.events = vec![None; events];
        Ok(())
    }

    fn launch(&mut self, f: Function, grid: [u32; 3], block: u32, words: &[Word]) -> Result<(), GpuError> {
        match &mut self.capture {
            Some(capture) => capture.launches += 1,
            None => self.launches += 1,
        }
        let (program, number) = self.kernels[f.0].clone();
        let (device, reports) = (self.arena(Space::Dev), self.reports.clone());
        assert_eq!((program.arity)(number as u64), words.len() as u64, "{}", program.names[number]);
        let words: Vec<u64> = words
            .iter()
            .map(|word| match *word {
                Word::Address(start) => device.at(start) as u64,
                Word::Report(start) => reports.at(start) as u64,
                Word::Int(value) => value as u64,
            })
            .collect();
        self.issue(Stream::Compute, move || {
            let _used = (&device, &reports);
            program.run(number, grid, block, &words);
        })
    }

    fn plan_library(&mut self, call: &LibraryCall, workspace: usize) -> Result<Answer, GpuError> {
        if !self.behaviour.has_libraries {
            return Ok(Answer::NotAsked);
        }
        self.calls.push((*call, workspace));
        Ok(Answer::Taken(LibraryOp(self.calls.len() - 1)))
    }

    fn call(&mut self, op: LibraryOp, places: &[Region], workspace: Region) -> Result<(), GpuError> {
        self.launches += 1;
        let ((call, bytes), device) = (self.calls[op.0], self.arena(Space::Dev));
        let (operands, results) = call.elements();
        assert!(workspace.len >= bytes && places.len() == operands.len() + results.len());
        let within = |place: &Region| check_region(place.start, place.len, device.len);
        places.iter().chain([&workspace]).try_for_each(within)?;
        let places = places.to_vec();
        self.issue(Stream::Compute, move || {
            let (operands, results) = places.split_at(operands.len());
            // SAFETY: the places are within the arena, which lives as long as this; results are written after
            // operands are read, and the workspace meets neither.
            let at =
                |place: &Region| unsafe { std::slice::from_raw_parts(device.at(place.start), place.len) };
            let made = plain::compute(&call, operands.iter().map(at));
            // SAFETY: as above.
            unsafe { device.at(workspace.start).write_bytes(0xff, workspace.len) };
            for (result, bytes) in results.iter().zip(&made) {
                assert_eq!(bytes.len(), result.len);
                // SAFETY: as above.
                unsafe { device.at(result.start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
        })
    }

    fn take_work(&mut self, work: HostWork) -> HostCall {
        self.work.push(work);
        HostCall(self.work.len() - 1)
    }

    fn call_host(&mut self, queue: Stream, call: HostCall) -> Result<(), GpuError> {
        let work = self.work[call.0].clone();
        self.issue(queue, move || (work.0)())
    }

    fn copy(&mut self, queue: Stream, from: Region, to: Region) -> Result<(), GpuError> {
        let (source, target) = (self.arena(from.arena), self.arena(to.arena));
        check_region(from.start, from.len, source.len)?;
        check_region(to.start, from.len, target.len)?;
        assert_eq!(from.len, to.len);
        self.issue(queue, move || {
            // SAFETY: both places are within their arenas, and a copy's places are disjoint.
            unsafe { source.at(from.start).copy_to_nonoverlapping(target.at(to.start), from.len) };
        })
    }

    fn fill(&mut self, queue: Stream, start: usize, len: usize, byte: u8) -> Result<(), GpuError> {
        let device = self.arena(Space::Dev);
        check_region(start, len, device.len)?;
        self.issue(queue, move || {
            // SAFETY: the place is within the arena.
            unsafe { device.at(start).write_bytes(byte, len) };
        })
    }

    fn record(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        if let Some(capture) = &mut self.capture {
            self.events[event] = Some(capture.record(queue));
            return Ok(());
        }
        let (board, ticket) = (self.board.clone(), self.fresh());
        self.issue(queue, move || board.pass(ticket))?;
        self.events[event] = Some(Record::Outside(ticket));
        Ok(())
    }

    fn wait(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        let (on, ignore) = (self.events[event], self.ignores(event));
        if let Some(capture) = &mut self.capture {
            return capture.wait(queue, on, ignore);
        }
        assert!(!matches!(on, Some(Record::Captured(..))), "CUDA_ERROR_CAPTURED_EVENT");
        let (board, ticket) = (self.board.clone(), self.ticket(event).filter(|_| !ignore));
        self.issue(queue, move || ticket.into_iter().for_each(|ticket| board.wait(ticket)))
    }

    fn await_event(&mut self, event: usize) -> Result<(), GpuError> {
        self.crashed()?;
        self.not_capturing("cuEventSynchronize")?;
        assert!(!matches!(self.events[event], Some(Record::Captured(..))), "CUDA_ERROR_CAPTURED_EVENT");
        self.ticket(event).into_iter().for_each(|ticket| self.board.wait(ticket));
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        self.crashed()?;
        self.not_capturing("cuStreamSynchronize")?;
        for worker in self.queues.iter().chain(self.graphs.iter().map(|graph| &graph.thread)) {
            let (done, wait) = mpsc::channel();
            worker.queue.send(Arc::new(move || done.send(()).unwrap())).unwrap();
            wait.recv().unwrap();
        }
        Ok(())
    }

    fn upload(&mut self, start: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.crashed()?;
        self.not_capturing("cuMemcpy")?;
        let device = self.arena(Space::Dev);
        check_region(start, bytes.len(), device.len)?;
        // SAFETY: the place is within the arena.
        unsafe { device.at(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn download(&mut self, start: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.crashed()?;
        self.not_capturing("cuMemcpy")?;
        let device = self.arena(Space::Dev);
        check_region(start, bytes.len(), device.len)?;
        // SAFETY: the place is within the arena.
        unsafe { device.at(start).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn device_address(&mut self, start: usize, len: usize) -> Result<usize, GpuError> {
        let device = self.arena(Space::Dev);
        check_region(start, len, device.len)?;
        Ok(device.at(start).expose_provenance())
    }

    fn reports(&mut self) -> &mut [u8] {
        // SAFETY: the place is within the memory; the schedule orders the queues' accesses to it.
        unsafe { std::slice::from_raw_parts_mut(self.reports.at(0), self.reports.len) }
    }

    fn is_page_locked(&self) -> bool {
        !self.behaviour.pageable
    }

    fn host(&mut self, start: usize, len: usize) -> Result<&mut [u8], GpuError> {
        let host = &self.arenas[Space::Host as usize];
        check_region(start, len, host.len)?;
        // SAFETY: the place is within the arena; the schedule orders the queues' accesses to it.
        Ok(unsafe { std::slice::from_raw_parts_mut(host.at(start), len) })
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        let graphs = self.graphs.drain(..).map(|graph| graph.thread);
        for Worker { queue, thread } in self.queues.drain(..).chain(graphs) {
            drop(queue);
            drop(thread.join());
        }
    }
}
