//! The candidates with other ops on the host: which are planned.
//!
//! The first are chosen by a glance and a bound. A glance overestimates the step and a bound underestimates
//! it, both most where much has to leave the device. How much a glance is wrong depends on the formulation:
//! it is corrected by what the last search of the same formulation made of its own. The last are those most
//! like the fastest.

use std::collections::BTreeMap;

use memc_planner::{Formulation, Order};

use super::{LESS_BY_HOST, Race, Turns};

/// Ops may run on the host where the states are at least this part of what the unplanned step takes.
const MUCH: u64 = 32;

/// Ops of all candidates with ops on the host that get a glance. Of more, those of one formulation get one,
/// and say which get one in the others.
const GLANCED_OPS: usize = 60_000;

/// A candidate and the time in ns of the step that its search would begin with.
type Glance = (u64, usize);

/// The candidates with other ops on the host, and what is known of them.
struct Field {
    glances: Vec<Glance>,
    /// For every formulation the glance of the candidate that was planned last, and the time of its step.
    last: BTreeMap<Formulation, (u64, u64)>,
    /// Candidates whose turn was.
    taken: Vec<usize>,
}

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

    /// Plans candidates with other ops on the host that are worth a plan, as [`Race::heat`]. `known` are the
    /// times of the steps of candidates planned before.
    pub(super) fn heat_on_host(
        &mut self,
        turns: &Turns,
        effort: u32,
        known: &[(u64, usize)],
        (before, count): (usize, usize),
    ) -> Vec<(u64, usize)> {
        if !self.is_worth_host() {
            return Vec::new();
        }
        let mut field =
            Field { glances: self.glances_on_host(turns), last: BTreeMap::new(), taken: Vec::new() };
        // A single one is chosen among those of one formulation.
        if turns.on_host > 1 {
            let all: Vec<usize> = field.glances.iter().map(|glance| glance.1).collect();
            self.instance.bound_all(&all, self.budget, self.search.allow);
            field.last = self.last(known);
        }
        let mut times = Vec::new();
        for turn in 0..turns.on_host {
            let fastest = times.iter().min().map(|&(_, at)| at);
            let like = turn.checked_sub(turns.on_host - turns.like).zip(fastest);
            let next = match like {
                Some((nth, fastest)) => self.like(&field, fastest, nth),
                None => self.best_of(&field, &self.new_sets(&field), turn % 3),
            };
            let Some((glance_ns, next)) = next else { break };
            field.taken.push(next);
            for (step_ns, at) in self.heat(&[next], effort, (before + turn, count)) {
                field.last.insert(self.formulation(at), (glance_ns, step_ns));
                times.push((step_ns, at));
            }
        }
        times
    }

    /// For every formulation the glance and the time of the step of its candidate in the order as given.
    fn last(&self, times: &[(u64, usize)]) -> BTreeMap<Formulation, (u64, u64)> {
        let steps: BTreeMap<usize, u64> = times.iter().map(|&(step_ns, at)| (at, step_ns)).collect();
        let is_given = |at: &usize| self.candidates()[*at].pose.order == Order::Given;
        let given: Vec<usize> = steps.keys().copied().filter(is_given).collect();
        let glances = self.glances(&given).into_iter();
        glances
            .filter_map(|(glance_ns, at)| Some((self.formulation(at), (glance_ns, *steps.get(&at)?))))
            .collect()
    }

    /// A candidate like the fastest: first those with the same ops on the host, of other formulations; then
    /// those with a little more or less on the host. Where none is left, the best that was not taken.
    fn like(&self, field: &Field, fastest: usize, nth: usize) -> Option<Glance> {
        let mut open = field.glances.clone();
        open.retain(|(_, at)| !field.taken.contains(at));
        let mut same = open.clone();
        same.retain(|&(_, at)| self.host(at) == self.host(fastest));
        let first = match nth {
            0 | 1 => self.best_of(field, &same, 0),
            _ => self.best_of(field, &self.beside(&self.new_sets(field), fastest), 1),
        };
        first.or_else(|| self.best_of(field, &open, 0))
    }

    /// The candidates with ops on the host that no candidate has that was taken.
    fn new_sets(&self, field: &Field) -> Vec<Glance> {
        let is_new = |at: usize| field.taken.iter().all(|&other| self.host(other) != self.host(at));
        field.glances.iter().copied().filter(|&(_, at)| is_new(at)).collect()
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
        self.others.iter().copied().partition(|&at| self.formulation(at) == self.formulation(like))
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

    /// The best candidate by its corrected glance (rank 0), that and its bound (1), or its bound (2).
    fn best_of(&self, field: &Field, glances: &[Glance], rank: usize) -> Option<Glance> {
        let bound_ns = |at: usize| self.bound_ns(at).unwrap_or(u64::MAX);
        let corrected = |&(glance_ns, at): &Glance| match field.last.get(&self.formulation(at)) {
            Some(&(last, step)) => {
                (u128::from(glance_ns) * u128::from(step) / u128::from(last.max(1))) as u64
            }
            None => glance_ns,
        };
        let mut ranked = glances.to_vec();
        ranked.sort_by_key(|glance| match rank {
            0 => corrected(glance),
            1 => corrected(glance).saturating_add(bound_ns(glance.1)),
            _ => bound_ns(glance.1),
        });
        ranked.into_iter().find(|&(_, at)| !self.is_hopeless(at))
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
