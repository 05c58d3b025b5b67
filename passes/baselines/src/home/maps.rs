//! The feature maps of a step, and the runs of ops under a policy (Sec. 2.2, 3.3).

use memc_ir::{Arena, Id, ids};
use memc_planner::{OpPos, Problem, Step, StepPos, TensorId, TensorKind};

ids! {
    /// A feature map.
    pub(super) MapIx,
}

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
    pub(super) leaves: OpPos,
    /// The op whose run gives it the content that leaves.
    pub(super) made: OpPos,
    /// Placements that it can have.
    pub(super) actions: Vec<u8>,
}

/// A problem by its feature maps.
pub(super) struct Net<'a> {
    pub(super) p: &'a Problem,
    pub(super) maps: Arena<MapIx, Map>,
    /// The feature map of every tensor.
    pub(super) map_of: Arena<TensorId, Option<MapIx>>,
    /// The op at which the backward propagation begins.
    pub(super) turn: OpPos,
    /// For every op, the tensors that it overwrites or creates.
    pub(super) results: Arena<OpPos, Vec<TensorId>>,
    /// For every op, bytes that its first run takes beside the tensors on the device, and those of a
    /// recomputation.
    pub(super) needs: Arena<OpPos, (u64, u64)>,
    /// For every op, bytes of the tensors that appear at it without being written.
    pub(super) given: Arena<OpPos, u64>,
}

/// Most runs of a step for each of its ops; a policy with more is impossible.
const MOST_RUNS: usize = 4;

