//! A simulator of plans that shares nothing with the checker.
//!
//! It runs the commands in random orders that the queues and events allow. A command takes time: it begins,
//! and later ends. While it writes, its destination holds garbage; if its source changes meanwhile, or
//! another command writes to its destination, it writes garbage. Contents are 64-bit hashes: the hash of an
//! operator's result stands for what the kernel would compute. What the host reads is compared with a direct
//! evaluation of the source.
//!
//! A plan found wrong is wrong: the failing order is possible. A plan not found wrong may be wrong still.

mod oracle;
mod program;

use std::collections::BTreeMap;

use memc_ir::Module;
use memc_plan::{Plan, Queue};

use self::oracle::{Expected, evaluate, whole};
use self::program::{Effect, Fill, Program, Task};
use crate::random::{Random, mix};

/// Most executions of the body in one run.
const MAX_STEPS: usize = 4;
/// Value of a tensor without bytes.
const EMPTY: u64 = 0xe;

/// Results that the source graphs of a plan and its buckets demand, for every sequence of steps.
pub(crate) struct Oracle<'a> {
    sources: &'a [Module],
    /// By the bucket of each step.
    expected: BTreeMap<Vec<usize>, Expected>,
}

impl<'a> Oracle<'a> {
    pub(crate) fn new(sources: &'a [Module]) -> Oracle<'a> {
        let mut sequences = vec![Vec::new()];
        let mut begun = 0;
        for _ in 0..MAX_STEPS {
            let longest = begun..sequences.len();
            begun = sequences.len();
            for at in longest {
                let longer = |bucket| [&sequences[at][..], &[bucket]].concat();
                let longer: Vec<_> = (0..sources.len()).map(longer).collect();
                sequences.extend(longer);
            }
        }
        let expected = |steps: Vec<usize>| {
            let modules = steps.iter().map(|&bucket| &sources[bucket]);
            let results = evaluate(modules, &sources[0]);
            (steps, results)
        };
        Oracle { sources, expected: sequences.into_iter().map(expected).collect() }
    }

    /// Looks for an order in which the plan delivers a wrong value: `Some` says what is wrong in which run.
    pub(crate) fn find_failure(&self, plan: &Plan, runs: usize, seed: u64) -> Option<String> {
        let program = match Program::new(self.sources, plan) {
            Ok(program) => program,
            Err(what) => return Some(format!("cannot run: {what}")),
        };
        (0..runs).find_map(|run| {
            let mut random = Random::new(mix(seed, run as u64));
            let steps = if run == 0 { 2 } else { 1 + random.below(MAX_STEPS) };
            let count = self.sources.len();
            let bucket = |step| if run == 0 || count == 1 { step % count } else { random.below(count) };
            let steps: Vec<usize> = (0..steps).map(bucket).collect();
            let failure = program.run(&steps, &self.expected[&steps], &mut random);
            failure.err().map(|what| format!("run {run} of buckets {steps:?}: {what}"))
        })
    }
}

/// Content of a byte range: byte `at` and following of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Content {
    value: u64,
    at: u64,
}

/// Consecutive units of memory.
#[derive(Clone, Copy)]
struct Span {
    from: usize,
    to: usize,
}

/// The host's axis; those of streams come before it.
const HOST: usize = Queue::Host.index();

/// Number of axes.
const AXES: usize = Queue::ALL.len();

/// One execution of one command.
struct Instance {
    bucket: usize,
    section: usize,
    index: usize,
    step: usize,
    /// Tasks that end before it begins, besides its predecessor on its queue.
    after: [Option<usize>; 2],
    /// Number of first tasks that all end before it begins.
    barrier: usize,
}

struct Running {
    instance: usize,
    token: Content,
    snapshot: Vec<Vec<Content>>,
}

