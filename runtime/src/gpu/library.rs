//! Which kernels of a program a library computes.

use std::collections::{BTreeMap, BTreeSet};

use memc_cuda::Lowering;
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

/// Form in which a library may compute a kernel.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) call: LibraryCall,
    /// Ops that the call leaves to generated kernels behind it.
    rest: Lowering,
}

impl Form {
    /// Whether the call leaves something to generated kernels.
    pub(super) fn is_apart(&self) -> bool {
        !self.rest.launches.is_empty()
    }

    /// The places of a launch that the call takes: those of the first operands, and of the first results.
    pub(super) fn places(&self, launch: &Launch) -> Vec<Region> {
        let (takes, gives) = self.call.elements();
        let operands = (0..takes.len()).filter_map(|i| operand(launch, i));
        operands.chain(launch.results.iter().copied().take(gives.len())).map(region).collect()
    }
}

/// Entries of a program's kernel table that are the same call, and are computed by the same algorithm.
pub(super) struct Group {
    /// Their indices.
    pub(super) kernels: Vec<usize>,
    /// At least one; each is for a library that does not take those before it.
    pub(super) forms: Vec<Form>,
    /// Bytes of workspace that the library is offered.
    pub(super) workspace: usize,
}

impl Group {
    /// First form for which `ask` finds something, with that; only of those that leave a rest where
    /// `is_apart` is set.
    pub(super) fn first<T>(
        &self,
        is_apart: bool,
        mut ask: impl FnMut(&LibraryCall) -> Result<Option<T>, GpuError>,
    ) -> Result<Option<(T, &Form)>, GpuError> {
        for form in self.forms.iter().filter(|form| !is_apart || form.is_apart()) {
            if let Some(found) = ask(&form.call)? {
                return Ok(Some((found, form)));
            }
        }
        Ok(None)
    }

    /// Whether a library may compute it as a whole, or a part of it.
    pub(super) fn has_choice(&self) -> bool {
        self.forms.iter().any(Form::is_apart) && !self.forms.iter().all(Form::is_apart)
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
        let whole = memc_cuda::library(op, operands).map(|call| (call, Lowering::default()));
        let forms = whole.into_iter().chain(memc_cuda::split_call(op, operands));
        let forms: Vec<Form> = forms.map(|(call, rest)| Form { call, rest }).collect();
        let most = memc_cuda::ample_allowance(op, operands, *memc_cuda::CONV_WORKSPACE.end());
        let allowance = usize::try_from(most).unwrap_or(usize::MAX);
        (!forms.is_empty()).then(|| Group { kernels, forms, workspace: allowance.min(least) })
    };
    same.into_iter().filter_map(group).collect()
}

/// Asks the driver for every kernel that can be a library call, by the algorithm that the plan's tuning has
/// for it where that still holds. Where there is a choice, a call that leaves a rest comes first where
/// `is_apart` is set.
///
/// # Errors
/// Those of the device.
pub(super) fn take(
    program: &Program,
    driver: &mut (impl Clock + LibraryAlgorithms),
    is_apart: bool,
) -> Result<LibraryKernels, Error> {
    let free_bytes = driver.facts()?.free_bytes;
    let mut tuned = Tuned::new(program, driver.setting());
    let (mut ops, mut notes) = (vec![None; program.kernels.len()], BTreeSet::new());
    let (mut lacks, mut refusals) = (BTreeSet::new(), Refusals::default());
    for group in groups(program) {
        let workspace = group.workspace;
        let mut found = Ok(None);
        if let Some((algorithm, is_apart)) = tuned.algorithm(&group.kernels) {
            found = group.first(is_apart, |call| driver.plan_tuned(call, workspace, &algorithm));
            if matches!(found, Ok(None)) {
                tuned.refused();
            }
        }
        let (mut refused, mut was_asked) = (None, true);
        if matches!(found, Ok(None)) {
            found = group.first(is_apart && group.has_choice(), |call| {
                Ok(match driver.plan_library(call, workspace)? {
                    Answer::Taken(op) => Some(op),
                    Answer::Refused(why) => {
                        refused = Some(why);
                        None
                    }
                    Answer::NotAsked => {
                        was_asked = false;
                        None
                    }
                })
            });
        }
        match found {
            Ok(found) => {
                if was_asked {
                    refusals.add(program, &group, refused.filter(|_| found.is_none()));
                }
                let found = found.map(|(op, form)| (op, form.clone()));
                for &kernel in &group.kernels {
                    ops.get_mut(kernel).into_iter().for_each(|op| op.clone_from(&found));
                }
            }
            Err(error) => {
                let Some(component) = error.lacks() else { return Err(error.into()) };
                notes.insert(format!("{}: {error}", component.absence()));
                lacks.insert(error.to_string());
            }
        }
    }
    notes.extend(tuned.note());
    notes.extend(refusals.notes());
    Ok(LibraryKernels { ops, free_bytes, notes, lacks, refused: refusals.calls() })
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
        Some(Call { op: *op, places: form.places(launch), workspace: region(launch.workspace) })
    }
}
