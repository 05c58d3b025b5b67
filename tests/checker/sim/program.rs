//! A plan in the simulator's terms: commands as tasks on units of memory.

use memc_ir::{Def, Module, TensorType};
use memc_plan::{Action, Command, Init, Kernel, Plan, Queue, Section, Slice, Space};

use super::Span;
use super::oracle::{constant, is_identity, operator};
use crate::random::digest;

/// Effect of a task besides its reads and writes.
pub(super) enum Effect {
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

pub(super) enum Fill {
    Garbage,
    Constant(u64),
    Input(u64),
}

pub(super) struct Task {
    pub(super) axis: usize,
    pub(super) reads: Vec<Span>,
    pub(super) writes: Vec<Span>,
    /// Writes that hold garbage afterwards.
    pub(super) scratch: Vec<Span>,
    pub(super) effect: Effect,
}

pub(super) struct Program {
    /// First byte of each unit and of the one after it; the host arena's units follow the device's.
    pub(super) bounds: Vec<(u64, u64)>,
    /// Sections of the plan, then of its buckets.
    pub(super) sections: Vec<[Vec<Task>; 3]>,
}

fn axis(queue: Queue) -> usize {
    queue.index()
}

/// Cuts memory at every border of a slice, so that all accesses are whole units.
struct Units {
    dev: Vec<u64>,
    host: Vec<u64>,
}

impl Units {
    fn new(plan: &Plan) -> Units {
        let mut units = Units { dev: vec![0], host: vec![0] };
        for plan in plan.with_buckets() {
            let tables = (plan.states.iter().map(|s| &s.resident))
                .chain(plan.inputs.iter().map(|i| &i.slot))
                .chain(plan.outputs.iter().map(|o| &o.slot));
            for slice in plan.commands().flat_map(|(_, _, c)| c.action.slices()).chain(tables) {
                let list = if slice.space == Space::Dev { &mut units.dev } else { &mut units.host };
                list.extend([slice.offset, slice.offset.saturating_add(slice.bytes)]);
            }
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
    /// The plan and its buckets, each with its source.
    pub(super) fn new(sources: &[Module], plan: &Plan) -> Result<Program, String> {
        let units = Units::new(plan);
        let mut all = Vec::new();
        for (source, plan) in sources.iter().zip(plan.with_buckets()) {
            let kernels: Vec<Option<Meaning>> = plan.kernels.iter().map(Meaning::new).collect();
            let mut sections = [Vec::new(), Vec::new(), Vec::new()];
            for (list, section) in sections.iter_mut().zip(Section::ALL) {
                for (i, command) in plan.section(section).iter().enumerate() {
                    let task = task(source, plan, &kernels, &units, section, command);
                    list.push(task.map_err(|what| format!("{section} {i} `{command}`: {what}"))?);
                }
            }
            Program::check_deliveries(&sections, source)?;
            all.push(sections);
        }
        Ok(Program { bounds: units.bounds(), sections: all })
    }

    fn check_deliveries(sections: &[Vec<Task>; 3], source: &Module) -> Result<(), String> {
        for i in 0..source.outputs.len() {
            if !sections[1].iter().any(|task| matches!(task.effect, Effect::Output(o) if o == i)) {
                return Err(format!("output {i} is never read"));
            }
        }
        for i in 0..source.states.len() {
            if !sections[2].iter().any(|task| matches!(task.effect, Effect::State(s) if s == i)) {
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
    let on_host = command.queue == Queue::Host;
    let expect = |right: bool| if right { Ok(()) } else { Err("it is out of place".to_owned()) };
    let within = |slice: &Slice| match slice.end() {
        Some(end) if end <= arena(plan, slice.space) => Ok(units.span(slice)),
        _ => Err(format!("{slice} is outside the arena")),
    };
    let mut task = Task {
        axis: axis(command.queue),
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
            task.writes = vec![within(&entry.resident)?];
            task.effect = Effect::Fill(Fill::Constant(loaded(source, &entry.name, &entry.init)));
        }
        Action::Store { state } => {
            expect(on_host && section == Section::Epilogue)?;
            let entry = plan.states.get(*state as usize).ok_or("no such state")?;
            task.reads = vec![within(&entry.resident)?];
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

/// Function of a kernel of the plan.
struct Meaning {
    hash: u64,
    identity: bool,
    reads: Vec<u64>,
    writes: Vec<u64>,
    inplace: Vec<(usize, usize)>,
}

impl Meaning {
    fn new(kernel: &Kernel) -> Option<Meaning> {
        let kind = &kernel.op;
        let (a, b): (Vec<&TensorType>, Vec<&TensorType>) =
            (kernel.operands.iter().collect(), kernel.results.iter().collect());
        if kind.infer(&a).ok()? != kernel.results {
            return None;
        }
        Some(Meaning {
            hash: operator(kind, &a),
            identity: is_identity(kind),
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

/// Value of a state before the first step: the right one only where the plan starts it as the source does.
fn loaded(source: &Module, name: &str, init: &Init) -> u64 {
    let right = match source.value_named(name).map(|v| source.values[v].def) {
        Some(Def::State(s)) => match (&source.states[s].init, init) {
            (memc_ir::Init::Zeros, Init::Zeros) => true,
            (wanted, Init::Random { seed, kind }) => wanted.generated() == Some((*seed, kind.clone())),
            (memc_ir::Init::Data(blob), Init::Data { hash, .. }) => blob.hash() == *hash,
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
