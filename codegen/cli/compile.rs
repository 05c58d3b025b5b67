//! `memc compile` and `memc estimate`.

use memc::{Compiled, Error, Model, SavedActivations, Work, memory_over_time};
use memc_ir::{Bytes, counted};
use serde_json::json;

use crate::args::{Compile, Estimate};
use crate::buckets;
use crate::figures::{ms, table, verdict};
use crate::output::{Failure, Progress, Writing, emit, emit_json, ready, replaceable, stopped, write_file};
use crate::sparkline;

pub(crate) fn run(args: &Compile) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let inputs = [args.source.files(), vec![args.files.apply.as_ref()]].concat();
    ready(&inputs, &[Some(&args.output), args.files.decisions.as_ref()])?;
    replaceable(&args.output)?;
    let sizes = args.source.buckets()?;
    if !sizes.is_empty() {
        return buckets::run(args, sizes, &progress);
    }
    let model = Model::read(&args.source.workload()?, &args.target.target(), &progress)?;
    let options = args.options(&progress)?;
    let compiled = memc::compile(&model, &options)?;
    progress.stage("writing");
    // The plan is what was asked for: once it is written, an interrupt leaves the rest time to say so.
    let _writing = Writing::begin();
    let hash = compiled.write(&args.output, &stopped)?;
    if let (Some(file), Some(text)) = (&args.files.decisions, compiled.outcome.decisions(&compiled.instance))
    {
        write_file(file, text.as_bytes())?;
    }
    progress.stage("proving a bound");
    let bound = compiled.bound();
    progress.done();
    let saved = &model.graph(compiled.formulation()).unwrap_or(model.own()).saved;
    if args.json {
        print_json(args, &compiled, saved, bound, &hash)?
    } else {
        print(args, &compiled, saved, bound)?
    }
    Ok(())
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(hash: &[u8]) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

fn print_json(
    args: &Compile,
    compiled: &Compiled,
    saved: &SavedActivations,
    bound: Option<(u64, &str)>,
    hash: &[u8; 32],
) -> Result<(), Error> {
    let (meta, outcome) = (&compiled.plan.meta, &compiled.outcome);
    let claims = &meta.claims;
    emit_json(&json!({
        "model": meta.model, "planner": meta.planner, "device": meta.profile, "plan": args.output,
        "plan_hash": hex(hash), "gpu_mem_bytes": meta.budget_bytes, "reserve_bytes": meta.reserve_bytes,
        "arena_bytes": meta.dev_bytes, "host_bytes": meta.host_bytes, "peak_bytes": compiled.peak_bytes(),
        "unplanned_peak_bytes": compiled.unplanned_peak_bytes(), "ideal_ns": claims.ideal_ns,
        "step_ns": claims.step_ns, "bound_ns": bound.map(|b| b.0), "bound_holds_for": bound.map(|b| b.1),
        "swap_out_bytes": claims.swap_out_bytes, "swap_in_bytes": claims.swap_in_bytes,
        "host_ops": compiled.on_host().0, "host_ns": compiled.on_host().1,
        "recompute_ns": claims.recompute_ns, "recompute_ops": claims.recompute_ops, "ops": claims.ops,
        "evaluations": outcome.evaluations, "plan_ns": outcome.plan_ns, "stopped": outcome.stopped,
        "checked": true, "formulation": compiled.formulation().name(), "stash": saved,
    }))
}

