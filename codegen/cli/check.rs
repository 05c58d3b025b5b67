//! `memc check`.

use memc::{Against, Rejection};
use memc_check::CheckErrors;
use serde_json::{Value, json};

use crate::args::Check;
use crate::output::{Failure, emit, emit_json};

/// Exit code of a plan that is rejected.
const REJECTED: u8 = 7;

pub(crate) fn run(args: &Check) -> Result<(), Failure> {
    let file = memc::open(&args.plan)?;
    let against = (!args.source.is_empty()).then(|| Against {
        sources: args.source.clone(),
        optimizer_models: args.optimizer_model.clone(),
        checkpoints: args.checkpoint.clone(),
        device: args.device.clone(),
    });
    let report = match memc::check(file.plan(), against.as_ref())? {
        Ok(report) => report,
        Err(rejection) => {
            let names = file.plan().bucket_names();
            let name = names.get(rejection.bucket).cloned().unwrap_or_default();
            return rejected(args, rejection, &name);
        }
    };
    if args.json {
        return Ok(emit_json(&json!({
            "accepted": true, "commands": report.commands, "kernels": report.kernels, "terms": report.terms,
            "lints": report.lints.iter().map(ToString::to_string).collect::<Vec<_>>(), "errors": [],
        }))?);
    }
    let mut text = format!(
        "{}: proved: {} commands, {} kernels, {} symbolic contents\n",
        args.plan.display(),
        report.commands,
        report.kernels,
        report.terms
    );
    for lint in &report.lints {
        text.push_str(&format!("note: {lint}\n"));
    }
    Ok(emit(&text)?)
}

/// Errors that are printed where the hint before them says it all.
const SHOWN: usize = 4;

fn rejected(args: &Check, Rejection { errors, hint, bucket }: Rejection, name: &str) -> Result<(), Failure> {
    if args.json {
        let list: Vec<Value> =
            errors.0.iter().map(|e| json!({"code": e.code(), "message": e.to_string()})).collect();
        emit_json(&json!({
            "accepted": false, "exit_code": REJECTED, "hint": hint, "errors": list, "bucket": bucket,
        }))?;
    }
    let path = match bucket {
        0 => args.plan.display().to_string(),
        _ => format!("{}: {name}", args.plan.display()),
    };
    let Some(hint) = hint else {
        let text = format!("{path}: not a correct plan of its source\n{errors}");
        return Err(Failure::Reported(REJECTED, text));
    };
    let more = match errors.0.len().saturating_sub(SHOWN) {
        0 => String::new(),
        1 => "\nand one more error".into(),
        more => format!("\nand {more} more errors"),
    };
    let first = CheckErrors(errors.0.into_iter().take(SHOWN).collect());
    Err(Failure::Reported(REJECTED, format!("{path}: {hint}\n{first}{more}")))
}
