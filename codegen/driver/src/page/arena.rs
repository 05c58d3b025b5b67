//! The device arena: address by time, a box for each slot.

use std::cmp::Reverse;

use memc_ir::counted;

use super::scene::Scene;
use super::slots::{Came, Slot};
use super::svg::{Plot, UNITS, byte_marks, rect, scaled, size, time_marks};
use super::tensors::legend;

/// Most boxes of a picture; the smallest are left out first.
pub(super) const MOST_BOXES: usize = 10_000;

/// Most names of one box.
const MOST_NAMES: usize = 3;

/// A box on the page.
struct Drawn {
    at: (u64, u64),
    extent: (u64, u64),
    class: String,
    text: String,
}

fn names(scene: &Scene<'_>, slot: &Slot) -> String {
    let all: Vec<&str> = slot.stays.iter().map(|stay| scene.name(stay.tensor)).collect();
    let more = all.len().saturating_sub(MOST_NAMES);
    let text = all.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", then ");
    if more > 0 { format!("{text} and {more} more in place") } else { text }
}

fn drawn(scene: &Scene<'_>, slot: &Slot) -> Vec<Drawn> {
    let arena = scene.plan.meta.dev_bytes;
    let stays = scene.stays(slot);
    let longest = stays.iter().max_by_key(|(_, start, end)| end - start);
    let (Some(&(first, start, _)), Some(&(last, _, end)), Some((longest, ..))) =
        (stays.first(), stays.last(), longest)
    else {
        return Vec::new();
    };
    let part = scene.part(longest.tensor);
    let came = match (first.from, first.came) {
        (None, _) => "there when the step begins",
        (_, Came::Copied) => "copied in",
        (_, Came::Recomputed) => "recomputed",
        (_, Came::Computed | Came::Resident) => "computed",
    };
    let until = if last.to.is_none() { "the step's end".to_owned() } else { scene.moment(end) };
    let text = format!(
        "{}: {}, {} at {}; {came}, from {} to {until}",
        names(scene, slot),
        part.name(),
        size(slot.bytes),
        slot.offset,
        scene.moment(start)
    );
    let top = scaled(slot.offset.saturating_add(slot.bytes), arena);
    let bottom = scaled(slot.offset, arena);
    let class = format!("b p{}{}", part.index(), if first.came == Came::Recomputed { " again" } else { "" });
    let one = |(start, end): (u64, u64)| {
        let (left, right) = (scaled(start, scene.step_ns), scaled(end, scene.step_ns));
        Drawn {
            at: (left, UNITS.saturating_sub(top)),
            extent: (right.saturating_sub(left).max(1), top.saturating_sub(bottom).max(1)),
            class: class.clone(),
            text: text.clone(),
        }
    };
    scene.folded((start, end)).into_iter().map(one).collect()
}

/// The picture, and how many slots it leaves out.
pub(super) fn html(scene: &Scene<'_>) -> String {
    let slots: Vec<Vec<Drawn>> = scene.slots.slots.iter().map(|slot| drawn(scene, slot)).collect();
    let count = slots.iter().filter(|boxes| !boxes.is_empty()).count();
    let mut boxes: Vec<Drawn> = slots.into_iter().flatten().collect();
    let left_out = boxes.len().saturating_sub(MOST_BOXES);
    if left_out > 0 {
        boxes.sort_by_key(|b| Reverse(b.extent.0.saturating_mul(b.extent.1)));
        boxes.truncate(MOST_BOXES);
    }
    boxes.sort_by_key(|b| (b.at.0, Reverse(b.at.1)));
    let mut content = String::new();
    for b in &boxes {
        rect(&mut content, &b.class, b.at, b.extent, &b.text);
    }
    let left_out = match left_out {
        0 => String::new(),
        more => format!(" The {more} smallest boxes are left out."),
    };
    let title = format!("Device arena by address and time: {}", counted(count, "slot"));
    let plot = Plot {
        title: &title,
        height: 440,
        rows: byte_marks(scene.plan.meta.dev_bytes),
        columns: time_marks(scene.step_ns),
        boxes: true,
        content,
    };
    format!(
        "<p>Each box is a slot: its height is its bytes, its width the time for which it holds a tensor that \
         is still to be read. Paler boxes with a border are recomputed. A slot that lives beyond the step \
         goes on at the left, beside the next one. There are {}.{left_out}</p>\n{}{}",
        counted(count, "slot"),
        legend("<li><i class=\"p5 again\"></i>recomputed</li>"),
        plot.html()
    )
}
