//! A thread that owns a running plan and does what it is sent, in order.
//!
//! Contract: devices bind to the thread that opened them, and callers come from any thread of Python. Each
//! request is answered before its call returns, so that requests may hold what lives as long as the call. A
//! panic is an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use memc_runtime::{Embedded, Error};

use crate::error::panic_text;

type Request = Box<dyn FnOnce(&mut Embedded) + Send>;

/// A running plan on a thread of its own. The last owner ends the thread and frees the plan's memory.
pub(crate) struct Worker {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    /// The process whose thread it is: a fork has only a copy of this entry.
    process: u32,
}

impl Worker {
    /// Starts the plan that `open` opens.
    pub(crate) fn start(
        open: impl FnOnce() -> Result<Embedded, Error> + Send + 'static,
    ) -> Result<Worker, Error> {
        let (requests, inbox) = channel::<Request>();
        let (opened, answer) = channel();
        let work = move || {
            let made = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|panic| Err(panicked(&*panic)));
            let mut plan = match made {
                Ok(plan) => plan,
                Err(error) => return drop(opened.send(Err(error))),
            };
            if opened.send(Ok(())).is_ok() {
                inbox.iter().for_each(|request| request(&mut plan));
            }
        };
        let thread = thread::Builder::new().name("memc-session".to_owned()).spawn(work);
        let thread = thread.map_err(|e| Error::Memory(format!("cannot start a session's thread: {e}")))?;
        let worker = Worker { requests: Some(requests), thread: Some(thread), process: std::process::id() };
        answer.recv().unwrap_or_else(|_| Err(ended()))?;
        Ok(worker)
    }

    /// Does something with the plan and waits for it. Call it with Python's lock released.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Embedded) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.process != std::process::id() {
            let text = "the session belongs to the process that started it, and this is a fork of that one";
            return Err(Error::Usage(text.to_owned()));
        }
        let (done, answer) = channel();
        let work = move |plan: &mut Embedded| {
            let result = catch_unwind(AssertUnwindSafe(|| request(plan)));
            // Nobody waits for an answer where the caller has gone.
            let _ = done.send(result.unwrap_or_else(|panic| Err(panicked(&*panic))));
        };
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.send(Box::new(work)).map_err(|_| ended())?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take().filter(|_| self.process == std::process::id()) {
            // Panics were caught and answered.
            let _ = thread.join();
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    Error::Internal(panic_text(panic))
}

fn ended() -> Error {
    Error::Internal("the session's thread has ended".to_owned())
}
