//! Contents of a plan's inputs: the user's arrays, synthetic data, the learning rate, the step number.
//!
//! Contract: the contents of an input depend on the files, the options and the number of the step alone.
//! Steps count from 1 over resumed runs, so that a run which goes on reads on where the former one stopped.
//! Everything that can be known about the data is checked before the first step; memory is taken then and not
//! later.
//!
//! A file has either the input's own shape, and then feeds every step the same, or one axis more in front,
//! and then feeds one slice to each micro-step of each step.

mod npy;
mod synthetic;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use memc_ir::{DType, TensorType, counted};
use memc_plan::{Feed, Plan};

use crate::{Error, Program, state::list};

/// Sources of the inputs.
#[derive(Clone, Debug, Default)]
pub struct FeedOptions {
    /// Files by the name under which the model takes the data.
    pub inputs: Vec<(String, PathBuf)>,
    /// Learning rate; `None` for the plan's default.
    pub lr: Option<f32>,
    /// Seed of synthetic data, for inputs without a file.
    pub seed: u64,
    /// Steps done by the run that this one goes on from.
    pub done: u64,
    /// Steps to run.
    pub steps: u64,
}

/// Supplies the inputs of a plan.
#[derive(Debug)]
pub struct Feeder {
    inputs: Vec<Source>,
    /// Names without a file.
    synthetic: Vec<String>,
}

#[derive(Debug)]
enum Source {
    /// The same bytes at every step.
    Fixed(Vec<u8>),
    /// One slice of a file for each micro-step: `micro` of `micros`.
    Rows { file: npy::Rows, micro: u64, micros: u64 },
    /// The number of the step.
    Step(DType),
}

impl Feeder {
    /// Opens the files and checks them against the plan.
    ///
    /// # Errors
    /// [`Error::Usage`] for names and options that the plan does not have, [`Error::Data`] for files that do
    /// not fit or do not last, [`Error::Io`], and [`Error::Plan`] for inputs of types that they cannot have.
    pub fn new(plan: &Plan, program: &Program, options: &FeedOptions) -> Result<Feeder, Error> {
        let mut micros: BTreeMap<&str, u64> = BTreeMap::new();
        for input in &plan.inputs {
            if let Feed::Data { source, micro, .. } = &input.feed {
                let count = micros.entry(source).or_default();
                *count = (*count).max(u64::from(*micro) + 1);
            }
        }
        let mut files: BTreeMap<&str, &PathBuf> = BTreeMap::new();
        for (name, path) in &options.inputs {
            if !micros.contains_key(name.as_str()) {
                let known: Vec<&str> = micros.keys().copied().collect();
                let known = if known.is_empty() { "none".to_owned() } else { list(&known) };
                return Err(Error::Usage(format!(
                    "--input {name}: the model has no such input; it has {known}"
                )));
            }
            if files.insert(name, path).is_some() {
                return Err(Error::Usage(format!("--input {name} is given twice")));
            }
        }
        let takes_rate = plan.inputs.iter().any(|i| matches!(i.feed, Feed::LearningRate { .. }));
        if options.lr.is_some() && !takes_rate {
            return Err(Error::Usage("--lr: the plan takes no learning rate".to_owned()));
        }
        let inputs = plan.inputs.iter().zip(&program.types.inputs).map(|(input, ty)| {
            let fail = |what: &str| Error::Plan(format!("input `{}`: {what}", input.name));
            match &input.feed {
                Feed::Data { source, micro, low, high } => match files.get(source.as_str()) {
                    Some(path) => {
                        let micros = micros.get(source.as_str()).copied().unwrap_or(1);
                        file(source, path, ty, u64::from(*micro), micros, options)
                    }
                    None => {
                        let all = if ty.dtype == DType::U8 { (0, 256) } else { (0, 2) };
                        let range = if low < high { (*low, *high) } else { all };
                        let key = synthetic::key(options.seed, source, *micro);
                        Ok(Source::Fixed(synthetic::contents(ty, range, key, &input.name)?))
                    }
                },
                Feed::LearningRate { default } => match (ty.dtype, ty.numel()) {
                    (DType::F32, 1) => {
                        Ok(Source::Fixed(options.lr.unwrap_or(*default).to_le_bytes().to_vec()))
                    }
                    _ => Err(fail("a learning rate is one f32 number")),
                },
                Feed::Step => match (ty.dtype, ty.numel()) {
                    (DType::F32 | DType::I32 | DType::I64, 1) => Ok(Source::Step(ty.dtype)),
                    _ => Err(fail("a step number is one f32, i32 or i64 number")),
                },
            }
        });
        let inputs = inputs.collect::<Result<_, _>>()?;
        let synthetic = micros.keys().filter(|name| !files.contains_key(*name)).map(ToString::to_string);
        Ok(Feeder { inputs, synthetic: synthetic.collect() })
    }

    /// The model's inputs that have no file, and so get synthetic data.
    pub fn synthetic(&self) -> &[String] {
        &self.synthetic
    }

    /// Writes the contents of the input with this index at a step, counted from 1.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read, [`Error::Data`] if it holds bytes that are no values of its
    /// type.
    pub fn write(&mut self, input: usize, step: u64, out: &mut [u8]) -> Result<(), Error> {
        match self.inputs.get_mut(input) {
            Some(Source::Fixed(bytes)) if bytes.len() == out.len() => out.copy_from_slice(bytes),
            Some(Source::Rows { file, micro, micros }) => {
                let row = step.saturating_sub(1).saturating_mul(*micros).saturating_add(*micro);
                file.read(row, out)?;
            }
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

/// The source for one plan input that a file feeds.
fn file(
    name: &str,
    path: &Path,
    ty: &TensorType,
    micro: u64,
    micros: u64,
    options: &FeedOptions,
) -> Result<Source, Error> {
    let mut file = npy::Rows::open(path, name, ty)?;
    let Some(rows) = file.rows() else {
        let bytes = usize::try_from(ty.bytes()).map_err(|_| Error::Internal(format!("{ty} is too large")))?;
        let mut fixed = vec![0; bytes];
        file.read(0, &mut fixed)?;
        return Ok(Source::Fixed(fixed));
    };
    let last = options.done.saturating_add(options.steps);
    if rows / micros < last {
        let has = rows / micros;
        let each = if micros == 1 { String::new() } else { format!(" with {micros} of them in each") };
        let from = match options.done {
            0 => String::new(),
            done => format!(", and the resumed run has done {done}"),
        };
        return Err(Error::Data(format!(
            "{}: its {} of input `{name}` last for {}{each}{from}; give more data or run {}",
            path.display(),
            counted(rows, "slice"),
            counted(has, "step"),
            counted(has.saturating_sub(options.done), "step"),
        )));
    }
    Ok(Source::Rows { file, micro, micros })
}
