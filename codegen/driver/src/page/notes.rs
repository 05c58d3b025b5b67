//! Decisions of a plan as notes on the nodes and values of its model.

use std::collections::{BTreeMap, BTreeSet};

use memc_frontend::{Entries, Notes};
use memc_plan::Action;

use super::decisions::{Fate, Gap, fates};
use super::scene::Scene;
use super::svg::{ms, size};

/// The launches of a node.
#[derive(Default)]
struct Launches {
    ops: BTreeSet<&'static str>,
    commands: Vec<usize>,
    recomputed: usize,
    ns: u64,
}

/// End of the source of a gradient's ops, behind the name of the node that it is of.
const GRADIENT: &str = "_Grad";

/// The notes.
pub(super) fn notes(scene: &Scene<'_>) -> Notes {
    let mut notes = Notes::default();
    let fates: BTreeMap<usize, Fate> = fates(scene).into_iter().map(|fate| (fate.tensor, fate)).collect();
    let mut offsets: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    for slot in &scene.slots.slots {
        for stay in &slot.stays {
            offsets.entry(stay.tensor).or_default().insert(slot.offset);
        }
    }
    for (name, tensor) in scene.tensors.values() {
        let Some(fate) = fates.get(&tensor) else { continue };
        let mut entries = decided(scene, fate);
        let of = offsets.get(&tensor).into_iter().flatten().map(u64::to_string);
        entries.push(entry("offset", of.collect::<Vec<_>>().join(", ")));
        if scene.name(tensor) != name {
            entries.push(entry("shares", scene.name(tensor).to_owned()));
        }
        entries.retain(|(_, value)| !value.is_empty());
        notes.lines.insert(name.to_owned(), format!("{}, {}", fate.does.name(), size(fate.bytes)));
        notes.values.insert(name.to_owned(), entries);
    }
    for (origin, launches) in launches(scene) {
        notes.nodes.entry(origin.to_owned()).or_default().extend(ran(&launches, ""));
        if let Some(node) = origin.strip_suffix(GRADIENT) {
            notes.nodes.entry(node.to_owned()).or_default().extend(ran(&launches, "gradient_"));
        }
    }
    notes
}

fn entry(key: &str, value: String) -> (String, String) {
    (format!("memc.{key}"), value)
}

/// The fate of a tensor, and the points at which it leaves and is back.
fn decided(scene: &Scene<'_>, fate: &Fate) -> Entries {
    let label = |command: Option<usize>, none: &str| match command {
        Some(command) => scene.label(command),
        None => none.to_owned(),
    };
    let all = |text: &dyn Fn(&Gap) -> String| fate.gaps.iter().map(text).collect::<Vec<_>>().join("; ");
    let back = |gap: &Gap| {
        let next = if gap.next_step { " of the next step" } else { "" };
        format!("{}{next}", label(gap.before, "the step's end"))
    };
    vec![
        entry("decision", fate.does.name().to_owned()),
        entry("part", scene.part(fate.tensor).name().to_owned()),
        entry("bytes", fate.bytes.to_string()),
        entry("leaves_after", all(&|gap| label(gap.after, "the step's begin"))),
        entry("back_for", all(&back)),
        entry("back_by", all(&|gap| if gap.recomputed { "recompute" } else { "copy" }.to_owned())),
    ]
}

/// Launches by the source of their op.
fn launches<'s>(scene: &'s Scene<'_>) -> BTreeMap<&'s str, Launches> {
    let mut all: BTreeMap<&str, Launches> = BTreeMap::new();
    for (index, command) in scene.plan.body.iter().enumerate() {
        let Action::Launch { kernel, .. } = &command.action else { continue };
        let Some(origin) = scene.tensors.origin(&command.label).filter(|origin| !origin.is_empty()) else {
            continue;
        };
        let of = all.entry(origin).or_default();
        of.ops.extend(scene.plan.kernels.get(super::index(*kernel)).map(|kernel| kernel.op.mnemonic()));
        of.commands.push(index);
        of.recomputed += usize::from(scene.recomputed.contains(&index));
        of.ns = of.ns.saturating_add(scene.length_ns(index));
    }
    all
}

fn ran(launches: &Launches, of: &str) -> Entries {
    let commands: Vec<String> = launches.commands.iter().map(usize::to_string).collect();
    let mut entries = vec![
        entry(&format!("{of}ops"), launches.ops.iter().copied().collect::<Vec<_>>().join(", ")),
        entry(&format!("{of}commands"), commands.join(", ")),
        entry(&format!("{of}time"), ms(launches.ns)),
    ];
    if launches.recomputed > 0 {
        entries.push(entry(&format!("{of}recomputed"), launches.recomputed.to_string()));
    }
    entries
}
