//! `--job`, and the options that follow it.
//!
//! An option of a model that stands behind a `--job` is for that job; one before the first is for all of
//! them, unless the job has its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, Command, FromArgMatches};
use memc::is_job_name;

use super::ImportArgs;

/// A job as `--job` names it.
#[derive(Clone, Debug)]
pub(crate) struct JobSpec {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Steps in a round.
    pub(crate) steps: u32,
    /// Most tensors that may be swapped, in thousandths of their bytes.
    pub(crate) swap_limit: Option<u32>,
}

/// Parses `[NAME=]FILE[:N][,swap=P%]`.
pub(crate) fn job(text: &str) -> Result<JobSpec, String> {
    let (name, rest) = match text.split_once('=') {
        Some((name, rest)) if is_job_name(name) => (Some(name), rest),
        _ => (None, text),
    };
    let (rest, swap_limit) = match rest.rsplit_once(",swap=") {
        Some((rest, share)) => (rest, Some(thousandths(share)?)),
        None => (rest, None),
    };
    let (path, steps) = match rest.rsplit_once(':') {
        Some((path, steps)) if !steps.is_empty() && steps.chars().all(|c| c.is_ascii_digit()) => {
            (Path::new(path), steps.parse().map_err(|_| format!("`{steps}` steps in a round are too many"))?)
        }
        _ => (Path::new(rest), 1),
    };
    if !(1..=memc::MAX_STEPS).contains(&steps) {
        return Err(format!("a round has 1 to {} steps of a job, not {steps}", memc::MAX_STEPS));
    }
    let name = name.map_or_else(|| name_of(path), str::to_owned);
    if !is_job_name(&name) {
        return Err(format!("give the job a name, as --job NAME={rest}"));
    }
    Ok(JobSpec { name, path: path.to_owned(), steps, swap_limit })
}

/// Parses a share such as `50%` or `0.5`.
fn thousandths(text: &str) -> Result<u32, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.parse().map(|percent: f64| percent / 100.0),
        None => text.parse(),
    };
    match number {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok((share * 1000.0).round() as u32),
        _ => Err(format!("swap={text}: write a share of the job's tensors, such as 50%")),
    }
}

/// The name of a model's file, or of its folder where the file's says nothing.
fn name_of(path: &Path) -> String {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stem = text(path.file_stem());
    let folder = text(path.parent().and_then(Path::file_name));
    let name = if ["model", "training_model"].contains(&stem.as_str()) && !folder.is_empty() {
        folder
    } else {
        stem
    };
    name.replace(|c: char| !is_job_name(&c.to_string()), "_")
}

/// Parses `[JOB=]FILE`.
pub(crate) fn job_file(text: &str) -> Result<memc::JobFile, String> {
    Ok(match text.split_once('=') {
        Some((job, path)) if is_job_name(job) && !Path::new(text).exists() => {
            memc::JobFile { job: Some(job.into()), path: path.into() }
        }
        _ => memc::JobFile { job: None, path: text.into() },
    })
}

/// A command line without the options of single jobs, and those of each.
pub(crate) struct Split {
    pub(crate) rest: Vec<OsString>,
    /// The options for all jobs.
    common: Vec<Own>,
    /// The options of each job alone.
    jobs: Vec<Vec<Own>>,
    /// The options that a job may have.
    options: Command,
}

