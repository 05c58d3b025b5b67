//! Random plans.

use std::collections::BTreeMap;

use crate::Blobs;
use arbtest::arbitrary::{Arbitrary, Result, Unstructured};
use memc_ir::{OutputRole, Role, TensorType, Turn, parse_op, parse_type};
use memc_plan::{
    Action, Command, Feed, Init, Input, Kernel, Output, Plan, Queue, Section, Slice, Space, State, StateRole,
    TunedAlgorithm, TunedKernel, Tuning, hash,
};

const STRINGS: [&str; 24] = [
    "",
    "w",
    "%h.1",
    "f32[64,4096]",
    "{axis = 1, keep}",
    "{",
    "}",
    "a b",
    " a",
    "a ",
    "->",
    "\"",
    "\\",
    "a;b",
    "line\nbreak",
    "line\r",
    "\t\0\u{1b}[2J",
    "größe",
    "\u{202e}\u{2028}",
    "zeros",
    "k0",
    "f32[2",
    "(",
    "module @m\n\n  %x = add %a, %b\n",
];

fn string(u: &mut Unstructured<'_>) -> Result<String> {
    if u.ratio(1, 8)? { String::arbitrary(u) } else { Ok((*u.choose(&STRINGS)?).to_owned()) }
}

fn list<T>(u: &mut Unstructured<'_>, one: fn(&mut Unstructured<'_>) -> Result<T>) -> Result<Vec<T>> {
    let length = u.int_in_range(0..=4)?;
    (0..length).map(|_| one(u)).collect()
}

fn slice(u: &mut Unstructured<'_>) -> Result<Slice> {
    let space = if u.arbitrary()? { Space::Dev } else { Space::Host };
    Ok(Slice { space, offset: u.arbitrary()?, bytes: u.arbitrary()? })
}

/// Ops with attributes of every kind that the text form spells in its own way.
const OPS: [(&str, &str); 8] = [
    ("relu", ""),
    ("matmul", "{trans_a}"),
    ("softmax", "{axis = 1}"),
    ("reshape", "{shape = []}"),
    ("cast", "{to = bf16}"),
    ("conv", "{strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1]}"),
    ("fused", "{body = \"neg(x0); add(t0, x1)\", outs = [1]}"),
    ("adamw", "{alpha = 0.9, beta = 0.999, epsilon = 0.001, weight_decay = 0.01}"),
];

const TYPES: [&str; 6] =
    ["f32[]", "f32[64,4096]", "bf16[2,0]", "i64[3]", "bool[1]", "u8[9223372036854775807,2]"];

fn ty(u: &mut Unstructured<'_>) -> Result<TensorType> {
    Ok(parse_type(u.choose(&TYPES)?).expect("a type"))
}

fn kernel(u: &mut Unstructured<'_>) -> Result<Kernel> {
    let (op, attrs) = *u.choose(&OPS)?;
    Ok(Kernel {
        op: parse_op(op, attrs).expect("an op of the table"),
        operands: list(u, ty)?,
        results: list(u, ty)?,
        workspace_bytes: u.int_in_range(0..=4096)?,
    })
}

fn state(u: &mut Unstructured<'_>) -> Result<State> {
    let init = match u.int_in_range(0..=2)? {
        0 => Init::Zeros,
        1 => Init::Data { offset: u.arbitrary()?, bytes: u.arbitrary()?, hash: u.arbitrary()? },
        _ => Init::Random { seed: u.arbitrary()?, kind: string(u)? },
    };
    let role = if u.arbitrary()? { StateRole::Const } else { StateRole::Variable(*u.choose(&Role::ALL)?) };
    Ok(State { name: string(u)?, role, ty: ty(u)?, resident: slice(u)?, init })
}

