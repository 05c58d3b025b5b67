//! The time-cost model: the time of a step and the memory that it takes under a policy (Sec. 3.4, Algorithm
//! 2).

use memc_ir::{Arena, Id};
use memc_planner::{AccessSequence, Genotype, Problem, Step, StepPos, Swap, TensorId};

use super::maps::{Net, RECOMPUTE, SWAP};

/// Cost of a policy, ordered by missing memory first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cost {
    /// Largest excess over memory in bytes.
    pub(super) over: u64,
    /// Time of the step in ns.
    pub(super) ns: u64,
}

/// No step under that policy.
pub(super) const IMPOSSIBLE: Cost = Cost { over: u64::MAX, ns: u64::MAX };

/// A tensor that is copied to the device.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// The step before which the copy may begin.
    trigger: StepPos,
    /// The step that needs it.
    need: StepPos,
    tensor: TensorId,
}

/// No step.
const NONE: StepPos = StepPos(u32::MAX);

/// Evaluates policies over one problem; keeps its buffers from one to the next.
pub(super) struct Model<'a> {
    net: &'a Net<'a>,
    capacity: u64,
    /// Bytes of the tensors that always stay.
    stays: u64,
    pub(super) steps: Arena<StepPos, Step>,
    /// By map, whether the steps recompute it.
    recomputed: Vec<bool>,
    /// Whether there are such steps.
    has_steps: bool,
    /// Copies to the device that the steps have if every map that is not recomputed is swapped.
    possible: Vec<Fetch>,
    /// Those under the policy.
    fetches: Vec<Fetch>,
    /// For every tensor, the step that touches it next, and whether that only writes it.
    next: Arena<TensorId, (StepPos, bool)>,
    /// For every step, the end of its part of `dies`; the last step's part comes first.
    dead: Arena<StepPos, usize>,
    /// Tensors that die, by step.
    dies: Vec<TensorId>,
    /// For every tensor that is copied: end of the copy to the host and of the one to the device, and the
    /// steps before which its bytes are given back and taken.
    out: Arena<TensorId, u64>,
    /// For every tensor that is copied, the end of the copy to the device in ns.
    back: Arena<TensorId, u64>,
    /// The step before which its bytes are given back.
    pub(super) drop_at: Arena<TensorId, StepPos>,
    /// The step before which its bytes are taken.
    pub(super) back_at: Arena<TensorId, StepPos>,
    /// Copies to the host in order of their ends: end in ns, tensor.
    queue: Vec<(u64, TensorId)>,
    /// Steps at which a stage of the backward propagation begins.
    marks: Arena<StepPos, bool>,
}

/// State of the streams and of memory.
struct Clock {
    compute: u64,
    d2h: u64,
    h2d: u64,
    memory: u64,
    over: u64,
    head: usize,
}