/// Takes the options of single jobs out of a command line.
pub(crate) fn split(program: &Command, line: impl Iterator<Item = OsString>) -> Split {
    let line: Vec<OsString> = line.collect();
    let mut words = line.iter().skip(1).filter(|word| !word.to_string_lossy().starts_with('-'));
    let command = words.next().and_then(|word| program.find_subcommand(word));
    let inner = words.next().and_then(|word| command?.find_subcommand(word));
    let command = inner.or(command);
    let own = ImportArgs::augment_args(Command::new("--job"));
    let is_own = |id: &clap::Id| own.get_arguments().any(|arg| arg.get_id() == id);
    let arguments = command.into_iter().flat_map(Command::get_arguments).filter(|arg| is_own(arg.get_id()));
    let options =
        Command::new("--job").no_binary_name(true).args_override_self(true).args(arguments.cloned());
    let mut split = Split { rest: Vec::new(), common: Vec::new(), jobs: Vec::new(), options };
    let mut words = line.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let Some(long) = text.strip_prefix("--") else {
            split.rest.push(word);
            continue;
        };
        let (name, has_value) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        if name == "job" {
            split.jobs.push(Vec::new());
        }
        let option = split.options.get_arguments().find(|arg| arg.get_long() == Some(name));
        let Some(option) = option else {
            split.rest.push(word);
            continue;
        };
        let takes = matches!(option.get_action(), ArgAction::Set | ArgAction::Append) && !has_value;
        let words: Vec<OsString> =
            [Some(word), takes.then(|| words.next()).flatten()].into_iter().flatten().collect();
        let own = Own { subject: subject(name, &words), words };
        match split.jobs.last_mut() {
            Some(job) => job.push(own),
            None => {
                split.rest.extend(own.words.clone());
                split.common.push(own);
            }
        }
    }
    split
}

/// An option on the command line.
#[derive(Clone)]
struct Own {
    /// Options of one subject are not for one job at once.
    subject: String,
    /// The option, and its value where that is a word of its own.
    words: Vec<OsString>,
}

/// The subject of an option: each dimension is one, and so is the optimizer.
fn subject(name: &str, words: &[OsString]) -> String {
    let last = words.last().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    match name {
        "dim" => {
            let text = last.strip_prefix("--dim=").unwrap_or(&last);
            format!("dim {}", text.split('=').next().unwrap_or_default())
        }
        "no-optimizer" | "optimizer-model" => "optimizer".into(),
        other => other.into(),
    }
}

impl Split {
    /// The options of a job: those for all that it has no own of, and its own.
    fn line(&self, job: &[Own]) -> Vec<OsString> {
        let is_left = |common: &&Own| job.iter().all(|own| own.subject != common.subject);
        self.common.iter().filter(is_left).chain(job).flat_map(|own| own.words.clone()).collect()
    }

    /// The options of the first job as words.
    pub(crate) fn words(&self) -> Vec<String> {
        let line = self.jobs.first().map(|job| self.line(job)).unwrap_or_default();
        line.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// The options of each job; ends the process where they are wrong.
    pub(crate) fn jobs(self) -> Vec<ImportArgs> {
        let parse = |job: &Vec<Own>| {
            let matches = self.options.clone().try_get_matches_from(self.line(job))?;
            ImportArgs::from_arg_matches(&matches)
        };
        self.jobs.iter().map(|job| parse(job).unwrap_or_else(|e: clap::Error| e.exit())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_by_their_files() {
        let of = |text: &str| job(text).map(|job| (job.name, job.path.display().to_string(), job.steps));
        let is = |name: &str, path: &str, steps| Ok((name.to_string(), path.to_string(), steps));
        assert_eq!(of("zoo/gpt2.onnx"), is("gpt2", "zoo/gpt2.onnx", 1));
        assert_eq!(of("zoo/gpt2.onnx:3"), is("gpt2", "zoo/gpt2.onnx", 3));
        assert_eq!(of("lm=zoo/gpt2.onnx:2"), is("lm", "zoo/gpt2.onnx", 2));
        assert_eq!(of("cnn_bn/training_model.onnx"), is("cnn_bn", "cnn_bn/training_model.onnx", 1));
        assert_eq!(of("my net.onnx"), is("my_net", "my net.onnx", 1));
        assert_eq!(of("a/b=c.onnx"), is("b_c", "a/b=c.onnx", 1));
        let limit = |text: &str| job(text).map(|job| job.swap_limit);
        assert_eq!(limit("a.onnx:2,swap=25%"), Ok(Some(250)));
        assert_eq!(limit("a=b.onnx,swap=0"), Ok(Some(0)));
        assert!(limit("a.onnx,swap=120%").unwrap_err().contains("such as 50%"));
        assert!(of("a.onnx:0").unwrap_err().contains("1 to 1024"));
        assert!(of("a.onnx:99999999999").is_err());
    }
}
