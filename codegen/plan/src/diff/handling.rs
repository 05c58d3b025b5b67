//! Ways in which a plan makes room, tensor by tensor: kept, swapped, recomputed, or both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use memc_ir::{Bytes, Space, counted};

use crate::{Action, Plan};

/// Names that a line shows.
const SHOWN: usize = 6;

/// Treatment of a tensor between its uses in a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Handling {
    swapped: bool,
    recomputed: bool,
}

impl fmt::Display for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.swapped, self.recomputed) {
            (false, false) => "kept",
            (true, false) => "swapped",
            (false, true) => "recomputed",
            (true, true) => "swapped and recomputed",
        })
    }
}

/// The tensors that are handled otherwise in `new` than in `old`: a line for each change, its largest tensors
/// first.
pub(super) fn changes(old: &Plan, new: &Plan) -> Vec<String> {
    let (was, is) = (handled(old), handled(new));
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let mut changes: BTreeMap<(Handling, Handling), Vec<(u64, &str)>> = BTreeMap::new();
    for name in names {
        let (a, b) = (was.get(name).copied().unwrap_or_default(), is.get(name).copied().unwrap_or_default());
        if a.0 != b.0 {
            changes.entry((a.0, b.0)).or_default().push((a.1.max(b.1), name));
        }
    }
    let line = |((from, to), mut tensors): (_, Vec<(u64, &str)>)| {
        tensors.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let bytes = tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.0));
        let shown: Vec<&str> = tensors.iter().take(SHOWN).map(|tensor| tensor.1).collect();
        let more = match tensors.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (number, bytes) = (counted(tensors.len(), "tensor"), Bytes(bytes).short());
        format!("~ {from} -> {to}: {number}, {bytes}: {}{more}", shown.join(", "))
    };
    changes.into_iter().map(line).collect()
}

/// Handling and bytes of each tensor that is not simply kept, by its name in the source graph.
fn handled(plan: &Plan) -> BTreeMap<String, (Handling, u64)> {
    let source = memc_ir::parse(&plan.meta.source).ok();
    let known: BTreeSet<&str> =
        source.iter().flat_map(|module| module.values.values()).map(|value| value.name.as_str()).collect();
    let fed = plan.inputs.iter().map(|input| input.name.as_str());
    let passing: BTreeSet<&str> = fed.chain(plan.outputs.iter().map(|output| output.name.as_str())).collect();
    let mut out: BTreeMap<String, (Handling, u64)> = BTreeMap::new();
    let mut launched: BTreeSet<&str> = BTreeSet::new();
    for command in &plan.body {
        let name = original(&command.label, &known);
        let (handling, bytes) = match &command.action {
            Action::Copy { src, dst } if src.space != dst.space && !passing.contains(name) => {
                let host = if src.space == Space::Host { src } else { dst };
                (Handling { swapped: true, recomputed: false }, host.bytes)
            }
            Action::Launch { writes, .. } if !launched.insert(name) => {
                let bytes = writes.first().map_or(0, |slice| slice.bytes);
                (Handling { swapped: false, recomputed: true }, bytes)
            }
            _ => continue,
        };
        let entry = out.entry(name.to_owned()).or_default();
        entry.0.swapped |= handling.swapped;
        entry.0.recomputed |= handling.recomputed;
        entry.1 = entry.1.max(bytes);
    }
    out
}

/// The source graph's name of a value that a plan made of it: copies and repetitions have numbers behind it.
fn original<'l>(label: &'l str, known: &BTreeSet<&str>) -> &'l str {
    let mut name = label;
    while !known.contains(name) {
        match name.rsplit_once('.') {
            Some((before, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name = before,
            _ => return label,
        }
    }
    name
}
