//! Tables and figures for people, and a plan's figures beside those of the unplanned step.

use memc::{Report, and_reserve, over};
use memc_ir::{Bytes, counted};

/// A time.
pub(crate) fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// A quotient; `-` where the divisor is 0.
pub(crate) fn quotient(a: u64, b: u64) -> String {
    over(a, b).map_or_else(|| "-".into(), |q| format!("{q:.4}"))
}

/// Rows under a header, columns aligned; columns of figures to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    laid_out(comfy_table::Table::new(), header, rows)
}

/// As [`table`], with long cells broken so that no line is wider than [`WIDEST`].
pub(crate) fn narrow_table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut t = comfy_table::Table::new();
    t.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(WIDEST);
    laid_out(t, header, rows)
}

/// Most characters of a line of text that explains.
const WIDEST: u16 = 118;

fn laid_out(mut t: comfy_table::Table, header: &[&str], rows: &[Vec<String>]) -> String {
    t.load_style(comfy_table::presets::NOTHING);
    t.set_header(header.to_vec());
    // Names may have anything in them, and a terminal obeys it.
    let seen = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    for row in rows {
        t.add_row(row.iter().map(|cell| cell.chars().map(seen).collect::<String>()));
    }
    let figures = |i: usize| {
        rows.iter().all(|r| r.get(i).is_some_and(|c| c.starts_with(|c: char| c.is_ascii_digit() || c == '-')))
    };
    for (i, column) in t.column_iter_mut().enumerate() {
        if figures(i) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    let lines: Vec<String> = t.lines().map(|l| l.trim_end().to_string()).collect();
    lines.join("\n") + "\n"
}

/// Legend of rows that are marked as stopped.
pub(crate) const STOPPED: &str =
    "stopped: a time limit or an interrupt ended the search; with more time it may find more\n";

/// The plan beside the unplanned step; empty where there is no plan.
pub(crate) fn side_by_side(r: &Report) -> String {
    let (Some(step_ns), Some(order), Some(changed)) = (r.step_ns, r.order, r.order_changed) else {
        return String::new();
    };
    let row = |what: &str, unplanned: String, planned: String| vec![what.to_string(), unplanned, planned];
    let short = |bytes: Option<u64>| Bytes(bytes.unwrap_or(0)).short();
    let time = |ns: Option<u64>| ms(ns.unwrap_or(0));
    let recomputed =
        format!("{}, {}", counted(r.recompute_ops.unwrap_or(0) as usize, "op"), time(r.recompute_ns));
    let changed = if changed { ", then changed" } else { "" };
    let rows = [
        row("order of ops", "given".into(), format!("{order}{changed}")),
        row("arena", Bytes(r.unplanned.dev_bytes).short(), short(r.arena_bytes)),
        row("host memory", Bytes(r.unplanned.host_bytes).short(), short(r.host_bytes)),
        row("step (modelled)", ms(r.unplanned.step_ns), ms(step_ns)),
        row("swapped out", "-".into(), short(r.swap_out_bytes)),
        row("swapped in", "-".into(), short(r.swap_in_bytes)),
        row("recomputed", "-".into(), recomputed),
        row("waiting for copies in", "-".into(), time(r.stall_in_ns)),
        row("waiting for room", "-".into(), time(r.stall_out_ns)),
    ];
    let bound = r.bound_ns.zip(r.bound_holds_for);
    format!(
        "{}\n{} by {}: {} in a budget of {}; smallest feasible {}{}\n",
        table(&["", "unplanned", "planned"], &rows),
        r.problem,
        r.planner,
        verdict(step_ns, r.ideal_ns, bound, r.stopped),
        Bytes(r.gpu_mem_bytes),
        Bytes(r.smallest_feasible_bytes),
        and_reserve(r.reserve_bytes),
    )
}

/// A step's time in terms of the ideal one and of the certified bound, given with its extent.
pub(crate) fn verdict(step: u64, ideal: u64, bound: Option<(u64, &str)>, stopped: bool) -> String {
    let bound = bound.map_or_else(String::new, |(ns, what)| {
        let (step, bound) = (quotient(step, ns), quotient(ns, ideal));
        format!(", {step} of the certified bound ({what}: {bound} of the ideal)")
    });
    let stopped = if stopped { " (search stopped early)" } else { "" };
    format!("{} of the ideal step{bound}{stopped}", quotient(step, ideal))
}
