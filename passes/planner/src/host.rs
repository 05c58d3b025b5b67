//! Ops on the host: which can run there, and the problem in which some do.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::Arena;

use crate::ids::{OpPos, TensorId};
use crate::problem::{ALIGN, HostOp, Op, Problem, TensorKind};

/// Reason that an op cannot run on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotOnHost {
    /// The problem gives no time for it there.
    NoTime,
    /// It needs workspace, or hands a result of the step out.
    Bound,
    /// It writes this tensor, which is not a state that it alone changes and that no later op touches.
    Writes(TensorId),
    /// It reads this tensor, whose content at the op is not that at the end of the step.
    Reads(TensorId),
    /// This op is to come after it.
    Before(OpPos),
    /// It writes this tensor, which may not leave the device by copies.
    Handled(TensorId),
}

impl NotOnHost {
    /// The reason in words; the subject is the op.
    pub fn describe(&self, p: &Problem) -> String {
        let name = |t: &TensorId| p.tensors.get(*t).map_or("", |t| t.name.as_str());
        match self {
            NotOnHost::NoTime => {
                "has no time on the host: only updates of an optimizer run there, in place, \
                                  and only where the device profile has a host_bytes_per_s"
                    .into()
            }
            NotOnHost::Bound => "needs workspace, or hands out a result of the step".into(),
            NotOnHost::Writes(t) => format!("writes %{}, which ops on the device touch later", name(t)),
            NotOnHost::Reads(t) => format!("reads %{}, which ops on the device change later", name(t)),
            NotOnHost::Handled(t) => format!("writes %{}, which is not to leave the device so", name(t)),
            NotOnHost::Before(op) => {
                format!("must run before {}", p.ops.get(*op).map_or("", |op| op.name.as_str()))
            }
        }
    }
}

impl Problem {
    /// Whether an op can run on the host while the others stay where they are.
    ///
    /// It changes states that no other op changes and that no later op touches. What it reads it changes
    /// itself, or an earlier op does, or none does.
    pub fn can_run_on_host(&self, at: OpPos) -> Result<(), NotOnHost> {
        let op = &self.ops[at];
        op.host_ns.ok_or(NotOnHost::NoTime)?;
        if op.workspace > 0 || !op.outputs.is_empty() {
            return Err(NotOnHost::Bound);
        }
        let own = |&&t: &&TensorId| {
            let tensor = &self.tensors[t];
            tensor.persistent() && tensor.writes == [at] && tensor.touches.last() == Some(&at)
        };
        if let Some(&t) = op.writes.iter().find(|t| !own(t)) {
            return Err(NotOnHost::Writes(t));
        }
        if let Some(&t) = op.writes.iter().find(|&&t| !self.handling(t).swaps()) {
            return Err(NotOnHost::Handled(t));
        }
        let settled = |&&t: &&TensorId| {
            let tensor = &self.tensors[t];
            let earlier = tensor.writes.last().is_some_and(|&last| last < at);
            op.writes.contains(&t)
                || earlier
                || tensor.writes.is_empty() && tensor.kind != TensorKind::Transient
        };
        if let Some(&t) = op.reads.iter().find(|t| !settled(t)) {
            return Err(NotOnHost::Reads(t));
        }
        match self.ops.iter().find(|(_, other)| other.after.contains(&at)) {
            Some((later, _)) => Err(NotOnHost::Before(later)),
            None => Ok(()),
        }
    }

    /// The ops that can run on the host, the one whose results the next step needs last first.
    pub fn host_candidates(&self) -> Vec<OpPos> {
        let barred: BTreeSet<OpPos> = self.ops.values().flat_map(|op| op.after.iter().copied()).collect();
        let timed = self.ops.iter().filter(|(at, op)| op.host_ns.is_some() && !barred.contains(at));
        let mut able: Vec<OpPos> =
            timed.map(|(at, _)| at).filter(|&at| self.can_run_on_host(at).is_ok()).collect();
        let needed = |at: &OpPos| {
            let firsts = self.ops[*at].writes.iter().filter_map(|&t| self.tensors[t].touches.first());
            std::cmp::Reverse(firsts.filter(|first| *first < at).min().copied())
        };
        able.sort_by_key(needed);
        able
    }

