//! Captures of the mock: nodes with what they come after, replayed in a random order of those that this
//! allows.

use std::sync::Arc;

use memc_gpu::{GpuError, Graph, Graphs, Stream};

use super::worker::{Board, Job, Worker, next, pause, worker};
use super::{Mock, Record};

/// A captured command.
#[derive(Clone)]
pub(super) struct Node {
    queue: usize,
    job: Option<Job>,
    after: Vec<usize>,
    /// An event that is waited for or recorded outside.
    waits: Option<usize>,
    records: Option<usize>,
}

/// A capture that goes on.
pub(super) struct Capture {
    pub(super) number: usize,
    nodes: Vec<Node>,
    last: [Option<usize>; Stream::ALL.len()],
    pub(super) launches: usize,
    /// The first error of a command.
    refused: bool,
}

/// A captured graph with the thread of its launches.
pub(super) struct Made {
    nodes: Arc<Vec<Node>>,
    launches: usize,
    pub(super) thread: Worker,
}

fn error(function: &'static str, name: &str) -> GpuError {
    GpuError::Call { function, error: name.to_owned() }
}

impl Capture {
    fn push(&mut self, queue: Stream, job: Option<Job>, after: Option<usize>) -> &mut Node {
        let queue = queue as usize;
        let after = self.last[queue].into_iter().chain(after).collect();
        self.last[queue] = Some(self.nodes.len());
        self.nodes.push(Node { queue, job, after, waits: None, records: None });
        self.nodes.last_mut().unwrap()
    }

    pub(super) fn command(&mut self, queue: Stream, job: Job) {
        self.push(queue, Some(job), None);
    }

    pub(super) fn record(&mut self, queue: Stream) -> Record {
        Record::Captured(self.number, self.last[queue as usize])
    }

    /// As CUDA: only records of the same capture can be waited for.
    pub(super) fn wait(&mut self, queue: Stream, on: Option<Record>, ignore: bool) -> Result<(), GpuError> {
        match on {
            Some(Record::Captured(number, node)) if number == self.number => {
                self.push(queue, None, node.filter(|_| !ignore));
                Ok(())
            }
            _ => {
                self.refused = true;
                Err(error("cuStreamWaitEvent", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"))
            }
        }
    }
}

impl Mock {
    /// Refuses what must not be called within a capture, which this ends.
    pub(super) fn not_capturing(&mut self, function: &'static str) -> Result<(), GpuError> {
        match &mut self.capture {
            None => Ok(()),
            Some(capture) => {
                capture.refused = true;
                Err(error(function, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"))
            }
        }
    }
}

/// Runs a graph's nodes, any that may run next; `tickets` are what each waits for outside, and what each
/// records.
fn run(nodes: &[Node], tickets: &[(Option<u64>, Option<u64>)], board: &Board, state: &mut Option<u64>) {
    let mut done = vec![false; nodes.len()];
    let mut favourite = 0;
    for _ in 0..nodes.len() {
        let free: Vec<usize> = (0..nodes.len())
            .filter(|&i| !done[i] && nodes[i].after.iter().all(|&before| done[before]))
            .collect();
        let outside: Vec<u64> = free.iter().filter_map(|&i| tickets[i].0).collect();
        if outside.len() == free.len() {
            board.wait_any(&outside);
        }
        let ready: Vec<usize> =
            free.into_iter().filter(|&i| tickets[i].0.is_none_or(|ticket| board.has(ticket))).collect();
        let mut choice = ready[0];
        if let Some(state) = state {
            if next(state).is_multiple_of(6) {
                favourite = next(state) % Stream::ALL.len() as u64;
            }
            let any = ready[next(state) as usize % ready.len()];
            choice = ready.iter().copied().find(|&i| nodes[i].queue as u64 == favourite).unwrap_or(any);
        }
        pause(state);
        nodes[choice].job.iter().for_each(|job| job());
        tickets[choice].1.into_iter().for_each(|ticket| board.pass(ticket));
        done[choice] = true;
    }
}

impl Graphs for Mock {
    fn begin_capture(&mut self) -> Result<(), GpuError> {
        self.crashed()?;
        self.not_capturing("cuStreamBeginCapture")?;
        self.captures += 1;
        let number = self.captures;
        self.capture = Some(Capture {
            number,
            nodes: Vec::new(),
            last: [None; Stream::ALL.len()],
            launches: 0,
            refused: false,
        });
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Graph, GpuError> {
        let capture = self.capture.take().unwrap();
        if capture.refused || self.behaviour.cannot_capture {
            return Err(error("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"));
        }
        let thread = worker(None);
        self.graphs.push(Made { nodes: Arc::new(capture.nodes), launches: capture.launches, thread });
        Ok(Graph(self.graphs.len() - 1))
    }

    fn replay(&mut self, graph: Graph) -> Result<(), GpuError> {
        self.crashed()?;
        self.not_capturing("cuGraphLaunch")?;
        let nodes = self.graphs[graph.0].nodes.clone();
        self.launches += self.graphs[graph.0].launches;
        let seen: Vec<Option<u64>> = nodes.iter().map(|node| self.ticket(node.waits?)).collect();
        let records: Vec<Option<u64>> = nodes
            .iter()
            .map(|node| {
                let ticket = self.fresh();
                self.events[node.records?] = Some(Record::Outside(ticket));
                Some(ticket)
            })
            .collect();
        let tickets: Vec<_> = seen.into_iter().zip(records).collect();
        let board = self.board.clone();
        let number = self.fresh();
        let state = self.behaviour.seed.map(|seed| ((seed + 1) * 0x9e37_79b9) ^ (number << 40));
        let job: Job = Arc::new(move || run(&nodes, &tickets, &board, &mut state.clone()));
        self.graphs[graph.0].thread.queue.send(job).unwrap();
        Ok(())
    }

    fn record_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        self.capture.as_mut().unwrap().push(queue, None, None).records = Some(event);
        Ok(())
    }

    fn wait_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        let waits = Some(event).filter(|_| !self.ignores(event));
        self.capture.as_mut().unwrap().push(queue, None, None).waits = waits;
        Ok(())
    }
}
