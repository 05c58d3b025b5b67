//! Groups of ops that one kernel computes, and joining them: element-wise ops, normalisations of rows with
//! those around them, products with an epilogue, and products with the sum of an operand.

use memc_ir::ops::fused::{Arg, Body, MAX_OPERANDS, MAX_RESULTS, MAX_STEPS, Step, is_head, is_step};
use memc_ir::ops::fused_norm::is_norm;
use memc_ir::{Module, OpId, OpKind, TensorType, ValueId};

use super::item::{Group, Item};
use super::live::Lives;
use crate::analysis::peak_live_bytes;
use crate::device::DeviceProfile;

/// Bytes that take much less time to move than a kernel takes to start, and that fit any budget of a GPU.
const SMALL: u64 = 256 << 10;

/// A value counts only above this part of the largest op's operands and results.
const TINY: u64 = 1024;

/// New scratch may take up to this part of the step's peak of live bytes.
const SCRATCH: u64 = 128;

/// All ops of a module in groups.
pub(super) struct Groups<'a> {
    m: &'a Module,
    profile: &'a DeviceProfile,
    lives: Lives<'a>,
    /// By position, the group of each op; a group is known by the position of one of its members.
    of: Vec<usize>,
    groups: Vec<Option<Group>>,
    /// Most bytes that the operands and results of one op may take.
    largest: u64,
}

