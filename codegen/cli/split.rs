//! `memc split`.

use memc::{Error, SplitOptions, Workload, split};
use memc_ir::Bytes;

use crate::args::Split;
use crate::figures::{ms, table};
use crate::output::{Failure, Progress, emit, emit_json};

pub(crate) fn run(args: &Split) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let Workload::Jobs(jobs) = args.question.source.workload()? else {
        let text = "give the jobs, as --job a.onnx --job b.onnx; one model has the whole budget";
        return Err(Error::Usage(text.into()).into());
    };
    let options = SplitOptions {
        jobs,
        target: args.question.target.target(),
        budget: args.question.gpu_mem,
        link_share: args.link_share,
        parts: args.parts,
        search: args.search.search()?,
    };
    let found = split(&options, &progress)?;
    progress.done();
    if args.json {
        return Ok(emit_json(&found)?);
    }
    let mut rows = Vec::new();
    for part in &found.parts {
        let size = Bytes(part.gpu_mem_bytes);
        let bytes = part.gpu_mem_bytes.to_string();
        rows.push(vec![part.job.clone(), size.short(), bytes, ms(part.step_ns), part.steps.to_string()]);
    }
    let text = table(&["job", "budget", "bytes", "step", "in a round"], &rows);
    let round = format!("\na round of {} within {}\n", ms(found.round_ns), Bytes(found.gpu_mem_bytes));
    Ok(emit(&format!("{text}{round}"))?)
}
