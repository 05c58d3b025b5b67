//! `memc fit-profile`: what a measured profile teaches, and how well.

use std::path::{Path, PathBuf};

use memc::device;
use memc_ir::counted;
use memc_passes::{DeviceProfile, FOLDS, Judgement, Quality};
use serde_json::{Value, json};

use crate::args::FitProfile;
use crate::figures::table;
use crate::output::{Failure, emit, ready, write_file};

pub(crate) fn run(args: &FitProfile) -> Result<(), Failure> {
    let inputs: Vec<Option<&PathBuf>> = args.profiles.iter().map(Some).collect();
    ready(&inputs, &[args.output.as_ref()])?;
    let profiles = args.profiles.iter().map(|path| device::read(path)).collect::<Result<Vec<_>, _>>()?;
    let (profile, judgement) = device::merge(profiles)?;
    if let Some(path) = &args.output {
        write_file(path, profile.print().as_bytes())?;
    }
    let output = args.output.as_deref();
    let judged = if args.json { as_json } else { as_text };
    Ok(emit(&judged(&profile, &judgement, output))?)
}

fn as_json(profile: &DeviceProfile, judgement: &Judgement, output: Option<&Path>) -> String {
    let quality = |q: &Quality| {
        json!({
            "ops": q.ops, "r2_log_time": q.log_time, "r2_time": q.time,
            "r2_log_time_roofline": q.plain_log_time, "typical_factor": q.typical_factor,
        })
    };
    let families: serde_json::Map<String, Value> =
        judgement.families.iter().map(|(f, q)| (f.name().to_string(), quality(q))).collect();
    let value = json!({
        "device": profile.name, "output": output, "folds": FOLDS, "all": judgement.all.as_ref().map(quality),
        "convolutions": judgement.convolutions.as_ref().map(quality), "families": families,
    });
    format!("{value}\n")
}

fn as_text(profile: &DeviceProfile, judgement: &Judgement, output: Option<&Path>) -> String {
    let row = |name: &str, q: &Quality| {
        let r2 = |x: Option<f64>| x.map_or_else(|| "-".to_string(), |x| format!("{x:.3}"));
        vec![
            name.to_string(),
            q.ops.to_string(),
            r2(q.log_time),
            r2(q.time),
            r2(q.plain_log_time),
            format!("{:.2}", q.typical_factor),
        ]
    };
    let all = || judgement.families.iter().map(|(_, q)| q).chain(&judgement.all);
    let useless = all().filter_map(|q| q.log_time).any(|r2| r2 < 0.0);
    let few = if useless {
        "R2 below 0: the mean of the measured times would say more, as with few ops, or ops that take \
         about as long;\nprofiles of more models, merged, teach more. Ops that were measured have their \
         measured times in any case.\n"
    } else {
        ""
    };
    let wrote = output.map_or_else(String::new, |path| {
        format!("{}: written, with the figures of the first profile and the ops of all\n", path.display())
    });
    let families = judgement.families.iter().map(|(f, q)| row(f.name(), q));
    let conv = judgement.convolutions.iter().map(|q| row("convolutions", q));
    let all = judgement.all.iter().map(|q| row("all", q));
    let rows: Vec<Vec<String>> = families.chain(conv).chain(all).collect();
    let ops = judgement.all.map_or(0, |q| q.ops);
    format!(
        "{}\n{}: {} measured; R2 of ops not learned from, {FOLDS} shares in turn; factor: typical \
         error\n{few}{wrote}",
        table(&["family", "ops", "R2 log time", "R2 time", "roofline's R2", "factor"], &rows),
        profile.name,
        counted(ops, "op"),
    )
}
