//! Workloads: one model, or several jobs that take turns on the device.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use memc_ir::{Phase, print_diags, verify};
use memc_passes::jobs::{Part, merge};
use memc_plan::{JOB, jobs};

use crate::candidate::SwapLimit;
use crate::error::Error;
use crate::source::{Imported, Source, import};

/// Longest name of a job; it is a part of file names.
const MAX_NAME: usize = 100;

/// Most steps of a job in a round.
pub const MAX_STEPS: u32 = 1024;

/// The subject of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Workload {
    /// The training step of a model.
    Model(Box<Source>),
    /// A round: some steps of each job.
    Jobs(Vec<Job>),
}

/// One of several jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Steps in a round, from 1 to [`MAX_STEPS`].
    pub steps: u32,
    /// Most tensors of it that may be swapped, in thousandths of their bytes; `None`: all.
    pub swap_limit: Option<u32>,
    /// Its model.
    pub source: Source,
}

/// A file, and the job that it is for where there are several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobFile {
    /// Name of the job.
    pub job: Option<String>,
    /// The file.
    pub path: PathBuf,
}

impl From<Source> for Workload {
    fn from(source: Source) -> Workload {
        Workload::Model(Box::new(source))
    }
}

/// The model's file, or the jobs' names.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Model(source) => write!(f, "{}", source.path.display()),
            Workload::Jobs(jobs) => {
                let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// Whether a job may have a name. Names of tensors have it in front, with a slash.
pub fn is_job_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain)
}

impl Workload {
    /// The models' sources.
    pub fn sources_mut(&mut self) -> impl Iterator<Item = (Option<&str>, &mut Source)> {
        let (model, jobs) = match self {
            Workload::Model(source) => (Some(&mut **source), None),
            Workload::Jobs(jobs) => (None, Some(jobs)),
        };
        let jobs = jobs.into_iter().flatten().map(|job| (Some(job.name.as_str()), &mut job.source));
        model.into_iter().map(|source| (None, source)).chain(jobs)
    }

    /// Limits of jobs on swapping.
    pub(crate) fn limits(&self) -> Vec<SwapLimit> {
        let Workload::Jobs(jobs) = self else { return Vec::new() };
        let limit = |job: &Job| Some(SwapLimit { job: job.name.clone(), thousandths: job.swap_limit? });
        jobs.iter().filter_map(limit).collect()
    }

    /// Imports the model, or all jobs and merges them; verifies the module.
    ///
    /// # Errors
    ///
    /// Those of [`import`], and [`Error::Usage`] for jobs that cannot be told apart.
    pub fn import(&self) -> Result<Imported, Error> {
        let jobs = match self {
            Workload::Model(source) => return import(source),
            Workload::Jobs(jobs) => jobs,
        };
        check_jobs(jobs)?;
        let mut parts = Vec::new();
        for job in jobs {
            let imported = import(&job.source).map_err(|error| error.in_job(&job.name))?;
            if imported.module.phase != Phase::Graph {
                let text =
                    format!("job {}: the file holds a mem-phase module; a job needs a graph", job.name);
                return Err(Error::Usage(text));
            }
            parts.push((job, imported));
        }
        let modules: Vec<Part<'_>> = parts
            .iter()
            .map(|(job, of)| Part { name: &job.name, module: &of.module, steps: job.steps })
            .collect();
        let module = merge(&modules);
        verify(&module).map_err(|d| {
            Error::Internal(format!("invalid module of jobs\n{}", print_diags(&module, &d).trim_end()))
        })?;
        let (mut notes, mut warnings, mut fired) = (Vec::new(), Vec::new(), Vec::new());
        let mut options: Vec<(String, String)> =
            jobs.iter().map(|job| (JOB.into(), format!("{}:{}", job.name, job.steps))).collect();
        for (job, of) in parts {
            let named = |text: String| format!("{}: {text}", job.name);
            notes.extend(of.notes.into_iter().map(named));
            warnings.extend(of.warnings.into_iter().map(named));
            fired.extend(of.fired);
            options
                .extend(of.options.into_iter().map(|(name, value)| (format!("{}/{name}", job.name), value)));
        }
        Ok(Imported { module, notes, warnings, options, fired })
    }

    /// The workload of a plan, to be read again from `sources` with the options that the plan recorded.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] where the sources are not those of the plan's jobs, [`Error::Plan`] where the plan
    /// records options that it cannot have.
    pub fn recorded(sources: &[JobFile], options: &[(String, String)]) -> Result<Workload, Error> {
        let known: Vec<(&str, u32)> = jobs(options).collect();
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        if let [JobFile { job: None, path }] = sources
            && known.is_empty()
        {
            return Ok(Source::recorded(path.clone(), options)?.into());
        }
        if known.is_empty() {
            return Err(Error::Usage("the plan is of one model: give one --source FILE".into()));
        }
        let is_known = |file: &JobFile| file.job.as_deref().is_some_and(|job| names.contains(&job));
        if let Some(file) = sources.iter().find(|file| !is_known(file)) {
            return Err(Error::Usage(format!(
                "{}: the plan is of the jobs {}: give each its model, as --source {}=FILE",
                file.path.display(),
                names.join(", "),
                names.first().unwrap_or(&""),
            )));
        }
        let mut made = Vec::new();
        for (name, steps) in known {
            let mut own = sources.iter().filter(|file| file.job.as_deref() == Some(name));
            let (Some(file), None) = (own.next(), own.next()) else {
                return Err(Error::Usage(format!(
                    "job {name} needs one model: give one --source {name}=FILE"
                )));
            };
            let prefix = format!("{name}/");
            let of_job = |(option, value): &(String, String)| {
                Some((option.strip_prefix(&prefix)?.to_string(), value.clone()))
            };
            let own: Vec<(String, String)> = options.iter().filter_map(of_job).collect();
            let source = Source::recorded(file.path.clone(), &own)?;
            made.push(Job { name: name.to_string(), steps, swap_limit: None, source });
        }
        Ok(Workload::Jobs(made))
    }
}

/// Refuses jobs that cannot be told apart, and numbers of steps that a round cannot have.
pub(crate) fn check_jobs(jobs: &[Job]) -> Result<(), Error> {
    if jobs.is_empty() {
        return Err(Error::Usage("there is no job: give one or more, as --job FILE".into()));
    }
    let mut names = BTreeSet::new();
    for Job { name, steps, .. } in jobs {
        if !is_job_name(name) {
            let text = "a job's name has letters, digits, -, _ and . only; give one, as --job NAME=FILE";
            return Err(Error::Usage(format!("job `{name}`: {text}")));
        }
        if !names.insert(name) {
            return Err(Error::Usage(format!(
                "two jobs are called `{name}`: give them names, as --job NAME=FILE"
            )));
        }
        if !(1..=MAX_STEPS).contains(steps) {
            return Err(Error::Usage(format!("job `{name}`: a round has 1 to {MAX_STEPS} of its steps")));
        }
    }
    Ok(())
}
