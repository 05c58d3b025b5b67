//! A simulator of plans that shares nothing with the checker.
//!
//! It runs the commands in random orders that the queues and events allow. A command takes time: it begins, and later
//! ends. While it writes, its destination holds garbage; if its source changes meanwhile, or another command writes to
//! its destination, it writes garbage. Contents are 64-bit hashes: the hash of an operator's result stands for what
//! the kernel would compute. What the host reads is compared with a direct evaluation of the source.
//!
//! A plan found wrong is wrong: the failing order is possible. A plan not found wrong may be wrong still.

use std::collections::BTreeMap;

use memc_ir::ops::{Class, OpKind};
use memc_ir::{Def, Id, Module, TensorType, parse_op, parse_type};
use memc_plan::{Action, Command, Init, Kernel, Plan, Section, Slice, Space, Stream};

use crate::random::{Random, digest, mix};

/// Most executions of the body in one run.
const MAX_STEPS: usize = 4;
/// Value of a tensor without bytes.
const EMPTY: u64 = 0xe;

/// What the source says of every number of steps.
pub(crate) struct Oracle<'a> {
    source: &'a Module,
    /// By number of steps.
    expected: Vec<Expected>,
}

impl<'a> Oracle<'a> {
    pub(crate) fn new(source: &'a Module) -> Oracle<'a> {
        Oracle { source, expected: (0..=MAX_STEPS).map(|steps| evaluate(source, steps)).collect() }
    }

    /// Looks for an order in which the plan delivers a wrong value: `Some` says what is wrong in which run.
    pub(crate) fn find_failure(&self, plan: &Plan, runs: usize, seed: u64) -> Option<String> {
        let program = match Program::new(self.source, plan) {
            Ok(program) => program,
            Err(what) => return Some(format!("cannot run: {what}")),
        };
        (0..runs).find_map(|run| {
            let mut random = Random::new(mix(seed, run as u64));
            let steps = if run == 0 { 2 } else { 1 + random.below(MAX_STEPS) };
            let failure = program.run(steps, &self.expected[steps], &mut random);
            failure.err().map(|what| format!("run {run}: {what}"))
        })
    }
}

/// What a byte range holds: byte `at` and following of a value.
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

enum Effect {
    Nothing,
    Record(u32),
    Wait(u32),
    /// Writes a value that depends on the step.
    Fill(Fill),
    /// Result hashes: the operator, or `None` for a kernel that computes nothing sensible.
    Launch(Option<u64>),
    /// Moves bytes.
    Move,
    /// Delivers an output.
    Output(usize),
    /// Delivers a state of the source.
    State(usize),
}

enum Fill {
    Garbage,
    Constant(u64),
    Input(u64),
}

struct Task {
    axis: usize,
    reads: Vec<Span>,
    writes: Vec<Span>,
    /// Writes that hold garbage afterwards.
    scratch: Vec<Span>,
    effect: Effect,
}

struct Program {
    /// First byte of each unit and of the one after it; the host arena's units follow the device's.
    bounds: Vec<(u64, u64)>,
    sections: [Vec<Task>; 3],
}

const HOST: usize = 3;

fn axis(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::D2h => 1,
        Stream::H2d => 2,
        Stream::Host => HOST,
    }
}

/// Cuts memory at every border of a slice, so that all accesses are whole units.
struct Units {
    dev: Vec<u64>,
    host: Vec<u64>,
}

impl Units {
    fn new(plan: &Plan) -> Units {
        let mut units = Units { dev: vec![0], host: vec![0] };
        let tables = (plan.states.iter().map(|s| &s.home))
            .chain(plan.inputs.iter().map(|i| &i.slot))
            .chain(plan.outputs.iter().map(|o| &o.slot));
        for slice in plan.commands().flat_map(|(_, _, c)| c.action.slices()).chain(tables) {
            let list = if slice.space == Space::Dev { &mut units.dev } else { &mut units.host };
            list.extend([slice.offset, slice.offset.saturating_add(slice.bytes)]);
        }
        for list in [&mut units.dev, &mut units.host] {
            list.sort_unstable();
            list.dedup();
        }
        units
    }

    fn span(&self, slice: &Slice) -> Span {
        let end = slice.offset.saturating_add(slice.bytes);
        let (list, base) =
            if slice.space == Space::Dev { (&self.dev, 0) } else { (&self.host, self.dev.len()) };
        let find = |at| list.binary_search(&at).expect("every border was collected");
        Span { from: base + find(slice.offset), to: base + find(end) }
    }

    fn bounds(&self) -> Vec<(u64, u64)> {
        let pairs = |list: &[u64]| {
            let ends = list.iter().skip(1).copied().chain([u64::MAX]);
            list.iter().copied().zip(ends).collect::<Vec<_>>()
        };
        let mut bounds = pairs(&self.dev);
        bounds.extend(pairs(&self.host));
        bounds
    }
}

