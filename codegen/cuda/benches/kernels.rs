//! Time of the generated kernels of plans on an H100, predicted from their PTX; no GPU is needed.
//!
//! `cargo bench -p memc-cuda --bench kernels -- PLAN...` prints one row for each kind of kernel of a step:
//! launches, 64-bit divisions in loops, loads of a loop body (count and bytes of each), registers, predicted
//! time and the time at the memory's rate. Calls of libraries are left out.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this program prints a table")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "it ends where a plan is wrong")]

#[path = "../tests/ptx/mod.rs"]
mod ptx;

use std::collections::BTreeMap;

use memc_cuda::{Kernel, Launch, forms, lower, program};
use memc_gpu::{Arch, Nvrtc};
use memc_ir::TensorType;
use memc_plan::{Action, PlanFile};

use ptx::predict;
use ptx::stats::{Stats, stats};

/// One launch of a step with what it moves.
struct Run {
    launch: Launch,
    bytes: u64,
}

/// Launches of a plan's step that no library computes.
fn runs(path: &str) -> Vec<Run> {
    let file = PlanFile::open(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let plan = file.plan();
    let mut runs = Vec::new();
    for command in &plan.body {
        let Action::Launch { kernel, .. } = &command.action else { continue };
        let kernel = &plan.kernels[*kernel as usize];
        let operands: &[TensorType] = &kernel.operands;
        let lowering = match forms(&kernel.op, operands).into_iter().next() {
            Some(form) => form.rest,
            None => lower(&kernel.op, operands).expect("a plan's kernels can be lowered"),
        };
        for launch in lowering.launches {
            let bytes = predict::bytes(&launch, operands, &kernel.results);
            runs.push(Run { launch, bytes });
        }
    }
    runs
}

/// Figures of every kernel, compiled in small units.
fn inspect(runs: &[Run]) -> BTreeMap<String, Stats> {
    let nvrtc = Nvrtc::find().unwrap_or_else(|e| panic!("{e}"));
    let kernels: BTreeMap<&str, &Kernel> =
        runs.iter().map(|r| (&*r.launch.kernel.name, &r.launch.kernel)).collect();
    let kernels: Vec<&Kernel> = kernels.into_values().collect();
    let mut all = BTreeMap::new();
    for unit in kernels.chunks(24) {
        let text = program(unit.iter().copied());
        all.extend(stats(
            &nvrtc.inspect(&text, Arch { major: 9, minor: 0 }).unwrap_or_else(|e| panic!("{e}")),
        ));
    }
    all
}

/// Sums over the launches of one kind.
#[derive(Default)]
struct Row {
    launches: usize,
    divisions: usize,
    registers: u32,
    loads: BTreeMap<String, f64>,
    predicted: f64,
    bound: f64,
}

fn table(path: &str) {
    let runs = runs(path);
    let figures = inspect(&runs);
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for run in &runs {
        let name = &run.launch.kernel.name;
        let stem = name.rsplit_once('_').map_or(&**name, |(stem, _)| stem);
        let stats = &figures[name];
        let row = rows.entry(stem.to_owned()).or_default();
        let seconds = predict::seconds(&run.launch, stats, run.bytes);
        row.launches += 1;
        row.divisions = row.divisions.max(stats.divisions);
        row.registers = row.registers.max(stats.registers);
        *row.loads.entry(stats.widths()).or_default() += seconds;
        row.predicted += seconds;
        row.bound += predict::bound(run.bytes);
    }
    println!("\n{path}\n");
    println!(
        "| kernel | launches | divisions | loads of most time | registers | predicted, ms | bound, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut rows: Vec<(String, Row)> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.predicted.total_cmp(&a.1.predicted));
    let mut total = Row::default();
    for (stem, row) in &rows {
        let loads = row.loads.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or("-", |(loads, _)| loads);
        println!(
            "| {stem} | {} | {} | {loads} | {} | {:.3} | {:.3} |",
            row.launches,
            row.divisions,
            row.registers,
            row.predicted * 1e3,
            row.bound * 1e3
        );
        total.launches += row.launches;
        total.predicted += row.predicted;
        total.bound += row.bound;
    }
    println!("| all | {} | | | | {:.3} | {:.3} |", total.launches, total.predicted * 1e3, total.bound * 1e3);
}

fn main() {
    let plans: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if plans.is_empty() {
        eprintln!("name the plans: cargo bench -p memc-cuda --bench kernels -- PLAN...");
        std::process::exit(2);
    }
    plans.iter().for_each(|path| table(path));
}
