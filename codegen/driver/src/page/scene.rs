//! A plan's step with times: what the pictures of a page show.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::Module;
use memc_passes::DeviceProfile;
use memc_plan::{Action, Command, Plan, Queue, Span};

use super::slots::{Came, Slot, Slots, Stay, slots};
use super::svg::ms;
use super::tensors::{Part, Tensors};
use crate::candidate::Poses;
use crate::error::Error;
use crate::instance::Instance;
use crate::memory::{Sample, memory_over_time};
use crate::trace::{Timed, timed};

/// Bytes of each part, as [`Part::ALL`].
pub(super) type Parts = [u64; Part::ALL.len()];

/// Live bytes from a moment on.
#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) ns: u64,
    pub(super) parts: Parts,
}

impl Level {
    pub(super) fn total(&self) -> u64 {
        self.parts.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// A time at which no kernel of the device runs.
pub(super) struct Stall {
    /// The launch that waits.
    pub(super) command: usize,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// The command that it waits for, and whether that is the previous step's.
    pub(super) cause: Option<(usize, bool)>,
}

/// The step without swaps and recomputation, in its own order.
pub(super) struct Unplanned {
    pub(super) samples: Vec<Sample>,
    pub(super) step_ns: u64,
}

pub(super) struct Scene<'a> {
    pub(super) plan: &'a Plan,
    /// Name of the device whose times apply.
    pub(super) device: String,
    pub(super) tensors: Tensors<'a>,
    pub(super) slots: Slots,
    /// Spans by command of the body.
    pub(super) spans: BTreeMap<usize, Span>,
    /// Time from one step to the next, at least 1. Pictures show so much; see [`Scene::folded`].
    pub(super) step_ns: u64,
    pub(super) levels: Vec<Level>,
    pub(super) peak: Level,
    pub(super) stalls: Vec<Stall>,
    /// Launches that recompute.
    pub(super) recomputed: BTreeSet<usize>,
    pub(super) unplanned: Unplanned,
}

impl<'a> Scene<'a> {
    pub(super) fn of(
        plan: &'a Plan,
        module: &'a Module,
        profile: &DeviceProfile,
    ) -> Result<Scene<'a>, Error> {
        let times = timed(plan, profile)?;
        let stalls = stalls(plan, &times);
        let Timed { spans, step_ns, .. } = times;
        let step_ns = step_ns.max(1);
        let spans = spans.into_iter().map(|span| (span.command, span)).collect();
        let mut tensors = Tensors::of(module);
        let slots = slots(plan, &mut tensors);
        let again = slots.slots.iter().flat_map(|slot| &slot.stays).filter(|s| s.came == Came::Recomputed);
        let recomputed = again.filter_map(|stay| stay.from).collect();
        let instance = Instance::of_graph(module, profile, Poses::GIVEN)?;
        let kept = instance.given().kept();
        let unplanned = Unplanned { samples: memory_over_time(kept), step_ns: kept.evaluation.step_ns };
        let (levels, peak) = Default::default();
        let device = profile.name.to_string();
        let mut scene = Scene {
            plan,
            device,
            tensors,
            slots,
            spans,
            step_ns,
            levels,
            peak,
            stalls,
            recomputed,
            unplanned,
        };
        scene.levels = scene.levels();
        // The first of the highest.
        scene.peak = scene.levels.iter().rev().max_by_key(|level| level.total()).copied().unwrap_or_default();
        Ok(scene)
    }

    pub(super) fn command(&self, index: usize) -> Option<&Command> {
        self.plan.body.get(index)
    }

    /// Text for a command: its label, or its op.
    pub(super) fn label(&self, index: usize) -> String {
        let Some(command) = self.command(index) else { return String::new() };
        match &command.action {
            Action::Launch { kernel, .. } if command.label.is_empty() => {
                let kernel = self.plan.kernels.get(super::index(*kernel));
                kernel.map_or_else(String::new, |kernel| kernel.op.mnemonic().to_owned())
            }
            _ => command.label.clone(),
        }
    }

    pub(super) fn length_ns(&self, command: usize) -> u64 {
        self.spans.get(&command).map_or(0, |span| span.end_ns.saturating_sub(span.start_ns))
    }

    /// Time of the launches that recompute, in ns.
    pub(super) fn recomputed_ns(&self) -> u64 {
        self.recomputed.iter().map(|launch| self.length_ns(*launch)).sum()
    }

