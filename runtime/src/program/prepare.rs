//! From the plan's tables and slices to resolved commands, one rule at a time.

use std::collections::BTreeMap;

use memc_ir::{Bytes, TensorType};
use memc_kernels::{ALIGN, Call};
use memc_plan::{Kernel, Plan, Queue, Section, Slice, Space};

use super::{Action, Command, Launch, Place, Program, Source, Types};
use crate::Error;
use crate::error::Defect;

/// Refuses an arena that does not fit the budget beside the reserve.
fn within_budget(plan: &Plan) -> Result<(), Error> {
    let meta = &plan.meta;
    if meta.dev_bytes.checked_add(meta.reserve_bytes).is_some_and(|sum| sum <= meta.budget_bytes) {
        return Ok(());
    }
    Err(Error::Plan(format!(
        "a device arena of {} and a reserve of {} exceed the plan's own budget of {}; compile the model \
         again",
        Bytes(meta.dev_bytes),
        Bytes(meta.reserve_bytes),
        Bytes(meta.budget_bytes),
    )))
}

/// Prepares a validated plan.
pub(super) fn prepare(plan: &Plan) -> Result<Program, Error> {
    let size = |bytes: u64, arena: &str| {
        isize::try_from(bytes).map(isize::unsigned_abs).map_err(|_| {
            Error::Plan(format!("the {arena} arena of {bytes} bytes is larger than the address space"))
        })
    };
    let dev_bytes = size(plan.meta.dev_bytes, "device")?;
    let host_bytes = size(plan.meta.host_bytes, "host")?;
    within_budget(plan)?;
    for (i, kernel) in plan.kernels.iter().enumerate() {
        check_kernel(kernel)
            .map_err(|what| Error::Plan(format!("kernel k{i} `{}`: {what}", kernel.op.mnemonic())))?;
    }
    let table = |what: &str, name: &str, ty: &TensorType, slice: &Slice| {
        let place = sized(ty).and_then(|ty| place_of(slice, ty));
        let place = place.map_err(|why| Error::Plan(format!("{what} `{name}`: {why}")))?;
        Ok::<_, Error>((place, ty.clone()))
    };
    let states = plan.states.iter().map(|s| table("state", &s.name, &s.ty, &s.resident));
    let (resident_slots, state_types) = states.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let inputs = plan.inputs.iter().map(|s| table("input", &s.name, &s.ty, &s.slot));
    let (slots, input_types) = inputs.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let outputs = plan.outputs.iter().map(|s| table("output", &s.name, &s.ty, &s.slot));
    let (results, output_types) = outputs.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    if let Some(output) = plan.outputs.iter().find(|o| o.slot.space != Space::Host) {
        return Err(Error::Plan(format!("output `{}`: its slot is not in the host arena", output.name)));
    }

    let mut program = Program {
        dev_bytes,
        profile: plan.meta.profile.clone(),
        budget_bytes: plan.meta.budget_bytes,
        reserve_bytes: plan.meta.reserve_bytes,
        host_bytes,
        kernels: plan.kernels.clone(),
        events: index(plan.events),
        resident_slots,
        slots,
        results,
        types: Types { states: state_types, inputs: input_types, outputs: output_types },
        tuning: plan.tuning.clone(),
        prologue: Vec::new(),
        body: Vec::new(),
        epilogue: Vec::new(),
    };
    let mut trail = Trail { plan, holds: BTreeMap::new() };
    program.prologue = section(plan, &program, Section::Prologue, &mut trail)?;
    program.body = section(plan, &program, Section::Body, &mut trail)?;
    program.epilogue = section(plan, &program, Section::Epilogue, &mut trail)?;
    Ok(program)
}

fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn sized(ty: &TensorType) -> Result<&TensorType, Defect> {
    match ty.checked_numel() {
        Some(_) => Ok(ty),
        None => Err(Defect::new(format!("type `{ty}` is too large"))),
    }
}

fn check_kernel(kernel: &Kernel) -> Result<(), Defect> {
    kernel.operands.iter().chain(&kernel.results).try_for_each(|ty| sized(ty).map(|_| ()))?;
    let (op, operand_types, result_types) = (&kernel.op, &kernel.operands, &kernel.results);
    let needs = Call { op, operand_types, result_types }.check().map_err(Defect::new)?;
    if kernel.workspace_bytes < needs {
        return Err(Defect::new(format!(
            "declares {} bytes of workspace where it needs {needs}",
            kernel.workspace_bytes
        )));
    }
    Ok(())
}

/// A slice within its arena (the plan is validated) as a place.
fn place(slice: &Slice) -> Result<Place, Defect> {
    let fits =
        |n| usize::try_from(n).map_err(|_| Defect::new(format!("{slice} is larger than the address space")));
    Ok(Place { space: slice.space, start: fits(slice.offset)?, len: fits(slice.bytes)? })
}

/// A slice that holds a tensor.
fn place_of(slice: &Slice, ty: &TensorType) -> Result<Place, Defect> {
    if slice.bytes != ty.bytes() {
        return Err(Defect::new(format!("{slice} for a tensor {ty} of {} bytes", ty.bytes())));
    }
    place(slice)
}

fn section(
    plan: &Plan,
    program: &Program,
    section: Section,
    trail: &mut Trail,
) -> Result<Vec<Command>, Error> {
    let commands = plan.section(section).iter().enumerate().map(|(i, command)| {
        let action = action(program, command, trail)
            .map_err(|what| Error::Plan(format!("{section} command {i} `{command}`: {what}")))?;
        trail.follow(&action);
        Ok(Command { queue: command.queue, action })
    });
    commands.collect()
}

