//! The augmented dataflow graph of a swap plan: its time on three streams (Sec. 3, 4.1), and its decisions.

use memc_ir::{Arena, Id, Ids, ids};
use memc_planner::{
    Action, CommandIx, Decisions, Job, Jobs, OpPos, Resident, Run, StepPos, Stream, TensorId, TensorKind,
    Wait, Waits, simulate,
};

use super::graph::{Act, BlockIx, Graph, Moves, NONE};
use super::pool::Pool;

ids! {
    /// Bytes that nodes touch: a block, or the copy of a tensor in host memory.
    CellIx,
}

/// Nodes on the three streams, and the edges between streams.
#[derive(Default)]
pub(super) struct Augmented {
    pub(super) jobs: Jobs,
    pub(super) waits: Waits,
    /// For every position of the schedule, its node.
    pub(super) runs: Arena<StepPos, CommandIx>,
    /// For every node, the end of its part of `touches`.
    ends: Arena<CommandIx, usize>,
    /// Touches of all nodes: the cell, and whether the node writes it.
    touches: Vec<(CellIx, bool)>,
    /// For a copy of a step's result, the node of the op that made it; else none.
    after: Arena<CommandIx, Option<CommandIx>>,
}

impl Augmented {
    /// Of a schedule and its swap plan.
    pub(super) fn new(g: &Graph<'_>, order: &[OpPos], pool: &Pool, moves: &Moves) -> Augmented {
        let p = g.p;
        let mut x = Augmented::default();
        // Cells are the blocks, then one copy in host memory for every tensor.
        let blocks = pool.cnt.iter().sum::<u64>() as usize;
        let in_block = |b: BlockIx| CellIx(b.0);
        let on_host = |t: TensorId| CellIx::new(blocks + t.index());
        let mut block = moves.resident.clone();
        let (mut acts, mut at) = (moves.acts.iter().peekable(), moves.at.iter().peekable());
        let (mut last_input, mut last_output) = (None, None);
        for i in Ids::<StepPos>::first(order.len() + 1) {
            while let Some(&(_, act, t)) = acts.next_if(|a| a.0 <= i) {
                let tensor = &p.tensors[t];
                match act {
                    Act::Out => {
                        // A write of the block, so that ops that only read the tensor get edges too (Sec.
                        // 4.2, Fig. 3).
                        x.touches.extend([(in_block(block[t]), true), (on_host(t), true)]);
                        x.node(Stream::DeviceToHost, p.device.d2h_ns(tensor.size));
                    }
                    Act::Drop => block[t] = NONE,
                    Act::In(b) => {
                        block[t] = b;
                        x.touches.extend([(on_host(t), false), (in_block(b), true)]);
                        let node = x.node(Stream::HostToDevice, p.device.h2d_ns(tensor.size));
                        if tensor.kind == TensorKind::Input {
                            last_input = Some(node);
                        }
                    }
                }
            }
            let Some(&op) = order.get(i.index()) else { break };
            while let Some(&(_, t, b)) = at.next_if(|a| a.0 == i) {
                block[t] = b;
            }
            for &(t, read, write) in &g.operands[op] {
                let b = in_block(block[t]);
                x.touches.extend(read.then_some((b, false)));
                x.touches.extend(write.then_some((b, true)));
            }
            x.touches.extend(moves.scratch.get(i).filter(|&&b| b != NONE).map(|&b| (in_block(b), true)));
            let op = &p.ops[op];
            let node = x.node(Stream::Compute, op.time_ns);
            x.runs.push(node);
            for (t, bytes) in op.copies(&p.tensors) {
                x.touches.push((in_block(block[t]), false));
                let output = x.node(Stream::DeviceToHost, p.device.d2h_ns(bytes));
                x.after[output] = Some(node);
                last_output = Some(output);
            }
        }
        for gate in [last_input, last_output].into_iter().flatten() {
            x.jobs[gate].gate = true;
        }
        x.edges(blocks + p.tensors.len());
        x
    }