    pub(super) fn part(&self, tensor: usize) -> Part {
        self.tensors.get(tensor).map_or(Part::Other, |tensor| tensor.part)
    }

    pub(super) fn name(&self, tensor: usize) -> &str {
        self.tensors.get(tensor).map_or("", |tensor| &tensor.name)
    }

    /// Begin and end of a stay, from when the host issues the step.
    fn times(&self, stay: &Stay) -> (u64, u64) {
        let start = |command: &usize| self.spans.get(command).map_or(0, |span| span.start_ns);
        let before = || stay.before.as_ref().map_or(0, |at| start(at).saturating_sub(self.step_ns));
        let start = stay.from.as_ref().map_or_else(before, start);
        let end = stay.to.and_then(|to| self.spans.get(&to)).map_or(self.step_ns, |span| span.end_ns);
        (start, end.max(start))
    }

    /// The stays of a slot with their times, which follow one another.
    pub(super) fn stays<'s>(&self, slot: &'s Slot) -> Vec<(&'s Stay, u64, u64)> {
        let mut free_from = 0;
        let timed = slot.stays.iter().map(|stay| {
            let (start, end) = self.times(stay);
            let start = start.max(free_from);
            free_from = end.max(start);
            (stay, start, free_from)
        });
        timed.collect()
    }

    /// A time as parts of the step that repeats: what is beside the next step comes first.
    pub(super) fn folded(&self, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let mut from = start;
        while from < end {
            let border = (from / self.step_ns + 1).saturating_mul(self.step_ns);
            let to = end.min(border);
            parts.push((from % self.step_ns, to - from + from % self.step_ns));
            from = to;
        }
        parts
    }

    /// Text for a time that may be of the next step.
    pub(super) fn moment(&self, ns: u64) -> String {
        match ns.checked_sub(self.step_ns) {
            Some(later) if later > 0 => format!("{} (next step)", ms(later)),
            _ => ms(ns),
        }
    }

    fn levels(&self) -> Vec<Level> {
        let mut changes: BTreeMap<u64, [(u64, u64); Part::ALL.len()]> = BTreeMap::new();
        changes.entry(0).or_default();
        for slot in &self.slots.slots {
            for (stay, start, end) in self.stays(slot) {
                let part = self.part(stay.tensor).index();
                for (start, end) in self.folded((start, end)) {
                    let more = changes.entry(start).or_default().get_mut(part);
                    more.into_iter().for_each(|change| change.0 += slot.bytes);
                    let less = changes.entry(end).or_default().get_mut(part);
                    less.into_iter().for_each(|change| change.1 += slot.bytes);
                }
            }
        }
        let mut parts = Parts::default();
        let level = |(ns, change): (u64, [(u64, u64); Part::ALL.len()])| {
            for (bytes, (more, less)) in parts.iter_mut().zip(change) {
                *bytes = bytes.saturating_add(more).saturating_sub(less);
            }
            Level { ns, parts }
        };
        changes.into_iter().map(level).collect()
    }
}

/// Times between kernels of the device, each with the latest command that the next one waits for.
fn stalls(plan: &Plan, times: &Timed) -> Vec<Stall> {
    let at: BTreeMap<usize, &Span> = times.spans.iter().map(|span| (span.command, span)).collect();
    let mut stalls = Vec::new();
    let is_kernel = |span: &&Span| plan.body.get(span.command).is_some_and(|c| c.queue == Queue::COMPUTE);
    let kernels = || times.spans.iter().filter(is_kernel);
    // The step before may still run.
    let mut done = kernels().map(|span| span.end_ns).max().unwrap_or(0).saturating_sub(times.step_ns);
    for span in kernels() {
        if span.start_ns > done {
            let end = |&(command, previous): &(usize, bool)| {
                let end = at.get(&command).map_or(0, |span| span.end_ns);
                if previous { end.saturating_sub(times.step_ns) } else { end }
            };
            let waits = times.waits.get(&span.command).into_iter().flatten();
            let cause = waits.filter(|wait| end(wait) > done).max_by_key(|wait| end(wait)).copied();
            stalls.push(Stall { command: span.command, start_ns: done, end_ns: span.start_ns, cause });
        }
        done = done.max(span.end_ns);
    }
    stalls
}
