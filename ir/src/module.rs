//! The module: one training step, in one of two phases.
//!
//! *What* is computed (`ops`, `values`) is separate from *when* (`order`): an order pass permutes `order`
//! and touches nothing else. An op that is not in `order` does not exist for any reader.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::attr::F32;
use crate::entity::{Arena, ConstId, Id, InputId, OpId, SlotId, StateId, ValueId};
use crate::ops::OpKind;
use crate::types::TensorType;

/// How far a module has been lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Values only: no slots, no copies.
    Graph,
    /// Every result has a slot; copies between device and host are explicit.
    Mem,
}

impl Phase {
    /// Spelling in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Graph => "graph",
            Phase::Mem => "mem",
        }
    }
}

/// One tensor content.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// Unique name; the source model's name where there is one.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// Where the value comes from.
    pub def: Def,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    /// Fed every step.
    Input(InputId),
    /// What a persistent tensor holds when the step starts.
    State(StateId),
    /// The same in every step.
    Const(ConstId),
    /// The given result of an op.
    Op(OpId, u32),
}

/// Where an input's content comes from.
#[derive(Clone, PartialEq, Debug)]
pub enum Feed {
    /// Training data the user supplies under the name `source`.
    Data {
        /// Name of the source model's input.
        source: String,
        /// Which micro-step of an accumulated step consumes it, from 0.
        micro: u32,
        /// Half-open range of legal integers, where consumers imply one.
        range: Option<(i64, i64)>,
    },
    /// The learning rate.
    LearningRate {
        /// Used when the user gives none.
        default: F32,
    },
    /// The number of the optimizer step, from 1.
    Step,
}

/// A per-step input.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    /// The value it defines.
    pub value: ValueId,
    /// Where the content comes from.
    pub feed: Feed,
    /// Mem phase: the host slot that holds it when the step starts.
    pub slot: Option<SlotId>,
}

/// What a persistent tensor is to the user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// A trained parameter.
    Param,
    /// A parameter that is not trained.
    Frozen,
    /// Optimizer state.
    Optimizer,
    /// A gradient accumulation buffer.
    Gradient,
    /// Other state, as BatchNorm statistics.
    Buffer,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 5] = [Role::Param, Role::Frozen, Role::Optimizer, Role::Gradient, Role::Buffer];
    /// Spelling in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Role::Param => "param",
            Role::Frozen => "frozen",
            Role::Optimizer => "optimizer",
            Role::Gradient => "gradient",
            Role::Buffer => "buffer",
        }
    }
}

/// A byte string known by its hash; the bytes may be absent when only structure was read.
#[derive(Clone)]
pub struct Blob {
    /// BLAKE3 of the bytes.
    pub hash: [u8; 32],
    /// The bytes, when they are at hand.
    pub bytes: Option<Arc<[u8]>>,
}

impl Blob {
    /// A blob that holds `bytes`.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self { hash: *blake3::hash(&bytes).as_bytes(), bytes: Some(bytes) }
    }
    /// The hash as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}
impl Eq for Blob {}
impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({})", self.hex())
    }
}

/// What a persistent tensor holds before the first step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Uniform in `[-bound, bound)` from a counter-based generator keyed by `seed`.
    Uniform {
        /// Generator key.
        seed: u64,
        /// Half width of the range.
        bound: F32,
    },
    /// The given bytes.
    Data(Blob),
}

/// A tensor that persists between steps.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// The value at the start of the step.
    pub value: ValueId,
    /// What it is to the user.
    pub role: Role,
    /// Content before the first step.
    pub init: Init,
    /// The value it holds after the step; `None` when the step does not change it.
    pub next: Option<ValueId>,
    /// Mem phase: the slot, device or host, where it starts and ends every step.
    pub slot: Option<SlotId>,
}

/// A constant tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Const {
    /// The value it defines.
    pub value: ValueId,
    /// Dense little-endian row-major payload.
    pub data: Arc<[u8]>,
    /// Mem phase: the slot, device or host, where it stays.
    pub slot: Option<SlotId>,
}

/// What an op does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Code {
    /// A row of the op table.
    Compute(OpKind),
    /// Mem phase: copies its operand from device to host.
    SwapOut,
    /// Mem phase: copies its operand from host to device.
    SwapIn,
    /// Mem phase: the slot's bytes become usable, contents undefined.
    Alloc(SlotId),
    /// Mem phase: the slot's bytes are given back.
    Free(SlotId),
}

/// The queue an op runs on. Ops of one stream run in order; streams run side by side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Copies from device to host.
    DeviceToHost,
    /// Copies from host to device.
    HostToDevice,
}

/// A dependence on the completion of another op.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Await {
    /// The op that must have completed.
    pub op: OpId,
    /// Whether its execution in the previous step is meant.
    pub previous: bool,
}