impl<'a> Groups<'a> {
    /// Every op by itself.
    pub(super) fn new(m: &'a Module, profile: &'a DeviceProfile) -> Groups<'a> {
        let single = |(i, &op): (usize, &OpId)| {
            let kind = m.ops[op].kind()?.clone();
            let ns = profile.op_ns(&kind, &m.operand_types(op), &m.result_types(op));
            let (operands, results) = (m.ops[op].operands.clone(), m.ops[op].results.clone());
            Some(Group { members: vec![i], at: i, kind, operands, results, ns })
        };
        let groups: Vec<Option<Group>> = m.order.iter().enumerate().map(single).collect();
        let lives = Lives::new(m, profile);
        let of: Vec<usize> = (0..groups.len()).collect();
        let mut all = Groups { m, profile, lives, of, groups, largest: 0 };
        let sizes = all.groups.iter().flatten().filter(|g| !m.ops[m.order[g.at]].is_view());
        let largest = sizes.map(|g| all.lives.working_set(g, &|i| i)).max().unwrap_or(0);
        all.lives.tiny = largest / TINY;
        all.lives.small_scratch = peak_live_bytes(m, profile).map_or(0, |peak| peak.bytes / SCRATCH);
        all.largest = largest.saturating_add(all.lives.tiny).max(SMALL);
        all
    }

    /// The shape of the op at position `i`, where it may be a step.
    pub(super) fn shape(&self, i: usize) -> Option<&'a [u64]> {
        let op = &self.m.ops[self.m.order[i]];
        let [result] = op.results.as_slice() else { return None };
        op.kind().filter(|kind| is_step(kind)).map(|_| &*self.m.values[*result].ty.shape)
    }

    fn group(&self, i: usize) -> Option<&Group> {
        self.groups[self.of[i]].as_ref()
    }

    /// Position of the group of the op at position `i`.
    fn place(&self, i: usize) -> usize {
        self.group(i).map_or(i, |g| g.at)
    }

    /// Whether a kernel stands at position `i`.
    fn runs(&self, i: usize) -> bool {
        self.place(i) == i && !self.m.ops[self.m.order[i]].is_view()
    }

    /// The position of the op that defines a value.
    fn definer(&self, v: ValueId) -> Option<usize> {
        self.m.def_op(v).and_then(|op| self.lives.position(op))
    }

    /// Joins the group of the op at position `i` with that of a producer, or with that of the op at position
    /// `recent`; false when it can be joined with none.
    pub(super) fn grow(&mut self, i: usize, recent: Option<usize>) -> bool {
        let (Some(own), Some(shape)) = (self.group(i), self.shape(i)) else { return false };
        let mine = self.of[i];
        let near = own.operands.iter().filter_map(|&v| self.definer(v));
        let mut near: Vec<usize> =
            near.filter(|&p| self.shape(p) == Some(shape)).map(|p| self.of[p]).collect();
        near.sort_unstable_by_key(|&g| std::cmp::Reverse(self.groups[g].as_ref().map(|g| g.at)));
        near.dedup();
        near.extend(recent.map(|p| self.of[p]).filter(|&g| self.goes_beside(mine, g)));
        near.retain(|&g| g != mine);
        for other in near {
            if let Some(joined) = self.joined(mine, other) {
                self.put(joined);
                return true;
            }
        }
        false
    }

    /// Joins products with the ops that follow them, where a library does both.
    pub(super) fn join_products(&mut self) {
        for i in 0..self.of.len() {
            let op = &self.m.ops[self.m.order[i]];
            let ([y], true) = (op.results.as_slice(), op.kind().is_some_and(is_head)) else { continue };
            let users = self.lives.users(*y);
            let joined = users.iter().find_map(|&u| self.joined(self.of[i], self.of[u]));
            if let Some(joined) = joined {
                self.put(joined);
            }
        }
    }

    /// Replaces the joined groups by their union.
    fn put(&mut self, joined: Group) {
        let Some(&first) = joined.members.first() else { return };
        let own = self.of[first];
        for &member in &joined.members {
            self.groups[self.of[member]] = None;
            self.of[member] = own;
        }
        self.groups[own] = Some(joined);
    }

    /// Whether two groups, neither of which reads the other, gain more when joined than they are worth apart.
    fn goes_beside(&self, a: usize, b: usize) -> bool {
        let (Some(a), Some(b)) = (&self.groups[a], &self.groups[b]) else { return false };
        let bytes = |g: &Group| -> u64 {
            g.operands.iter().chain(&g.results).map(|&v| self.m.values[v].ty.bytes()).sum()
        };
        let large = |v: &&ValueId| self.m.values[**v].ty.bytes() > SMALL;
        bytes(a).saturating_add(bytes(b)) <= SMALL
            || a.operands.iter().filter(large).any(|v| b.operands.contains(v))
    }

    /// Two groups as one, where that is faster and allowed.
    fn joined(&self, mine: usize, other: usize) -> Option<Group> {
        let (a, b) = (self.groups[mine].as_ref()?, self.groups[other].as_ref()?);
        let mut members = [a.members.as_slice(), &b.members].concat();
        members.sort_unstable();
        self.placed(self.assemble(members)?, [a, b])
    }

    /// The union of two groups, where it is faster and allowed.
    fn placed(&self, mut joined: Group, [a, b]: [&Group; 2]) -> Option<Group> {
        if joined.ns >= a.ns.saturating_add(b.ns) {
            return None;
        }
        for at in [a.at.max(b.at), a.at.min(b.at)] {
            joined.at = at;
            if self.may_stand(&joined)
                && self.lives.no_worse(&joined, [a, b], &|i| self.place(i), &|i| self.runs(i))
            {
                let own = |i: usize| if joined.members.contains(&i) { at } else { self.place(i) };
                return (self.lives.working_set(&joined, &own) <= self.largest).then_some(joined);
            }
        }
        None
    }

    /// The fused op of the ops at these positions, which must have one shape.
    fn assemble(&self, members: Vec<usize>) -> Option<Group> {
        let (mut operands, mut results, mut outs) = (Vec::new(), Vec::new(), Vec::new());
        let mut steps: Vec<Step> = Vec::with_capacity(members.len());
        let order = self.steps(&members);
        let mut rest = None;
        for (t, &i) in order.iter().enumerate() {
            let op = &self.m.ops[self.m.order[i]];
            let mut args = Vec::with_capacity(op.operands.len());
            for &v in &op.operands {
                let step = self.definer(v).and_then(|p| order.iter().position(|&i| i == p));
                args.push(match step {
                    Some(step) => Arg::Step(step as u32),
                    None => {
                        let known = operands.iter().position(|&o| o == v);
                        let x = known.unwrap_or_else(|| {
                            operands.push(v);
                            operands.len() - 1
                        });
                        Arg::Operand(x as u32)
                    }
                });
            }
            steps.push(Step { op: op.kind()?.clone(), args });
            let (&result, others) = op.results.split_first()?;
            if self.is_norm(i) {
                rest = Some(others);
            }
            let outside = |u: &usize| members.binary_search(u).is_err();
            if self.lives.is_root(result) || self.lives.users(result).iter().any(outside) {
                results.push(result);
                outs.push(t as u64);
            }
        }
        if steps.len() > MAX_STEPS || operands.len() > MAX_OPERANDS || results.len() > MAX_RESULTS {
            return None;
        }
        let kind = match rest {
            Some(_) => OpKind::FusedNorm { body: Body(steps), outs },
            None => OpKind::Fused { body: Body(steps), outs },
        };
        results.extend(rest.into_iter().flatten());
        let ty = |v: &ValueId| &self.m.values[*v].ty;
        let (from, to): (Vec<&TensorType>, Vec<&TensorType>) =
            (operands.iter().map(ty).collect(), results.iter().map(ty).collect());
        kind.infer(&from).ok()?;
        if is_head(self.m.ops[self.m.order[*members.first()?]].kind()?) {
            let types: Vec<TensorType> = from.iter().map(|&ty| ty.clone()).collect();
            memc_cuda::library(&kind, &types)?;
        }
        let ns = self.profile.op_ns(&kind, &from, &to);
        Some(Group { at: *members.first()?, members, kind, operands, results, ns })
    }

    /// Whether the op at position `i` is one that element-wise ops before and behind it may be joined with.
    pub(super) fn is_norm(&self, i: usize) -> bool {
        self.m.ops[self.m.order[i]].kind().is_some_and(is_norm)
    }

    /// Joins the normalisation at position `i` with the group that makes its operand, and with those that
    /// read its first result.
    pub(super) fn surround(&mut self, i: usize) {
        let op = &self.m.ops[self.m.order[i]];
        let (Some(&x), Some(&y)) = (op.operands.first(), op.results.first()) else { return };
        let around: Vec<usize> =
            self.definer(x).into_iter().chain(self.lives.users(y).iter().copied()).collect();
        for p in around {
            let (mine, other) = (self.of[i], self.of[p]);
            if mine == other || self.shape(p) != Some(&self.m.values[y].ty.shape) {
                continue;
            }
            // From an operand that others read too, as the backward pass does, the result can be recomputed
            // alone.
            if let Some(joined) = self.joined(mine, other).filter(|joined| !joined.results.contains(&x)) {
                self.put(joined);
            }
        }
    }

    /// The members in the order of a body's steps. Without a normalisation among them, that is the order of
    /// the module. Otherwise the ops that it needs come first, with their readers that come before it, and
    /// all others behind it.
    fn steps(&self, members: &[usize]) -> Vec<usize> {
        let Some(norm) = members.iter().position(|&i| self.is_norm(i)) else { return members.to_vec() };
        let reads = |k: usize| {
            let operands = self.m.ops[self.m.order[members[k]]].operands.iter();
            operands.filter_map(|&v| self.definer(v)).filter_map(|p| members.binary_search(&p).ok())
        };
        let (mut early, mut late) = (vec![false; members.len()], vec![false; members.len()]);
        late[norm] = true;
        reads(norm).for_each(|k| early[k] = true);
        for k in (0..norm).rev() {
            if early[k] {
                reads(k).for_each(|k| early[k] = true);
            }
        }
        for k in 0..members.len() {
            late[k] |= reads(k).any(|p| late[p]);
            early[k] |= !late[k] && reads(k).any(|p| early[p]);
        }
        let part = |is: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..members.len()).filter(|&k| k != norm && is(k)).map(|k| members[k]).collect()
        };
        [part(&|k| early[k]), vec![members[norm]], part(&|k| !early[k])].concat()
    }

    /// Joins products with the sum of an operand over the axis that they sum over, where a library does both.
    pub(super) fn join_sums(&mut self) {
        for i in 0..self.of.len() {
            let joined = [false, true].into_iter().find_map(|sum_b| {
                let operand = *self.group(i)?.operands.get(usize::from(sum_b))?;
                self.lives.readers(operand).iter().find_map(|&u| self.with_sum(i, u, sum_b))
            });
            if let Some(joined) = joined {
                self.put(joined);
            }
        }
    }

    /// The product at position `i` with the sum at position `u`, which is of the rows of an operand, however
    /// many axes these are there: the order of the sum is the same.
    fn with_sum(&self, i: usize, u: usize, sum_b: bool) -> Option<Group> {
        let (a, b) = (self.group(i)?, self.group(u)?);
        let (&OpKind::MatMul { trans_a, trans_b, alpha }, OpKind::ReduceSum { axes, keepdims: false }) =
            (&a.kind, &b.kind)
        else {
            return None;
        };
        let kind = OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b };
        let types: Vec<TensorType> = a.operands.iter().map(|&v| self.m.values[v].ty.clone()).collect();
        let from: Vec<&TensorType> = types.iter().collect();
        let (ty, whole) = (from.get(usize::from(sum_b))?, &self.m.values[*b.operands.first()?].ty);
        let is_of_rows = axes.iter().copied().eq(0..whole.rank().saturating_sub(1) as u64);
        if !is_of_rows || whole.shape.last() != ty.shape.last() || whole.numel() != ty.numel() {
            return None;
        }
        // Only where the rows are outermost.
        memc_cuda::library(&kind, &types)?;
        let results = [a.results.as_slice(), &b.results].concat();
        let made = kind.infer(&from).ok()?;
        if !made.iter().eq(results.iter().map(|&v| &self.m.values[v].ty)) {
            return None;
        }
        let ns = self.profile.op_ns(&kind, &from, &made.iter().collect::<Vec<_>>());
        let mut members = vec![i, u];
        members.sort_unstable();
        let joined = Group { members, at: i, kind, operands: a.operands.clone(), results, ns };
        self.placed(joined, [a, b])
    }

    /// Whether the group stands behind its operands' ops and before its results' readers.
    fn may_stand(&self, joined: &Group) -> bool {
        let before = |&v: &ValueId| self.definer(v).is_none_or(|p| self.place(p) < joined.at);
        let behind = |&v: &ValueId| {
            let users = self.lives.users(v).iter();
            users.filter(|u| joined.members.binary_search(u).is_err()).all(|&u| self.place(u) > joined.at)
        };
        joined.operands.iter().all(before) && joined.results.iter().all(behind)
    }

    /// The groups in the order in which they stand.
    pub(super) fn finish(mut self) -> Vec<Item> {
        let mut items = Vec::with_capacity(self.of.len());
        for i in 0..self.of.len() {
            let Some(group) = self.groups[self.of[i]].take_if(|g| g.at == i) else {
                continue;
            };
            items.push(match group.members.as_slice() {
                [_] => Item::Op(self.m.order[i]),
                members => {
                    let ops = members.iter().map(|&i| self.m.order[i]).collect();
                    let Group { kind, operands, results, .. } = group;
                    Item::Fused { kind, operands, results, ops }
                }
            });
        }
        items
    }
}
