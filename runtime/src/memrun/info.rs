//! `memrun --plan-info`: what a plan is, without running it.

use std::collections::BTreeMap;

use memc_ir::{Bytes, TensorType, counted};
use memc_plan::{Feed, PlanFile, Section, Tuning};
use serde_json::{Value, json};

use crate::memrun::cli::Cli;
use crate::memrun::report::{facts, hex};
use crate::memrun::terminal::print;

/// Describes a plan, and of its buckets the one with an index; returns the exit code.
pub(crate) fn print_of(cli: &Cli, file: &PlanFile, index: usize) -> u8 {
    let plan = file.plan().bucket(index).unwrap_or(file.plan());
    let meta = &plan.meta;
    let body = plan.counts(Section::Body);
    let names = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect::<Vec<_>>();
    let mut fed: BTreeMap<&str, (&TensorType, u64)> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut internal = Vec::new();
    for input in &plan.inputs {
        match &input.feed {
            Feed::Data { source, .. } => {
                let entry = fed.entry(source).or_insert((&input.ty, 0));
                entry.1 += 1;
                if entry.1 == 1 {
                    order.push(source);
                }
            }
            Feed::LearningRate { .. } | Feed::Step { .. } => internal.push(input.name.clone()),
        }
    }
    let outputs = names(&mut plan.outputs.iter().map(|o| &o.name));
    let buckets = if file.plan().buckets.is_empty() { Vec::new() } else { file.plan().bucket_names() };
    let shown = buckets.get(index);
    if cli.json {
        let mut object = facts(file);
        object.insert("producer".to_owned(), json!(meta.producer));
        object.insert("planner".to_owned(), json!(meta.planner));
        object.insert("profile".to_owned(), json!(meta.profile));
        object.insert("gpu_mem_bytes".to_owned(), json!(meta.budget_bytes));
        object.insert("reserve_bytes".to_owned(), json!(meta.reserve_bytes));
        object.insert("states".to_owned(), json!(plan.states.len()));
        object.insert("inputs".to_owned(), json!(order));
        object.insert("internal_inputs".to_owned(), json!(internal));
        object.insert("outputs".to_owned(), json!(outputs));
        object.insert("buckets".to_owned(), json!(buckets));
        object.insert("bucket".to_owned(), json!(shown));
        object.insert("tuned".to_owned(), json!(plan.tuning.as_ref().map(tuned)));
        object.insert("commands".to_owned(), json!(body.commands));
        object.insert("launches".to_owned(), json!(body.launches));
        object.insert("copies_out_bytes".to_owned(), json!(body.bytes_out));
        object.insert("copies_in_bytes".to_owned(), json!(body.bytes_in));
        return print(&format!("{}\n", Value::Object(object)));
    }
    let inputs = order.iter().filter_map(|name| {
        let (ty, copies) = fed.get(name)?;
        let each = if *copies == 1 { String::new() } else { format!(" for each of {copies} micro-steps") };
        Some(format!("{name} {ty}{each}"))
    });
    let inputs: Vec<String> = inputs.collect();
    let all = shown.map(|own| format!("{} (here {own}; --bucket shows another)", buckets.join(" ")));
    let rows = [
        ("model", meta.model.clone()),
        ("plan", hex(file.content_hash())),
        ("source", hex(&meta.source_hash)),
        ("made by", format!("{}, planner {}, seed {}", meta.producer, meta.planner, meta.seed)),
        ("profile", meta.profile.clone()),
        ("budget", budget(meta.budget_bytes, meta.reserve_bytes)),
        ("device arena", Bytes(meta.dev_bytes).to_string()),
        ("host arena", Bytes(meta.host_bytes).to_string()),
        (
            "step",
            format!("{}, {}", counted(body.commands, "command"), counted(body.launches, "kernel launch")),
        ),
        ("copies out", format!("{}, {}", body.copies_out, Bytes(body.bytes_out))),
        ("copies in", format!("{}, {}", body.copies_in, Bytes(body.bytes_in))),
        ("states", plan.states.len().to_string()),
        ("inputs", inputs.join(", ")),
        ("set by memrun", if internal.is_empty() { "-".into() } else { internal.join(", ") }),
        ("outputs", outputs.join(", ")),
        ("buckets", all.unwrap_or_else(|| "-".into())),
        ("tuned", plan.tuning.as_ref().map_or_else(|| "-".to_owned(), tuned)),
    ];
    print(&rows.map(|(name, value)| format!("{name:<13} {value}\n")).concat())
}

/// A budget and its parts.
fn budget(bytes: u64, reserve: u64) -> String {
    match reserve {
        0 => format!("{}, all of it for the arena", Bytes(bytes)),
        _ => format!(
            "{} = {} for the arena + {} reserve (driver, libraries and code)",
            Bytes(bytes),
            Bytes(bytes.saturating_sub(reserve)),
            Bytes(reserve)
        ),
    }
}

/// Subject of a plan's tuning.
fn tuned(tuning: &Tuning) -> String {
    format!("{} for {}, {}", counted(tuning.kernels.len() as u64, "kernel"), tuning.device, tuning.arch)
}
