//! Work that several threads share.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `f` with every item, on this thread and on others: no more than `most`, and no more than the machine
/// has. Where the system refuses further threads this one does it all.
pub fn side_by_side<I: Iterator + Send>(items: I, most: usize, f: impl Fn(I::Item) + Sync) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(most);
    let queue = Mutex::new(items);
    // A function of its own: in the head of a loop the lock would be held throughout the body.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(item) = next() {
            f(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;
    use std::time::Duration;

    /// An item is begun before another one has ended, where the machine has two threads.
    #[test]
    fn items_are_worked_on_at_once() {
        if thread::available_parallelism().map_or(1, NonZero::get) < 2 {
            return;
        }
        let (begun, more) = (Mutex::new(0), Condvar::new());
        side_by_side(0..2, 2, |_| {
            let mut count = begun.lock().unwrap();
            *count += 1;
            more.notify_all();
            let late = more.wait_timeout_while(count, Duration::from_secs(60), |n| *n < 2).unwrap().1;
            assert!(!late.timed_out(), "the second item waits for the first");
        });
    }
}
