//! `memc explain`.

use std::cmp::Reverse;

use memc::{Does, Error, Explanation, Gap, Report, Stall, TensorFate, explain, over};
use memc_ir::{Bytes, counted};
use serde_json::{Value, json};

use crate::args::Explain;
use crate::figures::{ms, table, verdict};
use crate::output::{Failure, Progress, emit, emit_json, write_file};
use crate::planning::answer;

pub(crate) fn run(args: &Explain) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let search = args.search.search()?;
    let (instance, outcome) = answer(&args.question, &search, &args.files, &progress)?;
    let (candidate, plan) = outcome.require(&instance, search.allow)?;
    let mut told = explain(candidate, plan);
    if let Some(pattern) = &args.tensor {
        if !told.tensors.iter().any(|t| pattern.matches(&t.name)) {
            let names: Vec<&str> = told.tensors.iter().take(5).map(|t| t.name.as_str()).collect();
            let text =
                format!("no tensor is called `{pattern}`; there are for instance {}", names.join(", "));
            return Err(Error::Usage(text).into());
        }
        told.tensors.retain(|t| pattern.matches(&t.name));
    }
    if let (Some(file), Some(text)) = (&args.files.decisions, outcome.decisions(&instance)) {
        write_file(file, text.as_bytes())?;
    }
    progress.stage("proving a bound");
    let bound = outcome.bound(&instance, search.allow);
    if args.json {
        let object = to_json(&told, &Report::new(&instance, &outcome, search.allow)?)?;
        progress.done();
        return Ok(emit_json(&object)?);
    }
    progress.done();
    let step_ns = plan.evaluation.step_ns;
    let mut text = tensors(&told.tensors, args.top, args.tensor.is_some());
    text.push_str(&stalls(&told.stalls, args.top));
    let share = |ns| over(ns, step_ns).map_or_else(|| "-".into(), |part| format!("{:.1} %", 100.0 * part));
    let causes =
        told.stalled.iter().map(|(what, n, ns)| format!("{what} {} ({})", ms(*ns), counted(*n, "stall")));
    let causes: Vec<String> = causes.collect();
    let waiting = if causes.is_empty() { "no kernel waits".into() } else { causes.join(", ") };
    text.push_str(&format!(
        "\n{waiting}\nlinks busy: to the host {} of the step, to the device {}{}\n{} by {}: {} in a budget \
         of {}\n",
        share(told.to_host_ns),
        share(told.to_device_ns),
        if told.on_host_ns > 0 {
            format!("; ops on the host {}", share(told.on_host_ns))
        } else {
            String::new()
        },
        instance.name(),
        outcome.planner,
        verdict(step_ns, instance.ideal_ns(), bound, outcome.stopped),
        Bytes(outcome.budget),
    ));
    Ok(emit(&text)?)
}

fn to_json(told: &Explanation, report: &Report) -> Result<Value, Error> {
    let mut object = serde_json::to_value(report).map_err(|e| Error::Internal(e.to_string()))?;
    let stalled: serde_json::Map<String, Value> =
        told.stalled.iter().map(|(what, _, ns)| (what.to_string(), (*ns).into())).collect();
    object["tensors"] = json!(told.tensors);
    object["stalls"] = json!(told.stalls);
    object["stalled_ns"] = stalled.into();
    object["to_host_ns"] = told.to_host_ns.into();
    object["to_device_ns"] = told.to_device_ns.into();
    object["on_host_ns"] = told.on_host_ns.into();
    Ok(object)
}

/// Mark of a tensor that begins a step on both sides.
fn sides(tensor: &TensorFate) -> &'static str {
    if tensor.resident == Some("both") { "*" } else { "" }
}

fn cost_ns(gap: &Gap) -> u64 {
    gap.copy_out_ns.saturating_add(gap.copy_in_ns).saturating_add(gap.recompute_ns)
}

