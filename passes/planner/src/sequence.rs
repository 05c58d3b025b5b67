//! A sequence of runs, and the gaps between the touches of every tensor in it: what there is to decide about copies.

use crate::problem::{Kind, Problem};

/// One run of an op.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Step {
    /// The op's position in the problem.
    pub op: u32,
    /// The tensor that is computed again; `None` when the op runs for the first time.
    pub again: Option<u32>,
}

/// The time between two touches of a tensor, in which it may leave the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The tensor.
    pub tensor: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Index of the step after which the gap begins; -1 when it begins with the step.
    pub from: i32,
    /// Index of the step before which it ends; counted on past the end when that is in the next step.
    pub to: i32,
    /// Whether the touch at the gap's beginning gave the tensor a new content.
    pub dirty: bool,
    /// Whether the touch at the gap's end overwrites the content without reading it.
    pub dead: bool,
}

impl Gap {
    /// Whether the tensor starts the gap in host memory, so that it cannot stay.
    pub fn arrives(&self) -> bool {
        self.from < 0
    }
    /// Whether the gap reaches into the next step.
    pub fn wraps(&self, steps: usize) -> bool {
        self.to >= steps as i32
    }
    /// Whether there is any step between the touches.
    pub fn open(&self) -> bool {
        self.to > self.from + 1
    }
}

/// A step that touches a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Touch {
    /// Index of the step.
    pub step: u32,
    /// Whether it needs no earlier content: the tensor appears there.
    pub fresh: bool,
    /// Whether it gives the tensor a new content.
    pub wrote: bool,
}

/// A sequence of steps and what follows from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The gaps, by tensor and then by time; a persistent tensor's last one wraps around.
    pub gaps: Vec<Gap>,
    /// The first gap of every tensor; one more entry at the end.
    pub first: Vec<u32>,
    /// The touches, by tensor and then by time.
    pub touches: Vec<Touch>,
    /// The first touch of every tensor; one more entry at the end.
    pub first_touch: Vec<u32>,
    /// Bytes that every step needs at least: its tensors, workspace, and unwanted results.
    pub needs: Vec<u64>,
    /// Times of the steps in ns.
    pub ns: Vec<u64>,
    /// For every step, time of the copies of its results to the host in ns.
    pub output_ns: Vec<u64>,
}

impl Sequence {
    /// The ops of a problem in the given order, each once.
    pub fn of_order(p: &Problem, order: impl Iterator<Item = u32>) -> Sequence {
        Sequence::new(p, order.map(|op| Step { op, again: None }).collect())
    }

    /// A sequence from its steps.
    ///
    /// A step that runs again touches its operands and the tensor it is run for; what else it writes is scratch.
    pub fn new(p: &Problem, steps: Vec<Step>) -> Sequence {
        let n = steps.len();
        let (mut needs, mut ns, mut output_ns) =
            (Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n));
        for step in &steps {
            let op = &p.ops[step.op as usize];
            let bytes = |t: &u32| p.tensors[*t as usize].bytes;
            let fresh = op.writes.iter().filter(|t| !op.reads.contains(t));
            needs.push(op.workspace + op.reads.iter().chain(fresh).map(bytes).sum::<u64>());
            ns.push(op.time_ns);
            let outputs = op.outputs.iter().map(|&(_, bytes)| p.device.d2h_ns(bytes)).sum();
            output_ns.push(if step.again.is_some() { 0 } else { outputs });
        }
        let (touches, first_touch) = touches(p, &steps);
        let (mut gaps, mut first) =
            (Vec::with_capacity(touches.len()), Vec::with_capacity(first_touch.len()));
        for (t, tensor) in p.tensors.iter().enumerate() {
            first.push(gaps.len() as u32);
            let list = &touches[first_touch[t] as usize..first_touch[t + 1] as usize];
            let gap = |from: i32, to: i32, dirty, dead| Gap {
                tensor: t as u32,
                bytes: tensor.bytes,
                from,
                to,
                dirty,
                dead,
            };
            if tensor.kind == Kind::Input
                && let Some(&Touch { step, fresh: false, .. }) = list.first()
            {
                gaps.push(gap(-1, step as i32, false, false));
            }
            for pair in list.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                // A content that appears anew ends no gap, unless the tensor persists and stays where it is.
                if !b.fresh || tensor.persistent() {
                    gaps.push(gap(a.step as i32, b.step as i32, a.wrote, b.fresh));
                }
            }
            if tensor.persistent()
                && let (Some(a), Some(b)) = (list.last(), list.first())
            {
                gaps.push(gap(a.step as i32, b.step as i32 + n as i32, a.wrote, b.fresh));
            }
        }
        first.push(gaps.len() as u32);
        Sequence { steps, gaps, first, touches, first_touch, needs, ns, output_ns }
    }

    /// A tensor's touches.
    pub fn touches_of(&self, t: u32) -> &[Touch] {
        &self.touches[self.first_touch[t as usize] as usize..self.first_touch[t as usize + 1] as usize]
    }

    /// Indices of a tensor's gaps.
    pub fn gaps_of(&self, t: u32) -> std::ops::Range<usize> {
        self.first[t as usize] as usize..self.first[t as usize + 1] as usize
    }

    /// Sum of the steps' times in ns.
    pub fn compute_ns(&self) -> u64 {
        self.ns.iter().sum()
    }
}

/// Calls `f` for every touch, in the order of the steps.
fn each_touch(p: &Problem, steps: &[Step], mut f: impl FnMut(u32, Touch)) {
    for (i, step) in steps.iter().enumerate() {
        let (op, step, again) = (&p.ops[step.op as usize], i as u32, step.again);
        for &t in &op.reads {
            f(t, Touch { step, fresh: false, wrote: op.writes.contains(&t) });
        }
        for &t in op.writes.iter().filter(|t| !op.reads.contains(t)) {
            if again.is_none_or(|wanted| wanted == t) {
                f(t, Touch { step, fresh: true, wrote: true });
            }
        }
    }
}

/// All touches by tensor, and the first of each.
fn touches(p: &Problem, steps: &[Step]) -> (Vec<Touch>, Vec<u32>) {
    let mut first = vec![0u32; p.tensors.len() + 1];
    each_touch(p, steps, |t, _| first[t as usize + 1] += 1);
    for t in 0..p.tensors.len() {
        first[t + 1] += first[t];
    }
    let mut next = first.clone();
    let mut out = vec![Touch::default(); first.last().map_or(0, |&n| n as usize)];
    each_touch(p, steps, |t, touch| {
        let at = &mut next[t as usize];
        out[*at as usize] = touch;
        *at += 1;
    });
    (out, first)
}