fn input(u: &mut Unstructured<'_>) -> Result<Input> {
    let feed = match u.int_in_range(0..=2)? {
        0 => Feed::Data {
            source: string(u)?,
            micro: u.arbitrary()?,
            low: u.arbitrary()?,
            high: u.arbitrary()?,
        },
        1 => {
            let default = f32::arbitrary(u)?;
            let default = if default.is_nan() { f32::INFINITY } else { default };
            Feed::LearningRate { default, turn: turn(u)? }
        }
        _ => Feed::Step { turn: turn(u)? },
    };
    Ok(Input { name: string(u)?, ty: ty(u)?, slot: slice(u)?, feed })
}

fn turn(u: &mut Unstructured<'_>) -> Result<Turn> {
    let index = u.int_in_range(0..=2)?;
    Ok(Turn { index, count: index + u.int_in_range(1..=2)? })
}

fn output(u: &mut Unstructured<'_>) -> Result<Output> {
    Ok(Output { name: string(u)?, ty: ty(u)?, slot: slice(u)?, role: *u.choose(&OutputRole::ALL)? })
}

fn command(u: &mut Unstructured<'_>) -> Result<Command> {
    let action = match u.int_in_range(0..=8)? {
        0 => Action::Launch {
            kernel: u.arbitrary()?,
            reads: list(u, slice)?,
            writes: list(u, slice)?,
            workspace: if u.arbitrary()? { Some(slice(u)?) } else { None },
        },
        1 => Action::Copy { src: slice(u)?, dst: slice(u)? },
        2 => Action::Record { event: u.arbitrary()? },
        3 => Action::Wait { event: u.arbitrary()? },
        4 => Action::Free { slice: slice(u)? },
        5 => Action::Load { state: u.arbitrary()? },
        6 => Action::Store { state: u.arbitrary()? },
        7 => Action::HostWrite { input: u.arbitrary()? },
        _ => Action::HostRead { output: u.arbitrary()? },
    };
    Ok(Command { queue: *u.choose(&Queue::ALL)?, action, label: string(u)? })
}

fn tuned(u: &mut Unstructured<'_>) -> Result<TunedKernel> {
    let algorithm = if u.arbitrary()? {
        TunedAlgorithm::Product(Box::new(u.arbitrary()?))
    } else {
        TunedAlgorithm::Convolution { algorithm: u.arbitrary()?, math: u.arbitrary()? }
    };
    Ok(TunedKernel {
        kernel: u.arbitrary()?,
        algorithm,
        workspace_bytes: u.arbitrary()?,
        ns: u.arbitrary()?,
        default_ns: u.arbitrary()?,
        is_apart: u.arbitrary()?,
    })
}

fn tuning(u: &mut Unstructured<'_>) -> Result<Tuning> {
    Ok(Tuning {
        device: string(u)?,
        arch: string(u)?,
        libraries: list(u, |u| Ok((string(u)?, string(u)?)))?,
        rounding: string(u)?,
        allow_nondeterminism: u.arbitrary()?,
        kernels: list(u, tuned)?,
    })
}

/// Any plan, valid or not, also with buckets.
pub(crate) fn any(u: &mut Unstructured<'_>) -> Result<Plan> {
    let mut plan = alone(u)?;
    if u.ratio(1, 4)? {
        plan.buckets = list(u, alone)?;
    }
    Ok(plan)
}

/// Any plan without buckets, valid or not.
fn alone(u: &mut Unstructured<'_>) -> Result<Plan> {
    let mut plan = Plan {
        kernels: list(u, kernel)?,
        states: list(u, state)?,
        inputs: list(u, input)?,
        outputs: list(u, output)?,
        events: u.arbitrary()?,
        prologue: list(u, command)?,
        body: list(u, command)?,
        epilogue: list(u, command)?,
        tuning: if u.arbitrary()? { Some(tuning(u)?) } else { None },
        ..Plan::default()
    };
    let meta = &mut plan.meta;
    (meta.producer, meta.model, meta.planner) = (string(u)?, string(u)?, string(u)?);
    (meta.profile, meta.source, meta.source_hash) = (string(u)?, string(u)?, u.arbitrary()?);
    (meta.budget_bytes, meta.reserve_bytes, meta.seed) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    (meta.dev_bytes, meta.host_bytes) = (u.arbitrary()?, u.arbitrary()?);
    meta.options = list(u, |u| Ok((string(u)?, string(u)?)))?;
    for (name, _) in meta.claims.fields() {
        *meta.claims.field_mut(name).expect("a claim of that name") = u.arbitrary()?;
    }
    Ok(plan)
}

