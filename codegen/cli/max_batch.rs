//! `memc max-batch`.

use memc::{Error, MaxBatch as Found, MaxBatchOptions, Probe, and_reserve, max_batch, over};
use memc_ir::Bytes;

use crate::args::{ImportArgs, MaxBatch, Source};
use crate::figures::{STOPPED, ms, quotient, table};
use crate::output::{Failure, Progress, emit, emit_json, say};

pub(crate) fn run(args: &MaxBatch) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let (dim, job) = enlarged(&args.question.source)?;
    let options = MaxBatchOptions {
        workload: args.question.source.workload()?,
        target: args.question.target.target(),
        dim,
        job,
        budget: args.question.gpu_mem,
        max_slowdown: args.max_slowdown,
        up_to: args.up_to,
        search: args.search.search()?,
    };
    let found = max_batch(&options, &progress)?;
    progress.done();
    if found.interrupted {
        say("interrupted: the answer is the largest size known so far");
    }
    if args.json {
        emit_json(&found)?
    } else {
        emit(&text(&found))?
    }
    if found.largest_planned >= args.up_to && !args.json {
        say(&format!("a size of {} still fits: --up-to N tries larger ones", args.up_to));
    }
    found.failure.as_ref().map_or(Ok(()), |e| Err(Failure::reported(e)))
}

/// The dimension to enlarge, and the job that it is of, where it is not one of all.
fn enlarged(source: &Source) -> Result<(String, Option<String>), Error> {
    let open = |import: &ImportArgs| {
        let dims = import.dims.iter().filter(|d| d.sizes.is_empty());
        dims.map(|d| d.name.clone()).collect::<Vec<String>>()
    };
    let common = open(&source.import);
    let of_jobs = source.job.iter().zip(&source.jobs).flat_map(|(job, import)| {
        let own = open(import).into_iter().filter(|dim| !common.contains(dim));
        own.map(|dim| (dim, Some(job.name.clone())))
    });
    let all: Vec<_> = common.iter().map(|dim| (dim.clone(), None)).chain(of_jobs).collect();
    match <[_; 1]>::try_from(all) {
        Ok([one]) => Ok(one),
        Err(_) => {
            let text =
                "name the one dimension to enlarge, as --dim batch, and give others a size, as --dim seq=128";
            Err(Error::Usage(text.into()))
        }
    }
}

fn row(p: &Probe) -> Vec<String> {
    let dash = || "-".to_string();
    let per_s = |ns: u64| over(p.size, ns).map_or_else(dash, |per_ns| format!("{:.1}", per_ns * 1e9));
    let planned = || Some([p.step_ns?, p.bound_ns?, p.peak_bytes?, p.swap_out_bytes?, p.swap_in_bytes?]);
    let (figures, verdict) = match (p.verdict, p.fits_unplanned) {
        (None, true) => (Some([p.unplanned_ns, p.ideal_ns, p.unplanned_peak_bytes, 0, 0]), "fits unplanned"),
        (None, false) => (None, "does not fit unplanned"),
        (Some(verdict), _) => (planned(), verdict),
    };
    let mut row = vec![p.size.to_string(), Bytes(p.unplanned_peak_bytes).short()];
    match figures {
        None => row.extend((0..7).map(|_| dash())),
        Some([step, bound, peak, out, into]) => row.extend([
            Bytes(peak).short(),
            ms(step),
            quotient(step, p.ideal_ns),
            quotient(step, bound),
            per_s(step),
            Bytes(out).short(),
            Bytes(into).short(),
        ]),
    }
    row.push(if p.stopped { format!("{verdict}, stopped") } else { verdict.into() });
    row
}

fn text(found: &Found) -> String {
    let rows: Vec<Vec<String>> = found.probes.iter().map(row).collect();
    let header = [&found.dim, "unplanned", "peak", "step", "/ ideal", "/ bound", "per s", "out", "in", ""];
    let (unplanned, planned) = (found.largest_unplanned, found.largest_planned);
    let gain = match unplanned {
        0 => String::new(),
        n => format!(", {:.2} times as many", planned as f64 / n as f64),
    };
    let slow = found.max_slowdown.map(|m| format!(" and a step of {m} times the ideal one"));
    let so_far = if found.interrupted { " known so far (interrupted)" } else { "" };
    let stopped = if found.probes.iter().any(|p| p.stopped) { STOPPED } else { "" };
    format!(
        "{}\n{}: largest {}{so_far} in a budget of {}{}{}: {unplanned} unplanned, {planned} by \
         {}{gain}\n{stopped}",
        table(&header, &rows),
        found.problem,
        found.dim,
        Bytes(found.gpu_mem_bytes),
        and_reserve(found.reserve_bytes),
        slow.unwrap_or_default(),
        found.planner,
    )
}
