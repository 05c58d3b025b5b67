//! The faster way of running a step: as a graph, or command by command.
//!
//! A graph saves the time between kernels, and makes copies and their waits dearer. What weighs more depends
//! on the plan, the GPU and the host, so that a few steps of a run are timed in both ways. All ways give the
//! same bits.

use crate::profile::machine::median;

/// Steps that run in each way. The first of each is not timed.
const STEPS: usize = 4;
/// A way is changed where that makes a step shorter by this part of it.
const LEAST: u64 = 200;

/// Times of the first steps, and what follows from them.
#[derive(Debug)]
pub(super) struct Trial {
    /// Of each step, how long the host was about it, in ns. A step ends for the host when its outputs are
    /// there, so that steps that follow each other take as long as on the device.
    times: [u64; 2 * STEPS],
    /// Steps done.
    done: usize,
    is_graph: Option<bool>,
}

impl Trial {
    pub(super) fn new() -> Trial {
        Trial { times: [0; 2 * STEPS], done: 0, is_graph: None }
    }

    /// Whether the next step runs as a graph.
    pub(super) fn is_graph(&self) -> bool {
        self.is_graph.unwrap_or(self.done < STEPS)
    }

    /// Takes the time of a step.
    pub(super) fn took(&mut self, ns: u64) {
        if let Some(time) = self.times.get_mut(self.done) {
            *time = ns;
            self.done += 1;
        }
        if self.is_graph.is_none() && self.done == self.times.len() {
            let (graph, commands) = self.times.split_at_mut(STEPS);
            let [graph, commands] =
                [graph, commands].map(|times| median(times.get_mut(1..).unwrap_or_default()));
            self.is_graph = Some(commands.saturating_add(graph / LEAST) >= graph);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether steps run as a graph after steps of so many ns.
    fn chosen(graph: [u64; STEPS], commands: [u64; STEPS]) -> bool {
        let mut trial = Trial::new();
        for (time, is_graph) in [(graph, true), (commands, false)]
            .into_iter()
            .flat_map(|(times, way)| times.into_iter().map(move |time| (time, way)))
        {
            assert_eq!(trial.is_graph(), is_graph);
            trial.took(time);
        }
        let way = trial.is_graph();
        for _ in 0..9 {
            trial.took(1);
            assert_eq!(trial.is_graph(), way);
        }
        way
    }

    /// The first step of each way, and one that was held up, do not count.
    #[test]
    fn the_faster_way_is_taken() {
        assert!(chosen([10_000; STEPS], [11_000; STEPS]));
        assert!(chosen([10_000; STEPS], [9_999; STEPS]));
        assert!(!chosen([10_000; STEPS], [9_900; STEPS]));
        assert!(!chosen([10_000; STEPS], [50_000, 9_000, 9_000, 90_000]));
        assert!(chosen([50_000, 10_000, 90_000, 10_000], [11_000; STEPS]));
    }
}
