//! `memc layout`: offsets for the buffers of an instance in a text file.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memc_layout::{Algorithm, Options, Solution, csv};
use serde_json::json;

use crate::exit::Error;
use crate::output::{Progress, STOP, Writing, emit, ready, say, write_file};
use crate::size::{self, Size};
use crate::source;
use crate::time::{duration, now, since};

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Buffers as comma-separated values; an offset in a column of that name is kept
    pub(crate) instance: PathBuf,
    /// Largest height, in the instance's units; without it, the lowest layout is looked for
    #[arg(long, value_name = "N", value_parser = height)]
    pub(crate) capacity: Option<u64>,
    /// One algorithm instead of the search with all of them
    #[arg(long, value_name = "NAME", default_value = SEARCH, value_parser = algorithms())]
    pub(crate) algorithm: String,
    /// How long to search: 0 quick algorithms alone, 1 a moment, 2 about a second, 3 to 5 ten times as long each
    /// [default: 2, or 5 with a time limit]
    #[arg(long, value_name = "0..5", value_parser = clap::value_parser!(u8).range(0..=i64::from(memc_layout::MAX_EFFORT)))]
    pub(crate) effort: Option<u8>,
    /// Stop with the best so far after this time, as 10s or 500ms; results then depend on the machine
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) time_limit: Option<Duration>,
    /// Seed of choices by chance
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of the layout
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the layout here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Parses a height: an instance does not say what its units are, so there is none to write.
fn height(text: &str) -> Result<u64, String> {
    let plain = "write a number in the units of the instance's sizes";
    match (text.trim().parse(), size::parse(text)) {
        (Ok(height), _) => Ok(height),
        (_, Ok(Size::Bytes(bytes))) => {
            Err(format!("`{text}` has a unit: {plain}, {bytes} where they are bytes"))
        }
        (_, Ok(Size::Percent(_))) => Err(format!("`{text}` is a share, but of what is not known: {plain}")),
        _ => Err(format!("`{text}` is not a height: {plain}, such as 1048576")),
    }
}

/// The algorithm that is none of the named ones, but all of them and a search.
const SEARCH: &str = "search";

/// What `--algorithm` takes.
fn algorithms() -> Vec<&'static str> {
    [SEARCH].into_iter().chain(Algorithm::ALL.map(Algorithm::name)).collect()
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    ready(&[Some(&args.instance)], &[args.output.as_ref()])?;
    let text = source::read_text(&args.instance)?;
    let named = csv::read(&text).map_err(|e| Error::Model(format!("{}: {e}", args.instance.display())))?;
    let progress = Progress::new(args.json);
    progress.stage("laying out");
    let begun = now();
    let (solution, ended) = {
        // An interrupt ends the search, which keeps the best so far.
        let _searching = Writing::begin();
        solve(args, &named.instance, begun)
    };
    let solve_ns = since(begun);
    progress.done();
    memc_layout::check(&named.instance, &solution.offsets)
        .map_err(|e| Error::Internal(format!("the layout is wrong: {e}")))?;
    if let Some(capacity) = args.capacity.filter(|&capacity| solution.height > capacity) {
        if ended == Some(End::Interrupt) && solution.bound <= capacity {
            return Err(Error::Interrupted);
        }
        let Solution { height, load, bound, .. } = solution;
        return Err(Error::NoLayout {
            capacity,
            height,
            load,
            bound,
            why: why(args, capacity, &solution, ended),
        });
    }
    if ended == Some(End::Interrupt) {
        say("interrupted: going on with the best layout found so far");
    }
    let layout = csv::write(&named, &solution.offsets);
    if let Some(path) = &args.output {
        write_file(path, layout.as_bytes())?;
    }
    let ratio = solution.height as f64 / solution.load.max(1) as f64;
    if args.json {
        return emit(&format!(
            "{}\n",
            json!({
                "instance": args.instance.display().to_string(), "buffers": solution.offsets.len(),
                "algorithm": args.algorithm, "capacity": args.capacity, "height": solution.height,
                "load": solution.load, "bound": solution.bound, "ratio": ratio,
                "optimal": solution.optimal(), "stopped": ended.is_some(),
                "solve_ns": solve_ns,
            })
        ));
    }
    if args.output.is_none() {
        emit(&layout)?;
    }
    let verdict = match (solution.optimal(), ended) {
        (true, _) => "optimal",
        (false, None) => "not proved optimal",
        (false, Some(_)) => "not proved optimal (search stopped early)",
    };
    say(&format!(
        "height {}, load {}, ratio {ratio:.4}, {verdict}, {:.3} s",
        solution.height,
        solution.load,
        solve_ns as f64 / 1e9
    ));
    Ok(())
}

