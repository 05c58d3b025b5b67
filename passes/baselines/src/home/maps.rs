//! The feature maps of a step, and the runs of ops under a policy (Sec. 2.2, 3.3).

use memc_planner::{Kind, Problem, Step};

/// Placements of a feature map, numbered as in Sec. 3.3.
pub(super) const RETAIN: u8 = 0;
/// To the host and back.
pub(super) const SWAP: u8 = 1;
/// Released and recomputed.
pub(super) const RECOMPUTE: u8 = 2;

/// A tensor that the forward propagation leaves for the backward propagation.
#[derive(Clone, Debug)]
pub(super) struct Map {
    /// The op after which the forward propagation needs it no longer.
    pub(super) leaves: u32,
    /// The op whose run gives it the content that leaves.
    pub(super) made: u32,
    /// Placements that it can have.
    pub(super) actions: Vec<u8>,
}

/// A problem by its feature maps.
pub(super) struct Net<'a> {
    pub(super) p: &'a Problem,
    pub(super) maps: Vec<Map>,
    /// The feature map of every tensor.
    pub(super) map_of: Vec<Option<u32>>,
    /// The op at which the backward propagation begins.
    pub(super) turn: u32,
    /// For every op, the tensors that it overwrites or creates.
    pub(super) results: Vec<Vec<u32>>,
    /// For every op, bytes that its first run takes beside the tensors on the device, and those of a
    /// recomputation.
    pub(super) needs: Vec<(u64, u64)>,
    /// For every op, bytes of the tensors that appear at it without being written.
    pub(super) given: Vec<u64>,
}

/// Most runs of a step for each of its ops; a policy with more is impossible.
const MOST_RUNS: usize = 4;

