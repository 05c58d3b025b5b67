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

/// A sequence of steps and what follows from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The gaps, by tensor and then by time; a persistent tensor's last one wraps around.
    pub gaps: Vec<Gap>,
    /// The first gap of every tensor; one more entry at the end.
    pub first: Vec<u32>,
    /// Bytes that every step needs at least: its tensors, workspace, and unwanted results.
    pub needs: Vec<u64>,
    /// Times of the steps in ns.
    pub ns: Vec<u64>,
    /// For every step, time of the copies of its results to the host in ns.
    pub output_ns: Vec<u64>,
}

/// Positions at which a tensor is touched, and whether its content appears there anew.
type Touch = (u32, bool, bool);

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
        let mut touches: Vec<Vec<Touch>> = vec![Vec::new(); p.tensors.len()];
        let (mut needs, mut ns, mut output_ns) =
            (Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n));
        for (i, step) in steps.iter().enumerate() {
            let op = &p.ops[step.op as usize];
            let mut bytes = op.workspace;
            for &t in &op.reads {
                touches[t as usize].push((i as u32, false, op.writes.contains(&t)));
                bytes += p.tensors[t as usize].bytes;
            }
            for &t in op.writes.iter().filter(|t| !op.reads.contains(t)) {
                bytes += p.tensors[t as usize].bytes;
                if step.again.is_none_or(|wanted| wanted == t) {
                    touches[t as usize].push((i as u32, true, true));
                }
            }
            needs.push(bytes);
            ns.push(op.time_ns);
            let outputs = op.outputs.iter().map(|&(_, bytes)| p.device.d2h_ns(bytes)).sum();
            output_ns.push(if step.again.is_some() { 0 } else { outputs });
        }
        let (mut gaps, mut first) = (Vec::new(), Vec::with_capacity(touches.len() + 1));
        for (t, list) in touches.iter().enumerate() {
            first.push(gaps.len() as u32);
            let tensor = &p.tensors[t];
            let gap = |from: i32, to: i32, dirty, dead| Gap {
                tensor: t as u32,
                bytes: tensor.bytes,
                from,
                to,
                dirty,
                dead,
            };
            if tensor.kind == Kind::Input
                && let Some(&(at, false, _)) = list.first()
            {
                gaps.push(gap(-1, at as i32, false, false));
            }
            for pair in list.windows(2) {
                let ((a, _, wrote), (b, fresh, _)) = (pair[0], pair[1]);
                // A content that appears anew ends no gap, unless the tensor persists and stays where it is.
                if !fresh || tensor.persistent() {
                    gaps.push(gap(a as i32, b as i32, wrote, fresh));
                }
            }
            if tensor.persistent()
                && let (Some(a), Some(b)) = (list.last(), list.first())
            {
                gaps.push(gap(a.0 as i32, b.0 as i32 + n as i32, a.2, b.1));
            }
        }
        first.push(gaps.len() as u32);
        Sequence { steps, gaps, first, needs, ns, output_ns }
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
