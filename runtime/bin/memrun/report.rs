//! What `memrun` prints: progress on a terminal's standard error, results on standard output.
//!
//! The last line of standard output is `memrun: PASSED …`, `memrun: FAILED …` or `memrun: INTERRUPTED …`, or one JSON
//! object instead of everything. A reader that goes away is no error.

use std::{
    collections::BTreeMap,
    fmt::Display,
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use indicatif::{ProgressBar, ProgressStyle};
use memc_ir::Bytes;
use memc_plan::{Feed, PlanFile, Section, Tuning};
use memc_runtime::{Error, Profile, Report, Watch};
use serde_json::{Map, Value, json};

use crate::cli::Cli;

/// Steps whose results are stored without growing a table.
const ROOM: u64 = 1 << 16;

/// The steps so far.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    stop: Arc<AtomicBool>,
    first: u64,
    losses: Vec<Option<f32>>,
    step_ns: Vec<u64>,
    /// Whether every step prints its row.
    rows: bool,
    /// Exit code of the first row that could not be printed.
    unprinted: u8,
    /// The first step whose loss is not a finite number.
    not_finite: Option<u64>,
}

impl Progress {
    pub(crate) fn new(steps: u64, bar: bool, rows: bool, stop: Arc<AtomicBool>) -> Progress {
        let room = usize::try_from(steps.min(ROOM)).unwrap_or(0);
        let bar = bar.then(|| {
            let bar = ProgressBar::new(steps);
            let style = "{bar:30} {pos}/{len} steps  {msg}  {eta} left";
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Progress {
            bar,
            stop,
            first: 1,
            losses: Vec::with_capacity(room),
            step_ns: Vec::with_capacity(room),
            rows,
            unprinted: 0,
            not_finite: None,
        }
    }

    /// Of a run that did not begin.
    pub(crate) fn silent() -> Progress {
        Progress::new(0, false, false, Arc::default())
    }

    pub(crate) fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Prints beside the bar.
    fn show<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Median time of a step in nanoseconds, without the first if there are others: it warms up.
    fn median_ns(&self) -> u64 {
        let mut times =
            self.step_ns.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&self.step_ns).to_vec();
        times.sort_unstable();
        let middle = |at: usize| times.get(at).copied().unwrap_or(0);
        middle(times.len().saturating_sub(1) / 2).midpoint(middle(times.len() / 2))
    }
}

impl Watch for Progress {
    fn step(&mut self, step: u64, loss: Option<f32>, ns: u64) {
        if self.step_ns.is_empty() {
            self.first = step;
        }
        self.losses.push(loss);
        self.step_ns.push(ns);
        if self.not_finite.is_none() && loss.is_some_and(|loss| !loss.is_finite()) {
            self.not_finite = Some(step);
            self.show(|| note(&format!("the loss is not a finite number at step {step}")));
        }
        if self.rows {
            let code = self.show(|| print(&row(step, loss, ns, step == self.first)));
            if self.unprinted == 0 {
                self.unprinted = code;
            }
        }
        if let Some(bar) = &self.bar {
            if let Some(loss) = loss {
                bar.set_message(format!("loss {loss}"));
            }
            bar.inc(1);
        }
    }

    fn note(&mut self, text: &str) {
        note(text);
    }

    fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Prints something the user should know.
pub(crate) fn note(text: &str) {
    // Without a standard error there is nobody to tell.
    let _ = writeln!(io::stderr(), "memrun: note: {text}");
}

/// Prints an error.
pub(crate) fn error(error: &Error) {
    let _ = writeln!(io::stderr(), "memrun: error: {error}");
}

/// Reports a run that ended by itself or by an interrupt; returns the exit code.
pub(crate) fn done(cli: &Cli, file: &PlanFile, progress: &Progress, report: &Report) -> u8 {
    if cli.json {
        let mut object = results(file, progress);
        object.insert("device".to_owned(), json!(report.device));
        object.insert("threads".to_owned(), json!(report.threads));
        object.insert("synthetic".to_owned(), json!(report.synthetic));
        object.insert("verified".to_owned(), json!(report.verified.then_some(true)));
        object.insert("interrupted".to_owned(), json!(report.interrupted));
        return print(&format!("{}\n", Value::Object(object)));
    }
    let verdict = if report.interrupted { "INTERRUPTED" } else { "PASSED" };
    let warning = progress.not_finite.map(|step| format!(" WITH WARNING loss-not-finite-at-step={step}"));
    let warning = warning.unwrap_or_default();
    let verified = if report.verified { " verified=bit-identical" } else { "" };
    let meta = &file.plan().meta;
    let last = format!(
        "memrun: {verdict}{warning} peak={}/{} step={:.3}ms{verified}\n",
        compact(meta.dev_bytes),
        compact(meta.budget_bytes),
        progress.median_ns() as f64 / 1e6,
    );
    print(&last).max(progress.unprinted)
}

/// Reports a run that failed; returns the exit code.
pub(crate) fn failed(json: bool, file: Option<&PlanFile>, progress: &Progress, failure: &Error) -> u8 {
    error(failure);
    let code = failure.exit_code();
    if json {
        let mut object = file.map(|file| results(file, progress)).unwrap_or_default();
        let mismatch = matches!(failure, Error::Mismatch(_));
        object.insert("verified".to_owned(), json!(mismatch.then_some(false)));
        // What only a run that ends by itself knows.
        object.extend(["device", "threads", "synthetic"].map(|key| (key.to_owned(), Value::Null)));
        object.insert("interrupted".to_owned(), json!(false));
        object.insert("error".to_owned(), json!(failure.to_string()));
        object.insert("exit_code".to_owned(), json!(code));
        print(&format!("{}\n", Value::Object(object)));
    } else {
        print(&verdict(code));
    }
    code
}

/// Reports that a plan was not tuned; returns the exit code.
pub(crate) fn not_tuned(json: bool, failure: &Error) -> u8 {
    error(failure);
    let code = failure.exit_code();
    print(&if json {
        format!("{}\n", json!({"device": null, "error": failure.to_string(), "exit_code": code}))
    } else {
        verdict(code)
    });
    code
}

/// The last line after a failure.
fn verdict(code: u8) -> String {
    format!("memrun: FAILED exit={code}\n")
}

/// Says what was measured; returns the exit code.
pub(crate) fn measured(path: &Path, profile: &Profile) -> u8 {
    let m = &profile.machine;
    profile.notes.iter().for_each(|text| note(text));
    print(&format!(
        "{}: {} kernels on {}; {:.1} GFLOP/s, memory {:.1} GB/s, copies {:.1} GB/s out, {:.1} in, {:.1} both ways\n",
        path.display(),
        profile.ops.len(),
        profile.name,
        m.flops_per_s as f64 / 1e9,
        m.memory_bytes_per_s as f64 / 1e9,
        m.d2h_bytes_per_s as f64 / 1e9,
        m.h2d_bytes_per_s as f64 / 1e9,
        m.duplex_bytes_per_s as f64 / 1e9,
    ))
}

/// Describes a plan; returns the exit code.
pub(crate) fn plan_info(cli: &Cli, file: &PlanFile) -> u8 {
    let plan = file.plan();
    let meta = &plan.meta;
    let body = plan.counts(Section::Body);
    let names = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect::<Vec<_>>();
    let mut fed: BTreeMap<&str, (&str, u64)> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut internal = Vec::new();
    for input in &plan.inputs {
        match &input.feed {
            Feed::Data { source, .. } => {
                let entry = fed.entry(source).or_insert((&input.ty, 0));
                entry.1 += 1;
                if entry.1 == 1 {
                    order.push(source);
                }
            }
            Feed::LearningRate { .. } | Feed::Step => internal.push(input.name.clone()),
        }
    }
    let outputs = names(&mut plan.outputs.iter().map(|o| &o.name));
    if cli.json {
        let mut object = facts(file);
        object.insert("producer".to_owned(), json!(meta.producer));
        object.insert("planner".to_owned(), json!(meta.planner));
        object.insert("profile".to_owned(), json!(meta.profile));
        object.insert("gpu_mem_bytes".to_owned(), json!(meta.budget_bytes));
        object.insert("reserve_bytes".to_owned(), json!(meta.reserve_bytes));
        object.insert("states".to_owned(), json!(plan.states.len()));
        object.insert("inputs".to_owned(), json!(order));
        object.insert("internal_inputs".to_owned(), json!(internal));
        object.insert("outputs".to_owned(), json!(outputs));
        object.insert("tuned".to_owned(), json!(plan.tuning.as_ref().map(tuned)));
        object.insert("commands".to_owned(), json!(body.commands));
        object.insert("launches".to_owned(), json!(body.launches));
        object.insert("copies_out_bytes".to_owned(), json!(body.bytes_out));
        object.insert("copies_in_bytes".to_owned(), json!(body.bytes_in));
        return print(&format!("{}\n", Value::Object(object)));
    }
    let shown = order.iter().filter_map(|name| {
        let (ty, copies) = fed.get(name)?;
        let each = if *copies == 1 { String::new() } else { format!(" for each of {copies} micro-steps") };
        Some(format!("{name} {ty}{each}"))
    });
    let inputs: Vec<String> = shown.collect();
    let rows = [
        ("model", meta.model.clone()),
        ("plan", hex(file.content_hash())),
        ("source", hex(&meta.source_hash)),
        ("made by", format!("{}, planner {}, seed {}", meta.producer, meta.planner, meta.seed)),
        ("budget", Bytes(meta.budget_bytes).to_string()),
        ("device arena", Bytes(meta.dev_bytes).to_string()),
        ("host arena", Bytes(meta.host_bytes).to_string()),
        (
            "step",
            format!("{}, {}", counted(body.commands, "command"), counted(body.launches, "kernel launch")),
        ),
        ("copies out", format!("{}, {}", body.copies_out, Bytes(body.bytes_out))),
        ("copies in", format!("{}, {}", body.copies_in, Bytes(body.bytes_in))),
        ("states", plan.states.len().to_string()),
        ("inputs", inputs.join(", ")),
        ("set by memrun", if internal.is_empty() { "-".into() } else { internal.join(", ") }),
        ("outputs", outputs.join(", ")),
        ("tuned", plan.tuning.as_ref().map_or_else(|| "-".to_owned(), tuned)),
    ];
    print(&rows.map(|(name, value)| format!("{name:<13} {value}\n")).concat())
}

/// What a plan's tuning is of.
fn tuned(tuning: &Tuning) -> String {
    format!("{} for {}, {}", counted(tuning.kernels.len() as u64, "kernel"), tuning.device, tuning.arch)
}

/// A number of things.
pub(crate) fn counted(n: impl Display + PartialEq + From<u8>, thing: &str) -> String {
    let plural = match (n == 1.into(), thing.ends_with("ch")) {
        (true, _) => "",
        (false, true) => "es",
        (false, false) => "s",
    };
    format!("{n} {thing}{plural}")
}

/// What identifies a plan, and its arenas.
fn facts(file: &PlanFile) -> Map<String, Value> {
    let meta = &file.plan().meta;
    let mut object = Map::new();
    object.insert("model".to_owned(), json!(meta.model));
    object.insert("plan_hash".to_owned(), json!(hex(file.content_hash())));
    object.insert("source_hash".to_owned(), json!(hex(&meta.source_hash)));
    object.insert("arena_bytes".to_owned(), json!(meta.dev_bytes));
    object.insert("host_bytes".to_owned(), json!(meta.host_bytes));
    object
}

/// The plan's facts and the steps so far.
fn results(file: &PlanFile, progress: &Progress) -> Map<String, Value> {
    let mut object = facts(file);
    object.insert("gpu_mem_bytes".to_owned(), json!(file.plan().meta.budget_bytes));
    object.insert("steps".to_owned(), json!(progress.step_ns.len()));
    object.insert("first_step_not_finite".to_owned(), json!(progress.not_finite));
    object.insert("first_step".to_owned(), json!(progress.first));
    let losses: Vec<Value> = progress.losses.iter().flatten().map(|loss| number(*loss)).collect();
    object.insert("losses".to_owned(), Value::Array(losses));
    object.insert("step_ns".to_owned(), json!(progress.step_ns));
    object
}

/// The shortest number that reads back as the same `f32`; null where JSON has none.
fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |wide| json!(wide))
}

