//! A whole run: open everything, step, compare, save.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use memc_gpu::LibraryOptions;
use memc_ir::TensorType;
use memc_plan::{Plan, PlanFile};
use memc_support::Replace;

use crate::evaluation::{Evaluation, EvaluationOptions, Sums};
use crate::jobs::{self, Job};
use crate::observed::MeasureOptions;
use crate::profile::{self, Op};
use crate::saves;
use crate::shadow::Shadow;
use crate::steps::{Steps, Tracing};
use crate::{
    Carried, Device, DeviceName, Error, FeedOptions, Feeder, Initial, InputSource, Pad, Program, Programs,
    Rate, RefusedCall, Session, Stage, StateFile, StateWriter,
    cpu::{self, Cpu},
    dynamic::{self, Decided, Dynamic, DynamicOptions},
    gpu, memory, output,
    state::{list, state_files},
    verify,
    watch::Watch,
};

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Steps to run, at least 1, or of a plan of several jobs, rounds; `None` for one, or as many as `epochs`
    /// have.
    pub steps: Option<u64>,
    /// Passes over the data, at most `steps` steps; `None` for a run whose data is read once.
    pub epochs: Option<Epochs>,
    /// Whether data that ends is read again.
    pub repeats: bool,
    /// Seed of the order in which each pass reads the data; `None` for the order of the files.
    pub shuffle: Option<u64>,
    /// Files by the name under which the model takes the data.
    pub inputs: Vec<(String, InputSource)>,
    /// Elements that fill what data leaves of a bucket's tensor, by the input's name.
    pub pads: Vec<(String, Pad)>,
    /// Whether inputs without data get synthetic data; otherwise they are refused.
    pub synthetic: bool,
    /// Learning rate.
    pub lr: Rate,
    /// Learning rates of single jobs of a plan of several, by name.
    pub job_lr: Vec<(String, Rate)>,
    /// Seed of synthetic data.
    pub seed: u64,
    /// File for the states at the end. In a plan of several jobs `{job}` in its name stands for the name of
    /// each job, whose states then are in a file of its own.
    pub save: Option<PathBuf>,
    /// Steps between saves; `None` for one save at the end.
    pub save_every: Option<u64>,
    /// Number of saves in between that are kept, each in a file of its own; `None` for one file that each
    /// replaces.
    pub keep: Option<u64>,
    /// Evaluation between the steps.
    pub evaluation: Option<EvaluationOptions>,
    /// Whether a loss that is no finite number ends the run.
    pub stop_on_nan: bool,
    /// State to go on from, named as `save` is.
    pub resume: Option<PathBuf>,
    /// File that sets some of the states.
    pub init: Option<PathBuf>,
    /// Files to write outputs of the last step to, by name.
    pub outputs: Vec<(String, PathBuf)>,
    /// Files to write an output of all steps to, by name.
    pub collect: Vec<(String, PathBuf)>,
    /// Compare every output and state with those of the unplanned run.
    pub verify: bool,
    /// Most bytes of host memory that host arenas may take, the unplanned run's included; `None`: as many as
    /// there are.
    pub host_mem: Option<u64>,
    /// File for the last step's timeline.
    pub trace: Option<PathBuf>,
    /// Measuring of kernels in service.
    pub measure: Option<MeasureOptions>,
    /// Run the unplanned step with decisions while it runs, in place of the plan.
    pub dynamic: Option<DynamicOptions>,
    /// Device to run on.
    pub device: DeviceName,
    /// Issue every command of every step, on a device that would capture and replay them.
    pub no_graph: bool,
    /// Options of the CPU device; `check_memory` is for every device.
    pub cpu: cpu::Options,
    /// Permissions of a GPU's libraries.
    pub libraries: LibraryOptions,
}

/// Passes over the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// The job whose passes count, in a plan of several.
    pub job: Option<String>,
    /// Their number, those of the resumed run included.
    pub passes: u64,
}

