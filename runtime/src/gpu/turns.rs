//! Two places for each input in host memory, in turn, so that the host writes a step's inputs while the step
//! before it still reads its own.
//!
//! A plan has one place for each input, and the host waits until nothing reads it before it writes the next
//! step's. Where that is late in a step, the device stands still while the host writes inputs and issues the
//! step. With two places the host waits for the step before the last one. The device's queues then wait for
//! what the host would have waited for, so that commands keep the order that the plan proves.

use std::sync::Arc;

use memc_plan::{Section, Space};

use super::split::{HALVES, Split};
use crate::Program;
use crate::program::{Action, Command, Place, Source};

/// Granularity of places, in bytes.
const ALIGN: usize = 256;

/// The places of each turn; see the module.
pub(super) struct Turns {
    /// The program with the places of each turn; the same one where inputs have one place.
    programs: [Arc<Program>; HALVES],
    /// The body's crossing events; none where inputs have one place.
    split: Option<Arc<Split>>,
    /// Events that the host waits for before it writes inputs.
    gates: Vec<usize>,
    /// The turn of the next step.
    pub(super) next: usize,
    /// Bytes of the host arena with all places.
    pub(super) host_bytes: usize,
}

impl Turns {
    /// Inputs in the one place that the plan has.
    pub(super) fn one_place(program: &Arc<Program>) -> Turns {
        let programs = [program.clone(), program.clone()];
        Turns { programs, split: None, gates: Vec::new(), next: 0, host_bytes: program.host_bytes }
    }

    /// Inputs in two places, where the body begins with writing them all, the program uses their places for
    /// nothing else, and the host arena may have `most` bytes.
    pub(super) fn of(program: &Arc<Program>, split: &Arc<Split>, most: u64) -> Turns {
        let body = program.section(Section::Body);
        let lead = body.get(..split.device.start).unwrap_or_default();
        let gates = lead.iter().filter_map(|command| match command.action {
            Action::Wait(event) => Some(event),
            _ => None,
        });
        let gates: Vec<usize> = gates.collect();
        let is_written = |input| {
            let writes = |c: &&Command| matches!(c.action, Action::Write(i) if i == input);
            let all = Section::ALL.into_iter().flat_map(|section| program.section(section));
            lead.iter().filter(writes).count() == 1 && all.filter(writes).count() == 1
        };
        // Whatever else the host did there would be after its waits.
        let is_lead = |c: &Command| matches!(c.action, Action::Wait(_) | Action::Write(_));
        let are_written =
            !gates.is_empty() && lead.iter().all(is_lead) && (0..program.slots.len()).all(is_written);
        let Some(second) = second(program).filter(|p| are_written && p.host_bytes as u64 <= most) else {
            return Turns::one_place(program);
        };
        let (host_bytes, programs) = (second.host_bytes, [program.clone(), Arc::new(second)]);
        Turns { programs, split: Some(split.clone()), gates, next: 0, host_bytes }
    }

    /// The program of a turn.
    pub(super) fn program(&self, turn: usize) -> &Arc<Program> {
        let [first, second] = &self.programs;
        if turn == 0 { first } else { second }
    }

    /// The program of the next step.
    pub(super) fn next_program(&self) -> Arc<Program> {
        self.program(self.next).clone()
    }

    /// Ends a step.
    pub(super) fn pass(&mut self) {
        self.next = HALVES - 1 - self.next;
    }

    /// Events that a step's queues wait for in the host's place.
    pub(super) fn gates(&self) -> &[usize] {
        &self.gates
    }

    /// The event by which the next step records an event of the program outside of graphs.
    pub(super) fn recorded(&self, section: Section, event: usize) -> usize {
        let own = || self.split.as_ref()?.outside(self.next, event);
        let is_own = section == Section::Body && self.gates.contains(&event);
        own().filter(|_| is_own).unwrap_or(event)
    }

    /// For a wait of the host at the start of a body: the event that stands for the last step of the same
    /// turn.
    pub(super) fn same_turn(&self, section: Section, index: usize, event: usize) -> Option<usize> {
        let split = self.split.as_ref()?;
        let leads = section == Section::Body && index < split.device.start;
        split.outside(self.next, event).filter(|_| leads)
    }
}

