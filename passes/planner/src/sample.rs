//! Small problems, most of them random, for tests of planners and bounds.

use memc_ir::{Arena, Id};

use crate::ids::{OpPos, TensorId};
use crate::planner::Allow;
use crate::problem::{ALIGN, Device, Op, Problem, SLOWDOWN_UNIT, Tensor, TensorKind};

/// Where random numbers come from: a number below a limit, which is at least 1.
pub trait Draw {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64;
}

/// SplitMix64 (Steele, Lea and Flood, 2014), for tests that name a seed.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl Draw for Seed {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// A problem and a budget.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The problem.
    pub problem: Problem,
    /// Bytes of the device arena: at least the largest working set.
    pub capacity: u64,
}

/// Permissions, in all ways that differ for a bound.
pub const ALLOWED: [Allow; 3] =
    [Allow { recompute: false, ..Allow::ALL }, Allow { swap: false, ..Allow::ALL }, Allow::ALL];

/// A problem of 2 to `most` ops, shaped as training steps are: a forward chain with branches, what it keeps
/// read again in reverse order, states updated in place. `None` where the draws make no valid problem.
pub fn sample(draw: &mut impl Draw, most: usize) -> Option<Sample> {
    let unit = 16 * ALIGN;
    let n = 2 + draw.below(most.saturating_sub(1) as u64) as usize;
    let rate = |draw: &mut dyn FnMut(u64) -> u64| [0, 1, 2, 4, 8][draw(5) as usize] * unit * 100_000;
    let mut of = |limit| draw.below(limit);
    let (h2d, d2h) = (rate(&mut of), rate(&mut of));
    let duplex = [0, h2d.max(d2h), (h2d + d2h) * 3 / 4][of(3) as usize];
    let device = Device {
        memory_bytes: 0,
        h2d_bytes_per_s: h2d,
        d2h_bytes_per_s: d2h,
        duplex_bytes_per_s: duplex,
        copy_latency_ns: [0, 0, 500][of(3) as usize],
    };
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |kind: TensorKind, size: u64| {
        let name = format!("t{}", tensors.len());
        tensors.push(Tensor { name, bytes: 0, size, kind, touches: Vec::new(), writes: Vec::new() });
        TensorId::new(tensors.len() - 1)
    };
    let mut ops: Vec<Op> = Vec::new();
    let mut live: Vec<TensorId> = Vec::new();
    let mut states: Vec<TensorId> = Vec::new();
    for i in 0..n {
        let time_ns = (1 + of(8)) * 1000;
        let mut op =
            Op { name: format!("o{i}"), label: format!("o{i}"), time_ns, repeatable: true, ..Op::default() };
        if let Some(&last) = live.last() {
            op.reads.push(last);
        }
        match of(4) {
            0 => {
                let t = add(TensorKind::Persistent, (1 + of(3)) * unit);
                states.push(t);
                op.reads.push(t);
            }
            1 if i == 0 => op.reads.push(add(TensorKind::Input, (1 + of(3)) * unit)),
            2 if !states.is_empty() => op.reads.push(states[of(states.len() as u64) as usize]),
            _ => {}
        }
        // The backward half reads what the forward half left.
        if 2 * i >= n && live.len() > 1 {
            let kept = live.remove(live.len() - 2);
            op.reads.push(kept);
        }
        op.reads.sort_unstable();
        op.reads.dedup();
        let written = op.reads.iter().copied().find(|t| states.contains(t)).filter(|_| of(3) == 0);
        match written {
            Some(t) => {
                op.writes.push(t);
                op.repeatable = false;
            }
            None if op.reads.first() == live.last() && op.reads.len() == 1 && of(5) == 0 => {
                op.writes.push(op.reads[0]);
                op.repeatable = false;
            }
            None => {}
        }
        if written.is_none() && op.writes.is_empty() || of(2) == 0 {
            let t = add(TensorKind::Transient, (1 + of(4)) * unit);
            op.writes.push(t);
            live.push(t);
            if of(6) == 0 {
                op.writes.push(add(TensorKind::Transient, unit));
            }
        }
        if of(6) == 0 {
            op.workspace = unit;
        }
        if of(10) == 0 && !op.writes.is_empty() {
            op.outputs.push((op.writes[0], ALIGN));
        }
        ops.push(op);
    }
    budgeted(Problem::new("sample", device, tensors, ops).ok()?, unit, draw)
}

