//! Writing a formulation into the module.

use std::collections::BTreeMap;

use memc_ir::{Code, Def, Id, Module, OpId, OpKind, TensorType, ValueId};

use super::sides::Sides;
use super::solution::{Choice, Solution};
use super::space::{Item, Side, Way};
use crate::Contradiction;
use crate::graph::facts::scalar_bytes;

/// Changes to the module.
#[derive(Default)]
pub(super) struct Written {
    /// Names of recomputed forward values.
    pub(super) recomputed: Vec<String>,
    /// Ops that were added to the forward pass.
    pub(super) early: Vec<OpId>,
    /// Rules whose terms were taken, and the names of the values that these compute.
    pub(super) rules: Vec<(usize, String)>,
}

/// Makes the backward pass compute what `s` chose.
///
/// Ops that stay keep their ids, their results' names and their places. A recomputed op stands before its
/// first reader and is named like the original with a number. An op that is saved instead of a forward value
/// follows the op that computes its last operand. Dead ops are left for dead code elimination.
pub(super) fn emit(m: &mut Module, sides: &Sides, s: &Solution<'_>) -> Result<Written, Contradiction> {
    let order = std::mem::take(&mut m.order);
    let mut e = Emitter {
        m,
        s,
        saved: BTreeMap::new(),
        made: BTreeMap::new(),
        ops: BTreeMap::new(),
        written: Written::default(),
    };
    let early = e.early_ops(sides, &order)?;
    let mut place = 0;
    for id in order {
        if sides.is_backward(id) {
            e.backward(id, place)?;
            place += 1;
        } else {
            e.m.order.push(id);
        }
        for &new in early.get(&id).into_iter().flatten() {
            e.m.order.push(new);
        }
    }
    let written = e.written;
    // Of equal results only one is computed.
    let now: Vec<ValueId> = (m.values.iter())
        .map(|(v, value)| match value.def {
            Def::Op(op, _) if sides.is_backward(op) => s.space.value(v).unwrap_or(v),
            _ => v,
        })
        .collect();
    m.map_uses(|v| now[v.index()]);
    Ok(written)
}

struct Emitter<'a> {
    m: &'a mut Module,
    s: &'a Solution<'a>,
    /// By class, the new value that is saved in the forward pass.
    saved: BTreeMap<usize, ValueId>,
    /// By class and place, the value that was computed there.
    made: BTreeMap<(usize, u32), ValueId>,
    /// By place, op and operands: results of ops that were added there.
    ops: BTreeMap<(u32, OpKind, Vec<ValueId>), OpId>,
    written: Written,
}

