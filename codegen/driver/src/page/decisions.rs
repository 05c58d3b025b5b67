//! Decisions of the plan: which tensors leave the device, how they come back, and what that makes room for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{counted, some_of};
use memc_plan::{Action, Space};

use super::peak::MOST_ROWS;
use super::scene::{Level, Scene};
use super::slots::{Came, Stay};
use super::svg::{escape, ms, size, table};
use super::tensors::Part;
use crate::explain::Does;

/// A time in which a tensor has no bytes on the device although it is needed again.
pub(super) struct Gap {
    from_ns: u64,
    to_ns: u64,
    /// Whether it reaches into the next step.
    pub(super) next_step: bool,
    /// The command that it leaves after, and the one that it is back for.
    pub(super) after: Option<usize>,
    pub(super) before: Option<usize>,
    /// Commands that bring it out, and back.
    out: Option<usize>,
    back: Option<usize>,
    pub(super) recomputed: bool,
}

/// Bytes of a tensor, and its stays with their times.
#[derive(Default)]
struct Stays<'s> {
    bytes: u64,
    all: Vec<(&'s Stay, u64, u64)>,
}

/// Fate of a tensor in a step.
pub(super) struct Fate {
    pub(super) tensor: usize,
    pub(super) bytes: u64,
    pub(super) does: Does,
    pub(super) gaps: Vec<Gap>,
}

fn gap(scene: &Scene<'_>, (before, end): (&Stay, u64), (next, start): (&Stay, u64), next_step: bool) -> Gap {
    let recomputed = next.came == Came::Recomputed;
    Gap {
        from_ns: end,
        to_ns: if next_step { start.saturating_add(scene.step_ns) } else { start },
        next_step,
        after: before.uses.map(|uses| uses.1).or(before.from),
        before: next.uses.map(|uses| uses.0),
        out: before.out.filter(|_| !recomputed && scene.part(before.tensor) != Part::Inputs),
        back: next.from,
        recomputed,
    }
}

/// Fates of all tensors that stays or states tell of, without scratch.
pub(super) fn fates(scene: &Scene<'_>) -> Vec<Fate> {
    let mut of: BTreeMap<usize, Stays<'_>> = BTreeMap::new();
    for slot in &scene.slots.slots {
        for stay in scene.stays(slot) {
            let own = of.entry(stay.0.tensor).or_default();
            own.bytes = slot.bytes.max(own.bytes);
            own.all.push(stay);
        }
    }
    for state in &scene.plan.states {
        if let Some(tensor) = scene.tensors.find(&state.name).filter(|_| state.resident.space == Space::Host)
        {
            of.entry(tensor).or_insert(Stays { bytes: state.resident.bytes, all: Vec::new() });
        }
    }
    of.retain(|tensor, _| scene.part(*tensor) != Part::Workspace);
    let fate = |(tensor, Stays { bytes, all: mut stays }): (usize, Stays<'_>)| {
        stays.sort_by_key(|(_, start, end)| (*start, *end));
        let gaps = gaps(scene, tensor, &stays);
        let persists = scene.tensors.get(tensor).is_some_and(|tensor| tensor.persists);
        let hosted = persists && (scene.slots.hosted.contains(&tensor) || stays.is_empty());
        let by = |recomputed: bool| gaps.iter().any(|gap| gap.recomputed == recomputed);
        let does = match (hosted, by(true), by(false)) {
            (true, ..) => Does::Host,
            (_, true, true) => Does::Both,
            (_, true, false) => Does::Recompute,
            (_, false, true) => Does::Swap,
            (_, false, false) => Does::Keep,
        };
        Fate { tensor, bytes, does, gaps }
    };
    of.into_iter().map(fate).collect()
}

/// Fates of all tensors that stays or states tell of, without scratch.
pub(super) fn by_tensor(scene: &Scene<'_>) -> BTreeMap<usize, Does> {
    fates(scene).into_iter().map(|fate| (fate.tensor, fate.does)).collect()
}

fn gaps(scene: &Scene<'_>, tensor: usize, stays: &[(&Stay, u64, u64)]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let persists = scene.tensors.get(tensor).is_some_and(|tensor| tensor.persists);
    if let (Some((first, start, _)), Some((last, _, end))) = (stays.first(), stays.last())
        && persists
        && first.came == Came::Copied
        && first.from.is_some()
    {
        gaps.push(gap(scene, (last, *end), (first, *start), true));
    }
    for pair in stays.windows(2) {
        if let [(before, _, end), (next, start, _)] = pair
            && matches!(next.came, Came::Copied | Came::Recomputed)
            && next.from.is_some()
        {
            gaps.push(gap(scene, (before, *end), (next, *start), false));
        }
    }
    gaps
}

/// The launch during a gap at whose start most is live, and how much that is.
fn room(scene: &Scene<'_>, gap: &Gap) -> Option<(usize, u64)> {
    let away = |ns: u64| {
        let next = ns.saturating_add(scene.step_ns);
        (gap.from_ns..gap.to_ns).contains(&ns) || (gap.from_ns..gap.to_ns).contains(&next)
    };
    let launches = scene.spans.values().filter(|span| {
        let action = scene.command(span.command).map(|command| &command.action);
        matches!(action, Some(Action::Launch { .. })) && away(span.start_ns)
    });
    let live = |ns: u64| {
        let after = scene.levels.partition_point(|level| level.ns <= ns % scene.step_ns);
        scene.levels.get(after.checked_sub(1)?).map(Level::total)
    };
    let levels = launches.filter_map(|span| Some((span.command, live(span.start_ns)?)));
    levels.max_by_key(|(command, bytes)| (*bytes, Reverse(*command)))
}

