//! Which kernels of a program a library computes.

use std::collections::{BTreeMap, BTreeSet};

use memc_gpu::{Clock, LibraryCall, LibraryOp, Span, Ways};
use memc_ir::{OpKind, TensorType};

use super::kept::Kept;
use super::lower::{launches, operand};
use super::replay::span;
use crate::program::Launch;
use crate::{Error, Program};

/// What libraries compute.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// For each kernel of the program the call that computes it, and how many of its operands, the first ones, the call
    /// takes; none where it is generated.
    ops: Vec<Option<(LibraryOp, usize)>>,
    /// Bytes of the device that were free before libraries were asked.
    pub(super) free_bytes: u64,
    /// What the user should know, such as what is lost with a library that is not there, once for each.
    pub(super) notes: BTreeSet<String>,
    /// Why libraries that kernels could be calls of are not there.
    pub(super) lacks: BTreeSet<String>,
}

/// An op with the types of its operands.
type Types<'a> = (&'a OpKind, &'a [TensorType]);

/// Entries of a program's kernel table that are the same call, and are computed in the same way.
pub(super) struct Group {
    /// Their indices.
    pub(super) kernels: Vec<usize>,
    pub(super) call: LibraryCall,
    /// Bytes of workspace that the library is offered.
    pub(super) workspace: usize,
    /// How many of the operands, the first ones, the call takes.
    takes: usize,
}

impl Group {
    /// The places of a launch that the call takes.
    pub(super) fn places(&self, launch: &Launch) -> Vec<Span> {
        places(launch, self.takes)
    }
}

fn places(launch: &Launch, takes: usize) -> Vec<Span> {
    let operands = (0..takes).filter_map(|i| operand(launch, i));
    operands.chain(launch.results.iter().copied()).map(span).collect()
}

/// All kernels of a program that are launched and can be library calls.
///
/// The way that a library takes may depend on how much workspace it has. It is offered what all launches of the kernel
/// have, and no more than [`memc_cuda::allowance`], so that plans that list the allowance agree, bit for bit.
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
        let call = memc_cuda::library(op, operands)?;
        let allowance = usize::try_from(memc_cuda::allowance(op, operands)).unwrap_or(usize::MAX);
        let takes = call.elements().0.len();
        Some(Group { kernels, call, workspace: allowance.min(least), takes })
    };
    same.into_iter().filter_map(group).collect()
}

/// Asks the driver for every kernel that can be a library call, in the way that the plan's tuning has for it where that
/// still holds.
///
/// # Errors
/// Those of a library that is there and fails.
pub(super) fn take(program: &Program, driver: &mut (impl Clock + Ways)) -> Result<Taken, Error> {
    let free_bytes = driver.facts()?.free_bytes;
    let mut kept = Kept::new(program, driver.setting());
    let (mut ops, mut notes) = (vec![None; program.kernels.len()], BTreeSet::new());
    let mut lacks = BTreeSet::new();
    for group in groups(program) {
        let (call, workspace) = (&group.call, group.workspace);
        let mut found = Ok(None);
        if let Some(way) = kept.way(&group.kernels) {
            found = driver.plan_way(call, workspace, &way);
            if matches!(found, Ok(None)) {
                kept.refused();
            }
        }
        if matches!(found, Ok(None)) {
            found = driver.plan_library(call, workspace);
        }
        match found {
            Ok(found) => {
                for &kernel in &group.kernels {
                    let op = ops.get_mut(kernel);
                    op.into_iter().for_each(|op| *op = found.map(|found| (found, group.takes)));
                }
            }
            Err(error) => {
                let Some(component) = error.lacks() else { return Err(error.into()) };
                notes.insert(format!("{}: {error}", component.absence()));
                lacks.insert(error.to_string());
            }
        }
    }
    notes.extend(kept.note());
    Ok(Taken { ops, free_bytes, notes, lacks })
}

/// A library call, ready to be issued.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) op: LibraryOp,
    pub(super) places: Vec<Span>,
    pub(super) workspace: Span,
}

impl Taken {
    /// The call that computes a kernel.
    pub(super) fn op(&self, kernel: usize) -> Option<LibraryOp> {
        self.ops.get(kernel)?.map(|(op, _)| op)
    }

    /// The call for a launch, where a library computes it.
    pub(super) fn call(&self, launch: &Launch) -> Option<Call> {
        let (op, takes) = (*self.ops.get(launch.kernel)?)?;
        Some(Call { op, places: places(launch, takes), workspace: span(launch.workspace) })
    }
}
