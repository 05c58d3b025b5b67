//! The planned timeline of a plan's step.
//!
//! Only the plan's commands count. Launches take the profile's time of their op, copies its time of the link,
//! and events order them, in the event model that judges plans. The timeline shows the step that repeats,
//! from the time at which the host issues it. Copies that run beside the next step end after it.

use std::collections::BTreeMap;

use memc_ir::{Arena, TensorType};
use memc_passes::DeviceProfile;
use memc_plan::{Action, Kernel, Plan, Queue, Space, Span, Trace};
use memc_planner::{CommandIx, Job, Jobs, Timeline, Wait, Waits, simulate_issued};

use crate::error::Error;

/// Times of the commands of a plan's bucket by the cost model, as JSON for Perfetto. Of several buckets, a
/// name chooses one; without it, it is the one that needs most memory unplanned.
///
/// # Errors
/// [`Error::Plan`] for a plan that the checker would not accept, [`Error::Usage`] for a name that no bucket
/// has.
pub fn trace(plan: &Plan, bucket: Option<&str>, profile: &DeviceProfile) -> Result<String, Error> {
    let index = plan.find_bucket(bucket).map_err(|error| Error::Usage(error.to_string()))?;
    let Some(drawn) = plan.bucket(index) else {
        return Err(Error::Internal("the plan lost a bucket".into()));
    };
    let Timed { spans, step_ns, .. } = timed(drawn, profile)?;
    let origin = format!("planned for {}", profile.name) + &plan.bucket_suffix(index);
    Ok(Trace { plan: drawn, spans: &spans, step_ns, origin: &origin }.json())
}

/// Time of a plan's step in ns by the cost model.
///
/// # Errors
/// [`Error::Plan`] for a plan that the checker would not accept.
pub fn step_ns(plan: &Plan, profile: &DeviceProfile) -> Result<u64, Error> {
    Ok(Steps::of(plan, profile)?.timeline(profile)?.step_ns)
}

/// Times of a plan's commands by the cost model, and their waits.
pub(crate) struct Timed {
    /// Launches, copies, writes and reads of the body, in its order.
    pub(crate) spans: Vec<Span>,
    /// Time from one step to the next in ns.
    pub(crate) step_ns: u64,
    /// For launches and copies, the commands that they wait for, and whether those are the previous step's.
    pub(crate) waits: BTreeMap<usize, Vec<(usize, bool)>>,
}

/// Times of a plan's commands by the cost model.
pub(crate) fn timed(plan: &Plan, profile: &DeviceProfile) -> Result<Timed, Error> {
    let steps = Steps::of(plan, profile)?;
    let timeline = steps.timeline(profile)?;
    let waits = steps.command.values().zip(steps.waits.values()).map(|(&command, waits)| {
        let awaited = |wait: &Wait| Some((*steps.command.get(wait.command)?, wait.previous));
        (command, waits.iter().filter_map(awaited).collect())
    });
    Ok(Timed { spans: steps.spans(plan, &timeline), step_ns: timeline.step_ns, waits: waits.collect() })
}

/// A body as the event model takes it.
#[derive(Default)]
struct Steps {
    jobs: Jobs,
    waits: Waits,
    /// The command of each job.
    command: Arena<CommandIx, usize>,
    /// For each event, the job that its last record in the body comes after.
    recorded: Vec<Option<CommandIx>>,
}

impl Steps {
    fn of(plan: &Plan, profile: &DeviceProfile) -> Result<Steps, Error> {
        let profile = &profile.with_workspaces(plan.kernels.iter().map(|kernel| kernel.workspace_bytes));
        let kernels = plan.kernels.iter().map(|k| modelled(k, profile)).collect::<Result<Vec<_>, _>>()?;
        let mut steps = Steps { recorded: last_records(plan), ..Steps::default() };
        let mut seen = vec![None; steps.recorded.len()];
        let mut last: [Option<CommandIx>; Queue::ALL.len()] = [None; Queue::ALL.len()];
        let mut waits: [Vec<Wait>; Queue::ALL.len()] = Default::default();
        for (index, command) in plan.body.iter().enumerate() {
            let queue = command.queue.index();
            let (ns, slowdown) = match &command.action {
                Action::Launch { kernel, .. } => {
                    let times = kernels.get(at(*kernel)).copied().unwrap_or_default();
                    let on_host = command.queue == Queue::CPU;
                    if on_host { (times.host_ns, 0) } else { (times.ns, times.slowdown) }
                }
                Action::Copy { src, dst } => match (src.space, dst.space) {
                    (Space::Dev, Space::Host) => (profile.d2h_ns(src.bytes).unwrap_or(0), 0),
                    (Space::Host, Space::Dev) => (profile.h2d_ns(src.bytes).unwrap_or(0), 0),
                    (Space::Dev, Space::Dev) | (Space::Host, Space::Host) => {
                        return Err(Error::Plan(format!(
                            "command {index} of the body copies within one memory"
                        )));
                    }
                },
                Action::Record { event } => {
                    seen.iter_mut().skip(at(*event)).take(1).for_each(|seen| *seen = last[queue]);
                    continue;
                }
                Action::Wait { event } => {
                    let now = seen.get(at(*event)).copied().flatten();
                    let before = steps.recorded.get(at(*event)).copied().flatten();
                    if let Some(job) = now.or(before) {
                        waits[queue].push(Wait { command: job, previous: now.is_none() });
                    }
                    continue;
                }
                _ => continue,
            };
            last[queue] = Some(steps.jobs.next_id());
            let Some(stream) = stream(command.queue) else {
                return Err(Error::Plan(format!("command {index} of the body has no stream")));
            };
            steps.jobs.push(Job { stream, ns, slowdown, gate: false });
            steps.waits.push(std::mem::take(&mut waits[queue]));
            steps.command.push(index);
        }
        for gate in &waits[Queue::Host.index()] {
            steps.jobs.get_mut(gate.command).into_iter().for_each(|job| job.gate = true);
        }
        Ok(steps)
    }

