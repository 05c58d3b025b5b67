//! Building and editing modules.

use indexmap::IndexMap;

use crate::data::Data;
use crate::entity::{Arena, ConstId, HostShadowId, Id, InputId, OpId, SlotId, StateId, ValueId};
use crate::error::TypeError;
use crate::init::Init;
use crate::module::{Code, Const, Def, Feed, HostShadow, Input, Module, Op, Phase, Role, State, Value};
use crate::ops::OpKind;
use crate::types::TensorType;

impl Module {
    /// An empty graph-phase module.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            phase: Phase::Graph,
            inputs: Arena::default(),
            states: Arena::default(),
            consts: Arena::default(),
            host_shadows: Arena::default(),
            values: Arena::default(),
            ops: Arena::default(),
            slots: Arena::default(),
            order: Vec::new(),
            outputs: Vec::new(),
            names: IndexMap::new(),
        }
    }

    /// Adds a value called `hint`, or `hint.N` with the first free `N` when the name is taken.
    pub fn add_value(&mut self, hint: &str, ty: TensorType, def: Def) -> ValueId {
        let name = self.free_name(hint);
        let id = self.values.push(Value { name: name.clone(), ty, def });
        self.names.insert(name, id);
        id
    }

    fn free_name(&self, hint: &str) -> String {
        let hint = if hint.is_empty() { "v" } else { hint };
        if !self.names.contains_key(hint) {
            return hint.to_string();
        }
        // Doubling, then bisecting, keeps many values of one hint far from quadratic.
        let taken = |n: u64| self.names.contains_key(&format!("{hint}.{n}"));
        let mut high = 1;
        while taken(high) {
            high *= 2;
        }
        let mut low = high / 2;
        while high - low > 1 {
            let mid = low + (high - low) / 2;
            if taken(mid) { low = mid } else { high = mid }
        }
        format!("{hint}.{high}")
    }

    /// Calls `value` `hint`, or `hint.N` when that name is taken by another value.
    pub fn rename(&mut self, value: ValueId, hint: &str) {
        let old = std::mem::take(&mut self.values[value].name);
        self.names.swap_remove(&old);
        let name = self.free_name(hint);
        self.values[value].name.clone_from(&name);
        self.names.insert(name, value);
    }

    /// Lets two values exchange their names.
    pub fn swap_names(&mut self, a: ValueId, b: ValueId) {
        let name = std::mem::take(&mut self.values[a].name);
        let name = std::mem::replace(&mut self.values[b].name, name);
        self.values[a].name = name;
        for v in [a, b] {
            self.names.insert(self.values[v].name.clone(), v);
        }
    }

    /// The value called `name`.
    pub fn value_named(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied()
    }

    /// Adds a per-step input.
    pub fn add_input(&mut self, name: &str, ty: TensorType, feed: Feed) -> ValueId {
        let value = self.add_value(name, ty, Def::Input(InputId::new(self.inputs.len())));
        self.inputs.push(Input { value, feed, slot: None });
        value
    }

    /// Adds a persistent tensor that the step does not change yet.
    pub fn add_state(&mut self, name: &str, ty: TensorType, role: Role, init: Init) -> StateId {
        let value = self.add_value(name, ty, Def::State(StateId::new(self.states.len())));
        self.states.push(State { value, role, init, next: None, slot: None })
    }

    /// Adds a constant; `data` is its dense little-endian payload.
    pub fn add_const(&mut self, name: &str, ty: TensorType, data: impl Into<Data>) -> ValueId {
        let value = self.add_value(name, ty, Def::Const(ConstId::new(self.consts.len())));
        self.consts.push(Const { value, data: data.into(), slot: None });
        value
    }

    /// Mem phase: adds a second resident slot, `slot`, of the state or constant that defines `of`.
    pub fn add_host_shadow(&mut self, name: &str, ty: TensorType, of: ValueId, slot: SlotId) -> HostShadowId {
        let value = self.add_value(name, ty, Def::HostShadow(HostShadowId::new(self.host_shadows.len())));
        self.host_shadows.push(HostShadow { value, of, slot })
    }

    /// Adds a compute op at the end of the order; its results are called after `names` (then `mnemonic`).
    ///
    /// Fails, changing nothing, when the row rejects the operand types.
    pub fn add_op(
        &mut self,
        kind: OpKind,
        operands: &[ValueId],
        names: &[&str],
        origin: &str,
    ) -> Result<Vec<ValueId>, TypeError> {
        let id = self.new_op(kind, operands, names, origin)?;
        self.order.push(id);
        Ok(self.ops[id].results.clone())
    }

    /// Like [`Module::add_op`], but leaves placing the op in the order to the caller.
    pub fn new_op(
        &mut self,
        kind: OpKind,
        operands: &[ValueId],
        names: &[&str],
        origin: &str,
    ) -> Result<OpId, TypeError> {
        let types: Vec<&TensorType> = operands.iter().map(|&v| &self.values[v].ty).collect();
        let result_types = kind.infer(&types)?;
        let id = OpId::new(self.ops.len());
        let fallback = kind.mnemonic();
        let results = result_types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let hint = names.get(i).copied().filter(|n| !n.is_empty()).unwrap_or(fallback);
                self.add_value(hint, ty, Def::Op(id, i as u32))
            })
            .collect();
        Ok(self.push_op(Code::Compute(kind), operands.to_vec(), results, origin))
    }

    /// Adds an op of any code without placing it in the order. The results must already name it in their
    /// `def`.
    pub fn push_op(
        &mut self,
        code: Code,
        operands: Vec<ValueId>,
        results: Vec<ValueId>,
        origin: &str,
    ) -> OpId {
        self.ops.push(Op {
            code,
            operands,
            results,
            origin: origin.to_string(),
            slots: Vec::new(),
            workspace: None,
            on_host: false,
            clone_of: None,
            waits: Vec::new(),
        })
    }

    /// The op that defines `value`, if one does.
    pub fn def_op(&self, value: ValueId) -> Option<OpId> {
        if let Def::Op(op, _) = self.values[value].def { Some(op) } else { None }
    }

    /// The payload of `value` when it is a constant.
    pub fn const_data(&self, value: ValueId) -> Option<&Data> {
        if let Def::Const(c) = self.values[value].def { Some(&self.consts[c].data) } else { None }
    }

    /// The operands' types.
    pub fn operand_types(&self, op: OpId) -> Vec<&TensorType> {
        self.ops[op].operands.iter().map(|&v| &self.values[v].ty).collect()
    }

    /// The results' types.
    pub fn result_types(&self, op: OpId) -> Vec<&TensorType> {
        self.ops[op].results.iter().map(|&v| &self.values[v].ty).collect()
    }

    /// Mem phase: what is in memory when a step starts, and its resident slot: inputs, states, constants,
    /// host shadows.
    pub fn resident_slots(&self) -> impl Iterator<Item = (ValueId, Option<SlotId>)> {
        let inputs = self.inputs.values().map(|x| (x.value, x.slot));
        let states = self.states.values().map(|x| (x.value, x.slot));
        let consts = self.consts.values().map(|x| (x.value, x.slot));
        let host_shadows = self.host_shadows.values().map(|x| (x.value, Some(x.slot)));
        inputs.chain(states).chain(consts).chain(host_shadows)
    }

    /// Mem phase: the slot that holds `value`.
    pub fn slot_of(&self, value: ValueId) -> Option<SlotId> {
        match self.values[value].def {
            Def::Input(i) => self.inputs[i].slot,
            Def::State(s) => self.states[s].slot,
            Def::Const(c) => self.consts[c].slot,
            Def::HostShadow(m) => Some(self.host_shadows[m].slot),
            Def::Op(op, i) => self.ops[op].slots.get(i as usize).copied(),
        }
    }

    /// Values that outlive the step: outputs, and the states' next values.
    pub fn roots(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().map(|o| o.value).chain(self.states.values().filter_map(|s| s.next))
    }

    /// Replaces every use of a value (operand, output, next state) by `map` of it.
    pub fn map_uses(&mut self, map: impl Fn(ValueId) -> ValueId) {
        for &op in &self.order {
            for v in &mut self.ops[op].operands {
                *v = map(*v);
            }
        }
        for o in &mut self.outputs {
            o.value = map(o.value);
        }
        for (_, s) in self.states.iter_mut() {
            s.next = s.next.map(&map);
        }
    }

    /// For every value, the live ops that read it, in order and without repetition.
    pub fn users(&self) -> Vec<Vec<OpId>> {
        let mut users: Vec<Vec<OpId>> = vec![Vec::new(); self.values.len()];
        for &op in &self.order {
            for &v in &self.ops[op].operands {
                let list = &mut users[v.index()];
                if list.last() != Some(&op) {
                    list.push(op);
                }
            }
        }
        users
    }
}
