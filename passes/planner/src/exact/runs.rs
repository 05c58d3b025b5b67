//! All sequences of runs of a problem, depth first.

use memc_ir::Arena;

use crate::access_sequence::Step;
use crate::ids::{OpPos, TensorId};
use crate::problem::{Problem, TensorKind};

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
            self.steps.push(Step { op: v, recompute: None });
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
            for k in 0..self.p.ops[v].writes.len() {
                let t = self.p.ops[v].writes[k];
                if self.useful(v, t) {
                    self.steps.push(Step { op: v, recompute: Some(t) });
                    self.extend(recompute - 1, visit);
                    self.steps.pop();
                }
            }
        }
    }

    /// Whether an op to come reads what `v` writes to `t`, and nothing has it just now.
    fn useful(&self, v: OpPos, t: TensorId) -> bool {
        let tensor = &self.p.tensors[t];
        let next = tensor.writes.get(tensor.writes.partition_point(|&w| w <= v)).copied();
        let reads =
            |&&at: &&OpPos| at > v && next.is_none_or(|next| at <= next) && self.p.ops[at].reads.contains(&t);
        let pending = tensor.touches.iter().filter(reads).any(|&at| !self.ran[at]);
        let touched = self.steps.last().is_some_and(|s| {
            let op = &self.p.ops[s.op];
            op.reads.contains(&t) || op.writes.contains(&t) && s.recompute.is_none_or(|w| w == t)
        });
        tensor.kind == TensorKind::Transient && pending && !touched
    }
}
