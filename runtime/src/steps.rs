//! The steps of a run: data, time, comparison, saves.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use memc_plan::{PlanFile, Span, Trace};
use memc_support::Replace;

use crate::output::Collector;
use crate::run::{RunOptions, Step, Watch};
use crate::shadow::Shadow;
use crate::{
    Error, Program, Session,
    clock::{elapsed_ns, now},
    verify,
};

/// Error that ends the steps.
pub(crate) enum Stop {
    /// Before a step began: the states are those of the last whole step.
    Whole(Error),
    /// Within a step, or after it.
    Broken(Error),
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
    /// The last save in between, and the step after which it was made.
    pub(crate) saved: Option<(PathBuf, u64)>,
    /// Outputs of all steps, by index.
    pub(crate) collectors: Vec<(usize, Collector)>,
}

impl Steps<'_> {
    /// Begins the files for outputs of all steps.
    pub(crate) fn collect(&mut self, wanted: Vec<(usize, &Path)>) -> Result<(), Error> {
        for (index, path) in wanted {
            if let Some(ty) = self.program.types.outputs.get(index) {
                self.collectors.push((index, Collector::begin(path, ty)?));
            }
        }
        Ok(())
    }

    /// Puts these files in their place.
    pub(crate) fn finish_collections(&mut self) -> Result<(), Error> {
        std::mem::take(&mut self.collectors).into_iter().try_for_each(|(_, collector)| collector.finish())
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
        while self.done < self.most && !watch.should_stop() {
            std::mem::replace(&mut prepared, Ok(())).map_err(Stop::Whole)?;
            let last = self.done + 1 == self.most;
            let start = now();
            let traced = self.trace.path.filter(|_| last);
            let spans = match traced {
                None => session.step().map(|()| Vec::new()),
                Some(_) => session.traced_step(),
            };
            let spans = spans.map_err(Stop::Broken)?;
            // The device still runs updates while the next data is read.
            if !last {
                prepared = session.prepare();
            }
            // Between steps nothing waits: their updates overlap with the next one.
            let saves =
                self.options.save_every.is_some_and(|every| session.steps_done().is_multiple_of(every));
            if last || saves {
                session.synchronize().map_err(Stop::Broken)?;
            }
            let ns = elapsed_ns(start);
            self.done += 1;
            self.after(session, &mut shadow, traced, &spans).map_err(Stop::Broken)?;
            session.notes().iter().skip(noted).for_each(|note| watch.note(note));
            noted = session.notes().len();
            let number = session.steps_done();
            let (feeder, loss) = (session.feeder(), session.loss());
            watch.step(&Step { number, loss, ns, rate: feeder.rate(number), epoch: feeder.epoch(number) });
            self.stop_on_nan(number, loss)?;
            if !last && saves {
                self.save(session, number).map_err(Stop::Broken)?;
            }
        }
        Ok(self.done)
    }

    /// Takes and compares what a step has left.
    fn after(
        &mut self,
        session: &Session<'_>,
        shadow: &mut Option<&mut Shadow<'_>>,
        traced: Option<&Path>,
        spans: &[Span],
    ) -> Result<(), Error> {
        if let Some(path) = traced {
            write_trace(path, self.trace.file, self.trace.device, spans)?;
        }
        for (index, collector) in &mut self.collectors {
            collector.add(session.output(*index))?;
        }
        let Some(shadow) = shadow else { return Ok(()) };
        shadow.step()?;
        let when = format!("after step {}", session.steps_done());
        let outputs = self.trace.file.plan().outputs.iter().zip(&self.program.types.outputs);
        for (i, (output, ty)) in outputs.enumerate() {
            verify::same("output", &output.name, &when, ty, session.output(i), shadow.output(i))?;
        }
        Ok(())
    }

    fn stop_on_nan(&self, number: u64, loss: Option<f32>) -> Result<(), Stop> {
        let Some(loss) = loss.filter(|loss| self.options.stop_on_nan && !loss.is_finite()) else {
            return Ok(());
        };
        Err(Stop::Broken(Error::Diverged(format!(
            "the loss of step {number} is {loss}, and --stop-on-nan ends the run; its update is done, so the \
             states \
             are not saved"
        ))))
    }

    /// Saves the states after step `number`.
    fn save(&mut self, session: &mut Session<'_>, number: u64) -> Result<(), Error> {
        let Some(path) = self.options.save.as_deref() else { return Ok(()) };
        let plan = self.trace.file.plan();
        let Some(keep) = self.options.keep else {
            session.save(path, plan)?;
            self.saved = Some((path.to_owned(), number));
            return Ok(());
        };
        let target = numbered(path, number);
        session.save(&target, plan)?;
        self.saved = Some((target, number));
        // Older ones than are to be kept.
        let every = self.options.save_every.unwrap_or(1);
        if let Some(old) =
            keep.checked_mul(every).and_then(|span| number.checked_sub(span)).filter(|&n| n > 0)
        {
            let old = numbered(path, old);
            match std::fs::remove_file(&old) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io(&old, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Says where a run that broke off can go on.
    pub(crate) fn tell_what_is_left(&self, watch: &mut dyn Watch) {
        if let Some((path, step)) = &self.saved {
            let path = path.display();
            watch.note(&format!(
                "the state after step {step} is in {path}, and --resume {path} goes on from there"
            ));
        }
    }
}

/// The file of a save in between: `states-00000100.safetensors`.
fn numbered(path: &Path, step: u64) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{step:08}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{step:08}"),
    };
    path.with_file_name(name)
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
