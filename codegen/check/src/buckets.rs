//! Plans that share states and arenas: bodies of any of them, in any sequence.
//!
//! Each plan is proved alone: its bodies are right where they begin with the states in their resident slots
//! and host shadows, with the plan's own constants in place, and with all queues idle. So any sequence of
//! bodies is right where every body leaves that for every plan. Three things are left to prove:
//!
//! - resident slots are the same in all plans;
//! - a body leaves the states in the host shadows of all plans, not of its own alone;
//! - no command of a plan writes where another keeps a constant, unless both keep the same one there.

use std::collections::BTreeMap;

use memc_ir::{Module, Slice, Stream};
use memc_plan::{Action, Command, Init, Plan, Queue, State, StateRole};

use crate::{CheckError, CheckErrors, MAX_ERRORS, Report, Site, check};

/// Reasons why a plan with buckets is not proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketErrors {
    /// The bucket whose part of the proof fails; 0 is the plan itself.
    pub bucket: usize,
    /// The reasons.
    pub errors: CheckErrors,
}

/// Proves that a plan and its buckets compute what their sources say, for steps of them in any sequence. A
/// runtime runs the prologue of each, then bodies, and waits for all queues where the next body is of another
/// bucket. It ends with the epilogue of the last. `sources` has the source of the plan, then of each bucket.
///
/// # Errors
/// All reasons that the first bucket gives which is not proved.
pub fn check_buckets(sources: &[Module], plan: &Plan) -> Result<Vec<Report>, BucketErrors> {
    let plans: Vec<&Plan> = plan.with_buckets().collect();
    let fail = |bucket: usize, errors: Vec<CheckError>| BucketErrors { bucket, errors: CheckErrors(errors) };
    if plans.len() != sources.len() {
        let what = "the number of buckets".to_owned();
        let (claimed, actual) = (plans.len().to_string(), sources.len().to_string());
        return Err(fail(0, vec![CheckError::HeaderMismatch { what, claimed, actual }]));
    }
    let mut reports = Vec::new();
    for (bucket, (source, of)) in sources.iter().zip(&plans).enumerate() {
        reports.push(check(source, of).map_err(|errors| BucketErrors { bucket, errors })?);
    }
    if plans.len() == 1 {
        return Ok(reports);
    }
    let kept: Vec<Kept> = plans.iter().map(|plan| Kept::of(plan)).collect();
    let shadows = shadows(&plans);
    for (bucket, (source, of)) in sources.iter().zip(&plans).enumerate() {
        let errors = differing(plan, of);
        if !errors.is_empty() {
            return Err(fail(bucket, errors));
        }
        if !shadows.is_empty() {
            check(source, &reading(of, &shadows)).map_err(|errors| BucketErrors { bucket, errors })?;
        }
        let others = kept.iter().enumerate().filter(|(other, _)| *other != bucket);
        let errors: Vec<CheckError> =
            others.flat_map(|(other, kept)| kept.disturbed(of, other)).take(MAX_ERRORS).collect();
        if !errors.is_empty() {
            return Err(fail(bucket, errors));
        }
    }
    Ok(reports)
}

fn is_variable(state: &State) -> bool {
    state.role != StateRole::Const
}

/// Variable states of a bucket that are not those of the plan.
fn differing(plan: &Plan, bucket: &Plan) -> Vec<CheckError> {
    let variables = |of: &Plan| of.states.iter().filter(|state| is_variable(state)).count();
    let counts = [variables(plan), variables(bucket)];
    if counts[0] != counts[1] {
        let what = format!("{} variable states where the plan has {}", counts[1], counts[0]);
        return vec![CheckError::BadState { at: "the table of states".to_owned(), what }];
    }
    let pairs = plan.states.iter().zip(&bucket.states);
    let differ = pairs.filter(|(a, b)| (is_variable(a) || is_variable(b)) && a != b);
    let error = |(_, state): (&State, &State)| CheckError::BadState {
        at: format!("state `{}`", state.name),
        what: "it is another than in the plan, or elsewhere".to_owned(),
    };
    differ.map(error).take(MAX_ERRORS).collect()
}

/// Host shadows of variable states in any of the plans: index of the state, and the slice.
fn shadows(plans: &[&Plan]) -> Vec<(usize, Slice)> {
    let mut all = Vec::new();
    for plan in plans {
        for (index, state) in plan.states.iter().enumerate().filter(|(_, state)| is_variable(state)) {
            if let Some(slice) = plan.host_shadow(state)
                && !all.contains(&(index, slice))
            {
                all.push((index, slice));
            }
        }
    }
    all
}

