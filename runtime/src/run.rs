//! A whole run: open everything, step, compare, save.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use memc_gpu::LibraryOptions;
use memc_plan::{Plan, PlanFile, Span, Trace};
use memc_support::Replace;

use crate::shadow::Shadow;
use crate::{
    Device, Error, FeedOptions, Feeder, Initial, Program, Session, Stage, StateFile, StateWriter,
    clock::{elapsed_ns, now},
    cpu::{self, Cpu},
    gpu, memory, output,
    state::{is_variable, list},
    verify,
};

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Steps to run, at least 1.
    pub steps: u64,
    /// Files by the name under which the model takes the data.
    pub inputs: Vec<(String, PathBuf)>,
    /// Learning rate; `None` for the plan's default.
    pub lr: Option<f32>,
    /// Seed of synthetic data.
    pub seed: u64,
    /// File for the states at the end.
    pub save: Option<PathBuf>,
    /// State to go on from.
    pub resume: Option<PathBuf>,
    /// File that sets some of the states.
    pub init: Option<PathBuf>,
    /// Files to write outputs of the last step to, by name.
    pub outputs: Vec<(String, PathBuf)>,
    /// Compare every output and state with those of the unplanned run.
    pub verify: bool,
    /// Most bytes of host memory that host arenas may take, the unplanned run's included; `None`: as many as
    /// there are.
    pub host_mem: Option<u64>,
    /// File for the last step's timeline.
    pub trace: Option<PathBuf>,
    /// Device to run on.
    pub device: DeviceName,
    /// Issue every command of every step, on a device that would capture and replay them.
    pub no_graph: bool,
    /// Options of the CPU device; `check_memory` is for every device.
    pub cpu: cpu::Options,
    /// Permissions of a GPU's libraries.
    pub libraries: LibraryOptions,
}

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// Arenas in ordinary memory, streams as threads.
    #[default]
    Cpu,
    /// The NVIDIA GPU with this number.
    Cuda(usize),
}

/// Follows a run.
pub trait Watch {
    /// A step, counted from 1 over resumed runs, is done after `ns` nanoseconds with this mean loss.
    fn step(&mut self, step: u64, loss: Option<f32>, ns: u64);
    /// The run comes to a stage.
    fn stage(&mut self, _stage: Stage) {}
    /// Something the user should know.
    fn note(&mut self, text: &str);
    /// Whether to end the run before the next step.
    fn should_stop(&self) -> bool;
}

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the device.
    pub device: &'static str,
    /// Threads that kernels ran on.
    pub threads: usize,
    /// Steps done in this run.
    pub steps: u64,
    /// Inputs that got synthetic data.
    pub synthetic: Vec<String>,
    /// Whether the planned run was compared with the unplanned one, and equal.
    pub verified: bool,
    /// Whether [`Watch::should_stop`] ended the run early.
    pub interrupted: bool,
}

/// Refuses what is for a GPU on the CPU device.
pub(crate) fn require_gpu(
    device: DeviceName,
    libraries: LibraryOptions,
    no_graph: bool,
) -> Result<(), Error> {
    if device != DeviceName::Cpu || (libraries == LibraryOptions::default() && !no_graph) {
        return Ok(());
    }
    Err(Error::Usage(
        "--tf32, --bf16, --allow-nondeterminism, --no-libraries and --no-graph are for a GPU; add --device \
         cuda, or leave them out"
            .to_owned(),
    ))
}

/// Runs a plan. Everything that can fail without running is tried before the first step.
///
/// # Errors
/// Any [`Error`]. A file to save to is then what it was.
pub fn run(file: &PlanFile, options: &RunOptions, watch: &mut dyn Watch) -> Result<Report, Error> {
    require_gpu(options.device, options.libraries, options.no_graph)?;
    match options.device {
        DeviceName::Cpu => run_on(&Cpu::new(options.cpu)?, file, options, watch),
        DeviceName::Cuda(ordinal) => {
            let device = gpu::cuda(ordinal, options.libraries, options.cpu.check_memory);
            let device = device.without_graph(options.no_graph);
            run_on(&device, file, options, watch)
        }
    }
}

