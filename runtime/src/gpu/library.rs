//! Which kernels of a program a library computes.

use std::collections::{BTreeMap, BTreeSet};

use memc_gpu::{Clock, LibraryOp, Span};
use memc_ir::{OpKind, TensorType};

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
    /// What is lost with a library that is not there, once for each.
    pub(super) notes: BTreeSet<String>,
}

/// Asks the driver for every kernel that can be a library call.
///
/// The way that a library takes may depend on how much workspace it has. It is offered what all launches of the kernel
/// have, and no more than [`memc_cuda::allowance`], so that plans that list the allowance agree, bit for bit.
///
/// # Errors
/// Those of a library that is there and fails.
pub(super) fn take(program: &Program, driver: &mut impl Clock) -> Result<Taken, Error> {
    let free_bytes = driver.facts()?.free_bytes;
    let mut least: BTreeMap<(&OpKind, &[TensorType]), usize> = BTreeMap::new();
    for launch in launches(program) {
        if let Some(kernel) = program.kernels.get(launch.kernel) {
            let least = least.entry((&kernel.op, &kernel.operands)).or_insert(usize::MAX);
            *least = launch.workspace.len.min(*least);
        }
    }
    let (mut planned, mut notes) = (BTreeMap::new(), BTreeSet::new());
    for (&(op, operands), &least) in &least {
        let Some(call) = memc_cuda::library(op, operands) else { continue };
        let allowance = usize::try_from(memc_cuda::allowance(op, operands)).unwrap_or(usize::MAX);
        match driver.plan_library(&call, least.min(allowance)) {
            Ok(found) => {
                let takes = call.elements().0.len();
                planned.insert((op, operands), found.map(|found| (found, takes)));
            }
            Err(error) => {
                let Some(component) = error.lacks() else { return Err(error.into()) };
                notes.insert(format!("{}: {error}", component.absence()));
            }
        }
    }
    let op = |kernel: &crate::program::Kernel| *planned.get(&(&kernel.op, kernel.operands.as_slice()))?;
    Ok(Taken { ops: program.kernels.iter().map(op).collect(), free_bytes, notes })
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
        let operands = (0..takes).filter_map(|i| operand(launch, i));
        let places = operands.chain(launch.results.iter().copied()).map(span).collect();
        Some(Call { op, places, workspace: span(launch.workspace) })
    }
}
