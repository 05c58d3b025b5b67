//! Contents of a plan's inputs: the user's data, synthetic data, the learning rate, the step number.
//!
//! Contract: the contents of an input depend on the files, the options and the number of the step alone.
//! Steps count from 1 over resumed runs, so that a run which goes on reads on where the former one stopped.
//! What can be known about the data before the first step is checked then. The data of a step is read and
//! checked before the step begins.
//!
//! An array has the input's own shape, and then feeds every step the same; or one axis more in front, and
//! then feeds one slice to each micro-step; or more samples along the input's first axis, of which each
//! micro-step takes a batch.

mod array;
mod legal;
mod npy;
mod order;
mod pipe;
mod source;
mod synthetic;

use std::{collections::BTreeMap, path::Path};

use memc_ir::{DType, TensorType, counted};
use memc_plan::{Feed, Plan};

use crate::schedule::Rate;
use crate::{Error, Program, state::list};
use array::Array;
use legal::Legal;
use order::Order;
pub use source::{InputSource, TokenType};

/// Sources of the inputs.
#[derive(Clone, Debug, Default)]
pub struct FeedOptions {
    /// Data by the name under which the model takes it.
    pub inputs: Vec<(String, InputSource)>,
    /// Learning rate.
    pub lr: Rate,
    /// Whether inputs without data get synthetic data; otherwise they are refused.
    pub synthetic: bool,
    /// Seed of synthetic data.
    pub seed: u64,
    /// Seed of the order in which a pass reads the data; `None` for the order of the files.
    pub shuffle: Option<u64>,
    /// Whether the data is read again when it ends.
    pub again: bool,
    /// Steps done by the run that this one goes on from.
    pub done: u64,
    /// Steps to run.
    pub steps: u64,
}

/// Supplies the inputs of a plan.
#[derive(Debug)]
pub struct Feeder {
    inputs: Vec<Source>,
    /// Data that several micro-steps read.
    tables: Vec<Table>,
    /// Names without data.
    synthetic: Vec<String>,
    rates: Rates,
    /// Steps done before this run.
    done: u64,
    /// The step whose data is in the tables' buffers.
    ready: u64,
    /// Whether some of the data can be read once only.
    is_stream: bool,
}

#[derive(Debug)]
enum Source {
    /// The same bytes at every step.
    Fixed(Vec<u8>),
    /// Micro-step `micro` of a table.
    Table { table: usize, micro: usize },
    /// The learning rate.
    Rate,
    /// The number of the step.
    Step(DType),
}

/// Data of an input, and what the present step reads of it.
#[derive(Debug)]
struct Table {
    name: String,
    ty: TensorType,
    array: Array,
    order: Order,
    legal: Vec<Legal>,
    /// One buffer for each micro-step.
    buffers: Vec<Vec<u8>>,
}

/// Learning rate of each step.
#[derive(Debug)]
struct Rates {
    rate: Rate,
    plan: f32,
    /// Rates of a file.
    list: Vec<f32>,
}

impl Rates {
    fn at(&self, step: u64) -> f32 {
        match &self.rate {
            Rate::Plan => self.plan,
            Rate::Constant(rate) => *rate,
            Rate::Schedule(schedule) => schedule.rate(step, self.plan),
            Rate::File(_) => {
                let at = usize::try_from(step.saturating_sub(1)).unwrap_or(usize::MAX);
                self.list.get(at).copied().unwrap_or(f32::NAN)
            }
        }
    }
}