impl<'a> Model<'a> {
    /// For policies over the feature maps of a problem.
    pub(super) fn new(net: &'a Net<'a>, capacity: u64) -> Model<'a> {
        let n = net.p.tensors.len();
        let stays =
            net.p.tensors.values().filter(|t| t.persistent() && !t.touches.is_empty()).map(|t| t.bytes).sum();
        Model {
            net,
            capacity,
            stays,
            steps: Arena::default(),
            recomputed: Vec::new(),
            has_steps: false,
            possible: Vec::new(),
            fetches: Vec::new(),
            next: Arena::filled((NONE, false), n),
            dead: Arena::default(),
            dies: Vec::new(),
            out: Arena::filled(0, n),
            back: Arena::filled(0, n),
            drop_at: Arena::filled(StepPos(0), n),
            back_at: Arena::filled(StepPos(0), n),
            queue: Vec::new(),
            marks: Arena::default(),
        }
    }

    /// The problem.
    pub(super) fn problem(&self) -> &'a Problem {
        self.net.p
    }

    /// Algorithm 2.
    pub(super) fn evaluate(&mut self, policy: &[u8]) -> Cost {
        let net = self.net;
        if !self.prepare(policy) {
            return IMPOSSIBLE;
        }
        let p = net.p;
        let mut c = Clock { compute: 0, d2h: 0, h2d: 0, memory: self.stays, over: 0, head: 0 };
        self.queue.clear();
        self.out.fill(0);
        self.drop_at.fill(StepPos(0));
        let (mut fetch, mut waiting) = (0, 0);
        for s in self.steps.ids() {
            let step = self.steps[s];
            let op = &p.ops[step.op];
            while self.queue.get(c.head).is_some_and(|q| q.0 <= c.compute) {
                self.finish(&mut c, s);
            }
            let (first, another) = net.needs[step.op];
            let need = if step.recompute.is_none() { first } else { another };
            // Copies to the device, the first needed first; those that memory does not allow yet wait.
            while fetch < self.fetches.len() && self.fetches[fetch].trigger <= s {
                fetch += 1;
            }
            while waiting < fetch {
                let f = self.fetches[waiting];
                let bytes = p.tensors[f.tensor].bytes;
                if f.need > s && c.memory + bytes + need > self.capacity {
                    break;
                }
                // A tensor that is still on its way out is waited for.
                while self.drop_at[f.tensor] == NONE {
                    self.finish(&mut c, s);
                }
                let start = c.compute.max(c.h2d).max(self.out[f.tensor]);
                c.h2d = start + p.device.h2d_ns(p.tensors[f.tensor].size);
                self.back[f.tensor] = c.h2d;
                self.back_at[f.tensor] = s;
                c.memory += bytes;
                waiting += 1;
            }
            // Lines 3 to 9: where memory does not suffice, the first copy to the host is waited for.
            while c.memory + need > self.capacity && c.head < self.queue.len() {
                self.finish(&mut c, s);
            }
            c.over = c.over.max((c.memory + need).saturating_sub(self.capacity));
            for f in self.fetches[..waiting].iter().rev().take_while(|f| f.need >= s).filter(|f| f.need == s)
            {
                c.compute = c.compute.max(self.back[f.tensor]);
            }
            c.compute += op.time_ns;
            for &t in &net.results[step.op] {
                if step.recompute.is_none_or(|wanted| wanted == t) && !p.tensors[t].persistent() {
                    c.memory += p.tensors[t].bytes;
                }
            }
            if step.recompute.is_none() {
                c.memory += net.given[step.op];
            }
            self.leave(&mut c, s, policy);
        }
        Cost { over: c.over, ns: c.compute.max(c.d2h) }
    }

    /// After a step: frees the tensors that die, and begins copies to the host.
    fn leave(&mut self, c: &mut Clock, s: StepPos, policy: &[u8]) {
        let p = self.net.p;
        let step = self.steps[s];
        let from = self.dead.get(s.next()).copied().unwrap_or(0);
        for &t in &self.dies[from..self.dead[s]] {
            c.memory -= p.tensors[t].bytes;
        }
        if step.recompute.is_some() {
            return;
        }
        let op = &p.ops[step.op];
        for (_, bytes) in op.copies(&p.tensors) {
            c.d2h = c.d2h.max(c.compute) + p.device.d2h_ns(bytes);
        }
        // A copy begins with the content, beside the ops that read it; the bytes are free after the last of
        // them.
        let net = self.net;
        let touched = || op.reads.iter().chain(&net.results[step.op]);
        let swapped = |t: TensorId| net.map_of[t].filter(|&k| policy[k.index()] == SWAP);
        for &t in touched() {
            if swapped(t).is_some_and(|k| net.maps[k].made == step.op) {
                c.d2h = c.d2h.max(c.compute) + p.device.d2h_ns(p.tensors[t].size);
                self.out[t] = c.d2h;
            }
        }
        for &t in touched() {
            if swapped(t).is_some_and(|k| net.maps[k].leaves == step.op) {
                let end = self.out[t];
                self.drop_at[t] = NONE;
                let place = c.head + self.queue[c.head..].partition_point(|q| q.0 <= end);
                self.queue.insert(place, (end, t));
            }
        }
    }

    /// Waits for the first pending copy to the host, before a step.
    fn finish(&mut self, c: &mut Clock, s: StepPos) {
        let (end, t) = self.queue[c.head];
        c.head += 1;
        c.compute = c.compute.max(end);
        c.memory -= self.net.p.tensors[t].bytes;
        self.drop_at[t] = s;
    }

    /// The steps of a policy and its copies to the device; false if there are none. Steps depend only on
    /// which maps are recomputed.
    fn prepare(&mut self, policy: &[u8]) -> bool {
        let net = self.net;
        let same = self.recomputed.len() == policy.len() && !self.steps.is_empty();
        let wanted = || policy.iter().map(|&action| action == RECOMPUTE);
        if !same || self.recomputed.iter().copied().ne(wanted()) {
            self.recomputed.clear();
            self.recomputed.extend(wanted());
            self.has_steps = net.steps(policy, &mut self.steps).is_some();
            if self.has_steps {
                self.scan();
            }
        }
        let swapped = |f: &&Fetch| net.map_of[f.tensor].is_none_or(|k| policy[k.index()] == SWAP);
        self.fetches.clear();
        self.fetches.extend(self.possible.iter().filter(swapped));
        self.has_steps
    }

    /// From the last step to the first: the tensors that die with each, and the copies for each.
    fn scan(&mut self) {
        let net = self.net;
        self.next.fill((NONE, false));
        self.dead.clear();
        self.dead.resize(self.steps.len(), 0);
        self.dies.clear();
        self.possible.clear();
        self.marks.clear();
        self.marks.resize(self.steps.len(), false);
        let mut turn = StepPos(0);
        for s in self.steps.ids().rev() {
            let step = self.steps[s];
            let op = &net.p.ops[step.op];
            let first = step.recompute.is_none();
            if first && step.op >= net.turn {
                turn = s;
            }
            let results = net.results[step.op].iter().filter(|&&t| first || step.recompute == Some(t));
            for (t, fresh) in op.reads.iter().map(|&t| (t, false)).chain(results.map(|&t| (t, true))) {
                let tensor = &net.p.tensors[t];
                let (next, anew) = std::mem::replace(&mut self.next[t], (s, fresh));
                if !tensor.persistent() && (next == NONE || anew) {
                    self.dies.push(t);
                }
                let leaves = net.map_of[t].filter(|&k| first && net.maps[k].leaves == step.op);
                if let Some(k) = leaves {
                    self.marks[next] = true;
                    if !self.recomputed[k.index()] {
                        self.possible.push(Fetch { trigger: StepPos(0), need: next, tensor: t });
                    }
                }
            }
            self.dead[s] = self.dies.len();
        }
        for (t, tensor) in net.p.tensors.iter().filter(|(_, t)| t.kind.arrives()) {
            let (need, anew) = self.next[t];
            if need != NONE && !anew && !tensor.touches.is_empty() {
                self.possible.push(Fetch { trigger: need.previous().unwrap_or_default(), need, tensor: t });
            }
        }
        // A copy back begins with the stage before the one that needs it, the first ones with the backward
        // propagation.
        let mut last = turn;
        let mut before: Arena<StepPos, StepPos> = Arena::with_capacity(self.steps.len());
        for (s, &mark) in self.marks.iter() {
            before.push(last.min(s));
            if mark {
                last = s;
            }
        }
        for f in &mut self.possible {
            if net.map_of[f.tensor].is_some() {
                f.trigger = before[f.need];
            }
        }
        self.possible.sort_unstable_by_key(|f| (f.need, f.tensor));
    }

    /// The genotype of the policy that was evaluated last.
    pub(super) fn genotype(&self, policy: &[u8]) -> Genotype {
        let p = self.net.p;
        let mut genotype = Genotype::keep_all(AccessSequence::new(p, self.steps.values().copied().collect()));
        genotype.early = true;
        for f in &self.fetches {
            let (drop, back) = (self.drop_at[f.tensor].position(), self.back_at[f.tensor].position());
            for g in genotype.sequence.gaps_of(f.tensor) {
                let gap = &genotype.sequence.gaps[g];
                if gap.to != f.need.position() {
                    continue;
                }
                let swapped = self.net.map_of[f.tensor].is_some_and(|k| policy[k.index()] == SWAP);
                if gap.arrives() {
                    genotype.swaps[g] = Some(Swap { drop: 0, back });
                } else if swapped {
                    genotype.swaps[g] = Some(Swap { drop, back });
                }
            }
        }
        genotype
    }
}