impl<'a> Net<'a> {
    /// Of a problem, with the placements that are allowed.
    pub(super) fn new(p: &'a Problem, swap: bool, recompute: bool) -> Net<'a> {
        let gaps = |t: TensorId| {
            let tensor = &p.tensors[t];
            let read = |&&(_, to): &&(OpPos, OpPos)| p.ops[to].reads.contains(&t);
            let pairs: Vec<(OpPos, OpPos)> = tensor.touches.windows(2).map(|w| (w[0], w[1])).collect();
            pairs.iter().filter(read).copied().collect::<Vec<_>>()
        };
        let transient = |t: &TensorId| p.tensors[*t].kind == TensorKind::Transient;
        let tensors: Vec<TensorId> = p.tensors.ids().filter(transient).collect();
        // The propagation turns where the most bytes wait for later ops.
        let mut waiting: Arena<OpPos, i128> = Arena::filled(0, p.ops.len() + 1);
        for &t in &tensors {
            for (from, to) in gaps(t) {
                waiting[from.next()] += i128::from(p.tensors[t].bytes);
                waiting[to] -= i128::from(p.tensors[t].bytes);
            }
        }
        let (mut sum, mut most, mut turn) = (0, 0, OpPos(0));
        for (i, change) in waiting.iter() {
            sum += change;
            if sum > most {
                (most, turn) = (sum, i);
            }
        }
        let mut net = Net {
            p,
            maps: Arena::default(),
            map_of: Arena::filled(None, p.tensors.len()),
            turn,
            results: Arena::default(),
            needs: Arena::default(),
            given: Arena::default(),
        };
        for (i, op) in p.ops.iter() {
            let bytes = |t: &TensorId| p.tensors[*t].bytes;
            let results: Vec<TensorId> =
                op.writes.iter().copied().filter(|t| !op.reads.contains(t)).collect();
            let fresh = results.iter().filter(|&&t| !p.tensors[t].persistent()).map(bytes).sum::<u64>();
            let appears = |t: &&TensorId| transient(t) && p.tensors[**t].touches.first() == Some(&i);
            let given = op.reads.iter().filter(appears).map(bytes).sum::<u64>();
            // The results of a recomputation take bytes beside those of the first run.
            let another = results.iter().map(bytes).sum::<u64>();
            net.results.push(results);
            net.needs.push((fresh + given + op.workspace, another + op.workspace));
            net.given.push(given);
        }
        let mut tried = Arena::filled(TensorId(u32::MAX), p.tensors.len());
        for t in tensors {
            let Some((leaves, back)) = gaps(t).into_iter().find(|&(from, to)| from < turn && turn < to)
            else {
                continue;
            };
            let mut actions = vec![RETAIN];
            actions.extend(swap.then_some(SWAP));
            actions.extend((recompute && net.repeatable(t, back, &mut tried)).then_some(RECOMPUTE));
            net.map_of[t] = Some(net.maps.next_id());
            let writes = &p.tensors[t].writes;
            let made = writes[..writes.partition_point(|&w| w <= leaves)].last().copied();
            // A tensor that nothing has written by then appears where it is touched first.
            let made = made.or(p.tensors[t].touches.first().copied()).unwrap_or(leaves);
            net.maps.push(Map { leaves, made, actions });
        }
        net
    }

    /// The only writer of a tensor, if it runs before an op and recomputes the tensor exactly.
    fn producer(&self, t: TensorId, at: OpPos) -> Option<OpPos> {
        let tensor = &self.p.tensors[t];
        let &[writer] = tensor.writes.as_slice() else { return None };
        let op = &self.p.ops[writer];
        let made = tensor.kind == TensorKind::Transient && writer < at;
        // An operand that it updates in place has lost its content.
        (made && op.repeatable && !op.updates()).then_some(writer)
    }

    /// True if a tensor can be recomputed before an op, from tensors that are on the device then or can be
    /// recomputed too.
    fn repeatable(&self, t: TensorId, at: OpPos, tried: &mut Arena<TensorId, TensorId>) -> bool {
        let mut open = vec![t];
        while let Some(u) = open.pop() {
            let Some(writer) = self.producer(u, at) else { return false };
            for &operand in &self.p.ops[writer].reads {
                let tensor = &self.p.tensors[operand];
                if tensor.written_between(writer, at) {
                    return false;
                }
                let dead = !tensor.persistent() && tensor.touches.last().is_some_and(|&last| last < at);
                if dead && std::mem::replace(&mut tried[operand], t) != t {
                    open.push(operand);
                }
            }
        }
        true
    }

    /// The runs of a step under a policy. Operands that were released are recomputed before an op, and so are
    /// tensors that these need. `None` when that is impossible.
    pub(super) fn steps(&self, policy: &[u8], steps: &mut Arena<StepPos, Step>) -> Option<()> {
        let p = self.p;
        let limit = MOST_RUNS * p.ops.len();
        steps.clear();
        // Tensors that were recomputed; those that are no feature maps only for the op at hand.
        let mut recomputed = Arena::filled(false, p.tensors.len());
        let mut passing: Vec<TensorId> = Vec::new();
        // Tensors that are being recomputed: the writer, and the number of its operands that are done.
        let mut stack: Vec<(TensorId, OpPos, usize)> = Vec::new();
        for (i, op) in p.ops.iter() {
            for &t in &op.reads {
                if !self.missing(t, i, policy, &recomputed) {
                    continue;
                }
                stack.push((t, self.producer(t, i)?, 0));
                while let Some(top) = stack.last_mut() {
                    let (t, writer, next) = *top;
                    let Some(&u) = p.ops[writer].reads.get(next) else {
                        stack.pop();
                        if !std::mem::replace(&mut recomputed[t], true) {
                            steps.push(Step::again(writer, t));
                            if self.map_of[t].is_none() {
                                passing.push(t);
                            }
                        }
                        if steps.len() > limit {
                            return None;
                        }
                        continue;
                    };
                    top.2 += 1;
                    if p.tensors[u].written_between(writer, i) {
                        return None;
                    }
                    if self.missing(u, i, policy, &recomputed) {
                        stack.push((u, self.producer(u, i)?, 0));
                    }
                }
            }
            steps.push(Step::first(i));
            for t in passing.drain(..) {
                recomputed[t] = false;
            }
        }
        Some(())
    }

    /// True if a tensor that is needed before an op is no longer there: released, or dead.
    fn missing(&self, t: TensorId, at: OpPos, policy: &[u8], recomputed: &Arena<TensorId, bool>) -> bool {
        let tensor = &self.p.tensors[t];
        if recomputed[t] || tensor.persistent() {
            return false;
        }
        let released =
            self.map_of[t].is_some_and(|k| policy[k.index()] == RECOMPUTE && self.maps[k].leaves < at);
        released || tensor.touches.last().is_some_and(|&last| last < at)
    }
}
