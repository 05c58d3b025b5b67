//! Threads that run the mock's commands with random pauses, and the records that they pass.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(super) type Job = Arc<dyn Fn() + Send + Sync>;

/// A thread that runs jobs in order.
pub(super) struct Worker {
    pub(super) queue: mpsc::Sender<Job>,
    pub(super) thread: JoinHandle<()>,
}

/// Starts a thread that pauses before jobs where there is a state of random numbers.
pub(super) fn worker(mut state: Option<u64>) -> Worker {
    let (queue, receive) = mpsc::channel::<Job>();
    let thread = thread::spawn(move || {
        while let Ok(job) = receive.recv() {
            pause(&mut state);
            job();
        }
    });
    Worker { queue, thread }
}

pub(super) fn pause(state: &mut Option<u64>) {
    if let Some(state) = state
        && next(state).is_multiple_of(2)
    {
        thread::sleep(Duration::from_micros(next(state) % 300));
    }
}

/// Records that were passed.
#[derive(Default)]
pub(super) struct Board {
    passed: Mutex<BTreeSet<u64>>,
    moved: Condvar,
}

impl Board {
    pub(super) fn pass(&self, record: u64) {
        self.passed.lock().unwrap().insert(record);
        self.moved.notify_all();
    }

    pub(super) fn has(&self, record: u64) -> bool {
        self.passed.lock().unwrap().contains(&record)
    }

    pub(super) fn wait(&self, record: u64) {
        self.wait_any(&[record]);
    }

    pub(super) fn wait_any(&self, records: &[u64]) {
        let passed = self.passed.lock().unwrap();
        let none = |passed: &mut BTreeSet<u64>| !records.iter().any(|record| passed.contains(record));
        drop(self.moved.wait_while(passed, none).unwrap());
    }
}

/// The next number of a sequence (xorshift64*, Vigna 2016).
pub(super) fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
}
