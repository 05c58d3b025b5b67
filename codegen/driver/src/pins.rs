//! Persistent tensors with given places between steps.
//!
//! Planners know no such places. So they are asked about a step in which a tensor that is to begin in host
//! memory is an input and, where the step changes it, a result, and in which others that have a place do not
//! leave the device. Their decisions then are carried out for the step itself.

use std::collections::{BTreeMap, BTreeSet};

use memc_planner::{Action, Decisions, Handling, Problem, Resident, TensorId, TensorKind};

/// Places of persistent tensors between steps, by name.
pub(crate) type Pins = BTreeMap<String, Resident>;

/// The persistent tensors of a problem that have a place.
fn placed<'a>(p: &'a Problem, pins: &'a Pins) -> impl Iterator<Item = (TensorId, Resident)> + 'a {
    let persistent = p.tensors.iter().filter(|(_, tensor)| tensor.persistent());
    persistent.filter_map(|(t, tensor)| Some((t, *pins.get(&tensor.name)?)))
}

/// The problem that planners are asked about.
pub(crate) fn posed(p: &Problem, pins: &Pins) -> Problem {
    let mut posed = p.clone();
    for (t, place) in placed(p, pins) {
        let tensor = &p.tensors[t];
        if place == Resident::Host {
            posed.tensors[t].kind = TensorKind::Input;
            tensor.writes.last().iter().for_each(|&&op| posed.ops[op].outputs.push((t, tensor.size)));
        } else {
            posed.handling.insert(t, Handling::Keep);
        }
    }
    posed
}

/// Decisions about the problem, from those about [`posed`].
pub(crate) fn restored(p: &Problem, pins: &Pins, decisions: &Decisions) -> Decisions {
    let mut d = decisions.clone();
    // Tensors on the device have their own offsets, around which all others are chosen again.
    if placed(p, pins).any(|(_, place)| place != Resident::Host) {
        without_offsets(&mut d);
    }
    let mut copied = BTreeSet::new();
    for (t, place) in placed(p, pins) {
        d.residents.insert(t, place);
        if !matches!(place, Resident::Dev(_)) {
            copied.insert(t);
        }
    }
    for action in std::mem::take(&mut d.actions) {
        let ran = match &action {
            Action::Run(run) if !run.recompute => Some(run.op),
            _ => None,
        };
        d.actions.push(action);
        let Some(op) = ran else { continue };
        let last = |t: &&TensorId| copied.contains(*t) && p.tensors[**t].writes.last() == Some(&op);
        d.actions.extend(p.ops[op].writes.iter().filter(last).map(|&t| Action::Out(t)));
    }
    d
}

/// Leaves all offsets to the layout.
fn without_offsets(d: &mut Decisions) {
    for resident in d.residents.values_mut() {
        match resident {
            Resident::Dev(at) | Resident::Both(at) => *at = None,
            Resident::Host => {}
        }
    }
    for action in &mut d.actions {
        match action {
            Action::In(place) => place.1 = None,
            Action::Run(run) => {
                run.at.iter_mut().for_each(|place| place.1 = None);
                run.scratch.iter_mut().for_each(|at| *at = None);
                run.workspace.iter_mut().for_each(|at| *at = None);
            }
            Action::Out(_) | Action::Drop(_) => {}
        }
    }
}
