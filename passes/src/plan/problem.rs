//! The planning problem of a module: its numbers for planners, and the data that carry their decisions out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memc_ir::{Arena, Bytes, Module, OpId, OpKind, OutputRole, TensorType, ValueId};
use memc_planner::{Device, HostOpIx, NotOnHost, Op, OpPos, Placed, Tensor, TensorId, Wish};

use super::storage::{self, Storages, TensorKind};
use crate::device::DeviceProfile;
use crate::error::{Contradiction, PassError};

/// A module, legalised for memory, and its planning problem.
pub struct Problem {
    /// The module in the graph phase; ops of the problem refer to it.
    pub module: Arc<Module>,
    /// The problem in numbers. An op is called by its first result, and labelled with its source node.
    pub numbers: memc_planner::Problem,
    /// Kind of each tensor.
    pub kinds: Arena<TensorId, TensorKind>,
    /// For every op of the problem, that of the module.
    pub ops: Arena<OpPos, OpId>,
    /// For every op of the problem, the outputs of the module that it completes.
    pub outputs: Arena<OpPos, Vec<usize>>,
    /// For every op on the host, that of the module.
    pub host_ops: Arena<HostOpIx, OpId>,
    pub(crate) storages: Arc<Storages>,
}

impl Problem {
    /// The problem of a graph-phase module on a device.
    ///
    /// [`PassError::Unsupported`] when the step is so large that sums of bytes or times could overflow; the
    /// text names the largest op.
    pub fn new(module: &Module, profile: &DeviceProfile) -> Result<Problem, PassError> {
        let mut m = module.clone();
        storage::legalise(&mut m)?;
        let storages = storage::assign(&m);
        let kinds = storages.tensors.values().map(|t| t.1).collect();
        let tensor = |&(v, kind): &(ValueId, TensorKind)| Tensor {
            name: m.values[v].name.clone(),
            bytes: 0,
            size: m.values[v].ty.bytes(),
            kind: match kind {
                TensorKind::State(_) | TensorKind::Const(_) => memc_planner::TensorKind::Persistent,
                TensorKind::Input(_) => memc_planner::TensorKind::Input,
                TensorKind::Transient => memc_planner::TensorKind::Transient,
            },
            touches: Vec::new(),
            writes: Vec::new(),
        };
        let tensors = storages.tensors.values().map(tensor).collect();
        let mut by_op = storage::outputs_by_op(&m);
        let (mut numbers, mut ops, mut outputs) = (Vec::new(), Arena::default(), Arena::default());
        for &id in m.order.iter().filter(|&&op| !m.ops[op].is_view()) {
            let tensor = |v: &ValueId| storages.of[*v];
            let Some(kind) = m.ops[id].kind() else {
                return Err(Contradiction::from("a memory op in the graph phase").into());
            };
            let (operands, results) = (m.operand_types(id), m.result_types(id));
            let name = m.ops[id].results.first().map(|&v| m.values[v].name.clone()).unwrap_or_default();
            let origin = &m.ops[id].origin;
            let mine = by_op.remove(&id).unwrap_or_default();
            let result = |&o: &usize| {
                let v = m.outputs[o].value;
                (tensor(&v), m.values[v].ty.bytes())
            };
            numbers.push(Op {
                label: if origin.is_empty() { name.clone() } else { origin.clone() },
                name,
                reads: m.ops[id].operands.iter().map(tensor).collect(),
                writes: m.ops[id].results.iter().map(tensor).collect(),
                workspace: profile.workspace(kind, &operands, &results),
                time_ns: profile.op_ns(kind, &operands, &results),
                slowdown: profile.slowdown(kind, &operands, &results),
                outputs: mine.iter().map(result).collect(),
                sends: Vec::new(),
                repeatable: true,
                after: Vec::new(),
                host_ns: profile.host_ns(kind, &operands, &results),
            });
            ops.push(id);
            outputs.push(mine);
        }
        let numbers = memc_planner::Problem::new(&m.name, device(profile), tensors, numbers)
            .map_err(|e| PassError::Unsupported(e.to_string()))?;
        let (module, storages) = (Arc::new(m), Arc::new(storages));
        Ok(Problem { module, numbers, kinds, ops, outputs, host_ops: Arena::default(), storages })
    }

