//! `memc compile` of several sizes of a dimension.

use memc::{BucketModel, Buckets, Error, Event, Model, Watch, Workload};
use memc_ir::{Bytes, counted};
use memc_plan::Plan;
use serde_json::{Map, Value, json};

use crate::args::Compile;
use crate::compile::hex;
use crate::figures::{ms, quotient, table};
use crate::output::{Failure, Progress, Writing, emit, emit_json, stopped};

/// Compiles one plan with a bucket for each of these workloads.
pub(crate) fn run(
    args: &Compile,
    workloads: Vec<(String, Workload)>,
    progress: &Progress,
) -> Result<(), Failure> {
    if args.files.decisions.is_some() {
        let text = "--decisions writes the decisions of one plan; give --dim one size";
        return Err(Error::Usage(text.into()).into());
    }
    let mut models = Vec::new();
    for (name, workload) in workloads {
        progress.event(Event::Subject(&name));
        // The models differ in sizes alone: what is noted of the first holds for all.
        let quiet = Quiet(progress);
        let watch: &dyn Watch = if models.is_empty() { progress } else { &quiet };
        models.push(BucketModel { model: Model::read(&workload, &args.target.target(), watch)?, name });
    }
    let options = args.options(progress)?;
    let compiled = memc::compile_buckets(&models, &options)?;
    progress.stage("writing");
    let _writing = Writing::begin();
    let hash = compiled.write(&args.output, &stopped)?;
    progress.done();
    print(args, &compiled, &hash)
}

fn print(args: &Compile, compiled: &Buckets, hash: &[u8]) -> Result<(), Failure> {
    let buckets = compiled.names.iter().zip(compiled.plan.with_buckets());
    let meta = &compiled.plan.meta;
    if args.json {
        let bucket = |(name, plan): (&String, &Plan)| {
            let mut out: Map<String, Value> =
                plan.meta.claims.fields().into_iter().map(|(n, v)| (n.to_string(), json!(v))).collect();
            out.insert("name".into(), json!(name));
            out
        };
        return Ok(emit_json(&json!({
            "model": meta.model, "planner": compiled.planner, "device": meta.profile, "plan": args.output,
            "plan_hash": hex(hash), "gpu_mem_bytes": meta.budget_bytes, "reserve_bytes": meta.reserve_bytes,
            "arena_bytes": meta.dev_bytes, "host_bytes": meta.host_bytes, "checked": true,
            "buckets": buckets.map(bucket).collect::<Vec<_>>(),
        }))?);
    }
    let row = |(name, plan): (&String, &Plan)| {
        let claims = &plan.meta.claims;
        vec![
            name.clone(),
            Bytes(claims.unplanned_peak_bytes).short(),
            Bytes(claims.peak_bytes).short(),
            ms(claims.step_ns),
            quotient(claims.step_ns, claims.ideal_ns),
            Bytes(claims.swap_out_bytes).short(),
            Bytes(claims.swap_in_bytes).short(),
            ms(claims.recompute_ns),
        ]
    };
    let header = ["bucket", "unplanned", "arena", "step", "of ideal", "out", "in", "recomputed"];
    Ok(emit(&format!(
        "{}\n{}: {}; arena {} of a budget of {}{}, host {}; proved for any sequence of steps\n",
        table(&header, &buckets.map(row).collect::<Vec<_>>()),
        args.output.display(),
        counted(compiled.names.len(), "bucket"),
        Bytes(meta.dev_bytes),
        Bytes(meta.budget_bytes),
        memc::and_reserve(meta.reserve_bytes),
        Bytes(meta.host_bytes),
    ))?)
}

/// Progress without notes and warnings.
struct Quiet<'a>(&'a Progress);

impl Watch for Quiet<'_> {
    fn event(&self, event: Event<'_>) {
        if !matches!(event, Event::Note(_) | Event::Warning(_)) {
            self.0.event(event);
        }
    }

    fn stop(&self) -> bool {
        self.0.stop()
    }
}