impl Program {
    /// One run of steps of these buckets in a random order.
    fn run(&self, steps: &[usize], expected: &Expected, random: &mut Random) -> Result<(), String> {
        let (instances, mut queues) = self.unroll(steps);
        let mut memory: Vec<Content> =
            (0..self.bounds.len()).map(|i| Content { value: mix(random.next(), i as u64), at: 0 }).collect();
        let mut done = vec![false; instances.len()];
        let mut active: [Option<Running>; AXES] = Default::default();
        let mut weights = [1usize; AXES];
        let mut first_open = 0;
        loop {
            while done.get(first_open) == Some(&true) {
                first_open += 1;
            }
            if random.one_in(48) {
                for weight in &mut weights {
                    *weight = random.choose(&[1, 1, 6, 40, 1000]);
                }
            }
            let mut total = 0;
            let mut can = [false; AXES];
            for axis in 0..AXES {
                let ready = queues[axis].last().is_some_and(|&head| {
                    let Instance { after, barrier, .. } = &instances[head];
                    *barrier <= first_open && after.iter().flatten().all(|&other| done[other])
                });
                can[axis] = active[axis].is_some() || ready;
                total += if can[axis] { weights[axis] } else { 0 };
            }
            if total == 0 {
                return Ok(());
            }
            let mut draw = random.below(total);
            let mut axis = 0;
            while !can[axis] || draw >= weights[axis] {
                draw -= if can[axis] { weights[axis] } else { 0 };
                axis += 1;
            }
            match active[axis].take() {
                Some(running) => {
                    self.end(&instances[running.instance], &running, &mut memory, random, expected)?;
                    done[running.instance] = true;
                }
                None => {
                    let Some(instance) = queues[axis].pop() else { continue };
                    active[axis] = Some(self.begin(&instances, instance, &mut memory, random));
                }
            }
        }
    }

    /// All executions in issue order, and per queue the executions still to come, last first.
    fn unroll(&self, steps: &[usize]) -> (Vec<Instance>, [Vec<usize>; AXES]) {
        let mut instances = Vec::new();
        let mut queues: [Vec<usize>; AXES] = Default::default();
        let mut events: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        let mut last_host = None;
        let prologues = (0..self.sections.len()).map(|bucket| (bucket, 0, 0));
        let bodies = steps.iter().enumerate().map(|(step, &bucket)| (bucket, 1, step));
        let last = steps.last().copied().unwrap_or(self.sections.len() - 1);
        let (mut present, mut barrier) = (0, 0);
        for (bucket, section, step) in prologues.chain(bodies).chain([(last, 2, steps.len())]) {
            if bucket != present {
                (present, barrier) = (bucket, instances.len());
            }
            for (index, task) in self.sections[bucket][section].iter().enumerate() {
                let id = instances.len();
                let event = match task.effect {
                    Effect::Wait(event) => events.get(&(bucket, event)).copied(),
                    _ => None,
                };
                if let Effect::Record(event) = task.effect {
                    events.insert((bucket, event), id);
                }
                let after = [last_host, event];
                instances.push(Instance { bucket, section, index, step, after, barrier });
                queues[task.axis].push(id);
                if task.axis == HOST {
                    last_host = Some(id);
                }
            }
        }
        for queue in &mut queues {
            queue.reverse();
        }
        (instances, queues)
    }

    fn task(&self, instance: &Instance) -> &Task {
        &self.sections[instance.bucket][instance.section][instance.index]
    }

    fn begin(
        &self,
        instances: &[Instance],
        instance: usize,
        memory: &mut [Content],
        random: &mut Random,
    ) -> Running {
        let task = self.task(&instances[instance]);
        let snapshot = task.reads.iter().map(|span| memory[span.from..span.to].to_vec()).collect();
        let token = Content { value: random.next(), at: 0 };
        for span in task.writes.iter().chain(&task.scratch) {
            memory[span.from..span.to].fill(token);
        }
        Running { instance, token, snapshot }
    }