/// The plan as one that has all of these host shadows, and at its end stores what is in them.
fn reading(plan: &Plan, shadows: &[(usize, Slice)]) -> Plan {
    let mut plan = Plan { buckets: Vec::new(), ..plan.clone() };
    let on = |queue, action| Command { queue, action, label: String::new() };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for &(index, shadow) in shadows {
        let Some(state) = plan.states.get(index) else { continue };
        if plan.host_shadow(state) != Some(shadow) {
            before.push(on(Queue::D2H, Action::Copy { src: state.resident, dst: shadow }));
        }
        after.push(on(Queue::H2D, Action::Copy { src: shadow, dst: state.resident }));
    }
    let mut events = plan.events;
    let mut join = |queue| {
        let event = events;
        events = events.saturating_add(1);
        [on(queue, Action::Record { event }), on(Queue::Host, Action::Wait { event })]
    };
    before.extend(join(Queue::D2H));
    let mut ending: Vec<Command> =
        Stream::ALL.into_iter().flat_map(|stream| join(Queue::Device(stream))).collect();
    ending.append(&mut after);
    ending.extend(join(Queue::H2D));
    plan.events = events;
    plan.prologue.append(&mut before);
    let stores = |command: &Command| matches!(command.action, Action::Store { .. });
    let at = plan.epilogue.iter().position(stores).unwrap_or(plan.epilogue.len());
    plan.epilogue.splice(at..at, ending);
    plan
}

/// Bytes in which a plan keeps constants, by space and offset.
struct Kept<'a>(BTreeMap<(memc_ir::Space, u64), (Slice, &'a State)>);

impl<'a> Kept<'a> {
    fn of(plan: &'a Plan) -> Kept<'a> {
        let constants = plan.states.iter().filter(|state| !is_variable(state));
        let slices = constants.flat_map(|state| {
            let places = std::iter::once(state.resident).chain(plan.host_shadow(state));
            places.filter(|slice| slice.bytes > 0).map(move |slice| (slice, state))
        });
        Kept(slices.map(|(slice, state)| ((slice.space, slice.offset), (slice, state))).collect())
    }

    /// The constants in bytes that overlap with these. Those of one plan are apart from each other.
    fn overlapping(&self, slice: Slice) -> impl Iterator<Item = &(Slice, &'a State)> {
        let end = if slice.bytes > 0 { slice.offset.saturating_add(slice.bytes) } else { 0 };
        let before = self.0.range((slice.space, 0)..(slice.space, end)).rev().map(|(_, kept)| kept);
        before.take_while(move |(kept, _)| kept.offset.saturating_add(kept.bytes) > slice.offset)
    }

    /// Commands of another plan that write there. That plan is right to write its own constant, which ends
    /// each step in its bytes.
    fn disturbed(&self, plan: &Plan, owner: usize) -> Vec<CheckError> {
        let own = Kept::of(plan);
        let is_own = |kept: &Slice, state: &State| {
            let same = own.0.get(&(kept.space, kept.offset));
            same.is_some_and(|(slice, own)| slice == kept && is_same(own, state))
        };
        let mut errors = Vec::new();
        for (section, index, command) in plan.commands() {
            let touched = written(plan, &command.action).into_iter().flat_map(|s| self.overlapping(s));
            let Some((kept, state)) = { touched }.find(|(kept, state)| !is_own(kept, state)) else {
                continue;
            };
            let (queue, label) = (command.queue, command.label.clone());
            let at = Site { section, step: 0, index, queue, command: command.to_string(), label };
            let what = match owner {
                0 => format!("the plan itself keeps constant `{}` in {kept}", state.name),
                _ => format!("bucket {owner} keeps constant `{}` in {kept}", state.name),
            };
            errors.push(CheckError::Disturbed { at, what });
        }
        errors
    }
}

/// Whether two constants have the same bytes.
fn is_same(a: &State, b: &State) -> bool {
    let hash = |state: &State| match state.init {
        Init::Data { hash, bytes, .. } => Some((hash, bytes)),
        _ => None,
    };
    hash(a).is_some() && hash(a) == hash(b)
}

/// Slices that a command writes or leaves undefined.
fn written(plan: &Plan, action: &Action) -> Vec<Slice> {
    let state = |index: u32| plan.states.get(usize::try_from(index).ok()?).map(|state| state.resident);
    match action {
        Action::Launch { writes, workspace, .. } => writes.iter().copied().chain(*workspace).collect(),
        Action::Copy { dst, .. } => vec![*dst],
        Action::Free { slice } => vec![*slice],
        Action::Load { state: index } => state(*index).into_iter().collect(),
        Action::HostWrite { input } => {
            let input = usize::try_from(*input).ok().and_then(|index| plan.inputs.get(index));
            input.map(|input| input.slot).into_iter().collect()
        }
        Action::Record { .. } | Action::Wait { .. } | Action::Store { .. } | Action::HostRead { .. } => {
            Vec::new()
        }
    }
}
