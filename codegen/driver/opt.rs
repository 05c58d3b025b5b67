//! `memc opt`, `memc verify`, `memc list`.

use std::collections::BTreeMap;

use memc_ir::{Phase, counted, print};
use memc_passes::graph::{RECOVERIES, RULES, memory};
use memc_passes::{Fired, PASSES, PassCx, Pipeline};
use memc_planner::planners::{PLANNERS, Planner};
use serde_json::{Value, json};

use crate::cli::{Opt, Verify};
use crate::device;
use crate::exit::Error;
use crate::output::{emit, narrow_table, say, table, write_file};
use crate::source;

pub(crate) fn opt(args: &Opt) -> Result<(), Error> {
    let profile = &*device::find(&args.device)?;
    let pipeline = Pipeline::parse(&args.pass)?;
    let loaded = source::load(&args.source)?;
    loaded.warnings.iter().for_each(|w| say(&format!("warning: {w}")));
    let mut module = loaded.module;
    let mut cx = PassCx { fired: loaded.fired, ..source::context(profile) };
    pipeline.run(&mut module, &mut cx)?;
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
        (true, output) => emit(&format!("{}\n", to_json(&cx, output.is_none().then_some(ir)))),
        (false, None) => emit(&ir),
        (false, Some(_)) => Ok(()),
    }
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

pub(crate) fn verify(args: &Verify) -> Result<(), Error> {
    let loaded = source::load(&args.source)?;
    let m = &loaded.module;
    if args.json {
        let phase = m.phase.name();
        let object = json!({
            "model": m.name, "valid": true, "ops": m.order.len(), "values": m.values.len(), "phase": phase,
        });
        return emit(&format!("{object}\n"));
    }
    emit(&format!(
        "{}: {}, {}, valid in the {} phase\n",
        m.name,
        counted(m.order.len(), "op"),
        counted(m.values.len(), "value"),
        m.phase.name()
    ))
}

/// The op at the root of a pattern.
fn root(pattern: &str) -> &str {
    let word = pattern.trim_start_matches('(').split([' ', '=', ':', ')']).next();
    word.unwrap_or_default()
}

pub(crate) fn list(what: &str, json: bool) -> Result<(), Error> {
    if json && what == "devices" {
        return emit(&format!("[{}]\n", device::profiles().join(",\n")));
    }
    let phases = |(a, b): (Phase, Phase)| format!("{} -> {}", a.name(), b.name());
    let (header, rows): (&[&str], Vec<Vec<String>>) = match what {
        "devices" => device::listing(),
        "passes" => {
            let options =
                |p: &memc_passes::PassDef| p.options.iter().map(|o| o.name).collect::<Vec<_>>().join(",");
            let row = |p: &memc_passes::PassDef| {
                vec![p.name.into(), phases(p.phases), options(p), p.summary.into()]
            };
            (&["pass", "phase", "options", "summary"], PASSES.iter().map(row).collect())
        }
        "rewrites" => {
            let simplify = RULES.iter().map(|r| ("simplify", r.name, r.on.join(" "), r.doc));
            let roots = |patterns: &[&'static str]| {
                let mut roots: Vec<&str> = patterns.iter().map(|p| root(p)).collect();
                roots.dedup();
                roots.join(" ")
            };
            let recover = RECOVERIES.iter().map(|r| ("recover", r.name, roots(r.patterns), r.doc));
            let keep = memory::RULES.iter().map(|r| (memory::NAME, r.name, r.on().join(" "), r.doc));
            let row = |(pass, name, on, doc): (&str, &str, String, &str)| {
                vec![name.to_string(), pass.to_string(), on, doc.to_string()]
            };
            let rows = simplify.chain(recover).chain(keep).map(row);
            (&["rewrite", "pass", "looks at", "does"], rows.collect())
        }
        "planners" => {
            let row = |p: &Planner| vec![p.name.to_string(), p.summary.to_string(), p.source.to_string()];
            (&["planner", "does", "from"], PLANNERS.iter().map(row).collect())
        }
        "optimizers" => (
            &["--optimizer", "options and their defaults", "is"],
            memc_frontend::optimizers().into_iter().map(Vec::from).collect(),
        ),
        "losses" => {
            (&["--loss", "options", "is"], memc_frontend::losses().into_iter().map(Vec::from).collect())
        }
        "rules" => {
            let row = |r: &memc_ir::Rule| vec![r.code.to_string(), r.summary.to_string()];
            (&["rule", "what holds"], memc_ir::RULES.iter().map(row).collect())
        }
        _ => {
            let row = |d: &memc_ir::ops::OpDef| {
                vec![d.mnemonic.to_string(), d.operands.join(" "), d.results.join(" "), d.attrs.join(" ")]
            };
            (&["op", "operands", "results", "attributes"], memc_ir::ops::OP_DEFS.iter().map(row).collect())
        }
    };
    if json {
        let object = |row: &Vec<String>| -> serde_json::Map<String, Value> {
            header.iter().zip(row).map(|(h, cell)| (h.to_string(), Value::from(cell.as_str()))).collect()
        };
        return emit(&format!("{}\n", Value::from(rows.iter().map(object).collect::<Vec<_>>())));
    }
    if what == "devices" {
        return emit(&format!("{}\n{}", table(header, &rows), device::FOOTNOTE));
    }
    emit(&narrow_table(header, &rows))
}
