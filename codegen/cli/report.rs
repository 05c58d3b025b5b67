//! `memc report`.

use std::path::{Path, PathBuf};

use memc::device;

use crate::args::Report;
use crate::output::{Failure, ready, say, write_file};

pub(crate) fn run(args: &Report) -> Result<(), Failure> {
    let usual = args.snapshot.is_none().then(|| PathBuf::from("report.html"));
    let page = args.output.as_ref().or(usual.as_ref());
    ready(&[Some(&args.plan)], &[page, args.snapshot.as_ref()])?;
    let file = memc::open(&args.plan)?;
    let (plan, bucket) = (file.plan(), args.bucket.as_deref());
    let profile = device::of_plan(args.device.as_deref(), &plan.meta.profile)?;
    if let Some(path) = page {
        let html = memc::page(plan, bucket, &profile).map_err(|e| e.in_plan(&args.plan))?;
        write(path, html.as_bytes())?;
    }
    if let Some(path) = &args.snapshot {
        write(path, &memc::snapshot(plan, bucket, &profile).map_err(|e| e.in_plan(&args.plan))?)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_file(path, bytes)?;
    say(&format!("{}: {}", path.display(), memc_ir::Bytes(bytes.len() as u64).short()));
    Ok(())
}
