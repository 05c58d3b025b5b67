//! `memc trace`.

use memc::device;

use crate::args::Trace;
use crate::output::{Failure, emit, ready, write_file};

pub(crate) fn run(args: &Trace) -> Result<(), Failure> {
    ready(&[Some(&args.plan)], &[args.output.as_ref()])?;
    let file = memc::open(&args.plan)?;
    let profile = device::of_plan(args.device.as_deref(), &file.plan().meta.profile)?;
    let json = memc::trace(file.plan(), &profile).map_err(|e| e.in_plan(&args.plan))?;
    match &args.output {
        Some(path) => write_file(path, json.as_bytes())?,
        None => emit(&json)?,
    }
    Ok(())
}
