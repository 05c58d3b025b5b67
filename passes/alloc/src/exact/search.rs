//! Depth-first search with restarts. A decision names the lowest buffer of those of a machine that are not
//! yet stacked.

use super::edges::Edges;
use super::insertion_sort;
use super::state::{State, Step};
use crate::compact::Compact;
use crate::random::Random;
use crate::work::Work;

/// Rule by which the search picks the machine to branch on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// Little slack, and low.
    Slack,
    /// Low, and often in contradiction.
    Low,
    /// Little slack for each buffer, and often in contradiction.
    Contradiction,
}

/// End of one descent.
pub(super) enum End {
    /// An allocation.
    Found(Vec<u64>),
    /// There is none.
    Infeasible,
    /// The limit of nodes or the work was reached.
    Open,
}

/// A decision that can be reversed: `buffer` is the lowest of itself and `others`.
struct Decision {
    depth: usize,
    buffer: usize,
    others: Vec<u32>,
    machine: usize,
}

/// State of a machine as the search sees it.
#[derive(Clone, Copy, Default)]
struct View {
    /// The first member, by `est`, that is not stacked; none when all are.
    open: Option<usize>,
    slack: i64,
    low: i64,
}

pub(super) struct Search<'a> {
    pub(super) state: State,
    c: &'a Compact,
    edges: Edges,
    /// Members of every machine by (`est`, `lst`), current where the machine is not touched.
    sorted: Vec<Vec<u32>>,
    views: Vec<View>,
    random: Random,
    /// Slack added to that of every machine when they are compared.
    unit: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(c: &'a Compact, capacity: u64, seed: u64) -> Search<'a> {
        let state = State::new(c, capacity as i64);
        Search {
            c,
            edges: Edges::new(&state),
            sorted: state.machines.clone(),
            views: vec![View::default(); state.machines.len()],
            random: Random::new(seed),
            unit: capacity as f64 / 1024.0,
            state,
        }
    }

    /// Precedences that lose no allocation: of buffers that differ in nothing, the first lies lowest.
    fn symmetry(&mut self) -> Step {
        let c = self.c;
        let key = |b: usize| (&c.live[b], c.size[b], c.align[b]);
        let mut alike: Vec<usize> = (0..c.len()).filter(|&b| c.fixed[b].is_none()).collect();
        alike.sort_by_key(|&b| key(b));
        for w in alike.windows(2).filter(|w| key(w[0]) == key(w[1])) {
            self.state.precede(w[0], w[1])?;
        }
        Ok(())
    }

    /// Propagates everything that holds in every branch; an error where nothing does.
    pub(super) fn root(&mut self) -> Step {
        self.symmetry()?;
        self.state.mark_all();
        self.propagate()
    }

    fn propagate(&mut self) -> Step {
        while let Some(m) = self.state.next_machine()? {
            self.edges.propagate(&mut self.state, m).inspect_err(|_| self.state.blame(m))?;
        }
        Ok(())
    }

    /// Ranks of buffers for ties, those first that are hard to place, with some chance from the fourth round
    /// on.
    fn ranks(&mut self, round: u64) -> Vec<u64> {
        let mut list: Vec<u32> = (0..self.c.len() as u32).collect();
        let hull = |b: u32| self.c.hull(b as usize);
        match round % 4 {
            1 => list.sort_by_key(|&b| std::cmp::Reverse(hull(b).1 - hull(b).0)),
            2 => list.sort_by_key(|&b| std::cmp::Reverse(self.c.size[b as usize])),
            _ => list.sort_by_key(|&b| std::cmp::Reverse(self.c.area(b as usize))),
        }
        let mut ranks = vec![0; list.len()];
        for (rank, b) in list.into_iter().enumerate() {
            let jump = if round > 4 { self.random.next() >> 58 } else { 0 };
            ranks[b as usize] = rank as u64 * 8 + jump;
        }
        ranks
    }

    /// One descent of at most `nodes` decisions from the root, which is restored.
    pub(super) fn descend(&mut self, round: u64, choice: Choice, nodes: u64, work: &mut Work<'_>) -> End {
        let ranks = self.ranks(round);
        let root = self.state.depth();
        let mut stack: Vec<Decision> = Vec::new();
        for _ in 0..nodes {
            if !work.spend(std::mem::take(&mut self.state.steps) + 16) {
                break;
            }
            let Some(machine) = self.choose(choice) else {
                let offsets = self.state.est.iter().map(|&at| at as u64).collect();
                self.state.undo(root);
                return End::Found(offsets);
            };
            let feasible = match self.lowest(machine, &ranks) {
                Some((buffer, others)) => {
                    stack.push(Decision { depth: self.state.depth(), buffer, others, machine });
                    self.decide(buffer, stack.last().map_or(&[], |d| &d.others))
                        .and_then(|()| self.propagate())
                }
                None => Err(super::state::Contradiction),
            };
            let mut feasible = feasible.is_ok();
            while !feasible {
                let Some(d) = stack.pop() else {
                    self.state.undo(root);
                    return End::Infeasible;
                };
                self.state.undo(d.depth);
                let turned = self.turn(&d);
                if turned.is_err() {
                    self.state.blame(d.machine);
                }
                feasible = turned.and_then(|()| self.propagate()).is_ok();
            }
        }
        self.state.undo(root);
        End::Open
    }

    /// `buffer` lies below all others.
    fn decide(&mut self, buffer: usize, others: &[u32]) -> Step {
        for &other in others {
            self.state.precede(buffer, other as usize)?;
        }
        Ok(())
    }

    /// Another one lies below the buffer.
    fn turn(&mut self, d: &Decision) -> Step {
        if let [other] = d.others[..] {
            self.state.precede(other as usize, d.buffer)?;
        }
        let least = d.others.iter().map(|&b| self.state.ect(b as usize)).min();
        least.map_or(Ok(()), |at| self.state.raise(d.buffer, at))
    }

    /// The machine to branch on; none when all are stacked.
    fn choose(&mut self, choice: Choice) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for m in 0..self.views.len() {
            if std::mem::take(&mut self.state.touched[m]) {
                self.views[m] = self.view(m);
            }
            let view = self.views[m];
            let Some(open) = view.open else { continue };
            let (slack, low, weight) = (view.slack as f64, view.low as f64, self.state.weight[m]);
            let left = (self.sorted[m].len() - open) as f64;
            let score = match choice {
                Choice::Slack => slack + low * 0.2,
                Choice::Low => (low + 20.0 * self.unit) / weight,
                Choice::Contradiction => (slack + self.unit) / weight / left,
            };
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, m));
            }
        }
        best.map(|(_, m)| m)
    }

    fn view(&mut self, m: usize) -> View {
        let (s, sorted) = (&mut self.state, &mut self.sorted[m]);
        s.steps += sorted.len() as u64 / 2;
        insertion_sort(sorted, |b| s.est[b as usize]);
        let overlaps = |w: &[u32]| s.ect(w[0] as usize) > s.est[w[1] as usize];
        let Some(open) = sorted.windows(2).position(overlaps) else { return View::default() };
        let rest = &sorted[open..];
        let bytes: i64 = rest.iter().map(|&b| s.p[b as usize]).sum();
        let top = rest.iter().map(|&b| s.lct(b as usize)).max().unwrap_or(0);
        let low = s.est[rest[0] as usize];
        View { open: Some(open), slack: top - low - bytes, low }
    }

    /// The buffer to try as the lowest of those not stacked on a machine, and these others. None when every
    /// one is above another.
    fn lowest(&self, machine: usize, ranks: &[u64]) -> Option<(usize, Vec<u32>)> {
        let s = &self.state;
        let rest = &self.sorted[machine][self.views[machine].open?..];
        let least = rest.iter().map(|&b| s.ect(b as usize)).min()?;
        let can = |&b: &u32| {
            s.est[b as usize] < least && !rest.iter().any(|&other| s.is_higher(b as usize, other as usize))
        };
        let buffer =
            rest.iter().copied().filter(can).min_by_key(|&b| (s.est[b as usize], ranks[b as usize]))?;
        Some((buffer as usize, rest.iter().copied().filter(|&b| b != buffer).collect()))
    }
}
