//! Live bytes before and after two groups become one.
//!
//! Bytes are counted as in [`peak_live_bytes`](crate::analysis::peak_live_bytes): a view counts as its
//! operand, a result may take the bytes of a dying operand, a next state is written over the old one, states
//! and constants are always live.

use memc_ir::{Def, Id, Module, OpId, TensorType, ValueId, aligned};

use super::item::Group;
use crate::device::DeviceProfile;
use crate::plan::storage::base;

/// Uses of all values.
pub(super) struct Lives<'a> {
    m: &'a Module,
    profile: &'a DeviceProfile,
    position: Vec<Option<usize>>,
    /// The value whose bytes a value shows.
    base: Vec<ValueId>,
    /// For every value, the positions of the ops that read it, views among them.
    users: Vec<Vec<usize>>,
    /// For every value that is no view, the positions of the ops, but views, that read its bytes.
    readers: Vec<Vec<usize>>,
    root: Vec<bool>,
    /// For every value whose bytes are the next of a state: that state's value.
    resident: Vec<Option<ValueId>>,
    /// For every value of a state, the value whose bytes are its next.
    next: Vec<Option<ValueId>>,
    /// Values of fewer bytes do not count.
    pub(super) tiny: u64,
    /// Scratch of fewer bytes does not count.
    pub(super) small_scratch: u64,
}

/// First and last position at which a value is live.
type Interval = Option<(usize, usize)>;