/// The row of a step, under the header if it is the first.
fn row(step: u64, loss: Option<f32>, ns: u64, first: bool) -> String {
    let header = if first { "    step           loss          ms\n" } else { "" };
    let loss = match loss {
        None => "-".to_owned(),
        Some(x) if x != 0.0 && !(1e-4..1e7).contains(&x.abs()) => format!("{x:e}"),
        Some(x) => x.to_string(),
    };
    format!("{header}{step:>8} {loss:>14} {:>11.3}\n", ns as f64 / 1e6)
}

/// A size as one word, such as `16.00GiB`.
fn compact(bytes: u64) -> String {
    Bytes(bytes).short().replace(' ', "")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes to standard output and returns the exit code: a reader that has left is as good as one that has read.
pub(crate) fn print(text: &str) -> u8 {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            let failure = Error::io("standard output", e);
            error(&failure);
            failure.exit_code()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a step leaves the first out, unless it is the only one, and of two in the middle is their mean.
    #[test]
    fn the_time_of_a_step_is_the_median_without_the_first() {
        let median = |times: &[u64]| {
            let mut progress = Progress::silent();
            times.iter().for_each(|&ns| progress.step(1, None, ns));
            progress.median_ns()
        };
        assert_eq!(median(&[]), 0);
        assert_eq!(median(&[9]), 9);
        assert_eq!(median(&[9, 1]), 1);
        assert_eq!(median(&[9, 4, 2]), 3);
        assert_eq!(median(&[9, 4, 2, 30]), 4);
    }
}
