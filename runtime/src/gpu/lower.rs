//! From a program's launches to those of generated kernels, with places in the device arena.

use std::borrow::Cow;

use memc_cuda::{Arg, IndexCheck, Launch as KernelLaunch, Lowering};
use memc_gpu::Word;
use memc_ir::{Bytes, TensorType};
use memc_plan::{Kernel, Section};

use super::batched;
use super::library::LibraryKernels;
use super::places::{launches, on_device, operand};
use super::report::{self, Reports};
use crate::program::{Launch, Place};
use crate::{Error, Program};

/// Alignment of the scratch region, as good as that of an allocation.
const ALIGN: usize = 256;

/// One launch of a generated kernel.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) launch: Cow<'a, KernelLaunch>,
    pub(super) words: Vec<Word>,
}

/// A program in a device's terms.
#[derive(Debug)]
pub(super) struct Lowered {
    /// By kernel of the program; of one that a library computes what it leaves.
    kernels: Vec<Lowering>,
    /// Bytes of the device arena with the scratch region.
    pub(super) device_bytes: usize,
    /// First byte of the scratch region.
    scratch: usize,
}

/// Lowers what no library computes of a program's kernels.
///
/// # Errors
/// [`Error::Plan`] for an op without a kernel, [`Error::Memory`] if the budget leaves no room for scratch.
pub(super) fn lower(program: &Program, by_library: &LibraryKernels) -> Result<Lowered, Error> {
    let lowerings = program.kernels.iter().enumerate().map(|(index, kernel)| match by_library.rest(index) {
        Some(rest) => Ok(rest.clone()),
        None => memc_cuda::lower(&kernel.op, &kernel.operands),
    });
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
            "kernels of this device need {} of scratch besides the arena of {}, and the plan is for {} in \
             all; compile it with a device profile whose reserve_bytes are at least that much more",
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

impl Lowered {
    /// Index checks of the kernels of a launch.
    pub(super) fn checks(&self, launch: &Launch) -> &[IndexCheck] {
        self.kernels.get(launch.kernel).map_or(&[], |lowering| &lowering.checks)
    }

    /// The launches of generated kernels for each command of a section, in order; `is_batched` lets updates
    /// share one.
    pub(super) fn section(
        &self,
        program: &Program,
        section: Section,
        reports: &Reports,
        is_batched: bool,
    ) -> Result<Vec<Vec<Call<'_>>>, Error> {
        let commands = program.section(section);
        let groups = if is_batched { batched::groups(program, commands) } else { Vec::new() };
        let mut all: Vec<Vec<Call<'_>>> = Vec::with_capacity(commands.len());
        let mut shared = groups.iter().flatten().copied().peekable();
        for (index, command) in commands.iter().enumerate() {
            all.push(match on_device(command) {
                Some(_) if shared.next_if_eq(&index).is_some() => Vec::new(),
                Some(launch) => self.calls(launch, reports.place(section, index))?,
                None => Vec::new(),
            });
        }
        for group in &groups {
            let launches = group.iter().filter_map(|&index| on_device(commands.get(index)?));
            let call = batched_call(program, &launches.collect::<Vec<_>>())?;
            group
                .last()
                .and_then(|&last| all.get_mut(last))
                .into_iter()
                .for_each(|calls| calls.push(call.clone()));
        }
        Ok(all)
    }

    /// The launches of generated kernels for a launch of the program, whose reports begin at byte `reports`
    /// of all.
    fn calls(&self, launch: &Launch, reports: usize) -> Result<Vec<Call<'_>>, Error> {
        let wrong = || Error::Internal(format!("{} has other operands than its kernel", launch.label));
        let lowering = self.kernels.get(launch.kernel).ok_or_else(wrong)?;
        let workspace = unplanned(lowering, launch).map_or(launch.workspace.start, |_| self.scratch);
        let word = |arg: &Arg| match *arg {
            Arg::Operand(i) => operand(launch, i).map(start),
            Arg::Result(j) => launch.results.get(j).copied().map(start),
            Arg::Workspace(at) => Some(Word::Address(workspace.checked_add(usize::try_from(at).ok()?)?)),
            Arg::Report(check) => Some(Word::Report(reports + check * report::BYTES)),
            Arg::I64(value) => Some(Word::Int(value)),
        };
        let calls = lowering.launches.iter().map(|launch| {
            let words = launch.args.iter().map(word).collect::<Option<_>>()?;
            Some(Call { launch: Cow::Borrowed(launch), words })
        });
        calls.collect::<Option<_>>().ok_or_else(wrong)
    }
}

fn start(place: Place) -> Word {
    Word::Address(place.start)
}

/// One launch for updates that [`batched::groups`] has put together.
fn batched_call(program: &Program, launches: &[&Launch]) -> Result<Call<'static>, Error> {
    let wrong = || Error::Internal("updates that cannot share a launch".to_owned());
    let kernels = launches.iter().map(|launch| program.kernels.get(launch.kernel));
    let kernels: Vec<&Kernel> = kernels.collect::<Option<_>>().ok_or_else(wrong)?;
    let first = kernels.first().ok_or_else(wrong)?;
    let shapes: Vec<&[TensorType]> = kernels.iter().map(|kernel| kernel.operands.as_slice()).collect();
    let launch = memc_cuda::updates(&first.op, &shapes).ok_or_else(wrong)?;
    let (operands, results) = (first.operands.len(), first.results.len());
    let word = |arg: &Arg| match *arg {
        Arg::Operand(i) => operand(launches.get(i / operands)?, i % operands).map(start),
        Arg::Result(j) => launches.get(j / results)?.results.get(j % results).copied().map(start),
        Arg::I64(value) => Some(Word::Int(value)),
        Arg::Workspace(_) | Arg::Report(_) => None,
    };
    let words = launch.args.iter().map(word).collect::<Option<_>>().ok_or_else(wrong)?;
    Ok(Call { launch: Cow::Owned(launch), words })
}
