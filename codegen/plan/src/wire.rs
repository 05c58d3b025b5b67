//! The meta section: a plan as a protobuf message, both ways.
//!
//! Contract: [`encode`] is a function of the plan alone, and [`decode`] accepts exactly the bytes that [`encode`]
//! produces, so unknown fields, unusual orders and redundant encodings are refused. Tags and enumeration numbers are
//! never reused. Memory use of [`decode`] is bounded by a fixed multiple of the input, whose table lengths are capped
//! before anything is allocated.

use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint},
};

use crate::{
    Action, Claims, Command, Feed, Init, Input, Kernel, Meta, Output, Plan, PlanError, Slice, Space, State,
    Stream, validate::MAX_ENTRIES,
};

mod message;
mod tuning;

use message::{
    COPY, FREE, HOST_READ, HOST_WRITE, LAST_TAG, LAUNCH, LOAD, RECORD, STORE, WAIT, WireCommand, WireData,
    WireFeedData, WireInput, WireKernel, WireMeta, WireOutput, WirePlan, WireRandom, WireState,
};

/// The bytes of the meta section.
pub(crate) fn encode(plan: &Plan) -> Vec<u8> {
    WirePlan {
        meta: Some(meta_to_wire(&plan.meta)),
        kernels: plan.kernels.iter().map(kernel_to_wire).collect(),
        states: plan.states.iter().map(state_to_wire).collect(),
        inputs: plan.inputs.iter().map(input_to_wire).collect(),
        outputs: plan.outputs.iter().map(output_to_wire).collect(),
        events: plan.events,
        prologue: plan.prologue.iter().map(command_to_wire).collect(),
        body: plan.body.iter().map(command_to_wire).collect(),
        epilogue: plan.epilogue.iter().map(command_to_wire).collect(),
        tuning: plan.tuning.as_ref().map(tuning::to_wire),
        tuned: plan.tuning.iter().flat_map(|tuning| &tuning.kernels).map(tuning::kernel_to_wire).collect(),
    }
    .encode_to_vec()
}

/// The plan of a meta section. It is not validated.
pub(crate) fn decode(bytes: &[u8]) -> Result<Plan, PlanError> {
    check_lengths(bytes)?;
    let wire = WirePlan::decode(bytes).map_err(|e| PlanError::damaged(e.to_string()))?;
    let plan = Plan {
        meta: wire.meta.ok_or_else(|| PlanError::damaged("it has no header")).and_then(meta_from_wire)?,
        kernels: wire.kernels.into_iter().map(kernel_from_wire).collect(),
        states: all("state", wire.states, state_from_wire)?,
        inputs: all("input", wire.inputs, input_from_wire)?,
        outputs: all("output", wire.outputs, output_from_wire)?,
        events: wire.events,
        prologue: all("prologue command", wire.prologue, command_from_wire)?,
        body: all("body command", wire.body, command_from_wire)?,
        epilogue: all("epilogue command", wire.epilogue, command_from_wire)?,
        tuning: tuning::from_wire(wire.tuning, all("tuned kernel", wire.tuned, tuning::kernel_from_wire)?)?,
    };
    if encode(&plan) != bytes {
        return Err(PlanError::damaged("its encoding is not the canonical one"));
    }
    Ok(plan)
}

/// Walks the top level of the message and refuses tables that are too long.
fn check_lengths(bytes: &[u8]) -> Result<(), PlanError> {
    let mut counts = [0usize; LAST_TAG + 1];
    let mut rest = bytes;
    let damaged = |e: prost::DecodeError| PlanError::damaged(e.to_string());
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).map_err(damaged)?;
        let length = decode_varint(&mut rest).map_err(damaged)?;
        if wire_type == WireType::LengthDelimited {
            let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
            rest = length
                .and_then(|n| rest.get(n..))
                .ok_or_else(|| PlanError::damaged("a field is cut short"))?;
        } else if wire_type != WireType::Varint {
            return Err(PlanError::damaged("a field has an unexpected type"));
        }
        let count = usize::try_from(tag).ok().and_then(|tag| counts.get_mut(tag));
        let count = count.ok_or_else(|| PlanError::damaged("it has an unknown field"))?;
        *count += 1;
        if *count > MAX_ENTRIES {
            return Err(PlanError::damaged(format!("a table has more than {MAX_ENTRIES} entries")));
        }
    }
    Ok(())
}

fn all<W, T>(what: &str, wire: Vec<W>, convert: fn(W) -> Result<T, String>) -> Result<Vec<T>, PlanError> {
    let convert = |(index, w)| convert(w).map_err(|why| PlanError::damaged(format!("{what} {index}: {why}")));
    wire.into_iter().enumerate().map(convert).collect()
}

