//! The meta section: a plan as a protobuf message, both ways.
//!
//! Contract: [`encode`] is a function of the plan alone, and [`decode`] accepts exactly the bytes that
//! [`encode`] produces. It refuses unknown fields, unusual orders, redundant encodings, and unknown ops,
//! types and roles. Memory use of [`decode`] is bounded by a fixed multiple of the input, whose table lengths
//! are capped before anything is allocated. Buckets within buckets are refused before that, so that nothing
//! nests deeper than they do.
//!
//! The model itself is what is encoded: `record!` gives each of its fields a tag. Tags and the numbers of
//! streams, spaces and actions are never reused. Defaults are left out, as proto3 has it.

mod proto;

use std::borrow::Cow;

use memc_ir::{OpKind, OutputRole, Slice, Space, Stream, TensorType, Turn, parse_op, parse_type};

use self::proto::{
    Field, Message, Record, Text, Value, put_bytes, put_fixed32, put_message, put_packed, take_packed,
};
use crate::{
    Action, Claims, Command, Feed, Init, Input, Kernel, MAX_BUCKETS, Meta, Output, Plan, PlanError, Queue,
    State, StateRole, TunedAlgorithm, TunedKernel, Tuning, UnknownRole, output_role, validate::MAX_ENTRIES,
};

/// Greatest tag of a [`Plan`], which is that of its buckets.
const LAST_TAG: usize = 12;

/// The bytes of the meta section.
pub(crate) fn encode(plan: &Plan) -> Vec<u8> {
    let mut out = Vec::new();
    plan.encode(&mut out);
    out
}

/// The plan of a meta section. It is not validated.
pub(crate) fn decode(bytes: &[u8]) -> Result<Plan, PlanError> {
    let message = Message(bytes);
    check_lengths(message, false)?;
    let plan = Plan::decode(message)?;
    if encode(&plan) != bytes {
        return Err(PlanError::damaged("its encoding is not the canonical one"));
    }
    Ok(plan)
}

/// Refuses tables that are too long, also in buckets, and a bucket that has buckets.
fn check_lengths(message: Message<'_>, is_bucket: bool) -> Result<(), PlanError> {
    let mut counts = [0usize; LAST_TAG + 1];
    for field in message.fields() {
        let (tag, value) = field?;
        let tag = usize::try_from(tag).unwrap_or(usize::MAX);
        let count = counts.get_mut(tag);
        let count = count.ok_or_else(|| PlanError::damaged("it has an unknown field"))?;
        *count += 1;
        if *count > MAX_ENTRIES {
            return Err(PlanError::damaged(format!("a table has more than {MAX_ENTRIES} entries")));
        }
        if tag == LAST_TAG {
            if is_bucket {
                return Err(PlanError::damaged("a bucket has buckets"));
            }
            if *count > MAX_BUCKETS {
                return Err(PlanError::damaged(format!("it has more than {MAX_BUCKETS} buckets")));
            }
            let number = *count;
            let checked = value.bytes().and_then(|bucket| check_lengths(Message(bucket), true));
            checked.map_err(|error| error.in_bucket(number))?;
        }
    }
    Ok(())
}

/// Implements [`Record`] for a struct with a field for each tag.
macro_rules! record {
    ($type:ident $name:literal $(from $first:literal)? { $($field:ident: $tag:literal),* $(,)? }) => {
        impl Record for $type {
            const NAME: &str = $name;
            $(const FIRST: usize = $first;)?
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$field.put($tag, out);)*
            }
            fn decode(from: Message<'_>) -> Result<$type, PlanError> {
                Ok($type { $($field: Field::take(from, $tag)?),* })
            }
        }
    };
}

// `tuning` has the tags 10 and 11.
record!(Plan "bucket " from 1 {
    meta: 1, kernels: 2, states: 3, inputs: 4, outputs: 5, events: 6, prologue: 7, body: 8,
    epilogue: 9, tuning: 10, buckets: 12,
});
record!(Meta "header" {
    producer: 1, model: 2, source: 3, source_hash: 4, planner: 5, profile: 6, seed: 7, options: 8,
    budget_bytes: 9,
    reserve_bytes: 10, dev_bytes: 11, host_bytes: 12, claims: 13,
});
// `op` has the tags 1 and 2.
record!(Kernel "kernel k" { op: 1, operands: 3, results: 4, workspace_bytes: 5 });
// `init` has the tags 5 and 6.
record!(State "state s" { name: 1, role: 2, ty: 3, resident: 4, init: 5 });
// `feed` has the tags 4 to 7.
record!(Input "input i" { name: 1, ty: 2, slot: 3, feed: 4 });
record!(Output "output o" { name: 1, ty: 2, slot: 3, role: 4 });
// `action` has the tags 2 to 6.
record!(Command "command " { queue: 1, action: 2, label: 7 });
// `algorithm` has the tags 2 and 3.
record!(TunedKernel "tuned kernel " {
    kernel: 1,
    algorithm: 2,
    workspace_bytes: 4,
    ns: 5,
    default_ns: 6,
    is_apart: 7,
});

