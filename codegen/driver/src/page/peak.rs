//! The tensors that are live when most is.

use std::cmp::Reverse;

use memc_ir::counted;

use super::scene::Scene;
use super::svg::{ms, percent, size, table};

/// Most rows of a table.
pub(super) const MOST_ROWS: usize = 300;

/// The table, the largest first.
pub(super) fn html(scene: &Scene<'_>) -> String {
    let at = scene.peak.ns;
    let mut live = Vec::new();
    for slot in &scene.slots.slots {
        let stays = scene.stays(slot).into_iter();
        let there = stays.filter(|(_, start, end)| {
            scene.folded((*start, *end)).iter().any(|(start, end)| (*start..*end).contains(&at))
        });
        live.extend(there.map(|(stay, start, end)| (slot, stay, start, end)));
    }
    live.sort_by_key(|(slot, ..)| (Reverse(slot.bytes), slot.offset));
    let total = scene.peak.total();
    let rows: Vec<Vec<String>> = live
        .iter()
        .take(MOST_ROWS)
        .map(|(slot, stay, start, end)| {
            vec![
                scene.name(stay.tensor).to_owned(),
                scene.part(stay.tensor).name().to_owned(),
                size(slot.bytes),
                percent(slot.bytes, total),
                if stay.from.is_none() { "step's begin".to_owned() } else { scene.moment(*start) },
                if stay.to.is_none() { "step's end".to_owned() } else { scene.moment(*end) },
            ]
        })
        .collect();
    let rest: u64 = live.iter().skip(MOST_ROWS).map(|(slot, ..)| slot.bytes).sum();
    let caption = match live.len().saturating_sub(MOST_ROWS) {
        0 => format!("{} at {}, the largest first", counted(live.len(), "tensor"), ms(at)),
        more => format!(
            "The {MOST_ROWS} largest tensors at {}; {} of {} in all left out",
            ms(at),
            counted(more, "smaller one"),
            size(rest)
        ),
    };
    let header = ["tensor", "part", "bytes", "share", "from", "to"];
    format!("<div class=\"rows\" tabindex=\"0\">{}</div>\n", table(&caption, &header, 2, &rows))
}
