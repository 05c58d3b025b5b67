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
//!
//! Of a plan with buckets, an input whose type is not the same in all has arrays of its own for each step,
//! of any extents that a bucket has room for. The smallest bucket that all data of a step fits is taken, and
//! the rest is filled.

mod array;
mod checks;
pub(crate) mod legal;
mod npy;
mod opened;
mod order;
mod pipe;
mod ragged;
mod rates;
mod source;
mod synthetic;
mod table;

use std::{borrow::Borrow, collections::BTreeMap};

use memc_gpu::side_by_side;
use memc_ir::{DType, TensorType, counted};
use memc_plan::{Feed, Plan};

use crate::ends::{put, write_step};
use crate::jobs::{self, Job};
use crate::schedule::Rate;
use crate::{Error, Program};
use checks::{Wanted, alike, given, not_paired, wanted};
use opened::Opened;
pub use ragged::Pad;
use rates::{Rates, last_for, rates_of};
pub use source::{InputSource, TokenType};
use table::{Table, Units};

/// Sources of the inputs.
#[derive(Clone, Debug, Default)]
pub struct FeedOptions {
    /// Data by the name under which the model takes it.
    pub inputs: Vec<(String, InputSource)>,
    /// Learning rate.
    pub lr: Rate,
    /// Learning rates of single jobs of a plan of several, by name.
    pub job_lr: Vec<(String, Rate)>,
    /// Elements that fill what data leaves of a bucket's tensor, by the input's name.
    pub pads: Vec<(String, Pad)>,
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
    /// Of each bucket.
    inputs: Vec<Vec<Source>>,
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
    /// The bucket that takes it.
    bucket: usize,
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

impl Feeder {
    /// Opens the data and checks it against the plan. `programs` are those of the plan and of its buckets.
    ///
    /// # Errors
    /// [`Error::Usage`] for names and options that the plan does not have and for inputs without data,
    /// [`Error::Data`] for files that do not fit or do not last, [`Error::Io`], and [`Error::Plan`] for
    /// inputs of types that they cannot have.
    pub fn new(
        plan: &Plan,
        programs: &[impl Borrow<Program>],
        options: &FeedOptions,
    ) -> Result<Feeder, Error> {
        let buckets: Vec<(&Plan, &Program)> =
            plan.with_buckets().zip(programs.iter().map(Borrow::borrow)).collect();
        let Some((_, first)) = buckets.first() else {
            return Err(Error::Internal("a plan without a program is fed".to_owned()));
        };
        let wanted = wanted(plan, first);
        let given = given(&wanted, options)?;
        let mut jobs = jobs::of(plan);
        for job in &mut jobs {
            job.before =
                options.before.iter().find(|(name, _)| *name == job.name).map_or(0, |(_, done)| *done);
        }
        let rates = rates_of(plan, &jobs, options)?;
        let limits = buckets.iter().map(|(plan, program)| legal::of(plan, program)).collect();
        let mut data = Opened::new(limits);
        for (&name, source) in &given {
            let Some(wanted) = wanted.get(name) else { continue };
            let Some(job) = jobs.get(wanted.job) else { continue };
            data.open(name, source, wanted, (job, &buckets), options)?;
        }
        data.check_pads(options)?;
        data.check_lengths()?;
        alike(&data.tables, options)?;
        not_paired(&data.tables, &data.fixed, &wanted)?;
        let missing = wanted.keys().filter(|name| !given.contains_key(*name));
        let mut feeder = Feeder {
            inputs: Vec::new(),
            is_stream: data.is_stream(),
            tables: data.tables,
            synthetic: missing.map(ToString::to_string).collect(),
            jobs,
            rates,
            done: options.done,
            ready: 0,
            bucket: 0,
        };
        for (plan, program) in buckets {
            let mut inputs = Vec::new();
            for (input, ty) in plan.inputs.iter().zip(&program.types.inputs) {
                let source = match &input.feed {
                    Feed::Data { source, .. } => {
                        let table = feeder.tables.iter().position(|table| table.name == *source);
                        let fixed = data.fixed.get(source.as_str());
                        feeder.data(input, ty, (table, fixed), &wanted, options.seed)?
                    }
                    feed => number(&feeder.jobs, input, feed, ty)?,
                };
                inputs.push(source);
            }
            feeder.inputs.push(inputs);
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
        let is_taken = self.inputs.iter().flatten().any(takes);
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
        self.bucket = self.bucket_of(round)?;
        for table in &mut self.tables {
            let Some(job) = self.jobs.get(table.job) else { continue };
            table.read(self.bucket, job, round, job.done(self.done))?;
        }
        self.ready = round;
        Ok(())
    }

    /// The smallest bucket that the data of a round fits. Without data that has to fit, each takes its turn.
    fn bucket_of(&self, round: u64) -> Result<usize, Error> {
        let count = self.inputs.len();
        if count < 2 {
            return Ok(0);
        }
        if !self.tables.iter().any(|table| matches!(table.units, Units::Ragged(_))) {
            let turn = round.saturating_sub(1).checked_rem(count as u64).unwrap_or(0);
            return Ok(usize::try_from(turn).unwrap_or(0));
        }
        let fits = |bucket: &usize| {
            let job = |table: &Table| self.jobs.get(table.job);
            self.tables.iter().all(|table| job(table).is_none_or(|job| table.fits(*bucket, job, round)))
        };
        (0..count).rev().find(fits).ok_or_else(|| {
            Error::Data(format!("step {round}: no bucket of the plan has room for the data of all inputs"))
        })
    }

    /// The bucket that takes the data that was prepared last.
    pub(crate) fn bucket(&self) -> usize {
        self.bucket
    }

    /// Writes the contents of the input with this index in a round, counted from 1.
    ///
    /// # Errors
    /// Those of [`Feeder::prepare`].
    pub fn write(&mut self, input: usize, round: u64, out: &mut [u8]) -> Result<(), Error> {
        self.prepare(round)?;
        let step = |job: usize, index| self.jobs.get(job).map_or(round, |job| job.step(round, index));
        match self.inputs.get(self.bucket).and_then(|inputs| inputs.get(input)) {
            Some(Source::Fixed(bytes)) if bytes.len() == out.len() => copy(out, bytes),
            Some(&Source::Table { table, buffer }) => {
                let buffer = self.tables.get(table).and_then(|table| table.buffers.get(buffer));
                // A buffer has room for the largest bucket.
                match buffer.and_then(|buffer| buffer.get(..out.len())) {
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
pub(crate) fn copy(out: &mut [u8], batch: &[u8]) {
    if out.len() < LARGE {
        return out.copy_from_slice(batch);
    }
    let piece = out.len().div_ceil(THREADS);
    let pieces = out.chunks_mut(piece).zip(batch.chunks(piece));
    side_by_side(pieces, THREADS, |(out, batch)| out.copy_from_slice(batch));
}