/// All but the kernels, which are a table of their own.
impl Record for Tuning {
    const NAME: &str = "tuning";
    fn encode(&self, out: &mut Vec<u8>) {
        self.device.put(1, out);
        self.arch.put(2, out);
        self.libraries.put(3, out);
        self.rounding.put(4, out);
        self.allow_nondeterminism.put(5, out);
    }
    fn decode(from: Message<'_>) -> Result<Tuning, PlanError> {
        Ok(Tuning {
            device: Field::take(from, 1)?,
            arch: Field::take(from, 2)?,
            libraries: Field::take(from, 3)?,
            rounding: Field::take(from, 4)?,
            allow_nondeterminism: Field::take(from, 5)?,
            kernels: Vec::new(),
        })
    }
}

/// Firsts and seconds in turn.
impl Field for Vec<(String, String)> {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        self.iter().flat_map(|(a, b)| [a, b]).for_each(|text| put_bytes(text.as_bytes(), tag, out));
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Vec<(String, String)>, PlanError> {
        let mut texts = from.all(tag);
        let mut pairs = Vec::new();
        while let Some(first) = texts.next() {
            let second =
                texts.next().ok_or_else(|| PlanError::damaged("half of a pair of texts is missing"))?;
            pairs.push((first?.text()?.to_owned(), second?.text()?.to_owned()));
        }
        Ok(pairs)
    }
}

impl Field for Meta {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_message(tag, out, |out| self.encode(out));
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Meta, PlanError> {
        let header = from.last(tag)?.ok_or_else(|| PlanError::damaged("it has no header"))?;
        Meta::decode(Message(header.bytes()?)).map_err(|error| error.within(Meta::NAME))
    }
}

impl<T: Record> Field for Vec<T> {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|entry| put_message(tag, out, |out| entry.encode(out)));
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Vec<T>, PlanError> {
        let entry = |(index, value): (usize, Result<Value<'_>, PlanError>)| {
            let entry = value?.bytes().and_then(|bytes| T::decode(Message(bytes)));
            entry.map_err(|error| error.within(&format!("{}{}", T::NAME, index.saturating_add(T::FIRST))))
        };
        from.all(tag).enumerate().map(entry).collect()
    }
}

impl Field for Option<Tuning> {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        if let Some(tuning) = self {
            put_message(tag, out, |out| tuning.encode(out));
            tuning.kernels.put(tag + 1, out);
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Option<Tuning>, PlanError> {
        let kernels: Vec<TunedKernel> = Field::take(from, tag + 1)?;
        match from.last(tag)? {
            Some(header) => {
                let tuning = Tuning::decode(Message(header.bytes()?));
                let tuning = tuning.map_err(|error| error.within(Tuning::NAME))?;
                Ok(Some(Tuning { kernels, ..tuning }))
            }
            None if kernels.is_empty() => Ok(None),
            None => Err(PlanError::damaged("it has tuned kernels, but does not say for what device")),
        }
    }
}

/// The claims in order of their declaration.
impl Field for Claims {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_packed(self.fields().map(|(_, value)| value), tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Claims, PlanError> {
        let (mut claims, numbers) = (Claims::default(), take_packed(from, tag)?);
        if numbers.len() != claims.fields().len() {
            return Err(PlanError::damaged(format!("{} claims", numbers.len())));
        }
        for ((name, _), value) in claims.fields().into_iter().zip(numbers) {
            claims.field_mut(name).into_iter().for_each(|field| *field = value);
        }
        Ok(claims)
    }
}

/// Mnemonic and attributes as texts of the IR.
impl Field for OpKind {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_bytes(self.mnemonic().as_bytes(), tag, out);
        self.attrs_text().put(tag + 1, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<OpKind, PlanError> {
        let (mnemonic, attrs) = (String::take(from, tag)?, String::take(from, tag + 1)?);
        parse_op(&mnemonic, &attrs).map_err(|why| PlanError::invalid(format!("`{mnemonic}`"), why))
    }
}

/// A type in IR syntax.
impl Text for TensorType {
    fn text(&self) -> Cow<'_, str> {
        self.to_string().into()
    }
    fn parse(text: &str) -> Result<TensorType, PlanError> {
        parse_type(text).map_err(|why| PlanError::invalid(format!("type `{text}`"), why))
    }
}

impl Text for StateRole {
    fn text(&self) -> Cow<'_, str> {
        self.name().into()
    }
    fn parse(text: &str) -> Result<StateRole, PlanError> {
        text.parse().map_err(|unknown: UnknownRole| PlanError::invalid("role", unknown.to_string()))
    }
}

impl Text for OutputRole {
    fn text(&self) -> Cow<'_, str> {
        self.name().into()
    }
    fn parse(text: &str) -> Result<OutputRole, PlanError> {
        output_role(text).map_err(|unknown| PlanError::invalid("role", unknown.to_string()))
    }
}

