//! The header's statements, and the tables against the source.

use std::collections::BTreeSet;

use memc_ir::{Feed, Init, Module, TensorType, value_name};
use memc_plan::{Action, Plan, Section, Slice, Space, StateRole};

use crate::Checker;
use crate::access::ALIGN;
use crate::error::{CheckError, Place};
use crate::source::{Applied, Initial};
use crate::step::entry;
use crate::symbolic::{SigId, SymbolicId};

/// Most commands of one list, the limit of the plan's file format.
const MAX_COMMANDS: usize = 1 << 22;

/// Counts of one execution of the body; see [`crate::Counted`] for the meaning.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) swap_out_bytes: u64,
    pub(crate) swap_in_bytes: u64,
    pub(crate) ops: u64,
    /// Outputs that a copy has brought to their slots.
    pub(crate) brought: BTreeSet<usize>,
    launched: Applied,
}

impl Tally {
    /// Launches beyond those that the source asks for.
    pub(crate) fn recompute_ops(&self, asked: &Applied) -> u64 {
        let extra = |(key, &n): (_, &u64)| n.saturating_sub(asked.get(key).map_or(1, |&asked| asked));
        self.launched.iter().map(extra).sum()
    }
}

/// The plan's tables in the source's symbolic values.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Per state of the plan, its symbolic value before the first step.
    pub(crate) initial: Vec<SymbolicId>,
    /// Per state of the plan, its index among the source's states; `None` for a constant.
    states: Vec<Option<usize>>,
    /// Per input of the plan, its index in the source.
    inputs: Vec<Option<u32>>,
}

impl Tables {
    /// The symbolic value of a state of the plan where the source's states hold `states`.
    pub(crate) fn after(&self, state: u32, states: &[SymbolicId]) -> SymbolicId {
        let value = match entry(&self.states, state) {
            Some(Some(index)) => states.get(*index),
            _ => entry(&self.initial, state),
        };
        value.copied().unwrap_or(SymbolicId::POISON)
    }

    /// The source's input that an input of the plan is.
    pub(crate) fn input(&self, input: u32) -> Option<u32> {
        entry(&self.inputs, input).copied().flatten()
    }
}

