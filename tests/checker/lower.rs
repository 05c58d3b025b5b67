//! Lowers a random step to a plan: random decisions on what to keep, swap, recompute and do in place, then
//! the fewest events that a two-step vector clock asks for. Correct by construction, and unlike the
//! compiler's own lowering.

use std::collections::BTreeMap;

use memc_ir::{Def, Module, OpId, ValueId};
use memc_plan::{
    Action, Command, Feed, Init, Input, Kernel, Output, Plan, Queue, Slice, Space, State, StateRole,
};

use crate::random::Random;
use crate::sync::{synchronise, with_stores};

/// A first-fit allocator of one arena.
struct Arena {
    space: Space,
    live: Vec<(u64, u64)>,
    most: u64,
}

impl Arena {
    fn new(space: Space) -> Arena {
        Arena { space, live: Vec::new(), most: 0 }
    }

    fn alloc(&mut self, bytes: u64) -> Slice {
        let mut offset = 0;
        for &(start, end) in &self.live {
            if offset + bytes <= start {
                break;
            }
            offset = end.next_multiple_of(64);
        }
        self.live.push((offset, offset + bytes));
        self.live.sort_unstable();
        self.most = self.most.max((offset + bytes).next_multiple_of(64));
        Slice { space: self.space, offset, bytes }
    }

    fn free(&mut self, slice: Slice) {
        self.live.retain(|&(start, _)| start != slice.offset);
    }
}

/// Where a value is.
#[derive(Clone, Copy, Default)]
struct Place {
    dev: Option<Slice>,
    host: Option<Slice>,
    /// Stays in its device slot throughout the step.
    pinned: bool,
}

struct Lowering<'a> {
    m: &'a Module,
    random: &'a mut Random,
    dev: Arena,
    host: Arena,
    places: BTreeMap<ValueId, Place>,
    /// Per value that is no view, the positions of the ops that read it, and `usize::MAX` where the end does.
    uses: BTreeMap<ValueId, Vec<usize>>,
    kernels: Vec<Kernel>,
    body: Vec<Command>,
    /// Reads of outputs that wait for the end of the body.
    late: Vec<Command>,
    output_slots: Vec<Slice>,
}

/// A plan for `m`. Its claims are not filled in.
pub(crate) fn lower(m: &Module, random: &mut Random) -> Plan {
    let mut plan = Plan::default();
    plan.meta.set_source(memc_ir::print(m));
    let mut lowering = Lowering {
        m,
        random,
        dev: Arena::new(Space::Dev),
        host: Arena::new(Space::Host),
        places: BTreeMap::new(),
        uses: BTreeMap::new(),
        kernels: Vec::new(),
        body: Vec::new(),
        late: Vec::new(),
        output_slots: Vec::new(),
    };
    lowering.collect_uses();
    lowering.tables(&mut plan);
    for (position, &op) in m.order.iter().enumerate() {
        lowering.op(position, op);
    }
    lowering.finish(&plan);
    plan.kernels = lowering.kernels;
    plan.meta.dev_bytes = lowering.dev.most;
    plan.meta.host_bytes = lowering.host.most;
    plan.meta.budget_bytes = plan.meta.dev_bytes;
    let mut body = lowering.body;
    body.extend(lowering.late);
    plan.layout_data().expect("a small data section");
    synchronise(&mut plan, &body);
    with_stores(&mut plan, m.states.len());
    plan
}

fn command(queue: Queue, action: Action, label: &str) -> Command {
    Command { queue, action, label: label.to_owned() }
}

