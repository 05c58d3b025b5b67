//! Reports of kernels to the host: index values out of range.
//!
//! Reports are words of page-locked memory, which kernels write only when they have something to say, so that
//! reading them costs no copy. They are read before the host takes an output or a state: an output may be out
//! before a later op of the step reports, but no state is stored after a report.

use memc_cuda::{IndexCheck, NO_REPORT, report};
use memc_gpu::Driver;
use memc_kernels::KernelError;
use memc_plan::Section;

use super::places::on_device;
use crate::program::{Action, Launch};
use crate::{Error, Program};

/// Bytes of a report.
pub(super) const BYTES: usize = size_of::<u64>();

/// A check of a launch.
#[derive(Debug)]
struct Check {
    /// The launch's section and command.
    at: (Section, usize),
    what: IndexCheck,
}

/// The reports of a program, in order of commands.
#[derive(Debug)]
pub(super) struct Reports {
    checks: Vec<Check>,
}

impl Reports {
    /// Those of a program's launches; `checks_of` has the checks of a launch.
    pub(super) fn of<'c>(program: &Program, checks_of: impl Fn(&Launch) -> &'c [IndexCheck]) -> Reports {
        let mut checks = Vec::new();
        for section in Section::ALL {
            for (index, command) in program.section(section).iter().enumerate() {
                let Some(launch) = on_device(command) else { continue };
                let of = |what: &IndexCheck| Check { at: (section, index), what: what.clone() };
                checks.extend(checks_of(launch).iter().map(of));
            }
        }
        Reports { checks }
    }

    /// The place of the first report of a command; those of its other checks follow.
    pub(super) fn place(&self, section: Section, command: usize) -> usize {
        let before = |check: &Check| (check.at.0 as usize, check.at.1) < (section as usize, command);
        BYTES * self.checks.partition_point(before)
    }

    /// All their bytes.
    pub(super) fn bytes(&self) -> usize {
        BYTES * self.checks.len()
    }

    /// Makes all reports empty.
    pub(super) fn clear(&self, driver: &mut impl Driver) {
        driver
            .reports()
            .chunks_exact_mut(BYTES)
            .for_each(|word| word.copy_from_slice(&NO_REPORT.to_le_bytes()));
    }

    /// Fails with the first report that there is: of the first launch that has one, the one that comes first
    /// in its operand.
    pub(super) fn read(&self, driver: &mut impl Driver, program: &Program) -> Result<(), Error> {
        let words = driver.reports().chunks_exact(BYTES);
        let words = words.map(|word| word.try_into().map_or(NO_REPORT, u64::from_le_bytes));
        let found = self.checks.iter().zip(words).filter_map(|(check, word)| Some((check, report(word)?)));
        let first = found.min_by_key(|(check, (position, _))| (check.at.0 as usize, check.at.1, *position));
        let Some((check, (position, value))) = first else { return Ok(()) };
        let command = program.section(check.at.0).get(check.at.1);
        match command.map(|command| &command.action) {
            Some(Action::Launch(launch)) => Err(refused(program, launch, &check.what, position, value)),
            _ => Ok(()),
        }
    }
}

fn refused(program: &Program, launch: &Launch, check: &IndexCheck, position: u64, value: i64) -> Error {
    let Some(kernel) = program.kernels.get(launch.kernel) else {
        return Error::Internal(format!("no kernel {}", launch.kernel));
    };
    let error = KernelError::Index {
        op: kernel.op.mnemonic(),
        operand: kernel.op.def().operands.get(check.operand).copied().unwrap_or_default(),
        position: usize::try_from(position).unwrap_or(usize::MAX),
        value,
        low: check.legal.start,
        high: check.legal.end,
    };
    launch.refused(&kernel.op, &error)
}