    fn timeline(&self, profile: &DeviceProfile) -> Result<Timeline, Error> {
        let numbers = memc_passes::plan::device(profile);
        simulate_issued(&numbers, &self.jobs, &self.waits).map_err(|deadlock| {
            let command = self.command.get(deadlock.0).copied();
            Error::Plan(format!("command {} of the body waits for itself", command.unwrap_or(0)))
        })
    }

    /// Spans of all commands. The host writes when it issues the step, and reads when it has waited.
    fn spans(&self, plan: &Plan, timeline: &Timeline) -> Vec<Span> {
        let ran = self.command.values().zip(timeline.spans.values());
        let mut spans: Vec<Span> =
            ran.map(|(&command, span)| Span { command, start_ns: span.start, end_ns: span.end }).collect();
        let mut now = 0;
        let mut issued = CommandIx(0);
        for (command, entry) in plan.body.iter().enumerate() {
            match entry.action {
                Action::HostWrite { .. } | Action::HostRead { .. } => {
                    spans.push(Span { command, start_ns: now, end_ns: now });
                }
                // A job that was not issued yet is the previous step's, which is over when this one is
                // issued.
                Action::Wait { event } if entry.queue == Queue::Host => {
                    let job = self.recorded.get(at(event)).copied().flatten().filter(|&job| job < issued);
                    let end = job.and_then(|job| timeline.spans.get(job)).map_or(0, |span| span.end);
                    now = now.max(end);
                }
                Action::Launch { .. } | Action::Copy { .. } => issued = issued.next(),
                _ => {}
            }
        }
        spans.sort_by_key(|span| span.command);
        spans
    }
}

fn at(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The planner's name of a stream; `None` for the host.
fn stream(queue: Queue) -> Option<memc_planner::Stream> {
    match queue {
        Queue::COMPUTE => Some(memc_planner::Stream::Compute),
        Queue::D2H => Some(memc_planner::Stream::DeviceToHost),
        Queue::H2D => Some(memc_planner::Stream::HostToDevice),
        Queue::CPU => Some(memc_planner::Stream::HostCompute),
        Queue::Host => None,
    }
}

/// For each event, the last job before its last record on the record's stream.
fn last_records(plan: &Plan) -> Vec<Option<CommandIx>> {
    let mut recorded = vec![None; at(plan.events)];
    let mut last: [Option<CommandIx>; Queue::ALL.len()] = [None; Queue::ALL.len()];
    let mut jobs = CommandIx(0);
    for command in &plan.body {
        match command.action {
            Action::Launch { .. } | Action::Copy { .. } => {
                last[command.queue.index()] = Some(jobs);
                jobs = jobs.next();
            }
            Action::Record { event } => {
                recorded.iter_mut().skip(at(event)).take(1).for_each(|of| *of = last[command.queue.index()]);
            }
            _ => {}
        }
    }
    recorded
}

/// Modelled times of a kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// On the device, in ns.
    pub(crate) ns: u64,
    /// Slowdown there beside copies.
    slowdown: u32,
    /// On the host, in ns; 0 where it cannot run there.
    host_ns: u64,
}

pub(crate) fn modelled(kernel: &Kernel, profile: &DeviceProfile) -> Result<Times, Error> {
    let operands: Vec<&TensorType> = kernel.operands.iter().collect();
    let results: Vec<&TensorType> = kernel.results.iter().collect();
    if kernel.op.infer(&operands).map_err(|e| Error::Plan(e.to_string()))? != kernel.results {
        let text = format!("kernel `{}` has other results than its op", kernel.op.mnemonic());
        return Err(Error::Plan(text));
    }
    Ok(Times {
        ns: profile.op_ns(&kernel.op, &operands, &results),
        slowdown: profile.slowdown(&kernel.op, &operands, &results),
        host_ns: profile.host_ns(&kernel.op, &operands, &results).unwrap_or(0),
    })
}
