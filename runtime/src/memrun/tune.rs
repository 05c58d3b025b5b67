//! `memrun tune`: measures the algorithms of a GPU's libraries, and writes the plan with the fastest.

use crate::{Error, Tuned, TunedCall, tune};
use memc_ir::counted;
use memc_plan::{PlanError, PlanFile, Tuning};
use memc_support::Replace;
use serde_json::{Value, json};

use crate::memrun::cli::Tune;
use crate::memrun::terminal::{self, Line};

/// Tunes a plan; returns the exit code.
pub(crate) fn execute(args: &Tune, line: &Line) -> Result<u8, Error> {
    args.check_files()?;
    line.stage("reading the plan");
    let mut file = PlanFile::open(&args.plan).map_err(|error| Error::opening(&args.plan, error))?;
    let output = args.output();
    // A folder that takes no file is better known now than after the measurement.
    drop(Replace::begin(output).map_err(|error| Error::io(output, error))?);
    let tuned = tune(&file, &args.options(crate::memrun::stages(line)))?;
    line.close();
    tuned.notes.iter().for_each(|note| terminal::note(note));
    let Some(tuning) = &tuned.tuning else {
        let text = format!(
            "{}: no kernel is a library's; there is nothing to tune, and nothing is written\n",
            args.plan.display()
        );
        return Ok(terminal::print(&if args.json { object(None, &[], &tuned) } else { text }));
    };
    let mut plan = file.plan().clone();
    plan.tuning = Some(tuning.clone());
    memc_plan::write(output, &plan, &mut file, &|| false).map_err(|error| match error {
        PlanError::Io { path, source } => Error::Io { path, source },
        // A measured section breaks no rule of plans.
        other => Error::Internal(other.to_string()),
    })?;
    let kernel = |call: &TunedCall| {
        let kernel = usize::try_from(call.tuned.kernel).ok().and_then(|index| plan.kernels.get(index));
        kernel.map(|kernel| {
            let operands: Vec<String> = kernel.operands.iter().map(ToString::to_string).collect();
            let (op, attrs) = (kernel.op.mnemonic(), kernel.op.attrs_text());
            format!("k{} {op}({}) {attrs}", call.tuned.kernel, operands.join(", "))
        })
    };
    let path = output.display().to_string();
    let kernels: Vec<String> = tuned.calls.iter().map(|call| kernel(call).unwrap_or_default()).collect();
    Ok(terminal::print(&if args.json {
        object(Some(&path), &kernels, &tuned)
    } else {
        table(&path, &kernels, tuning, &tuned.calls)
    }))
}

/// Time of a call in all launches of a step, with the tuned algorithm and with the library's own choice.
fn step_ns(calls: &[TunedCall]) -> (u64, u64) {
    let sum = |ns: fn(&TunedCall) -> u64| {
        calls.iter().fold(0u64, |sum, call| sum.saturating_add(ns(call).saturating_mul(call.launches as u64)))
    };
    (sum(|call| call.tuned.ns), sum(|call| call.tuned.default_ns))
}

fn table(path: &str, kernels: &[String], tuning: &Tuning, calls: &[TunedCall]) -> String {
    let mut text = format!(
        "{:<9} {:>8} {:>5} {:>12} {:>12} {:>6}  kernel\n",
        "library", "launches", "algorithms", "default us", "tuned us", "ratio"
    );
    let us = |ns: u64| ns as f64 / 1e3;
    for (call, kernel) in calls.iter().zip(kernels) {
        let (ns, default_ns) = (call.tuned.ns, call.tuned.default_ns);
        text += &format!(
            "{:<9} {:>8} {:>5} {:>12.3} {:>12.3} {:>6.3}  {}\n",
            call.library,
            call.launches,
            call.algorithms,
            us(default_ns),
            us(ns),
            ns as f64 / default_ns.max(1) as f64,
            kernel.trim_end(),
        );
    }
    let (ns, default_ns) = step_ns(calls);
    let other = calls.iter().filter(|call| call.is_other).count();
    text + &format!(
        "{path}: {} of {} by another algorithm than the libraries' choice on {}; {:.3} us a step instead of \
         {:.3}\n",
        other,
        counted(calls.len() as u64, "kernel"),
        tuning.device,
        us(ns),
        us(default_ns),
    )
}

/// `path` is none where nothing was written.
fn object(path: Option<&str>, kernels: &[String], tuned: &Tuned) -> String {
    let call = |(call, kernel): (&TunedCall, &String)| {
        json!({
            "kernel": call.tuned.kernel,
            "op": kernel.trim_end(),
            "library": call.library,
            "launches": call.launches,
            "algorithms": call.algorithms,
            "algorithm": call.tuned.algorithm.to_string(),
            "workspace_bytes": call.tuned.workspace_bytes,
            "default_ns": call.tuned.default_ns,
            "ns": call.tuned.ns,
            "is_other": call.is_other,
            "is_apart": call.tuned.is_apart,
        })
    };
    let (ns, default_ns) = step_ns(&tuned.calls);
    let tuning = tuned.tuning.as_ref();
    let libraries = tuning.iter().flat_map(|tuning| &tuning.libraries);
    let libraries = libraries.map(|(name, version)| (name.clone(), json!(version))).collect();
    let object = json!({
        "plan": path,
        "device": tuning.map(|tuning| &tuning.device),
        "arch": tuning.map(|tuning| &tuning.arch),
        "libraries": Value::Object(libraries),
        "rounding": tuning.map(|tuning| &tuning.rounding),
        "allow_nondeterminism": tuning.map(|tuning| tuning.allow_nondeterminism),
        "step_ns": ns,
        "default_step_ns": default_ns,
        "kernels": tuned.calls.iter().zip(kernels).map(call).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}
