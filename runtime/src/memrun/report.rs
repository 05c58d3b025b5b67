//! Reports of `memrun`.
//!
//! The last line of standard output is `memrun: PASSED …`, `memrun: FAILED …` or `memrun: INTERRUPTED …`, or
//! one JSON object instead of everything. A reader that goes away is no error.

use std::path::Path;

use crate::{Decided, Error, Profile, RefusedCall, Report};
use memc_ir::{Bytes, counted};
use memc_plan::PlanFile;
use serde_json::{Map, Value, json};

use crate::memrun::cli::Cli;
use crate::memrun::progress::{Progress, means_json, means_text};
use crate::memrun::terminal::{error, note, print};

/// Steps from which on percentiles are printed.
const MANY: usize = 10;

/// Reports a run that ended by itself or by an interrupt; returns the exit code.
pub(crate) fn done(cli: &Cli, file: &PlanFile, progress: &Progress, report: &Report) -> u8 {
    if report.interrupted {
        note(&interrupted(cli, report, progress));
    }
    if cli.json {
        let mut object = results(file, progress);
        object.insert("device".to_owned(), json!(report.device));
        object.insert("threads".to_owned(), json!(report.threads));
        object.insert("synthetic".to_owned(), json!(report.synthetic));
        object.insert("verified".to_owned(), json!(report.verified.then_some(true)));
        object.insert("interrupted".to_owned(), json!(report.interrupted));
        object.insert("saved".to_owned(), json!(progress.saved));
        object.insert("refused".to_owned(), report.refused.iter().map(refused).collect());
        object.insert("profile".to_owned(), json!(cli.measure().filter(|_| !report.kernels.is_empty())));
        if let Some(decided) = &report.decided {
            object.insert("dynamic".to_owned(), dynamic(decided));
            // The plan's own arenas were not reserved.
            object.insert("arena_bytes".to_owned(), json!(decided.arena_bytes));
            object.insert("gpu_mem_bytes".to_owned(), json!(decided.arena_bytes));
            object.insert("host_bytes".to_owned(), Value::Null);
        }
        if file.plan().meta.is_evaluation() && !progress.infers {
            object.insert("means".to_owned(), means_json(&report.means));
        }
        return print(&format!("{}\n", Value::Object(object))).max(progress.missing());
    }
    let verdict = if report.interrupted {
        format!("INTERRUPTED steps={}/{}", report.steps, progress.asked)
    } else {
        "PASSED".to_owned()
    };
    let warning = progress.not_finite.map(|step| format!(" WITH WARNING loss-not-finite-at-step={step}"));
    let warning = warning.unwrap_or_default();
    let verified = if report.verified { " verified=bit-identical" } else { "" };
    let times = progress.times();
    let ms = |ns: u64| ns as f64 / 1e6;
    let step = times.as_ref().map(|times| format!(" step={:.3}ms", ms(times.median))).unwrap_or_default();
    if let Some(times) = times.filter(|_| progress.step_ns.len() >= MANY) {
        print(&format!(
            "step time: median {:.3} ms, 90 % within {:.3} ms, 99 % within {:.3} ms; {:.2} steps/s\n",
            ms(times.median),
            ms(times.p90),
            ms(times.p99),
            times.per_second,
        ));
    }
    if !report.means.is_empty() {
        print(&format!("mean of {}: {}\n", counted(report.steps, "step"), means_text(&report.means)));
    }
    if let Some(path) = cli.measure().filter(|_| !report.kernels.is_empty()) {
        let (path, kernels) = (path.display(), counted(report.kernels.len() as u64, "kernel"));
        print(&format!("{path}: {kernels} measured; memc compile --device {path} plans with their times\n"));
    }
    let meta = &file.plan().meta;
    let (peak, budget) = match &report.decided {
        Some(decided) => (decided.counts.peak_bytes, decided.arena_bytes),
        None => (meta.dev_bytes, meta.budget_bytes),
    };
    report.decided.iter().for_each(|decided| note(&decided.to_string()));
    let (peak, budget) = (compact(peak), compact(budget));
    let last = format!("memrun: {verdict}{warning} peak={peak}/{budget}{step}{verified}\n");
    print(&last).max(progress.missing())
}

/// Decisions of a step that were made while it ran.
fn dynamic(decided: &Decided) -> Value {
    let counts = &decided.counts;
    json!({
        "policy": decided.policy.name(),
        "arena_bytes": decided.arena_bytes,
        "peak_bytes": counts.peak_bytes,
        "dropped": counts.dropped,
        "run_again": counts.again,
        "copied_out_bytes": counts.out_bytes,
        "copied_in_bytes": counts.in_bytes,
        "moved_bytes": counts.moved_bytes,
    })
}

/// A call that a library refused.
fn refused(call: &RefusedCall) -> Value {
    json!({
        "op": call.op,
        "attrs": call.attrs,
        "operands": call.operands,
        "library": call.library,
        "reason": call.reason,
        "workspace_asked_bytes": call.workspace_asked,
        "workspace_allowed_bytes": call.workspace_allowed,
        "launches": call.launches,
    })
}

/// Report of an interrupted run, and of the files that it leaves.
fn interrupted(cli: &Cli, report: &Report, progress: &Progress) -> String {
    let done = format!("interrupted after {} of {}", report.steps, counted(progress.asked, "step"));
    if progress.infers && cli.save().is_none() {
        return done;
    }
    match (&progress.saved, cli.save()) {
        (Some(path), _) => {
            let path = path.display();
            format!(
                "{done}; the state that it left is saved in {path}, and --resume {path} goes on from there"
            )
        }
        (None, Some(_)) => format!("{done}; nothing was saved, as no step had changed the states"),
        (None, None) => format!("{done}; nothing was saved, as no --save says where"),
    }
}

