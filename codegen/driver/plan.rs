//! `memc plan` and `memc export-problem`: planning in numbers, without writing a plan.

use clap::Args;
use memc_planner::Order;
use memc_planner::planners::NoPlan;
use serde_json::Value;

use crate::cli::{ExportProblem, Question, ScriptFiles, Search};
use crate::exit::Error;
use crate::output::{Progress, emit, ready, write_file};
use crate::posed::pose;
use crate::report::Report;
use crate::solve::answer;

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) question: Question,
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) script: ScriptFiles,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn export(args: &ExportProblem) -> Result<(), Error> {
    let progress = Progress::new(false);
    ready(&[Some(&args.source.model)], &[args.output.as_ref()])?;
    let posed = pose(&args.source, &args.target, Some(Order::Given), &progress)?;
    progress.done();
    let text = memc_planner::json::print(posed.given().numbers());
    match &args.output {
        Some(file) => write_file(file, text.as_bytes()),
        None => emit(&text),
    }
}

pub(crate) fn run(args: &Plan) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let (posed, outcome) = answer(&args.question, &args.search, &args.script, &progress)?;
    let how = &args.search.how;
    progress.stage("proving a bound");
    let report = Report::new(&posed, &outcome, how);
    let mut object = report.json()?;
    let text = report.text()?;
    progress.done();
    match &outcome.plan {
        Ok(solved) => {
            if let Some(file) = &args.script.decisions {
                let p = posed.tried()[solved.at].numbers();
                write_file(file, solved.realised.decisions.print(p).as_bytes())?;
            }
            emit(&if args.json { format!("{object}\n") } else { text })
        }
        Err(NoPlan::Infeasible(why)) => {
            let error = posed.infeasible(&[&outcome.planner], why, outcome.budget, how.allow())?;
            if !args.json {
                return Err(error);
            }
            if let (Value::Object(object), Value::Object(more)) = (&mut object, error.to_json()) {
                object.extend(more);
            }
            emit(&format!("{object}\n"))?;
            Err(Error::Said(error.to_string()))
        }
        Err(NoPlan::Failed(text)) => Err(Error::Internal(text.clone())),
    }
}