    fn end(
        &self,
        instance: &Instance,
        running: &Running,
        memory: &mut [Content],
        random: &mut Random,
        expected: &Expected,
    ) -> Result<(), String> {
        let task = self.task(instance);
        let intact = |span: &Span, snapshot: &[Content]| {
            memory[span.from..span.to]
                .iter()
                .zip(snapshot)
                .all(|(now, then)| now == then || *now == running.token)
        };
        let args: Vec<Option<&[Content]>> = task
            .reads
            .iter()
            .zip(&running.snapshot)
            .map(|(span, snapshot)| intact(span, snapshot).then_some(snapshot.as_slice()))
            .collect();
        let values: Vec<u64> = task
            .reads
            .iter()
            .zip(&args)
            .map(|(span, arg)| arg.map_or_else(|| random.next(), |contents| self.tensor(*span, contents)))
            .collect();
        let first = values.first().copied().unwrap_or(EMPTY);
        match task.effect {
            Effect::Output(o) if expected.outputs[instance.step][o] != first => {
                return Err(format!("output {o} of step {} is wrong", instance.step));
            }
            Effect::State(s) if expected.states[s] != first => {
                return Err(format!("state {s} after {} steps is wrong", instance.step));
            }
            _ => {}
        }
        for (j, span) in task.writes.iter().enumerate() {
            let start = self.bounds[span.from].0;
            let units = self.bounds[span.from..span.to].iter();
            for (unit, &(low, high)) in memory[span.from..span.to].iter_mut().zip(units) {
                let from = low - start;
                let content = match &task.effect {
                    Effect::Fill(Fill::Constant(value)) => Some(Content { value: *value, at: from }),
                    Effect::Fill(Fill::Input(name)) => {
                        Some(Content { value: mix(*name, instance.step as u64), at: from })
                    }
                    Effect::Launch(Some(operator)) => {
                        let hash = values.iter().copied().fold(*operator, mix);
                        Some(Content { value: mix(hash, j as u64), at: from })
                    }
                    Effect::Move => match (args.first(), task.reads.first()) {
                        (Some(Some(contents)), Some(src)) => {
                            Some(self.moved(*src, contents, from, high - low))
                        }
                        _ => None,
                    },
                    _ => None,
                };
                let garbage = Content { value: random.next(), at: 0 };
                *unit = content.filter(|_| *unit == running.token).unwrap_or(garbage);
            }
        }
        for span in &task.scratch {
            memory[span.from..span.to].fill(Content { value: random.next(), at: 0 });
        }
        Ok(())
    }

    /// The operand that a span holds: a whole value, or whatever its pieces make.
    fn tensor(&self, span: Span, contents: &[Content]) -> u64 {
        let Some(first) = contents.first() else { return EMPTY };
        let start = self.bounds[span.from].0;
        let bytes = self.bounds[span.to - 1].1 - start;
        match self.contiguous(span, contents) {
            true if first.at == 0 => whole(first.value, bytes),
            true => mix(mix(first.value, first.at), bytes),
            false => contents.iter().fold(bytes, |hash, c| mix(mix(hash, c.value), c.at)),
        }
    }

    /// Whether a span holds consecutive bytes of one value.
    fn contiguous(&self, span: Span, contents: &[Content]) -> bool {
        let (start, first) = (self.bounds[span.from].0, contents[0]);
        let follows = |(i, c): (usize, &Content)| {
            c.value == first.value && c.at == first.at + self.bounds[span.from + i].0 - start
        };
        contents.iter().enumerate().all(follows)
    }

    /// Content of a span from byte `from` on.
    fn moved(&self, src: Span, contents: &[Content], from: u64, bytes: u64) -> Content {
        let start = self.bounds[src.from].0 + from;
        let covering = |&i: &usize| {
            let (low, high) = self.bounds[src.from + i];
            low < start + bytes && start < high
        };
        let pieces: Vec<usize> = (0..contents.len()).filter(covering).collect();
        let (Some(&low), Some(&high)) = (pieces.first(), pieces.last()) else {
            return Content { value: 0, at: 0 };
        };
        let part = Span { from: src.from + low, to: src.from + high + 1 };
        let held = &contents[low..=high];
        if self.contiguous(part, held) {
            Content { value: held[0].value, at: held[0].at + start - self.bounds[part.from].0 }
        } else {
            Content { value: held.iter().fold(from, |hash, c| mix(mix(hash, c.value), c.at)), at: 0 }
        }
    }
}