/// An operation.
#[derive(Clone, PartialEq, Debug)]
pub struct Op {
    /// What it does.
    pub code: Code,
    /// Values read.
    pub operands: Vec<ValueId>,
    /// Values defined.
    pub results: Vec<ValueId>,
    /// Name of the source node; empty when there is none.
    pub origin: String,
    /// Mem phase: one slot per result.
    pub slots: Vec<SlotId>,
    /// Mem phase: the slot of the op's scratch bytes.
    pub workspace: Option<SlotId>,
    /// Mem phase: the op that this one computes again. A claim for readers; nothing relies on it.
    pub clone_of: Option<OpId>,
    /// Mem phase: completions on other streams to wait for before starting.
    pub awaits: Vec<Await>,
}

impl Op {
    /// The stream that runs the op, or `None` for a slot's alloc and free.
    pub fn stream(&self) -> Option<Stream> {
        match self.code {
            Code::Compute(_) => Some(Stream::Compute),
            Code::SwapOut => Some(Stream::DeviceToHost),
            Code::SwapIn => Some(Stream::HostToDevice),
            Code::Alloc(_) | Code::Free(_) => None,
        }
    }
    /// The row, for a compute op.
    pub fn kind(&self) -> Option<&OpKind> {
        if let Code::Compute(kind) = &self.code { Some(kind) } else { None }
    }
}

/// Which memory a slot is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Space {
    /// Device arena.
    Dev,
    /// Page-locked host arena.
    Host,
}

/// A place: a range of bytes in one arena. Contents are values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Which arena.
    pub space: Space,
    /// Size in bytes.
    pub bytes: u64,
    /// First byte in the arena, once laid out; a multiple of [`SLOT_ALIGN`].
    pub offset: Option<u64>,
}

/// Alignment of every slot in bytes.
pub const SLOT_ALIGN: u64 = 64;

/// `bytes` rounded up to [`SLOT_ALIGN`].
pub fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(SLOT_ALIGN) * SLOT_ALIGN
}

/// What an output is to the user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OutputRole {
    /// The training loss.
    Loss,
    /// A parameter's gradient, where the module has no optimizer.
    Gradient,
    /// Anything else.
    Other,
}

impl OutputRole {
    /// All roles.
    pub const ALL: [OutputRole; 3] = [OutputRole::Loss, OutputRole::Gradient, OutputRole::Other];
    /// Spelling in the text form.
    pub fn name(self) -> &'static str {
        match self {
            OutputRole::Loss => "loss",
            OutputRole::Gradient => "gradient",
            OutputRole::Other => "output",
        }
    }
}

/// A result of the step that the user sees.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// The value; in the mem phase it is in a host slot.
    pub value: ValueId,
    /// Name in the source model.
    pub name: String,
    /// What it is to the user.
    pub role: OutputRole,
}

/// One training step.
#[derive(Clone, PartialEq, Debug)]
pub struct Module {
    /// Name of the model.
    pub name: String,
    /// How far it is lowered.
    pub phase: Phase,
    /// Per-step inputs.
    pub inputs: Arena<InputId, Input>,
    /// Persistent tensors.
    pub states: Arena<StateId, State>,
    /// Constants.
    pub consts: Arena<ConstId, Const>,
    /// Values.
    pub values: Arena<ValueId, Value>,
    /// Operations, live or not.
    pub ops: Arena<OpId, Op>,
    /// Slots.
    pub slots: Arena<SlotId, Slot>,
    /// Live operations, in execution order.
    pub order: Vec<OpId>,
    /// Results the user sees.
    pub outputs: Vec<Output>,
    names: BTreeMap<String, ValueId>,
}

impl Module {
    /// An empty graph-phase module.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            phase: Phase::Graph,
            inputs: Arena::default(),
            states: Arena::default(),
            consts: Arena::default(),
            values: Arena::default(),
            ops: Arena::default(),
            slots: Arena::default(),
            order: Vec::new(),
            outputs: Vec::new(),
            names: BTreeMap::new(),
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
    pub fn add_const(&mut self, name: &str, ty: TensorType, data: impl Into<Arc<[u8]>>) -> ValueId {
        let value = self.add_value(name, ty, Def::Const(ConstId::new(self.consts.len())));
        self.consts.push(Const { value, data: data.into(), slot: None });
        value
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
    ) -> Result<Vec<ValueId>, String> {
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
    ) -> Result<OpId, String> {
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

    /// Adds an op of any code without placing it in the order. The results must already name it in their `def`.
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
            clone_of: None,
            awaits: Vec::new(),
        })
    }

    /// The op that defines `value`, if one does.
    pub fn def_op(&self, value: ValueId) -> Option<OpId> {
        if let Def::Op(op, _) = self.values[value].def { Some(op) } else { None }
    }

    /// The payload of `value` when it is a constant.
    pub fn const_data(&self, value: ValueId) -> Option<&Arc<[u8]>> {
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

    /// Mem phase: the slot that holds `value`.
    pub fn slot_of(&self, value: ValueId) -> Option<SlotId> {
        match self.values[value].def {
            Def::Input(i) => self.inputs[i].slot,
            Def::State(s) => self.states[s].slot,
            Def::Const(c) => self.consts[c].slot,
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