/// A valid plan with the data of its states and of those of its buckets.
pub(crate) fn valid(u: &mut Unstructured<'_>) -> Result<(Plan, Blobs)> {
    let mut plan = alone(u)?;
    let mut data = Blobs::default();
    (plan.meta.dev_bytes, plan.meta.host_bytes) = (1 << 20, 1 << 20);
    let source = plan.meta.source.clone();
    plan.meta.set_source(source);
    let fit = |slice: &mut Slice| {
        slice.offset %= 1 << 19;
        slice.bytes %= 1 << 10;
    };
    plan.kernels.push(kernel(u)?);
    plan.events %= 8;
    let buckets = if u.ratio(1, 3)? { u.int_in_range(1..=3)? } else { 0 };
    if buckets > 0 {
        plan.tuning = None;
        plan.states.sort_by_key(|state| !state.is_variable());
    }
    for (index, state) in plan.states.iter_mut().enumerate() {
        fit(&mut state.resident);
        state.name = format!("{}#{index}", state.name);
        if let Init::Data { bytes, hash: expected, .. } = &mut state.init {
            let content =
                vec![u8::arbitrary(u)?; usize::try_from(state.resident.bytes).expect("under 1 KiB")];
            (*bytes, *expected) = (state.resident.bytes, hash(&content));
            data.0.insert((0, index), content);
        }
    }
    for input in &mut plan.inputs {
        fit(&mut input.slot);
        input.slot.space = Space::Host;
        match &mut input.feed {
            Feed::Data { low, high, .. } if *low >= *high => (*low, *high) = (0, 0),
            Feed::LearningRate { default, .. } if !default.is_finite() => *default = -0.5,
            _ => {}
        }
    }
    plan.outputs.iter_mut().for_each(|output| fit(&mut output.slot));
    for section in Section::ALL {
        let commands = std::mem::take(plan.section_mut(section));
        let legal = |command| legalise(u, &plan, section, command);
        *plan.section_mut(section) = commands.into_iter().filter_map(legal).collect();
    }
    legalise_tuning(&mut plan);
    let spare = (plan.events as usize).saturating_sub(plan.commands().count());
    let free = Action::Free { slice: Slice::dev(0, 0) };
    let free = Command { queue: Queue::COMPUTE, action: free, label: String::new() };
    plan.epilogue.extend(std::iter::repeat_n(free, spare));
    let mut seen: Vec<Vec<u8>> = data.0.values().cloned().collect();
    plan.buckets =
        (1..=buckets).map(|at| bucket(u, &plan, at, &mut data, &mut seen)).collect::<Result<_>>()?;
    plan.layout_data().expect("a small data section");
    Ok((plan, data))
}

/// A bucket of a valid plan, which runs its body twice and has one constant more, whose bytes may be among
/// those that were seen.
fn bucket(
    u: &mut Unstructured<'_>,
    plan: &Plan,
    at: usize,
    data: &mut Blobs,
    seen: &mut Vec<Vec<u8>>,
) -> Result<Plan> {
    let mut bucket = plan.clone();
    bucket.body.extend_from_slice(&plan.body);
    bucket.meta.set_source(string(u)?);
    let content = vec![u.int_in_range(0..=2)?; u.int_in_range(0..=2)?];
    let bytes = content.len() as u64;
    bucket.states.push(State {
        name: "constant of a bucket".to_owned(),
        role: StateRole::Const,
        ty: ty(u)?,
        resident: Slice::dev(0, bytes),
        init: Init::Data { offset: 0, bytes, hash: hash(&content) },
    });
    if !seen.contains(&content) {
        data.0.insert((at, plan.states.len()), content.clone());
        seen.push(content);
    }
    Ok(bucket)
}

