//! Differences between two plans.
//!
//! Tables are compared by content and name, not by index, and launches by the kernel they refer to, so that a
//! new kernel in front of the table does not make every launch differ. Command lists are aligned so that as
//! many commands as possible have a counterpart.

mod align;
mod handling;

use std::{collections::BTreeMap, fmt::Display};

use self::align::{Edit, align};
use crate::{Action, Command, Plan, Section};

/// Differences between two plans, one line each: `-` for what is gone, `+` for what is new, `~` for what
/// changed. Of plans with buckets the bucket's name comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Model, options, budget, arenas, claims.
    pub header: Vec<String>,
    /// Tensors that are kept in one plan and swapped or recomputed in the other.
    pub handling: Vec<String>,
    /// Tables and commands.
    pub details: Vec<String>,
}

impl Differences {
    /// Whether the plans are equal.
    pub fn is_empty(&self) -> bool {
        self.header.is_empty() && self.details.is_empty()
    }
}

/// The differences from `old` to `new`. Buckets are compared by name; with a plan of one size, that bucket is
/// compared which needs most memory unplanned.
pub fn diff(old: &Plan, new: &Plan) -> Differences {
    match (old.buckets.is_empty(), new.buckets.is_empty()) {
        (true, true) => of_one(old, new),
        (false, false) => of_buckets(old, new),
        _ => {
            let [a, b] = [old, new].map(|plan| plan.find_bucket(None).unwrap_or_default());
            let [was, is] = [(old, a), (new, b)].map(|(plan, at)| match plan.buckets.is_empty() {
                true => "one size".to_owned(),
                false => format!("{} (here {})", plan.bucket_names().join(" "), name(plan, at)),
            });
            let mut out = of_one(old.bucket(a).unwrap_or(old), new.bucket(b).unwrap_or(new));
            out.header.insert(0, format!("~ buckets {was} -> {is}"));
            out
        }
    }
}

/// Name of a bucket.
fn name(plan: &Plan, index: usize) -> String {
    plan.bucket_names().into_iter().nth(index).unwrap_or_default()
}

/// The differences of plans that both have buckets.
fn of_buckets(old: &Plan, new: &Plan) -> Differences {
    let [was, is] = [old, new].map(Plan::bucket_names);
    let mut out = Differences::default();
    // A plan may have several buckets of one name.
    let mut left: Vec<(&String, &Plan)> = is.iter().zip(new.with_buckets()).collect();
    for (name, plan) in was.iter().zip(old.with_buckets()) {
        let other = left.iter().position(|(other, _)| *other == name).map(|at| left.remove(at));
        let Some((_, other)) = other else {
            out.header.push(format!("- bucket {name}"));
            continue;
        };
        let Differences { header, handling, details } = of_one(plan, other);
        let told = |lines: Vec<String>| lines.into_iter().map(|line| format!("{name}: {line}"));
        out.header.extend(told(header));
        out.handling.extend(told(handling));
        out.details.extend(told(details));
    }
    out.header.extend(left.iter().map(|(name, _)| format!("+ bucket {name}")));
    if out.is_empty() && old != new {
        out.details.push("~ only the order of buckets differs".to_owned());
    }
    out
}

/// The differences from `old` to `new` without their buckets.
fn of_one(old: &Plan, new: &Plan) -> Differences {
    let mut out = Differences { handling: handling::changes(old, new), ..Differences::default() };
    header(old, new, &mut out.header);
    let mut lines = Vec::new();
    table("kernel", &old.kernels, &new.kernels, ToString::to_string, &mut lines);
    table("state", &old.states, &new.states, |s| s.name.clone(), &mut lines);
    table("input", &old.inputs, &new.inputs, |i| i.name.clone(), &mut lines);
    table("output", &old.outputs, &new.outputs, |o| o.name.clone(), &mut lines);
    tuning(old, new, &mut lines);
    change("events", &old.events, &new.events, &mut lines);
    for section in Section::ALL {
        commands(section, old, new, &mut lines);
    }
    let is_same = || {
        let [old, new] = [old, new].map(|plan| Plan { buckets: Vec::new(), ..plan.clone() });
        old == new
    };
    if lines.is_empty() && out.header.is_empty() && !is_same() {
        lines.push(
            "~ only the order of options, kernels, states, inputs, outputs or tuned kernels differs"
                .to_owned(),
        );
    }
    out.details = lines;
    out
}

fn change<T: PartialEq + Display + ?Sized>(what: &str, old: &T, new: &T, lines: &mut Vec<String>) {
    if old != new {
        lines.push(format!("~ {what} {old} -> {new}"));
    }
}

fn header(old: &Plan, new: &Plan, lines: &mut Vec<String>) {
    let (a, b) = (&old.meta, &new.meta);
    let texts = [
        ("producer", &a.producer, &b.producer),
        ("model", &a.model, &b.model),
        ("planner", &a.planner, &b.planner),
        ("profile", &a.profile, &b.profile),
    ];
    for (what, old, new) in texts {
        if old != new {
            lines.push(format!("~ {what} {old:?} -> {new:?}"));
        }
    }
    if a.source != b.source {
        let (old, new) = (a.source.lines().count(), b.source.lines().count());
        lines.push(format!("~ source text ({old} lines -> {new} lines)"));
    } else if a.source_hash != b.source_hash {
        lines.push("~ source hash, though not the source text".to_owned());
    }
    let option = |(name, value): &(String, String)| format!("{name:?} {value:?}");
    for gone in a.options.iter().filter(|option| !b.options.contains(option)) {
        lines.push(format!("- option {}", option(gone)));
    }
    for new in b.options.iter().filter(|option| !a.options.contains(option)) {
        lines.push(format!("+ option {}", option(new)));
    }
    let numbers = [
        ("seed", a.seed, b.seed),
        ("budget", a.budget_bytes, b.budget_bytes),
        ("reserve", a.reserve_bytes, b.reserve_bytes),
        ("device arena", a.dev_bytes, b.dev_bytes),
        ("host arena", a.host_bytes, b.host_bytes),
    ];
    for (what, old, new) in numbers {
        change(what, &old, &new, lines);
    }
    for ((what, old), (_, new)) in a.claims.fields().into_iter().zip(b.claims.fields()) {
        change(&format!("claim {what}"), &old, &new, lines);
    }
}

