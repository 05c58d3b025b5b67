//! `memc report`.

use memc::{device, page};

use crate::args::Report;
use crate::output::{Failure, ready, say, write_file};

pub(crate) fn run(args: &Report) -> Result<(), Failure> {
    ready(&[Some(&args.plan), args.trace.as_ref()], &[Some(&args.output)])?;
    let file = memc::open(&args.plan)?;
    let profile = device::of_plan(args.device.as_deref(), &file.plan().meta.profile)?;
    let trace = args.trace.as_deref().map(memc::read_text).transpose()?;
    let html = page(file.plan(), args.bucket.as_deref(), &profile, trace.as_deref());
    let html = html.map_err(|e| e.in_plan(&args.plan))?;
    write_file(&args.output, html.as_bytes())?;
    say(&format!("{}: {}", args.output.display(), memc_ir::Bytes(html.len() as u64).short()));
    Ok(())
}
