//! `memc opt` and `memc verify`.

use std::collections::BTreeMap;

use memc::{Error, device};
use memc_ir::{counted, print};
use memc_passes::{Fired, PassCx, Pipeline};
use serde_json::{Value, json};

use crate::args::{Opt, Verify};
use crate::output::{Failure, emit, say, write_file};

pub(crate) fn opt(args: &Opt) -> Result<(), Failure> {
    let profile = &*device::find(&args.device)?;
    let pipeline = Pipeline::parse(&args.pass).map_err(Error::from)?;
    let loaded = memc::import(&args.source.source())?;
    loaded.warnings.iter().for_each(|w| say(&format!("warning: {w}")));
    let mut module = loaded.module;
    let mut cx = PassCx { fired: loaded.fired, ..memc::context(profile) };
    pipeline.run(&mut module, &mut cx).map_err(Error::from)?;
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

/// What passes counted and rewrote, and the IR that they left, where it is wanted.
fn to_json(cx: &PassCx<'_>, ir: Option<String>) -> Value {
    let count = |(pass, what, n): &(&str, String, u64)| json!({"pass": pass, "counted": what, "count": n});
    let rule = |((pass, rule), (count, values)): (&(&str, &str), &(u64, Vec<&str>))| json!({"pass": pass, "rule": rule, "count": count, "values": values});
    json!({
        "stats": cx.stats.iter().map(count).collect::<Vec<_>>(),
        "rewrites": by_rule(&cx.fired).iter().map(rule).collect::<Vec<_>>(),
        "ir": ir,
    })
}

/// For every rule that was applied, by pass and name: how often, and the values that it computes in another way.
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
    let loaded = memc::import(&args.source.source())?;
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