    /// The problem in which some ops run on the host, and for each of its other ops the position that it has
    /// here.
    ///
    /// What they write lives in host memory. What they read of other ops is copied there once it is made.
    pub fn with_host_ops(&self, ops: &BTreeSet<OpPos>) -> Result<Placed, (OpPos, NotOnHost)> {
        for &at in ops {
            self.can_run_on_host(at).map_err(|why| (at, why))?;
        }
        let positions = self.staying(ops);
        let position: BTreeMap<OpPos, OpPos> = positions.iter().map(|(new, &old)| (old, new)).collect();
        let mut p = Problem { ops: Arena::default(), host_ops: Arena::default(), ..self.clone() };
        for &old in positions.values() {
            let op = &self.ops[old];
            let after = op.after.iter().filter_map(|at| position.get(at).copied()).collect();
            p.ops.push(Op { after, ..op.clone() });
        }
        for &at in ops {
            for &t in &self.ops[at].writes {
                p.tensors[t].kind = TensorKind::Hosted;
            }
        }
        for tensor in p.tensors.values_mut() {
            let here = |list: &[OpPos]| {
                let mut here: Vec<OpPos> = list.iter().filter_map(|at| position.get(at).copied()).collect();
                here.sort_unstable();
                here
            };
            (tensor.touches, tensor.writes) = (here(&tensor.touches), here(&tensor.writes));
        }
        for &at in ops {
            let op = &self.ops[at];
            // A tensor that other ops make is sent by the last of them.
            for (maker, t) in self.makers(at).filter_map(|(maker, t)| Some((*position.get(&maker)?, t))) {
                if !p.ops[maker].sends.contains(&t) {
                    p.ops[maker].sends.push(t);
                }
            }
            let after: BTreeSet<OpPos> =
                self.awaited(at).filter_map(|before| position.get(&before).copied()).collect();
            p.host_ops.push(HostOp {
                name: op.name.clone(),
                label: op.label.clone(),
                time_ns: op.host_ns.unwrap_or(0),
                reads: op.reads.clone(),
                writes: op.writes.clone(),
                after: after.into_iter().collect(),
            });
        }
        Ok(Placed { problem: p, positions })
    }

    /// For all that an op reads and does not write, the op that makes it last.
    fn makers(&self, at: OpPos) -> impl Iterator<Item = (OpPos, TensorId)> {
        let op = &self.ops[at];
        let read = op.reads.iter().filter(|t| !op.writes.contains(t));
        read.filter_map(|&t| Some((*self.tensors[t].writes.last()?, t)))
    }

    /// The ops that an op on the host comes after, and it.
    fn awaited(&self, at: OpPos) -> impl Iterator<Item = OpPos> {
        let op = &self.ops[at];
        let touches = op.writes.iter().flat_map(|&t| &self.tensors[t].touches).copied();
        op.after.iter().copied().chain(touches).chain(self.makers(at).map(|(maker, _)| maker))
    }

    /// The ops that are not on the host in the order in which they run: as before, but what ops on the host
    /// need of ops on a few bytes, as the number of the step, is made before the first of them has its other
    /// operands. Otherwise they would wait for it at the end of the step.
    fn staying(&self, host: &BTreeSet<OpPos>) -> Arena<OpPos, OpPos> {
        let rest = || self.ops.ids().filter(|at| !host.contains(at));
        let before = self.predecessors();
        let mut free: BTreeSet<OpPos> = BTreeSet::new();
        for at in rest() {
            let is_small = self.ops[at].writes.iter().all(|&t| self.tensors[t].bytes <= ALIGN);
            if is_small && before[at].iter().all(|at| free.contains(at)) {
                free.insert(at);
            }
        }
        let read = host.iter().flat_map(|&h| self.makers(h)).map(|(maker, _)| maker);
        let mut moved: BTreeSet<OpPos> = read.filter(|at| free.contains(at)).collect();
        for (at, _) in self.ops.iter().rev() {
            if moved.contains(&at) {
                moved.extend(&before[at]);
            }
        }
        let others = |at: &OpPos| !host.contains(at) && !moved.contains(at);
        let ready = |&h: &OpPos| self.awaited(h).filter(others).max();
        let first = host.iter().filter_map(ready).min();
        let late = |at: &OpPos| moved.contains(at) && first.is_some_and(|first| *at > first);
        let mut out = Arena::with_capacity(self.ops.len());
        for at in rest() {
            if Some(at) == first {
                out.extend(moved.iter().copied().filter(late));
            }
            if !late(&at) {
                out.push(at);
            }
        }
        out
    }
}

