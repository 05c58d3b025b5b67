//! The faster way of running a step: as a graph, or command by command.
//!
//! A graph saves the time between kernels, and makes copies and their waits dearer. What weighs more depends
//! on the plan, the GPU and the host, so that a few steps of a run are timed in both ways. All ways give the
//! same bits.

use std::time::Instant;

use crate::clock::{between_ns, now};
use crate::profile::machine::median;

/// Steps that run in each way. The first of each is not timed.
const STEPS: usize = 4;
/// A way is changed where that makes a step shorter by this part of it.
const LEAST: u64 = 200;

/// Times of the first steps, and what follows from them.
#[derive(Debug)]
pub(super) struct Trial {
    starts: Vec<Instant>,
    is_graph: Option<bool>,
}

impl Trial {
    pub(super) fn new() -> Trial {
        Trial { starts: Vec::with_capacity(2 * STEPS + 1), is_graph: None }
    }

    /// Whether the step that begins now runs as a graph.
    pub(super) fn is_graph(&mut self) -> bool {
        if let Some(is_graph) = self.is_graph {
            return is_graph;
        }
        self.starts.push(now());
        let done = self.starts.len() - 1;
        if done == 2 * STEPS {
            self.is_graph = Some(self.choose());
        }
        self.is_graph.unwrap_or(done < STEPS)
    }

    /// Whether graphs are not clearly slower.
    fn choose(&self) -> bool {
        let [graph, commands] = [1, STEPS + 1].map(|first| self.step_ns(first));
        commands.saturating_add(graph / LEAST) >= graph
    }

    /// Median of the timed steps of a way, from `first` on.
    fn step_ns(&self, first: usize) -> u64 {
        let mut times = [0; STEPS - 1];
        let timed = self.starts.get(first..first + STEPS).unwrap_or_default();
        for (time, (from, to)) in times.iter_mut().zip(timed.iter().zip(timed.iter().skip(1))) {
            *time = between_ns(*from, *to);
        }
        median(&mut times)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Says what the steps after the trial are, where a step takes so many ms.
    fn chosen(graph_ms: u64, commands_ms: u64) -> bool {
        let mut trial = Trial::new();
        let mut at = now();
        for step in 0..2 * STEPS {
            trial.starts.push(at);
            at += Duration::from_millis(if step < STEPS { graph_ms } else { commands_ms });
        }
        trial.starts.push(at);
        trial.choose()
    }

    #[test]
    fn the_faster_way_is_taken() {
        assert!(chosen(10, 11));
        assert!(chosen(10, 10));
        assert!(!chosen(11, 10));
    }

    /// Both ways run, and then one of them.
    #[test]
    fn both_ways_are_tried() {
        let mut trial = Trial::new();
        let ways: Vec<bool> = (0..2 * STEPS).map(|_| trial.is_graph()).collect();
        assert_eq!(ways, [[true; STEPS], [false; STEPS]].concat());
        let way = trial.is_graph();
        assert!((0..9).all(|_| trial.is_graph() == way));
    }
}
