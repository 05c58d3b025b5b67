//! The model's data inputs, and what can be known of their data before the first step.

use std::collections::BTreeMap;

use memc_ir::{TensorType, counted};
use memc_plan::{Feed, Plan};

use super::FeedOptions;
use super::order::Order;
use super::source::InputSource;
use super::table::{Table, Units};
use crate::jobs::{self, Job};
use crate::state::list;
use crate::{Error, Program};

/// Use of a data input of the model by the plan.
pub(super) struct Wanted<'p> {
    /// Micro-steps of all steps in a round.
    pub(super) micros: u64,
    /// Its type in the plan itself.
    pub(super) ty: &'p TensorType,
    /// Index of the job that it is for.
    pub(super) job: usize,
    /// Indices of the plan's inputs.
    pub(super) inputs: Vec<usize>,
}

/// The model's data inputs.
pub(super) fn wanted<'p>(plan: &'p Plan, program: &'p Program) -> BTreeMap<&'p str, Wanted<'p>> {
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
pub(super) fn given<'o>(
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
pub(super) fn reserved(ty: &TensorType, input: &str) -> Result<Vec<u8>, Error> {
    let none = || Error::Memory(format!("input `{input}`: no memory for {ty}"));
    let bytes = usize::try_from(ty.bytes()).map_err(|_| none())?;
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_| none())?;
    out.resize(bytes, 0);
    Ok(out)
}

/// Refuses data that ends before the run does.
pub(super) fn lasts(
    name: &str,
    units: &Units,
    order: &Order,
    job: &Job,
    options: &FeedOptions,
) -> Result<(), Error> {
    let path = units.path().display();
    if units.is_stream() && (options.again || options.shuffle.is_some()) {
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
    let done = if units.is_stream() { 0 } else { job.done(options.done) };
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
pub(super) fn alike(tables: &[Table], options: &FeedOptions) -> Result<(), Error> {
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
pub(super) fn not_paired(
    tables: &[Table],
    fixed: &BTreeMap<&str, Vec<u8>>,
    wanted: &BTreeMap<&str, Wanted<'_>>,
) -> Result<(), Error> {
    let is_read_on = |table: &&Table| table.order.batch > 1 && table.order.steps() > 1;
    for (name, bytes) in fixed {
        let Some(&Wanted { ty, job, .. }) = wanted.get(name) else { continue };
        let Some(table) = tables.iter().filter(is_read_on).find(|table| table.job == job) else { continue };
        let rows = ty.shape.first().copied().unwrap_or(1).max(1);
        if table.types.first().and_then(|ty| ty.shape.first()) != Some(&rows) {
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
