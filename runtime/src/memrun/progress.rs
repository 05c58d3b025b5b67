//! Progress of a run, and the results of its steps.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use crate::{Error, JobStep, Stage, Step, Watch};
use serde_json::{Value, json};

use crate::memrun::interrupt::Stop;
use crate::memrun::terminal::{Line, note, number, print};

/// Steps whose results are stored without growing a table.
const ROOM: u64 = 1 << 16;

/// The steps so far.
pub(crate) struct Progress {
    line: Line,
    stop: Arc<Stop>,
    /// Steps that were asked for.
    pub(crate) asked: u64,
    /// Number of the first step.
    pub(crate) first: u64,
    /// Whether the steps compute outputs alone, without a loss.
    pub(crate) infers: bool,
    /// Of a plan of one model.
    pub(crate) losses: Vec<Option<f32>>,
    /// Of each job of a plan of several.
    pub(crate) job_losses: BTreeMap<String, Vec<Option<f32>>>,
    pub(crate) step_ns: Vec<u64>,
    /// Steps between printed rows; `None` for no rows.
    rows: Option<u64>,
    /// File for one JSON object of each step, until it cannot be written.
    metrics: Option<(PathBuf, File)>,
    /// Whether metrics are added to those of a former run.
    goes_on: bool,
    /// Exit code of the first row that could not be printed.
    unprinted: u8,
    /// Exit code of the metrics that could not be written.
    unwritten: u8,
    /// Evaluations so far, each after a step.
    pub(crate) evaluations: Vec<(u64, Means)>,
    /// File of the last saved states.
    pub(crate) saved: Option<PathBuf>,
    /// The first step whose loss is not a finite number.
    pub(crate) not_finite: Option<u64>,
}

impl Progress {
    pub(crate) fn new(line: Line, rows: Option<u64>, stop: Arc<Stop>) -> Progress {
        Progress {
            line,
            stop,
            asked: 0,
            first: 1,
            infers: false,
            losses: Vec::new(),
            job_losses: BTreeMap::new(),
            step_ns: Vec::new(),
            rows,
            metrics: None,
            goes_on: false,
            unprinted: 0,
            unwritten: 0,
            evaluations: Vec::new(),
            saved: None,
            not_finite: None,
        }
    }

    /// Of a run that did not begin.
    pub(crate) fn silent() -> Progress {
        Progress::new(Line::new(false), None, Arc::default())
    }

    /// Opens the file of metrics; a resumed run writes on behind what is there. Another one empties it when
    /// the steps begin.
    pub(crate) fn measure_into(&mut self, path: &Path, resumed: bool) -> Result<(), Error> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|e| Error::io(path, e))?;
        self.metrics = Some((path.to_owned(), file));
        self.goes_on = resumed;
        Ok(())
    }

    /// Exit code of what the run could not print or write; 0 where nothing is missing.
    pub(crate) fn missing(&self) -> u8 {
        self.unprinted.max(self.unwritten)
    }

    /// Times of the steps, without the first if there are others: it warms up. None of no steps.
    pub(crate) fn times(&self) -> Option<Times> {
        let mut times =
            self.step_ns.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&self.step_ns).to_vec();
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        // The smallest time that so many per cent of the steps do not exceed.
        let within = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied();
        let total: u64 = times.iter().fold(0, |sum, &ns| sum.saturating_add(ns));
        Some(Times {
            median: times.get(last / 2)?.midpoint(*times.get(times.len() / 2)?),
            p90: within(90)?,
            p99: within(99)?,
            per_second: times.len() as f64 / (total.max(1) as f64 / 1e9),
        })
    }

    /// Takes the metrics of step `first` and later out of the file of the run that this one goes on from:
    /// that run had gone further than its last save.
    fn forget_from(&mut self, first: u64) {
        // Rounds of jobs that go on from files of their own begin anew, and no line is theirs.
        if first == 1 {
            return;
        }
        let Some((path, file)) = self.metrics.as_ref().filter(|_| self.goes_on) else { return };
        let Ok(text) = std::fs::read_to_string(path) else { return };
        let step = |line: &str| serde_json::from_str::<Value>(line).ok()?.get("step")?.as_u64();
        let kept: Vec<&str> =
            text.lines().filter(|line| step(line).is_some_and(|step| step < first)).collect();
        if kept.len() < text.lines().count() && file.set_len(0).is_ok() {
            let lines: String = kept.iter().flat_map(|line| [line, "\n"]).collect();
            // An error here comes again with the next line, and is told then.
            let _ = (&*file).write_all(lines.as_bytes());
        }
    }

    /// Writes metrics. A file that refuses them gets no more.
    fn measure(&mut self, object: &Value) {
        let Some((path, file)) = &mut self.metrics else { return };
        if let Err(error) = file.write_all(format!("{object}\n").as_bytes()) {
            let text = format!("{}: {error}; no more metrics are written", path.display());
            self.metrics = None;
            self.unwritten = Error::io("", error).exit_code();
            self.note(&text);
        }
    }
}

/// Mean of each output by name.
pub(crate) type Means = Vec<(String, f32)>;

/// Means as an object; null where a mean is no finite number.
pub(crate) fn means_json(means: &Means) -> Value {
    means.iter().map(|(name, mean)| (name.clone(), json!(finite(*mean)))).collect()
}

/// Means as text, such as `loss 0.25, accuracy 0.875`.
pub(crate) fn means_text(means: &Means) -> String {
    let shown: Vec<String> = means.iter().map(|(name, mean)| format!("{name} {}", number(*mean))).collect();
    shown.join(", ")
}