fn hash_from_wire(bytes: &[u8]) -> Result<[u8; 32], String> {
    bytes.try_into().map_err(|_| format!("a hash of {} bytes", bytes.len()))
}

fn slice_to_wire(slice: &Slice) -> [u64; 3] {
    let space = match slice.space {
        Space::Dev => 0,
        Space::Host => 1,
    };
    [space, slice.offset, slice.bytes]
}

fn slices_to_wire(slices: &[Slice]) -> Vec<u64> {
    slices.iter().flat_map(slice_to_wire).collect()
}

fn slices_from_wire(numbers: &[u64]) -> Result<Vec<Slice>, String> {
    let (triples, rest) = numbers.as_chunks::<3>();
    if !rest.is_empty() {
        return Err("a slice is cut short".to_owned());
    }
    let slice = |&[space, offset, bytes]: &[u64; 3]| match space {
        0 => Ok(Slice::dev(offset, bytes)),
        1 => Ok(Slice::host(offset, bytes)),
        _ => Err(format!("unknown space {space}")),
    };
    triples.iter().map(slice).collect()
}

fn one_slice(numbers: &[u64]) -> Result<Slice, String> {
    match slices_from_wire(numbers)?.as_slice() {
        [slice] => Ok(*slice),
        slices => Err(format!("{} slices where one belongs", slices.len())),
    }
}

fn meta_to_wire(meta: &Meta) -> WireMeta {
    WireMeta {
        producer: meta.producer.clone(),
        model: meta.model.clone(),
        source: meta.source.clone(),
        source_hash: meta.source_hash.to_vec(),
        planner: meta.planner.clone(),
        profile: meta.profile.clone(),
        seed: meta.seed,
        options: meta.options.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect(),
        budget_bytes: meta.budget_bytes,
        reserve_bytes: meta.reserve_bytes,
        dev_bytes: meta.dev_bytes,
        host_bytes: meta.host_bytes,
        claims: meta.claims.fields().map(|(_, value)| value).to_vec(),
    }
}

fn meta_from_wire(wire: WireMeta) -> Result<Meta, PlanError> {
    let mut claims = Claims::default();
    if wire.claims.len() != claims.fields().len() {
        return Err(PlanError::damaged(format!("header: {} claims", wire.claims.len())));
    }
    for ((name, _), value) in claims.fields().into_iter().zip(wire.claims) {
        if let Some(field) = claims.field_mut(name) {
            *field = value;
        }
    }
    let mut options = Vec::with_capacity(wire.options.len() / 2);
    let mut strings = wire.options.into_iter();
    while let Some(name) = strings.next() {
        options.push((
            name,
            strings.next().ok_or_else(|| PlanError::damaged("header: an option has no value"))?,
        ));
    }
    Ok(Meta {
        producer: wire.producer,
        model: wire.model,
        source: wire.source,
        source_hash: hash_from_wire(&wire.source_hash)
            .map_err(|e| PlanError::damaged(format!("header: {e}")))?,
        planner: wire.planner,
        profile: wire.profile,
        seed: wire.seed,
        options,
        budget_bytes: wire.budget_bytes,
        reserve_bytes: wire.reserve_bytes,
        dev_bytes: wire.dev_bytes,
        host_bytes: wire.host_bytes,
        claims,
    })
}

fn kernel_to_wire(kernel: &Kernel) -> WireKernel {
    WireKernel {
        op: kernel.op.clone(),
        attrs: kernel.attrs.clone(),
        operands: kernel.operands.clone(),
        results: kernel.results.clone(),
        workspace_bytes: kernel.workspace_bytes,
    }
}

fn kernel_from_wire(wire: WireKernel) -> Kernel {
    Kernel {
        op: wire.op,
        attrs: wire.attrs,
        operands: wire.operands,
        results: wire.results,
        workspace_bytes: wire.workspace_bytes,
    }
}

fn state_to_wire(state: &State) -> WireState {
    let (data, random) = match &state.init {
        Init::Zeros => (None, None),
        Init::Data { offset, bytes, hash } => {
            (Some(WireData { offset: *offset, bytes: *bytes, hash: hash.to_vec() }), None)
        }
        Init::Random { seed, kind } => (None, Some(WireRandom { seed: *seed, kind: kind.clone() })),
    };
    WireState {
        name: state.name.clone(),
        role: state.role.clone(),
        ty: state.ty.clone(),
        home: slice_to_wire(&state.home).to_vec(),
        data,
        random,
    }
}