impl Checker<'_> {
    /// Everything that needs no replay. Returns whether the lists are short enough to be replayed.
    pub(crate) fn check_header(&mut self) -> bool {
        let meta = &self.plan.meta;
        let text = memc_ir::print(self.source);
        if meta.source != text {
            let lines = |text: &str| format!("{} lines of text", text.lines().count());
            let (claimed, actual) = match first_difference(&meta.source, &text) {
                Some((n, claimed, actual)) => {
                    (format!("`{claimed}` in line {n}"), format!("`{actual}` in line {n}"))
                }
                None => (lines(&meta.source), lines(&text)),
            };
            self.mismatch("the source text", claimed, actual);
        }
        let hash = memc_plan::hash(text.as_bytes());
        if meta.source_hash != hash {
            self.mismatch("the source hash", hex(&meta.source_hash), hex(&hash));
        }
        let (dev_bytes, reserve_bytes, budget_bytes) =
            (meta.dev_bytes, meta.reserve_bytes, meta.budget_bytes);
        if dev_bytes.checked_add(reserve_bytes).is_none_or(|sum| sum > budget_bytes) {
            self.sink.push(CheckError::OverBudget { dev_bytes, reserve_bytes, budget_bytes });
        }
        let mut short = true;
        for section in Section::ALL {
            let length = self.plan.section(section).len();
            if length > MAX_COMMANDS {
                short = false;
                self.mismatch(
                    &format!("the length of the {section}"),
                    format!("{length} commands"),
                    format!("limited to {MAX_COMMANDS} commands"),
                );
            }
        }
        short
    }

    fn mismatch(&mut self, what: &str, claimed: String, actual: String) {
        self.sink.push(CheckError::HeaderMismatch { what: what.to_owned(), claimed, actual });
    }

    /// Compares one claim of the header.
    pub(crate) fn check_claim(&mut self, name: &str, claimed: u64, actual: u64) {
        if claimed != actual {
            self.mismatch(&format!("claim {name}"), claimed.to_string(), actual.to_string());
        }
    }

    /// Relates the tables to the source.
    pub(crate) fn check_tables(&mut self, initial: &Initial) {
        let (plan, source) = (self.plan, self.source);
        let wanted = wanted_states(source, initial);
        self.count("states and constants", plan.states.len(), wanted.len());
        for (i, state) in plan.states.iter().enumerate() {
            let at = format!("state `{}`", state.name);
            self.resident(&at, &state.resident);
            let Some(want) = wanted.get(i) else { continue };
            let same = |what: &str, have: &str, want: &str| differs(what, have, want);
            let mut wrong: Vec<String> = Vec::new();
            wrong.extend(same("name", &state.name, want.name));
            wrong.extend(same("role", state.role.name(), want.role.name()));
            wrong.extend(types_differ(&state.ty, want.ty));
            wrong.extend(bytes_differ(&state.resident, want.ty.bytes()));
            wrong.extend(want.init.differs(&state.init));
            self.report(&at, &wrong);
            let known = wrong.is_empty();
            self.tables.initial.push(if known { want.value } else { SymbolicId::POISON });
            self.tables.states.push(want.state);
        }
        self.tables.initial.resize(plan.states.len(), SymbolicId::POISON);
        self.tables.states.resize(plan.states.len(), None);

        self.count("inputs", plan.inputs.len(), source.inputs.len());
        for (i, (input, (id, want))) in plan.inputs.iter().zip(source.inputs.iter()).enumerate() {
            let at = format!("input `{}`", input.name);
            let Some(value) = source.values.get(want.value) else { continue };
            let mut wrong: Vec<String> = Vec::new();
            wrong.extend(differs("name", &input.name, &value.name));
            wrong.extend(types_differ(&input.ty, &value.ty));
            wrong.extend(bytes_differ(&input.slot, value.ty.bytes()));
            wrong.extend(feed_differs(&input.feed, &want.feed));
            self.report(&at, &wrong);
            let known = wrong.is_empty();
            self.tables.inputs.resize(i, None);
            self.tables.inputs.push(known.then_some(id.0));
        }
        for input in &plan.inputs {
            let at = format!("input `{}`", input.name);
            self.resident(&at, &input.slot);
            self.on_host(&at, &input.slot);
        }

        self.count("outputs", plan.outputs.len(), source.outputs.len());
        for (output, want) in plan.outputs.iter().zip(&source.outputs) {
            let at = format!("output `{}`", output.name);
            let Some(value) = source.values.get(want.value) else { continue };
            let mut wrong: Vec<String> = Vec::new();
            wrong.extend(differs("name", &output.name, &want.name));
            wrong.extend(types_differ(&output.ty, &value.ty));
            wrong.extend(differs("role", output.role.name(), want.role.name()));
            wrong.extend(bytes_differ(&output.slot, value.ty.bytes()));
            self.report(&at, &wrong);
        }
        for output in &plan.outputs {
            let at = format!("output `{}`", output.name);
            self.resident(&at, &output.slot);
            self.on_host(&at, &output.slot);
        }
        self.check_deliveries(source);
    }

    /// Each output is read once per body, each state of the source stored once in the epilogue.
    fn check_deliveries(&mut self, source: &Module) {
        let plan = self.plan;
        let mut reads = vec![0usize; plan.outputs.len()];
        let mut stores = vec![0usize; plan.states.len()];
        let count = |counts: &mut Vec<usize>, index: u32| {
            if let Some(n) = usize::try_from(index).ok().and_then(|index| counts.get_mut(index)) {
                *n += 1;
            }
        };
        for command in &plan.body {
            if let Action::HostRead { output } = command.action {
                count(&mut reads, output);
            }
        }
        for command in &plan.epilogue {
            if let Action::Store { state } = command.action {
                count(&mut stores, state);
            }
        }
        for (output, times) in plan.outputs.iter().zip(reads).filter(|&(_, times)| times != 1) {
            let (section, what) = (Section::Body, format!("output `{}`", output.name));
            self.sink.push(CheckError::OutputMissing { section, what, times });
        }
        let states = plan.states.iter().zip(stores).take(source.states.len());
        for (state, times) in states.filter(|&(_, times)| times != 1) {
            let (section, what) = (Section::Epilogue, format!("state `{}`", state.name));
            self.sink.push(CheckError::OutputMissing { section, what, times });
        }
    }

    fn count(&mut self, what: &str, have: usize, want: usize) {
        if have != want {
            let entries = format!("{have} entries where the source has {want}");
            self.sink.push(CheckError::BadState { at: format!("the table of {what}"), what: entries });
        }
    }

    fn report(&mut self, at: &str, wrong: &[String]) {
        if !wrong.is_empty() {
            self.sink.push(CheckError::BadState { at: at.to_owned(), what: wrong.join("; ") });
        }
    }

    fn on_host(&mut self, at: &str, slot: &Slice) {
        if slot.space != Space::Host {
            self.report(at, &["its slot is not in the host arena".to_owned()]);
        }
    }

    /// Bounds and alignment of a slice in a table.
    fn resident(&mut self, at: &str, slice: &Slice) {
        let arena_bytes = self.arena(slice.space);
        let place = || Place::Table(at.to_owned());
        if !slice.offset.is_multiple_of(ALIGN) {
            self.sink.push(CheckError::Misaligned { at: place(), slice: *slice });
        }
        if slice.end().is_none_or(|end| end > arena_bytes) {
            self.sink.push(CheckError::OutOfBounds { at: place(), slice: *slice, arena_bytes });
        }
    }

    /// Counts a launch of the body.
    pub(crate) fn tally_launch(&mut self, sig: SigId, identity: bool, args: &[SymbolicId]) {
        let Some(tally) = &mut self.tally else { return };
        tally.ops += 1;
        if !identity {
            *tally.launched.entry((sig, args.to_vec())).or_default() += 1;
        }
    }
}

