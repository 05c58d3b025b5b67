//! Which kernels of a program a library computes.

use std::collections::{BTreeMap, BTreeSet};

use memc_cuda::{Arg, Form, Lowering};
use memc_gpu::{Answer, Clock, GpuError, LibraryAlgorithms, LibraryCall, LibraryOp, Region};
use memc_ir::{OpKind, TensorType};

use super::places::{launches, operand, region};
use super::refused::{Refusals, RefusedCall};
use super::tuned::Tuned;
use crate::program::Launch;
use crate::{Error, Program};

/// Kernels that libraries compute.
#[derive(Debug, Default)]
pub(super) struct LibraryKernels {
    /// For each kernel of the program the call that computes it, and in what form; none where it is
    /// generated.
    ops: Vec<Option<(LibraryOp, Form)>>,
    /// Bytes of the device that were free before libraries were asked.
    pub(super) free_bytes: u64,
    /// Notes for the user, such as the loss without a library that is not there, once for each.
    pub(super) notes: BTreeSet<String>,
    /// Reasons for which libraries that kernels could use are not there.
    pub(super) lacks: BTreeSet<String>,
    /// Calls that a library which is there refused.
    pub(super) refused: Vec<RefusedCall>,
}

/// An op with the types of its operands.
type Types<'a> = (&'a OpKind, &'a [TensorType]);

/// The places of a launch that the call of a form takes; none where the launch lacks one.
pub(super) fn places(form: &Form, launch: &Launch) -> Option<Vec<Region>> {
    let (takes, gives) = form.call.elements();
    let bytes = |elements: u64| usize::try_from(elements * form.call.dtype().bytes()).ok();
    let place = |(arg, elements): (&Arg, u64)| match *arg {
        Arg::Operand(i) => operand(launch, i).map(region),
        Arg::Result(j) => launch.results.get(j).copied().map(region),
        Arg::Workspace(at) => {
            let (at, len) = (usize::try_from(at).ok()?, bytes(elements)?);
            let whole = region(launch.workspace);
            (at.checked_add(len)? <= whole.len).then_some(Region { start: whole.start + at, len, ..whole })
        }
        Arg::Report(_) | Arg::I64(_) => None,
    };
    form.places.iter().zip(takes.into_iter().chain(gives)).map(place).collect()
}

/// The workspace of a launch that the library may use.
pub(super) fn scratch(form: &Form, launch: &Launch) -> Region {
    let whole = region(launch.workspace);
    let kept = usize::try_from(form.kept).unwrap_or(usize::MAX).min(whole.len);
    Region { start: whole.start + kept, len: whole.len - kept, ..whole }
}

/// Entries of a program's kernel table that are the same call, and are computed by the same algorithm.
pub(super) struct Group {
    /// Their indices.
    pub(super) kernels: Vec<usize>,
    /// At least one, the one that is expected to be the fastest first. All have the workspace that they
    /// cannot be without.
    pub(super) forms: Vec<Form>,
    /// Bytes of workspace that each launch has for it.
    pub(super) workspace: usize,
}

impl Group {
    /// First form for which `ask` finds something of its call and the workspace that the library is offered,
    /// with that.
    pub(super) fn first<'a, T>(
        &self,
        forms: impl Iterator<Item = &'a Form>,
        mut ask: impl FnMut(&LibraryCall, usize) -> Result<Option<T>, GpuError>,
    ) -> Result<Option<(T, &'a Form)>, GpuError> {
        for form in forms {
            if let Some(found) = ask(&form.call, self.offered(form))? {
                return Ok(Some((found, form)));
            }
        }
        Ok(None)
    }

    /// Bytes of workspace that the library is offered for a form.
    pub(super) fn offered(&self, form: &Form) -> usize {
        self.workspace.saturating_sub(usize::try_from(form.kept).unwrap_or(usize::MAX))
    }

    /// The forms to try, in order: all of them, or those behind the first where there are such and `is_other`
    /// is set.
    pub(super) fn tried(&self, is_other: bool) -> impl Iterator<Item = &Form> {
        self.forms.iter().skip(usize::from(is_other && self.has_choice()))
    }

    /// The op's own call, or else the one that there is.
    pub(super) fn own(&self) -> Option<&LibraryCall> {
        let own = self.forms.iter().find(|form| !form.is_apart).or(self.forms.first());
        own.map(|form| &form.call)
    }

    /// Whether there is more than one form.
    pub(super) fn has_choice(&self) -> bool {
        self.forms.len() > 1
    }
}

