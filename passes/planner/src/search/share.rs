//! Runs that make several results of an op again.

use memc_ir::{Id, Ids};

use super::recompute::{View, content};
use crate::access_sequence::{Touch, results};
use crate::ids::{OpPos, StepPos, TensorId};
use crate::problem::TensorKind;

/// Steps within which results of an op are made again by one run.
pub(super) const NEAR: usize = 16;

impl View<'_, '_> {
    /// The op that made the content of `t` that `op` needs, where it has other results and updates nothing in
    /// place.
    pub(super) fn sharing(&self, t: TensorId, op: OpPos) -> Option<OpPos> {
        let w = *self.p.tensors[t].writes.get(content(self.p, t, op).checked_sub(1)?)?;
        let op = &self.p.ops[w];
        let shares = op.writes.len() > 1 && !op.updates() && results(self.p, w).any(|(_, y)| y == t);
        shares.then_some(w)
    }

    /// A step shortly before `at`, since `t` was touched, that runs the op `w` again and could make `t`
    /// besides.
    pub(super) fn run_before(&self, t: TensorId, w: OpPos, at: StepPos) -> Option<StepPos> {
        let touches = self.s.touches_of(t);
        let before = touches.partition_point(|x| x.step < at).checked_sub(1)?;
        let from = touches.get(before)?.step.next().max(StepPos::new(at.index().saturating_sub(NEAR)));
        let again = |&i: &StepPos| self.s.steps[i].op == w && self.is_whole(i);
        Ids::between(from, at).rev().find(again)
    }

    /// Whether a step is a recomputation whose results no further runs update.
    fn is_whole(&self, i: StepPos) -> bool {
        let s = self.s;
        let step = s.steps[i];
        let is_updated = |x: TensorId| {
            let touches = s.touches_of(x);
            let next = touches.get(touches.partition_point(|touch| touch.step <= i));
            next.is_some_and(|next| !next.fresh && s.steps[next.step].recompute == Some(x))
        };
        step.recompute.is_some() && !step.remade(self.p).any(is_updated)
    }

    /// Part of the time of the op `w` that making `t` again before the step `at` costs. Other results that
    /// are needed about then can be made by the same run; they cost the rest, by bytes.
    pub(super) fn part(&self, t: TensorId, w: OpPos, at: StepPos) -> f64 {
        let (p, s) = (self.p, self.s);
        let is_needed = |y: TensorId| {
            let touches = s.touches_of(y);
            let next = touches.partition_point(|x| x.step.index() + NEAR < at.index());
            let is_near = |x: &Touch| !x.fresh && x.step.index() <= at.index() + NEAR;
            let near = next > 0 && touches.get(next).is_some_and(is_near);
            let can = p.tensors[y].kind == TensorKind::Transient && p.handling(y).recomputes();
            let same = self.current(y, at) == content(p, y, w) + 1;
            near && can && same
        };
        let bytes = |t: TensorId| p.tensors[t].bytes as f64;
        let others = results(p, w).map(|(_, y)| y).filter(|&y| y != t && is_needed(y));
        let all = others.fold(bytes(t), |sum, y| sum + bytes(y));
        if all > 0.0 { bytes(t) / all } else { 1.0 }
    }
}