impl From<u64> for Epochs {
    fn from(passes: u64) -> Epochs {
        Epochs { job: None, passes }
    }
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
    /// Of a plan that evaluates and is not for inference, the mean over the steps of each output that is one
    /// float.
    pub means: Vec<(String, f32)>,
    /// Calls that a GPU's libraries refused, so that generated kernels ran instead.
    pub refused: Vec<RefusedCall>,
    /// Kernels with the times that were measured in service.
    pub kernels: Vec<Op>,
    /// Decisions of the last step, where they were made while it ran.
    pub decided: Option<Decided>,
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
    let report = match options.dynamic {
        Some(own) => whole_run(&Dynamic::new(own, file.plan(), options)?, file, options, None, watch)?,
        None => on_device(options, &mut |device| run_on(device, file, options, watch))?,
    };
    if let Some(path) = options.measure.as_ref().and_then(|measure| measure.profile.as_deref())
        && !report.kernels.is_empty()
    {
        watch.stage(Stage::After("measuring the machine"));
        let profile = profile::of_run(options.cpu.threads, report.kernels.clone())?;
        let text = format!("{:#}\n", profile.to_json());
        Replace::whole(path, text.as_bytes()).map_err(|error| Error::io(path, error))?;
    }
    Ok(report)
}

/// Calls `run` with the device that the options name.
fn on_device(
    options: &RunOptions,
    run: &mut dyn FnMut(&dyn Device) -> Result<Report, Error>,
) -> Result<Report, Error> {
    require_gpu(options.device, options.libraries, options.no_graph)?;
    // There small kernels share a launch, and a traced step has the host's time.
    if options.device != DeviceName::Cpu && options.measure.is_some() {
        let text = "--measure is for the CPU device; on a GPU, memrun profile measures what memc plans with";
        return Err(Error::Usage(text.to_owned()));
    }
    match options.device {
        DeviceName::Cpu => run(&Cpu::new(options.cpu)?),
        DeviceName::Cuda(ordinal) => {
            let device = gpu::cuda(ordinal, options.libraries, options.cpu.check_memory);
            let granted = options.host_mem.map(|most| if options.verify { 0 } else { most });
            run(&device.without_graph(options.no_graph).with_host_memory(granted))
        }
    }
}

/// [`run`] on a device that the caller has made; the device that the options name is ignored, and no profile
/// is written.
///
/// # Errors
/// Those of [`run`], and [`Error::Usage`] for decisions while it runs.
pub fn run_on(
    device: &dyn Device,
    file: &PlanFile,
    options: &RunOptions,
    watch: &mut dyn Watch,
) -> Result<Report, Error> {
    dynamic::refuse(options.dynamic)?;
    whole_run(device, file, options, None, watch)
}

/// [`run`] that goes on from the states that another run has left, and leaves its own: those of the last
/// whole step, or where a step fails, those that this run began with.
///
/// # Errors
/// Those of [`run`], and [`Error::Usage`] for options that read the states from elsewhere.
pub fn run_carrying(
    file: &PlanFile,
    options: &RunOptions,
    carried: &mut Carried,
    watch: &mut dyn Watch,
) -> Result<Report, Error> {
    let writes_profile = options.measure.as_ref().is_some_and(|measure| measure.profile.is_some());
    let reads_states = options.resume.is_some() || options.init.is_some();
    if reads_states || options.verify || options.evaluation.is_some() || writes_profile {
        let text = "a run that carries states on takes no --resume, --init, --verify, --eval and --measure";
        return Err(Error::Usage(text.to_owned()));
    }
    dynamic::refuse(options.dynamic)?;
    carried.check(file.plan())?;
    on_device(options, &mut |device| whole_run(device, file, options, Some(carried), watch))
}