/// Sums by fate, then the gaps that cost the most; `kept`: with tensors that have none.
fn tensors(all: &[TensorFate], top: usize, kept: bool) -> String {
    let mut rows = Vec::new();
    for does in Does::ALL {
        let of: Vec<&TensorFate> = all.iter().filter(|t| t.does == does).collect();
        let sum = |f: &dyn Fn(&Gap) -> u64| of.iter().flat_map(|t| &t.gaps).map(f).sum::<u64>();
        if !of.is_empty() {
            rows.push(vec![
                does.name().into(),
                counted(of.len(), "tensor"),
                Bytes(of.iter().map(|t| t.bytes).sum()).short(),
                ms(sum(&|g| g.copy_out_ns + g.copy_in_ns)),
                ms(sum(&|g| g.recompute_ns)),
                ms(sum(&|g| g.waited_ns)),
            ]);
        }
    }
    let mut out = table(&["", "", "bytes", "copies", "recomputed", "waited for"], &rows);
    let mut gaps: Vec<(usize, &Gap)> =
        all.iter().enumerate().flat_map(|(t, of)| of.gaps.iter().map(move |g| (t, g))).collect();
    gaps.sort_by_key(|(t, g)| (Reverse((g.waited_ns + g.recompute_ns, cost_ns(g))), *t, g.next_step));
    let mut rows: Vec<Vec<String>> = gaps.iter().take(top).map(|(t, g)| row(&all[*t], g)).collect();
    if kept {
        rows.extend(all.iter().filter(|t| t.does == Does::Keep).take(top).map(|t| {
            let cells = [t.name.clone(), format!("keep{}", sides(t)), Bytes(t.bytes).short()];
            cells.into_iter().chain((0..6).map(|_| "-".to_string())).collect()
        }));
    }
    if !rows.is_empty() {
        let header = [
            "tensor",
            "does",
            "bytes",
            "leaves after",
            "back for",
            "copies",
            "recompute",
            "hidden",
            "makes room for",
        ];
        out.push('\n');
        out.push_str(&table(&header, &rows));
        out.push_str(&more(gaps.len(), top, "gap"));
    }
    let both = all.iter().filter(|t| t.resident == Some("both")).count();
    if both > 0 {
        out.push_str(&format!(
            "* begins a step on both sides, on the device and in host memory: {}; it leaves without a copy \
             until an op changes it\n",
            counted(both, "tensor")
        ));
    }
    out
}

fn row(tensor: &TensorFate, gap: &Gap) -> Vec<String> {
    let does = match gap.back_by {
        "copy" => "swap",
        "overwriting" => "swap out",
        other => other,
    };
    let time = |ns: u64| if ns == 0 { "-".to_string() } else { ms(ns) };
    let next = if gap.next_step { " (next step)" } else { "" };
    vec![
        tensor.name.clone(),
        format!("{does}{}", sides(tensor)),
        Bytes(tensor.bytes).short(),
        gap.after.clone().unwrap_or_else(|| "the step's start".into()),
        format!("{}{next}", gap.before.as_deref().unwrap_or("the step's end")),
        time(gap.copy_out_ns + gap.copy_in_ns),
        time(gap.recompute_ns),
        gap.hidden.map_or_else(|| "-".into(), |h| format!("{:.0} %", 100.0 * h)),
        match (&gap.makes_room_for, gap.bytes_there) {
            (Some(op), Some(bytes)) => format!("{op} ({})", Bytes(bytes).short()),
            _ => "-".into(),
        },
    ]
}

fn stalls(all: &[Stall], top: usize) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut stalls: Vec<&Stall> = all.iter().collect();
    stalls.sort_by_key(|s| (Reverse(s.ns), s.at_ns));
    let row = |s: &&Stall| {
        let recomputed = if s.recompute { " (recomputed)" } else { "" };
        vec![
            format!("{}{recomputed}", s.op),
            ms(s.at_ns),
            ms(s.ns),
            s.waits_for.clone(),
            s.because_of.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = stalls.iter().take(top).map(row).collect();
    let header = ["op that waits", "at", "for", "waits for", "which waited for"];
    format!("\n{}{}", table(&header, &rows), more(stalls.len(), top, "stall"))
}

/// Count of rows that a table leaves out.
fn more(all: usize, top: usize, what: &str) -> String {
    let rest = all.saturating_sub(top);
    if rest == 0 {
        String::new()
    } else {
        format!("and {}: --top {all} shows all\n", counted(rest, &format!("more {what}")))
    }
}