/// One past the last device byte that the plan uses.
pub(crate) fn peak_bytes(plan: &Plan) -> u64 {
    let commands = plan.commands().flat_map(|(_, _, command)| command.action.slices());
    let states = plan.states.iter().map(|state| &state.resident);
    let inputs = plan.inputs.iter().map(|input| &input.slot);
    let outputs = plan.outputs.iter().map(|output| &output.slot);
    let used = commands.chain(states).chain(inputs).chain(outputs);
    used.filter(|slice| slice.space == Space::Dev)
        .map(|slice| slice.offset.saturating_add(slice.bytes))
        .max()
        .unwrap_or(0)
}

/// Entry that the table must have for one state or constant.
struct Wanted<'a> {
    name: &'a str,
    role: StateRole,
    ty: &'a TensorType,
    init: WantedInit,
    value: SymbolicId,
    state: Option<usize>,
}

enum WantedInit {
    Zeros,
    Random { seed: u64, kind: String },
    Data([u8; 32], u64),
}

impl WantedInit {
    fn differs(&self, have: &memc_plan::Init) -> Option<String> {
        match (self, have) {
            (WantedInit::Zeros, memc_plan::Init::Zeros) => None,
            (WantedInit::Random { seed, kind }, memc_plan::Init::Random { seed: s, kind: k })
                if (seed, kind) == (s, k) =>
            {
                None
            }
            (WantedInit::Data(hash, bytes), memc_plan::Init::Data { bytes: b, hash: h, .. }) => {
                let mut wrong = differs("initial data", &hex(h), &hex(hash));
                if b != bytes {
                    wrong = Some(format!("{b} bytes of initial data, the type has {bytes}"));
                }
                wrong
            }
            (WantedInit::Zeros, _) => Some("the source starts it at zeros".into()),
            (WantedInit::Random { seed, kind }, _) => {
                Some(format!("the source starts it at random {seed} {kind}"))
            }
            (WantedInit::Data(hash, _), _) => {
                Some(format!("the source starts it at the data with hash {}", hex(hash)))
            }
        }
    }
}

