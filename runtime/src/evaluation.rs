//! Evaluations between the steps of a run.
//!
//! An evaluation is a plan of its own, made of the same model. It takes the place of the training plan on
//! the device: the states go to a file, the training plan's arenas are given back, the evaluation passes
//! once over its data, and the states come back. So both plans keep the budget, and no bit of the training
//! changes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use memc_ir::{Bytes, TensorType, attr::Scalar};
use memc_plan::{Plan, PlanFile};

use crate::session::States;
use crate::state::{list, variables};
use crate::{Device, Error, FeedOptions, Feeder, Initial, InputSource, Pad, Programs, Session, memory};

/// An evaluation that a run makes between its steps.
#[derive(Clone, Debug)]
pub struct EvaluationOptions {
    /// Plan that was compiled with `--evaluation`.
    pub plan: PathBuf,
    /// Files by the name under which the model takes the data.
    pub inputs: Vec<(String, InputSource)>,
    /// Steps between evaluations; `None` for one after each pass over the training data. One comes after the
    /// last step in any case.
    pub every: Option<u64>,
}

/// Mean of each output that is one float, by name.
pub(crate) type Means = Vec<(String, f32)>;

/// Sums of the outputs that are one float, over the steps of an evaluation.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Name, place among the outputs, sum.
    sums: Vec<(String, usize, f64)>,
    steps: u64,
}

impl Sums {
    /// No step is done.
    pub(crate) fn of(plan: &Plan, types: &[TensorType]) -> Sums {
        let outputs = plan.outputs.iter().zip(types).enumerate();
        let numbers = outputs.filter(|(_, (_, ty))| ty.dtype.is_float() && ty.numel() == 1);
        let sums = numbers.map(|(i, (output, _))| (output.name.clone(), i, 0.0)).collect();
        Sums { sums, steps: 0 }
    }

    /// Adds the outputs of a step.
    pub(crate) fn add(&mut self, session: &Session<'_>, types: &[TensorType]) {
        self.steps += 1;
        for (_, output, sum) in &mut self.sums {
            let number =
                types.get(*output).and_then(|ty| Scalar::from_bytes(session.output(*output), ty.dtype));
            if let Some(Scalar::Float(number)) = number {
                *sum += f64::from(number.0);
            }
        }
    }

    /// Mean of each output by name; none without a step.
    pub(crate) fn means(&self) -> Means {
        let steps = self.steps as f64;
        let sums = self.sums.iter().filter(|_| self.steps > 0);
        sums.map(|(name, _, sum)| (name.clone(), (sum / steps) as f32)).collect()
    }
}

/// An evaluation that is ready to run.
pub(crate) struct Evaluation<'a> {
    device: &'a dyn Device,
    file: PlanFile,
    programs: Programs,
    feed: FeedOptions,
    /// For each state of the evaluation, its place among the training plan's states.
    states: Vec<Option<usize>>,
    every: Option<u64>,
    /// File beside which the states wait.
    beside: PathBuf,
}

