//! `memc serve` and `memc job`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use memc::{Error, Size, device};
use memc_ir::Bytes;
use memc_passes::Kernels;
use memc_serve::DeviceName;
use memc_serve::{Options, Request, Submission, ask, cpu, serve};
use serde_json::Value;

use crate::args::{Ask, AskJob, JobCommand, ModelOptions, Serve, Submit};
use crate::figures::table;
use crate::output::{Failure, Writing, emit, emit_json, say, stopped};

pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    let mut target = args.target.target();
    if target.device == device::AUTO {
        let (name, line) = device::automatic();
        say(&line);
        target.device = name;
    }
    let profile = device::find(&target.device)?;
    let on = match (args.on, profile.kernels) {
        (Some(on), _) => on,
        (None, Kernels::Gpu) => DeviceName::Cuda(0),
        (None, _) => DeviceName::Cpu,
    };
    let options = Options {
        socket: args.socket.clone(),
        folder: args.folder.clone(),
        budget: bytes(args.gpu_mem, profile.memory_bytes)?,
        target,
        device: on,
        search: args.search.search()?,
        save_every: args.save_every,
        cpu: cpu::Options { threads: args.threads.into(), slow: args.slow, ..cpu::Options::default() },
        adapt: args.adapt.then_some(args.measure_every),
    };
    say(&format!("{} for all jobs", Bytes(options.budget)));
    // The first interrupt ends the round that runs and keeps the states.
    let _writing = Writing::begin();
    Ok(serve(options, Arc::new(read), &stopped, &|line| say(line))?)
}

/// The budget in bytes.
fn bytes(size: Size, memory: Option<u64>) -> Result<u64, Error> {
    match size {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Percent(percent) => {
            let memory = memory.or_else(memc_serve::available).unwrap_or(0);
            Ok((memory as f64 * percent / 100.0) as u64)
        }
        Size::PeakPercent(_) => Err(Error::Usage(
            "--gpu-mem is that of all jobs, which have no peak yet: write 24G or 80%".into(),
        )),
    }
}

/// The importer's options of a job.
fn read(options: &[String]) -> Result<memc_frontend::ImportOptions, Error> {
    let parsed = ModelOptions::try_parse_from(options).map_err(|e| Error::Usage(e.to_string()))?;
    parsed.import.options(None)
}

pub(crate) fn job(command: &JobCommand) -> Result<(), Failure> {
    let about =
        |AskJob { ask, job }: &AskJob, request: fn(String) -> Request| tell(ask, &request(job.clone()));
    match command {
        JobCommand::Submit(args) => tell(&args.ask, &submission(args)?),
        JobCommand::Status(ask) => tell(ask, &Request::Status),
        JobCommand::Stop(args) => about(args, |job| Request::Stop { job }),
        JobCommand::Pause(args) => about(args, |job| Request::Pause { job }),
        JobCommand::Resume(args) => about(args, |job| Request::Resume { job }),
        JobCommand::SetBudget { ask, bytes } => tell(ask, &Request::SetBudget { bytes: *bytes }),
    }
}

/// The job that a command line submits.
fn submission(args: &Submit) -> Result<Request, Error> {
    let ([job], None) = (&args.source.job[..], &args.source.model) else {
        return Err(Error::Usage("submit one job, as --job NAME=FILE".into()));
    };
    let folder = std::env::current_dir().map_err(|e| Error::Io(format!("the current folder: {e}")))?;
    let absolute = |path: &Path| -> PathBuf { folder.join(path) };
    Ok(Request::Submit(Box::new(Submission {
        job: job.name.clone(),
        model: absolute(&job.path),
        options: with_files(&args.options, &absolute),
        swap_limit: job.swap_limit,
        steps_in_round: job.steps,
        inputs: args.inputs.clone(),
        synthetic: args.synthetic,
        lr: args.lr.as_ref().map(|rate| match rate.strip_prefix('@') {
            Some(file) => format!("@{}", absolute(Path::new(file)).display()),
            None => rate.clone(),
        }),
        steps: args.steps,
        save: args.save.as_deref().map(absolute),
        folder,
    })))
}

/// The options of a model, with the file of names that `--parameters` may have under its whole path.
fn with_files(options: &[String], absolute: &dyn Fn(&Path) -> PathBuf) -> Vec<String> {
    let whole = |text: &str| match Path::new(text) {
        path if path.is_file() => absolute(path).display().to_string(),
        _ => text.to_owned(),
    };
    let mut before = "";
    let mut out = Vec::new();
    for word in options {
        out.push(match word.strip_prefix("--parameters=") {
            Some(file) => format!("--parameters={}", whole(file)),
            None if before == "--parameters" => whole(word),
            None => word.clone(),
        });
        before = word;
    }
    out
}

/// Sends a request and prints the state of all jobs.
fn tell(to: &Ask, request: &Request) -> Result<(), Failure> {
    let answer = ask(&to.socket, request)?;
    if to.json {
        return Ok(emit_json(&answer)?);
    }
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    };
    let row = |job: &Value| -> Vec<String> {
        let steps = format!("{}/{}", job["step"], job["steps"]);
        let ms = format!("{:.3}", job["round_ms"].as_f64().unwrap_or(0.0));
        let held = |field: &str| Bytes(job[field].as_u64().unwrap_or(0)).short();
        let held = format!("{} + {}", held("device_state_bytes"), held("host_state_bytes"));
        vec![text(&job["job"]), text(&job["status"]), steps, text(&job["loss"]), ms, held, text(&job["why"])]
    };
    let rows: Vec<Vec<String>> = answer["jobs"].as_array().into_iter().flatten().map(row).collect();
    let size = |field: &str| Bytes(answer[field].as_u64().unwrap_or(0)).short();
    let heads = ["job", "status", "steps", "loss", "round, ms", "states, device + host", ""];
    let all = format!("arena {} of {}\n", size("arena_bytes"), size("gpu_mem_bytes"));
    Ok(emit(&format!("{}{all}{}", table(&heads, &rows), measured(&answer["measured"])))?)
}

/// The line of what was measured in service.
fn measured(seen: &Value) -> String {
    let figure = |field: &str| seen[field].as_f64().unwrap_or(0.0);
    match seen.is_null() {
        true => String::new(),
        false => format!(
            "measured in {} rounds: kernels {:.1} % off, {} waited {:.3} ms for copies; planned again {}\n",
            figure("rounds"),
            figure("departure") * 100.0,
            figure("late_launches"),
            figure("late_ms"),
            memc_ir::counted(figure("plans") as u64, "time"),
        ),
    }
}
