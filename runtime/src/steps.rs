//! The steps of a run: data, time, comparison, saves.

use std::path::Path;

use memc_plan::{Plan, PlanFile, Span, Trace};
use memc_support::Replace;

use crate::evaluation::{Evaluation, Sums};
use crate::jobs::Job;
use crate::observed::Observed;
use crate::output::Collector;
use crate::run::RunOptions;
use crate::saves::Saves;
use crate::shadow::Shadow;
use crate::{
    Error, Program, Session, Stage,
    clock::{elapsed_ns, now},
    verify,
    watch::{JobStep, Step, Watch},
};

/// Error that ends the steps.
pub(crate) enum Stop {
    /// Between two steps: the states are those of the last whole step.
    Whole(Error),
    /// Within a step, or with states that are not to be kept.
    Broken(Error),
}

impl Stop {
    /// The error, and whether the states are those of a whole step.
    pub(crate) fn error(self) -> (Error, bool) {
        match self {
            Stop::Whole(error) => (error, true),
            Stop::Broken(error) => (error, false),
        }
    }
}

/// The timeline of the last step, and its file, if one is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Tracing<'a> {
    pub(crate) file: &'a PlanFile,
    pub(crate) device: &'a str,
    pub(crate) path: Option<&'a Path>,
}

/// The steps of a run.
pub(crate) struct Steps<'a> {
    pub(crate) options: &'a RunOptions,
    pub(crate) program: &'a Program,
    pub(crate) trace: Tracing<'a>,
    /// Steps to run.
    pub(crate) most: u64,
    pub(crate) done: u64,
    /// Saves in between.
    saves: Saves<'a>,
    /// Outputs of all steps, by index.
    collectors: Vec<(usize, Collector)>,
    evaluation: Option<Evaluation<'a>>,
    /// Sums of the outputs of a plan that evaluates.
    pub(crate) sums: Option<Sums>,
    /// Times of kernels in service, where they are measured.
    pub(crate) observed: Option<Observed>,
}