/// All kernels of a program that are launched and can be library calls.
///
/// The algorithm that a library takes may depend on how much workspace it has. It is offered what all
/// launches of the kernel have, and no more than [`memc_cuda::ample_allowance`], so that plans that list the
/// same agree, bit for bit.
pub(super) fn groups(program: &Program) -> Vec<Group> {
    let mut same: BTreeMap<Types<'_>, (usize, Vec<usize>)> = BTreeMap::new();
    for launch in launches(program) {
        if let Some(kernel) = program.kernels.get(launch.kernel) {
            let entry = same.entry((&kernel.op, &kernel.operands)).or_insert((usize::MAX, Vec::new()));
            entry.0 = launch.workspace.len.min(entry.0);
        }
    }
    for (index, kernel) in program.kernels.iter().enumerate() {
        let entry = same.get_mut(&(&kernel.op, kernel.operands.as_slice()));
        entry.into_iter().for_each(|(_, kernels)| kernels.push(index));
    }
    let group = |((op, operands), (least, kernels)): (Types<'_>, _)| {
        let most = memc_cuda::ample_allowance(op, operands, *memc_cuda::CONV_WORKSPACE.end());
        let workspace = usize::try_from(most).unwrap_or(usize::MAX).min(least);
        let mut forms = memc_cuda::forms(op, operands);
        forms.retain(|form| form.least_workspace() <= workspace as u64);
        (!forms.is_empty()).then_some(Group { kernels, forms, workspace })
    };
    same.into_iter().filter_map(group).collect()
}

/// Libraries that are not there.
#[derive(Default)]
struct Lacks {
    /// Notes for the user, once for each.
    notes: BTreeSet<String>,
    errors: BTreeSet<String>,
}

impl Lacks {
    /// Adds the library whose absence is the error; returns any other error.
    fn add(&mut self, error: GpuError) -> Result<(), GpuError> {
        let Some(component) = error.lacks() else { return Err(error) };
        self.notes.insert(format!("{}: {error}", component.absence()));
        self.errors.insert(error.to_string());
        Ok(())
    }
}

/// Asks the driver for every kernel that can be a library call, by the algorithm that the plan's tuning has
/// for it where that still holds. Where there are several forms and `is_other` is set, the first is left out.
///
/// # Errors
/// Those of the device.
pub(super) fn take(
    program: &Program,
    driver: &mut (impl Clock + LibraryAlgorithms),
    is_other: bool,
) -> Result<LibraryKernels, Error> {
    let free_bytes = driver.facts()?.free_bytes;
    let mut tuned = Tuned::new(program, driver.setting());
    let (mut ops, mut lacks) = (vec![None; program.kernels.len()], Lacks::default());
    let mut refusals = Refusals::default();
    for group in groups(program) {
        let mut found = None;
        if let Some((algorithm, is_apart)) = tuned.algorithm(&group.kernels) {
            let forms = group.forms.iter().filter(|form| form.is_apart == is_apart);
            found = group.first(forms, |call, workspace| {
                let found = driver.plan_tuned(call, workspace, &algorithm);
                found.or_else(|error| lacks.add(error).map(|()| None))
            })?;
            if found.is_none() {
                tuned.refused();
            }
        }
        let (mut refused, mut was_asked) = (None, true);
        if found.is_none() {
            found = group.first(group.tried(is_other), |call, workspace| {
                match driver.plan_library(call, workspace) {
                    Ok(Answer::Taken(op)) => return Ok(Some(op)),
                    Ok(Answer::Refused(why)) if group.own() == Some(call) => refused = Some(why),
                    Ok(Answer::Refused(_)) => {}
                    Ok(Answer::NotAsked) => was_asked = false,
                    Err(error) => {
                        lacks.add(error)?;
                        was_asked = false;
                    }
                }
                Ok(None)
            })?;
        }
        if was_asked {
            refusals.add(program, &group, refused.filter(|_| found.is_none()));
        }
        let found = found.map(|(op, form)| (op, form.clone()));
        for &kernel in &group.kernels {
            ops.get_mut(kernel).into_iter().for_each(|op| op.clone_from(&found));
        }
    }
    let Lacks { mut notes, errors } = lacks;
    notes.extend(tuned.note());
    notes.extend(refusals.notes());
    Ok(LibraryKernels { ops, free_bytes, notes, lacks: errors, refused: refusals.calls() })
}

/// A library call, ready to be issued.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) op: LibraryOp,
    pub(super) places: Vec<Region>,
    pub(super) workspace: Region,
}

impl LibraryKernels {
    /// Generated part of a kernel that a library computes.
    pub(super) fn rest(&self, kernel: usize) -> Option<&Lowering> {
        self.ops.get(kernel)?.as_ref().map(|(_, form)| &form.rest)
    }

    /// The call for a launch, where a library computes it.
    pub(super) fn call(&self, launch: &Launch) -> Option<Call> {
        let (op, form) = self.ops.get(launch.kernel)?.as_ref()?;
        Some(Call { op: *op, places: places(form, launch)?, workspace: scratch(form, launch) })
    }
}
