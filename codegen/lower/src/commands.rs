//! Commands: launches and copies in host issue order, events for the waits, and the host's part.
//!
//! An op that another waits for records an event of its own; the other waits for it. An event that the body
//! waits on before it records it stands for the previous step and is recorded once in the prologue, which
//! loads resident slots and copies them to their host shadows. The host writes inputs before anything is
//! issued, once the previous step's copies of them and its kernels on the host are done, and reads outputs
//! when their copies are.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{Code, Def, Id, Module, OpId, Slice, SlotId, Space, Stream, ValueId};
use memc_plan::{Action, Command, Plan, Queue};

use crate::LowerError;
use crate::tables::{Kernels, slice, value_slice};

/// Fills kernels, events and the three command lists.
pub(crate) fn emit(p: &mut Plan, m: &Module) -> Result<(), LowerError> {
    let mut e = Emitter { m, events: BTreeMap::new(), recorded: BTreeSet::new(), primed: Vec::new() };
    let body = e.body(p)?;
    p.events = e.events.len() as u32;
    let host = Queue::Host;
    for (i, s) in p.states.iter().enumerate() {
        p.prologue.push(command(host, Action::Load { state: i as u32 }, &s.name));
    }
    for host_shadow in m.host_shadows.values() {
        let action =
            Action::Copy { src: value_slice(m, host_shadow.of)?, dst: value_slice(m, host_shadow.value)? };
        p.prologue.push(command(Queue::D2H, action, &m.values[host_shadow.of].name));
    }
    if !m.host_shadows.is_empty() {
        p.prologue.extend(join(&mut p.events, Queue::D2H));
    }
    for &(op, event) in &e.primed {
        p.prologue.push(command(e.queue(op)?, Action::Record { event }, "as if the previous step had run"));
    }
    p.body = body;
    let has_host_ops = m.order.iter().any(|&op| m.ops[op].on_host);
    for stream in Stream::ALL.into_iter().filter(|&s| has_host_ops || s != Stream::HostCompute) {
        p.epilogue.extend(join(&mut p.events, Queue::Device(stream)));
    }
    for (i, s) in p.states.iter().enumerate().filter(|(_, s)| s.is_variable()) {
        p.epilogue.push(command(host, Action::Store { state: i as u32 }, &s.name));
    }
    Ok(())
}

/// Whether a value shows the bytes of an input.
fn is_input(m: &Module, mut v: ValueId) -> bool {
    while let Some(op) = m.def_op(v).filter(|&op| m.ops[op].is_view()) {
        v = m.ops[op].operands[0];
    }
    matches!(m.values[v].def, Def::Input(_))
}

fn command(queue: Queue, action: Action, label: &str) -> Command {
    Command { queue, action, label: label.to_string() }
}

/// Makes the host wait for all that was issued to a queue.
fn join(events: &mut u32, queue: Queue) -> [Command; 2] {
    let event = *events;
    *events += 1;
    [command(queue, Action::Record { event }, ""), command(Queue::Host, Action::Wait { event }, "")]
}

struct Emitter<'a> {
    m: &'a Module,
    /// Event of every op that another waits for.
    events: BTreeMap<OpId, u32>,
    /// Ops waited for that were issued so far.
    recorded: BTreeSet<OpId>,
    /// Events waited on before the body records them.
    primed: Vec<(OpId, u32)>,
}