impl<'a> Steps<'a> {
    /// No step is done. Begins the files for outputs of all steps.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn new(
        options: &'a RunOptions,
        program: &'a Program,
        trace: Tracing<'a>,
        most: u64,
        collected: Vec<(usize, &Path)>,
        evaluation: Option<Evaluation<'a>>,
    ) -> Result<Steps<'a>, Error> {
        let mut collectors = Vec::new();
        for (index, path) in collected {
            if let Some(ty) = program.types.outputs.get(index) {
                collectors.push((index, Collector::begin(path, ty)?));
            }
        }
        let plan = trace.file.plan();
        let saves = Saves::new(options, plan);
        let has_means = plan.meta.is_evaluation() && !plan.meta.is_inference();
        let sums = has_means.then(|| Sums::of(plan, &program.types.outputs));
        let observed = options.measure.as_ref().map(|_| Observed::new(program));
        Ok(Steps { options, program, trace, most, done: 0, saves, collectors, evaluation, sums, observed })
    }

    /// Puts the files for outputs of all steps in their place. Without a step there is nothing to put.
    ///
    /// # Errors
    /// The first error; the other files are in their place all the same.
    pub(crate) fn finish_collections(&mut self) -> Result<(), Error> {
        let collectors = std::mem::take(&mut self.collectors);
        if self.done == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        for (_, collector) in collectors {
            result = result.and(collector.finish());
        }
        result
    }

    /// Runs all steps, each compared with the shadow run; returns their number.
    pub(crate) fn all(
        &mut self,
        session: &mut Session<'_>,
        mut shadow: Option<&mut Shadow<'_>>,
        watch: &mut dyn Watch,
    ) -> Result<u64, Stop> {
        let mut noted = session.notes().len();
        let mut prepared = session.prepare();
        // A pipe may be slow, and must not hold up the results of the step before.
        let is_stream = session.feeder().is_stream();
        while self.done < self.most && !watch.should_stop() {
            std::mem::replace(&mut prepared, Ok(())).map_err(Stop::Whole)?;
            let last = self.done + 1 == self.most;
            let start = now();
            let traced = self.trace.path.filter(|_| last);
            let is_measured =
                self.options.measure.as_ref().is_some_and(|m| m.is_due(self.done)) && watch.may_measure();
            let spans = match traced.is_some() || is_measured {
                false => session.step().map(|()| Vec::new()),
                true => session.traced_step(),
            };
            let spans = spans.map_err(Stop::Broken)?;
            // The device still runs updates while the next data is read.
            if !last && !is_stream {
                prepared = session.prepare();
            }
            // Between steps nothing waits: their updates overlap with the next one.
            let number = session.steps_done();
            let saves = !last && self.saves.is_due(number);
            let evaluates = self.evaluation.as_ref().is_some_and(|e| last || e.is_due(number));
            if last || saves || evaluates || self.sums.is_some() {
                session.synchronize().map_err(Stop::Broken)?;
            }
            let ns = elapsed_ns(start);
            self.done += 1;
            self.compare(session, &mut shadow).map_err(Stop::Broken)?;
            session.notes().iter().skip(noted).for_each(|note| watch.note(note));
            noted = session.notes().len();
            let jobs = job_steps(session);
            let diverged = jobs.iter().find(|job| job.loss.is_some_and(|loss| !loss.is_finite())).cloned();
            watch.step(&Step { number, ns, jobs });
            if let Some(observed) = self.observed.as_mut().filter(|_| is_measured) {
                observed.add(self.program, &spans);
                watch.measured(observed);
            }
            self.write_results(session, traced, &spans)?;
            if let (Some(sums), Some(program)) = (&mut self.sums, session.program()) {
                sums.add(session, &program.types.outputs);
            }
            self.stop_on_nan(diverged)?;
            self.saves.publish(watch).map_err(Stop::Whole)?;
            if saves {
                self.saves.save(session, watch).map_err(Stop::Broken)?;
            }
            if let Some(evaluation) = self.evaluation.as_ref().filter(|_| evaluates) {
                watch.stage(Stage::Between("evaluating"));
                let plan = self.trace.file.plan();
                let means = evaluation.run(session, plan, &|| watch.should_stop()).map_err(Stop::Broken)?;
                if let Some(means) = means.map_err(Stop::Whole)? {
                    watch.evaluated(number, &means);
                }
                watch.stage(Stage::Steps);
            }
            if !last && is_stream && !watch.should_stop() {
                prepared = session.prepare();
            }
        }
        self.saves.publish(watch).map_err(Stop::Whole)?;
        Ok(self.done)
    }

    /// Writes the outputs and the timeline that a step has left. A file that fails is given up.
    fn write_results(
        &mut self,
        session: &mut Session<'_>,
        traced: Option<&Path>,
        spans: &[Span],
    ) -> Result<(), Stop> {
        let mut result = Ok(());
        self.collectors.retain_mut(|(index, collector)| {
            let added = collector.add(session.output(*index));
            let is_whole = added.is_ok();
            if result.is_ok() {
                result = added;
            }
            is_whole
        });
        if let Some(path) = traced {
            let of = (self.trace.file.plan(), session.last_bucket());
            result = result.and(write_trace(path, of, self.trace.device, spans));
        }
        if result.is_err() {
            session.synchronize().map_err(Stop::Broken)?;
        }
        result.map_err(Stop::Whole)
    }

    /// Compares a step with that of the shadow run.
    fn compare(&self, session: &Session<'_>, shadow: &mut Option<&mut Shadow<'_>>) -> Result<(), Error> {
        let Some(shadow) = shadow else { return Ok(()) };
        shadow.step()?;
        let when = format!("after step {}", session.steps_done());
        let plan = self.trace.file.plan().bucket(session.last_bucket());
        let (Some(plan), Some(program)) = (plan, session.program()) else { return Ok(()) };
        for (i, (output, ty)) in plan.outputs.iter().zip(&program.types.outputs).enumerate() {
            verify::same("output", &output.name, &when, ty, session.output(i), shadow.output(i))?;
        }
        Ok(())
    }

    fn stop_on_nan(&mut self, diverged: Option<JobStep>) -> Result<(), Stop> {
        let Some(JobStep { name, step, loss: Some(loss), .. }) =
            diverged.filter(|_| self.options.stop_on_nan)
        else {
            return Ok(());
        };
        let of = if name.is_empty() { String::new() } else { format!(" of job {name}") };
        let dropped = self.saves.drop_waiting();
        let also = if dropped { ", nor are those of the save that its step began with" } else { "" };
        Err(Stop::Broken(Error::Diverged(format!(
            "the loss of step {step}{of} is {loss}, and --stop-on-nan ends the run; its update is done, so \
             the states are not saved{also}"
        ))))
    }

    /// Puts a save that waits in its place. Says where a run can go on whose last states are lost.
    pub(crate) fn tell_what_is_left(&mut self, watch: &mut dyn Watch, are_lost: bool) {
        if let Err(error) = self.saves.publish(watch) {
            watch.note(&format!("the last save is lost: {error}"));
        }
        if let Some((path, step)) = self.saves.last().filter(|_| are_lost) {
            let path = path.display();
            watch.note(&format!(
                "the state after step {step} is in {path}, and --resume {path} goes on from there"
            ));
        }
    }
}

/// Results of the last step of each job.
fn job_steps(session: &Session<'_>) -> Vec<JobStep> {
    let (feeder, round) = (session.feeder(), session.steps_done());
    let step = |(at, job): (usize, &Job)| JobStep {
        name: job.name.clone(),
        step: job.done(round),
        loss: session.loss(at),
        rate: feeder.rate(at, round),
        epoch: feeder.epoch(at, round),
    };
    feeder.jobs().iter().enumerate().map(step).collect()
}

/// Writes the timeline of a step of a bucket.
fn write_trace(
    path: &Path,
    (plan, bucket): (&Plan, usize),
    device: &str,
    spans: &[Span],
) -> Result<(), Error> {
    let step_ns = spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
    let origin = format!("measured on {device}") + &plan.bucket_suffix(bucket);
    let plan = plan.bucket(bucket).unwrap_or(plan);
    let trace = Trace { plan, spans, step_ns, origin: &origin };
    Replace::whole(path, trace.json().as_bytes()).map_err(|error| Error::io(path, error))
}
