//! Plans that share states and arenas: bodies of any of them, in any sequence.
//!
//! Each plan is proved alone: its bodies are right where they begin with what its prologue leaves. So any
//! sequence of bodies is right where every body leaves what the prologue of every plan does. Four things are
//! left to prove:
//!
//! - a prologue loads states and copies them to their host shadows, and an epilogue stores them; neither does
//!   anything else;
//! - resident slots and host shadows of variable states are the same in all plans;
//! - a body leaves variable states in their host shadows, also where its own plan does not read them there;
//! - no command of a plan writes where another keeps a constant, unless both keep the same one there.

use std::collections::BTreeMap;

use memc_ir::{Module, Slice, Stream};
use memc_plan::{Action, Command, Init, Plan, Queue, Section, State};

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
    let has_shadows = !shadows(plan).is_empty();
    for (bucket, ((source, of), own)) in sources.iter().zip(&plans).zip(&kept).enumerate() {
        let mut errors = differing(plan, of);
        errors.extend(other_commands(of));
        if !errors.is_empty() {
            return Err(fail(bucket, errors));
        }
        if has_shadows {
            check(source, &reading(of)).map_err(|errors| BucketErrors { bucket, errors })?;
        }
        let others = kept.iter().enumerate().filter(|(other, _)| *other != bucket);
        let errors: Vec<CheckError> =
            others.flat_map(|(other, kept)| kept.disturbed((of, own), other)).take(MAX_ERRORS).collect();
        if !errors.is_empty() {
            return Err(fail(bucket, errors));
        }
    }
    Ok(reports)
}

/// Variable states of a bucket that are not those of the plan.
fn differing(plan: &Plan, bucket: &Plan) -> Vec<CheckError> {
    let variables = |of: &Plan| of.states.iter().filter(|state| state.is_variable()).count();
    let counts = [variables(plan), variables(bucket)];
    if counts[0] != counts[1] {
        let what = format!("{} variable states where the plan has {}", counts[1], counts[0]);
        return vec![CheckError::BadState { at: "the table of states".to_owned(), what }];
    }
    let pairs = plan.states.iter().zip(&bucket.states);
    let is_other = |a: &State, b: &State| a != b || plan.host_shadow(a) != bucket.host_shadow(b);
    let differ = pairs.filter(|(a, b)| (a.is_variable() || b.is_variable()) && is_other(a, b));
    let error = |(_, state): (&State, &State)| CheckError::BadState {
        at: format!("state `{}`", state.name),
        what: "it is another than in the plan, or elsewhere".to_owned(),
    };
    differ.map(error).take(MAX_ERRORS).collect()
}

/// Commands that do more than to load, shadow and store states, of the prologue and the epilogue.
fn other_commands(plan: &Plan) -> Vec<CheckError> {
    let fills_shadow = |src: &Slice, dst: &Slice| {
        plan.states.iter().any(|state| state.resident == *src && plan.host_shadow(state) == Some(*dst))
    };
    let is_plain = |section: Section, action: &Action| match action {
        Action::Load { .. } | Action::Store { .. } | Action::Record { .. } | Action::Wait { .. } => true,
        Action::Copy { src, dst } => section == Section::Prologue && fills_shadow(src, dst),
        _ => false,
    };
    let other = plan
        .commands()
        .filter(|(section, _, command)| *section != Section::Body && !is_plain(*section, &command.action));
    let error = |(section, index, command): (Section, usize, &Command)| CheckError::BadCommand {
        at: site(section, index, command),
        what: "between steps, a plan with buckets does nothing but load, shadow and store states".to_owned(),
    };
    other.map(error).take(MAX_ERRORS).collect()
}

/// A command of the first step.
fn site(section: Section, index: usize, command: &Command) -> Site {
    let (queue, label) = (command.queue, command.label.clone());
    Site { section, step: 0, index, queue, command: command.to_string(), label }
}

/// Host shadows of variable states, with their resident slots.
fn shadows(plan: &Plan) -> Vec<(Slice, Slice)> {
    let variables = plan.states.iter().filter(|state| state.is_variable());
    variables.filter_map(|state| Some((state.resident, plan.host_shadow(state)?))).collect()
}

/// The plan as one that stores at its end what is in the host shadows.
fn reading(plan: &Plan) -> Plan {
    let mut plan = Plan { buckets: Vec::new(), ..plan.clone() };
    let on = |queue, action| Command { queue, action, label: String::new() };
    let mut events = plan.events;
    let mut join = |queue| {
        let event = events;
        events = events.saturating_add(1);
        [on(queue, Action::Record { event }), on(Queue::Host, Action::Wait { event })]
    };
    let mut ending: Vec<Command> =
        Stream::ALL.into_iter().flat_map(|stream| join(Queue::Device(stream))).collect();
    let back = |(resident, shadow)| on(Queue::H2D, Action::Copy { src: shadow, dst: resident });
    ending.extend(shadows(&plan).into_iter().map(back));
    ending.extend(join(Queue::H2D));
    plan.events = events;
    let stores = |command: &Command| matches!(command.action, Action::Store { .. });
    let at = plan.epilogue.iter().position(stores).unwrap_or(plan.epilogue.len());
    plan.epilogue.splice(at..at, ending);
    plan
}

/// Bytes in which a plan keeps constants, by space and offset.
struct Kept<'a>(BTreeMap<(memc_ir::Space, u64), (Slice, &'a State)>);

impl<'a> Kept<'a> {
    fn of(plan: &'a Plan) -> Kept<'a> {
        let constants = plan.states.iter().filter(|state| !state.is_variable());
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
    fn disturbed(&self, (plan, own): (&Plan, &Kept<'_>), owner: usize) -> Vec<CheckError> {
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
            let at = site(section, index, command);
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
