//! The course of a search: plans as they were found, and generations.

use std::sync::{Mutex, PoisonError};

use memc::{Event, Watch};
use serde_json::{Value, json};

/// Passes events on, and keeps those that `memc plan --curve` writes.
pub(crate) struct Recorder<'a> {
    to: &'a dyn Watch,
    course: Mutex<Course>,
}

#[derive(Default)]
struct Course {
    /// Step time of the best plan so far in ns.
    best: Option<u64>,
    curve: Vec<Value>,
    alive: Vec<Value>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(to: &'a dyn Watch) -> Recorder<'a> {
        Recorder { to, course: Mutex::default() }
    }

    /// The course so far as JSON: `curve` has `[seconds, evaluations, step_ns]` for every plan that is faster
    /// than those before, `alive` has `[seconds, evaluations, best, mean, worst]` for every generation.
    pub(crate) fn curve(&self) -> String {
        let course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{:#}\n", json!({ "curve": course.curve, "alive": course.alive }))
    }
}

impl Watch for Recorder<'_> {
    fn event(&self, event: Event<'_>) {
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Found(f) if course.best.is_none_or(|best| f.step_ns < best) => {
                course.best = Some(f.step_ns);
                course.curve.push(json!([seconds(f.elapsed_ns), f.evaluations, f.step_ns]));
            }
            Event::Generation(g) if !g.step_ns.is_empty() => {
                let sum: u128 = g.step_ns.iter().map(|&ns| u128::from(ns)).sum();
                let mean = (sum / g.step_ns.len() as u128) as u64;
                let (best, worst) = (g.step_ns.iter().min(), g.step_ns.iter().max());
                course.alive.push(json!([seconds(g.elapsed_ns), g.evaluations, best, mean, worst]));
            }
            _ => {}
        }
        drop(course);
        self.to.event(event);
    }

    fn stop(&self) -> bool {
        self.to.stop()
    }

    fn take_stop(&self) -> bool {
        self.to.take_stop()
    }

    fn hold(&self, held: bool) {
        self.to.hold(held);
    }

    fn is_seen(&self) -> bool {
        self.to.is_seen()
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