/// [`run`] on a device that the caller has made; the device that the options name is ignored.
///
/// # Errors
/// Those of [`run`].
pub fn run_on(
    device: &dyn Device,
    file: &PlanFile,
    options: &RunOptions,
    watch: &mut dyn Watch,
) -> Result<Report, Error> {
    let plan = file.plan();
    watch.stage(Stage::Before("proving the schedule"));
    let program = Arc::new(Program::new(plan)?);
    memory::limit(program.host_bytes, options.host_mem)?;
    watch.stage(Stage::Before("reading states and inputs"));
    let initial = initial(file, options, watch)?;
    let feed = FeedOptions {
        inputs: options.inputs.clone(),
        lr: options.lr,
        seed: options.seed,
        done: initial.step(),
        steps: options.steps,
    };
    let mut feeder = Feeder::new(plan, &program, &feed)?;
    let outputs = output::find(plan, &options.outputs)?;
    let synthetic = feeder.synthetic().to_vec();
    if !synthetic.is_empty() {
        let names: Vec<&str> = synthetic.iter().map(String::as_str).collect();
        watch.note(&format!("synthetic data for {}; real data: --input NAME=@FILE.npy", list(&names)));
    }
    try_files(plan, options)?;
    let mut again = options.verify.then(|| Feeder::new(plan, &program, &feed)).transpose()?;
    watch.stage(Stage::Before("reserving memory, preparing kernels"));
    let mut session = Session::open(device, plan, program.clone(), &initial, &mut feeder)?;
    watch.stage(Stage::Before("setting initial values"));
    session.load()?;
    session.notes().iter().for_each(|note| watch.note(note));
    if options.trace.is_some() {
        session.prepare_trace()?;
    }
    if again.is_some() {
        watch.stage(Stage::Before("preparing the unplanned run"));
    }
    let threads = options.cpu.threads;
    let shadow =
        again.as_mut().map(|feeder| Shadow::start(device, file, &initial, feeder, threads, options.host_mem));
    let mut shadow = shadow.transpose()?;
    watch.stage(Stage::Steps);
    let trace = Tracing { file, device: device.name(), path: options.trace.as_deref() };
    let steps = run_steps(&mut session, shadow.as_mut(), &program, trace, options.steps, watch)?;

    watch.stage(Stage::After("storing outputs and states"));
    if !outputs.is_empty() && steps == 0 {
        watch.note("the run was interrupted before its first step: no output was written");
    }
    if options.trace.is_some() && steps < options.steps {
        watch.note("the run was interrupted before the step whose trace was asked for");
    }
    for (index, path) in outputs {
        if let Some(ty) = program.types.outputs.get(index)
            && steps > 0
        {
            output::write(path, ty, session.output(index))?;
        }
    }
    finish(session, shadow, plan, &program, options.save.as_deref())?;
    Ok(Report {
        device: device.name(),
        threads: device.threads(),
        steps,
        synthetic,
        verified: options.verify,
        interrupted: steps < options.steps,
    })
}

/// The initial states, from the files that the options name and from the plan.
fn initial<'a>(
    file: &'a PlanFile,
    options: &RunOptions,
    watch: &mut dyn Watch,
) -> Result<Initial<'a>, Error> {
    let plan = file.plan();
    let open = |path: &Option<PathBuf>| {
        let Some(path) = path else { return Ok(None) };
        let state = StateFile::open(path, plan)?;
        Ok::<_, Error>(Some((state, path.clone())))
    };
    let files = [open(&options.resume)?, open(&options.init)?];
    for (state, path) in files.iter().flatten() {
        if state.is_of_another_source(plan) {
            watch.note(&format!("{} was saved by a run of another model or batch size", path.display()));
        }
    }
    let [resume, overrides] = files.map(|file| file.map(|(state, _)| state));
    Initial::new(file, resume, overrides)
}

