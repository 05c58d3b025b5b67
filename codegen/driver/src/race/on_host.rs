//! The candidates with other ops on the host: which are planned.
//!
//! The first are chosen by a glance and a bound, before a search. A glance overestimates the step and a bound
//! underestimates it, both most where much has to leave the device. The last are those most like the fastest.

use std::collections::BTreeMap;

use super::{LESS_BY_HOST, Race, Turns};

/// Ops may run on the host where the states are at least this part of what the unplanned step takes.
const MUCH: u64 = 32;

/// Ops of all candidates with ops on the host that get a glance. Of more, those of one formulation get one,
/// and say which get one in the others.
const GLANCED_OPS: usize = 60_000;

/// A candidate and the time in ns of the step that its search would begin with.
type Glance = (u64, usize);

impl Race<'_> {
    /// Whether updates may move to the host, and may make the step noticeably shorter there.
    fn is_worth_host(&self) -> bool {
        let ideal = self.instance.ideal_ns();
        let states = self.instance.given().numbers().tensors.values();
        let states: u64 = states.filter(|t| t.persistent() && !t.writes.is_empty()).map(|t| t.bytes).sum();
        self.is_default()
            && self.search.allow.swap
            && states >= self.instance.given().kept().evaluation.dev_bytes / MUCH
            && self.step_ns() > ideal + ideal / LESS_BY_HOST
    }

    /// Plans candidates with other ops on the host that are worth a plan, as [`Race::heat`].
    pub(super) fn heat_on_host(
        &mut self,
        turns: &Turns,
        effort: u32,
        (before, count): (usize, usize),
    ) -> Vec<(u64, usize)> {
        if !self.is_worth_host() {
            return Vec::new();
        }
        let glances = self.glances_on_host(turns);
        if turns.on_host > 1 {
            let all: Vec<usize> = glances.iter().map(|glance| glance.1).collect();
            self.instance.bound_all(&all, self.budget, self.search.allow);
        }
        let (mut taken, mut times) = (Vec::new(), Vec::new());
        for turn in 0..turns.on_host {
            let fastest = times.iter().min().filter(|_| turn >= turns.on_host - turns.beside);
            let beside = fastest.and_then(|&(_, fastest)| {
                let beside = self.beside(&glances, fastest);
                self.best_of(&beside, 1, &taken)
            });
            let Some(next) = beside.or_else(|| self.best_of(&glances, turn % 3, &taken)) else { break };
            taken.push(next);
            times.extend(self.heat(&[next], effort, (before + turn, count)));
        }
        times
    }

    /// Glances at the candidates with other ops on the host, as [`Race::glances`].
    fn glances_on_host(&self, turns: &Turns) -> Vec<Glance> {
        let ops = self.others.len() * self.instance.given().numbers().ops.len();
        match &self.best {
            Some(best) if turns.is_single() => {
                // Here every search takes long, and to pose many candidates does.
                let mut glances = self.glances(&self.alike(best.at).0);
                let than = self.glances(&[best.at]).first().map_or(0, |glance| glance.0);
                glances.retain(|glance| glance.0 < than - than / LESS_BY_HOST);
                glances
            }
            Some(best) if ops > GLANCED_OPS => self.promising(best.at),
            _ => self.glances(&self.others),
        }
    }

    /// The candidates with other ops on the host: those of the formulation of `like`, and the rest.
    fn alike(&self, like: usize) -> (Vec<usize>, Vec<usize>) {
        let formulation = |at: usize| self.candidates()[at].pose.formulation;
        self.others.iter().copied().partition(|&at| formulation(at) == formulation(like))
    }

    /// Glances at the candidates whose ops on the host are among the best third for the formulation of
    /// `like`, as [`Race::glances`].
    fn promising(&self, like: usize) -> Vec<Glance> {
        let (alike, mut rest) = self.alike(like);
        let mut glances = self.glances(&alike);
        glances.truncate(glances.len().div_ceil(3));
        rest.retain(|&at| glances.iter().any(|&(_, other)| self.host(other) == self.host(at)));
        glances.extend(self.glances(&rest));
        glances.sort_unstable();
        glances
    }

    /// The best candidate by its glance (rank 0), its glance and bound (1), or its bound (2), with ops on the
    /// host that no candidate has that was taken.
    fn best_of(&self, glances: &[Glance], rank: usize, taken: &[usize]) -> Option<usize> {
        let is_new = |at: usize| taken.iter().all(|&other| self.host(other) != self.host(at));
        let bound_ns = |at: usize| self.bound_ns(at).unwrap_or(u64::MAX);
        let mut open: Vec<Glance> = glances.iter().copied().filter(|&(_, at)| is_new(at)).collect();
        open.sort_by_key(|&(glance_ns, at)| match rank {
            0 => glance_ns,
            1 => glance_ns.saturating_add(bound_ns(at)),
            _ => bound_ns(at),
        });
        open.into_iter().map(|(_, at)| at).find(|&at| !self.is_hopeless(at))
    }

    /// Of the candidates with more on the host than another those most like it, and of those with less.
    fn beside(&self, glances: &[Glance], of: usize) -> Vec<Glance> {
        let p = self.instance.given().numbers();
        let written = |at| p.ops[at].writes.iter().map(|&t| p.tensors[t].bytes).sum::<u64>();
        let bytes: BTreeMap<&str, u64> =
            p.host_candidates().into_iter().map(|at| (p.ops[at].name.as_str(), written(at))).collect();
        let only = |names: &[String], others: &[String]| -> u64 {
            let names = names.iter().filter(|name| others.binary_search(name).is_err());
            names.filter_map(|name| bytes.get(name.as_str())).sum()
        };
        // Bytes that are updated on the host here alone, and there alone.
        let apart = |at: usize| (only(self.host(at), self.host(of)), only(self.host(of), self.host(at)));
        let mut beside = Vec::new();
        for more in [true, false] {
            let all = glances.iter().map(|&glance| (apart(glance.1), glance));
            let all = all.filter(|((here, there), _)| if more { here > there } else { here < there });
            let all: Vec<(u64, Glance)> = all.map(|((here, there), glance)| (here + there, glance)).collect();
            let least = all.iter().map(|&(apart, _)| apart).min();
            beside
                .extend(all.into_iter().filter(|&(apart, _)| Some(apart) == least).map(|(_, glance)| glance));
        }
        beside
    }

    fn host(&self, at: usize) -> &[String] {
        &self.candidates()[at].pose.host
    }
}