/// The program with each input in a second place, where nothing else is in the first ones.
fn second(program: &Program) -> Option<Program> {
    let mut from = program.slots.clone();
    let mut to = Vec::with_capacity(from.len());
    let mut end = program.host_bytes;
    for slot in &from {
        let start = end.checked_next_multiple_of(ALIGN)?;
        end = start.checked_add(slot.len)?;
        to.push(start);
    }
    let moved = |place: &Place| {
        let holds = |slot: &Place| slot.start <= place.start && place.end() <= slot.end();
        let i = from.iter().position(|slot| slot.overlaps(place) && holds(slot))?;
        Some(Place { start: to.get(i)? + (place.start - from.get(i)?.start), ..*place })
    };
    let apart = |place: &Place| !from.iter().any(|slot| slot.overlaps(place));
    let are_apart = program.resident_slots.iter().chain(&program.results).all(apart);
    let alone = from.iter().all(|a| from.iter().filter(|b| a.overlaps(b)).count() == 1);
    if !are_apart || !alone || from.iter().any(|slot| slot.space != Space::Host) {
        return None;
    }
    let mut body = program.section(Section::Body).to_vec();
    for command in &mut body {
        if !written(&command.action).all(|place| apart(&place)) {
            return None;
        }
        for place in read(&mut command.action).filter(|place| !apart(place)) {
            *place = moved(place)?;
        }
    }
    for command in [Section::Prologue, Section::Epilogue].into_iter().flat_map(|s| program.section(s)) {
        let mut action = command.action.clone();
        if !written(&action).all(|place| apart(&place)) || !read(&mut action).all(|place| apart(place)) {
            return None;
        }
    }
    for (slot, start) in from.iter_mut().zip(&to) {
        slot.start = *start;
    }
    Some(program.with_body(body, from, end))
}

/// Places that a command of a queue writes.
fn written(action: &Action) -> impl Iterator<Item = Place> + '_ {
    let (many, one) = match action {
        Action::Launch(launch) => (launch.results.as_slice(), Some(launch.workspace)),
        Action::Copy { dst, .. } => (&[][..], Some(*dst)),
        Action::Free(place) => (&[][..], Some(*place)),
        _ => (&[][..], None),
    };
    many.iter().copied().chain(one)
}

/// Places that a command of a queue reads.
fn read(action: &mut Action) -> impl Iterator<Item = &mut Place> {
    let (many, one) = match action {
        Action::Launch(launch) => (launch.operands.as_mut_slice(), None),
        Action::Copy { src, .. } => (&mut [][..], Some(src)),
        _ => (&mut [][..], None),
    };
    let places = many.iter_mut().filter_map(|source| match source {
        Source::Place(place) => Some(place),
        Source::Result(_) => None,
    });
    places.chain(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that copies `from` to the device; the host waits for the copy before it writes the next input.
    fn turns(from: &str, most: u64) -> (Turns, usize) {
        let text = format!(
            "plan 1\narena dev 512 host 768\ninput i0 x f32[64] host+0:256 data input micro 0 range 0..0\n\
             output o0 y f32[64] host+256:256 output\nevents 2\nprologue {{\n  h2d record e0\n}}\nbody {{\n  \
             host wait e0\n  host write i0\n  h2d copy {from} -> dev+0:256\n  h2d record e0\n  \
             d2h wait e0\n  d2h copy dev+0:256 -> host+256:256\n  d2h record e1\n  h2d wait e1\n  \
             host wait e1\n  host read o0\n}}\n"
        );
        let plan = memc_plan::text::parse(&text).unwrap();
        let program = Arc::new(Program::new(&plan).unwrap());
        let split = Arc::new(Split::of(&program).unwrap());
        (Turns::of(&program, &split, most), split.outside(1, 0).unwrap())
    }

    #[test]
    fn inputs_have_two_places_where_there_is_room() {
        let (mut turns, other) = turns("host+0:256", 1024);
        assert_eq!((turns.host_bytes, turns.gates()), (1024, &[0][..]));
        let place = |turn: usize| turns.program(turn).slots[0].start;
        assert_eq!([place(0), place(1)], [0, 768]);
        let copied = |turn: usize| match &turns.program(turn).section(Section::Body)[2].action {
            Action::Copy { src, .. } => src.start,
            action => panic!("{action:?}"),
        };
        assert_eq!([copied(0), copied(1)], [0, 768]);
        turns.pass();
        assert_eq!(turns.recorded(Section::Body, 0), other);
        assert_eq!(turns.recorded(Section::Prologue, 0), 0);
        // The first command is the host's wait before it writes, the one before the last that for an output.
        assert_eq!(turns.same_turn(Section::Body, 0, 0), Some(other));
        assert_eq!(turns.same_turn(Section::Body, 8, 1), None);
    }

    /// With less memory than both places take, or a copy of some of an input's bytes with others. A copy of
    /// others alone changes nothing.
    #[test]
    fn inputs_have_one_place_otherwise() {
        for (from, most) in [("host+0:256", 1023), ("host+128:256", 4096), ("host+384:256", 4096)] {
            let (turns, _) = turns(from, most);
            let is_one = turns.host_bytes == 768 && turns.gates().is_empty();
            assert_eq!(is_one, from != "host+384:256", "{from}, {most}");
        }
    }
}