impl Field for Vec<TensorType> {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|ty| put_bytes(ty.text().as_bytes(), tag, out));
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Vec<TensorType>, PlanError> {
        from.all(tag).map(|text| TensorType::parse(text?.text()?)).collect()
    }
}

/// Space, offset and length as numbers.
fn numbers(slice: &Slice) -> [u64; 3] {
    let space = match slice.space {
        Space::Dev => 0,
        Space::Host => 1,
    };
    [space, slice.offset, slice.bytes]
}

impl Field for Vec<Slice> {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_packed(self.iter().flat_map(numbers), tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Vec<Slice>, PlanError> {
        let numbers = take_packed(from, tag)?;
        let (triples, rest) = numbers.as_chunks::<3>();
        if !rest.is_empty() {
            return Err(PlanError::damaged("a slice is cut short"));
        }
        let slice = |&[space, offset, bytes]: &[u64; 3]| match space {
            0 => Ok(Slice::dev(offset, bytes)),
            1 => Ok(Slice::host(offset, bytes)),
            _ => Err(PlanError::damaged(format!("unknown space {space}"))),
        };
        triples.iter().map(slice).collect()
    }
}

impl Field for Slice {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_packed(numbers(self), tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Slice, PlanError> {
        match Vec::take(from, tag)?.as_slice() {
            [slice] => Ok(*slice),
            slices => Err(PlanError::damaged(format!("{} slices where one belongs", slices.len()))),
        }
    }
}

impl Field for Option<Slice> {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|slice| slice.put(tag, out));
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Option<Slice>, PlanError> {
        from.last(tag)?.map(|_| Slice::take(from, tag)).transpose()
    }
}

/// A message for data, one for random contents, neither for zeros.
impl Field for Init {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        match self {
            Init::Zeros => {}
            Init::Data { offset, bytes, hash } => put_message(tag, out, |out| {
                offset.put(1, out);
                bytes.put(2, out);
                hash.put(3, out);
            }),
            Init::Random { seed, kind } => put_message(tag + 1, out, |out| {
                seed.put(1, out);
                kind.put(2, out);
            }),
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Init, PlanError> {
        match (from.last(tag)?, from.last(tag + 1)?) {
            (None, None) => Ok(Init::Zeros),
            (Some(data), None) => {
                let data = Message(data.bytes()?);
                let (offset, bytes) = (Field::take(data, 1)?, Field::take(data, 2)?);
                Ok(Init::Data { offset, bytes, hash: Field::take(data, 3)? })
            }
            (None, Some(random)) => {
                let random = Message(random.bytes()?);
                Ok(Init::Random { seed: Field::take(random, 1)?, kind: Field::take(random, 2)? })
            }
            (Some(_), Some(_)) => Err(PlanError::damaged("two kinds of initial contents")),
        }
    }
}

/// A message for data, the bits of the default for the learning rate, neither for the step's number.
impl Field for Feed {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        match self {
            Feed::Data { source, micro, low, high } => put_message(tag, out, |out| {
                source.put(1, out);
                micro.put(2, out);
                low.put(3, out);
                high.put(4, out);
            }),
            Feed::LearningRate { default, turn } => {
                put_fixed32(default.to_bits(), tag + 1, out);
                put_turn(*turn, tag + 2, out);
            }
            Feed::Step { turn } => put_turn(*turn, tag + 2, out),
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Feed, PlanError> {
        match (from.last(tag)?, from.last(tag + 1)?) {
            (Some(data), None) => {
                let data = Message(data.bytes()?);
                let (source, micro) = (Field::take(data, 1)?, Field::take(data, 2)?);
                Ok(Feed::Data { source, micro, low: Field::take(data, 3)?, high: Field::take(data, 4)? })
            }
            (None, Some(Value::Fixed32(bits))) => {
                let (default, turn) = (f32::from_bits(bits), take_turn(from, tag + 2)?);
                Ok(Feed::LearningRate { default, turn })
            }
            (None, Some(_)) => Err(PlanError::damaged("a learning rate is not a float")),
            (None, None) => Ok(Feed::Step { turn: take_turn(from, tag + 2)? }),
            (Some(_), Some(_)) => Err(PlanError::damaged("two feeds")),
        }
    }
}

/// A job's only step is left out.
fn put_turn(turn: Turn, tag: u32, out: &mut Vec<u8>) {
    if turn != Turn::default() {
        turn.index.put(tag, out);
        turn.count.put(tag + 1, out);
    }
}

fn take_turn(from: Message<'_>, tag: u32) -> Result<Turn, PlanError> {
    match (Field::take(from, tag)?, Field::take(from, tag + 1)?) {
        (0, 0) => Ok(Turn::default()),
        (index, count) => Ok(Turn { index, count }),
    }
}

impl Field for Queue {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        let number: u32 = match self {
            Queue::Device(Stream::Compute) => 0,
            Queue::Device(Stream::DeviceToHost) => 1,
            Queue::Device(Stream::HostToDevice) => 2,
            Queue::Host => 3,
            Queue::Device(Stream::HostCompute) => 4,
        };
        number.put(tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Queue, PlanError> {
        match u32::take(from, tag)? {
            0 => Ok(Queue::COMPUTE),
            1 => Ok(Queue::D2H),
            2 => Ok(Queue::H2D),
            3 => Ok(Queue::Host),
            4 => Ok(Queue::CPU),
            other => Err(PlanError::damaged(format!("unknown queue {other}"))),
        }
    }
}

/// Number of the action; index of a kernel, event, state, input or output; reads of a launch or source of a
/// copy; writes of a launch, destination of a copy or range of a free; workspace of a launch.
impl Field for Action {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        let (number, index): (u32, u32) = match self {
            Action::Launch { kernel, .. } => (1, *kernel),
            Action::Copy { .. } => (2, 0),
            Action::Record { event } => (3, *event),
            Action::Wait { event } => (4, *event),
            Action::Free { .. } => (5, 0),
            Action::Load { state } => (6, *state),
            Action::Store { state } => (7, *state),
            Action::HostWrite { input } => (8, *input),
            Action::HostRead { output } => (9, *output),
        };
        number.put(tag, out);
        index.put(tag + 1, out);
        match self {
            Action::Launch { reads, writes, workspace, .. } => {
                reads.put(tag + 2, out);
                writes.put(tag + 3, out);
                workspace.put(tag + 4, out);
            }
            Action::Copy { src, dst } => {
                src.put(tag + 2, out);
                dst.put(tag + 3, out);
            }
            Action::Free { slice } => slice.put(tag + 3, out),
            _ => {}
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<Action, PlanError> {
        let index = u32::take(from, tag + 1)?;
        Ok(match u32::take(from, tag)? {
            1 => Action::Launch {
                kernel: index,
                reads: Field::take(from, tag + 2)?,
                writes: Field::take(from, tag + 3)?,
                workspace: Field::take(from, tag + 4)?,
            },
            2 => Action::Copy { src: Field::take(from, tag + 2)?, dst: Field::take(from, tag + 3)? },
            3 => Action::Record { event: index },
            4 => Action::Wait { event: index },
            5 => Action::Free { slice: Field::take(from, tag + 3)? },
            6 => Action::Load { state: index },
            7 => Action::Store { state: index },
            8 => Action::HostWrite { input: index },
            9 => Action::HostRead { output: index },
            other => return Err(PlanError::damaged(format!("unknown action {other}"))),
        })
    }
}

/// The algorithm of a product; or algorithm and kind of arithmetic of a convolution.
impl Field for TunedAlgorithm {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        match self {
            TunedAlgorithm::Product(bytes) => put_bytes(bytes.as_slice(), tag, out),
            TunedAlgorithm::Convolution { algorithm, math } => {
                put_packed([*algorithm, *math].map(u64::from), tag + 1, out);
            }
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<TunedAlgorithm, PlanError> {
        let number = |n: u64| u32::try_from(n).map_err(|_| PlanError::damaged("a number is too large"));
        match (from.last(tag)?, take_packed(from, tag + 1)?.as_slice()) {
            (Some(product), []) => {
                let bytes = product.bytes()?;
                let product = bytes.try_into().map(Box::new);
                let product =
                    product.map_err(|_| PlanError::damaged(format!("a product of {} bytes", bytes.len())))?;
                Ok(TunedAlgorithm::Product(product))
            }
            (None, &[algorithm, math]) => {
                Ok(TunedAlgorithm::Convolution { algorithm: number(algorithm)?, math: number(math)? })
            }
            _ => Err(PlanError::damaged("it is neither a product nor a convolution")),
        }
    }
}