impl<'a> Lives<'a> {
    pub(super) fn new(m: &'a Module, profile: &'a DeviceProfile) -> Lives<'a> {
        let base: Vec<ValueId> = m.values.ids().map(|v| base(m, v)).collect();
        let mut position = vec![None; m.ops.len()];
        let (mut users, mut readers) = (vec![Vec::new(); base.len()], vec![Vec::new(); base.len()]);
        for (i, &op) in m.order.iter().enumerate() {
            position[op.index()] = Some(i);
            for &v in &m.ops[op].operands {
                users[v.index()].push(i);
                if !m.ops[op].is_view() {
                    readers[base[v.index()].index()].push(i);
                }
            }
        }
        let mut root = vec![false; base.len()];
        m.roots().for_each(|v| root[v.index()] = true);
        let (mut resident, mut nexts) = (vec![None; base.len()], vec![None; base.len()]);
        for state in m.states.values() {
            if let Some(next) = state.next {
                resident[base[next.index()].index()] = Some(state.value);
                nexts[state.value.index()] = Some(base[next.index()]);
            }
        }
        Lives {
            m,
            profile,
            position,
            base,
            users,
            readers,
            root,
            resident,
            next: nexts,
            tiny: 0,
            small_scratch: 0,
        }
    }

    pub(super) fn position(&self, op: OpId) -> Option<usize> {
        self.position.get(op.index()).copied().flatten()
    }

    /// Positions of the ops that read a value.
    pub(super) fn users(&self, v: ValueId) -> &[usize] {
        &self.users[v.index()]
    }

    /// Positions of the ops, but views, that read the bytes of a value.
    pub(super) fn readers(&self, v: ValueId) -> &[usize] {
        &self.readers[self.base[v.index()].index()]
    }

    /// Whether a value outlives the step.
    pub(super) fn is_root(&self, v: ValueId) -> bool {
        self.root[v.index()]
    }

    fn bytes(&self, v: ValueId) -> u64 {
        aligned(self.m.values[v].ty.bytes().max(1))
    }

    /// Whether the bytes come and go within a step.
    fn is_passing(&self, v: ValueId) -> bool {
        let persistent = matches!(self.m.values[v].def, Def::State(_) | Def::Const(_) | Def::HostShadow(_));
        !persistent && self.resident[v.index()].is_none()
    }

    /// Interval in which a value is live when the op at position `i` stands at `place(i)`.
    fn interval(&self, v: ValueId, place: &dyn Fn(usize) -> usize) -> Interval {
        let own = self.m.def_op(v).and_then(|op| self.position(op)).map(place);
        let reads = self.readers[v.index()].iter().map(|&i| place(i));
        let (first, last) = (reads.clone().min(), reads.max());
        let begin = own.or(first)?;
        Some((begin, last.map_or(begin, |last| last.max(begin))))
    }

    fn types(&self, values: &[ValueId]) -> Vec<&'a TensorType> {
        values.iter().map(|&v| &self.m.values[v].ty).collect()
    }

    /// Operands and results of a group that may share bytes.
    fn pairs(&self, g: &Group) -> Vec<(usize, usize)> {
        g.kind.inplace_pairs(&self.types(&g.operands), &self.types(&g.results))
    }

    /// Bytes of a group's scratch.
    fn workspace(&self, g: &Group) -> u64 {
        aligned(self.profile.workspace(&g.kind, &self.types(&g.operands), &self.types(&g.results)))
    }

    /// Bytes of the group's results that are those of operands that die with it, when it stands at `at`.
    fn taken(&self, g: &Group, at: usize, place: &dyn Fn(usize) -> usize) -> u64 {
        let pairs = self.pairs(g);
        let mut gone: Vec<ValueId> = Vec::new();
        let mut total = 0;
        for (j, &r) in g.results.iter().enumerate().filter(|(_, r)| self.is_passing(**r)) {
            let found = g.operands.iter().map(|v| self.base[v.index()]).find(|&b| {
                let mut same = g.operands.iter().enumerate().filter(|(_, v)| self.base[v.index()] == b);
                let dies = self.interval(b, place).is_some_and(|(_, last)| last == at);
                self.is_passing(b) && dies && !gone.contains(&b) && same.all(|(i, _)| pairs.contains(&(i, j)))
            });
            if let Some(b) = found {
                gone.push(b);
                total += self.bytes(r);
            }
        }
        total
    }

    /// Bytes of the operands and results of a group, each once.
    pub(super) fn working_set(&self, g: &Group, place: &dyn Fn(usize) -> usize) -> u64 {
        let resident = |v: ValueId| self.resident[v.index()].unwrap_or(v);
        let own = g.operands.iter().chain(&g.results).map(|v| resident(self.base[v.index()]));
        let mut own: Vec<ValueId> = own.collect();
        own.sort_unstable();
        own.dedup();
        let all = own.iter().map(|&v| self.bytes(v)).fold(self.workspace(g), u64::saturating_add);
        all.saturating_sub(self.taken(g, g.at, place))
    }

    /// Whether `joined` in place of two groups keeps no more bytes live while any op runs, and leaves next
    /// states in their resident slots. Before joining, the op at position `i` stands at `place(i)`, and
    /// `runs` tells the positions where something runs.
    pub(super) fn no_worse(
        &self,
        joined: &Group,
        parts: [&Group; 2],
        place: &dyn Fn(usize) -> usize,
        runs: &dyn Fn(usize) -> bool,
    ) -> bool {
        let at = joined.at;
        let moved = |i: usize| if joined.members.binary_search(&i).is_ok() { at } else { place(i) };
        let pairs = self.pairs(joined);
        let home_is_free = |(j, r): (usize, &ValueId)| {
            let Some(old) = self.resident[r.index()] else { return true };
            let mut own =
                (0..joined.operands.len()).filter(|&i| self.base[joined.operands[i].index()] == old);
            let may_share = own.all(|i| pairs.contains(&(i, j)));
            let is_read = |&i: &usize| moved(i) < at || joined.members.binary_search(&i).is_ok();
            may_share && self.readers[old.index()].iter().all(is_read)
        };
        // A state that is read behind the op that computes its next contents is copied in between.
        let is_read_in_time = |v: &ValueId| {
            let old = self.base[v.index()];
            let next = self.next[old.index()].and_then(|n| self.m.def_op(n)).and_then(|op| self.position(op));
            let Some(next) = next.filter(|n| joined.members.binary_search(n).is_err()) else { return true };
            at < place(next) || self.readers[old.index()].iter().any(|&i| place(i) > place(next))
        };
        if !joined.results.iter().enumerate().all(home_is_free)
            || !joined.operands.iter().all(is_read_in_time)
        {
            return false;
        }
        let touched = parts.iter().flat_map(|g| g.operands.iter().chain(&g.results));
        let mut touched: Vec<ValueId> = touched.map(|v| self.base[v.index()]).collect();
        touched.sort_unstable();
        touched.dedup();
        touched.retain(|&v| self.is_passing(v) && self.bytes(v) > self.tiny);
        // Values inside the group are in registers.
        let is_inside = |v: ValueId| {
            let own = self.m.def_op(v).and_then(|op| self.position(op));
            own.is_some_and(|i| joined.members.binary_search(&i).is_ok()) && !joined.results.contains(&v)
        };
        let changes: Vec<(u64, Interval, Interval)> = touched
            .iter()
            .map(|&v| {
                let after = if is_inside(v) { None } else { self.interval(v, &moved) };
                (self.bytes(v), self.interval(v, place), after)
            })
            .collect();
        let sums = |holds: &dyn Fn((usize, usize)) -> bool| {
            let sum = |of: &dyn Fn(&(u64, Interval, Interval)) -> Interval| -> u64 {
                changes.iter().filter(|c| of(c).is_some_and(holds)).map(|c| c.0).sum()
            };
            (sum(&|c| c.1), sum(&|c| c.2))
        };
        // Live bytes change only between the two groups, and there at the ends of intervals.
        let (low, high) = (parts[0].at.min(parts[1].at), parts[0].at.max(parts[1].at));
        let ends =
            changes.iter().flat_map(|c| [c.1, c.2]).flatten().flat_map(|(first, last)| [first, last + 1]);
        let next = |p: usize| (p.max(low + 1)..high).find(|&i| runs(i));
        let as_before = |p: usize| {
            let (before, after) = sums(&|(first, last)| first <= p && p <= last);
            after <= before
        };
        let (before, after) = sums(&|(first, last)| first <= at && at <= last);
        let part = parts.iter().find(|g| g.at == at);
        let (was, scratch) = part.map_or((0, 0), |g| (self.taken(g, at, place), self.workspace(g)));
        let (now, own) = (self.taken(joined, at, &moved), self.workspace(joined));
        ends.chain([low]).filter_map(next).all(as_before)
            && after.saturating_sub(now).saturating_add(own.saturating_sub(self.small_scratch))
                <= before.saturating_sub(was).saturating_add(scratch)
    }
}