fn state_from_wire(wire: WireState) -> Result<State, String> {
    let init = match (wire.data, wire.random) {
        (None, None) => Init::Zeros,
        (Some(data), None) => {
            Init::Data { offset: data.offset, bytes: data.bytes, hash: hash_from_wire(&data.hash)? }
        }
        (None, Some(random)) => Init::Random { seed: random.seed, kind: random.kind },
        (Some(_), Some(_)) => return Err("two kinds of initial contents".to_owned()),
    };
    Ok(State { name: wire.name, role: wire.role, ty: wire.ty, home: one_slice(&wire.home)?, init })
}

fn input_to_wire(input: &Input) -> WireInput {
    let (data, learning_rate) = match &input.feed {
        Feed::Data { source, micro, low, high } => {
            (Some(WireFeedData { source: source.clone(), micro: *micro, low: *low, high: *high }), None)
        }
        Feed::LearningRate { default } => (None, Some(default.to_bits())),
        Feed::Step => (None, None),
    };
    WireInput {
        name: input.name.clone(),
        ty: input.ty.clone(),
        slot: slice_to_wire(&input.slot).to_vec(),
        data,
        learning_rate,
    }
}

fn input_from_wire(wire: WireInput) -> Result<Input, String> {
    let feed = match (wire.data, wire.learning_rate) {
        (Some(d), None) => Feed::Data { source: d.source, micro: d.micro, low: d.low, high: d.high },
        (None, Some(bits)) => Feed::LearningRate { default: f32::from_bits(bits) },
        (None, None) => Feed::Step,
        (Some(_), Some(_)) => return Err("two feeds".to_owned()),
    };
    Ok(Input { name: wire.name, ty: wire.ty, slot: one_slice(&wire.slot)?, feed })
}

fn output_to_wire(output: &Output) -> WireOutput {
    WireOutput {
        name: output.name.clone(),
        ty: output.ty.clone(),
        slot: slice_to_wire(&output.slot).to_vec(),
        role: output.role.clone(),
    }
}

fn output_from_wire(wire: WireOutput) -> Result<Output, String> {
    Ok(Output { name: wire.name, ty: wire.ty, slot: one_slice(&wire.slot)?, role: wire.role })
}

fn command_to_wire(command: &Command) -> WireCommand {
    let mut wire = WireCommand {
        stream: match command.stream {
            Stream::Compute => 0,
            Stream::D2h => 1,
            Stream::H2d => 2,
            Stream::Host => 3,
        },
        label: command.label.clone(),
        ..WireCommand::default()
    };
    (wire.action, wire.index) = match &command.action {
        Action::Launch { kernel, reads, writes, workspace } => {
            wire.reads = slices_to_wire(reads);
            wire.writes = slices_to_wire(writes);
            wire.workspace = slices_to_wire(workspace.as_slice());
            (LAUNCH, *kernel)
        }
        Action::Copy { src, dst } => {
            wire.reads = slice_to_wire(src).to_vec();
            wire.writes = slice_to_wire(dst).to_vec();
            (COPY, 0)
        }
        Action::Record { event } => (RECORD, *event),
        Action::Wait { event } => (WAIT, *event),
        Action::Free { slice } => {
            wire.writes = slice_to_wire(slice).to_vec();
            (FREE, 0)
        }
        Action::Load { state } => (LOAD, *state),
        Action::Store { state } => (STORE, *state),
        Action::HostWrite { input } => (HOST_WRITE, *input),
        Action::HostRead { output } => (HOST_READ, *output),
    };
    wire
}

fn command_from_wire(wire: WireCommand) -> Result<Command, String> {
    let stream = match wire.stream {
        0 => Stream::Compute,
        1 => Stream::D2h,
        2 => Stream::H2d,
        3 => Stream::Host,
        other => return Err(format!("unknown stream {other}")),
    };
    let action = match wire.action {
        LAUNCH => Action::Launch {
            kernel: wire.index,
            reads: slices_from_wire(&wire.reads)?,
            writes: slices_from_wire(&wire.writes)?,
            workspace: if wire.workspace.is_empty() { None } else { Some(one_slice(&wire.workspace)?) },
        },
        COPY => Action::Copy { src: one_slice(&wire.reads)?, dst: one_slice(&wire.writes)? },
        RECORD => Action::Record { event: wire.index },
        WAIT => Action::Wait { event: wire.index },
        FREE => Action::Free { slice: one_slice(&wire.writes)? },
        LOAD => Action::Load { state: wire.index },
        STORE => Action::Store { state: wire.index },
        HOST_WRITE => Action::HostWrite { input: wire.index },
        HOST_READ => Action::HostRead { output: wire.index },
        other => return Err(format!("unknown action {other}")),
    };
    Ok(Command { stream, action, label: wire.label })
}
