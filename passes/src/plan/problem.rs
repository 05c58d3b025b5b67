//! The planning problem in numbers: what planners read instead of the module.

use memc_ir::{Bytes, Id, Module, OpId, OutputRole, TensorType, ValueId, aligned};

use super::storage::{self, Kind, Storages};
use crate::device::DeviceProfile;

/// A tensor: one or more values that share bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name of the value that first fills it.
    pub name: String,
    /// Type of that value.
    pub ty: TensorType,
    /// Bytes it occupies, rounded up to the slot alignment.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    /// Positions of the ops that read or write it, ascending.
    pub touches: Vec<u32>,
    /// Positions of the ops that write it, ascending.
    pub writes: Vec<u32>,
}

impl Tensor {
    /// Whether the tensor outlives the step.
    pub fn persistent(&self) -> bool {
        matches!(self.kind, Kind::State(_) | Kind::Const(_))
    }
    /// The first position after `position` that touches the tensor.
    pub fn next_touch(&self, position: u32) -> Option<u32> {
        self.touches.get(self.touches.partition_point(|&t| t <= position)).copied()
    }
    /// Whether an op strictly between two positions writes the tensor.
    pub fn written_between(&self, first: u32, last: u32) -> bool {
        self.writes.get(self.writes.partition_point(|&w| w <= first)).is_some_and(|&w| w < last)
    }
}

/// An op that runs, in terms of tensors.
#[derive(Clone, Debug)]
pub struct POp {
    /// The op of the module.
    pub op: OpId,
    /// Its name for people: the source node, or its first result.
    pub name: String,
    /// Tensors read, without repetition.
    pub reads: Vec<u32>,
    /// Tensor of each result.
    pub writes: Vec<u32>,
    /// Scratch bytes, rounded up to the slot alignment.
    pub workspace: u64,
    /// Modelled time in ns.
    pub time_ns: u64,
    /// Outputs to copy to the host once this op has run.
    pub outputs: Vec<usize>,
}

/// A module, legalised for memory, and its planning problem.
pub struct Problem {
    /// The module in the graph phase; ops of the problem refer to it.
    pub module: Module,
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The ops in execution order, without views.
    pub ops: Vec<POp>,
    pub(crate) storages: Storages,
}

impl Problem {
    /// The problem of a graph-phase module on a device.
    ///
    /// Fails when the step is so large that sums of bytes or times could overflow; the text names the largest op.
    pub fn new(module: &Module, profile: &DeviceProfile) -> Result<Problem, String> {
        let mut m = module.clone();
        storage::legalise(&mut m)?;
        let storages = storage::assign(&m);
        let mut tensors: Vec<Tensor> = storages
            .tensors
            .iter()
            .map(|&(v, kind)| {
                let value = &m.values[v];
                let (name, ty) = (value.name.clone(), value.ty.clone());
                let bytes = aligned(ty.bytes().max(1));
                Tensor { name, ty, bytes, kind, touches: Vec::new(), writes: Vec::new() }
            })
            .collect();
        let mut outputs = storage::outputs_by_op(&m);
        let mut ops = Vec::new();
        for &id in m.order.iter().filter(|&&op| !m.ops[op].is_view()) {
            let position = ops.len() as u32;
            let tensor = |v: &ValueId| storages.of[v.index()];
            let mut reads: Vec<u32> = m.ops[id].operands.iter().map(tensor).collect();
            reads.sort_unstable();
            reads.dedup();
            let writes: Vec<u32> = m.ops[id].results.iter().map(tensor).collect();
            for &t in reads.iter().chain(&writes) {
                let touches = &mut tensors[t as usize].touches;
                if touches.last() != Some(&position) {
                    touches.push(position);
                }
            }
            for &t in &writes {
                tensors[t as usize].writes.push(position);
            }
            let Some(kind) = m.ops[id].kind() else { return Err("a memory op in the graph phase".into()) };
            let (operands, results) = (m.operand_types(id), m.result_types(id));
            let cost = kind.cost(&operands, &results);
            let time_ns = profile.op_ns(kind, &operands, &results);
            let first = m.ops[id].results.first().map(|&v| m.values[v].name.clone()).unwrap_or_default();
            let origin = &m.ops[id].origin;
            ops.push(POp {
                op: id,
                name: if origin.is_empty() { first } else { origin.clone() },
                reads,
                writes,
                workspace: if cost.workspace == 0 { 0 } else { aligned(cost.workspace) },
                time_ns,
                outputs: outputs.remove(&id).unwrap_or_default(),
            });
        }
        let p = Problem { module: m, tensors, ops, storages };
        p.check_size(profile)?;
        Ok(p)
    }