/// A problem in which some ops run on the host.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The problem.
    pub problem: Problem,
    /// For every op on its device, the position in the problem that it was made of.
    pub positions: Arena<OpPos, OpPos>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_sequence::AccessSequence;
    use crate::decisions::Decisions;
    use crate::evaluate::evaluate;
    use crate::genotype::Genotype;
    use crate::place::Stream;
    use crate::timing::{Copies, Timing};

    /// Forward reads `w`, backward makes `g`, and two updates follow; the second reads what the step counts.
    const STEP: &str = r#"{"format": "memc-problem/1",
        "device": {"memory_bytes": 0, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9},
        "tensors": [{"id": 0, "name": "w", "bytes": 1024, "kind": "persistent"},
            {"id": 1, "name": "m", "bytes": 2048, "kind": "persistent"},
            {"id": 2, "name": "x", "bytes": 64, "kind": "input"},
            {"id": 3, "name": "y", "bytes": 64, "kind": "transient"},
            {"id": 4, "name": "g", "bytes": 1024, "kind": "transient"},
            {"id": 5, "name": "n", "bytes": 64, "kind": "persistent"}],
        "ops": [
            {"id": 0, "name": "forward", "time_ns": 5000, "reads": [0, 2], "writes": [3]},
            {"id": 1, "name": "backward", "time_ns": 5000, "reads": [0, 3], "writes": [4]},
            {"id": 2, "name": "count", "time_ns": 100, "reads": [5], "writes": [5]},
            {"id": 3, "name": "update", "time_ns": 3000, "reads": [0, 1, 4, 5], "writes": [0, 1],
             "host_time_ns": 20000}]}"#;

    fn on_host(p: &Problem) -> Problem {
        p.with_host_ops(&BTreeSet::from([OpPos(3)])).expect("the update can run on the host").problem
    }

    #[test]
    fn an_update_runs_on_the_host_with_its_states() {
        let p = crate::json::parse(STEP).unwrap();
        assert_eq!(p.host_candidates(), [OpPos(3)]);
        let placed = on_host(&p);
        let kinds: Vec<&str> = placed.tensors.values().map(|t| t.kind.name()).collect();
        assert_eq!(kinds, ["hosted", "hosted", "input", "transient", "transient", "persistent"]);
        // The count is made before the gradient, for which the update waits anyway.
        let names: Vec<&str> = placed.ops.values().map(|op| op.name.as_str()).collect();
        assert_eq!(names, ["forward", "count", "backward"]);
        assert_eq!(placed.ops[OpPos(1)].sends, [TensorId(5)]);
        assert_eq!(placed.ops[OpPos(2)].sends, [TensorId(4)]);
        let after = &placed.host_ops.values().next().unwrap().after;
        assert_eq!(after[..], [OpPos(0), OpPos(1), OpPos(2)]);
    }

    /// The step is as long as gradient, update and weight take one after another, with what the device does
    /// in between, by the fast timing as well; moments are never on the device.
    #[test]
    fn a_step_waits_for_the_host() {
        let p = on_host(&crate::json::parse(STEP).unwrap());
        let r = evaluate(&p, Decisions::keep_all(&p)).unwrap();
        let host: Vec<_> = r.trace.commands.values().filter(|c| c.stream == Stream::HostCompute).collect();
        assert_eq!(host.len(), 1);
        // w and x in, forward, count and backward, g out, update; n went out beside the backward op.
        assert_eq!(r.evaluation.step_ns, 1024 + 64 + 10_100 + 1024 + 20_000);
        let s = Genotype::keep_all(AccessSequence::of_order(&p, p.ops.ids()));
        let (copies, outs) = (Copies::new(&p, &s.sequence), s.copies_out(&p));
        assert_eq!(Timing::default().evaluate(&s, &copies, &outs), r.evaluation.step_ns);
        assert_eq!(r.evaluation.load_bytes, 1024 + 64 + 64 + 1024);
        assert_eq!((r.evaluation.swap_in_bytes, r.evaluation.swap_out_bytes), (1024, 1024 + 64));
    }

    #[test]
    fn an_op_that_cannot_move_says_why() {
        let p = crate::json::parse(STEP).unwrap();
        let why = |at| p.with_host_ops(&BTreeSet::from([OpPos(at)])).unwrap_err().1;
        assert_eq!(why(0), NotOnHost::NoTime);
        let late = STEP.replace(
            "\"host_time_ns\": 20000}",
            "\"host_time_ns\": 20000}, {\"id\": 4, \"name\": \"ema\", \"time_ns\": 1, \
             \"reads\": [0], \"writes\": [3]}",
        );
        let p = crate::json::parse(&late).unwrap();
        assert_eq!(p.can_run_on_host(OpPos(3)), Err(NotOnHost::Writes(TensorId(0))));
        assert!(p.host_candidates().is_empty());
    }
}
