//! `memc opt` and `memc verify`.

use std::collections::BTreeMap;
use std::path::Path;

use memc::{Error, device, read_text};
use memc_ir::{Module, counted, print};
use memc_passes::{Fired, PassCx, PassDef, Pipeline, header};
use serde_json::{Value, json};

use crate::args::{Opt, Verify};
use crate::output::{Failure, emit, say, write_file};

pub(crate) fn opt(args: &Opt) -> Result<(), Failure> {
    let headers = headers(args.source.model.as_deref())?;
    let given =
        |flag: &Option<String>, name| flag.clone().or_else(|| header(&headers, name).map(str::to_owned));
    let profile = &*device::find(&given(&args.device, "device").unwrap_or_else(|| "cpu".into()))?;
    let pipeline = pipeline(args, &given(&args.pass, "pass").unwrap_or_default())?;
    let loaded = args.source.workload()?.import()?;
    loaded.warnings.iter().for_each(|w| say(&format!("warning: {w}")));
    let mut module = loaded.module;
    let mut cx = PassCx { fired: loaded.fired, ..memc::context(profile) };
    let printed = |pass: &str| args.print_after.iter().any(|name| name == pass || name == ALL);
    let mut observe = |pass: &PassDef, m: &Module| {
        if printed(pass.name) {
            say(&format!("; after {}\n{}", pass.name, print(m).trim_end()));
        }
    };
    pipeline.run_observed(&mut module, &mut cx, &mut observe).map_err(Error::from)?;
    cx.warnings.iter().for_each(|w| say(&format!("warning: {w}")));
    if args.stats {
        cx.stats.iter().for_each(|(pass, what, n)| say(&format!("{pass}: {n} {what}")));
    }
    if args.explain {
        let lines = explain(&cx.fired);
        if lines.is_empty() {
            say("no rule rewrote anything; --pass all runs what compile runs");
        }
        lines.iter().for_each(|line| say(line));
    }
    let ir = print(&module);
    if let Some(path) = &args.output {
        write_file(path, ir.as_bytes())?;
    }
    match (args.json, &args.output) {
        (true, output) => emit(&format!("{}\n", to_json(&cx, output.is_none().then_some(ir))))?,
        (false, None) => emit(&ir)?,
        (false, Some(_)) => {}
    }
    Ok(())
}

/// `--print-after` with this name prints the IR after every pass.
const ALL: &str = "all";

/// Text of an IR file, whose headers may name passes and a device; nothing for other models.
fn headers(model: Option<&Path>) -> Result<String, Error> {
    let is_text = |path: &&Path| path.extension().is_some_and(|e| e == "mir") && !path.is_dir();
    model.filter(is_text).map_or_else(|| Ok(String::new()), read_text)
}

/// The pipeline up to `--stop-after`. Refuses names of passes that it does not have.
fn pipeline(args: &Opt, text: &str) -> Result<Pipeline, Error> {
    let pipeline = Pipeline::parse(text)?;
    let missing = |option: &str, pass: &str| {
        let names: Vec<&str> = pipeline.0.iter().map(|step| step.pass.name).collect();
        let has = if names.is_empty() { "there are none: give --pass".into() } else { names.join(", ") };
        Error::Usage(format!("{option} {pass}: no such pass is to run (those that are: {has})"))
    };
    let until = match &args.stop_after {
        Some(pass) => pipeline.clone().until(pass).ok_or_else(|| missing("--stop-after", pass))?,
        None => pipeline.clone(),
    };
    let runs = |pass: &String| pass == ALL || until.0.iter().any(|step| step.pass.name == pass);
    match args.print_after.iter().find(|&pass| !runs(pass)) {
        Some(pass) => Err(missing("--print-after", pass)),
        None => Ok(until),
    }
}

/// Counts and rewrites of the passes, and the IR that they left, where it is wanted.
fn to_json(cx: &PassCx<'_>, ir: Option<String>) -> Value {
    let count = |(pass, what, n): &(&str, String, u64)| json!({"pass": pass, "counted": what, "count": n});
    let rule = |(rule, values): (&(&str, &str), &(u64, Vec<&str>))| {
        let ((pass, rule), (count, values)) = (rule, values);
        json!({"pass": pass, "rule": rule, "count": count, "values": values})
    };
    json!({
        "stats": cx.stats.iter().map(count).collect::<Vec<_>>(),
        "rewrites": by_rule(&cx.fired).iter().map(rule).collect::<Vec<_>>(),
        "ir": ir,
    })
}

/// For every rule that was applied, by pass and name: how often, and the values that it computes in another
/// way.
fn by_rule(fired: &[Fired]) -> BTreeMap<(&str, &str), (u64, Vec<&str>)> {
    let mut rules: BTreeMap<(&str, &str), (u64, Vec<&str>)> = BTreeMap::new();
    for f in fired {
        let (count, values) = rules.entry((f.pass, f.rule)).or_default();
        *count += f.count;
        values.push(&f.at);
    }
    rules
}

/// A line for every rule that was applied.
fn explain(fired: &[Fired]) -> Vec<String> {
    let rules = by_rule(fired);
    let line = |((pass, rule), (count, values)): (&(&str, &str), &(u64, Vec<&str>))| {
        format!("{pass}: {count} {rule} at {}", values.join(", "))
    };
    rules.iter().map(line).collect()
}

pub(crate) fn verify(args: &Verify) -> Result<(), Failure> {
    let loaded = args.source.workload()?.import()?;
    let m = &loaded.module;
    if args.json {
        let phase = m.phase.name();
        let object = json!({
            "model": m.name, "valid": true, "ops": m.order.len(), "values": m.values.len(), "phase": phase,
        });
        return Ok(emit(&format!("{object}\n"))?);
    }
    Ok(emit(&format!(
        "{}: {}, {}, valid in the {} phase\n",
        m.name,
        counted(m.order.len(), "op"),
        counted(m.values.len(), "value"),
        m.phase.name()
    ))?)
}
