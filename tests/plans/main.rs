//! Plans of known models, recorded: decisions, addresses, figures and file hashes.
//!
//! A change of structure or wording must leave `record.tsv` as it is. `cargo test` replays the rows of small
//! models. `cargo plans` replays every row, `cargo plans --only TEXT` those whose model's name has TEXT.
//! `MEMC_BLESS=1 cargo plans` writes the record anew, and with `--only TEXT` those rows. `MEMC_BLESS=1 cargo
//! test --test plans` writes the rows of small models, within the budgets that they have.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test runner of its own: it prints, and MEMC_BLESS is its one switch"
)]

mod cell;
mod row;

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cell::{Cell, cells};
use row::{HEADER, Row};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let only = args.iter().position(|a| a == "--only").and_then(|at| args.get(at + 1));
    let all = args.iter().any(|a| a == "--all");
    let wanted = |row: &Row| match only {
        Some(text) => row.cell.model.contains(text.as_str()),
        None => all || row.cell.is_small(),
    };
    let outcome = match std::env::var_os("MEMC_BLESS") {
        Some(_) if all => bless(only.map_or("", |text| text.as_str())),
        Some(_) => bless_again(wanted),
        None => replay(wanted),
    };
    match outcome {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans/record.tsv")
}

/// The rows of the record.
fn recorded() -> Result<Vec<Row>, String> {
    let text = fs::read_to_string(record()).map_err(|e| format!("tests/plans/record.tsv: {e}"))?;
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err("tests/plans/record.tsv: the header is not this test's".into());
    }
    lines.map(Row::parse).collect()
}

/// Compiles rows of the record again and compares.
fn replay(is_wanted: impl Fn(&Row) -> bool) -> Result<String, String> {
    let recorded = recorded()?;
    let wanted: Vec<&Row> = recorded.iter().filter(|row| is_wanted(row)).collect();
    let found = parallel(&wanted, |row| Row::measure(&row.cell));
    let mut differences = Vec::new();
    for (want, found) in wanted.iter().zip(found) {
        let (want, found) = (want.print(), found?.print());
        if want != found {
            differences.push(format!("-{want}\n+{found}"));
        }
    }
    if differences.is_empty() {
        return Ok(format!("plans: {} passed, 0 failed", wanted.len()));
    }
    let n = differences.len();
    Err(format!("{HEADER}\n{}\nplans: {} passed, {n} failed", differences.join("\n"), wanted.len() - n))
}

/// Writes the rows of models whose names have a text from the compiler as it is. Other rows stay as they are.
fn bless(only: &str) -> Result<String, String> {
    let is_wanted = |cell: &Cell| cell.model.contains(only);
    let cells: Vec<Cell> = cells(is_wanted)?;
    let measured = parallel(&cells, Row::measure).into_iter().collect::<Result<Vec<_>, _>>()?;
    let others = if only.is_empty() { Vec::new() } else { recorded()? };
    let mut rows: Vec<Row> = others.into_iter().filter(|row| !is_wanted(&row.cell)).collect();
    rows.extend(measured);
    // In the order of models and devices that a record of all has.
    let order = |row: &Row| {
        (row.cell.model.clone(), row.cell.device.clone(), Reverse(row.cell.budget), row.cell.effort)
    };
    rows.sort_by_key(order);
    write(&rows)
}

/// Writes rows from the compiler as it is, within the budgets that they have. Other rows stay as they are.
fn bless_again(is_wanted: impl Fn(&Row) -> bool) -> Result<String, String> {
    let again = |row: &Row| Row::measure(&row.cell);
    let (wanted, mut rows): (Vec<_>, Vec<_>) =
        recorded()?.into_iter().enumerate().partition(|(_, row)| is_wanted(row));
    let (places, wanted): (Vec<usize>, Vec<Row>) = wanted.into_iter().unzip();
    let measured = parallel(&wanted, again).into_iter().collect::<Result<Vec<_>, _>>()?;
    rows.extend(places.into_iter().zip(measured));
    rows.sort_by_key(|row| row.0);
    write(&rows.into_iter().map(|row| row.1).collect::<Vec<_>>())
}

fn write(rows: &[Row]) -> Result<String, String> {
    let lines: Vec<String> = rows.iter().map(Row::print).collect();
    fs::write(record(), format!("{HEADER}\n{}\n", lines.join("\n"))).map_err(|e| e.to_string())?;
    Ok(format!("plans: {} rows recorded", rows.len()))
}

/// Results in the order of the items; as many threads as cores.
fn parallel<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = run(item);
                    results.lock().unwrap().push((i, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|r| r.0);
    results.into_iter().map(|r| r.1).collect()
}
