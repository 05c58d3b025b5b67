//! Live bytes over time, part by part, with the unplanned step behind them.

use std::fmt::Write;

use super::scene::{Level, Scene};
use super::svg::{Plot, UNITS, byte_marks, ms, scaled, size, time_marks};
use super::tensors::{Part, legend};

/// Most points of a curve in time; each stands for the highest moment of its interval.
const COLUMNS: u64 = 2_000;

/// A limit above the curves by this factor is named, not drawn.
const IN_SIGHT: u64 = 2;

/// The highest of the levels within each column; a level lasts until the next one.
fn columns<T: Copy>(levels: &[(u64, T)], end_ns: u64, total: impl Fn(&T) -> u64) -> Vec<T> {
    let column = |ns: u64| usize::try_from(scaled(ns, end_ns) * COLUMNS / UNITS).unwrap_or(usize::MAX);
    let mut highest: Vec<Option<T>> = vec![None; column(end_ns) + 1];
    for (index, (ns, level)) in levels.iter().enumerate() {
        let from = column(*ns);
        let next = levels.get(index + 1).map_or(end_ns, |(next, _)| next.saturating_sub(1));
        let covered = column(next).max(from) + 1 - from;
        for place in highest.iter_mut().skip(from).take(covered) {
            if place.is_none_or(|known| total(level) > total(&known)) {
                *place = Some(*level);
            }
        }
    }
    highest.into_iter().flatten().collect()
}

/// Horizontal position of a column.
fn x(column: usize) -> u64 {
    column as u64 * UNITS / COLUMNS
}

/// Outline of an area between two heights in each column, up to `end`.
fn outline(upper: &[u64], lower: &[u64], end: u64) -> String {
    let mut path = format!("M0 {}", upper.first().copied().unwrap_or(UNITS));
    for (column, pair) in upper.windows(2).enumerate() {
        if let [before, after] = pair
            && before != after
        {
            _ = write!(path, "H{}V{after}", x(column + 1).min(end));
        }
    }
    _ = write!(path, "H{end}V{}", lower.last().copied().unwrap_or(UNITS));
    for (column, pair) in lower.windows(2).enumerate().rev() {
        if let [before, after] = pair
            && before != after
        {
            _ = write!(path, "H{}V{before}", x(column + 1).min(end));
        }
    }
    path + "H0Z"
}

/// Height of the picture in bytes, and the limits within it.
fn extent(scene: &Scene<'_>) -> (u64, u64, bool) {
    let unplanned = scene.unplanned.samples.iter().map(|sample| sample.bytes).max().unwrap_or(0);
    let highest = unplanned.max(scene.plan.meta.dev_bytes).max(1);
    let meta = &scene.plan.meta;
    let limit = meta.budget_bytes.saturating_sub(meta.reserve_bytes);
    let in_sight = limit <= highest.saturating_mul(IN_SIGHT);
    let top = if in_sight { highest.max(limit) } else { highest };
    (top.saturating_add(top / 20), limit, in_sight)
}

fn stacked(scene: &Scene<'_>, end_ns: u64, top: u64) -> String {
    let levels: Vec<(u64, Level)> = scene.levels.iter().map(|level| (level.ns, *level)).collect();
    let columns = columns(&levels, end_ns, Level::total);
    let y = |bytes: u64| UNITS.saturating_sub(scaled(bytes, top));
    let mut out = String::new();
    let mut base = vec![0u64; columns.len()];
    let end = scaled(scene.step_ns, end_ns);
    for part in Part::ALL {
        let own: Vec<u64> = columns.iter().map(|c| c.parts.get(part.index()).copied().unwrap_or(0)).collect();
        let most = own.iter().copied().max().unwrap_or(0);
        let lower: Vec<u64> = base.iter().map(|bytes| y(*bytes)).collect();
        base.iter_mut().zip(&own).for_each(|(base, own)| *base = base.saturating_add(*own));
        let upper: Vec<u64> = base.iter().map(|bytes| y(*bytes)).collect();
        if most > 0 {
            let text = format!("{}: at most {}", part.name(), size(most));
            let (class, path) = (part.index(), outline(&upper, &lower, end));
            _ = writeln!(out, "<path class=\"area p{class}\" d=\"{path}\"><title>{text}</title></path>");
        }
    }
    out
}

fn unplanned(scene: &Scene<'_>, end_ns: u64, top: u64) -> String {
    let levels: Vec<(u64, u64)> = scene.unplanned.samples.iter().map(|s| (s.ns, s.bytes)).collect();
    let columns = columns(&levels, end_ns, |bytes| *bytes);
    let upper: Vec<u64> = columns.iter().map(|bytes| UNITS.saturating_sub(scaled(*bytes, top))).collect();
    let lower = vec![UNITS; upper.len()];
    let path = outline(&upper, &lower, scaled(scene.unplanned.step_ns, end_ns));
    format!("<path class=\"before\" d=\"{path}\"><title>unplanned</title></path>\n")
}

/// The picture with its legend.
pub(super) fn html(scene: &Scene<'_>) -> String {
    let end_ns = scene.step_ns.max(scene.unplanned.step_ns);
    let (top, limit, in_sight) = extent(scene);
    let before = scene.unplanned.samples.iter().map(|sample| sample.bytes).max().unwrap_or(0);
    let mut content = unplanned(scene, end_ns, top);
    content.push_str(&stacked(scene, end_ns, top));
    if in_sight {
        let y = UNITS.saturating_sub(scaled(limit, top));
        _ = writeln!(content, "<path class=\"limit\" d=\"M0 {y}H{UNITS}\"><title>budget</title></path>");
    }
    let title = format!(
        "Live bytes over time: planned at most {}, unplanned at most {}",
        size(scene.peak.total()),
        size(before)
    );
    let line = if in_sight { "the dashed line" } else { "above the picture" };
    let plot = Plot {
        title: &title,
        height: 320,
        rows: byte_marks(top),
        columns: time_marks(end_ns),
        boxes: false,
        content,
    };
    format!(
        "<p>Planned: at most {} live, a step of {}. Unplanned, which is the grey area: at most {}, a step of \
         {}. The budget without the reserve is {}, {line}.</p>\n{}{}",
        size(scene.peak.total()),
        ms(scene.step_ns),
        size(before),
        ms(scene.unplanned.step_ns),
        size(limit),
        legend("<li><i class=\"before\"></i>unplanned</li><li><i class=\"limit\"></i>budget</li>"),
        plot.html()
    )
}
