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
pub(crate) mod legal;
mod npy;
mod order;
mod pipe;
mod source;
mod synthetic;

use std::{collections::BTreeMap, path::Path};

use memc_gpu::side_by_side;
use memc_ir::{DType, TensorType, counted};
use memc_plan::{Feed, Plan};

use crate::ends::{put, write_step};
use crate::jobs::{self, Job};
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
    /// Learning rates of single jobs of a plan of several, by name.
    pub job_lr: Vec<(String, Rate)>,
    /// Whether inputs without data get synthetic data; otherwise they are refused.
    pub synthetic: bool,
    /// Seed of synthetic data.
    pub seed: u64,
    /// Seed of the order in which a pass reads the data; `None` for the order of the files.
    pub shuffle: Option<u64>,
    /// Whether the data is read again when it ends.
    pub again: bool,
    /// Steps done by the run that this one goes on from; of a plan of several jobs, rounds.
    pub done: u64,
    /// Steps of single jobs before the first round, by name.
    pub before: Vec<(String, u64)>,
    /// Steps to run; of a plan of several jobs, rounds.
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
    jobs: Vec<Job>,
    /// Of each job.
    rates: Vec<Rates>,
    /// Rounds done before this run.
    done: u64,
    /// The round whose data is in the tables' buffers.
    ready: u64,
    /// Whether some of the data can be read once only.
    is_stream: bool,
}

#[derive(Debug)]
enum Source {
    /// The same bytes at every step.
    Fixed(Vec<u8>),
    /// Buffer of a table.
    Table { table: usize, buffer: usize },
    /// The learning rate of a step of a job in a round.
    Rate { job: usize, index: u32 },
    /// The number of a step of a job in a round.
    Step { job: usize, index: u32, dtype: DType },
}