/// Reports a run that failed; returns the exit code.
pub(crate) fn failed(json: bool, file: Option<&PlanFile>, progress: &Progress, failure: &Error) -> u8 {
    error(failure);
    let code = failure.exit_code();
    if json {
        let mut object = file.map(|file| results(file, progress)).unwrap_or_default();
        let mismatch = matches!(failure, Error::Mismatch(_));
        object.insert("verified".to_owned(), json!(mismatch.then_some(false)));
        // Facts of runs that end by themselves.
        object.extend(
            ["device", "threads", "synthetic", "refused", "profile"].map(|key| (key.to_owned(), Value::Null)),
        );
        object.insert("interrupted".to_owned(), json!(code == crate::INTERRUPTED));
        object.insert("saved".to_owned(), json!(progress.saved));
        object.insert("error".to_owned(), json!(failure.to_string()));
        object.insert("exit_code".to_owned(), json!(code));
        print(&format!("{}\n", Value::Object(object)));
    } else {
        print(&verdict(code));
    }
    code
}

/// Reports that a plan or machine was not measured; returns the exit code.
pub(crate) fn not_measured(json: bool, failure: &Error) -> u8 {
    error(failure);
    let code = failure.exit_code();
    print(&if json {
        format!("{}\n", json!({"device": null, "error": failure.to_string(), "exit_code": code}))
    } else {
        verdict(code)
    });
    code
}

/// The last line after a failure.
fn verdict(code: u8) -> String {
    format!("memrun: FAILED exit={code}\n")
}

/// Says what was measured; returns the exit code.
pub(crate) fn measured(json: bool, path: &Path, profile: &Profile) -> u8 {
    let m = &profile.machine;
    profile.notes.iter().for_each(|text| note(text));
    if json {
        let object = json!({
            "profile": path,
            "device": profile.name,
            "processors": profile.processors,
            "kernels": profile.ops.len(),
            "f32_flops_per_s": m.flops_per_s,
            "f16_flops_per_s": m.f16_flops_per_s,
            "bf16_flops_per_s": m.bf16_flops_per_s,
            "tf32_flops_per_s": m.tf32_flops_per_s,
            "memory_bytes_per_s": m.memory_bytes_per_s,
            "d2h_bytes_per_s": m.d2h_bytes_per_s,
            "h2d_bytes_per_s": m.h2d_bytes_per_s,
            "duplex_total_bytes_per_s": m.duplex_bytes_per_s,
            "reserve_bytes": m.reserve_bytes,
        });
        return print(&format!("{object}\n"));
    }
    print(&format!(
        "{}: {} kernels on {}; {:.1} GFLOP/s, memory {:.1} GB/s, copies {:.1} GB/s out, {:.1} in, {:.1} both \
         ways\n",
        path.display(),
        profile.ops.len(),
        profile.name,
        m.flops_per_s as f64 / 1e9,
        m.memory_bytes_per_s as f64 / 1e9,
        m.d2h_bytes_per_s as f64 / 1e9,
        m.h2d_bytes_per_s as f64 / 1e9,
        m.duplex_bytes_per_s as f64 / 1e9,
    ))
}

/// Identity of a plan, and its arenas.
pub(crate) fn facts(file: &PlanFile) -> Map<String, Value> {
    let meta = &file.plan().meta;
    let mut object = Map::new();
    object.insert("model".to_owned(), json!(meta.model));
    object.insert("plan_hash".to_owned(), json!(hex(file.content_hash())));
    object.insert("source_hash".to_owned(), json!(hex(&meta.source_hash)));
    object.insert("arena_bytes".to_owned(), json!(meta.dev_bytes));
    object.insert("host_bytes".to_owned(), json!(meta.host_bytes));
    object
}

/// The plan's facts and the steps so far.
fn results(file: &PlanFile, progress: &Progress) -> Map<String, Value> {
    let mut object = facts(file);
    object.insert("gpu_mem_bytes".to_owned(), json!(file.plan().meta.budget_bytes));
    object.insert("steps".to_owned(), json!(progress.step_ns.len()));
    object.insert("steps_asked".to_owned(), json!(progress.asked));
    object.insert("first_step".to_owned(), json!(progress.first));
    if !progress.infers {
        object.insert("first_step_not_finite".to_owned(), json!(progress.not_finite));
        let losses: Vec<Value> = progress.losses.iter().flatten().map(|loss| number(*loss)).collect();
        object.insert("losses".to_owned(), Value::Array(losses));
    }
    if !progress.job_losses.is_empty() && !progress.infers {
        let of = |(job, losses): (&String, &Vec<Option<f32>>)| {
            let losses: Vec<Value> = losses.iter().flatten().map(|loss| number(*loss)).collect();
            (job.clone(), json!({"losses": losses}))
        };
        object.insert("jobs".to_owned(), Value::Object(progress.job_losses.iter().map(of).collect()));
    }
    if !progress.infers {
        let evaluation = |(step, means): &(u64, _)| json!({"step": step, "means": means_json(means)});
        object.insert("evaluations".to_owned(), progress.evaluations.iter().map(evaluation).collect());
    }
    object.insert("step_ns".to_owned(), json!(progress.step_ns));
    if let Some(times) = progress.times() {
        object.insert("step_ns_median".to_owned(), json!(times.median));
        object.insert("step_ns_p90".to_owned(), json!(times.p90));
        object.insert("step_ns_p99".to_owned(), json!(times.p99));
        object.insert("steps_per_s".to_owned(), json!(times.per_second));
    }
    object
}

/// The shortest number that reads back as the same `f32`; null where JSON has none.
fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |wide| json!(wide))
}

/// A size as one word, such as `16.00GiB`.
fn compact(bytes: u64) -> String {
    Bytes(bytes).short().replace(' ', "")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
