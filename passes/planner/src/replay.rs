//! Carrying out decisions that are given as text: what is wrong is said with its line.

use memc_alloc::{Buffer, Conflict, Instance, Range, check};

use crate::decisions::{Decisions, Lines};
use crate::error::{At, DecisionsError};
use crate::evaluate::{Schedule, evaluate};
use crate::ids::Tick;
use crate::place::{Site, Slot, Space, Trace};
use crate::problem::{ALIGN, Problem};
use crate::trace::trace;

/// Reads decisions and carries them out symbolically; errors name the line.
pub fn read(p: &Problem, text: &str) -> Result<Decisions, DecisionsError> {
    traced(p, text).map(|(decisions, ..)| decisions)
}

/// Reads decisions and carries them out on the model of the device; errors name the line where it is one that
/// is wrong.
pub fn replay(p: &Problem, text: &str) -> Result<Schedule, DecisionsError> {
    let (decisions, trace, lines) = traced(p, text)?;
    check_overlaps(p, &trace, &lines)?;
    evaluate(p, decisions)
}

fn traced(p: &Problem, text: &str) -> Result<(Decisions, Trace, Lines), DecisionsError> {
    let (decisions, lines) = Decisions::with_lines(text, p)?;
    let line = |at| match at {
        At::Action(i) => lines.actions.get(i).map(|&line| At::Line(line)),
        line => Some(line),
    };
    let trace = trace(p, &decisions).map_err(|e| DecisionsError { at: e.at.and_then(line), why: e.why })?;
    Ok((decisions, trace, lines))
}

/// Refuses places on the device that are given and overlap.
fn check_overlaps(p: &Problem, trace: &Trace, lines: &Lines) -> Result<(), DecisionsError> {
    let given = |s: &&Slot| s.space == Space::Dev && s.offset.is_some() && !s.live.is_empty();
    let slots: Vec<&Slot> = trace.slots.values().filter(given).collect();
    let buffer = |s: &&Slot| {
        let range = |&(from, to): &(Tick, Tick)| Range { start: from.0.into(), end: to.0.into() };
        Buffer { live: s.live.iter().map(range).collect(), bytes: s.bytes, align: ALIGN, offset: None }
    };
    let instance = Instance::new(slots.iter().map(buffer).collect()).map_err(|e| e.to_string())?;
    let offsets: Vec<u64> = slots.iter().filter_map(|s| s.offset).collect();
    match check(&instance, &offsets) {
        Err(Conflict::Overlap(a, b)) => {
            let name = |i: usize| slots.get(i).map_or_else(String::new, |s| place(p, s, lines));
            Err(format!("{} and {} overlap", name(a), name(b)).into())
        }
        other => other.map(|_| ()).map_err(|e| e.to_string().into()),
    }
}

/// Name of a place, and the line that gives it.
fn place(p: &Problem, slot: &Slot, lines: &Lines) -> String {
    let (what, line) = match slot.site {
        Site::Resident(t) => {
            let tensor = p.tensors.get(t).map_or("", |t| t.name.as_str());
            (format!("the resident slot of %{tensor}"), lines.residents.get(&t))
        }
        Site::In(i) => ("a place to copy to".into(), lines.actions.get(i)),
        Site::At(i, k) => (format!("place {} of a run", k + 1), lines.actions.get(i)),
        Site::Scratch(i, _) => ("the scratch of a run".into(), lines.actions.get(i)),
        Site::Workspace(i) => ("the workspace of a run".into(), lines.actions.get(i)),
        Site::HostResident(_) | Site::Copy | Site::Output => ("a place in host memory".into(), None),
    };
    let offset = slot.offset.unwrap_or(0);
    let line = line.map_or_else(String::new, |line| format!(" in line {line}"));
    format!("{what}{line} (@ {offset}, {} B)", slot.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two states of 64 bytes, and an op that updates the first by the second with 64 bytes of workspace.
    const PROBLEM: &str = r#"{"format": "memc-problem/1",
        "device": {"memory_bytes": 0, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9},
        "tensors": [{"id": 0, "name": "w", "bytes": 64, "kind": "persistent"},
            {"id": 1, "name": "m", "bytes": 64, "kind": "persistent"}],
        "ops": [{"id": 0, "name": "step", "time_ns": 1, "reads": [0, 1], "writes": [0],
            "workspace_bytes": 64}]}"#;

    /// Reads decisions after their first line, which an empty one follows.
    fn replayed(rest: &str) -> Result<u64, String> {
        let p = crate::json::parse(PROBLEM).expect("a problem");
        replay(&p, &format!("decisions 2\n\n{rest}"))
            .map(|r| r.evaluation.dev_bytes)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_right_is_carried_out() {
        assert_eq!(replayed("resident %w dev @ 0\nresident %m dev\nrun %step at ws @ 128"), Ok(192));
        assert_eq!(
            replayed("resident %w dev\nresident %m host\nin %m\nrun %step at ws\nout %m\ndrop %m"),
            Ok(192)
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let residents = "resident %w dev @ 0\nresident %m host\n";
        for (rest, expected) in [
            ("resident %w both\nresident %x dev", "line 4: no tensor is called %x"),
            (&format!("{residents}\nrun %step at ws"), "line 6: step needs %m, which is not on the device"),
            (&format!("{residents}in %m\nin %m"), "line 6: %m is on the device already"),
            (
                &format!("{residents}in %m @ 0\nrun %step at ws\ndrop %m"),
                "the resident slot of %w in line 3 (@ 0, 64 B) and \
                 a place to copy to in line 5 (@ 0, 64 B) overlap",
            ),
            (
                &format!("{residents}in %m @ 64\nrun %step at ws @ 64\ndrop %m"),
                "a place to copy to in line 5 (@ 64, 64 B) and the workspace \
                 of a run in line 6 (@ 64, 64 B) overlap",
            ),
            (residents, "step never runs"),
            ("resident %w dev", "%m is resident nowhere"),
        ] {
            assert_eq!(replayed(rest), Err(expected.into()), "{rest}");
        }
    }
}