fn action(program: &Program, command: &memc_plan::Command, trail: &Trail) -> Result<Action, Defect> {
    Ok(match &command.action {
        memc_plan::Action::Launch { kernel, reads, writes, workspace } => {
            let kernel = index(*kernel);
            let types = program.kernels.get(kernel).ok_or("no such kernel")?;
            let mut launch = launch(types, reads, writes, workspace.as_ref())?;
            launch.kernel = kernel;
            launch.label.clone_from(&command.label);
            launch.fed_by = launch.operands.iter().map(|operand| trail.input_at(&launch, operand)).collect();
            Action::Launch(launch)
        }
        memc_plan::Action::Copy { src, dst } => {
            let (src, dst) = (place(src)?, place(dst)?);
            if command.queue == Queue::Host {
                return Err(Defect::new("copies belong on a device stream"));
            }
            if src.overlaps(&dst) {
                return Err(Defect::new("source and destination overlap"));
            }
            Action::Copy { src, dst }
        }
        memc_plan::Action::Free { slice } => Action::Free(place(slice)?),
        memc_plan::Action::Record { event } => Action::Record(index(*event)),
        memc_plan::Action::Wait { event } => Action::Wait(index(*event)),
        memc_plan::Action::Load { state } => Action::Load(index(*state)),
        memc_plan::Action::Store { state } => Action::Store(index(*state)),
        memc_plan::Action::HostWrite { input } => Action::Write(index(*input)),
        memc_plan::Action::HostRead { output } => Action::Read(index(*output)),
    })
}

/// A launch with all of its slices checked; kernel and label are filled in by the caller. The plan is
/// validated: slices are in the arena of the launch's queue.
fn launch(
    kernel: &Kernel,
    reads: &[Slice],
    writes: &[Slice],
    workspace: Option<&Slice>,
) -> Result<Launch, Defect> {
    let check = |slice: &Slice, place: Place| {
        if place.len > 0 && !place.start.is_multiple_of(ALIGN) {
            return Err(Defect::new(format!("{slice} is not aligned to {ALIGN} bytes")));
        }
        Ok(place)
    };
    let places = |slices: &[Slice], types: &[TensorType]| {
        slices.iter().zip(types).map(|(s, ty)| check(s, place_of(s, ty)?)).collect::<Result<Vec<_>, _>>()
    };
    let operands = places(reads, &kernel.operands)?;
    let results = places(writes, &kernel.results)?;
    let workspace = match workspace {
        Some(slice) => check(slice, place(slice)?)?,
        None => Place { space: Space::Dev, start: 0, len: 0 },
    };
    for (j, result) in results.iter().enumerate() {
        if results.iter().take(j).any(|other| other.overlaps(result)) {
            return Err(Defect::new(format!("result {j} overlaps another result")));
        }
    }
    if operands.iter().chain(&results).any(|place| place.overlaps(&workspace)) {
        return Err(Defect::new("the workspace overlaps an operand or result"));
    }
    let types = (kernel.operands.iter().collect::<Vec<_>>(), kernel.results.iter().collect::<Vec<_>>());
    let pairs = kernel.op.inplace_pairs(&types.0, &types.1);
    let sources = operands.iter().enumerate().map(|(i, operand)| {
        let mut source = Source::Place(*operand);
        for (j, result) in results.iter().enumerate() {
            if !operand.overlaps(result) {
                continue;
            }
            if operand != result {
                return Err(Defect::new(format!("operand {i} overlaps result {j} in part")));
            }
            if !pairs.contains(&(i, j)) {
                return Err(Defect::new(format!(
                    "operand {i} cannot share its bytes with result {j} of `{}`",
                    kernel.op.mnemonic()
                )));
            }
            source = Source::Result(j);
        }
        Ok(source)
    });
    let operands = sources.collect::<Result<Vec<_>, _>>()?;
    Ok(Launch { kernel: 0, operands, results, workspace, label: String::new(), fed_by: Vec::new() })
}

/// Follows inputs through copies, to tell in an error message where bad data came from.
struct Trail<'a> {
    plan: &'a Plan,
    /// Name of the input by space and first byte, with the length.
    holds: BTreeMap<(Space, usize), (usize, String)>,
}

impl Trail<'_> {
    fn follow(&mut self, action: &Action) {
        match action {
            Action::Write(input) => {
                let Some(input) = self.plan.inputs.get(*input) else { return };
                if let Ok(slot) = place(&input.slot) {
                    self.put(slot, Some(input.name.clone()));
                }
            }
            Action::Copy { src, dst } => {
                let name = self.at(src);
                self.put(*dst, name);
            }
            Action::Free(place) => self.put(*place, None),
            Action::Launch(launch) => launch.results.iter().for_each(|result| self.put(*result, None)),
            _ => {}
        }
    }

    fn put(&mut self, place: Place, name: Option<String>) {
        let before = self.holds.range(..(place.space, place.end())).rev();
        let stale = before.take_while(|((space, start), (len, _))| {
            *space == place.space && start.saturating_add(*len) > place.start
        });
        let stale: Vec<_> = stale.map(|(key, _)| *key).collect();
        for key in stale {
            self.holds.remove(&key);
        }
        if let Some(name) = name {
            self.holds.insert((place.space, place.start), (place.len, name));
        }
    }

    fn at(&self, place: &Place) -> Option<String> {
        let (len, name) = self.holds.get(&(place.space, place.start))?;
        (*len == place.len).then(|| name.clone())
    }

    fn input_at(&self, launch: &Launch, source: &Source) -> Option<String> {
        match source {
            Source::Place(place) => self.at(place),
            Source::Result(j) => launch.results.get(*j).and_then(|place| self.at(place)),
        }
    }
}
