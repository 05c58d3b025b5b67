//! A module under rewriting: uses of values, places of new ops, and dead ops.
//!
//! Contract: every op has a *place*, a pair (position in the given order, sequence number). A new op stands
//! right after the op it is made for, and reads only what stands before it, so the places always give a legal
//! order and nothing is ever scheduled anew. Uses are kept up to date with every change, so a rule sees the
//! graph as it is. This file decides nothing: rules do.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::attr::{F32, Scalar};
use memc_ir::{Code, Def, Id, Module, OpId, OpKind, TensorType, ValueId};

use super::super::facts::{scalar_bytes, sole_def, splat};

/// Position in the order given, and sequence among the ops made for that position; values that no op computes
/// come before every op.
type Place = (usize, usize);

/// A module with the indices that rewriting needs.
pub(super) struct Editor<'a> {
    m: &'a mut Module,
    /// By value: the live ops that read it.
    users: Vec<BTreeSet<OpId>>,
    /// By value: outputs and next states that are it.
    roots: Vec<u32>,
    /// By op.
    place: Vec<Place>,
    /// By op: some result is used.
    alive: Vec<bool>,
    /// Ops that rules made, so that two rules which need one op share it.
    made: BTreeMap<(OpKind, Vec<ValueId>), OpId>,
    /// Results of those that have no name of the source model yet.
    unnamed: BTreeSet<ValueId>,
    consts: BTreeMap<(TensorType, Vec<u8>), ValueId>,
    /// Place of new ops.
    at: Place,
    /// The op that is being rewritten: new ops take its origin, and its result's name unless they get
    /// another.
    root: OpId,
    made_ops: usize,
    /// Whether gradients may still be taken: then rules make no op that has none.
    forward: bool,
}

impl<'a> Editor<'a> {
    /// Starts on a module without dead ops.
    pub(super) fn new(m: &'a mut Module, forward: bool) -> Option<Self> {
        let root = *m.order.first()?;
        let mut users = vec![BTreeSet::new(); m.values.len()];
        for &op in &m.order {
            for v in &m.ops[op].operands {
                users[v.index()].insert(op);
            }
        }
        let mut roots = vec![0; m.values.len()];
        m.roots().for_each(|v| roots[v.index()] += 1);
        let mut place = vec![(0, 0); m.ops.len()];
        let mut alive = vec![false; m.ops.len()];
        for (i, id) in m.order.iter().enumerate() {
            place[id.index()] = (i + 1, 0);
            alive[id.index()] = true;
        }
        let (made, unnamed, consts) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Some(Self {
            m,
            users,
            roots,
            place,
            alive,
            made,
            unnamed,
            consts,
            at: (0, 0),
            root,
            made_ops: 0,
            forward,
        })
    }

    /// The module as it is. Its order is that of the start.
    pub(super) fn module(&self) -> &Module {
        self.m
    }

    /// Live ops, in order.
    pub(super) fn ops(&self) -> Vec<OpId> {
        let mut ops: Vec<OpId> = self.m.ops.ids().filter(|id| self.alive[id.index()]).collect();
        ops.sort_by_key(|id| self.place[id.index()]);
        ops
    }

    /// Whether the op still computes something that is used.
    pub(super) fn is_alive(&self, op: OpId) -> bool {
        self.alive[op.index()]
    }