impl Lowering<'_> {
    /// The value whose bytes `v` shows.
    fn root(&self, v: ValueId) -> ValueId {
        let mut v = v;
        while let Some(op) = self.m.def_op(v).map(|op| &self.m.ops[op])
            && op.is_view()
        {
            v = op.operands[0];
        }
        v
    }

    fn name(&self, v: ValueId) -> &str {
        &self.m.values[v].name
    }

    fn collect_uses(&mut self) {
        for (position, &id) in self.m.order.iter().enumerate() {
            for &v in &self.m.ops[id].operands {
                let root = self.root(v);
                self.uses.entry(root).or_default().push(position);
            }
        }
        for state in self.m.states.values() {
            let next = self.root(state.next.unwrap_or(state.value));
            self.uses.entry(next).or_default().push(usize::MAX);
        }
    }

    /// Whether something after `position` reads the value.
    fn is_needed(&self, v: ValueId, position: usize) -> bool {
        self.uses.get(&v).is_some_and(|uses| uses.iter().any(|&at| at > position))
    }

    /// States, constants, inputs and outputs; their slots; the copies that bring them to the device.
    fn tables(&mut self, plan: &mut Plan) {
        let m = self.m;
        for state in m.states.values() {
            let offloaded = self.random.one_in(4);
            let init = match &state.init {
                memc_ir::Init::Data(blob) => Init::Data { offset: 0, bytes: 0, hash: blob.hash() },
                other => match other.generated() {
                    Some((seed, kind)) => Init::Random { seed, kind },
                    None => Init::Zeros,
                },
            };
            self.resident(plan, state.value, StateRole::Variable(state.role), init, offloaded);
        }
        for c in m.consts.values() {
            let init = Init::Data { offset: 0, bytes: c.data.len() as u64, hash: memc_plan::hash(&c.data) };
            self.resident(plan, c.value, StateRole::Const, init, false);
        }
        for input in m.inputs.values() {
            let ty = &m.values[input.value].ty;
            let slot = self.host.alloc(ty.bytes());
            let feed = match &input.feed {
                memc_ir::Feed::Data { source, micro, range } => {
                    let (low, high) = range.unwrap_or((0, 0));
                    Feed::Data { source: source.clone(), micro: *micro, low, high }
                }
                memc_ir::Feed::LearningRate { default, turn } => {
                    Feed::LearningRate { default: default.0, turn: *turn }
                }
                memc_ir::Feed::Step { turn } => Feed::Step { turn: *turn },
            };
            let name = self.name(input.value).to_owned();
            let index = plan.inputs.len() as u32;
            self.body.push(command(Queue::Host, Action::HostWrite { input: index }, &name));
            let dev = self.dev.alloc(ty.bytes());
            self.body.push(command(Queue::H2D, Action::Copy { src: slot, dst: dev }, &name));
            self.places.insert(input.value, Place { dev: Some(dev), host: None, pinned: true });
            plan.inputs.push(Input { name, ty: ty.clone(), slot, feed });
        }
        for output in &m.outputs {
            let ty = &m.values[output.value].ty;
            let slot = self.host.alloc(ty.bytes());
            self.output_slots.push(slot);
            let role = output.role;
            plan.outputs.push(Output { name: output.name.clone(), ty: ty.clone(), slot, role });
        }
    }

    fn resident(&mut self, plan: &mut Plan, v: ValueId, role: StateRole, init: Init, offloaded: bool) {
        let ty = &self.m.values[v].ty;
        let dev = self.dev.alloc(ty.bytes());
        let name = self.name(v).to_owned();
        let mut resident = dev;
        if offloaded {
            resident = self.host.alloc(ty.bytes());
            self.body.push(command(Queue::H2D, Action::Copy { src: resident, dst: dev }, &name));
        }
        self.places.insert(v, Place { dev: Some(dev), host: offloaded.then_some(resident), pinned: true });
        plan.states.push(State { name, role, ty: ty.clone(), resident, init });
    }

    fn op(&mut self, position: usize, id: OpId) {
        let op = &self.m.ops[id];
        if op.is_view() {
            return;
        }
        for &v in &op.operands {
            self.bring(v);
        }
        if self.random.one_in(2)
            && let Some(&next) = self.m.order.get(position + 1)
        {
            // An early upload of what the next op reads.
            for v in self.m.ops[next].operands.iter().map(|&v| self.root(v)).collect::<Vec<_>>() {
                if self.places.get(&v).is_some_and(|place| place.dev.is_none() && place.host.is_some()) {
                    self.bring(v);
                }
            }
        }
        let reads: Vec<Slice> = op.operands.iter().map(|&v| self.slot(v)).collect();
        let writes: Vec<Slice> = (0..op.results.len()).map(|j| self.result(position, id, j)).collect();
        let label = self.name(op.results[0]).to_owned();
        self.launch(id, reads, writes.clone(), &label);
        for (&v, &slot) in op.results.iter().zip(&writes) {
            let place = self.places.entry(v).or_default();
            place.dev = Some(slot);
        }
        for &v in &op.results {
            self.deliver(v);
        }
        self.settle(position, id);
    }

    /// The slot of a value on the device.
    fn slot(&self, v: ValueId) -> Slice {
        self.places[&self.root(v)].dev.expect("the value was brought to the device")
    }

    /// Where result `j` goes: in place of a state that it replaces, of an operand that dies, or to a new
    /// slot.
    fn result(&mut self, position: usize, id: OpId, j: usize) -> Slice {
        let op = &self.m.ops[id];
        let kind = op.kind().expect("a compute op");
        let pairs = kind.inplace_pairs(&self.m.operand_types(id), &self.m.result_types(id));
        for (i, _) in pairs.into_iter().filter(|&(_, result)| result == j) {
            let operand = self.root(op.operands[i]);
            let once = op.operands.iter().filter(|&&v| self.root(v) == operand).count() == 1;
            let place = self.places[&operand];
            let updated = matches!(self.m.values[operand].def,
                Def::State(s) if self.m.states[s].next == Some(op.results[j]));
            let dies = updated || !place.pinned;
            if once
                && dies
                && !self.is_needed(operand, position)
                && (updated || self.random.one_in(2))
                && let Some(slot) = place.dev
            {
                self.places.entry(operand).or_default().dev = None;
                self.places.insert(op.results[j], Place { dev: Some(slot), host: None, pinned: updated });
                return slot;
            }
        }
        self.dev.alloc(self.m.values[op.results[j]].ty.bytes())
    }

    fn launch(&mut self, id: OpId, reads: Vec<Slice>, writes: Vec<Slice>, label: &str) {
        let op = &self.m.ops[id];
        let kind = op.kind().expect("a compute op");
        let (operands, results) = (self.m.operand_types(id), self.m.result_types(id));
        let bytes = kind.cost(&operands, &results).workspace;
        let kernel = Kernel {
            op: kind.clone(),
            operands: operands.into_iter().cloned().collect(),
            results: results.into_iter().cloned().collect(),
            workspace_bytes: bytes,
        };
        let known = self.kernels.iter().position(|other| *other == kernel);
        let index = known.unwrap_or(self.kernels.len());
        if known.is_none() {
            self.kernels.push(kernel);
        }
        let workspace = (bytes > 0).then(|| self.dev.alloc(bytes));
        if let Some(slice) = workspace {
            self.dev.free(slice);
        }
        let action = Action::Launch { kernel: index as u32, reads, writes, workspace };
        self.body.push(command(Queue::COMPUTE, action, label));
    }

    /// Makes a value readable on the device: by upload, or by computing it again.
    fn bring(&mut self, v: ValueId) {
        let v = self.root(v);
        let place = self.places.get(&v).copied().unwrap_or_default();
        if place.dev.is_some() {
            return;
        }
        let slot = self.dev.alloc(self.m.values[v].ty.bytes());
        let name = self.name(v).to_owned();
        if let Some(src) = place.host {
            self.copy(Queue::H2D, src, slot, &name);
            self.host.free(src);
            self.places.insert(v, Place { dev: Some(slot), host: None, pinned: false });
        } else {
            let id = self.m.def_op(v).expect("only results are dropped");
            let reads = self.m.ops[id].operands.iter().map(|&v| self.slot(v)).collect();
            self.launch(id, reads, vec![slot], &format!("{name} again"));
            self.places.insert(v, Place { dev: Some(slot), host: None, pinned: false });
        }
    }

    /// A copy, at times in two parts.
    fn copy(&mut self, queue: Queue, src: Slice, dst: Slice, label: &str) {
        let middle = if src.bytes > 64 && self.random.one_in(3) { 64 } else { src.bytes };
        for part in [0..middle, middle..src.bytes] {
            if part.is_empty() {
                continue;
            }
            let cut = |slice: Slice| Slice {
                offset: slice.offset + part.start,
                bytes: part.end - part.start,
                ..slice
            };
            let action = Action::Copy { src: cut(src), dst: cut(dst) };
            self.body.push(command(queue, action, label));
        }
    }

    /// Copies outputs to the host as soon as they exist.
    fn deliver(&mut self, v: ValueId) {
        for (index, output) in self.m.outputs.iter().enumerate() {
            if self.root(output.value) != v {
                continue;
            }
            let action = Action::Copy { src: self.slot(v), dst: self.output_slots[index] };
            self.body.push(command(Queue::D2H, action, &output.name));
            let read = command(Queue::Host, Action::HostRead { output: index as u32 }, &output.name);
            if self.random.one_in(2) { self.body.push(read) } else { self.late.push(read) }
        }
    }

    /// Frees what is no longer needed, and decides the fate of what is.
    fn settle(&mut self, position: usize, id: OpId) {
        let op = &self.m.ops[id];
        let mut touched: Vec<ValueId> =
            op.operands.iter().map(|&v| self.root(v)).chain(op.results.clone()).collect();
        touched.sort_unstable();
        touched.dedup();
        for v in touched {
            let Some(place) = self.places.get(&v).copied() else { continue };
            let Some(slot) = place.dev.filter(|_| !place.pinned) else { continue };
            if !self.is_needed(v, position) {
                self.release(v, slot, Queue::COMPUTE);
            } else if self.random.one_in(3) {
                if self.can_recompute(v) {
                    self.release(v, slot, Queue::COMPUTE);
                } else {
                    let host = self.host.alloc(slot.bytes);
                    let label = format!("{} out", self.name(v));
                    self.copy(Queue::D2H, slot, host, &label);
                    self.release(v, slot, Queue::D2H);
                    self.places.entry(v).or_default().host = Some(host);
                }
            }
        }
    }

    /// Whether the value can be computed again at any time: its operands stay on the device all step.
    fn can_recompute(&self, v: ValueId) -> bool {
        let Some(id) = self.m.def_op(v) else { return false };
        let op = &self.m.ops[id];
        let stays = |&v: &ValueId| match self.m.values[self.root(v)].def {
            Def::Input(_) | Def::Const(_) => true,
            Def::State(s) => self.m.states[s].next.is_none(),
            Def::HostShadow(_) | Def::Op(..) => false,
        };
        op.results.len() == 1 && op.operands.iter().all(stays)
    }

    fn release(&mut self, v: ValueId, slot: Slice, queue: Queue) {
        self.dev.free(slot);
        self.places.entry(v).or_default().dev = None;
        if self.random.one_in(2) {
            let label = self.name(v).to_owned();
            self.body.push(command(queue, Action::Free { slice: slot }, &label));
        }
    }

    /// Brings the states' next values to their resident slots.
    fn finish(&mut self, plan: &Plan) {
        for (state, entry) in self.m.states.values().zip(&plan.states) {
            let Some(next) = state.next else { continue };
            self.bring(next);
            let src = self.slot(next);
            if src != entry.resident {
                let queue = if entry.resident.space == Space::Host { Queue::D2H } else { Queue::COMPUTE };
                let action = Action::Copy { src, dst: entry.resident };
                self.body.push(command(queue, action, &format!("{} resident slot", entry.name)));
            }
        }
    }
}
