//! Input and output of the swap planner: a problem with its sizes and precedence, and a swap plan.

use memc_planner::Problem;

use super::pool::Sizes;
use crate::random::Precedence;

/// No block, no position.
pub(super) const NONE: u32 = u32::MAX;

/// A problem as the swap planner reads it.
pub(super) struct Graph<'a> {
    pub(super) p: &'a Problem,
    pub(super) sizes: Sizes,
    pub(super) precedence: Precedence,
    /// For every op, its tensors; whether it reads, and whether it writes them.
    pub(super) operands: Vec<Vec<(u32, bool, bool)>>,
    /// For every op, its first request: one for each operand, and one for scratch space.
    pub(super) requests: Vec<u32>,
    /// For every tensor, its first touch in a list of all touches; one more entry at the end.
    pub(super) touches: Vec<u32>,
    pub(super) swap: bool,
    pub(super) capacity: u64,
}

/// An action on a tensor between ops.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Act {
    /// A copy to the host.
    Out,
    /// Its block is free.
    Drop,
    /// A copy to the device, into a block.
    In(u32),
}

/// A swap plan for a schedule.
#[derive(Clone, Default, Debug)]
pub(super) struct Moves {
    /// For every persistent tensor, the block in which a step finds it; [`NONE`]: in host memory.
    pub(super) home: Vec<u32>,
    /// Actions before positions of the schedule, in the order of the streams: position, act, tensor.
    pub(super) acts: Vec<(u32, Act, u32)>,
    /// Blocks of the tensors that ops allocate: position, tensor, block.
    pub(super) at: Vec<(u32, u32, u32)>,
    /// Block of every position's scratch space.
    pub(super) scratch: Vec<u32>,
}

impl Moves {
    /// In the order of the streams: at every position copies to the host, then releases, then copies to the
    /// device.
    pub(super) fn sorted(mut self) -> Moves {
        self.acts.sort_by_key(|&(at, act, _)| (at, matches!(act, Act::In(_)), act == Act::Drop));
        self
    }
}

impl<'a> Graph<'a> {
    /// Of a problem; `swap`: whether tensors may leave the device.
    pub(super) fn new(p: &'a Problem, capacity: u64, swap: bool) -> Graph<'a> {
        let operand = |i: usize| {
            let op = &p.ops[i];
            p.working_set(i).into_iter().map(|t| (t, op.reads.contains(&t), op.writes.contains(&t))).collect()
        };
        let operands: Vec<Vec<(u32, bool, bool)>> = (0..p.ops.len()).map(operand).collect();
        let sum = |lengths: &mut dyn Iterator<Item = usize>| {
            let mut total = 0;
            let starts = lengths.map(|n| {
                total += n as u32;
                total - n as u32
            });
            starts.collect::<Vec<u32>>()
        };
        let requests = sum(&mut operands.iter().map(|o| o.len() + 1));
        let touches = sum(&mut p.tensors.iter().map(|t| t.touches.len()).chain([0]));
        let (sizes, precedence) = (Sizes::new(p), Precedence::new(p));
        Graph { p, sizes, precedence, operands, requests, touches, swap, capacity }
    }
}