impl Feeder {
    /// Opens the data and checks it against the plan.
    ///
    /// # Errors
    /// [`Error::Usage`] for names and options that the plan does not have and for inputs without data,
    /// [`Error::Data`] for files that do not fit or do not last, [`Error::Io`], and [`Error::Plan`] for
    /// inputs of types that they cannot have.
    pub fn new(plan: &Plan, program: &Program, options: &FeedOptions) -> Result<Feeder, Error> {
        let wanted = wanted(plan, program);
        let given = given(&wanted, options)?;
        let takes_rate = plan.inputs.iter().any(|i| matches!(i.feed, Feed::LearningRate { .. }));
        if options.lr != Rate::Plan && !takes_rate {
            return Err(Error::Usage("--lr: the plan takes no learning rate".to_owned()));
        }
        let limits = legal::of(plan, program);
        let (mut tables, mut fixed): (Vec<Table>, BTreeMap<&str, Vec<u8>>) = Default::default();
        let mut is_stream = false;
        for (&name, source) in &given {
            let Some(Wanted { micros, ty, inputs, .. }) = wanted.get(name) else { continue };
            let mut array = Array::open(source, name, ty)?;
            is_stream |= array.is_stream();
            let mut legal: Vec<Legal> =
                inputs.iter().filter_map(|i| limits.get(i)).flatten().cloned().collect();
            legal.dedup();
            if array.is_whole {
                let mut bytes = reserved(ty, name)?;
                array.read(0, &mut bytes)?;
                legal::check(&legal, name, ty, &bytes, options.done.saturating_add(1))?;
                fixed.insert(name, bytes);
                continue;
            }
            let order =
                Order { units: array.units, batch: array.batch, micros: *micros, shuffle: options.shuffle };
            lasts(name, &array, &order, options)?;
            let buffers = (0..*micros).map(|_| reserved(ty, name)).collect::<Result<_, _>>()?;
            tables.push(Table { name: name.to_owned(), ty: (*ty).clone(), array, order, legal, buffers });
        }
        alike(&tables, options)?;
        not_paired(&tables, &fixed, &wanted)?;
        let mut feeder = Feeder {
            inputs: Vec::new(),
            tables,
            synthetic: wanted
                .keys()
                .filter(|name| !given.contains_key(*name))
                .map(ToString::to_string)
                .collect(),
            rates: Rates { rate: options.lr.clone(), plan: 0.0, list: Vec::new() },
            done: options.done,
            ready: 0,
            is_stream,
        };
        if let Rate::File(path) = &options.lr {
            feeder.rates.list = rates(path, options)?;
        }
        for (input, ty) in plan.inputs.iter().zip(&program.types.inputs) {
            let fail = |what: &str| Error::Plan(format!("input `{}`: {what}", input.name));
            let source = match &input.feed {
                Feed::Data { source, micro, low, high } => {
                    let table = feeder.tables.iter().position(|table| table.name == *source);
                    match (table, fixed.get(source.as_str())) {
                        (Some(table), _) => Source::Table { table, micro: *micro as usize },
                        (None, Some(bytes)) => Source::Fixed(bytes.clone()),
                        (None, None) => {
                            let all = if ty.dtype == DType::U8 { (0, 256) } else { (0, 2) };
                            let range = if low < high { (*low, *high) } else { all };
                            let key = synthetic::key(options.seed, source, *micro);
                            Source::Fixed(synthetic::contents(ty, range, key, &input.name)?)
                        }
                    }
                }
                Feed::LearningRate { default } => match (ty.dtype, ty.numel()) {
                    (DType::F32, 1) => {
                        feeder.rates.plan = *default;
                        Source::Rate
                    }
                    _ => return Err(fail("a learning rate is one f32 number")),
                },
                Feed::Step => match (ty.dtype, ty.numel()) {
                    (DType::F32 | DType::I32 | DType::I64, 1) => Source::Step(ty.dtype),
                    _ => return Err(fail("a step number is one f32, i32 or i64 number")),
                },
            };
            feeder.inputs.push(source);
        }
        Ok(feeder)
    }

    /// The model's inputs that have no data, and so get synthetic data.
    pub fn synthetic(&self) -> &[String] {
        &self.synthetic
    }

    /// Whether some of the data can be read once only.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Steps of a pass over the data, and what a pass leaves unread, in words; `None` where there is no data
    /// of which each step reads another part.
    pub fn pass(&self) -> Option<(u64, Option<String>)> {
        let table = self.tables.first()?;
        let left = table.order.left_over();
        let said = format!(
            "each pass over the data has {} and leaves out {} of input `{}`",
            counted(table.order.steps(), "step"),
            counted(left, if table.order.batch > 1 { "sample" } else { "slice" }),
            table.name
        );
        Some((table.order.steps(), (left > 0).then_some(said)))
    }

    /// Pass over the data that a step belongs to, counted from 1; `None` as for [`Feeder::pass`].
    pub fn epoch(&self, step: u64) -> Option<u64> {
        self.tables.first().map(|table| table.order.epoch(step).saturating_add(1))
    }

    /// Refuses a file of rates that ends before step `last`.
    ///
    /// # Errors
    /// [`Error::Data`].
    pub fn check_rates(&self, last: u64) -> Result<(), Error> {
        let has = self.rates.list.len() as u64;
        match &self.rates.rate {
            Rate::File(path) if has < last => Err(Error::Data(format!(
                "{}: its {} do not last for step {last}; give one rate for each step",
                path.display(),
                counted(has, "rate"),
            ))),
            _ => Ok(()),
        }
    }

    /// Learning rate of a step; `None` where the plan takes none.
    pub fn rate(&self, step: u64) -> Option<f32> {
        let takes = self.inputs.iter().any(|source| matches!(source, Source::Rate));
        takes.then(|| self.rates.at(step))
    }