/// Sums by what tensors do.
fn totals(scene: &Scene<'_>, fates: &[Fate]) -> String {
    let row = |does: Does| {
        let of: Vec<&Fate> = fates.iter().filter(|fate| fate.does == does).collect();
        let commands = |pick: &dyn Fn(&Gap) -> Option<usize>| {
            let distinct: BTreeSet<usize> = of.iter().flat_map(|fate| &fate.gaps).filter_map(pick).collect();
            ms(distinct.iter().map(|command| scene.length_ns(*command)).sum())
        };
        vec![
            does.name().to_owned(),
            of.len().to_string(),
            size(of.iter().map(|fate| fate.bytes).sum()),
            commands(&|gap| gap.out),
            commands(&|gap| gap.back.filter(|_| !gap.recomputed)),
            commands(&|gap| gap.back.filter(|_| gap.recomputed)),
        ]
    };
    let rows: Vec<Vec<String>> = Does::ALL.into_iter().map(row).collect();
    let header = ["tensors that", "number", "bytes", "copies out", "copies in", "recomputed"];
    table("Decisions, and the time that they take", &header, 1, &rows)
}

fn rows(scene: &Scene<'_>, all: &[(&Fate, &Gap)]) -> Vec<Vec<String>> {
    let waited: BTreeMap<usize, u64> = scene.stalls.iter().fold(BTreeMap::new(), |mut sums, stall| {
        if let Some((command, _)) = stall.cause {
            *sums.entry(command).or_default() += stall.end_ns - stall.start_ns;
        }
        sums
    });
    let label = |command: Option<usize>| command.map_or_else(|| "-".to_owned(), |index| scene.label(index));
    let time = |command: Option<usize>| command.map_or_else(|| "-".to_owned(), |c| ms(scene.length_ns(c)));
    let row = |(fate, gap): &(&Fate, &Gap)| {
        let own = [gap.out, gap.back.filter(|_| !gap.recomputed)];
        let waits: u64 = own.iter().flatten().filter_map(|command| waited.get(command)).sum();
        vec![
            scene.name(fate.tensor).to_owned(),
            if gap.recomputed { "recompute" } else { "swap" }.to_owned(),
            label(gap.after),
            label(gap.before),
            room(scene, gap).map_or_else(
                || "-".to_owned(),
                |(command, bytes)| format!("{} ({})", scene.label(command), size(bytes)),
            ),
            size(fate.bytes),
            scene.moment(gap.from_ns),
            scene.moment(gap.to_ns),
            time(gap.out),
            time(gap.back),
            if waits == 0 { "-".to_owned() } else { ms(waits) },
        ]
    };
    all.iter().map(row).collect()
}

/// Sums, and the tensors that leave, the largest first.
pub(super) fn html(scene: &Scene<'_>) -> String {
    let fates = fates(scene);
    let claims = &scene.plan.meta.claims;
    let mut gaps: Vec<(&Fate, &Gap)> =
        fates.iter().flat_map(|fate| fate.gaps.iter().map(move |gap| (fate, gap))).collect();
    gaps.sort_by_key(|(fate, gap)| (Reverse(fate.bytes), fate.tensor, gap.next_step, gap.from_ns));
    let shown: Vec<(&Fate, &Gap)> = gaps.iter().take(MOST_ROWS).copied().collect();
    let caption = match gaps.len() - shown.len() {
        0 => "Tensors that leave the device, the largest first".to_owned(),
        more => {
            format!("The {MOST_ROWS} largest tensors that leave; {} left out", counted(more, "smaller one"))
        }
    };
    let header = [
        "tensor",
        "does",
        "leaves after",
        "back for",
        "makes room for",
        "bytes",
        "away from",
        "to",
        "out takes",
        "back takes",
        "waited for",
    ];
    let away = if gaps.is_empty() {
        "<p>Every tensor stays on the device from its first use to its last.</p>\n".to_owned()
    } else {
        let rows = rows(scene, &shown);
        format!("<div class=\"rows\" tabindex=\"0\">{}</div>\n", table(&caption, &header, 5, &rows))
    };
    let hosted: Vec<&str> =
        fates.iter().filter(|fate| fate.does == Does::Host).map(|fate| scene.name(fate.tensor)).collect();
    let hosted = if hosted.is_empty() {
        String::new()
    } else {
        format!(" In host memory, where ops on the host update them, live {}.", some_of(&hosted))
    };
    format!(
        "<p>Copied to the host: {}; copied to the device: {}; recomputed: {} for {}.{}</p>\n{}{away}",
        size(claims.swap_out_bytes),
        size(claims.swap_in_bytes),
        counted(claims.recompute_ops, "launch"),
        ms(scene.recomputed_ns()),
        escape(&hosted),
        totals(scene, &fates)
    )
}