fn whole_run(
    device: &dyn Device,
    file: &PlanFile,
    options: &RunOptions,
    carried: Option<&mut Carried>,
    watch: &mut dyn Watch,
) -> Result<Report, Error> {
    let plan = &*dynamic::plan(file.plan(), options.dynamic)?;
    watch.stage(Stage::Before("proving the schedule"));
    let programs = Programs::new(plan)?;
    let program = programs.first()?.clone();
    memory::limit(program.host_bytes, options.host_mem)?;
    watch.stage(Stage::Before("reading states and inputs"));
    let initial = initial(file, options, watch)?;
    let feed = feed_options(options, &initial, carried.as_deref());
    let mut feeder = Feeder::new(plan, &programs, &feed)?;
    let most = steps_to_run(&feeder, options, plan.meta.is_evaluation(), initial.step())?;
    check_options(&feeder, options, (&programs, most))?;
    let pass = feeder.pass(0).filter(|_| options.epochs.is_some()).map(|(steps, _)| steps);
    let (of, save, most_host) = ((plan, &options.pads[..]), options.save.as_deref(), options.host_mem);
    let evaluation = options.evaluation.as_ref();
    let evaluation = evaluation.map(|e| Evaluation::open(device, e, of, pass, save, most_host));
    let evaluation = evaluation.transpose()?;
    let outputs = output::find(plan, &options.outputs, "--output")?;
    let collected = output::find(plan, &options.collect, "--collect")?;
    output::same_types(&programs, plan, &collected)?;
    tell_about_data(&feeder, evaluation.as_ref(), options, watch)?;
    let synthetic = feeder.synthetic().to_vec();
    saves::check_names(options, feeder.jobs(), initial.step(), most)?;
    try_files(plan, feeder.jobs(), options)?;
    let mut again = options.verify.then(|| Feeder::new(plan, &programs, &feed)).transpose()?;
    watch.stage(Stage::Before("reserving memory, preparing kernels"));
    let mut session = Session::open(device, plan, programs.clone(), &initial, &mut feeder)?;
    watch.stage(Stage::Before("setting initial values"));
    load(&mut session, plan, carried.as_deref(), options)?;
    session.notes().iter().for_each(|note| watch.note(note));
    if again.is_some() {
        watch.stage(Stage::Before("preparing the unplanned run"));
    }
    let threads = options.cpu.threads;
    let shadow =
        again.as_mut().map(|feeder| Shadow::start(device, file, &initial, feeder, threads, options.host_mem));
    let mut shadow = shadow.transpose()?;
    watch.stage(Stage::Steps);
    watch.steps(most);
    let trace = Tracing { file, device: device.name(), path: options.trace.as_deref() };
    let mut run = Steps::new(options, &program, trace, most, collected, evaluation)?;
    let result = run.all(&mut session, shadow.as_mut(), watch);
    let collections = run.finish_collections();
    let means = run.sums.as_ref().map_or_else(Vec::new, Sums::means);
    let steps = match result {
        Ok(steps) => steps,
        Err(stop) => {
            let (error, is_whole) = stop.error();
            tell_other(collections, &error, watch);
            run.tell_what_is_left(watch, !is_whole);
            if is_whole {
                rescue(session, plan, options, (run.done, carried), watch);
            }
            return Err(error);
        }
    };

    watch.stage(Stage::After("storing outputs and states"));
    tell_what_is_missing(options, steps, most, watch);
    let outputs = last_outputs(&session, outputs);
    let save = options.save.as_deref().filter(|_| steps > 0 || most == 0);
    let (done, refused, decided) = (session.steps_done(), session.refused().to_vec(), session.decided());
    let kernels = run.observed.as_ref().map_or_else(Vec::new, |observed| observed.ops(&program));
    finish(session, shadow.map(|shadow| (shadow, &*program)), plan, save, carried)?;
    save.iter().for_each(|path| watch.saved(path, done));
    collections?;
    if steps > 0 {
        outputs.iter().try_for_each(|(path, ty, bytes)| output::write(path, ty, bytes))?;
    }
    Ok(Report {
        device: device.name(),
        threads: device.threads(),
        steps,
        synthetic,
        verified: options.verify,
        interrupted: steps < most,
        means,
        refused,
        kernels,
        decided: decided.filter(|_| steps > 0),
    })
}

