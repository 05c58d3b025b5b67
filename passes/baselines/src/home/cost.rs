//! The time-cost model: the time of a step and the memory that it takes under a policy (Sec. 3.4, Algorithm
//! 2).

use memc_planner::{Kind, Scheme, Sequence, Step, Swap};

use super::maps::{Net, SWAP};

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
    trigger: u32,
    /// The step that needs it.
    need: u32,
    tensor: u32,
}

const NONE: u32 = u32::MAX;

/// Evaluates policies over one problem; keeps its buffers from one to the next.
pub(super) struct Model<'a> {
    net: &'a Net<'a>,
    capacity: u64,
    /// Bytes of the tensors that always stay.
    stays: u64,
    pub(super) steps: Vec<Step>,
    fetches: Vec<Fetch>,
    /// For every tensor, the step that touches it next, and whether that only writes it.
    next: Vec<(u32, bool)>,
    /// For every step, the end of its part of `dies`; the last step's part comes first.
    dead: Vec<u32>,
    /// Tensors that die, by step.
    dies: Vec<u32>,
    /// For every tensor that is copied: end of the copy to the host and of the one to the device, and the
    /// steps before which its bytes are given back and taken.
    out: Vec<u64>,
    /// For every tensor that is copied, the end of the copy to the device in ns.
    back: Vec<u64>,
    /// The step before which its bytes are given back.
    pub(super) drop_at: Vec<u32>,
    /// The step before which its bytes are taken.
    pub(super) back_at: Vec<u32>,
    /// Copies to the host in order of their ends: end in ns, tensor.
    queue: Vec<(u64, u32)>,
    /// Steps at which a stage of the backward propagation begins.
    marks: Vec<bool>,
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
            net.p.tensors.iter().filter(|t| t.persistent() && !t.touches.is_empty()).map(|t| t.bytes).sum();
        Model {
            net,
            capacity,
            stays,
            steps: Vec::new(),
            fetches: Vec::new(),
            next: vec![(NONE, false); n],
            dead: Vec::new(),
            dies: Vec::new(),
            out: vec![0; n],
            back: vec![0; n],
            drop_at: vec![0; n],
            back_at: vec![0; n],
            queue: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Algorithm 2.
    pub(super) fn evaluate(&mut self, policy: &[u8]) -> Cost {
        let net = self.net;
        if net.steps(policy, &mut self.steps).is_none() {
            return IMPOSSIBLE;
        }
        self.scan(policy);
        let p = net.p;
        let mut c = Clock { compute: 0, d2h: 0, h2d: 0, memory: self.stays, over: 0, head: 0 };
        self.queue.clear();
        self.out.fill(0);
        self.drop_at.fill(0);
        let (mut fetch, mut waiting) = (0, 0);
        for s in 0..self.steps.len() as u32 {
            let step = self.steps[s as usize];
            let op = &p.ops[step.op as usize];
            while self.queue.get(c.head).is_some_and(|q| q.0 <= c.compute) {
                self.finish(&mut c, s);
            }
            let (first, another) = net.needs[step.op as usize];
            let need = if step.again.is_none() { first } else { another };
            // Copies to the device, the first needed first; those that memory does not allow yet wait.
            while fetch < self.fetches.len() && self.fetches[fetch].trigger <= s {
                fetch += 1;
            }
            while waiting < fetch {
                let f = self.fetches[waiting];
                let bytes = p.tensors[f.tensor as usize].bytes;
                if f.need > s && c.memory + bytes + need > self.capacity {
                    break;
                }
                // A tensor that is still on its way out is waited for.
                while self.drop_at[f.tensor as usize] == NONE {
                    self.finish(&mut c, s);
                }
                let start = c.compute.max(c.h2d).max(self.out[f.tensor as usize]);
                c.h2d = start + p.device.h2d_ns(p.tensors[f.tensor as usize].size);
                self.back[f.tensor as usize] = c.h2d;
                self.back_at[f.tensor as usize] = s;
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
                c.compute = c.compute.max(self.back[f.tensor as usize]);
            }
            c.compute += op.time_ns;
            for &t in &net.results[step.op as usize] {
                if step.again.is_none_or(|wanted| wanted == t) && !p.tensors[t as usize].persistent() {
                    c.memory += p.tensors[t as usize].bytes;
                }
            }
            if step.again.is_none() {
                c.memory += net.given[step.op as usize];
            }
            self.leave(&mut c, s, policy);
        }
        Cost { over: c.over, ns: c.compute.max(c.d2h) }
    }

    /// After a step: frees the tensors that die, and begins copies to the host.
    fn leave(&mut self, c: &mut Clock, s: u32, policy: &[u8]) {
        let p = self.net.p;
        let step = self.steps[s as usize];
        let from = self.dead.get(s as usize + 1).map_or(0, |&d| d as usize);
        for &t in &self.dies[from..self.dead[s as usize] as usize] {
            c.memory -= p.tensors[t as usize].bytes;
        }
        if step.again.is_some() {
            return;
        }
        let op = &p.ops[step.op as usize];
        for &(_, bytes) in &op.outputs {
            c.d2h = c.d2h.max(c.compute) + p.device.d2h_ns(bytes);
        }
        // A copy begins with the content, beside the ops that read it; the bytes are free after the last of
        // them.
        let net = self.net;
        let touched = || op.reads.iter().chain(&net.results[step.op as usize]);
        let swapped = |t: u32| net.map_of[t as usize].filter(|&k| policy[k as usize] == SWAP);
        for &t in touched() {
            if swapped(t).is_some_and(|k| net.maps[k as usize].made == step.op) {
                c.d2h = c.d2h.max(c.compute) + p.device.d2h_ns(p.tensors[t as usize].size);
                self.out[t as usize] = c.d2h;
            }
        }
        for &t in touched() {
            if swapped(t).is_some_and(|k| net.maps[k as usize].leaves == step.op) {
                let end = self.out[t as usize];
                self.drop_at[t as usize] = NONE;
                let place = c.head + self.queue[c.head..].partition_point(|q| q.0 <= end);
                self.queue.insert(place, (end, t));
            }
        }
    }

    /// Waits for the first pending copy to the host, before a step.
    fn finish(&mut self, c: &mut Clock, s: u32) {
        let (end, t) = self.queue[c.head];
        c.head += 1;
        c.compute = c.compute.max(end);
        c.memory -= self.net.p.tensors[t as usize].bytes;
        self.drop_at[t as usize] = s;
    }

    /// From the last step to the first: the tensors that die with each, and the copies for each.
    fn scan(&mut self, policy: &[u8]) {
        let net = self.net;
        self.next.fill((NONE, false));
        self.dead.clear();
        self.dead.resize(self.steps.len(), 0);
        self.dies.clear();
        self.fetches.clear();
        self.marks.clear();
        self.marks.resize(self.steps.len(), false);
        let mut turn = 0;
        for s in (0..self.steps.len() as u32).rev() {
            let step = self.steps[s as usize];
            let op = &net.p.ops[step.op as usize];
            let first = step.again.is_none();
            if first && step.op >= net.turn {
                turn = s;
            }
            let results = net.results[step.op as usize].iter().filter(|&&t| first || step.again == Some(t));
            for (t, fresh) in op.reads.iter().map(|&t| (t, false)).chain(results.map(|&t| (t, true))) {
                let tensor = &net.p.tensors[t as usize];
                let (next, anew) = std::mem::replace(&mut self.next[t as usize], (s, fresh));
                if !tensor.persistent() && (next == NONE || anew) {
                    self.dies.push(t);
                }
                let leaves =
                    net.map_of[t as usize].filter(|&k| first && net.maps[k as usize].leaves == step.op);
                if let Some(k) = leaves {
                    self.marks[next as usize] = true;
                    if policy[k as usize] == SWAP {
                        self.fetches.push(Fetch { trigger: 0, need: next, tensor: t });
                    }
                }
            }
            self.dead[s as usize] = self.dies.len() as u32;
        }
        for (t, tensor) in net.p.tensors.iter().enumerate().filter(|(_, t)| t.kind == Kind::Input) {
            let (need, anew) = self.next[t];
            if need != NONE && !anew && !tensor.touches.is_empty() {
                self.fetches.push(Fetch { trigger: need.saturating_sub(1), need, tensor: t as u32 });
            }
        }
        // A copy back begins with the stage before the one that needs it, the first ones with the backward
        // propagation.
        let mut last = turn;
        let mut before = Vec::with_capacity(self.steps.len());
        for (s, &mark) in self.marks.iter().enumerate() {
            before.push(last.min(s as u32));
            if mark {
                last = s as u32;
            }
        }
        for f in &mut self.fetches {
            if net.map_of[f.tensor as usize].is_some() {
                f.trigger = before[f.need as usize];
            }
        }
        self.fetches.sort_unstable_by_key(|f| (f.need, f.tensor));
    }

    /// The scheme of the policy that was evaluated last.
    pub(super) fn scheme(&self, policy: &[u8]) -> Scheme {
        let p = self.net.p;
        let mut scheme = Scheme::keep_all(Sequence::new(p, self.steps.clone()));
        scheme.early = true;
        for f in &self.fetches {
            let (drop, back) =
                (self.drop_at[f.tensor as usize] as i32, self.back_at[f.tensor as usize] as i32);
            for g in scheme.sequence.gaps_of(f.tensor) {
                let gap = &scheme.sequence.gaps[g];
                if gap.to != f.need as i32 {
                    continue;
                }
                let swapped = self.net.map_of[f.tensor as usize].is_some_and(|k| policy[k as usize] == SWAP);
                if gap.arrives() {
                    scheme.swaps[g] = Some(Swap { drop: 0, back });
                } else if swapped {
                    scheme.swaps[g] = Some(Swap { drop, back });
                }
            }
        }
        scheme
    }
}