/// Compares tuning sections, algorithms by the kernel that they compute.
fn tuning(old: &Plan, new: &Plan, lines: &mut Vec<String>) {
    let all = |plan: &Plan| -> Vec<String> {
        let Some(tuning) = &plan.tuning else { return Vec::new() };
        let libraries =
            tuning.libraries.iter().map(|(name, version)| format!("library {name:?} {version:?}"));
        let kernels = tuning.kernels.iter().map(|entry| {
            let index = usize::try_from(entry.kernel).unwrap_or(usize::MAX);
            let kernel = plan.kernels.get(index).map(ToString::to_string);
            format!("of {}: {entry}", kernel.unwrap_or_else(|| format!("k{}", entry.kernel)))
        });
        std::iter::once(format!("on {tuning}")).chain(libraries).chain(kernels).collect()
    };
    table("tuning", &all(old), &all(new), Clone::clone, lines);
}

/// Compares two tables by key. Entries with one key are matched in order.
fn table<T: PartialEq + Display>(
    what: &str,
    old: &[T],
    new: &[T],
    key: impl Fn(&T) -> String,
    lines: &mut Vec<String>,
) {
    let mut by_key: BTreeMap<String, Vec<&T>> = BTreeMap::new();
    for entry in new.iter().rev() {
        by_key.entry(key(entry)).or_default().push(entry);
    }
    let mut matched: BTreeMap<String, usize> = BTreeMap::new();
    for entry in old {
        let key = key(entry);
        match by_key.get_mut(&key).and_then(Vec::pop) {
            Some(same) => {
                *matched.entry(key).or_default() += 1;
                if same != entry {
                    lines.push(format!("~ {what} {entry} -> {same}"));
                }
            }
            None => lines.push(format!("- {what} {entry}")),
        }
    }
    for entry in new {
        match matched.get_mut(&key(entry)) {
            Some(count) if *count > 0 => *count -= 1,
            _ => lines.push(format!("+ {what} {entry}")),
        }
    }
}

fn commands(section: Section, old: &Plan, new: &Plan, lines: &mut Vec<String>) {
    let mut ids: BTreeMap<String, u32> = BTreeMap::new();
    let mut keys = |plan: &Plan| -> Vec<u32> {
        let mut id = |key| {
            let next = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            *ids.entry(key).or_insert(next)
        };
        plan.section(section).iter().map(|command| id(key(plan, command))).collect()
    };
    let (old_keys, new_keys) = (keys(old), keys(new));
    let (old_list, new_list) = (old.section(section), new.section(section));
    for edit in align(&old_keys, &new_keys) {
        match edit {
            Edit::Gone(index) => lines.extend(line('-', section, old, old_list, index)),
            Edit::New(index) => lines.extend(line('+', section, new, new_list, index)),
            Edit::Same(i, j) => {
                if let (Some(a), Some(b)) = (old_list.get(i), new_list.get(j))
                    && a.label != b.label
                {
                    lines.push(format!("~ {section} {j} label {:?} -> {:?}", a.label, b.label));
                }
            }
        }
    }
}

fn line(sign: char, section: Section, plan: &Plan, list: &[Command], index: usize) -> Option<String> {
    let command = list.get(index)?;
    let mut line = format!("{sign} {section} {index} {command}");
    let mut note = referent(plan, &command.action).unwrap_or_default();
    if !command.label.is_empty() {
        note = format!("{note}{}{:?}", if note.is_empty() { "" } else { " " }, command.label);
    }
    if !note.is_empty() {
        line = format!("{line} ; {note}");
    }
    Some(line)
}

/// Text of a command, with table entries by content or name instead of index.
fn key(plan: &Plan, command: &Command) -> String {
    let mut action = command.action.clone();
    let index = match &mut action {
        Action::Launch { kernel: index, .. }
        | Action::Load { state: index }
        | Action::Store { state: index }
        | Action::HostWrite { input: index }
        | Action::HostRead { output: index } => Some(index),
        _ => None,
    };
    match (referent(plan, &command.action), index) {
        (Some(referent), Some(index)) => {
            *index = 0;
            format!("{} {action} {referent}", command.queue)
        }
        _ => format!("{} {action}", command.queue),
    }
}

/// The table entry that an action refers to.
fn referent(plan: &Plan, action: &Action) -> Option<String> {
    let at = |index: u32| usize::try_from(index).ok();
    match action {
        Action::Launch { kernel, .. } => plan.kernels.get(at(*kernel)?).map(ToString::to_string),
        Action::Load { state } | Action::Store { state } => {
            plan.states.get(at(*state)?).map(|s| s.name.clone())
        }
        Action::HostWrite { input } => plan.inputs.get(at(*input)?).map(|i| i.name.clone()),
        Action::HostRead { output } => plan.outputs.get(at(*output)?).map(|o| o.name.clone()),
        _ => None,
    }
}
