//! Launches of a program, and their places as regions of the arenas.

use memc_gpu::Region;
use memc_plan::{Queue, Section};

use crate::Program;
use crate::program::{Action, Command, Launch, Place, Source};

/// All launches of a program on the device.
pub(super) fn launches(program: &Program) -> impl Iterator<Item = &Launch> {
    Section::ALL.into_iter().flat_map(|section| program.section(section)).filter_map(on_device)
}

/// The launch of a command on the device.
pub(super) fn on_device(command: &Command) -> Option<&Launch> {
    match &command.action {
        Action::Launch(launch) if command.queue == Queue::COMPUTE => Some(launch),
        _ => None,
    }
}

/// Place of an operand of a launch.
pub(super) fn operand(launch: &Launch, i: usize) -> Option<Place> {
    match *launch.operands.get(i)? {
        Source::Place(place) => Some(place),
        Source::Result(j) => launch.results.get(j).copied(),
    }
}

/// A place as the driver takes it.
pub(super) fn region(place: Place) -> Region {
    Region { arena: place.space, start: place.start, len: place.len }
}