impl Program {
    fn new(source: &Module, plan: &Plan) -> Result<Program, String> {
        let units = Units::new(plan);
        let kernels: Vec<Option<Meaning>> = plan.kernels.iter().map(Meaning::new).collect();
        let mut sections = [Vec::new(), Vec::new(), Vec::new()];
        for (list, section) in sections.iter_mut().zip(Section::ALL) {
            for (i, command) in plan.section(section).iter().enumerate() {
                let task = task(source, plan, &kernels, &units, section, command);
                list.push(task.map_err(|what| format!("{section} {i} `{command}`: {what}"))?);
            }
        }
        let program = Program { bounds: units.bounds(), sections };
        program.check_deliveries(source)?;
        Ok(program)
    }

    fn check_deliveries(&self, source: &Module) -> Result<(), String> {
        for i in 0..source.outputs.len() {
            if !self.sections[1].iter().any(|task| matches!(task.effect, Effect::Output(o) if o == i)) {
                return Err(format!("output {i} is never read"));
            }
        }
        for i in 0..source.states.len() {
            if !self.sections[2].iter().any(|task| matches!(task.effect, Effect::State(s) if s == i)) {
                return Err(format!("state {i} is never stored"));
            }
        }
        Ok(())
    }
}

fn arena(plan: &Plan, space: Space) -> u64 {
    if space == Space::Dev { plan.meta.dev_bytes } else { plan.meta.host_bytes }
}

fn task(
    source: &Module,
    plan: &Plan,
    kernels: &[Option<Meaning>],
    units: &Units,
    section: Section,
    command: &Command,
) -> Result<Task, String> {
    let on_host = command.stream == Stream::Host;
    let expect = |right: bool| if right { Ok(()) } else { Err("it is out of place".to_owned()) };
    let within = |slice: &Slice| match slice.end() {
        Some(end) if end <= arena(plan, slice.space) => Ok(units.span(slice)),
        _ => Err(format!("{slice} is outside the arena")),
    };
    let mut task = Task {
        axis: axis(command.stream),
        reads: vec![],
        writes: vec![],
        scratch: vec![],
        effect: Effect::Nothing,
    };
    match &command.action {
        Action::Launch { kernel, reads, writes, workspace } => {
            expect(!on_host)?;
            let meaning = kernels.get(*kernel as usize).ok_or("no such kernel")?;
            let table = &plan.kernels[*kernel as usize];
            task.reads = reads.iter().map(within).collect::<Result<_, _>>()?;
            task.writes = writes.iter().map(within).collect::<Result<_, _>>()?;
            task.scratch = workspace.iter().map(within).collect::<Result<_, _>>()?;
            let scratch = workspace.map_or(0, |slice| slice.bytes);
            let fits = meaning.as_ref().is_some_and(|m| m.fits(reads, writes));
            if !fits || scratch < table.workspace_bytes {
                return Err("the kernel would touch bytes outside its slices".into());
            }
            let meaning = meaning.as_ref().filter(|m| m.allows(reads, writes, workspace.as_ref()));
            task.effect = match meaning {
                Some(m) if m.identity => Effect::Move,
                Some(m) => Effect::Launch(Some(m.hash)),
                None => Effect::Launch(None),
            };
        }
        Action::Copy { src, dst } => {
            expect(src.bytes == dst.bytes)?;
            task.reads = vec![within(src)?];
            task.writes = vec![within(dst)?];
            task.effect = if src.overlaps(dst) { Effect::Launch(None) } else { Effect::Move };
        }
        Action::Record { event } => {
            expect(!on_host && *event < plan.events)?;
            task.effect = Effect::Record(*event);
        }
        Action::Wait { event } => {
            expect(*event < plan.events)?;
            task.effect = Effect::Wait(*event);
        }
        Action::Free { slice } => {
            task.writes = vec![within(slice)?];
            task.effect = Effect::Fill(Fill::Garbage);
        }
        Action::Load { state } => {
            expect(on_host && section == Section::Prologue)?;
            let entry = plan.states.get(*state as usize).ok_or("no such state")?;
            task.writes = vec![within(&entry.home)?];
            task.effect = Effect::Fill(Fill::Constant(loaded(source, &entry.name, &entry.init)));
        }
        Action::Store { state } => {
            expect(on_host && section == Section::Epilogue)?;
            let entry = plan.states.get(*state as usize).ok_or("no such state")?;
            task.reads = vec![within(&entry.home)?];
            let index = source.states.values().position(|s| source.values[s.value].name == entry.name);
            task.effect = index.map_or(Effect::Nothing, Effect::State);
        }
        Action::HostWrite { input } => {
            expect(on_host && section == Section::Body)?;
            let entry = plan.inputs.get(*input as usize).ok_or("no such input")?;
            task.writes = vec![within(&entry.slot)?];
            task.effect = Effect::Fill(Fill::Input(digest(entry.name.as_bytes())));
        }
        Action::HostRead { output } => {
            expect(on_host && section == Section::Body)?;
            let entry = plan.outputs.get(*output as usize).ok_or("no such output")?;
            task.reads = vec![within(&entry.slot)?];
            task.effect = Effect::Output(*output as usize);
        }
    }
    Ok(task)
}