/// Fails early where a folder takes no file: that is better known now than after the last step.
fn try_files(plan: &Plan, options: &RunOptions) -> Result<(), Error> {
    if let Some(path) = &options.save {
        drop(StateWriter::create(path, plan, 0)?);
    }
    if let Some(path) = &options.trace {
        drop(Replace::begin(path).map_err(|error| Error::io(path, error))?);
    }
    Ok(())
}

/// The timeline of the last step, and its file, if one is asked for.
#[derive(Clone, Copy)]
struct Tracing<'a> {
    file: &'a PlanFile,
    device: &'a str,
    path: Option<&'a Path>,
}

/// Runs up to `most` steps, each compared with the shadow run; returns their number.
fn run_steps(
    session: &mut Session<'_>,
    mut shadow: Option<&mut Shadow<'_>>,
    program: &Program,
    trace: Tracing<'_>,
    most: u64,
    watch: &mut dyn Watch,
) -> Result<u64, Error> {
    let plan = trace.file.plan();
    let (mut steps, mut noted) = (0, session.notes().len());
    while steps < most && !watch.should_stop() {
        let start = now();
        let traced = trace.path.filter(|_| steps + 1 == most);
        let spans = match traced {
            None => session.step().map(|()| Vec::new())?,
            Some(_) => session.traced_step()?,
        };
        let ns = elapsed_ns(start);
        if let Some(path) = traced {
            write_trace(path, trace.file, trace.device, &spans)?;
        }
        steps += 1;
        if let Some(shadow) = &mut shadow {
            shadow.step()?;
            let when = format!("after step {}", session.steps_done());
            for (i, (output, ty)) in plan.outputs.iter().zip(&program.types.outputs).enumerate() {
                verify::same("output", &output.name, &when, ty, session.output(i), shadow.output(i))?;
            }
        }
        session.notes().iter().skip(noted).for_each(|note| watch.note(note));
        noted = session.notes().len();
        watch.step(session.steps_done(), session.loss(), ns);
    }
    Ok(steps)
}

/// Ends both runs, compares their states, and saves those of the planned one.
fn finish(
    session: Session<'_>,
    mut shadow: Option<Shadow<'_>>,
    plan: &Plan,
    program: &Program,
    save: Option<&Path>,
) -> Result<(), Error> {
    let done = session.steps_done();
    let mut writer = save.map(|path| StateWriter::create(path, plan, done)).transpose()?;
    shadow.as_mut().map_or(Ok(()), Shadow::end)?;
    let mut compared = vec![false; plan.states.len()];
    session.finish(&mut |state, bytes| {
        if let Some(shadow) = &shadow
            && let Some(entry) = plan.states.get(state)
            && let Some(ty) = program.types.states.get(state)
        {
            verify::same("state", &entry.name, "at the end", ty, bytes, shadow.state(state))?;
            compared.iter_mut().skip(state).take(1).for_each(|seen| *seen = true);
        }
        writer.as_mut().map_or(Ok(()), |writer| writer.put(state, bytes))
    })?;
    if let Some((state, _)) = plan.states.iter().zip(&compared).find(|(s, seen)| is_variable(s) && !**seen)
        && shadow.is_some()
    {
        return Err(Error::Plan(format!("the plan's epilogue does not store `{}`", state.name)));
    }
    writer.map_or(Ok(()), |writer| writer.finish(plan))
}

/// Writes a step's timeline.
fn write_trace(path: &Path, file: &PlanFile, device: &str, spans: &[Span]) -> Result<(), Error> {
    let step_ns = spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
    let origin = format!("measured on {device}");
    let trace = Trace { plan: file.plan(), spans, step_ns, origin: &origin };
    let failed = |error| Error::io(path, error);
    let mut to = Replace::begin(path).map_err(failed)?;
    to.file().write_all(trace.json().as_bytes()).map_err(failed)?;
    to.finish().map_err(failed)
}
