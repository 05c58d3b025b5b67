//! All sequences of runs of a problem, depth first.

use memc_ir::Arena;

use crate::access_sequence::Step;
use crate::ids::{OpPos, TensorId};
use crate::problem::{Problem, TensorKind};

/// Most results of an op that a repeated run makes together.
const MOST_TOGETHER: usize = 8;

/// Calls `visit` on every prefix of every sequence with exactly `again` repeated runs; it says whether to go
/// on from there.
///
/// A repeated run is of an op that has run, for a transient result that an op still to come reads.
pub(super) fn sequences(
    p: &Problem,
    fixed_order: bool,
    recompute: usize,
    visit: &mut dyn FnMut(&[Step]) -> bool,
) {
    let before = p.predecessors();
    let mut x = Runs {
        p,
        before,
        fixed_order,
        ran: Arena::filled(false, p.ops.len()),
        steps: Vec::new(),
        left: p.ops.len(),
    };
    x.extend(recompute, visit);
}

struct Runs<'a> {
    p: &'a Problem,
    before: Arena<OpPos, Vec<OpPos>>,
    fixed_order: bool,
    ran: Arena<OpPos, bool>,
    steps: Vec<Step>,
    left: usize,
}

impl Runs<'_> {
    fn extend(&mut self, recompute: usize, visit: &mut dyn FnMut(&[Step]) -> bool) {
        if self.left == 0 && recompute > 0 {
            return;
        }
        if !visit(&self.steps) || self.left == 0 {
            return;
        }
        for v in self.p.ops.ids() {
            let ready = !self.ran[v] && self.before[v].iter().all(|&u| self.ran[u]);
            if !ready {
                continue;
            }
            self.ran[v] = true;
            self.left -= 1;
            self.steps.push(Step::first(v));
            self.extend(recompute, visit);
            self.steps.pop();
            self.left += 1;
            self.ran[v] = false;
            if self.fixed_order {
                break;
            }
        }
        if recompute == 0 {
            return;
        }
        for v in self.p.ops.ids() {
            if !self.ran[v] || !self.p.ops[v].repeatable {
                continue;
            }
            for step in self.useful_runs(v) {
                self.steps.push(step);
                self.extend(recompute - 1, visit);
                self.steps.pop();
            }
        }
    }

    /// The repeated runs of an op, for each of its useful results and for every set of several, at least one
    /// of which the last step did not touch.
    fn useful_runs(&self, v: OpPos) -> Vec<Step> {
        let op = &self.p.ops[v];
        let useful: Vec<TensorId> = op.writes.iter().copied().filter(|&t| self.useful(v, t)).collect();
        let mut out: Vec<Step> = Vec::new();
        for (k, &t) in useful.iter().enumerate() {
            let mut together = Vec::new();
            if !op.updates() && k < MOST_TOGETHER {
                together.extend(out.iter().map(|&step| step.with(self.p, t)));
            }
            out.push(Step::again(v, t));
            out.extend(together);
        }
        out.retain(|step| step.remade(self.p).any(|t| !self.is_touched(t)));
        out
    }

    /// Whether the last step touched a tensor.
    fn is_touched(&self, t: TensorId) -> bool {
        self.steps.last().is_some_and(|s| {
            let op = &self.p.ops[s.op];
            op.reads.contains(&t) || op.writes.contains(&t) && s.makes(self.p, t)
        })
    }

    /// Whether an op to come reads what `v` writes to `t`.
    fn useful(&self, v: OpPos, t: TensorId) -> bool {
        let tensor = &self.p.tensors[t];
        let next = tensor.writes.get(tensor.writes.partition_point(|&w| w <= v)).copied();
        let reads =
            |&&at: &&OpPos| at > v && next.is_none_or(|next| at <= next) && self.p.ops[at].reads.contains(&t);
        let pending = tensor.touches.iter().filter(reads).any(|&at| !self.ran[at]);
        tensor.kind == TensorKind::Transient && pending
    }
}
