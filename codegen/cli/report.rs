//! `memc report`.

use std::path::{Path, PathBuf};

use memc::device;

use crate::args::Report;
use crate::output::{Failure, ready, say, write_file};

pub(crate) fn run(args: &Report) -> Result<(), Failure> {
    let has_page = args.trace.is_some() || args.snapshot.is_none() && args.annotate.is_none();
    let usual = has_page.then(|| PathBuf::from("report.html"));
    let page = args.output.as_ref().or(usual.as_ref());
    let outputs = [page, args.snapshot.as_ref(), args.annotate.as_ref()];
    ready(&[Some(&args.plan), args.source.as_ref(), args.trace.as_ref()], &outputs)?;
    let file = memc::open(&args.plan)?;
    let (plan, bucket) = (file.plan(), args.bucket.as_deref());
    let profile = device::of_plan(args.device.as_deref(), &plan.meta.profile)?;
    if let Some(path) = page {
        let trace = args.trace.as_deref().map(memc::read_text).transpose()?;
        let html = memc::page(plan, bucket, &profile, trace.as_deref());
        let html = html.map_err(|e| e.in_plan(&args.plan))?;
        write(path, html.as_bytes())?;
    }
    if let Some(path) = &args.snapshot {
        write(path, &memc::snapshot(plan, bucket, &profile).map_err(|e| e.in_plan(&args.plan))?)?;
    }
    if let (Some(path), Some(model)) = (&args.annotate, &args.source) {
        let copy = memc::annotate(plan, bucket, args.device.as_deref(), model, path);
        write(path, &copy.map_err(|e| e.in_plan(&args.plan))?)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_file(path, bytes)?;
    say(&format!("{}: {}", path.display(), memc_ir::Bytes(bytes.len() as u64).short()));
    Ok(())
}
