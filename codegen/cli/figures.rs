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

/// Rows under a header, columns aligned; columns of figures to the right. On a terminal, sentences are
/// wrapped, names cut, and columns continued below, so that no line is wider than it; elsewhere each row is
/// one whole line.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    table_within(header, rows, crate::output::width())
}

/// Least characters that are left of a cell.
const NARROWEST: usize = 12;
/// Characters of a cell for which columns rather continue below.
const READABLE: usize = 20;

/// As [`table`], at most `width` characters wide where there are columns to make narrower.
fn table_within(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    // Names may have anything in them, and a terminal obeys it.
    let seen = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell.chars().map(seen).collect()).collect()).collect();
    let blocks = match width {
        Some(width) => blocks(header, &rows, width),
        None => vec![(0..header.len()).collect()],
    };
    let block = |columns: &Vec<usize>| {
        let header: Vec<&str> = columns.iter().filter_map(|i| header.get(*i).copied()).collect();
        let pick = |row: &Vec<String>| columns.iter().filter_map(|i| row.get(*i).cloned()).collect();
        laid_out(&header, rows.iter().map(pick).collect(), width)
    };
    blocks.iter().map(block).collect::<Vec<_>>().join("\n")
}

/// One table, whose cells are wrapped or cut to the width.
fn laid_out(header: &[&str], mut rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    let mut t = comfy_table::Table::new();
    if let Some(width) = width {
        if rows.iter().flatten().any(|cell| is_sentence(cell)) {
            let width = u16::try_from(width).unwrap_or(u16::MAX);
            t.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(width);
        } else {
            fit(header, &mut rows, width);
        }
    }
    t.load_style(comfy_table::presets::NOTHING);
    t.set_header(header.to_vec());
    for row in &rows {
        t.add_row(row);
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

/// Whether a cell is text to be read rather than names or figures.
fn is_sentence(cell: &str) -> bool {
    !cell.contains(", ") && cell.split(' ').filter(|word| word.chars().all(char::is_alphabetic)).count() > 4
}

/// Width of each column; cells have a space on both sides.
fn widths(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let count = |text: &str| text.chars().count();
    let wide = |(i, header): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| count(cell));
        cells.chain([count(header)]).max().unwrap_or(0)
    };
    header.iter().enumerate().map(wide).collect()
}

/// Columns of the tables, one below another, in which names are readable. Each begins with the first column.
fn blocks(header: &[&str], rows: &[Vec<String>], width: usize) -> Vec<Vec<usize>> {
    let widths: Vec<usize> = widths(header, rows).iter().map(|width| width.min(&READABLE) + 2).collect();
    let first = widths.first().copied().unwrap_or(0);
    let (mut blocks, mut used) = (vec![vec![0]], first);
    for (i, own) in widths.iter().enumerate().skip(1) {
        let is_full = used + own > width && blocks.last().is_some_and(|block| block.len() > 1);
        if is_full {
            blocks.push(vec![0]);
            used = first;
        }
        blocks.last_mut().into_iter().for_each(|block| block.push(i));
        used += own;
    }
    blocks
}

/// Cuts the widest cells until rows have at most `width` characters, or all are narrow.
fn fit(header: &[&str], rows: &mut [Vec<String>], width: usize) {
    let count = |text: &str| text.chars().count();
    let mut widths = widths(header, rows);
    let least: Vec<usize> = header.iter().map(|header| count(header).max(NARROWEST)).collect();
    while widths.iter().map(|width| width + 2).sum::<usize>() > width {
        let cuttable = widths.iter_mut().zip(&least).filter(|(width, least)| **width > **least);
        let Some((widest, _)) = cuttable.max_by_key(|(width, _)| **width) else { break };
        *widest -= 1;
    }
    for row in rows {
        row.iter_mut().zip(&widths).for_each(|(cell, width)| *cell = cut(cell, *width));
    }
}

/// At most `width` characters of a cell: the end of a name, which tells most, or the beginning of a list.
fn cut(cell: &str, width: usize) -> String {
    let count = cell.chars().count();
    if count <= width {
        return cell.to_string();
    }
    let kept = width.saturating_sub(1);
    if cell.contains(", ") {
        return cell.chars().take(kept).chain(['…']).collect();
    }
    ['…'].into_iter().chain(cell.chars().skip(count - kept)).collect()
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
    let on_host = match r.host_ops {
        Some(ops) if ops > 0 => {
            let what = format!("{}, {}", counted(ops as usize, "op"), time(r.host_ns));
            vec![row("on the host", "-".into(), what)]
        }
        _ => Vec::new(),
    };
    let changed = if changed { ", then changed" } else { "" };
    let mut rows = vec![
        row("formulation", "own".into(), r.formulation.unwrap_or_default().into()),
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
    rows.extend(on_host);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// On a terminal no line is wider than it, and each row is one line; elsewhere names are whole.
    #[test]
    fn tables_fit_the_terminal() {
        let name = "/h.0/mlp/mlp.0/a_long_name_of_a_tensor_that_nobody_wants_to_read_in_full_output_0.1";
        let rows = vec![vec![name.to_string(), "12.00 MiB".to_string(), format!("{name}, {name}")]];
        let header = ["tensor", "bytes", "makes room for"];
        for width in [60, 80, 120] {
            let text = table_within(&header, &rows, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.lines().count() == 2 && text.contains("output_0.1") && text.contains("12.00 MiB"));
        }
        assert!(table_within(&header, &rows, None).contains(&format!("{name}, {name}")));
    }

    /// Columns that do not fit continue below, behind the first column again.
    #[test]
    fn wide_tables_continue_below() {
        let header = ["planner", "step", "peak", "swapped out", "swapped in", "recomputed", "time"];
        let row = |name: &str| [&[name.to_string()][..], &vec!["123.45 MiB".to_string(); 6][..]].concat();
        let text = table_within(&header, &[row("memc"), row("home")], Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert_eq!(text.lines().count(), 7, "two tables of three lines, and a gap: {text}");
        assert!(text.matches("planner").count() == 2 && text.matches("123.45 MiB").count() == 12, "{text}");
    }

    /// Sentences are wrapped at words.
    #[test]
    fn sentences_are_wrapped() {
        let text =
            "keeps what the first use of each tensor needs and gives back the others as soon as it can";
        let out = table_within(&["planner", "does"], &[vec!["memc".into(), text.into()]], Some(50));
        assert!(out.lines().count() > 2 && out.lines().all(|line| line.chars().count() <= 50), "{out}");
        assert_eq!(out.split_whitespace().skip(3).collect::<Vec<_>>(), text.split(' ').collect::<Vec<_>>());
    }
}
