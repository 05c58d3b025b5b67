//! The plan's tables: states, inputs, outputs, kernels.

use std::collections::BTreeMap;
use std::sync::Arc;

use memc_ir::{Feed, Init, Module, OpId, SlotId, Space, TensorType, ValueId};
use memc_plan as plan;

/// The bytes of `ty` at the start of a slot.
pub(crate) fn slice(m: &Module, slot: SlotId, bytes: u64) -> Result<plan::Slice, String> {
    let place = &m.slots[slot];
    let Some(offset) = place.offset else { return Err(format!("slot {} has no offset", slot.0)) };
    Ok(match place.space {
        Space::Dev => plan::Slice::dev(offset, bytes),
        Space::Host => plan::Slice::host(offset, bytes),
    })
}

/// The bytes of a value in its slot.
pub(crate) fn value_slice(m: &Module, v: ValueId) -> Result<plan::Slice, String> {
    let slot = m.slot_of(v).ok_or_else(|| format!("%{} has no slot", m.values[v].name))?;
    slice(m, slot, m.values[v].ty.bytes())
}

/// Fills states, inputs and outputs; returns initial bytes by state index.
pub(crate) fn fill(p: &mut plan::Plan, m: &Module) -> Result<BTreeMap<usize, Arc<[u8]>>, String> {
    let mut data = BTreeMap::new();
    for s in m.states.values() {
        let value = &m.values[s.value];
        let init = match &s.init {
            Init::Data(blob) => {
                let Some(bytes) = &blob.bytes else {
                    return Err(format!("the initial value of %{} is known by its hash only", value.name));
                };
                data.insert(p.states.len(), Arc::clone(bytes));
                plan::Init::Data { offset: 0, bytes: bytes.len() as u64, hash: blob.hash }
            }
            generated => match generated.generated() {
                Some((seed, kind)) => plan::Init::Random { seed, kind },
                None => plan::Init::Zeros,
            },
        };
        p.states.push(state(m, s.value, s.role.name(), init)?);
    }
    for c in m.consts.values() {
        let init = plan::Init::Data { offset: 0, bytes: c.data.len() as u64, hash: plan::hash(&c.data) };
        data.insert(p.states.len(), Arc::clone(&c.data));
        p.states.push(state(m, c.value, "const", init)?);
    }
    for input in m.inputs.values() {
        let feed = match &input.feed {
            Feed::Data { source, micro, range } => {
                let (low, high) = range.unwrap_or((0, 0));
                plan::Feed::Data { source: source.clone(), micro: *micro, low, high }
            }
            Feed::LearningRate { default } => plan::Feed::LearningRate { default: default.0 },
            Feed::Step => plan::Feed::Step,
        };
        let value = &m.values[input.value];
        let slot = value_slice(m, input.value)?;
        p.inputs.push(plan::Input { name: value.name.clone(), ty: value.ty.to_string(), slot, feed });
    }
    for o in &m.outputs {
        let ty = m.values[o.value].ty.to_string();
        let slot = value_slice(m, o.value)?;
        p.outputs.push(plan::Output { name: o.name.clone(), ty, slot, role: o.role.name().into() });
    }
    Ok(data)
}

fn state(m: &Module, v: ValueId, role: &str, init: plan::Init) -> Result<plan::State, String> {
    let value = &m.values[v];
    let home = value_slice(m, v)?;
    Ok(plan::State { name: value.name.clone(), role: role.into(), ty: value.ty.to_string(), home, init })
}

/// The kernel table, without repetition.
#[derive(Default)]
pub(crate) struct Kernels {
    index: BTreeMap<(String, String, Vec<String>, Vec<String>), u32>,
}

impl Kernels {
    /// The kernel of a compute op that is launched with so many bytes of workspace, added to the plan when it is new.
    /// Its own are the least that any of its launches has.
    pub(crate) fn get(
        &mut self,
        p: &mut plan::Plan,
        m: &Module,
        op: OpId,
        workspace_bytes: u64,
    ) -> Result<u32, String> {
        let Some(kind) = m.ops[op].kind() else { return Err("only compute ops have kernels".into()) };
        let (operands, results) = (m.operand_types(op), m.result_types(op));
        let text = |types: &[&TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>();
        let key = (kind.mnemonic().to_string(), kind.attrs_text(), text(&operands), text(&results));
        if let Some(&k) = self.index.get(&key) {
            let kernels = p.kernels.get_mut(k as usize).into_iter();
            kernels.for_each(|k| k.workspace_bytes = k.workspace_bytes.min(workspace_bytes));
            return Ok(k);
        }
        let index = p.kernels.len() as u32;
        let (op, attrs, operands, results) = key.clone();
        p.kernels.push(plan::Kernel { op, attrs, operands, results, workspace_bytes });
        self.index.insert(key, index);
        Ok(index)
    }
}

/// One past the last device byte that anything in the plan uses.
pub(crate) fn device_end(p: &plan::Plan) -> u64 {
    let homes = p.states.iter().map(|s| s.home);
    let used = p.commands().flat_map(|(_, _, c)| c.action.slices().copied());
    let device = homes.chain(used).filter(|s| s.space == plan::Space::Dev);
    device.map(|s| s.offset.saturating_add(s.bytes)).max().unwrap_or(0)
}