/// What ended a search before it was done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Interrupt,
    Time,
}

fn effort(args: &Args) -> u8 {
    args.effort.unwrap_or(if args.time_limit.is_some() { memc_layout::MAX_EFFORT } else { 2 })
}

/// A layout, and what ended the search for it early.
fn solve(args: &Args, instance: &memc_layout::Instance, begun: Instant) -> (Solution, Option<End>) {
    if let Some(algorithm) = Algorithm::named(&args.algorithm) {
        return (memc_layout::place(instance, algorithm), None);
    }
    let options = Options { capacity: args.capacity, seed: args.seed, ..Options::effort(effort(args)) };
    let late = AtomicBool::new(false);
    let stop = || {
        if args.time_limit.is_some_and(|limit| begun.elapsed() >= limit) {
            late.store(true, Ordering::Relaxed);
        }
        late.load(Ordering::Relaxed) || STOP.load(Ordering::Relaxed)
    };
    let solution = match args.capacity {
        Some(capacity) => race(instance, &options, capacity, &stop),
        None => memc_layout::solve(instance, &options, &stop),
    };
    // From here on an interrupt is for what comes next.
    let ended = match (STOP.swap(false, Ordering::Relaxed), late.into_inner()) {
        (true, _) => Some(End::Interrupt),
        (false, true) => Some(End::Time),
        (false, false) => None,
    };
    (solution, ended)
}

/// Searches with two seeds at once, until one settles whether there is a layout.
///
/// Which one depends on the work that both took, not on the machine: a search gives up once it has taken more.
fn race(
    instance: &memc_layout::Instance,
    options: &Options,
    capacity: u64,
    stop: &(dyn Fn() -> bool + Sync),
) -> Solution {
    // By search, how often it had asked whether to stop, which it does after equal amounts of work.
    let settled = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
    let search = |i: usize, other: usize| {
        let asked = Cell::new(0);
        let behind = || {
            asked.set(asked.get() + 1);
            stop() || (settled[other].load(Ordering::Relaxed), other) < (asked.get(), i)
        };
        let seed = options.seed.wrapping_mul(2).wrapping_add(i as u64);
        let found = memc_layout::solve(instance, &Options { seed, ..*options }, &behind);
        let settles = found.height <= capacity || found.bound > capacity;
        if settles {
            settled[i].store(asked.get(), Ordering::Relaxed);
        }
        ((!settles, if settles { asked.get() } else { found.height }, i), found)
    };
    let (first, second) = rayon::join(|| search(0, 1), || search(1, 0));
    if second.0 < first.0 { second.1 } else { first.1 }
}

/// Why there is no layout within the capacity, or what may find one.
fn why(args: &Args, capacity: u64, found: &Solution, ended: Option<End>) -> String {
    let Solution { height, load, bound, .. } = found;
    if *bound > capacity {
        let proof = if bound > load { "proved" } else { "more is live at once" };
        return format!(": {proof} (load {load}, lowest found {height})");
    }
    if args.algorithm != SEARCH {
        let name = &args.algorithm;
        return format!(
            " by {name}; leave --algorithm out to search for one (load {load}, {name} reaches {height})"
        );
    }
    let more = match (ended, effort(args) < memc_layout::MAX_EFFORT) {
        (Some(_), _) => " in time; a longer --time-limit",
        (None, true) => "; more --effort",
        (None, false) => "; another --seed",
    };
    // A search within a capacity has no layout at all until it has one of that height.
    format!(" was found{more} may find one (load {load}, the quick algorithms' lowest is {height})")
}