    /// The problem in which some ops run on the host.
    pub fn with_host_ops(&self, ops: &BTreeSet<OpPos>) -> Result<Problem, (OpPos, NotOnHost)> {
        let Placed { problem, positions } = self.numbers.with_host_ops(ops)?;
        Ok(Problem {
            module: Arc::clone(&self.module),
            numbers: problem,
            kinds: self.kinds.clone(),
            ops: positions.values().map(|&at| self.ops[at]).collect(),
            outputs: positions.values().map(|&at| self.outputs[at].clone()).collect(),
            host_ops: ops.iter().map(|&at| self.ops[at]).collect(),
            storages: Arc::clone(&self.storages),
        })
    }

    /// Type of the value that first fills a tensor.
    pub fn tensor_type(&self, t: TensorId) -> &TensorType {
        &self.module.values[self.storages.tensors[t].0].ty
    }

    /// Ops that would have more workspace, up to `most` bytes, where there is room, by kind and types: equal
    /// ones alike, so that they compute alike.
    pub fn wishes(&self, profile: &DeviceProfile, most: u64) -> Vec<Wish> {
        let mut groups: BTreeMap<(&OpKind, Vec<TensorType>), Wish> = BTreeMap::new();
        for (position, &id) in self.ops.iter() {
            let Some(kind) = self.module.ops[id].kind() else { continue };
            let operands: Vec<TensorType> = self.module.operand_types(id).into_iter().cloned().collect();
            if let Some(bytes) = profile.ample_workspace(kind, &operands, most) {
                let group = groups.entry((kind, operands));
                group.or_insert(Wish { bytes, ops: Vec::new() }).ops.push(position);
            }
        }
        groups.into_values().collect()
    }

    /// Device bytes by purpose when nothing is planned.
    pub fn breakdown(&self) -> Breakdown {
        let mut b = Breakdown::default();
        for (t, kind) in self.numbers.tensors.values().zip(self.kinds.values()) {
            match *kind {
                TensorKind::State(s) => match self.module.states[s].role {
                    memc_ir::Role::Optimizer => b.optimizer += t.bytes,
                    memc_ir::Role::Param | memc_ir::Role::Frozen => b.weights += t.bytes,
                    memc_ir::Role::Gradient => b.gradients += t.bytes,
                    memc_ir::Role::Buffer => b.buffers += t.bytes,
                },
                TensorKind::Const(_) => b.constants += t.bytes,
                TensorKind::Input(_) => b.inputs += t.bytes,
                TensorKind::Transient => {}
            }
        }
        b.workspace = self.numbers.ops.values().map(|op| op.workspace).max().unwrap_or(0);
        b
    }

    /// Indices of the loss outputs.
    pub fn losses(&self) -> Vec<usize> {
        let outputs = self.module.outputs.iter().enumerate();
        outputs.filter(|(_, o)| o.role == OutputRole::Loss).map(|(i, _)| i).collect()
    }
}

/// Figures of a profile that planners read.
pub fn device(profile: &DeviceProfile) -> Device {
    Device {
        memory_bytes: profile.memory_bytes.unwrap_or(0),
        h2d_bytes_per_s: profile.h2d_bytes_per_s as u64,
        d2h_bytes_per_s: profile.d2h_bytes_per_s as u64,
        duplex_bytes_per_s: profile.duplex_total_bytes_per_s as u64,
        copy_latency_ns: profile.copy_latency_ns,
    }
}

/// Bytes by purpose, each tensor rounded up to the slot alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Breakdown {
    /// Parameters, trained or frozen.
    pub weights: u64,
    /// Gradient accumulation buffers that persist.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
    /// Other state.
    pub buffers: u64,
    /// Constants.
    pub constants: u64,
    /// Device copies of inputs.
    pub inputs: u64,
    /// Largest scratch of one op.
    pub workspace: u64,
}

impl Breakdown {
    /// Bytes that stay on the device throughout an unplanned step.
    pub fn persistent(&self) -> Bytes {
        Bytes(self.weights + self.gradients + self.optimizer + self.buffers + self.constants)
    }
}