    /// Bounds every sum that planning forms: a tensor is copied at most twice for each op that touches it, and an op
    /// runs again at most once for each.
    fn check_size(&self, profile: &DeviceProfile) -> Result<(), String> {
        const MOST: u128 = 1 << 60;
        let copies = |t: &Tensor| {
            let times = t.touches.len() as u128 + 2;
            let ns = u128::from(profile.round_trip_ns(t.bytes).unwrap_or(0));
            times * (u128::from(t.bytes) + ns)
        };
        let runs = |op: &POp| {
            let times: usize = op.writes.iter().map(|&t| self.tensors[t as usize].touches.len() + 1).sum();
            times as u128 * (u128::from(op.time_ns) + u128::from(op.workspace))
        };
        let total = self.tensors.iter().map(copies).sum::<u128>() + self.ops.iter().map(runs).sum::<u128>();
        if total <= MOST {
            return Ok(());
        }
        let largest = self.ops.iter().max_by_key(|op| (op.time_ns, op.workspace)).map(|op| op.name.as_str());
        let largest = largest.unwrap_or_default();
        Err(format!(
            "the step is too large to plan: its bytes and times exceed 2^60 (the largest op is {largest})"
        ))
    }

    /// Tensors an op needs on the device at once, without repetition.
    pub fn working_set(&self, position: usize) -> Vec<u32> {
        let op = &self.ops[position];
        let mut set: Vec<u32> = op.reads.iter().chain(&op.writes).copied().collect();
        set.sort_unstable();
        set.dedup();
        set
    }

    /// Bytes of an op's working set, workspace included.
    pub fn working_set_bytes(&self, position: usize) -> u64 {
        let tensors: u64 = self.working_set(position).iter().map(|&t| self.tensors[t as usize].bytes).sum();
        tensors + self.ops[position].workspace
    }

    /// The position with the largest working set, and its bytes: no budget below that is feasible.
    pub fn largest_working_set(&self) -> (usize, u64) {
        let sets = (0..self.ops.len()).map(|i| (i, self.working_set_bytes(i)));
        sets.max_by_key(|&(i, bytes)| (bytes, usize::MAX - i)).unwrap_or((0, 0))
    }

    /// Sum of the kernels' times in ns: the step time with unlimited memory, when copies hide.
    pub fn compute_ns(&self) -> u64 {
        self.ops.iter().map(|op| op.time_ns).sum()
    }

    /// Where device bytes go when nothing is planned.
    pub fn breakdown(&self) -> Breakdown {
        let mut b = Breakdown::default();
        for t in &self.tensors {
            match t.kind {
                Kind::State(s) => match self.module.states[s].role {
                    memc_ir::Role::Optimizer => b.optimizer += t.bytes,
                    memc_ir::Role::Param | memc_ir::Role::Frozen => b.weights += t.bytes,
                    memc_ir::Role::Gradient => b.gradients += t.bytes,
                    memc_ir::Role::Buffer => b.buffers += t.bytes,
                },
                Kind::Const(_) => b.constants += t.bytes,
                Kind::Input(_) => b.inputs += t.bytes,
                Kind::Transient => {}
            }
        }
        b.workspace = self.ops.iter().map(|op| op.workspace).max().unwrap_or(0);
        b
    }

    /// Indices of the loss outputs.
    pub fn losses(&self) -> Vec<usize> {
        let outputs = self.module.outputs.iter().enumerate();
        outputs.filter(|(_, o)| o.role == OutputRole::Loss).map(|(i, _)| i).collect()
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
