//! Figures of a kernel from its PTX and from `ptxas`: divisions in loops, widths of loads, registers, memory.
//!
//! PTX is read as a list of instructions. A branch to a label above it closes a loop, whose body is what lies
//! between. Unrolled copies of a loop count as loops of their own.

use std::collections::BTreeMap;
use std::ops::Range;

use memc_gpu::Inspection;

/// Figures of one kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    /// Divisions and remainders of 64-bit integers within a loop.
    pub(crate) divisions: usize,
    /// Bytes of each load from global memory within the innermost loops, or in the whole kernel where it has
    /// no loop that loads. One list for each loop.
    pub(crate) loads: Vec<Vec<u32>>,
    pub(crate) registers: u32,
    /// Bytes of local memory of a thread: stack and spills.
    pub(crate) local: u32,
    /// Bytes of shared memory of a block.
    pub(crate) shared: u32,
}

impl Stats {
    /// Most bytes that a thread has under way at once: the loads of one loop body.
    pub(crate) fn in_flight(&self) -> u32 {
        self.loads.iter().map(|body| body.iter().sum()).max().unwrap_or(0)
    }

    /// The loop body that loads most bytes.
    fn widest(&self) -> &[u32] {
        self.loads.iter().max_by_key(|body| body.iter().sum::<u32>()).map_or(&[], Vec::as_slice)
    }

    /// Part of the bytes of the body that loads most which come by 16 at a time; 1 where nothing is loaded.
    pub(crate) fn wide_share(&self) -> f64 {
        let (all, wide) = self
            .widest()
            .iter()
            .fold((0, 0), |(all, wide), &bytes| (all + bytes, wide + if bytes >= 16 { bytes } else { 0 }));
        if all == 0 { 1.0 } else { f64::from(wide) / f64::from(all) }
    }

    /// Loads of that body: how many, by how many bytes.
    pub(crate) fn widths(&self) -> String {
        let body = self.widest();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        body.iter().for_each(|&bytes| *counts.entry(bytes).or_default() += 1);
        let text: Vec<String> = counts.iter().rev().map(|(bytes, n)| format!("{n}x{bytes}")).collect();
        text.join(" ")
    }
}

/// Figures of every kernel, by name.
pub(crate) fn stats(inspection: &Inspection) -> BTreeMap<String, Stats> {
    let mut all = BTreeMap::new();
    for text in inspection.ptx.split(".visible .entry ").skip(1) {
        let Some((name, text)) = text.split_once('(') else { continue };
        let mut stats = of_body(text);
        resources(&inspection.log, name, &mut stats);
        all.insert(name.to_owned(), stats);
    }
    all
}

fn of_body(text: &str) -> Stats {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let loops = loops(&lines);
    let mut stats = Stats::default();
    let is_division = |line: &str| {
        ["div.s64", "div.u64", "rem.s64", "rem.u64"].iter().any(|op| operation(line).starts_with(op))
    };
    stats.divisions = (0..lines.len())
        .filter(|at| is_division(lines[*at]) && loops.iter().any(|body| body.contains(at)))
        .count();
    let innermost = loops.iter().filter(|body| {
        !loops.iter().any(|other| other != *body && body.start <= other.start && other.end <= body.end)
    });
    stats.loads = innermost.map(|body| widths(&lines[body.clone()])).filter(|l| !l.is_empty()).collect();
    let all = widths(&lines);
    let looped: usize = stats.loads.iter().flatten().count();
    if looped == 0 || all.iter().sum::<u32>() > 4 * stats.in_flight() {
        // Rows that are held are read by straight code.
        stats.loads = vec![all];
    }
    stats
}

/// The instruction of a line, without its predicate.
fn operation(line: &str) -> &str {
    match line.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace).map_or("", |(_, op)| op.trim_start()),
        None => line,
    }
}

/// Lines of each loop.
fn loops(lines: &[&str]) -> Vec<Range<usize>> {
    let labels: BTreeMap<&str, usize> = lines
        .iter()
        .enumerate()
        .filter_map(|(at, line)| Some((line.strip_suffix(':')?, at)))
        .filter(|(label, _)| label.starts_with('$'))
        .collect();
    let branch = |(at, line): (usize, &&str)| {
        let target = operation(line).strip_prefix("bra")?.rsplit(char::is_whitespace).next()?;
        let label = labels.get(target.trim_end_matches(';'))?;
        (*label <= at).then_some(*label..at + 1)
    };
    let mut loops: Vec<Range<usize>> = lines.iter().enumerate().filter_map(branch).collect();
    // Several branches to one label are one loop.
    loops.sort_by_key(|body| (body.start, body.end));
    let mut merged: Vec<Range<usize>> = Vec::new();
    for body in loops {
        match merged.last_mut() {
            Some(last) if last.start == body.start => last.end = body.end,
            _ => merged.push(body),
        }
    }
    merged
}

/// Bytes of each load from global memory.
fn widths(lines: &[&str]) -> Vec<u32> {
    let load = |line: &&str| {
        let mut parts = operation(line).split_whitespace().next()?.strip_prefix("ld.global")?.split('.');
        let (mut count, mut bits) = (1, 0);
        for part in parts.by_ref().filter(|part| !part.is_empty()) {
            match part {
                "v2" => count = 2,
                "v4" => count = 4,
                part => bits = part.trim_start_matches(char::is_alphabetic).parse().unwrap_or(bits),
            }
        }
        Some(count * bits / 8)
    };
    lines.iter().filter_map(load).collect()
}

/// Adds what `ptxas` says of a kernel.
fn resources(log: &str, name: &str, stats: &mut Stats) {
    let mut lines =
        log.lines().skip_while(|line| !line.contains(&format!("Compiling entry function '{name}'")));
    lines.next();
    for line in lines.take_while(|line| !line.contains("Compiling entry function")) {
        for (number, unit) in numbers(line) {
            match unit {
                _ if unit.starts_with("registers") => stats.registers = number,
                _ if unit.starts_with("bytes smem") => stats.shared = number,
                _ if unit.starts_with("bytes stack") || unit.starts_with("bytes spill") => {
                    stats.local = stats.local.max(number);
                }
                _ => {}
            }
        }
    }
}

/// Every number of a line with what follows it.
fn numbers(line: &str) -> impl Iterator<Item = (u32, &str)> {
    let starts = line.match_indices(char::is_numeric).map(|(at, _)| at);
    starts.filter_map(|at| {
        let is_first = !line[..at].ends_with(char::is_numeric);
        let (number, rest) = line[at..].split_once(' ')?;
        Some((number.parse().ok().filter(|_| is_first)?, rest))
    })
}