    fn node(&mut self, stream: Stream, ns: u64) -> CommandIx {
        self.ends.push(self.touches.len());
        self.after.push(None);
        self.jobs.push(Job { stream, ns, slowdown: 0, gate: false })
    }

    /// Edges where two streams touch a cell and one of them writes it, within a step and from the one before
    /// it.
    fn edges(&mut self, cells: usize) {
        let n = self.jobs.len();
        // Executions are numbered through two steps: the one that writes a cell, and the last on each stream
        // that reads it.
        const NEVER: usize = usize::MAX;
        let mut writer: Arena<CellIx, usize> = Arena::filled(NEVER, cells);
        let mut readers: Arena<CellIx, [usize; 3]> = Arena::filled([NEVER; 3], cells);
        // Latest execution, plus one, that each stream already waits for on each other one.
        let mut known = [[0; 3]; 3];
        self.waits = Arena::filled(Vec::new(), n);
        let mut needs: Vec<usize> = Vec::new();
        for run in 0..2 * n {
            let node = CommandIx::new(run % n);
            let stream = self.jobs[node].stream as usize;
            let from = if run % n == 0 { 0 } else { self.ends[CommandIx::new(run % n - 1)] };
            let touched = &self.touches[from..self.ends[node]];
            needs.clear();
            for &(cell, write) in touched {
                needs.push(writer[cell]);
                if write {
                    needs.extend(readers[cell]);
                }
            }
            needs.extend(self.after[node].map(|after| run - (node.index() - after.index())));
            needs.retain(|&r| r != NEVER && self.jobs[CommandIx::new(r % n)].stream as usize != stream);
            needs.sort_unstable_by_key(|&r| std::cmp::Reverse(r));
            for &need in &needs {
                let of = self.jobs[CommandIx::new(need % n)].stream as usize;
                if known[stream][of] > need {
                    continue;
                }
                known[stream][of] = need + 1;
                if run >= n {
                    self.waits[node].push(Wait { command: CommandIx::new(need % n), previous: need < n });
                }
            }
            for &(cell, write) in touched {
                if write {
                    writer[cell] = run;
                    readers[cell] = [NEVER; 3];
                } else {
                    readers[cell][stream] = run;
                }
            }
        }
    }

    /// Time from one step to the next in ns; nothing if its edges contradict the streams.
    pub(super) fn step_ns(&self, g: &Graph<'_>) -> Option<u64> {
        simulate(&g.p.device, &self.jobs, &self.waits).ok().map(|t| t.step_ns)
    }
}

/// Decisions of a schedule and its swap plan, with the offsets of the pool.
pub(super) fn decisions(g: &Graph<'_>, order: &[OpPos], pool: &Pool, moves: &Moves) -> Decisions {
    let mut offsets = Vec::new();
    let mut end = 0;
    for (&count, &object) in pool.cnt.iter().zip(&pool.objects(&g.sizes.bytes)) {
        for _ in 0..count {
            offsets.push(end);
            end += object;
        }
    }
    let place = |b: BlockIx| offsets.get(b.index()).copied();
    let mut d = Decisions::default();
    for (t, &resident) in moves.resident.iter().filter(|&(t, _)| g.p.tensors[t].persistent()) {
        d.residents.insert(t, if resident == NONE { Resident::Host } else { Resident::Dev(place(resident)) });
    }
    let (mut acts, mut at) = (moves.acts.iter().peekable(), moves.at.iter().peekable());
    for i in Ids::<StepPos>::first(order.len() + 1) {
        while let Some(&(_, act, t)) = acts.next_if(|a| a.0 <= i) {
            d.actions.push(match act {
                Act::Out => Action::Out(t),
                Act::Drop => Action::Drop(t),
                Act::In(b) => Action::In((t, place(b))),
            });
        }
        let Some(&op) = order.get(i.index()) else { break };
        let mut run = Run { op, ..Run::default() };
        while let Some(&(_, t, b)) = at.next_if(|a| a.0 == i) {
            run.at.push((t, place(b)));
        }
        run.workspace = moves.scratch.get(i).filter(|&&b| b != NONE).map(|&b| place(b));
        d.actions.push(Action::Run(run));
    }
    d
}
