//! `memc alloc`.

use memc::{AllocOptions, End, Error, allocate};
use memc_alloc::{Algorithm, csv};
use serde_json::json;

use crate::args::Alloc;
use crate::output::{Failure, Progress, emit, emit_json, ready, say, write_file};

pub(crate) fn run(args: &Alloc) -> Result<(), Failure> {
    ready(&[Some(&args.instance)], &[args.output.as_ref()])?;
    let text = memc::read_text(&args.instance)?;
    let named = csv::read(&text).map_err(|e| Error::Model(format!("{}: {e}", args.instance.display())))?;
    let progress = Progress::new(args.json);
    progress.stage("laying out");
    let options = AllocOptions {
        algorithm: Algorithm::named(&args.algorithm),
        capacity: args.capacity,
        effort: args.effort,
        time_limit: args.time_limit,
        seed: args.seed,
    };
    let found = allocate(&named.instance, &options, &progress);
    progress.done();
    let found = found?;
    let (solution, ended) = (&found.solution, found.ended);
    if ended == Some(End::Interrupt) {
        say("interrupted: going on with the best allocation found so far");
    }
    let allocation = csv::write(&named, &solution.offsets);
    if let Some(path) = &args.output {
        write_file(path, allocation.as_bytes())?;
    }
    let ratio = solution.height as f64 / solution.load.max(1) as f64;
    if args.json {
        return Ok(emit_json(&json!({
            "instance": args.instance.display().to_string(), "buffers": solution.offsets.len(),
            "algorithm": args.algorithm, "capacity": args.capacity, "height": solution.height,
            "load": solution.load, "bound": solution.bound, "ratio": ratio,
            "optimal": solution.optimal(), "stopped": ended.is_some(), "solve_ns": found.solve_ns,
        }))?);
    }
    if args.output.is_none() {
        emit(&allocation)?;
    }
    let verdict = match (solution.optimal(), ended) {
        (true, _) => "optimal",
        (false, None) => "not proved optimal",
        (false, Some(_)) => "not proved optimal (search stopped early)",
    };
    let (height, load, seconds) = (solution.height, solution.load, found.solve_ns as f64 / 1e9);
    say(&format!("height {height}, load {load}, ratio {ratio:.4}, {verdict}, {seconds:.3} s"));
    Ok(())
}
