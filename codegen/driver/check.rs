//! `memc check`.

use std::collections::BTreeSet;

use memc_check::CheckErrors;
use memc_ir::{Init, Module, parse, print};
use memc_plan::{Plan, StateRole};
use serde_json::json;

use crate::cli::Check;
use crate::device;
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
            let hint = hint(args, &graph, plan);
            if args.json {
                let list: Vec<_> =
                    errors.0.iter().map(|e| json!({"code": e.code(), "message": e.to_string()})).collect();
                emit(&format!(
                    "{}\n",
                    json!({"accepted": false, "exit_code": 7, "hint": hint, "errors": list})
                ))?;
            }
            let path = args.plan.display();
            let Some(hint) = hint else {
                return Err(Error::Rejected(format!("{path}: not a correct plan of its source\n{errors}")));
            };
            let more = match errors.0.len().saturating_sub(SHOWN) {
                0 => String::new(),
                1 => "\nand one more error".into(),
                more => format!("\nand {more} more errors"),
            };
            let first = CheckErrors(errors.0.into_iter().take(SHOWN).collect());
            Err(Error::Rejected(format!("{path}: {hint}\n{first}{more}")))
        }
    }
}

/// Errors that are printed where the hint before them says it all.
const SHOWN: usize = 4;

/// What the user most likely did, where the plan and the graph differ as a whole.
fn hint(args: &Check, graph: &Module, plan: &Plan) -> Option<String> {
    let source = args.source.as_ref()?.display();
    if let Ok(mut planned) = parse(&plan.meta.source) {
        let mut graph = graph.clone();
        if print(&planned) == print(&graph) {
            return None;
        }
        for module in [&mut planned, &mut graph] {
            module.states.iter_mut().for_each(|(_, state)| state.init = Init::Zeros);
        }
        if print(&planned) == print(&graph) {
            return Some(match &args.checkpoint {
                None => "the plan was compiled with other initial values: give --checkpoint FILE".into(),
                Some(file) => format!(
                    "the plan was compiled with other initial values than those of {}: give the file that \
                     `memc compile` was given",
                    file.display()
                ),
            });
        }
    }
    let values = |v| graph.values.get(v).map(|value| (value.name.as_str(), &value.ty));
    let of_graph: BTreeSet<_> = graph
        .states
        .values()
        .map(|s| s.value)
        .chain(graph.inputs.values().map(|i| i.value))
        .filter_map(values)
        .collect();
    let states = plan.states.iter().filter(|s| s.role != StateRole::Const).map(|s| (s.name.as_str(), &s.ty));
    let of_plan: BTreeSet<_> = states.chain(plan.inputs.iter().map(|i| (i.name.as_str(), &i.ty))).collect();
    let same = of_plan.intersection(&of_graph).count();
    if same.saturating_mul(2) < of_plan.len().min(of_graph.len()) {
        let of = &plan.meta.model;
        return Some(format!(
            "this is a plan of another model (`{of}`): {same} of its {} states and inputs are those of {source}",
            of_plan.len()
        ));
    }
    args.optimizer_model.is_none().then(|| {
        format!(
            "the plan is not one of {source} as it is read without more options; if it was compiled with \
             --optimizer-model FILE or --checkpoint FILE, give them here too"
        )
    })
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
    let rewrite = source::recorded_rewrites(&plan.meta.options);
    let profile = device::of_plan(args.device.as_deref(), &plan.meta.profile)?;
    source::canonicalise(&mut module, &profile, rewrite)?;
    Ok(module)
}