/// Texts that can be shown, and algorithms of some of the kernels that are launched, with workspaces that
/// their launches have.
fn legalise_tuning(plan: &mut Plan) {
    let launched = plan.commands().filter_map(|(_, _, command)| match &command.action {
        Action::Launch { kernel, .. } => Some((*kernel, plan.kernels.get(*kernel as usize)?.workspace_bytes)),
        _ => None,
    });
    let needs: BTreeMap<u32, u64> = launched.collect();
    plan.tuning.take_if(|tuning| {
        tuning.kernels.truncate(needs.len());
        for (entry, (kernel, needs)) in tuning.kernels.iter_mut().zip(needs) {
            entry.kernel = kernel;
            entry.workspace_bytes %= needs + 1;
        }
        let libraries = tuning.libraries.iter_mut().flat_map(|(name, version)| [name, version]);
        let texts = [&mut tuning.device, &mut tuning.arch, &mut tuning.rounding].into_iter().chain(libraries);
        texts.for_each(|text| text.retain(|c| !c.is_control()));
        tuning.kernels.is_empty()
    });
}

/// The command with indices and slices in range, if it can be in this section at all.
fn legalise(
    u: &mut Unstructured<'_>,
    plan: &Plan,
    section: Section,
    mut command: Command,
) -> Option<Command> {
    let mut place = |bytes: u64| Slice::dev(u.int_in_range(0..=1000).unwrap_or(0), bytes);
    let modulo = |index: u32, length: usize| index.checked_rem(u32::try_from(length).expect("a short table"));
    let mut on_host = command.queue == Queue::Host;
    match &mut command.action {
        Action::Launch { kernel, reads, writes, workspace } => {
            *kernel = modulo(*kernel, plan.kernels.len())?;
            let k = plan.kernels.get(*kernel as usize)?;
            *reads = k.operands.iter().map(|_| place(256)).collect();
            *writes = k.results.iter().map(|_| place(64)).collect();
            *workspace = Some(place(k.workspace_bytes));
            on_host = false;
        }
        Action::Copy { src, dst } => (*src, *dst) = (place(16), place(16)),
        Action::Record { event } => {
            *event = event.checked_rem(plan.events)?;
            on_host = false;
        }
        Action::Wait { event } => *event = event.checked_rem(plan.events)?,
        Action::Free { slice } => *slice = place(0),
        Action::Load { state } | Action::Store { state } => {
            *state = modulo(*state, plan.states.len())?;
            on_host = true;
        }
        Action::HostWrite { input } => {
            *input = modulo(*input, plan.inputs.len())?;
            on_host = true;
        }
        Action::HostRead { output } => {
            *output = modulo(*output, plan.outputs.len())?;
            on_host = true;
        }
    }
    match (&command.action, section) {
        (Action::Load { .. }, Section::Body | Section::Epilogue) => return None,
        (Action::Store { .. }, Section::Prologue | Section::Body) => return None,
        _ => {}
    }
    if let Action::Launch { reads, writes, workspace, .. } = &mut command.action {
        let queue = if command.queue == Queue::CPU { Queue::CPU } else { Queue::COMPUTE };
        let slices = reads.iter_mut().chain(writes).chain(workspace);
        slices.for_each(|slice| slice.space = queue.kernels_in().expect("a queue of kernels"));
        command.queue = queue;
    }
    command.queue = match (on_host, command.queue) {
        (true, _) => Queue::Host,
        (false, Queue::Host) => Queue::COMPUTE,
        (false, queue) => queue,
    };
    Some(command)
}
