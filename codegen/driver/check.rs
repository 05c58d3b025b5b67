//! `memc check`.

use memc_ir::{Module, parse};
use serde_json::json;

use crate::cli::Check;
use crate::exit::Error;
use crate::output::emit;
use crate::source;

pub(crate) fn run(args: &Check) -> Result<(), Error> {
    let file = crate::dump::open(&args.plan)?;
    let plan = file.plan();
    let graph = reference(args, plan)?;
    match memc_check::check(&graph, plan) {
        Ok(report) => {
            if args.json {
                return emit(&format!(
                    "{}\n",
                    json!({
                        "accepted": true, "commands": report.commands, "kernels": report.kernels, "terms": report.terms,
                        "lints": report.lints.iter().map(ToString::to_string).collect::<Vec<_>>(), "errors": [],
                    })
                ));
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
            emit(&text)
        }
        Err(errors) => {
            if args.json {
                let list: Vec<_> =
                    errors.0.iter().map(|e| json!({"code": e.code(), "message": e.to_string()})).collect();
                emit(&format!("{}\n", json!({"accepted": false, "exit_code": 7, "errors": list})))?;
            }
            Err(Error::Rejected(format!(
                "{}: not a correct plan of its source\n{errors}",
                args.plan.display()
            )))
        }
    }
}

/// The graph the plan must implement: read again from its source, or the copy that the plan carries.
fn reference(args: &Check, plan: &memc_plan::Plan) -> Result<Module, Error> {
    let Some(path) = &args.source else {
        let module =
            parse(&plan.meta.source).map_err(|d| Error::Plan(format!("the plan's source graph: {d}")))?;
        memc_ir::verify(&module).map_err(|d| Error::Plan(format!("the plan's source graph: {d}")))?;
        return Ok(module);
    };
    let mut source = source::replay(path.clone(), &plan.meta.options)?;
    source.import.optimizer_model = args.optimizer_model.clone();
    source.import.checkpoint = args.checkpoint.clone();
    let mut module = source::load(&source)?.module;
    let rewrite = source::was_rewritten(&plan.meta.options);
    source::canonicalise(&mut module, source::profile(&plan.meta.profile)?, rewrite)?;
    Ok(module)
}