impl<'a> Net<'a> {
    /// Of a problem, with the placements that are allowed.
    pub(super) fn new(p: &'a Problem, swap: bool, recompute: bool) -> Net<'a> {
        let gaps = |t: u32| {
            let tensor = &p.tensors[t as usize];
            let read = |&&(_, to): &&(u32, u32)| p.ops[to as usize].reads.contains(&t);
            let pairs: Vec<(u32, u32)> = tensor.touches.windows(2).map(|w| (w[0], w[1])).collect();
            pairs.iter().filter(read).copied().collect::<Vec<_>>()
        };
        let transient = |t: &u32| p.tensors[*t as usize].kind == Kind::Transient;
        let tensors: Vec<u32> = (0..p.tensors.len() as u32).filter(transient).collect();
        // The propagation turns where the most bytes wait for later ops.
        let mut waiting = vec![0i128; p.ops.len() + 1];
        for &t in &tensors {
            for (from, to) in gaps(t) {
                waiting[from as usize + 1] += i128::from(p.tensors[t as usize].bytes);
                waiting[to as usize] -= i128::from(p.tensors[t as usize].bytes);
            }
        }
        let (mut sum, mut most, mut turn) = (0, 0, 0);
        for (i, change) in waiting.iter().enumerate() {
            sum += change;
            if sum > most {
                (most, turn) = (sum, i as u32);
            }
        }
        let mut net = Net {
            p,
            maps: Vec::new(),
            map_of: vec![None; p.tensors.len()],
            turn,
            results: Vec::new(),
            needs: Vec::new(),
            given: Vec::new(),
        };
        for (i, op) in p.ops.iter().enumerate() {
            let bytes = |t: &u32| p.tensors[*t as usize].bytes;
            let results: Vec<u32> = op.writes.iter().copied().filter(|t| !op.reads.contains(t)).collect();
            let fresh =
                results.iter().filter(|&&t| !p.tensors[t as usize].persistent()).map(bytes).sum::<u64>();
            let appears =
                |t: &&u32| transient(t) && p.tensors[**t as usize].touches.first() == Some(&(i as u32));
            let given = op.reads.iter().filter(appears).map(bytes).sum::<u64>();
            // The results of a recomputation take bytes beside those of the first run.
            let another = results.iter().map(bytes).sum::<u64>();
            net.results.push(results);
            net.needs.push((fresh + given + op.workspace, another + op.workspace));
            net.given.push(given);
        }
        let mut tried = vec![u32::MAX; p.tensors.len()];
        for t in tensors {
            let Some((leaves, back)) = gaps(t).into_iter().find(|&(from, to)| from < turn && turn < to)
            else {
                continue;
            };
            let mut actions = vec![RETAIN];
            actions.extend(swap.then_some(SWAP));
            actions.extend((recompute && net.repeatable(t, back, &mut tried)).then_some(RECOMPUTE));
            net.map_of[t as usize] = Some(net.maps.len() as u32);
            let writes = &p.tensors[t as usize].writes;
            let made = writes[..writes.partition_point(|&w| w <= leaves)].last().copied();
            // A tensor that nothing has written by then appears where it is touched first.
            let made = made.or(p.tensors[t as usize].touches.first().copied()).unwrap_or(leaves);
            net.maps.push(Map { leaves, made, actions });
        }
        net
    }

    /// The only writer of a tensor, if it runs before an op and recomputes the tensor exactly.
    fn producer(&self, t: u32, at: u32) -> Option<u32> {
        let tensor = &self.p.tensors[t as usize];
        let &[writer] = tensor.writes.as_slice() else { return None };
        let op = &self.p.ops[writer as usize];
        let made = tensor.kind == Kind::Transient && writer < at;
        // An operand that it updates in place has lost its content.
        (made && op.repeatable && !op.updates()).then_some(writer)
    }

    /// True if a tensor can be recomputed before an op, from tensors that are on the device then or can be
    /// recomputed too.
    fn repeatable(&self, t: u32, at: u32, tried: &mut [u32]) -> bool {
        let mut open = vec![t];
        while let Some(u) = open.pop() {
            let Some(writer) = self.producer(u, at) else { return false };
            for &operand in &self.p.ops[writer as usize].reads {
                let tensor = &self.p.tensors[operand as usize];
                if tensor.written_between(writer, at) {
                    return false;
                }
                let dead = !tensor.persistent() && tensor.touches.last().is_some_and(|&last| last < at);
                if dead && std::mem::replace(&mut tried[operand as usize], t) != t {
                    open.push(operand);
                }
            }
        }
        true
    }

    /// The runs of a step under a policy. Operands that were released are recomputed before an op, and so are
    /// tensors that these need. `None` when that is impossible.
    pub(super) fn steps(&self, policy: &[u8], steps: &mut Vec<Step>) -> Option<()> {
        let p = self.p;
        let limit = MOST_RUNS * p.ops.len();
        steps.clear();
        // Tensors that were recomputed; those that are no feature maps only for the op at hand.
        let mut recomputed = vec![false; p.tensors.len()];
        let mut passing: Vec<u32> = Vec::new();
        // Tensors that are being recomputed: the writer, and the number of its operands that are done.
        let mut stack: Vec<(u32, u32, usize)> = Vec::new();
        for (i, op) in p.ops.iter().enumerate() {
            let i = i as u32;
            for &t in &op.reads {
                if !self.missing(t, i, policy, &recomputed) {
                    continue;
                }
                stack.push((t, self.producer(t, i)?, 0));
                while let Some(top) = stack.last_mut() {
                    let (t, writer, next) = *top;
                    let Some(&u) = p.ops[writer as usize].reads.get(next) else {
                        stack.pop();
                        if !std::mem::replace(&mut recomputed[t as usize], true) {
                            steps.push(Step { op: writer, again: Some(t) });
                            if self.map_of[t as usize].is_none() {
                                passing.push(t);
                            }
                        }
                        if steps.len() > limit {
                            return None;
                        }
                        continue;
                    };
                    top.2 += 1;
                    if p.tensors[u as usize].written_between(writer, i) {
                        return None;
                    }
                    if self.missing(u, i, policy, &recomputed) {
                        stack.push((u, self.producer(u, i)?, 0));
                    }
                }
            }
            steps.push(Step { op: i, again: None });
            for t in passing.drain(..) {
                recomputed[t as usize] = false;
            }
        }
        Some(())
    }

    /// True if a tensor that is needed before an op is no longer there: released, or dead.
    fn missing(&self, t: u32, at: u32, policy: &[u8], recomputed: &[bool]) -> bool {
        let tensor = &self.p.tensors[t as usize];
        if recomputed[t as usize] || tensor.persistent() {
            return false;
        }
        let released = self.map_of[t as usize]
            .is_some_and(|k| policy[k as usize] == RECOMPUTE && self.maps[k as usize].leaves < at);
        released || tensor.touches.last().is_some_and(|&last| last < at)
    }
}
