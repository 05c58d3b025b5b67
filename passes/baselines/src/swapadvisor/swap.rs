//! The swap planner: chooses the swapped tensors, given a schedule and a pool (Sec. 4.2).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memc_planner::Kind;

use super::graph::{Act, Graph, Moves, NONE};
use super::pool::Pool;

/// Scans that look for initial residents; the last one has none.
const PASSES: usize = 8;

impl Graph<'_> {
    /// The swap plan of a schedule in a pool; `None` when an op finds no object for a tensor.
    pub(super) fn plan(&self, order: &[u32], pool: &Pool) -> Option<Moves> {
        let classes = pool.cnt.iter().sum::<u64>();
        let blocks = u32::try_from(classes).ok().filter(|&n| n < NONE)?;
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
            let removed = |t: u32| x.moves.home[t as usize] == NONE;
            // A parameter that did not stay, or did not return to its block, is no initial resident.
            let stayed = |t: u32, b: u32| x.block[t as usize] == b && !x.astray[t as usize];
            if initial.iter().all(|&(t, b)| removed(t) || stayed(t, b)) {
                return Some(x.moves.sorted());
            }
            initial.retain(|&(t, b)| left > 1 && !removed(t) && stayed(t, b));
        }
        None
    }
}

/// One scan of a schedule.
struct Pass<'a> {
    g: &'a Graph<'a>,
    order: &'a [u32],
    /// Positions of every tensor's touches.
    touches: Vec<u32>,
    /// For every tensor, its next entry in `touches`.
    next: Vec<u32>,
    /// Start of the op at every position in ns, if none waits.
    start: Vec<u64>,
    /// Class of every tensor and of every position's scratch space.
    class: &'a [u32],
    /// For every class, its first block; one more at the end.
    first: Vec<u32>,
    objects: Vec<u64>,
    /// For every block, the tensor in it.
    holds: Vec<u32>,
    /// For every block, the position since which it is free.
    free: Vec<u32>,
    /// For every class, its free blocks by the position since which they are; some entries are out of date.
    unused: Vec<BinaryHeap<Reverse<(u32, u32)>>>,
    /// Block of every tensor.
    block: Vec<u32>,
    /// For every tensor, the position after its last touch.
    last: Vec<u32>,
    /// Tensors whose content is not on the host.
    dirty: Vec<bool>,
    /// Tensors that have been on the device in this step.
    appeared: Vec<bool>,
    /// Initial residents that found their block taken when they returned.
    astray: Vec<bool>,
    /// For every tensor, the last position at which it is an operand, plus one.
    pinned: Vec<u32>,
    /// Requests that found no free object.
    pressure: Vec<bool>,
    moves: Moves,
}

