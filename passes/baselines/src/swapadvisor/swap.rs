//! The swap planner: chooses the swapped tensors, given a schedule and a pool (Sec. 4.2).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memc_ir::{Arena, Id, Ids};
use memc_planner::{OpPos, StepPos, TensorId, TensorKind};

use super::graph::{Act, BlockIx, Graph, Moves, NONE};
use super::pool::Pool;

/// No tensor.
const NOBODY: TensorId = TensorId(u32::MAX);

/// Scans that look for initial residents; the last one has none.
const PASSES: usize = 8;

impl Graph<'_> {
    /// The swap plan of a schedule in a pool; `None` when an op finds no object for a tensor.
    pub(super) fn plan(&self, order: &[OpPos], pool: &Pool) -> Option<Moves> {
        let classes = pool.cnt.iter().sum::<u64>();
        let blocks = usize::try_from(classes).ok().filter(|&n| n < NONE.index())?;
        let mut x = Pass::new(self, order, pool, blocks);
        if !self.swap {
            x.settle_all()?;
            x.run(None)?;
            return Some(x.moves.sorted());
        }
        // First pass: no parameter is on the device when the step begins.
        x.run(None)?;
        let pressure = x.pressure.clone();
        let mut initial = x.residents();
        for left in (0..PASSES).rev() {
            x.reset(&initial);
            x.run(Some(&pressure))?;
            let removed = |t: TensorId| x.moves.resident[t] == NONE;
            // A parameter that did not stay, or did not return to its block, is no initial resident.
            let stayed = |t: TensorId, b: BlockIx| x.block[t] == b && !x.astray[t];
            if initial.iter().all(|&(t, b)| removed(t) || stayed(t, b)) {
                return Some(x.moves.sorted());
            }
            initial.retain(|&(t, b)| left > 1 && !removed(t) && stayed(t, b));
        }
        None
    }
}

/// The blocks of a class.
fn blocks_of(first: &[BlockIx], class: usize) -> Ids<BlockIx> {
    Ids::between(first[class], first[class + 1])
}

/// One scan of a schedule.
struct Pass<'a> {
    g: &'a Graph<'a>,
    order: &'a [OpPos],
    /// Positions of every tensor's touches.
    touches: Vec<StepPos>,
    /// For every tensor, its next entry in `touches`.
    next: Arena<TensorId, usize>,
    /// Start of the op at every position in ns, if none waits.
    start: Arena<StepPos, u64>,
    /// Class of every tensor and of every position's scratch space.
    class: &'a [usize],
    /// For every class, its first block; one more at the end.
    first: Vec<BlockIx>,
    objects: Vec<u64>,
    /// For every block, the tensor in it.
    holds: Arena<BlockIx, TensorId>,
    /// For every block, the position since which it is free.
    free: Arena<BlockIx, StepPos>,
    /// For every class, its free blocks by the position since which they are; some entries are out of date.
    unused: Vec<BinaryHeap<Reverse<(StepPos, BlockIx)>>>,
    /// Block of every tensor.
    block: Arena<TensorId, BlockIx>,
    /// For every tensor, the position after its last touch.
    last: Arena<TensorId, StepPos>,
    /// Tensors whose content is not on the host.
    dirty: Arena<TensorId, bool>,
    /// Tensors that have been on the device in this step.
    appeared: Arena<TensorId, bool>,
    /// Initial residents that found their block taken when they returned.
    astray: Arena<TensorId, bool>,
    /// For every tensor, the last position at which it is an operand, plus one.
    pinned: Arena<TensorId, StepPos>,
    /// Requests that found no free object.
    pressure: Vec<bool>,
    moves: Moves,
}