impl<'a> Evaluation<'a> {
    /// Opens the plan and its data, and compares it with the training plan. `pass` is the number of steps of
    /// a pass over the training data. `pads` fill what data leaves of a bucket's tensor.
    ///
    /// # Errors
    /// Those of the plan, of the data, and [`Error::Usage`] where it is no evaluation of the same model
    /// within the same budget.
    pub(crate) fn open(
        device: &'a dyn Device,
        options: &EvaluationOptions,
        (training, pads): (&Plan, &[(String, Pad)]),
        pass: Option<u64>,
        save: Option<&Path>,
        host_mem: Option<u64>,
    ) -> Result<Evaluation<'a>, Error> {
        let path = &options.plan;
        let file = PlanFile::open(path).map_err(|error| Error::opening(path, error))?;
        let usage = |what: String| Error::Usage(format!("--eval {}: {what}", path.display()));
        let plan = file.plan();
        if memc_plan::jobs(&training.meta.options).next().is_some() {
            return Err(usage(
                "the run is of several jobs; run the evaluation by itself on the states of a job, which \
                 --save '{job}.safetensors' keeps in a file of its own"
                    .to_owned(),
            ));
        }
        if !plan.meta.is_evaluation() {
            return Err(usage("the plan trains; compile one with `memc compile --evaluation`".to_owned()));
        }
        let takes = plan.meta.dev_bytes.saturating_add(plan.meta.reserve_bytes);
        let budget = training.meta.budget_bytes;
        if takes > budget {
            return Err(usage(format!(
                "it takes {} of the device, more than the budget of the run, {}; compile it with --gpu-mem \
                 {budget}B",
                Bytes(takes),
                Bytes(budget),
            )));
        }
        let states = shared(plan, training).map_err(usage)?;
        let programs = Programs::new(plan)?;
        memory::limit(programs.first()?.host_bytes, host_mem)?;
        // A plan of one size takes no padding, where that of the training may.
        let pads = if plan.buckets.is_empty() { Vec::new() } else { pads.to_vec() };
        let feed = FeedOptions { inputs: options.inputs.clone(), pads, steps: 1, ..FeedOptions::default() };
        let feeder = Feeder::new(plan, &programs, &feed).map_err(|error| match error {
            Error::Usage(text) => Error::Usage(text.replace("--input ", "--eval-input ")),
            other => other,
        })?;
        if feeder.is_stream() {
            return Err(Error::Usage(
                "--eval-input: an evaluation reads its data again each time, which a pipe cannot be"
                    .to_owned(),
            ));
        }
        let feed = FeedOptions { steps: feeder.pass(0).map_or(1, |(steps, _)| steps), ..feed };
        let beside =
            save.map_or_else(|| std::env::temp_dir().join("memrun-evaluation.safetensors"), Path::to_owned);
        Ok(Evaluation { device, file, programs, feed, states, every: options.every.or(pass), beside })
    }

    /// Says how much of the data a pass leaves unread.
    ///
    /// # Errors
    /// Those of [`Feeder::new`].
    pub(crate) fn left_over(&self) -> Result<Option<String>, Error> {
        let feeder = Feeder::new(self.file.plan(), &self.programs, &self.feed)?;
        Ok(feeder.pass(0).and_then(|(_, left)| left).map(|left| format!("evaluation: {left}")))
    }

    /// Whether to evaluate after step `number`.
    pub(crate) fn is_due(&self, number: u64) -> bool {
        self.every.is_some_and(|every| number.is_multiple_of(every.max(1)))
    }

    /// Evaluates the states of `session`, which then goes on where it was. The inner result is that of the
    /// evaluation, none where it was to stop; an inner error leaves the session as it was.
    ///
    /// # Errors
    /// Those of the session, which is of no use then.
    pub(crate) fn run(
        &self,
        session: &mut Session<'_>,
        training: &Plan,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<Result<Option<Means>, Error>, Error> {
        let mut saved = session.store(&self.beside, training)?;
        session.close();
        let mut states = |state: usize, bytes: &mut [u8]| match self.states.get(state) {
            Some(Some(place)) => saved.read(*place, bytes),
            _ => Ok(false),
        };
        let means = self.evaluate(&mut states, should_stop);
        session.reopen(self.device)?;
        session.reload(&mut |state, bytes| saved.read(state, bytes))?;
        Ok(means)
    }

    fn evaluate(
        &self,
        states: &mut States<'_>,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<Option<Means>, Error> {
        let (plan, types) = (self.file.plan(), &self.programs.first()?.types.outputs);
        let initial = Initial::new(&self.file, Vec::new(), Vec::new())?;
        let mut feeder = Feeder::new(plan, &self.programs, &self.feed)?;
        let mut session = Session::open(self.device, plan, self.programs.clone(), &initial, &mut feeder)?;
        session.reload(states)?;
        let mut sums = Sums::of(plan, types);
        for _ in 0..self.feed.steps {
            if should_stop() {
                return Ok(None);
            }
            session.step()?;
            session.synchronize()?;
            sums.add(&session, types);
        }
        Ok(Some(sums.means()))
    }
}

/// For each state of an evaluation its place among the training plan's states; constants need none.
fn shared(evaluation: &Plan, training: &Plan) -> Result<Vec<Option<usize>>, String> {
    let places: BTreeMap<&str, usize> =
        training.states.iter().enumerate().map(|(i, state)| (state.name.as_str(), i)).collect();
    let mut absent = Vec::new();
    for state in variables(evaluation) {
        let found = places.get(state.name.as_str()).and_then(|i| training.states.get(*i));
        match found.filter(|found| found.is_variable()) {
            Some(found) if found.ty == state.ty => {}
            Some(found) => {
                return Err(format!(
                    "state `{}` is {} there and {} in the plan that trains; compile both from one model",
                    state.name, state.ty, found.ty
                ));
            }
            None => absent.push(state.name.as_str()),
        }
    }
    if !absent.is_empty() {
        return Err(format!(
            "the plan that trains has no state {}; compile both from one model, with the same --parameters",
            list(&absent)
        ));
    }
    let place = |state: &memc_plan::State| {
        state.is_variable().then(|| places.get(state.name.as_str()).copied()).flatten()
    };
    Ok(evaluation.states.iter().map(place).collect())
}
