//! The plan's tables: states, inputs, outputs, kernels.

use std::collections::BTreeMap;

use memc_ir::{Data, Feed, Init, Module, OpId, OpKind, Slice, SlotId, Space, TensorType, ValueId};
use memc_plan as plan;

use crate::LowerError;

/// The first `bytes` bytes of a slot.
pub(crate) fn slice(m: &Module, slot: SlotId, bytes: u64) -> Result<Slice, LowerError> {
    let place = &m.slots[slot];
    let offset = place.offset.ok_or(LowerError::NoOffset { slot: slot.0 })?;
    Ok(Slice { space: place.space, offset, bytes })
}

/// The bytes of a value in its slot.
pub(crate) fn value_slice(m: &Module, v: ValueId) -> Result<Slice, LowerError> {
    let slot = m.slot_of(v).ok_or_else(|| LowerError::NoSlot { value: m.values[v].name.clone() })?;
    slice(m, slot, m.values[v].ty.bytes())
}

/// Fills states, inputs and outputs; returns initial bytes by state index.
pub(crate) fn fill(p: &mut plan::Plan, m: &Module) -> Result<BTreeMap<usize, Data>, LowerError> {
    let mut data = BTreeMap::new();
    for s in m.states.values() {
        let value = &m.values[s.value];
        let init = match &s.init {
            Init::Data(blob) => {
                let Some(bytes) = blob.bytes() else {
                    return Err(LowerError::NoData { state: value.name.clone() });
                };
                data.insert(p.states.len(), bytes.clone());
                plan::Init::Data { offset: 0, bytes: bytes.len() as u64, hash: blob.hash() }
            }
            generated => match generated.generated() {
                Some((seed, kind)) => plan::Init::Random { seed, kind },
                None => plan::Init::Zeros,
            },
        };
        p.states.push(state(m, s.value, plan::StateRole::Variable(s.role), init)?);
    }
    for c in m.consts.values() {
        let init = plan::Init::Data { offset: 0, bytes: c.data.len() as u64, hash: plan::hash(&c.data) };
        data.insert(p.states.len(), c.data.clone());
        p.states.push(state(m, c.value, plan::StateRole::Const, init)?);
    }
    for input in m.inputs.values() {
        let feed = match &input.feed {
            Feed::Data { source, micro, range } => {
                let (low, high) = range.unwrap_or((0, 0));
                plan::Feed::Data { source: source.clone(), micro: *micro, low, high }
            }
            Feed::LearningRate { default, turn } => {
                plan::Feed::LearningRate { default: default.0, turn: *turn }
            }
            Feed::Step { turn } => plan::Feed::Step { turn: *turn },
        };
        let value = &m.values[input.value];
        let slot = value_slice(m, input.value)?;
        p.inputs.push(plan::Input { name: value.name.clone(), ty: value.ty.clone(), slot, feed });
    }
    for o in &m.outputs {
        let ty = m.values[o.value].ty.clone();
        let slot = value_slice(m, o.value)?;
        p.outputs.push(plan::Output { name: o.name.clone(), ty, slot, role: o.role });
    }
    Ok(data)
}

fn state(m: &Module, v: ValueId, role: plan::StateRole, init: plan::Init) -> Result<plan::State, LowerError> {
    let value = &m.values[v];
    let resident = value_slice(m, v)?;
    Ok(plan::State { name: value.name.clone(), role, ty: value.ty.clone(), resident, init })
}

/// The kernel table, without repetition.
#[derive(Default)]
pub(crate) struct Kernels {
    index: BTreeMap<(OpKind, Vec<TensorType>, Vec<TensorType>), u32>,
}

impl Kernels {
    /// The kernel of a compute op, added to the plan when it is new. Its workspace is the least of its
    /// launches'; this one has `workspace_bytes`.
    pub(crate) fn get(
        &mut self,
        p: &mut plan::Plan,
        m: &Module,
        op: OpId,
        workspace_bytes: u64,
    ) -> Result<u32, LowerError> {
        let op_kind = m.ops[op].kind().ok_or(LowerError::NoKernel)?;
        let owned = |types: Vec<&TensorType>| types.into_iter().cloned().collect::<Vec<_>>();
        let key = (op_kind.clone(), owned(m.operand_types(op)), owned(m.result_types(op)));
        if let Some(&k) = self.index.get(&key) {
            let kernels = p.kernels.get_mut(k as usize).into_iter();
            kernels.for_each(|k| k.workspace_bytes = k.workspace_bytes.min(workspace_bytes));
            return Ok(k);
        }
        let index = p.kernels.len() as u32;
        let (op, operands, results) = key.clone();
        p.kernels.push(plan::Kernel { op, operands, results, workspace_bytes });
        self.index.insert(key, index);
        Ok(index)
    }
}

/// One past the last device byte that anything in the plan uses.
pub(crate) fn device_end(p: &plan::Plan) -> u64 {
    let resident_slots = p.states.iter().map(|s| s.resident);
    let used = p.commands().flat_map(|(_, _, c)| c.action.slices().copied());
    let device = resident_slots.chain(used).filter(|s| s.space == Space::Dev);
    device.map(|s| s.offset.saturating_add(s.bytes)).max().unwrap_or(0)
}
