//! Input and output of the swap planner: a problem with its sizes and precedence, and a swap plan.

use memc_ir::{Arena, ids};
use memc_planner::{OpPos, Problem, StepPos, TensorId};

use super::pool::Sizes;
use crate::random::Precedence;

ids! {
    /// A block: an object of the pool.
    pub(super) BlockIx,
}

/// No block.
pub(super) const NONE: BlockIx = BlockIx(u32::MAX);

/// An operand of an op: the tensor, whether it is read, and whether it is written.
pub(super) type Operand = (TensorId, bool, bool);

/// A problem as the swap planner reads it.
pub(super) struct Graph<'a> {
    pub(super) p: &'a Problem,
    pub(super) sizes: Sizes,
    pub(super) precedence: Precedence,
    /// For every op, its tensors; whether it reads, and whether it writes them.
    pub(super) operands: Arena<OpPos, Vec<Operand>>,
    /// For every op, its first request: one for each operand, and one for scratch space.
    pub(super) requests: Arena<OpPos, usize>,
    /// For every tensor, its first touch in a list of all touches; one more entry at the end.
    pub(super) touches: Arena<TensorId, usize>,
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
    In(BlockIx),
}

/// A swap plan for a schedule.
#[derive(Clone, Default, Debug)]
pub(super) struct Moves {
    /// For every persistent tensor, the block in which a step finds it; [`NONE`]: in host memory.
    pub(super) resident: Arena<TensorId, BlockIx>,
    /// Actions before positions of the schedule, in the order of the streams: position, act, tensor.
    pub(super) acts: Vec<(StepPos, Act, TensorId)>,
    /// Blocks of the tensors that ops allocate: position, tensor, block.
    pub(super) at: Vec<(StepPos, TensorId, BlockIx)>,
    /// Block of every position's scratch space.
    pub(super) scratch: Arena<StepPos, BlockIx>,
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
        let operand = |i: OpPos| {
            let op = &p.ops[i];
            p.working_set(i).into_iter().map(|t| (t, op.reads.contains(&t), op.writes.contains(&t))).collect()
        };
        let operands: Arena<OpPos, Vec<Operand>> = p.ops.ids().map(operand).collect();
        let requests = starts(operands.values().map(|o| o.len() + 1));
        let touches = starts(p.tensors.values().map(|t| t.touches.len()).chain([0]));
        let (sizes, precedence) = (Sizes::new(p), Precedence::new(p));
        Graph { p, sizes, precedence, operands, requests, touches, swap, capacity }
    }
}

/// First places of consecutive parts of these lengths.
fn starts<K: memc_ir::Id>(lengths: impl Iterator<Item = usize>) -> Arena<K, usize> {
    let mut total = 0;
    let starts = lengths.map(|n| {
        total += n;
        total - n
    });
    starts.collect()
}