fn finite(number: f32) -> Option<f64> {
    number.is_finite().then(|| f64::from(number))
}

/// Times of steps in nanoseconds, and their rate.
pub(crate) struct Times {
    pub(crate) median: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) per_second: f64,
}

impl Watch for Progress {
    fn steps(&mut self, steps: u64) {
        self.asked = steps;
        let room = usize::try_from(steps.min(ROOM)).unwrap_or(0);
        self.losses.reserve(room);
        self.step_ns.reserve(room);
        if let Some((_, file)) = self.metrics.as_ref().filter(|_| !self.goes_on) {
            // A pipe or a device has nothing to empty.
            let _ = file.set_len(0);
        }
    }

    fn evaluated(&mut self, step: u64, means: &[(String, f32)]) {
        let means = means.to_vec();
        self.measure(&json!({"step": step, "evaluation": means_json(&means)}));
        if self.rows.is_some() && self.unprinted == 0 {
            let text = format!("evaluation after step {step}: {}\n", means_text(&means));
            self.unprinted = self.line.show(|| print(&text));
        }
        self.evaluations.push((step, means));
    }

    fn saved(&mut self, path: &Path, _step: u64) {
        self.saved = Some(path.to_owned());
    }

    fn step(&mut self, done: &Step) {
        let &Step { number: step, ns, .. } = done;
        let loss = done.loss();
        if self.step_ns.is_empty() {
            self.first = step;
            self.forget_from(step);
        }
        self.measure(&metrics(done, self.infers));
        self.losses.push(loss);
        for job in done.jobs.iter().filter(|job| !job.name.is_empty()) {
            self.job_losses.entry(job.name.clone()).or_default().push(job.loss);
        }
        self.step_ns.push(ns);
        let diverged = done.jobs.iter().find(|job| job.loss.is_some_and(|loss| !loss.is_finite()));
        if let (None, Some(job)) = (self.not_finite, diverged) {
            self.not_finite = Some(step);
            let of = if job.name.is_empty() { String::new() } else { format!(" of job {}", job.name) };
            self.note(&format!("the loss{of} is not a finite number at step {}", job.step));
        }
        let ends = self.step_ns.len() as u64 == self.asked;
        let printed = self.rows.is_some_and(|every| step == self.first || ends || step.is_multiple_of(every));
        if printed && self.unprinted == 0 {
            self.unprinted = self.line.show(|| print(&row(done, step == self.first, self.infers)));
        }
        self.line.step(loss);
    }

    fn stage(&mut self, stage: Stage) {
        self.stop.come_to(stage);
        match stage {
            Stage::Before(what) | Stage::Between(what) | Stage::After(what) => self.line.stage(what),
            Stage::Steps => self.line.steps(self.asked),
        }
    }

    fn note(&mut self, text: &str) {
        self.line.show(|| note(text));
    }

    fn should_stop(&self) -> bool {
        self.stop.asked.load(Ordering::Relaxed)
    }
}

/// The row of a step, under the header if it is the first. Each of several jobs has a column for its loss.
/// Inference has no loss.
fn row(done: &Step, first: bool, infers: bool) -> String {
    let name = |job: &JobStep| if job.name.is_empty() { "loss".to_owned() } else { job.name.clone() };
    let with_loss = if infers { &[] } else { &done.jobs[..] };
    let names: Vec<String> = with_loss.iter().map(name).collect();
    let cells = |cells: &[String]| {
        let wide = |(cell, name): (&String, &String)| format!(" {cell:>0$}", name.len().max(14));
        cells.iter().zip(&names).map(wide).collect::<String>()
    };
    let what = if done.jobs.len() > 1 { "round" } else { "step" };
    let header = if first { format!("{what:>8}{} {:>11}\n", cells(&names), "ms") } else { String::new() };
    let loss = |job: &JobStep| job.loss.map_or_else(|| "-".to_owned(), number);
    let losses: Vec<String> = with_loss.iter().map(loss).collect();
    format!("{header}{:>8}{} {:>11.3}\n", done.number, cells(&losses), done.ns as f64 / 1e6)
}

/// The metrics of a step, or of each job's last step in a round.
fn metrics(done: &Step, infers: bool) -> Value {
    let of = |job: &JobStep| {
        if infers {
            return json!({"step": job.step, "epoch": job.epoch});
        }
        json!({
            "step": job.step,
            "epoch": job.epoch,
            "loss": job.loss.and_then(finite),
            "lr": job.rate.map(f64::from),
        })
    };
    let mut object = match &done.jobs[..] {
        [only] if only.name.is_empty() => of(only),
        jobs => {
            let jobs: serde_json::Map<String, Value> =
                jobs.iter().map(|job| (job.name.clone(), of(job))).collect();
            json!({"step": done.number, "jobs": jobs})
        }
    };
    object["seconds"] = json!(done.ns as f64 / 1e9);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a step leaves the first out, unless it is the only one, and of two in the middle is their
    /// mean.
    #[test]
    fn the_time_of_a_step_is_the_median_without_the_first() {
        let median = |times: &[u64]| {
            let mut progress = Progress::silent();
            for &ns in times {
                progress.step(&Step { number: 1, ns, jobs: Vec::new() });
            }
            progress.times().map(|times| times.median)
        };
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9]), Some(9));
        assert_eq!(median(&[9, 1]), Some(1));
        assert_eq!(median(&[9, 4, 2]), Some(3));
        assert_eq!(median(&[9, 4, 2, 30]), Some(4));
    }
}
