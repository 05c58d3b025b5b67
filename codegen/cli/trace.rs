//! `memc trace`.

use memc::device;
use memc_plan::Plan;

use crate::args::Trace;
use crate::output::{Failure, emit, ready, say, write_file};

pub(crate) fn run(args: &Trace) -> Result<(), Failure> {
    ready(&[Some(&args.plan)], &[args.output.as_ref()])?;
    let file = memc::open(&args.plan)?;
    let profile = device::of_plan(args.device.as_deref(), &file.plan().meta.profile)?;
    let bucket = args.bucket.as_deref();
    let json = memc::trace(file.plan(), bucket, &profile).map_err(|e| e.in_plan(&args.plan))?;
    if let (None, Ok(shown), false) = (bucket, file.plan().find_bucket(None), file.plan().buckets.is_empty())
    {
        say(&format!("of {}", other_buckets(file.plan(), shown)));
    }
    match &args.output {
        Some(path) => write_file(path, json.as_bytes())?,
        None => emit(&json)?,
    }
    Ok(())
}

/// The bucket that is shown, and what shows another.
fn other_buckets(plan: &Plan, shown: usize) -> String {
    let names = plan.bucket_names();
    let own = names.get(shown).map(String::as_str).unwrap_or_default();
    format!("{own}, one of the buckets {}; --bucket NAME chooses another", names.join(", "))
}