fn wanted_states<'a>(source: &'a Module, initial: &Initial) -> Vec<Wanted<'a>> {
    let mut out = Vec::new();
    for (i, (state, &value)) in source.states.values().zip(&initial.states).enumerate() {
        let Some(tensor) = source.values.get(state.value) else { continue };
        let init = match &state.init {
            Init::Data(blob) => WantedInit::Data(blob.hash(), tensor.ty.bytes()),
            generated => match generated.generated() {
                Some((seed, kind)) => WantedInit::Random { seed, kind },
                None => WantedInit::Zeros,
            },
        };
        out.push(Wanted {
            name: &tensor.name,
            role: StateRole::Variable(state.role),
            ty: &tensor.ty,
            init,
            value,
            state: Some(i),
        });
    }
    for ((c, &value), hash) in source.consts.values().zip(&initial.consts).zip(&initial.hashes) {
        let Some(tensor) = source.values.get(c.value) else { continue };
        out.push(Wanted {
            name: &tensor.name,
            role: StateRole::Const,
            ty: &tensor.ty,
            init: WantedInit::Data(*hash, tensor.ty.bytes()),
            value,
            state: None,
        });
    }
    out
}

fn feed_differs(have: &memc_plan::Feed, want: &Feed) -> Option<String> {
    let wanted = match want {
        Feed::Data { source, micro, range } => {
            let (low, high) = range.unwrap_or((0, 0));
            memc_plan::Feed::Data { source: source.clone(), micro: *micro, low, high }
        }
        Feed::LearningRate { default, turn } => {
            // Compared by bits: a NaN equals itself.
            if let memc_plan::Feed::LearningRate { default: have, turn: at } = have
                && have.to_bits() == default.0.to_bits()
                && at == turn
            {
                return None;
            }
            memc_plan::Feed::LearningRate { default: default.0, turn: *turn }
        }
        Feed::Step { turn } => memc_plan::Feed::Step { turn: *turn },
    };
    (*have != wanted).then(|| format!("it is fed by {have:?}, the source says {wanted:?}"))
}

fn differs(what: &str, have: &str, want: &str) -> Option<String> {
    (have != want).then(|| format!("{what} `{have}`, the source says `{want}`"))
}

fn types_differ(have: &TensorType, want: &TensorType) -> Option<String> {
    (have != want).then(|| format!("type `{have}`, the source says `{want}`"))
}

fn bytes_differ(slot: &Slice, want: u64) -> Option<String> {
    (slot.bytes != want).then(|| format!("{slot} where the type has {want} bytes"))
}

/// The first line that differs, counted from 1.
fn first_difference<'t>(a: &'t str, b: &'t str) -> Option<(usize, &'t str, &'t str)> {
    a.lines().zip(b.lines()).enumerate().find(|(_, (a, b))| a != b).map(|(i, (a, b))| (i + 1, a, b))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reason for which the source cannot be the reference; `None` if it can.
pub(crate) fn invalid_source(source: &Module) -> Option<String> {
    if source.phase != memc_ir::Phase::Graph {
        return Some("lowered already".into());
    }
    let first = memc_ir::verify(source).err()?.0.into_iter().next()?;
    let place = match first.at {
        memc_ir::Anchor::Op(op) => {
            source.ops.get(op).and_then(|op| op.results.first()).map(|&v| value_name(source, v))
        }
        memc_ir::Anchor::Value(v) => Some(value_name(source, v)),
        _ => None,
    };
    Some(format!("invalid at {}: {first}", place.unwrap_or_else(|| "its header".into())))
}