fn print(
    args: &Compile,
    compiled: &Compiled,
    saved: &SavedActivations,
    bound: Option<(u64, &str)>,
) -> Result<(), Error> {
    let (meta, instance) = (&compiled.plan.meta, &compiled.instance);
    let claims = &meta.claims;
    let recomputed = format!("{}, {}", counted(claims.recompute_ops as usize, "op"), ms(claims.recompute_ns));
    let row = |what: &str, unplanned: String, planned: String| vec![what.to_string(), unplanned, planned];
    let mut rows = vec![
        row("arena", Bytes(claims.unplanned_peak_bytes).short(), Bytes(meta.dev_bytes).short()),
        row("step (modelled)", ms(instance.given().kept().evaluation.step_ns), ms(claims.step_ns)),
        row("swapped out", "-".into(), Bytes(claims.swap_out_bytes).short()),
        row("swapped in", "-".into(), Bytes(claims.swap_in_bytes).short()),
        row("recomputed", "-".into(), recomputed),
    ];
    let (ops, ns) = compiled.on_host();
    if ops > 0 {
        rows.push(row("on the host", "-".into(), format!("{}, {}", counted(ops, "op"), ms(ns))));
    }
    let unplanned = memory_over_time(instance.given().kept());
    let planned =
        compiled.outcome.plan.as_ref().map(|plan| memory_over_time(&plan.schedule)).unwrap_or_default();
    emit(&format!(
        "{}{}\n{}by {}: {}\n{}: {}; arena {} of a budget of {}{}, host {}; proved by the checker\n",
        table(&["", "unplanned", "planned"], &rows),
        sparkline::lines(&[("unplanned", &unplanned), ("planned", &planned)]),
        saved_line(saved),
        compiled.outcome.planner,
        verdict(claims.step_ns, instance.ideal_ns(), bound, compiled.outcome.stopped),
        args.output.display(),
        counted(claims.ops as usize, "op"),
        Bytes(meta.dev_bytes),
        Bytes(meta.budget_bytes),
        memc::and_reserve(instance.reserve_bytes),
        Bytes(meta.host_bytes),
    ))
}

/// Activations kept for the backward pass, in a line; nothing where there are none.
fn saved_line(saved: &SavedActivations) -> String {
    if saved.before == 0 {
        return String::new();
    }
    let (before, after) = (Bytes(saved.before).short(), Bytes(saved.after).short());
    if saved.before == saved.after {
        return format!("kept from the forward for the backward pass: {after}\n");
    }
    let more = ms(saved.added_ns);
    format!(
        "kept from the forward for the backward pass: {after} instead of {before}, for {more} more of \
         kernels\n"
    )
}

pub(crate) fn estimate(args: &Estimate) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let model = Model::read(&args.source.workload()?, &args.target.target(), &progress)?;
    let e = memc::estimate(&model, &progress)?;
    progress.done();
    if args.json {
        return Ok(emit_json(&e)?);
    }
    let row = |name: &str, bytes: u64, note: &str| {
        vec![name.to_string(), Bytes(bytes).short(), bytes.to_string(), note.to_string()]
    };
    let has = e.memory_bytes.map(|bytes| format!("; {} has {}", model.profile.name, Bytes(bytes).short()));
    let has = has.unwrap_or_default();
    let mut rows = vec![
        row("weights", e.weights_bytes, "parameters, trained and frozen"),
        row("gradients", e.gradients_bytes, "all at once; fewer where the optimizer follows closely"),
        row("optimizer", e.optimizer_bytes, "state kept between steps"),
        row("buffers", e.buffers_bytes + e.constants_bytes, "running statistics and constants"),
        row("activations", e.activations_bytes, "most live at once, gradients of activations included"),
        row("workspace", e.workspace_bytes, "largest scratch of one op"),
    ];
    if e.reserve_bytes > 0 {
        rows.push(row("reserve", e.reserve_bytes, "set aside for the driver, libraries and code"));
    }
    let op = &e.largest_working_set_op;
    rows.push(row("peak", e.peak_bytes, &format!("unplanned, laid out{has}")));
    rows.push(row(
        "smallest",
        e.smallest_feasible_bytes,
        &format!("feasible --gpu-mem; working set of {op}"),
    ));
    let text = table(&[e.model.as_str(), "size", "bytes", ""], &rows);
    let live = sparkline::lines(&[("unplanned", &e.live)]);
    Ok(emit(&format!("{text}{live}\n{}{}\n", saved_line(&e.saved), kernels(e.work, e.work_unfused)))?)
}

/// The kernels of a step, in a line.
fn kernels(work: Work, unfused: Work) -> String {
    let text = |w: Work| {
        format!("{} moving {} in {}", counted(w.kernels, "kernel"), Bytes(w.bytes).short(), ms(w.ns))
    };
    if unfused.kernels == work.kernels {
        return format!("{} (modelled)", text(work));
    }
    format!("{} (modelled); without fusion {}", text(work), text(unfused))
}