    /// Reads the data of a step and checks it.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read, [`Error::Data`] if it holds what the model does not take.
    pub fn prepare(&mut self, step: u64) -> Result<(), Error> {
        if self.ready == step {
            return Ok(());
        }
        self.ready = 0;
        // A pipe begins with the first step of this run.
        let (done, first) = (self.done, step.saturating_sub(self.done));
        for Table { name, ty, array, order, legal, buffers } in &mut self.tables {
            let step = if array.is_stream() { first } else { step };
            let unit = usize::try_from(array.unit_bytes).unwrap_or(usize::MAX).max(1);
            for (micro, buffer) in (0..).zip(buffers.iter_mut()) {
                if order.shuffle.is_none() {
                    array.read(order.unit(step, micro, 0), buffer)?;
                } else {
                    for (i, part) in (0..).zip(buffer.chunks_mut(unit)) {
                        array.read(order.unit(step, micro, i), part)?;
                    }
                }
                let number = if array.is_stream() { step.saturating_add(done) } else { step };
                legal::check(legal, name, ty, buffer, number)?;
            }
        }
        self.ready = step;
        Ok(())
    }

    /// Writes the contents of the input with this index at a step, counted from 1.
    ///
    /// # Errors
    /// Those of [`Feeder::prepare`].
    pub fn write(&mut self, input: usize, step: u64, out: &mut [u8]) -> Result<(), Error> {
        self.prepare(step)?;
        match self.inputs.get(input) {
            Some(Source::Fixed(bytes)) if bytes.len() == out.len() => out.copy_from_slice(bytes),
            Some(&Source::Table { table, micro }) => {
                let buffer = self.tables.get(table).and_then(|table| table.buffers.get(micro));
                match buffer.filter(|buffer| buffer.len() == out.len()) {
                    Some(buffer) => out.copy_from_slice(buffer),
                    None => return Err(Error::Internal(format!("input {input} has no data"))),
                }
            }
            Some(Source::Rate) => put(out, &self.rates.at(step).to_le_bytes()),
            Some(Source::Step(DType::F32)) => put(out, &(step as f32).to_le_bytes()),
            Some(Source::Step(DType::I32)) => {
                put(out, &i32::try_from(step).unwrap_or(i32::MAX).to_le_bytes())
            }
            Some(Source::Step(_)) => put(out, &i64::try_from(step).unwrap_or(i64::MAX).to_le_bytes()),
            _ => {
                return Err(Error::Internal(format!("input {input} has no contents of {} bytes", out.len())));
            }
        }
        Ok(())
    }
}

fn put(out: &mut [u8], bytes: &[u8]) {
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// Use of a data input of the model by the plan.
struct Wanted<'p> {
    micros: u64,
    ty: &'p TensorType,
    /// Indices of the plan's inputs.
    inputs: Vec<usize>,
}

/// The model's data inputs.
fn wanted<'p>(plan: &'p Plan, program: &'p Program) -> BTreeMap<&'p str, Wanted<'p>> {
    let mut out: BTreeMap<&str, Wanted<'_>> = BTreeMap::new();
    for (i, (input, ty)) in plan.inputs.iter().zip(&program.types.inputs).enumerate() {
        if let Feed::Data { source, micro, .. } = &input.feed {
            let entry = out.entry(source).or_insert_with(|| Wanted { micros: 0, ty, inputs: Vec::new() });
            entry.micros = entry.micros.max(u64::from(*micro) + 1);
            entry.inputs.push(i);
        }
    }
    out
}

/// The data that the options name; each input must have some, unless synthetic data may stand in.
fn given<'o>(
    wanted: &BTreeMap<&str, Wanted<'_>>,
    options: &'o FeedOptions,
) -> Result<BTreeMap<&'o str, &'o InputSource>, Error> {
    let mut files: BTreeMap<&str, &InputSource> = BTreeMap::new();
    for (name, source) in &options.inputs {
        if !wanted.contains_key(name.as_str()) {
            let known: Vec<&str> = wanted.keys().copied().collect();
            let known = if known.is_empty() { "none".to_owned() } else { list(&known) };
            return Err(Error::Usage(format!("--input {name}: the model has no such input; it has {known}")));
        }
        if files.insert(name, source).is_some() {
            return Err(Error::Usage(format!("--input {name} is given twice")));
        }
    }
    let missing = wanted.iter().filter(|(name, _)| !files.contains_key(*name));
    let missing: Vec<String> = missing.map(|(name, wanted)| format!("`{name}` {}", wanted.ty)).collect();
    if !missing.is_empty() && !options.synthetic {
        let first = wanted.keys().find(|name| !files.contains_key(*name)).copied().unwrap_or_default();
        return Err(Error::Usage(format!(
            "there is no data for {}; give it, as --input {first}=@{first}.npy, or train on made-up data \
             with \
             --synthetic",
            missing.join(", ")
        )));
    }
    Ok(files)
}

