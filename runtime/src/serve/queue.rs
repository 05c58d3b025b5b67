//! Requests that wait, and the batches that they form.
//!
//! Contract: each model's queue is first in, first out and has at most `limit` requests. A batch begins when
//! it is full, or when its oldest request has waited for `max_delay`. Once closed, a queue takes no more, and
//! what it has is still answered.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::model::Model;

/// Outputs of a request, or the status and sentence of its failure.
pub(super) type Answer = Result<Vec<Vec<u8>>, (u16, String)>;

/// A request that waits for its outputs.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) rows: u64,
    /// Bytes of each of the model's inputs.
    pub(super) inputs: Vec<Vec<u8>>,
    pub(super) since: Instant,
    pub(super) reply: Sender<Answer>,
}

/// Reason to take no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// As many wait as may.
    Full,
    /// The server ends, or the plan's device has failed.
    Closed,
}

/// The queues of a plan's models.
#[derive(Debug)]
pub(super) struct Queues {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    max_delay: Duration,
}

#[derive(Debug)]
struct State {
    waiting: Vec<VecDeque<Ticket>>,
    is_closed: bool,
    /// Whether batches no longer wait to be filled.
    is_hurried: bool,
}

/// Requests of a round: for each model, for each of its lanes.
pub(super) type Round = Vec<Vec<Vec<Ticket>>>;

impl Queues {
    pub(super) fn new(models: usize, limit: usize, max_delay: Duration) -> Queues {
        let waiting = (0..models).map(|_| VecDeque::new()).collect();
        let state = Mutex::new(State { waiting, is_closed: false, is_hurried: false });
        Queues { state, changed: Condvar::new(), limit, max_delay }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request of a model.
    pub(super) fn push(&self, model: usize, ticket: Ticket) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        match state.waiting.get_mut(model) {
            Some(queue) if queue.len() < self.limit => queue.push_back(ticket),
            _ => return Err(Refusal::Full),
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Number of a model's requests that wait.
    pub(super) fn len(&self, model: usize) -> usize {
        self.lock().waiting.get(model).map_or(0, VecDeque::len)
    }

    /// Whether requests are taken.
    pub(super) fn is_open(&self) -> bool {
        !self.lock().is_closed
    }

    /// Lets no batch wait any longer.
    pub(super) fn hurry(&self) {
        self.lock().is_hurried = true;
        self.changed.notify_all();
    }

    /// Takes no more requests.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Takes no more requests, and hands out those that wait.
    pub(super) fn fail(&self) -> Vec<Ticket> {
        let mut state = self.lock();
        state.is_closed = true;
        state.waiting.iter_mut().flat_map(|queue| queue.drain(..)).collect()
    }

    /// Waits for the requests of the next round; `None` when closed and empty.
    pub(super) fn next(&self, models: &[Model]) -> Option<Round> {
        let mut state = self.lock();
        loop {
            let oldest = state.waiting.iter().filter_map(|queue| queue.front()).map(|t| t.since).min();
            let Some(oldest) = oldest else {
                if state.is_closed {
                    return None;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = self.max_delay.saturating_sub(oldest.elapsed());
            let full = models.iter().zip(&state.waiting).any(|(model, queue)| is_full(model, queue));
            if full || left.is_zero() || state.is_closed || state.is_hurried {
                return Some(models.iter().zip(&mut state.waiting).map(|(m, q)| take(m, q)).collect());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Number of requests from the front of a queue that each lane takes, and the rows that are left.
fn fit(model: &Model, queue: &VecDeque<Ticket>) -> (Vec<usize>, u64) {
    let (mut rows, mut left) = (queue.iter().map(|ticket| ticket.rows).peekable(), 0);
    let lane = |_| {
        let (mut taken, mut room) = (0, model.rows());
        while let Some(n) = rows.next_if(|&n| n <= room) {
            taken += 1;
            room -= n;
        }
        left += room;
        taken
    };
    let taken: Vec<usize> = (0..model.lanes).map(lane).collect();
    (taken, left)
}

/// Whether another request would find no place.
fn is_full(model: &Model, queue: &VecDeque<Ticket>) -> bool {
    let (taken, left) = fit(model, queue);
    left == 0 || taken.iter().sum::<usize>() < queue.len()
}

fn take(model: &Model, queue: &mut VecDeque<Ticket>) -> Vec<Vec<Ticket>> {
    let (taken, _) = fit(model, queue);
    taken.into_iter().map(|n| queue.drain(..n.min(queue.len())).collect()).collect()
}