/// What a kernel of the plan computes.
struct Meaning {
    hash: u64,
    identity: bool,
    reads: Vec<u64>,
    writes: Vec<u64>,
    inplace: Vec<(usize, usize)>,
}

impl Meaning {
    fn new(kernel: &Kernel) -> Option<Meaning> {
        let kind = parse_op(&kernel.op, &kernel.attrs).ok()?;
        let types = |texts: &[String]| -> Option<Vec<TensorType>> {
            texts.iter().map(|text| parse_type(text).ok()).collect()
        };
        let (operands, results) = (types(&kernel.operands)?, types(&kernel.results)?);
        let (a, b): (Vec<&TensorType>, Vec<&TensorType>) =
            (operands.iter().collect(), results.iter().collect());
        if kind.infer(&a).ok()? != results {
            return None;
        }
        Some(Meaning {
            hash: operator(&kind, &a),
            identity: is_identity(&kind),
            reads: a.iter().map(|ty| ty.bytes()).collect(),
            writes: b.iter().map(|ty| ty.bytes()).collect(),
            inplace: kind.inplace_pairs(&a, &b),
        })
    }

    fn fits(&self, reads: &[Slice], writes: &[Slice]) -> bool {
        let sizes = |slices: &[Slice]| slices.iter().map(|slice| slice.bytes).collect::<Vec<_>>();
        sizes(reads) == self.reads && sizes(writes) == self.writes
    }

    /// Whether the kernel works with these overlaps.
    fn allows(&self, reads: &[Slice], writes: &[Slice], scratch: Option<&Slice>) -> bool {
        let pair = |i: usize, r: &Slice, j: usize, w: &Slice| {
            !r.overlaps(w) || (r == w && self.inplace.contains(&(i, j)))
        };
        let apart = |slices: &[Slice]| scratch.is_none_or(|s| slices.iter().all(|other| !other.overlaps(s)));
        writes.iter().enumerate().all(|(j, w)| {
            reads.iter().enumerate().all(|(i, r)| pair(i, r, j, w))
                && writes.iter().skip(j + 1).all(|other| !other.overlaps(w))
        }) && apart(reads)
            && apart(writes)
    }
}

fn operator(kind: &OpKind, operands: &[&TensorType]) -> u64 {
    let types: Vec<String> = operands.iter().map(ToString::to_string).collect();
    digest(format!("{}{}({})", kind.mnemonic(), kind.attrs_text(), types.join(",")).as_bytes())
}

fn is_identity(kind: &OpKind) -> bool {
    kind.def().class == Class::View || kind.mnemonic() == "copy"
}

/// Value of a state before the first step: the right one only where the plan starts it as the source does.
fn loaded(source: &Module, name: &str, init: &Init) -> u64 {
    let right = match source.value_named(name).map(|v| source.values[v].def) {
        Some(Def::State(s)) => match (&source.states[s].init, init) {
            (memc_ir::Init::Zeros, Init::Zeros) => true,
            (memc_ir::Init::Ones, Init::Random { seed: 0, kind }) => kind == "ones",
            (memc_ir::Init::Uniform { seed, bound }, Init::Random { seed: other, kind }) => {
                seed == other && *kind == format!("uniform:{:?}", bound.0)
            }
            (memc_ir::Init::Data(blob), Init::Data { hash, .. }) => blob.hash == *hash,
            _ => false,
        },
        Some(Def::Const(c)) => {
            let payload = &source.consts[c].data;
            let right = matches!(init, Init::Data { hash, .. } if *hash == memc_plan::hash(payload));
            if right {
                return constant(payload);
            }
            false
        }
        _ => false,
    };
    if right { digest(name.as_bytes()) } else { digest(format!("{name} {init:?}").as_bytes()) }
}

fn constant(payload: &[u8]) -> u64 {
    mix(digest(payload), 0xc0)
}

/// Outputs of every step, and the states after all of them, each as [`whole`] values.
struct Expected {
    outputs: Vec<Vec<u64>>,
    states: Vec<u64>,
}

/// A tensor as an operand: its value with its length.
fn whole(value: u64, bytes: u64) -> u64 {
    if bytes == 0 { EMPTY } else { mix(value, bytes) }
}