/// Brings the states to the device: those that another run has left, or the initial ones. Takes what the
/// tracing of steps needs.
fn load(
    session: &mut Session<'_>,
    plan: &Plan,
    carried: Option<&Carried>,
    options: &RunOptions,
) -> Result<(), Error> {
    match carried {
        Some(carried) => session.reload(&mut |state, bytes| carried.write(plan, state, bytes))?,
        None => session.load()?,
    }
    let traces = options.trace.is_some() || options.measure.is_some();
    if traces { session.prepare_trace() } else { Ok(()) }
}

/// Refuses options that do not go with the plan's data, or with the number of steps.
fn check_options(
    feeder: &Feeder,
    options: &RunOptions,
    (programs, steps): (&Programs, u64),
) -> Result<(), Error> {
    if options.measure.is_some() && programs.len() > 1 {
        let text = "--measure measures one plan, and this one has buckets for several sizes; leave it out";
        return Err(Error::Usage(text.to_owned()));
    }
    if options.measure.as_ref().is_some_and(|measure| measure.profile.is_some()) && steps < 2 {
        let text = "--measure measures from the second step on, and the run has one; give --steps";
        return Err(Error::Usage(text.to_owned()));
    }
    if options.measure.is_some() && options.verify {
        let text = "--measure beside --verify measures what both runs take together; leave one of them out";
        return Err(Error::Usage(text.to_owned()));
    }
    if feeder.is_stream() && options.verify {
        return Err(Error::Usage("--verify reads the data twice, which a pipe cannot be".to_owned()));
    }
    Ok(())
}

/// Note on the error of the collected outputs, where it is not the one that ends the run.
fn tell_other(collections: Result<(), Error>, error: &Error, watch: &mut dyn Watch) {
    if let Err(other) = collections
        && other.to_string() != error.to_string()
    {
        watch.note(&other.to_string());
    }
}

/// Notes on files that an interrupted run of `steps` instead of `most` steps does not write.
fn tell_what_is_missing(options: &RunOptions, steps: u64, most: u64, watch: &mut dyn Watch) {
    if steps == 0 && most > 0 && !(options.outputs.is_empty() && options.collect.is_empty()) {
        watch.note("the run was interrupted before its first step: no output was written");
    }
    if options.trace.is_some() && steps < most {
        watch.note("the run was interrupted before the step whose trace was asked for");
    }
    if options.measure.as_ref().is_some_and(|measure| measure.profile.is_some()) && steps < 2 && most >= 2 {
        watch.note("the run was interrupted before a step was measured: no profile was written");
    }
}

/// Outputs of the last step, each with its file.
fn last_outputs<'p>(
    session: &Session<'_>,
    wanted: Vec<(usize, &'p Path)>,
) -> Vec<(&'p Path, TensorType, Vec<u8>)> {
    let output = |(index, path): (usize, &'p Path)| {
        let ty = session.program()?.types.outputs.get(index)?.clone();
        Some((path, ty, session.output(index).to_vec()))
    };
    wanted.into_iter().filter_map(output).collect()
}

/// The data that the options ask for.
fn feed_options(options: &RunOptions, initial: &Initial<'_>, carried: Option<&Carried>) -> FeedOptions {
    let unknown = if options.epochs.is_some() { 0 } else { 1 };
    FeedOptions {
        inputs: options.inputs.clone(),
        pads: options.pads.clone(),
        lr: options.lr.clone(),
        job_lr: options.job_lr.clone(),
        synthetic: options.synthetic,
        seed: options.seed,
        shuffle: options.shuffle,
        again: options.epochs.is_some() || options.repeats,
        done: initial.step(),
        before: carried.map_or_else(|| initial.before().to_vec(), Carried::before),
        steps: options.steps.unwrap_or(unknown),
    }
}