impl Emitter<'_> {
    fn queue(&self, op: OpId) -> Result<Queue, LowerError> {
        self.m.ops[op].stream().map(Queue::Device).ok_or(LowerError::NoStream)
    }

    fn body(&mut self, p: &mut Plan) -> Result<Vec<Command>, LowerError> {
        let m = self.m;
        let reads_input = |op: &OpId| m.ops[*op].operands.iter().any(|&v| is_input(m, v));
        let is_output = |op: &OpId| m.outputs.iter().any(|o| m.def_op(o.value) == Some(*op));
        let copies = |code: Code| m.order.iter().copied().filter(move |&op| m.ops[op].code == code);
        let last_input = copies(Code::SwapIn).rfind(|op| reads_input(op));
        let last_output = copies(Code::SwapOut).rfind(|op| is_output(op));
        let on_host = m.order.iter().copied().filter(|&op| m.ops[op].on_host && !m.ops[op].is_view());
        let last_on_host = { on_host }.rfind(reads_input);
        let waited_for = m.order.iter().flat_map(|&op| m.ops[op].waits.iter().map(|a| a.op));
        for op in waited_for.chain(last_input).chain(last_on_host).chain(last_output) {
            let next = self.events.len() as u32;
            self.events.entry(op).or_insert(next);
        }
        let host = Queue::Host;
        let mut out = Vec::new();
        for op in last_input.into_iter().chain(last_on_host) {
            self.wait(op, host, &mut out);
        }
        for (i, input) in p.inputs.iter().enumerate() {
            out.push(command(host, Action::HostWrite { input: i as u32 }, &input.name));
        }
        let frees = self.last_uses();
        let mut kernels = Kernels::default();
        for &id in &m.order {
            self.op(id, p, &mut kernels, &frees, &mut out)?;
        }
        if let Some(op) = last_output {
            self.wait(op, host, &mut out);
        }
        for (i, o) in p.outputs.iter().enumerate() {
            out.push(command(host, Action::HostRead { output: i as u32 }, &o.name));
        }
        Ok(out)
    }

    fn wait(&mut self, op: OpId, queue: Queue, out: &mut Vec<Command>) {
        let event = self.events[&op];
        if !self.recorded.contains(&op) && !self.primed.iter().any(|&(o, _)| o == op) {
            self.primed.push((op, event));
        }
        out.push(command(queue, Action::Wait { event }, ""));
    }

    /// Slots that only kernels touch, by the last kernel that touches them before they are freed: there the
    /// bytes become undefined. Slots that copies touch too, be it later in the step, are left alone, since no
    /// one stream is last with them.
    fn last_uses(&self) -> BTreeMap<OpId, Vec<SlotId>> {
        let m = self.m;
        let mut last: Vec<Option<OpId>> = vec![None; m.slots.len()];
        let touched = |id: OpId| {
            let op = &m.ops[id];
            let read = op.operands.iter().filter_map(|&v| m.slot_of(v));
            read.chain(op.slots.iter().copied()).chain(op.workspace)
        };
        let mut copied = vec![false; m.slots.len()];
        for id in m.order.iter().filter(|&&id| m.ops[id].kind().is_none()) {
            touched(*id).for_each(|s| copied[s.index()] = true);
        }
        let mut out: BTreeMap<OpId, Vec<SlotId>> = BTreeMap::new();
        for &id in &m.order {
            let op = &m.ops[id];
            if let Code::Free(s) = op.code {
                let kernel = last[s.index()].filter(|_| !copied[s.index()] && m.slots[s].space == Space::Dev);
                if let Some(op) = kernel {
                    out.entry(op).or_default().push(s);
                }
                continue;
            }
            if m.ops[id].is_view() {
                continue;
            }
            touched(id).for_each(|s| last[s.index()] = Some(id));
        }
        out
    }

    fn op(
        &mut self,
        id: OpId,
        p: &mut Plan,
        kernels: &mut Kernels,
        frees: &BTreeMap<OpId, Vec<SlotId>>,
        out: &mut Vec<Command>,
    ) -> Result<(), LowerError> {
        let m = self.m;
        let op = &m.ops[id];
        if op.stream().is_none() || m.ops[id].is_view() {
            return Ok(());
        }
        let queue = self.queue(id)?;
        for a in &op.waits {
            self.wait(a.op, queue, out);
        }
        let label = op.results.first().map(|&v| m.values[v].name.clone()).unwrap_or_default();
        let slices = |values: &[memc_ir::ValueId]| {
            values.iter().map(|&v| value_slice(m, v)).collect::<Result<Vec<Slice>, _>>()
        };
        let (reads, writes) = (slices(&op.operands)?, slices(&op.results)?);
        let action = match (&op.code, reads.first(), writes.first()) {
            (Code::Compute(_), ..) => {
                let workspace = op.workspace.map(|s| slice(m, s, m.slots[s].bytes)).transpose()?;
                let kernel = kernels.get(p, m, id, workspace.map_or(0, |w| w.bytes))?;
                Action::Launch { kernel, reads, writes, workspace }
            }
            (_, Some(&src), Some(&dst)) => Action::Copy { src, dst },
            _ => return Err(LowerError::NotACopy { value: label }),
        };
        out.push(command(queue, action, &label));
        for &s in frees.get(&id).map(Vec::as_slice).unwrap_or_default() {
            let slice = slice(m, s, m.slots[s].bytes)?;
            out.push(command(queue, Action::Free { slice }, ""));
        }
        if let Some(&event) = self.events.get(&id) {
            self.recorded.insert(id);
            out.push(command(queue, Action::Record { event }, ""));
        }
        Ok(())
    }
}