/// Data of an input, and what the present step reads of it.
#[derive(Debug)]
struct Table {
    name: String,
    ty: TensorType,
    array: Array,
    order: Order,
    legal: Vec<Legal>,
    /// Index of the job that reads it.
    job: usize,
    /// One buffer for each micro-step of each of the job's steps in a round.
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
        let mut jobs = jobs::of(plan);
        for job in &mut jobs {
            job.before =
                options.before.iter().find(|(name, _)| *name == job.name).map_or(0, |(_, done)| *done);
        }
        let rates = rates_of(plan, &jobs, options)?;
        let limits = legal::of(plan, program);
        let (mut tables, mut fixed): (Vec<Table>, BTreeMap<&str, Vec<u8>>) = Default::default();
        let mut is_stream = false;
        for (&name, source) in &given {
            let Some(Wanted { micros, ty, inputs, job: at }) = wanted.get(name) else { continue };
            let Some(job) = jobs.get(*at) else { continue };
            let mut array = Array::open(source, name, ty)?;
            is_stream |= array.is_stream();
            let mut legal: Vec<Legal> =
                inputs.iter().filter_map(|i| limits.get(i)).flatten().cloned().collect();
            legal.dedup();
            if array.is_whole {
                let mut bytes = reserved(ty, name)?;
                array.read(0, &mut bytes)?;
                legal::check(&legal, name, ty, &bytes, job.done(options.done).saturating_add(1))?;
                fixed.insert(name, bytes);
                continue;
            }
            let (units, batch, shuffle) = (array.units, array.batch, options.shuffle);
            let order = Order { units, batch, micros: micros / u64::from(job.steps), shuffle };
            lasts(name, &array, &order, job, options)?;
            let buffers = (0..*micros).map(|_| reserved(ty, name)).collect::<Result<_, _>>()?;
            let (name, ty, job) = (name.to_owned(), (*ty).clone(), *at);
            tables.push(Table { name, ty, array, order, legal, job, buffers });
        }
        alike(&tables, options)?;
        not_paired(&tables, &fixed, &wanted)?;
        let missing = wanted.keys().filter(|name| !given.contains_key(*name));
        let mut feeder = Feeder {
            inputs: Vec::new(),
            tables,
            synthetic: missing.map(ToString::to_string).collect(),
            jobs,
            rates,
            done: options.done,
            ready: 0,
            is_stream,
        };
        for (input, ty) in plan.inputs.iter().zip(&program.types.inputs) {
            let source = match &input.feed {
                Feed::Data { source, .. } => {
                    let table = feeder.tables.iter().position(|table| table.name == *source);
                    feeder.data(input, ty, (table, fixed.get(source.as_str())), &wanted, options.seed)?
                }
                feed => number(&feeder.jobs, input, feed, ty)?,
            };
            feeder.inputs.push(source);
        }
        Ok(feeder)
    }

    /// Source of an input of data: a table, the same bytes at every step, or made-up data.
    fn data(
        &self,
        input: &memc_plan::Input,
        ty: &TensorType,
        given: (Option<usize>, Option<&Vec<u8>>),
        wanted: &BTreeMap<&str, Wanted<'_>>,
        seed: u64,
    ) -> Result<Source, Error> {
        let Feed::Data { source, micro, low, high } = &input.feed else {
            return Err(Error::Internal(format!("input `{}` is not data", input.name)));
        };
        match given {
            (Some(table), _) => return Ok(Source::Table { table, buffer: *micro as usize }),
            (None, Some(bytes)) => return Ok(Source::Fixed(bytes.clone())),
            (None, None) => {}
        }
        let all = if ty.dtype == DType::U8 { (0, 256) } else { (0, 2) };
        let range = if low < high { (*low, *high) } else { all };
        // Each job gets the data that it would get alone.
        let job = self.jobs.get(jobs::index_of(&self.jobs, source));
        let own = job.and_then(|job| job.own_name(source)).unwrap_or(source);
        let micros = wanted.get(source.as_str()).map_or(1, |wanted| wanted.micros);
        let each = micros / job.map_or(1, |job| u64::from(job.steps));
        let micro = u64::from(*micro) % each.max(1);
        let key = synthetic::key(seed, own, u32::try_from(micro).unwrap_or(0));
        Ok(Source::Fixed(synthetic::contents(ty, range, key, &input.name)?))
    }

    /// The jobs, with the steps that each had done before the first round.
    pub(crate) fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The model's inputs that have no data, and so get synthetic data.
    pub fn synthetic(&self) -> &[String] {
        &self.synthetic
    }

    /// Whether some of the data can be read once only.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Steps of a job's pass over its data, and what a pass leaves unread, in words; `None` where there is no
    /// data of which each step reads another part. A plan of one model has the job 0.
    pub fn pass(&self, job: usize) -> Option<(u64, Option<String>)> {
        let table = self.tables.iter().find(|table| table.job == job)?;
        let left = table.order.left_over();
        let said = format!(
            "each pass over the data has {} and leaves out {} of input `{}`",
            counted(table.order.steps(), "step"),
            counted(left, if table.order.batch > 1 { "sample" } else { "slice" }),
            table.name
        );
        Some((table.order.steps(), (left > 0).then_some(said)))
    }

    /// Pass over its data that a job's last step of a round belongs to, counted from 1; `None` as for
    /// [`Feeder::pass`].
    pub fn epoch(&self, job: usize, round: u64) -> Option<u64> {
        let table = self.tables.iter().find(|table| table.job == job)?;
        Some(table.order.epoch(self.jobs.get(job)?.done(round)).saturating_add(1))
    }

    /// Refuses files of rates that end before round `last`.
    ///
    /// # Errors
    /// [`Error::Data`].
    pub fn check_rates(&self, last: u64) -> Result<(), Error> {
        for (job, rates) in self.jobs.iter().zip(&self.rates) {
            if let Rate::File(path) = &rates.rate {
                last_for(path, rates.list.len() as u64, job.done(last))?;
            }
        }
        Ok(())
    }

    /// Learning rate of a job's last step in a round; `None` where the job takes none.
    pub fn rate(&self, job: usize, round: u64) -> Option<f32> {
        let takes = |source: &Source| matches!(source, Source::Rate { job: at, .. } if *at == job);
        let is_taken = self.inputs.iter().any(takes);
        let step = self.jobs.get(job)?.done(round);
        self.rates.get(job).filter(|_| is_taken).map(|rates| rates.at(step))
    }

    /// Reads the data of a round and checks it.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read, [`Error::Data`] if it holds what the model does not take.
    pub fn prepare(&mut self, round: u64) -> Result<(), Error> {
        if self.ready == round {
            return Ok(());
        }
        self.ready = 0;
        for Table { name, ty, array, order, legal, job, buffers } in &mut self.tables {
            let Some(job) = self.jobs.get(*job) else { continue };
            // A pipe begins with the first step of this run.
            let before = if array.is_stream() { job.done(self.done) } else { 0 };
            let unit = usize::try_from(array.unit_bytes).unwrap_or(usize::MAX).max(1);
            for (at, buffer) in (0..).zip(buffers.iter_mut()) {
                let (index, micro) = (at / order.micros.max(1), at % order.micros.max(1));
                let number = job.step(round, u32::try_from(index).unwrap_or(u32::MAX));
                let step = number.saturating_sub(before);
                if order.shuffle.is_none() {
                    array.read(order.unit(step, micro, 0), buffer)?;
                } else {
                    for (i, part) in (0..).zip(buffer.chunks_mut(unit)) {
                        array.read(order.unit(step, micro, i), part)?;
                    }
                }
                legal::check(legal, name, ty, buffer, number)?;
            }
        }
        self.ready = round;
        Ok(())
    }

    /// Writes the contents of the input with this index in a round, counted from 1.
    ///
    /// # Errors
    /// Those of [`Feeder::prepare`].
    pub fn write(&mut self, input: usize, round: u64, out: &mut [u8]) -> Result<(), Error> {
        self.prepare(round)?;
        let step = |job: usize, index| self.jobs.get(job).map_or(round, |job| job.step(round, index));
        match self.inputs.get(input) {
            Some(Source::Fixed(bytes)) if bytes.len() == out.len() => copy(out, bytes),
            Some(&Source::Table { table, buffer }) => {
                let buffer = self.tables.get(table).and_then(|table| table.buffers.get(buffer));
                match buffer.filter(|buffer| buffer.len() == out.len()) {
                    Some(buffer) => copy(out, buffer),
                    None => return Err(Error::Internal(format!("input {input} has no data"))),
                }
            }
            Some(&Source::Rate { job, index }) => {
                let rate = self.rates.get(job).map_or(f32::NAN, |rates| rates.at(step(job, index)));
                put(out, &rate.to_le_bytes());
            }
            Some(&Source::Step { job, index, dtype }) => write_step(out, dtype, step(job, index)),
            _ => {
                return Err(Error::Internal(format!("input {input} has no contents of {} bytes", out.len())));
            }
        }
        Ok(())
    }
}