/// Notes on made-up data, and on data that passes leave out.
fn tell_about_data(
    feeder: &Feeder,
    evaluation: Option<&Evaluation>,
    options: &RunOptions,
    watch: &mut dyn Watch,
) -> Result<(), Error> {
    if let Some(left) = evaluation.map(Evaluation::left_over).transpose()?.flatten() {
        watch.note(&left);
    }
    if !feeder.synthetic().is_empty() {
        let names: Vec<&str> = feeder.synthetic().iter().map(String::as_str).collect();
        watch.note(&format!("synthetic data for {}", list(&names)));
    }
    for job in 0..feeder.jobs().len() {
        if let Some((_, Some(left))) = feeder.pass(job).filter(|_| options.epochs.is_some()) {
            watch.note(&left);
        }
    }
    Ok(())
}

/// Steps of this run: those that are asked for, or of an evaluation as many as the data has.
fn steps_to_run(feeder: &Feeder, options: &RunOptions, is_evaluation: bool, done: u64) -> Result<u64, Error> {
    let Some(Epochs { job, passes }) = &options.epochs else {
        let pass = feeder.pass(0).filter(|_| is_evaluation && !feeder.is_stream());
        return Ok(options.steps.or(pass.map(|(steps, _)| steps)).unwrap_or(1));
    };
    let at = match (job, feeder.jobs()) {
        (None, [_]) => 0,
        (None, jobs) => {
            let first = jobs.first().map_or("", |job| &job.name);
            return Err(Error::Usage(format!(
                "--epochs: the plan is of several jobs; say whose passes count, as --epochs {first}={passes}"
            )));
        }
        (Some(name), jobs) => jobs::find(jobs, name, &format!("--epochs {name}="))?,
    };
    let Some((pass, _)) = feeder.pass(at).filter(|(steps, _)| *steps > 0) else {
        return Err(Error::Usage(
            "--epochs counts passes over data, but every step reads the same; give arrays with a leading \
             axis of steps, or of samples, or --steps"
                .to_owned(),
        ));
    };
    let Some(job) = feeder.jobs().get(at) else { return Ok(0) };
    let left = job.rounds(pass.saturating_mul(*passes)).saturating_sub(done);
    if left == 0 {
        let done = job.done(done);
        return Err(Error::Usage(format!(
            "--epochs {passes}: the resumed run has done {done} steps, and {pass} are a pass over the data; \
             give more epochs"
        )));
    }
    let steps = options.steps.map_or(left, |steps| steps.min(left));
    feeder.check_rates(done.saturating_add(steps))?;
    Ok(steps)
}

/// Saves the states of the last whole step of a run that failed before the next one began.
fn rescue(
    session: Session<'_>,
    plan: &Plan,
    options: &RunOptions,
    (steps, carried): (u64, Option<&mut Carried>),
    watch: &mut dyn Watch,
) {
    let done = session.steps_done();
    let Some(path) = options.save.as_deref().filter(|_| steps > 0) else {
        if let Some(Err(error)) = carried.map(|carried| finish(session, None, plan, None, Some(carried))) {
            watch.note(&format!("the state after step {done} could not be kept: {error}"));
        }
        return;
    };
    let shown = path.display();
    match finish(session, None, plan, Some(path), carried) {
        Ok(()) => {
            watch.saved(path, done);
            watch.note(&format!(
                "the state after step {done} is saved in {shown}, and --resume {shown} goes on from there"
            ));
        }
        Err(error) => watch.note(&format!("the state after step {done} could not be saved: {error}")),
    }
}