impl<'a> Pass<'a> {
    fn new(g: &'a Graph<'a>, order: &'a [u32], pool: &'a Pool, blocks: u32) -> Pass<'a> {
        let tensors = g.p.tensors.len();
        let mut touches = vec![0; g.touches.last().map_or(0, |&n| n as usize)];
        let mut next = g.touches.clone();
        let mut start = Vec::with_capacity(order.len() + 1);
        let mut now = 0;
        for (i, &op) in order.iter().enumerate() {
            for &(t, ..) in &g.operands[op as usize] {
                touches[next[t as usize] as usize] = i as u32;
                next[t as usize] += 1;
            }
            start.push(now);
            now += g.p.ops[op as usize].time_ns;
        }
        start.push(now);
        let mut first = vec![0];
        for &n in &pool.cnt {
            first.push(first.last().copied().unwrap_or(0) + n as u32);
        }
        let requests =
            g.requests.last().map_or(0, |&r| r as usize + g.operands.last().map_or(0, Vec::len) + 1);
        let mut x = Pass {
            g,
            order,
            touches,
            next,
            start,
            class: &pool.cls,
            first,
            objects: pool.objects(&g.sizes.bytes),
            holds: vec![NONE; blocks as usize],
            free: vec![0; blocks as usize],
            unused: vec![BinaryHeap::new(); pool.cnt.len()],
            block: vec![NONE; tensors],
            last: vec![0; tensors],
            dirty: vec![false; tensors],
            appeared: vec![false; tensors],
            astray: vec![false; tensors],
            pinned: vec![0; tensors],
            pressure: vec![false; requests],
            moves: Moves::default(),
        };
        x.reset(&[]);
        x
    }

    /// The state when a step begins with these parameters in these blocks.
    fn reset(&mut self, initial: &[(u32, u32)]) {
        self.next.clone_from(&self.g.touches);
        self.holds.fill(NONE);
        self.free.fill(0);
        self.block.fill(NONE);
        self.last.fill(0);
        self.dirty.fill(false);
        self.appeared.fill(false);
        self.astray.fill(false);
        self.pinned.fill(0);
        self.moves.home.clear();
        self.moves.home.resize(self.block.len(), NONE);
        self.moves.acts.clear();
        self.moves.at.clear();
        self.moves.scratch.clear();
        for (class, unused) in self.unused.iter_mut().enumerate() {
            unused.clear();
            unused.extend((self.first[class]..self.first[class + 1]).map(|b| Reverse((0, b))));
        }
        for &(t, block) in initial {
            self.holds[block as usize] = t;
            self.block[t as usize] = block;
            self.moves.home[t as usize] = block;
            self.dirty[t as usize] = true;
        }
    }

    /// Every persistent tensor is on the device when the step begins.
    fn settle_all(&mut self) -> Option<()> {
        let mut initial = Vec::new();
        let mut taken = self.first.clone();
        let persistent =
            self.g.p.tensors.iter().enumerate().filter(|(_, t)| t.persistent() && !t.touches.is_empty());
        for (t, _) in persistent {
            let class = self.class[self.g.sizes.of_tensor[t] as usize] as usize - 1;
            if taken[class] == self.first[class + 1] {
                return None;
            }
            initial.push((t as u32, taken[class]));
            taken[class] += 1;
        }
        self.reset(&initial);
        Some(())
    }

    /// Parameters that are on the device now.
    fn residents(&self) -> Vec<(u32, u32)> {
        let here =
            self.block.iter().enumerate().filter(|&(t, &b)| b != NONE && self.g.p.tensors[t].persistent());
        here.map(|(t, &b)| (t as u32, b)).collect()
    }

    /// Scans the schedule; `before`: the requests that found no free object in the first pass.
    fn run(&mut self, before: Option<&[bool]>) -> Option<()> {
        let g = self.g;
        for (i, &op) in self.order.iter().enumerate() {
            let i = i as u32;
            let operands = &g.operands[op as usize];
            for &(t, ..) in operands {
                self.pinned[t as usize] = i + 1;
            }
            let request = |k: usize| g.requests[op as usize] as usize + k;
            // Reads come before writes.
            let reads = operands.iter().enumerate().filter(|(_, o)| o.1);
            let writes = operands.iter().enumerate().filter(|(_, o)| !o.1);
            for (k, &(t, read, write)) in reads.chain(writes) {
                if self.block[t as usize] == NONE {
                    let size = g.sizes.of_tensor[t as usize];
                    let block = self.acquire(size, i, request(k), before, self.moves.home[t as usize])?;
                    self.holds[block as usize] = t;
                    self.block[t as usize] = block;
                    self.fill(t, block, i, read);
                }
                self.dirty[t as usize] |= write;
            }
            let scratch = match g.sizes.of_scratch[op as usize] {
                Some(size) => self.acquire(size, i, request(operands.len()), before, NONE)?,
                None => NONE,
            };
            self.moves.scratch.push(scratch);
            if let Some(size) = g.sizes.of_scratch[op as usize] {
                self.free[scratch as usize] = i + 1;
                let class = self.class[size as usize] as usize - 1;
                self.unused[class].push(Reverse((i + 1, scratch)));
            }
            for &(t, ..) in operands {
                self.next[t as usize] += 1;
                self.last[t as usize] = i + 1;
                if self.next[t as usize] == g.touches[t as usize + 1] && !g.p.tensors[t as usize].persistent()
                {
                    self.release(t, false);
                }
            }
        }
        // Parameters that must not be here when the next step begins.
        for (t, _) in self.residents() {
            if self.moves.home[t as usize] == NONE && before.is_some() {
                self.release(t, self.dirty[t as usize]);
            }
        }
        Some(())
    }

    /// Brings a tensor's content into its block.
    fn fill(&mut self, t: u32, block: u32, i: u32, read: bool) {
        let kind = self.g.p.tensors[t as usize].kind;
        let home = self.moves.home[t as usize];
        self.astray[t as usize] |= home != NONE && home != block;
        let there = std::mem::replace(&mut self.appeared[t as usize], true);
        if !read || (kind == Kind::Transient && !there) {
            self.moves.at.push((i, t, block));
            self.dirty[t as usize] = true;
            return;
        }
        // As early as its block is free and its last one is given up (Sec. 4.2): a copy that waits holds up
        // no other.
        let ready = self.free[block as usize].max(self.last[t as usize]);
        self.moves.acts.push((ready, Act::In(block), t));
        self.dirty[t as usize] = false;
    }

    /// Gives up a tensor's block after its last touch.
    fn release(&mut self, t: u32, copy: bool) {
        let at = self.last[t as usize];
        if copy {
            self.moves.acts.push((at, Act::Out, t));
            self.dirty[t as usize] = false;
        }
        self.moves.acts.push((at, Act::Drop, t));
        let block = std::mem::replace(&mut self.block[t as usize], NONE);
        self.holds[block as usize] = NONE;
        self.free[block as usize] = at;
        let class = self.class[self.g.sizes.of_tensor[t as usize] as usize] as usize - 1;
        self.unused[class].push(Reverse((at, block)));
    }

    /// A block of the class of a size: a free one, or one whose tensor is swapped out.
    fn acquire(
        &mut self,
        size: u32,
        i: u32,
        request: usize,
        before: Option<&[bool]>,
        home: u32,
    ) -> Option<u32> {
        let class = self.class[size as usize] as usize - 1;
        let blocks = self.first[class]..self.first[class + 1];
        if home != NONE && self.holds[home as usize] == NONE {
            return Some(home);
        }
        while let Some(Reverse((since, b))) = self.unused[class].pop() {
            if self.holds[b as usize] == NONE && self.free[b as usize] == since {
                return Some(b);
            }
        }
        if !self.g.swap {
            return None;
        }
        self.pressure[request] = true;
        let idle = || blocks.clone().filter(|&b| self.pinned[self.holds[b as usize] as usize] != i + 1);
        let new = before.is_some_and(|b| !b[request]);
        let untouched = |b: u32| self.last[self.holds[b as usize] as usize] == 0;
        let object = self.objects[class];
        let threshold = self.g.p.device.h2d_ns(object);
        let now = self.start[i as usize];
        let old = |b: u32| now - self.start[self.last[self.holds[b as usize] as usize] as usize] >= threshold;
        let furthest = |blocks: &mut dyn Iterator<Item = u32>| {
            blocks.max_by_key(|&b| {
                let t = self.holds[b as usize];
                (self.next_use(t), u32::MAX - self.last[t as usize], u32::MAX - b)
            })
        };
        let choice = None
            .or_else(|| furthest(&mut idle().filter(|&b| new && untouched(b))))
            .or_else(|| furthest(&mut idle().filter(|&b| old(b) || untouched(b))))
            .or_else(|| furthest(&mut idle()))?;
        let (t, early) = (self.holds[choice as usize], untouched(choice));
        if early {
            // It was not needed yet: the step begins without it.
            self.moves.home[t as usize] = NONE;
            self.dirty[t as usize] = false;
            self.block[t as usize] = NONE;
            self.holds[choice as usize] = NONE;
        } else {
            let content = self.dirty[t as usize] && !self.overwritten(t);
            self.release(t, content);
        }
        Some(choice)
    }

    /// Position at which a tensor on the device is needed next; past the end, a position of the next step.
    fn next_use(&self, t: u32) -> u32 {
        let (next, end) = (self.next[t as usize], self.g.touches[t as usize + 1]);
        if next < end {
            return self.touches[next as usize];
        }
        self.order.len() as u32 + self.touches[self.g.touches[t as usize] as usize]
    }

    /// True if the next op that touches a tensor overwrites it.
    fn overwritten(&self, t: u32) -> bool {
        let (next, end) = (self.next[t as usize], self.g.touches[t as usize + 1]);
        if next >= end {
            return false;
        }
        let op = self.order[self.touches[next as usize] as usize];
        !self.g.p.ops[op as usize].reads.contains(&t)
    }
}