/// Source of an input that memrun sets itself.
fn number(jobs: &[Job], input: &memc_plan::Input, feed: &Feed, ty: &TensorType) -> Result<Source, Error> {
    let fail = |what: &str| Err(Error::Plan(format!("input `{}`: {what}", input.name)));
    let job = jobs::index_of(jobs, &input.name);
    match (feed, ty.dtype, ty.numel()) {
        (Feed::LearningRate { turn, .. }, DType::F32, 1) => Ok(Source::Rate { job, index: turn.index }),
        (Feed::LearningRate { .. }, ..) => fail("a learning rate is one f32 number"),
        (Feed::Step { turn }, dtype @ (DType::F32 | DType::I32 | DType::I64), 1) => {
            Ok(Source::Step { job, index: turn.index, dtype })
        }
        (..) => fail("a step number is one f32, i32 or i64 number"),
    }
}

/// Bytes of an input from which several threads copy it, and how many threads.
const LARGE: usize = 8 << 20;
const THREADS: usize = 8;

/// Copies a batch of the same size. A large one takes several threads: one alone reaches a tenth of the
/// memory's bandwidth, and the step may wait for it.
fn copy(out: &mut [u8], batch: &[u8]) {
    if out.len() < LARGE {
        return out.copy_from_slice(batch);
    }
    let piece = out.len().div_ceil(THREADS);
    let pieces = out.chunks_mut(piece).zip(batch.chunks(piece));
    side_by_side(pieces, THREADS, |(out, batch)| out.copy_from_slice(batch));
}

/// Use of a data input of the model by the plan.
struct Wanted<'p> {
    /// Micro-steps of all steps in a round.
    micros: u64,
    ty: &'p TensorType,
    /// Index of the job that it is for.
    job: usize,
    /// Indices of the plan's inputs.
    inputs: Vec<usize>,
}

