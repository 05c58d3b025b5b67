//! Updates of small parameters that share a launch.
//!
//! Updates that follow each other in the compute stream, with no event between them, are issued as one launch
//! at the place of the last: nothing can tell the difference, since no other stream waits for one of them
//! alone, and none of them touches what another one writes.

use memc_cuda::{MOST_UPDATES, is_small_update};
use memc_plan::{Kernel, Queue};

use crate::Program;
use crate::program::{Action, Command, Launch, Place, Source};

/// Commands of a section that share a launch, two or more in a group, by index; groups in order.
pub(super) fn groups(program: &Program, commands: &[Command]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<(usize, &Launch)> = Vec::new();
    for (index, command) in commands.iter().enumerate().filter(|(_, c)| c.queue == Queue::COMPUTE) {
        let launch = match &command.action {
            // Bytes become undefined, which is nothing that a kernel does.
            Action::Free(_) => continue,
            Action::Launch(launch) => small_update(program, launch).then_some(launch),
            _ => None,
        };
        let joins = launch.is_some_and(|launch| {
            open.len() < MOST_UPDATES && open.iter().all(|(_, other)| may_share(program, other, launch))
        });
        if !joins {
            close(&mut open, &mut groups);
        }
        open.extend(launch.map(|launch| (index, launch)));
    }
    close(&mut open, &mut groups);
    groups
}

fn close(open: &mut Vec<(usize, &Launch)>, groups: &mut Vec<Vec<usize>>) {
    if open.len() > 1 {
        groups.push(open.iter().map(|(index, _)| *index).collect());
    }
    open.clear();
}

fn small_update(program: &Program, launch: &Launch) -> bool {
    program.kernels.get(launch.kernel).is_some_and(|kernel| is_small_update(&kernel.op, &kernel.operands))
}

/// Whether two updates are by the same op on the same element types, and neither touches what the other
/// writes.
fn may_share(program: &Program, a: &Launch, b: &Launch) -> bool {
    let (Some(k), Some(l)) = (program.kernels.get(a.kernel), program.kernels.get(b.kernel)) else {
        return false;
    };
    let dtypes = |kernel: &Kernel| kernel.operands.iter().map(|t| t.dtype).collect::<Vec<_>>();
    let touches = |launch: &Launch, written: &Place| {
        let read =
            launch.operands.iter().any(|o| matches!(o, Source::Place(place) if place.overlaps(written)));
        read || launch.results.iter().any(|place| place.overlaps(written))
    };
    k.op == l.op
        && dtypes(k) == dtypes(l)
        && !a.results.iter().any(|written| touches(b, written))
        && !b.results.iter().any(|written| touches(a, written))
}