/// Zeros for a tensor of type `ty`.
fn reserved(ty: &TensorType, input: &str) -> Result<Vec<u8>, Error> {
    let none = || Error::Memory(format!("input `{input}`: no memory for {ty}"));
    let bytes = usize::try_from(ty.bytes()).map_err(|_| none())?;
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_| none())?;
    out.resize(bytes, 0);
    Ok(out)
}

/// Refuses data that ends before the run does.
fn lasts(name: &str, array: &Array, order: &Order, options: &FeedOptions) -> Result<(), Error> {
    let path = array.path().display();
    if array.is_stream() && (options.again || options.shuffle.is_some()) {
        return Err(Error::Usage(format!(
            "--input {name}: {path} is a pipe, which can be read once and in order; leave --epochs and \
             --shuffle out, \
             or save the data in a file"
        )));
    }
    let has = order.steps();
    if options.again && has > 0 {
        return Ok(());
    }
    let done = if array.is_stream() { 0 } else { options.done };
    if has >= done.saturating_add(options.steps) {
        return Ok(());
    }
    let what = if order.batch > 1 { "sample" } else { "slice" };
    let each = match order.batch.saturating_mul(order.micros) {
        1 => String::new(),
        n => format!(" with {n} of them in each"),
    };
    let from = match done {
        0 => String::new(),
        done => format!(", and the resumed run has done {done}"),
    };
    let fewer = match has.saturating_sub(done) {
        0 => String::new(),
        left => format!(", run {}", counted(left, "step")),
    };
    Err(Error::Data(format!(
        "{path}: its {} of input `{name}` last for {}{each}{from}; give more data{fewer}, or go through it \
         again with \
         --epochs",
        counted(order.units, what),
        counted(has, "step"),
    )))
}

/// Refuses data of different lengths where passes must agree.
fn alike(tables: &[Table], options: &FeedOptions) -> Result<(), Error> {
    let Some((first, rest)) = tables.split_first() else { return Ok(()) };
    if !options.again && options.shuffle.is_none() {
        return Ok(());
    }
    let Some(other) = rest.iter().find(|other| other.order != first.order) else { return Ok(()) };
    let count = |t: &Table| counted(t.order.units, if t.order.batch > 1 { "sample" } else { "slice" });
    Err(Error::Data(format!(
        "input `{}` has {} and input `{}` has {}; with --epochs or --shuffle all must have the same number",
        first.name,
        count(first),
        other.name,
        count(other),
    )))
}

/// Refuses an array of exactly one batch beside an array of more samples: its rows would be paired with other
/// samples at every step. Rows that are all the same pair with any sample.
fn not_paired(
    tables: &[Table],
    fixed: &BTreeMap<&str, Vec<u8>>,
    wanted: &BTreeMap<&str, Wanted<'_>>,
) -> Result<(), Error> {
    let Some(table) = tables.iter().find(|table| table.order.batch > 1 && table.order.steps() > 1) else {
        return Ok(());
    };
    for (name, bytes) in fixed {
        let Some(ty) = wanted.get(name).map(|wanted| wanted.ty) else { continue };
        let rows = ty.shape.first().copied().unwrap_or(1).max(1);
        if table.ty.shape.first() != Some(&rows) {
            continue;
        }
        let row = usize::try_from(ty.bytes() / rows).unwrap_or(usize::MAX).max(1);
        let mut all = bytes.chunks(row);
        let first = all.next();
        if all.any(|other| Some(other) != first) {
            return Err(Error::Data(format!(
                "input `{name}` has one batch of {rows} samples, which every step would read again, and \
                 input `{}` has {} samples; give both the same number",
                table.name, table.order.units
            )));
        }
    }
    Ok(())
}

/// The rates of a file, one for each step.
fn rates(path: &Path, options: &FeedOptions) -> Result<Vec<f32>, Error> {
    let ty = TensorType::scalar(DType::F32);
    let mut array = Array::open(&InputSource::Path(path.to_owned()), "learning rate", &ty)?;
    let last = options.done.saturating_add(options.steps);
    if array.units < last || array.is_whole {
        return Err(Error::Data(format!(
            "{}: its {} do not last for step {last}; give one rate for each step",
            path.display(),
            counted(array.units, "rate"),
        )));
    }
    let mut bytes = reserved(&TensorType::new(DType::F32, [array.units]), "learning rate")?;
    array.read(0, &mut bytes)?;
    let list: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    match list.iter().position(|rate| !rate.is_finite() || *rate < 0.0) {
        None => Ok(list),
        Some(at) => Err(Error::Data(format!(
            "{}: the rate of step {} is {}; rates are finite and not negative",
            path.display(),
            at + 1,
            list.get(at).copied().unwrap_or_default(),
        ))),
    }
}