    /// Live ops that read `v`.
    pub(super) fn users(&self, v: ValueId) -> impl Iterator<Item = OpId> + '_ {
        self.users[v.index()].iter().copied()
    }

    /// Whether `v` is an output or a next state.
    pub(super) fn is_root(&self, v: ValueId) -> bool {
        self.roots[v.index()] > 0
    }

    /// Type of a value.
    pub(super) fn ty(&self, v: ValueId) -> &TensorType {
        &self.m.values[v].ty
    }

    /// Shape of a value.
    pub(super) fn shape(&self, v: ValueId) -> &[u64] {
        &self.m.values[v].ty.shape
    }

    /// The op that computes `v` as its only result, with its operands.
    pub(super) fn def(&self, v: ValueId) -> Option<(&OpKind, &[ValueId])> {
        sole_def(self.m, v)
    }

    /// The op with the result `v`, and the index of that result.
    pub(super) fn result_of(&self, v: ValueId) -> Option<(OpId, usize)> {
        if let Def::Op(id, i) = self.m.values[v].def { Some((id, i as usize)) } else { None }
    }

    /// The element that `v` repeats everywhere, as an exact real number.
    pub(super) fn number(&self, v: ValueId) -> Option<f64> {
        Some(match splat(self.m, v)? {
            Scalar::Float(F32(x)) => f64::from(x),
            Scalar::Int(x) => x as f64,
        })
    }

    /// Place where the value is defined.
    fn place_of(&self, v: ValueId) -> Place {
        self.m.def_op(v).map_or((0, 0), |op| self.place[op.index()])
    }

    /// Makes `op` the rewritten op: new ops go right after it.
    pub(super) fn aim(&mut self, op: OpId) {
        self.root = op;
        self.at = self.place[op.index()];
    }

    /// Makes new ops stand where the first of `values` is defined.
    ///
    /// For ops whose results stand for values other than the root's, since those may have users before the
    /// root.
    pub(super) fn aim_at_first(&mut self, values: &[ValueId]) {
        self.at = values.iter().map(|&v| self.place_of(v)).min().unwrap_or(self.at).min(self.at);
    }

    /// Results of an op on values that stand before the current place, found again when it was made before.
    ///
    /// `None` when the row rejects the operands, one of them stands too late, or gradients may still be taken
    /// and the op has none.
    pub(super) fn op(&mut self, kind: OpKind, operands: &[ValueId]) -> Option<Vec<ValueId>> {
        if self.forward && !memc_ir::autodiff::is_differentiable(&kind) {
            return None;
        }
        if operands.iter().any(|&v| self.place_of(v) > self.at_end()) {
            return None;
        }
        let key = (kind, operands.to_vec());
        if let Some(&id) = self.made.get(&key)
            && self.place[id.index()] <= self.at_end()
        {
            self.revive(id);
            return Some(self.m.ops[id].results.clone());
        }
        let (kind, _) = &key;
        let root = &self.m.ops[self.root];
        let hint = self.m.values[*root.results.first()?].name.clone();
        let names: Vec<String> = match kind.def().results {
            [_] => vec![hint],
            many => many.iter().map(|r| format!("{hint}/{r}")).collect(),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let origin = root.origin.clone();
        let id = self.m.new_op(kind.clone(), operands, &names, &origin).ok()?;
        self.made_ops += 1;
        self.place.push((self.at.0, self.made_ops));
        self.alive.push(false);
        let results = self.m.ops[id].results.clone();
        for _ in &results {
            self.users.push(BTreeSet::new());
            self.roots.push(0);
        }
        self.unnamed.extend(&results);
        self.revive(id);
        self.made.insert(key, id);
        Some(results)
    }

    /// The one result of [`Editor::op`].
    pub(super) fn op1(&mut self, kind: OpKind, operands: &[ValueId]) -> Option<ValueId> {
        self.op(kind, operands)?.first().copied()
    }

    /// `v` under another shape, or `v` when it has that shape.
    pub(super) fn reshape(&mut self, v: ValueId, shape: &[u64]) -> Option<ValueId> {
        if self.shape(v) == shape {
            return Some(v);
        }
        let v = match self.def(v) {
            Some((OpKind::Reshape { .. }, &[inner])) => inner,
            _ => v,
        };
        if self.shape(v) == shape {
            return Some(v);
        }
        if let Some(data) = self.m.const_data(v).cloned() {
            let ty = TensorType::new(self.ty(v).dtype, shape);
            let fits = ty.checked_numel() == self.ty(v).checked_numel();
            return fits.then(|| self.known(ty, data.to_vec()));
        }
        self.op1(OpKind::Reshape { shape: shape.to_vec() }, &[v])
    }

    /// A constant whose every element is `value`.
    pub(super) fn constant(&mut self, ty: TensorType, value: Scalar) -> Option<ValueId> {
        let count = usize::try_from(ty.checked_numel()?).ok().filter(|&n| n <= 16)?;
        let data = scalar_bytes(value, ty.dtype).repeat(count);
        Some(self.known(ty, data))
    }

    /// A constant with the given payload.
    fn known(&mut self, ty: TensorType, data: Vec<u8>) -> ValueId {
        let key = (ty, data);
        if let Some(&v) = self.consts.get(&key) {
            return v;
        }
        let v = self.m.add_const("constant", key.0.clone(), key.1.clone());
        self.users.push(BTreeSet::new());
        self.roots.push(0);
        self.consts.insert(key, v);
        v
    }

    /// The end of the current place, behind all ops made for it.
    fn at_end(&self) -> Place {
        (self.at.0, self.made_ops)
    }

    /// Replaces every use of `old` by `new`, which takes over its name when a rule just made it.
    ///
    /// `false`, changing nothing, when types differ or `new` would stand behind a use.
    pub(super) fn replace(&mut self, old: ValueId, new: ValueId) -> bool {
        if old == new || self.ty(old) != self.ty(new) {
            return false;
        }
        let place = self.place_of(new);
        if self.users[old.index()].iter().any(|u| self.place[u.index()] <= place) {
            return false;
        }
        if self.unnamed.remove(&new) {
            self.m.swap_names(old, new);
            if self.unnamed.remove(&old) {
                self.unnamed.insert(new);
            }
        }
        let users = std::mem::take(&mut self.users[old.index()]);
        for &u in &users {
            self.m.ops[u].operands.iter_mut().filter(|v| **v == old).for_each(|v| *v = new);
        }
        self.users[new.index()].extend(users);
        if self.roots[old.index()] > 0 {
            let n = std::mem::take(&mut self.roots[old.index()]);
            self.roots[new.index()] += n;
            self.m.outputs.iter_mut().filter(|o| o.value == old).for_each(|o| o.value = new);
            self.m
                .states
                .iter_mut()
                .filter(|(_, s)| s.next == Some(old))
                .for_each(|(_, s)| s.next = Some(new));
        }
        self.drop_dead(old);
        true
    }

    /// Makes `op` another op on other operands with the same result types; they must stand before it.
    pub(super) fn respell(&mut self, op: OpId, kind: OpKind, operands: Vec<ValueId>) {
        let before = std::mem::replace(&mut self.m.ops[op].operands, operands.clone());
        self.m.ops[op].code = Code::Compute(kind);
        for v in operands {
            self.users[v.index()].insert(op);
        }
        for v in before {
            if !self.m.ops[op].operands.contains(&v) {
                self.users[v.index()].remove(&op);
                self.drop_dead(v);
            }
        }
    }

    fn revive(&mut self, id: OpId) {
        if std::mem::replace(&mut self.alive[id.index()], true) {
            return;
        }
        for v in self.m.ops[id].operands.clone() {
            if let Some(def) = self.m.def_op(v) {
                self.revive(def);
            }
            self.users[v.index()].insert(id);
        }
    }

    /// Takes the op of `v`, and the ops that only it needs, out of use lists when nothing uses its results.
    fn drop_dead(&mut self, v: ValueId) {
        let mut open = vec![v];
        while let Some(v) = open.pop() {
            let Some(id) = self.m.def_op(v).filter(|id| self.alive[id.index()]) else { continue };
            let used = |r: &ValueId| !self.users[r.index()].is_empty() || self.roots[r.index()] > 0;
            if self.m.ops[id].results.iter().any(used) {
                continue;
            }
            self.alive[id.index()] = false;
            for x in self.m.ops[id].operands.clone() {
                self.users[x.index()].remove(&id);
                open.push(x);
            }
        }
    }

    /// Drops ops that a rule made and did not use.
    pub(super) fn settle(&mut self) {
        let ids: Vec<OpId> = self.made.values().copied().filter(|id| self.alive[id.index()]).collect();
        for id in ids.into_iter().rev() {
            let Some(&first) = self.m.ops[id].results.first() else { continue };
            self.drop_dead(first);
        }
    }

    /// Writes the order.
    pub(super) fn finish(mut self) {
        self.settle();
        let order = self.ops();
        self.m.order = order;
    }
}