/// The initial states, from the files that the options name and from the plan.
fn initial<'a>(
    file: &'a PlanFile,
    options: &RunOptions,
    watch: &mut dyn Watch,
) -> Result<Initial<'a>, Error> {
    let plan = file.plan();
    let jobs = jobs::of(plan);
    let open = |path: &Option<PathBuf>| -> Result<Vec<(StateFile, PathBuf)>, Error> {
        let files = path.iter().flat_map(|path| state_files(path, &jobs));
        let open = |(job, path): (Option<&Job>, PathBuf)| {
            let state = StateFile::open(&path).map_err(|error| match error {
                Error::Io { path, source } if source.kind() == ErrorKind::NotFound => {
                    saves::missing(path, source)
                }
                error => error,
            })?;
            Ok((
                match job {
                    Some(job) => state.of_job(&job.name),
                    None => state,
                },
                path,
            ))
        };
        files.map(open).collect()
    };
    let files = [open(&options.resume)?, open(&options.init)?];
    for (state, path) in files.iter().flatten() {
        // An evaluation reads states of the plan that trained them.
        if state.is_of_another_source(plan) && !plan.meta.is_evaluation() {
            watch.note(&format!("{} was saved by a run of another model or batch size", path.display()));
        }
    }
    let [resume, overrides] = files.map(|files| files.into_iter().map(|(state, _)| state).collect());
    Initial::new(file, resume, overrides)
}

/// Fails early where a folder takes no file: that is better known now than after the last step.
fn try_files(plan: &Plan, jobs: &[Job], options: &RunOptions) -> Result<(), Error> {
    if let Some(path) = &options.save {
        drop(StateWriter::of_jobs(path, plan, jobs, 0)?);
    }
    let outputs = options.outputs.iter().chain(&options.collect).map(|(_, path)| path);
    let profile = options.measure.iter().filter_map(|measure| measure.profile.as_ref());
    for path in outputs.chain(&options.trace).chain(profile) {
        drop(Replace::begin(path).map_err(|error| Error::io(path, error))?);
    }
    Ok(())
}

/// Ends both runs, compares their states, and saves those of the planned one.
fn finish(
    session: Session<'_>,
    shadow: Option<(Shadow<'_>, &Program)>,
    plan: &Plan,
    save: Option<&Path>,
    carried: Option<&mut Carried>,
) -> Result<(), Error> {
    let (done, jobs) = (session.steps_done(), session.feeder().jobs().to_vec());
    let mut writer = save.map(|path| StateWriter::of_jobs(path, plan, &jobs, done)).transpose();
    // States that cannot be written are carried on all the same, all of them or none.
    let mut left = carried.as_ref().map(|_| Carried::default());
    let (mut shadow, program) = shadow.unzip();
    shadow.as_mut().map_or(Ok(()), Shadow::end)?;
    let mut compared = vec![false; plan.states.len()];
    session.finish(&mut |state, bytes| {
        if let (Some(shadow), Some(program)) = (&shadow, program)
            && let Some(entry) = plan.states.get(state)
            && let Some(ty) = program.types.states.get(state)
        {
            verify::same("state", &entry.name, "at the end", ty, bytes, shadow.state(state))?;
            compared.iter_mut().skip(state).take(1).for_each(|seen| *seen = true);
        }
        left.iter_mut().for_each(|left| left.take(plan, state, bytes));
        if let Ok(Some(open)) = &mut writer
            && let Err(error) = open.put(state, bytes)
        {
            writer = Err(error);
        }
        Ok(())
    })?;
    if let (Some(carried), Some(mut left)) = (carried, left) {
        left.stepped(&jobs, done);
        carried.replace(left);
    }
    if let Some((state, _)) = plan.states.iter().zip(&compared).find(|(s, seen)| s.is_variable() && !**seen)
        && shadow.is_some()
    {
        return Err(Error::Plan(format!("the plan's epilogue does not store `{}`", state.name)));
    }
    writer?.map_or(Ok(()), |writer| writer.finish(plan).map(drop))
}
