//! The augmented dataflow graph of a swap plan: its time on three streams (Sec. 3, 4.1), and its decisions.

use memc_planner::{Action, Await, Decisions, Home, Job, Kind, Run, Stream, simulate};

use super::graph::{Act, Graph, Moves, NONE};
use super::pool::Pool;

/// Nodes on the three streams, and the edges between streams.
#[derive(Default)]
pub(super) struct Augmented {
    pub(super) jobs: Vec<Job>,
    pub(super) awaits: Vec<Vec<Await>>,
    /// For every position of the schedule, its node.
    pub(super) runs: Vec<u32>,
    /// For every node, the end of its part of `touches`.
    ends: Vec<u32>,
    /// Touches of all nodes: the cell, and whether the node writes it.
    touches: Vec<(u32, bool)>,
    /// For a copy of a step's result, the node of the op that made it; else none.
    after: Vec<u32>,
}

impl Augmented {
    /// Of a schedule and its swap plan.
    pub(super) fn new(g: &Graph<'_>, order: &[u32], pool: &Pool, moves: &Moves) -> Augmented {
        let p = g.p;
        let mut x = Augmented::default();
        // Cells are the blocks, then one copy in host memory for every tensor.
        let blocks = pool.cnt.iter().sum::<u64>() as u32;
        let mut block = moves.home.clone();
        let (mut acts, mut at) = (moves.acts.iter().peekable(), moves.at.iter().peekable());
        let (mut last_input, mut last_output) = (None, None);
        for i in 0..=order.len() as u32 {
            while let Some(&(_, act, t)) = acts.next_if(|a| a.0 <= i) {
                let tensor = &p.tensors[t as usize];
                match act {
                    Act::Out => {
                        // A write of the block, so that ops that only read the tensor get edges too (Sec.
                        // 4.2, Fig. 3).
                        x.touches.extend([(block[t as usize], true), (blocks + t, true)]);
                        x.node(Stream::DeviceToHost, p.device.d2h_ns(tensor.size));
                    }
                    Act::Drop => block[t as usize] = NONE,
                    Act::In(b) => {
                        block[t as usize] = b;
                        x.touches.extend([(blocks + t, false), (b, true)]);
                        let node = x.node(Stream::HostToDevice, p.device.h2d_ns(tensor.size));
                        if tensor.kind == Kind::Input {
                            last_input = Some(node);
                        }
                    }
                }
            }
            let Some(&op) = order.get(i as usize) else { break };
            while let Some(&(_, t, b)) = at.next_if(|a| a.0 == i) {
                block[t as usize] = b;
            }
            for &(t, read, write) in &g.operands[op as usize] {
                let b = block[t as usize];
                x.touches.extend(read.then_some((b, false)));
                x.touches.extend(write.then_some((b, true)));
            }
            x.touches.extend(moves.scratch.get(i as usize).filter(|&&b| b != NONE).map(|&b| (b, true)));
            let op = &p.ops[op as usize];
            let node = x.node(Stream::Compute, op.time_ns);
            x.runs.push(node as u32);
            for &(t, bytes) in &op.outputs {
                x.touches.push((block[t as usize], false));
                let output = x.node(Stream::DeviceToHost, p.device.d2h_ns(bytes));
                x.after[output] = node as u32;
                last_output = Some(output);
            }
        }
        for gate in [last_input, last_output].into_iter().flatten() {
            x.jobs[gate].gate = true;
        }
        x.edges(blocks as usize + p.tensors.len());
        x
    }

    fn node(&mut self, stream: Stream, ns: u64) -> usize {
        self.jobs.push(Job { stream, ns, slowdown: 0, gate: false });
        self.ends.push(self.touches.len() as u32);
        self.after.push(NONE);
        self.jobs.len() - 1
    }

    /// Edges where two streams touch a cell and one of them writes it, within a step and from the one before
    /// it.
    fn edges(&mut self, cells: usize) {
        let n = self.jobs.len();
        // Executions are numbered through two steps: the one that writes a cell, and the last on each stream
        // that reads it.
        let mut writer = vec![NONE; cells];
        let mut readers = vec![[NONE; 3]; cells];
        // What each stream awaits of each other one already, as execution plus one.
        let mut known = [[0u32; 3]; 3];
        self.awaits = vec![Vec::new(); n];
        let mut needs: Vec<u32> = Vec::new();
        for run in 0..2 * n {
            let node = run % n;
            let stream = self.jobs[node].stream as usize;
            let from = if node == 0 { 0 } else { self.ends[node - 1] as usize };
            let touched = &self.touches[from..self.ends[node] as usize];
            needs.clear();
            for &(cell, write) in touched {
                needs.push(writer[cell as usize]);
                if write {
                    needs.extend(readers[cell as usize]);
                }
            }
            let after = self.after[node];
            needs.extend((after != NONE).then(|| run as u32 - (node as u32 - after)));
            needs.retain(|&r| r != NONE && self.jobs[r as usize % n].stream as usize != stream);
            needs.sort_unstable_by_key(|&r| std::cmp::Reverse(r));
            for &need in &needs {
                let of = self.jobs[need as usize % n].stream as usize;
                if known[stream][of] > need {
                    continue;
                }
                known[stream][of] = need + 1;
                if run >= n {
                    self.awaits[node].push(Await { command: need % n as u32, previous: (need as usize) < n });
                }
            }
            for &(cell, write) in touched {
                if write {
                    writer[cell as usize] = run as u32;
                    readers[cell as usize] = [NONE; 3];
                } else {
                    readers[cell as usize][stream] = run as u32;
                }
            }
        }
    }

    /// Time from one step to the next in ns; nothing if its edges contradict the streams.
    pub(super) fn step_ns(&self, g: &Graph<'_>) -> Option<u64> {
        simulate(&g.p.device, &self.jobs, &self.awaits).ok().map(|t| t.step_ns)
    }
}

/// Decisions of a schedule and its swap plan, with the offsets of the pool.
pub(super) fn decisions(g: &Graph<'_>, order: &[u32], pool: &Pool, moves: &Moves) -> Decisions {
    let mut offsets = Vec::new();
    let mut end = 0;
    for (&count, &object) in pool.cnt.iter().zip(&pool.objects(&g.sizes.bytes)) {
        for _ in 0..count {
            offsets.push(end);
            end += object;
        }
    }
    let place = |b: u32| offsets.get(b as usize).copied();
    let mut d = Decisions::default();
    for (t, &home) in moves.home.iter().enumerate().filter(|&(t, _)| g.p.tensors[t].persistent()) {
        d.homes.insert(t as u32, if home == NONE { Home::Host } else { Home::Dev(place(home)) });
    }
    let (mut acts, mut at) = (moves.acts.iter().peekable(), moves.at.iter().peekable());
    for i in 0..=order.len() as u32 {
        while let Some(&(_, act, t)) = acts.next_if(|a| a.0 <= i) {
            d.actions.push(match act {
                Act::Out => Action::Out(t),
                Act::Drop => Action::Drop(t),
                Act::In(b) => Action::In((t, place(b))),
            });
        }
        let Some(&op) = order.get(i as usize) else { break };
        let mut run = Run { op, ..Run::default() };
        while let Some(&(_, t, b)) = at.next_if(|a| a.0 == i) {
            run.at.push((t, place(b)));
        }
        run.workspace = moves.scratch.get(i as usize).filter(|&&b| b != NONE).map(|&b| place(b));
        d.actions.push(Action::Run(run));
    }
    d
}