/// Any problem of 2 to `most` ops that is one: ops that read and write what they please, tensors that are
/// overwritten unread, inputs that are written, results handed out by ops that only read them, no time, no
/// bytes, no link.
pub fn any(draw: &mut impl Draw, most: usize) -> Option<Sample> {
    const RATES: [u64; 5] = [0, 1000, 1_000_000_000, 1_000_000_000, 16_000_000_000];
    let mut of = |limit: usize| draw.below(limit as u64) as usize;
    let device = Device {
        memory_bytes: 0,
        h2d_bytes_per_s: RATES[of(RATES.len())],
        d2h_bytes_per_s: RATES[of(RATES.len())],
        duplex_bytes_per_s: [0, 1, 1_500_000_000][of(3)],
        copy_latency_ns: [0, 1000][of(2)],
    };
    let kinds = [
        TensorKind::Transient,
        TensorKind::Transient,
        TensorKind::Transient,
        TensorKind::Persistent,
        TensorKind::Input,
    ];
    let tensor = |i: usize, kind, size| Tensor {
        name: format!("t{i}"),
        bytes: 0,
        size,
        kind,
        touches: Vec::new(),
        writes: Vec::new(),
    };
    let tensors: Arena<TensorId, Tensor> = (0..1 + of(12))
        .map(|i| tensor(i, kinds[of(kinds.len())], [0, 64, 4096, 5000, 8192, 1 << 20][of(6)]))
        .collect();
    // The tensors with a content, and those that have yet to appear.
    let (mut known, mut new): (Vec<TensorId>, Vec<TensorId>) =
        tensors.ids().partition(|&t| tensors[t].kind != TensorKind::Transient);
    let mut ops: Vec<Op> = Vec::new();
    for i in 0..2 + of(most.saturating_sub(1)) {
        let mut op = Op {
            name: format!("o{i}"),
            label: format!("{}{i}", ["conv", "matmul", "relu"][of(3)]),
            time_ns: [0, 1, 1000, 5000, 100_000][of(5)],
            workspace: [0, 0, 0, 100, 4096][of(5)],
            ..Op::default()
        };
        op.slowdown = if op.time_ns == 5000 { SLOWDOWN_UNIT / 4 } else { 0 };
        for _ in 0..of(4) {
            op.reads.extend((!known.is_empty()).then(|| known[of(known.len())]));
        }
        // A tensor that nothing has written appears where it is read.
        let appears = !new.is_empty() && of(8) == 0;
        let fresh = (!new.is_empty() && of(5) > 0).then(|| new.swap_remove(0));
        match fresh {
            Some(t) if appears => op.reads.push(t),
            fresh => op.writes.extend(fresh),
        }
        if !known.is_empty() && of(3) == 0 {
            op.writes.push(known[of(known.len())]);
        }
        known.extend(fresh);
        op.repeatable = of(8) > if op.updates() { 5 } else { 0 };
        if i > 0 && of(10) == 0 {
            op.after.push(OpPos::new(of(i)));
        }
        let touched: Vec<TensorId> = op.reads.iter().chain(&op.writes).copied().collect();
        if !touched.is_empty() && of(8) == 0 {
            op.outputs.push((touched[of(touched.len())], [4, 5000, 100_000][of(3)]));
        }
        ops.push(op);
    }
    budgeted(Problem::new("any", device, tensors.into_values().collect(), ops).ok()?, ALIGN, draw)
}

/// A budget between the largest working set and what the unplanned step takes, in units.
fn budgeted(problem: Problem, unit: u64, draw: &mut impl Draw) -> Option<Sample> {
    let least = problem.largest_working_set().1;
    let kept = crate::evaluate(&problem, crate::Decisions::keep_all(&problem)).ok()?.evaluation.load_bytes;
    let room = kept.saturating_sub(least) / unit;
    let capacity = least + draw.below(room + 1) * unit;
    Some(Sample { problem, capacity })
}

/// Link of 1 byte per ns in each direction.
pub fn device() -> Device {
    let rate = 1_000_000_000;
    Device { memory_bytes: 1 << 40, h2d_bytes_per_s: rate, d2h_bytes_per_s: rate, ..Device::default() }
}

/// A tensor of so many bytes.
pub fn tensor(name: &str, kind: TensorKind, size: u64) -> Tensor {
    Tensor { name: name.to_string(), bytes: 0, size, kind, touches: Vec::new(), writes: Vec::new() }
}

/// An op that may be recomputed unless it updates in place; tensors are given by number.
pub fn op(name: &str, time_ns: u64, reads: &[u32], writes: &[u32]) -> Op {
    Op {
        name: name.to_string(),
        label: name.to_string(),
        time_ns,
        reads: reads.iter().copied().map(TensorId).collect(),
        writes: writes.iter().copied().map(TensorId).collect(),
        repeatable: !writes.iter().any(|t| reads.contains(t)),
        ..Op::default()
    }
}

/// `n` layers of one activation of `bytes` each, forward and backward: activation `i` is tensor `i`, made
/// from `i - 1`, the backward pass reads them in reverse; gradients are tensors `n + i` of 256 bytes.
pub fn chain(n: u32, bytes: u64, forward_ns: u64, backward_ns: u64) -> Problem {
    let mut tensors: Vec<Tensor> =
        (0..n).map(|i| tensor(&format!("a{i}"), TensorKind::Transient, bytes)).collect();
    tensors.extend((0..n).map(|i| tensor(&format!("g{i}"), TensorKind::Transient, 256)));
    let mut ops = Vec::new();
    for i in 0..n {
        let reads: Vec<u32> = i.checked_sub(1).into_iter().collect();
        ops.push(op(&format!("forward{i}"), forward_ns, &reads, &[i]));
    }
    for i in (0..n).rev() {
        let mut reads = vec![i];
        reads.extend((i + 1 < n).then_some(n + i + 1));
        ops.push(op(&format!("backward{i}"), backward_ns, &reads, &[n + i]));
    }
    Problem::new("chain", device(), tensors, ops).expect("invariant: a chain is well-formed")
}
