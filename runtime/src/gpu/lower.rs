//! From a program's launches to those of generated kernels, with places in the device arena.

use memc_cuda::{Arg, Kernel, Launch as KernelLaunch, Lowering};
use memc_gpu::Word;
use memc_ir::Bytes;
use memc_plan::Section;

use crate::program::{Action, Launch, Place, Source};
use crate::{Error, Program};

/// Alignment of the scratch region, as good as that of an allocation.
const ALIGN: usize = 256;

/// One launch of a generated kernel.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) launch: &'a KernelLaunch,
    pub(super) words: Vec<Word>,
}

/// What a device needs to run a program.
#[derive(Debug)]
pub(super) struct Lowered {
    /// By kernel of the program.
    kernels: Vec<Lowering>,
    /// Bytes of the device arena with the scratch region.
    pub(super) device_bytes: usize,
    /// First byte of the scratch region.
    scratch: usize,
}

/// Lowers every kernel of a program.
///
/// # Errors
/// [`Error::Plan`] for an op without a kernel, [`Error::Memory`] if the budget leaves no room for scratch.
pub(super) fn lower(program: &Program) -> Result<Lowered, Error> {
    let lowerings = program.kernels.iter().map(|kernel| memc_cuda::lower(&kernel.op, &kernel.operands));
    let kernels = lowerings.collect::<Result<Vec<_>, _>>().map_err(|error| Error::Plan(error.to_string()))?;
    let needs = |launch: &Launch| unplanned(kernels.get(launch.kernel)?, launch);
    let scratch_bytes = launches(program).filter_map(needs).max().unwrap_or(0);
    let scratch = match scratch_bytes {
        0 => program.dev_bytes,
        _ => program.dev_bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX),
    };
    let device_bytes = scratch.saturating_add(scratch_bytes);
    if scratch_bytes > 0 && device_bytes as u64 > program.budget_bytes {
        return Err(Error::Memory(format!(
            "kernels of this device need {} of scratch besides the arena of {}, and the plan is for {} in all; \
             compile it with a device profile whose reserve_bytes are at least that much more",
            Bytes(scratch_bytes as u64),
            Bytes(program.dev_bytes as u64),
            Bytes(program.budget_bytes),
        )));
    }
    Ok(Lowered { kernels, device_bytes, scratch })
}

/// Bytes of workspace that a launch takes from the scratch region: all, where they are more than planned.
fn unplanned(lowering: &Lowering, launch: &Launch) -> Option<usize> {
    let bytes = usize::try_from(lowering.workspace).unwrap_or(usize::MAX);
    (bytes > launch.workspace.len).then_some(bytes)
}

/// All launches of a program.
fn launches(program: &Program) -> impl Iterator<Item = &Launch> {
    Section::ALL.into_iter().flat_map(|section| program.section(section)).filter_map(|command| match &command
        .action
    {
        Action::Launch(launch) => Some(launch),
        _ => None,
    })
}

impl Lowered {
    /// The kernels that the program's launches use.
    pub(super) fn kernels<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = &'a Kernel> {
        let lowerings = launches(program).filter_map(|launch| self.kernels.get(launch.kernel));
        lowerings.flat_map(|lowering| &lowering.launches).map(|launch| &launch.kernel)
    }

    /// The launches of generated kernels for a launch of the program.
    pub(super) fn calls(&self, launch: &Launch) -> Result<Vec<Call<'_>>, Error> {
        let wrong = || Error::Internal(format!("{} has other operands than its kernel", launch.label));
        let lowering = self.kernels.get(launch.kernel).ok_or_else(wrong)?;
        let result = |j: usize| launch.results.get(j).copied();
        let operand = |i: usize| match *launch.operands.get(i)? {
            Source::Place(place) => Some(place),
            Source::Result(j) => result(j),
        };
        let workspace = unplanned(lowering, launch).map_or(launch.workspace.start, |_| self.scratch);
        let start = |place: Place| Word::Address(place.start);
        let word = |arg: &Arg| match *arg {
            Arg::Operand(i) => operand(i).map(start),
            Arg::Result(j) => result(j).map(start),
            Arg::Workspace(at) => Some(Word::Address(workspace.checked_add(usize::try_from(at).ok()?)?)),
            Arg::I64(value) => Some(Word::Int(value)),
        };
        let calls = lowering.launches.iter().map(|launch| {
            let words = launch.args.iter().map(word).collect::<Option<_>>()?;
            Some(Call { launch, words })
        });
        calls.collect::<Option<_>>().ok_or_else(wrong)
    }
}