fn evaluate(source: &Module, steps: usize) -> Expected {
    let name = |v: memc_ir::ValueId| digest(source.values[v].name.as_bytes());
    let bytes = |v: memc_ir::ValueId| source.values[v].ty.bytes();
    let mut states: Vec<u64> = source.states.values().map(|s| name(s.value)).collect();
    let mut outputs = Vec::new();
    for step in 0..steps {
        let mut values = vec![0u64; source.values.len()];
        for (v, value) in source.values.iter() {
            values[v.index()] = match value.def {
                Def::Input(_) => mix(name(v), step as u64),
                Def::State(s) => states[s.index()],
                Def::Const(c) => constant(&source.consts[c].data),
                Def::Op(..) => 0,
            };
        }
        for &id in &source.order {
            let op = &source.ops[id];
            let kind = op.kind().expect("a graph-phase op");
            let first = op.operands.first().map_or(0, |v| values[v.index()]);
            let args = op.operands.iter().map(|&v| whole(values[v.index()], bytes(v)));
            let hash = args.fold(operator(kind, &source.operand_types(id)), mix);
            for (i, v) in op.results.iter().enumerate() {
                values[v.index()] = if is_identity(kind) { first } else { mix(hash, i as u64) };
            }
        }
        outputs.push(source.outputs.iter().map(|o| whole(values[o.value.index()], bytes(o.value))).collect());
        let next = |s: &memc_ir::State| values[s.next.unwrap_or(s.value).index()];
        states = source.states.values().map(next).collect();
    }
    let lengths = source.states.values().map(|s| bytes(s.value));
    Expected { outputs, states: states.into_iter().zip(lengths).map(|(v, n)| whole(v, n)).collect() }
}

/// One execution of one command.
struct Instance {
    section: usize,
    index: usize,
    step: usize,
    /// What must have ended before it begins, besides its predecessor on its queue.
    after: [Option<usize>; 2],
}

struct Running {
    instance: usize,
    token: Content,
    snapshot: Vec<Vec<Content>>,
}

impl Program {
    /// One run of `steps` steps in a random order.
    fn run(&self, steps: usize, expected: &Expected, random: &mut Random) -> Result<(), String> {
        let (instances, mut queues) = self.unroll(steps);
        let mut memory: Vec<Content> =
            (0..self.bounds.len()).map(|i| Content { value: mix(random.next(), i as u64), at: 0 }).collect();
        let mut done = vec![false; instances.len()];
        let mut active: [Option<Running>; 4] = [None, None, None, None];
        let mut weights = [1usize; 4];
        loop {
            if random.one_in(48) {
                for weight in &mut weights {
                    *weight = random.choose(&[1, 1, 6, 40, 1000]);
                }
            }
            let mut total = 0;
            let mut can = [false; 4];
            for axis in 0..4 {
                let ready = queues[axis]
                    .last()
                    .is_some_and(|&head| instances[head].after.iter().flatten().all(|&other| done[other]));
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
    fn unroll(&self, steps: usize) -> (Vec<Instance>, [Vec<usize>; 4]) {
        let mut instances = Vec::new();
        let mut queues: [Vec<usize>; 4] = Default::default();
        let mut events: BTreeMap<u32, usize> = BTreeMap::new();
        let mut last_host = None;
        let sections = [(0, 0)].into_iter().chain((0..steps).map(|step| (1, step))).chain([(2, steps)]);
        for (section, step) in sections {
            for (index, task) in self.sections[section].iter().enumerate() {
                let id = instances.len();
                let event = match task.effect {
                    Effect::Wait(event) => events.get(&event).copied(),
                    _ => None,
                };
                if let Effect::Record(event) = task.effect {
                    events.insert(event, id);
                }
                instances.push(Instance { section, index, step, after: [last_host, event] });
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
        &self.sections[instance.section][instance.index]
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
            for unit in span.from..span.to {
                let from = self.bounds[unit].0 - start;
                let garbage = Content { value: random.next(), at: 0 };
                let content = match &task.effect {
                    Effect::Fill(Fill::Constant(value)) => Content { value: *value, at: from },
                    Effect::Fill(Fill::Input(name)) => {
                        Content { value: mix(*name, instance.step as u64), at: from }
                    }
                    Effect::Launch(Some(operator)) => {
                        let hash = values.iter().copied().fold(*operator, mix);
                        Content { value: mix(hash, j as u64), at: from }
                    }
                    Effect::Move => match (args.first(), task.reads.first()) {
                        (Some(Some(contents)), Some(src)) => {
                            self.moved(*src, contents, from, self.bounds[unit].1 - self.bounds[unit].0)
                        }
                        _ => garbage,
                    },
                    _ => garbage,
                };
                memory[unit] = if memory[unit] == running.token { content } else { garbage };
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

    /// What byte `from` and following of a span hold.
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