impl<'a> Emitter<'a> {
    fn item(&self, class: usize) -> &'a Item {
        &self.s.space.items[class]
    }

    /// Adds the ops that compute, in the forward pass, the values saved instead of others; by the op they
    /// follow.
    fn early_ops(
        &mut self,
        sides: &Sides,
        order: &[OpId],
    ) -> Result<BTreeMap<OpId, Vec<OpId>>, Contradiction> {
        let position: BTreeMap<OpId, usize> = order.iter().enumerate().map(|(i, &op)| (op, i)).collect();
        let mut out: BTreeMap<OpId, Vec<OpId>> = BTreeMap::new();
        for class in 0..self.s.space.items.len() {
            let item = self.item(class);
            let new = item.side == Side::Forward && item.value.is_none();
            if !new || !self.s.is_read(class) || self.s.choice(class) != Choice::Save {
                continue;
            }
            let way = item.early.and_then(|w| item.ways.get(w)).ok_or("nothing computes what is kept")?;
            let mut operands = Vec::with_capacity(way.operands.len());
            for &c in &way.operands {
                operands.push(self.there(c)?);
            }
            let defs = operands.iter().filter_map(|&v| self.m.def_op(v));
            let after = defs.max_by_key(|d| position.get(d));
            let after =
                after.filter(|&d| !sides.is_backward(d)).ok_or("what is kept depends on no forward op")?;
            let (hint, origin) = self.hint(&way.kind, &operands);
            let op = self.m.new_op(way.kind.clone(), &operands, &[&hint], &origin)?;
            out.entry(after).or_default().push(op);
            self.written.early.push(op);
            self.saved.insert(class, self.result(op, way.result)?);
        }
        Ok(out)
    }

    fn result(&self, op: OpId, result: u32) -> Result<ValueId, Contradiction> {
        self.m.ops[op].results.get(result as usize).copied().ok_or("an op lacks a result".into())
    }

    /// Name and origin for an op on `operands` that the module lacks.
    fn hint(&self, kind: &OpKind, operands: &[ValueId]) -> (String, String) {
        let def = operands.iter().copied().find(|&v| self.m.def_op(v).is_some());
        let origin = def.and_then(|v| self.m.def_op(v)).map(|d| self.m.ops[d].origin.clone());
        let name = def.map_or_else(String::new, |v| format!("{}.{}", self.m.values[v].name, kind.mnemonic()));
        (name, origin.unwrap_or_default())
    }

    /// The value of a class that is available from the start or from the forward pass.
    fn there(&mut self, class: usize) -> Result<ValueId, Contradiction> {
        let item = self.item(class);
        if let Some(v) = item.value.or_else(|| self.saved.get(&class).copied()) {
            return Ok(v);
        }
        match &item.scalar {
            Some(OpKind::Fill { dtype, value, shape }) => {
                let ty = TensorType::new(*dtype, shape.clone());
                let v = self.m.add_const("scalar", ty, scalar_bytes(*value, *dtype));
                self.saved.insert(class, v);
                Ok(v)
            }
            _ => Err("a class without a value is not there".into()),
        }
    }

    /// The value of a class for a reader at `place`.
    fn value(&mut self, class: usize, place: u32) -> Result<ValueId, Contradiction> {
        let item = self.item(class);
        match (item.side, self.s.choice(class), item.op) {
            (Side::Free, ..) | (Side::Forward, Choice::Save, _) => return self.there(class),
            (Side::Backward, _, Some(_)) => return item.value.ok_or("an op without a value".into()),
            _ => {}
        }
        let copies = self.s.copies(class);
        let Some(&at) = copies[..copies.partition_point(|&p| p <= place)].last() else {
            return Err("a value is read before it is computed".into());
        };
        if let Some(&v) = self.made.get(&(class, at)) {
            return Ok(v);
        }
        if at != place {
            return Err("a value was not computed for its first reader".into());
        }
        let Choice::Make(w) = self.s.choice(class) else { return self.there(class) };
        let way = item.ways.get(w).ok_or("a class that nothing computes")?;
        let mut operands = Vec::with_capacity(way.operands.len());
        for &c in &way.operands {
            operands.push(self.value(c, place)?);
        }
        let v = self.make(class, way, operands, place)?;
        self.made.insert((class, at), v);
        Ok(v)
    }

    /// A value computed at `place`, or the module's own where a view has the same operands.
    fn make(
        &mut self,
        class: usize,
        way: &Way,
        operands: Vec<ValueId>,
        place: u32,
    ) -> Result<ValueId, Contradiction> {
        let item = self.item(class);
        if let Some(v) = item.value.filter(|_| way.view)
            && self.m.def_op(v).is_some_and(|d| self.m.ops[d].operands == operands)
        {
            return Ok(v);
        }
        let key = (place, way.kind.clone(), operands);
        if let Some(&op) = self.ops.get(&key) {
            return self.result(op, way.result);
        }
        let (_, kind, operands) = key;
        let original = item.value.and_then(|v| self.m.def_op(v)).filter(|_| way.rule.is_none());
        let id = match original {
            Some(d) => {
                let names: Vec<String> =
                    self.m.ops[d].results.iter().map(|&v| self.m.values[v].name.clone()).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let origin = self.m.ops[d].origin.clone();
                self.m.new_op(kind.clone(), &operands, &names, &origin)?
            }
            None => {
                let (name, origin) = self.hint(&kind, &operands);
                self.m.new_op(kind.clone(), &operands, &[&name], &origin)?
            }
        };
        if !way.view {
            let name = |v: ValueId| self.m.values[v].name.clone();
            match (way.rule, item.value) {
                (Some(rule), v) => self.written.rules.push((rule, name(v.unwrap_or(self.result(id, 0)?)))),
                (None, Some(v)) => self.written.recomputed.push(name(v)),
                (None, None) => {}
            }
        }
        self.ops.insert((place, kind, operands), id);
        self.m.order.push(id);
        self.result(id, way.result)
    }

    /// Places an op of the backward pass, if any of its results is read, behind the ops that it newly needs.
    fn backward(&mut self, id: OpId, place: u32) -> Result<(), Contradiction> {
        let results = self.m.ops[id].results.clone();
        let mut way = None;
        for &v in &results {
            let Some(&class) = self.s.space.of.get(v.index()) else { continue };
            let Some(item) = self.s.space.items.get(class) else { continue };
            if item.op == Some((id, place)) && self.s.is_read(class) {
                let Choice::Make(w) = self.s.choice(class) else { continue };
                way = item.ways.get(w);
            }
        }
        let Some(way) = way else { return Ok(()) };
        let mut operands = Vec::with_capacity(way.operands.len());
        for &c in &way.operands {
            operands.push(self.value(c, place)?);
        }
        if let (Some(rule), Some(&v)) = (way.rule, results.first()) {
            self.written.rules.push((rule, self.m.values[v].name.clone()));
        }
        self.m.ops[id].code = Code::Compute(way.kind.clone());
        self.m.ops[id].operands = operands;
        self.m.order.push(id);
        Ok(())
    }
}