impl<'a> Pass<'a> {
    fn new(g: &'a Graph<'a>, order: &'a [OpPos], pool: &'a Pool, blocks: usize) -> Pass<'a> {
        let tensors = g.p.tensors.len();
        let mut touches = vec![StepPos(0); g.touches.last().copied().unwrap_or(0)];
        let mut next = g.touches.clone();
        let mut start = Arena::with_capacity(order.len() + 1);
        let mut now = 0;
        for (i, &op) in order.iter().enumerate() {
            for &(t, ..) in &g.operands[op] {
                touches[next[t]] = StepPos::new(i);
                next[t] += 1;
            }
            start.push(now);
            now += g.p.ops[op].time_ns;
        }
        start.push(now);
        let mut first = vec![BlockIx(0)];
        for &n in &pool.cnt {
            first.push(BlockIx(first.last().map_or(0, |b: &BlockIx| b.0) + n as u32));
        }
        let requests = g.requests.last().map_or(0, |&r| r + g.operands.last().map_or(0, Vec::len) + 1);
        let mut x = Pass {
            g,
            order,
            touches,
            next,
            start,
            class: &pool.cls,
            first,
            objects: pool.objects(&g.sizes.bytes),
            holds: Arena::filled(NOBODY, blocks),
            free: Arena::filled(StepPos(0), blocks),
            unused: vec![BinaryHeap::new(); pool.cnt.len()],
            block: Arena::filled(NONE, tensors),
            last: Arena::filled(StepPos(0), tensors),
            dirty: Arena::filled(false, tensors),
            appeared: Arena::filled(false, tensors),
            astray: Arena::filled(false, tensors),
            pinned: Arena::filled(StepPos(0), tensors),
            pressure: vec![false; requests],
            moves: Moves::default(),
        };
        x.reset(&[]);
        x
    }

    /// The state when a step begins with these parameters in these blocks.
    fn reset(&mut self, initial: &[(TensorId, BlockIx)]) {
        self.next.clone_from(&self.g.touches);
        self.holds.fill(NOBODY);
        self.free.fill(StepPos(0));
        self.block.fill(NONE);
        self.last.fill(StepPos(0));
        self.dirty.fill(false);
        self.appeared.fill(false);
        self.astray.fill(false);
        self.pinned.fill(StepPos(0));
        self.moves.resident.clear();
        self.moves.resident.resize(self.block.len(), NONE);
        self.moves.acts.clear();
        self.moves.at.clear();
        self.moves.scratch.clear();
        for (class, unused) in self.unused.iter_mut().enumerate() {
            unused.clear();
            unused.extend(blocks_of(&self.first, class).map(|b| Reverse((StepPos(0), b))));
        }
        for &(t, block) in initial {
            self.holds[block] = t;
            self.block[t] = block;
            self.moves.resident[t] = block;
            self.dirty[t] = true;
        }
    }

    /// Every persistent tensor is on the device when the step begins.
    fn settle_all(&mut self) -> Option<()> {
        let mut initial = Vec::new();
        let mut taken = self.first.clone();
        let persistent = self.g.p.tensors.iter().filter(|(_, t)| t.persistent() && !t.touches.is_empty());
        for (t, _) in persistent {
            let class = self.class[self.g.sizes.of_tensor[t]] - 1;
            if taken[class] == self.first[class + 1] {
                return None;
            }
            initial.push((t, taken[class]));
            taken[class] = BlockIx(taken[class].0 + 1);
        }
        self.reset(&initial);
        Some(())
    }

    /// Parameters that are on the device now.
    fn residents(&self) -> Vec<(TensorId, BlockIx)> {
        let here = self.block.iter().filter(|&(t, &b)| b != NONE && self.g.p.tensors[t].persistent());
        here.map(|(t, &b)| (t, b)).collect()
    }

    /// Scans the schedule; `before`: the requests that found no free object in the first pass.
    fn run(&mut self, before: Option<&[bool]>) -> Option<()> {
        let g = self.g;
        for (i, &op) in self.order.iter().enumerate() {
            let i = StepPos::new(i);
            let operands = &g.operands[op];
            for &(t, ..) in operands {
                self.pinned[t] = i.next();
            }
            let request = |k: usize| g.requests[op] + k;
            // Reads come before writes.
            let reads = operands.iter().enumerate().filter(|(_, o)| o.1);
            let writes = operands.iter().enumerate().filter(|(_, o)| !o.1);
            for (k, &(t, read, write)) in reads.chain(writes) {
                if self.block[t] == NONE {
                    let size = g.sizes.of_tensor[t];
                    let block = self.acquire(size, i, request(k), before, self.moves.resident[t])?;
                    self.holds[block] = t;
                    self.block[t] = block;
                    self.fill(t, block, i, read);
                }
                self.dirty[t] |= write;
            }
            let scratch = match g.sizes.of_scratch[op] {
                Some(size) => self.acquire(size, i, request(operands.len()), before, NONE)?,
                None => NONE,
            };
            self.moves.scratch.push(scratch);
            if let Some(size) = g.sizes.of_scratch[op] {
                self.free[scratch] = i.next();
                let class = self.class[size] - 1;
                self.unused[class].push(Reverse((i.next(), scratch)));
            }
            for &(t, ..) in operands {
                self.next[t] += 1;
                self.last[t] = i.next();
                if self.next[t] == g.touches[TensorId(t.0 + 1)] && !g.p.tensors[t].persistent() {
                    self.release(t, false);
                }
            }
        }
        // Parameters that must not be here when the next step begins.
        for (t, _) in self.residents() {
            if self.moves.resident[t] == NONE && before.is_some() {
                self.release(t, self.dirty[t]);
            }
        }
        Some(())
    }

    /// Brings a tensor's content into its block.
    fn fill(&mut self, t: TensorId, block: BlockIx, i: StepPos, read: bool) {
        let kind = self.g.p.tensors[t].kind;
        let resident = self.moves.resident[t];
        self.astray[t] |= resident != NONE && resident != block;
        let there = std::mem::replace(&mut self.appeared[t], true);
        if !read || (kind == TensorKind::Transient && !there) {
            self.moves.at.push((i, t, block));
            self.dirty[t] = true;
            return;
        }
        // As early as its block is free and its last one is given up (Sec. 4.2): a copy that waits holds up
        // no other.
        let ready = self.free[block].max(self.last[t]);
        self.moves.acts.push((ready, Act::In(block), t));
        self.dirty[t] = false;
    }

    /// Gives up a tensor's block after its last touch.
    fn release(&mut self, t: TensorId, copy: bool) {
        let at = self.last[t];
        if copy {
            self.moves.acts.push((at, Act::Out, t));
            self.dirty[t] = false;
        }
        self.moves.acts.push((at, Act::Drop, t));
        let block = std::mem::replace(&mut self.block[t], NONE);
        self.holds[block] = NOBODY;
        self.free[block] = at;
        let class = self.class[self.g.sizes.of_tensor[t]] - 1;
        self.unused[class].push(Reverse((at, block)));
    }

    /// A block of the class of a size: a free one, or one whose tensor is swapped out.
    fn acquire(
        &mut self,
        size: usize,
        i: StepPos,
        request: usize,
        before: Option<&[bool]>,
        resident: BlockIx,
    ) -> Option<BlockIx> {
        let class = self.class[size] - 1;
        let blocks = blocks_of(&self.first, class);
        if resident != NONE && self.holds[resident] == NOBODY {
            return Some(resident);
        }
        while let Some(Reverse((since, b))) = self.unused[class].pop() {
            if self.holds[b] == NOBODY && self.free[b] == since {
                return Some(b);
            }
        }
        if !self.g.swap {
            return None;
        }
        self.pressure[request] = true;
        let idle = blocks.filter(|&b| self.pinned[self.holds[b]] != i.next());
        let new = before.is_some_and(|b| !b[request]);
        let untouched = |b: BlockIx| self.last[self.holds[b]] == StepPos(0);
        let threshold = self.g.p.device.h2d_ns(self.objects[class]);
        let now = self.start[i];
        let old = |b: BlockIx| now - self.start[self.last[self.holds[b]]] >= threshold;
        // Initial residents where pressure is new, then tensors unused for the threshold, then any; of these
        // the furthest.
        let choice = idle.max_by_key(|&b| {
            let t = self.holds[b];
            let rank = if untouched(b) { 1 + u8::from(new) } else { u8::from(old(b)) };
            (rank, self.next_use(t), Reverse(self.last[t]), Reverse(b))
        })?;
        let (t, early) = (self.holds[choice], untouched(choice));
        if early {
            // It was not needed yet: the step begins without it.
            self.moves.resident[t] = NONE;
            self.dirty[t] = false;
            self.block[t] = NONE;
            self.holds[choice] = NOBODY;
        } else {
            let content = self.dirty[t] && !self.overwritten(t);
            self.release(t, content);
        }
        Some(choice)
    }

    /// Position at which a tensor on the device is needed next; past the end, a position of the next step.
    fn next_use(&self, t: TensorId) -> StepPos {
        let (next, end) = (self.next[t], self.g.touches[TensorId(t.0 + 1)]);
        if next < end {
            return self.touches[next];
        }
        StepPos::new(self.order.len() + self.touches[self.g.touches[t]].index())
    }

    /// True if the next op that touches a tensor overwrites it.
    fn overwritten(&self, t: TensorId) -> bool {
        let (next, end) = (self.next[t], self.g.touches[TensorId(t.0 + 1)]);
        if next >= end {
            return false;
        }
        let op = self.order[self.touches[next].index()];
        !self.g.p.ops[op].reads.contains(&t)
    }
}