/// The model's data inputs.
fn wanted<'p>(plan: &'p Plan, program: &'p Program) -> BTreeMap<&'p str, Wanted<'p>> {
    let mut out: BTreeMap<&str, Wanted<'_>> = BTreeMap::new();
    let jobs = jobs::of(plan);
    for (i, (input, ty)) in plan.inputs.iter().zip(&program.types.inputs).enumerate() {
        if let Feed::Data { source, micro, .. } = &input.feed {
            let entry = out.entry(source).or_insert_with(|| Wanted {
                micros: 0,
                ty,
                job: jobs::index_of(&jobs, source),
                inputs: Vec::new(),
            });
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
            "there is no data for {}; give it, as --input {first}=@{first}.npy, or run on made-up data with \
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
fn lasts(name: &str, array: &Array, order: &Order, job: &Job, options: &FeedOptions) -> Result<(), Error> {
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
    let done = if array.is_stream() { 0 } else { job.done(options.done) };
    let wanted = options.steps.saturating_mul(u64::from(job.steps));
    if has >= done.saturating_add(wanted) {
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
    let fewer = match has.saturating_sub(done) / u64::from(job.steps) {
        0 => String::new(),
        left => format!(", run {}", counted(left, if job.name.is_empty() { "step" } else { "round" })),
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
    if !options.again && options.shuffle.is_none() {
        return Ok(());
    }
    let differs = |a: &Table, b: &Table| a.job == b.job && a.order != b.order;
    let pair = tables.iter().find_map(|first| Some((first, tables.iter().find(|b| differs(first, b))?)));
    let Some((first, other)) = pair else { return Ok(()) };
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
    let is_read_on = |table: &&Table| table.order.batch > 1 && table.order.steps() > 1;
    for (name, bytes) in fixed {
        let Some(&Wanted { ty, job, .. }) = wanted.get(name) else { continue };
        let Some(table) = tables.iter().filter(is_read_on).find(|table| table.job == job) else { continue };
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

/// The learning rates of each job.
fn rates_of(plan: &Plan, jobs: &[Job], options: &FeedOptions) -> Result<Vec<Rates>, Error> {
    let mut defaults: BTreeMap<usize, f32> = BTreeMap::new();
    for input in &plan.inputs {
        if let Feed::LearningRate { default, .. } = input.feed {
            defaults.insert(jobs::index_of(jobs, &input.name), default);
        }
    }
    if options.lr != Rate::Plan && defaults.is_empty() {
        return Err(Error::Usage("--lr: the plan takes no learning rate".to_owned()));
    }
    for (name, _) in &options.job_lr {
        let at = jobs::find(jobs, name, &format!("--lr {name}/"))?;
        if !defaults.contains_key(&at) {
            return Err(Error::Usage(format!("--lr {name}/: the job takes no learning rate")));
        }
    }
    let mut out = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        let own = options.job_lr.iter().rev().find(|(name, _)| *name == job.name).map(|(_, rate)| rate);
        let rate = own.unwrap_or(&options.lr).clone();
        let list = match &rate {
            Rate::File(path) if defaults.contains_key(&at) => {
                rates_in(path, job.done(options.done.saturating_add(options.steps)))?
            }
            _ => Vec::new(),
        };
        out.push(Rates { rate, plan: defaults.get(&at).copied().unwrap_or(0.0), list });
    }
    Ok(out)
}

/// Refuses a file of rates that ends before step `last`.
fn last_for(path: &Path, rates: u64, last: u64) -> Result<(), Error> {
    if rates >= last {
        return Ok(());
    }
    Err(Error::Data(format!(
        "{}: its {} do not last for step {last}; give one rate for each step",
        path.display(),
        counted(rates, "rate"),
    )))
}

/// The rates of a file, one for each step up to `last`.
fn rates_in(path: &Path, last: u64) -> Result<Vec<f32>, Error> {
    let ty = TensorType::scalar(DType::F32);
    let mut array = Array::open(&InputSource::Path(path.to_owned()), "learning rate", &ty)?;
    last_for(path, if array.is_whole { 0 } else { array.units }, last)?;
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
