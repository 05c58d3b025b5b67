//! `memc dump` and `memc diff`.

use std::borrow::Cow;

use memc::Error;
use memc_ir::counted;
use memc_plan::{Action, Differences, Feed, Init, Kernel, Output, Plan, Section, Slice, State, Tuning};
use serde_json::{Value, json};

use crate::args::{Diff, Dump};
use crate::output::{Failure, emit};

pub(crate) fn dump(args: &Dump) -> Result<(), Failure> {
    let file = memc::open(&args.plan)?;
    if args.json {
        let mut out = to_json(file.plan());
        out["content_hash"] = hex(file.content_hash()).into();
        let names = file.plan().bucket_names();
        for (name, bucket) in names.iter().skip(1).zip(out["buckets"].as_array_mut().into_iter().flatten()) {
            bucket["bucket"] = name.as_str().into();
        }
        if let (Some(own), true) = (names.first(), names.len() > 1) {
            out["bucket"] = own.as_str().into();
        }
        return Ok(emit(&format!("{out:#}\n"))?);
    }
    Ok(emit(&memc_plan::text::print(file.plan()))?)
}

pub(crate) fn diff(args: &Diff) -> Result<(), Failure> {
    let (old, new) = (memc::open(&args.old)?, memc::open(&args.new)?);
    let bucket = args.bucket.as_deref();
    if bucket.is_some() && old.plan().buckets.is_empty() && new.plan().buckets.is_empty() {
        let text = "neither plan has buckets: leave out --bucket";
        return Err(Error::Usage(text.into()).into());
    }
    let (old, new) = (of_bucket(old.plan(), bucket)?, of_bucket(new.plan(), bucket)?);
    let Differences { header, handling, details } = memc_plan::diff(&old, &new);
    let equal = header.is_empty() && details.is_empty();
    let text = match (args.json, equal) {
        (true, _) => {
            let all: Vec<&String> = header.iter().chain(&details).collect();
            json!({"equal": equal, "handling": handling, "differences": all}).to_string()
        }
        (false, true) => "the plans are equal".into(),
        (false, false) => {
            let number = counted(details.len(), "difference");
            let more = format!("{number} in tables and commands; --all prints them");
            let more = if args.all { details } else { vec![more] };
            [handling, header, more].concat().join("\n")
        }
    };
    emit(&(text + "\n"))?;
    if equal { Ok(()) } else { Err(Failure::Different) }
}

/// The plan, or its bucket with a name; a plan of one size is of every name.
fn of_bucket<'a>(plan: &'a Plan, bucket: Option<&str>) -> Result<Cow<'a, Plan>, Error> {
    if bucket.is_none() || plan.buckets.is_empty() {
        return Ok(Cow::Borrowed(plan));
    }
    let index = plan.find_bucket(bucket).map_err(|error| Error::Usage(error.to_string()))?;
    let own = plan.bucket(index).ok_or_else(|| Error::Internal("the plan lost a bucket".into()))?;
    Ok(Cow::Owned(Plan { buckets: Vec::new(), ..own.clone() }))
}

fn texts(types: &[memc_ir::TensorType]) -> Vec<String> {
    types.iter().map(ToString::to_string).collect()
}

fn slice(s: &Slice) -> Value {
    json!({"space": s.space.name(), "offset": s.offset, "bytes": s.bytes})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn to_json(plan: &Plan) -> Value {
    let meta = &plan.meta;
    let claims: serde_json::Map<String, Value> =
        meta.claims.fields().map(|(n, v)| (n.to_string(), json!(v))).into_iter().collect();
    let kernel = |k: &Kernel| {
        json!({
            "op": k.op.mnemonic(), "attrs": k.op.attrs_text(), "operands": texts(&k.operands),
            "results": texts(&k.results), "workspace_bytes": k.workspace_bytes,
        })
    };
    let state = |s: &State| {
        json!({
            "name": s.name, "role": s.role.name(), "type": s.ty.to_string(), "resident": slice(&s.resident),
            "host_shadow": plan.host_shadow(s).as_ref().map(slice), "init": init(&s.init),
        })
    };
    let output = |o: &Output| {
        let (ty, role) = (o.ty.to_string(), o.role.name());
        json!({"name": o.name, "type": ty, "slot": slice(&o.slot), "role": role})
    };
    let kernels: Vec<Value> = plan.kernels.iter().map(kernel).collect();
    let states: Vec<Value> = plan.states.iter().map(state).collect();
    let inputs: Vec<Value> = plan.inputs.iter().map(input).collect();
    let outputs: Vec<Value> = plan.outputs.iter().map(output).collect();
    let mut out = json!({
        "content_hash": null, "producer": meta.producer, "model": meta.model,
        "source_hash": hex(&meta.source_hash), "planner": meta.planner, "profile": meta.profile,
        "seed": meta.seed, "options": meta.options, "gpu_mem_bytes": meta.budget_bytes,
        "reserve_bytes": meta.reserve_bytes, "arena_bytes": meta.dev_bytes, "host_bytes": meta.host_bytes,
        "claims": claims, "events": plan.events, "kernels": kernels, "states": states,
        "inputs": inputs, "outputs": outputs,
        "tuning": plan.tuning.as_ref().map(tuning),
    });
    for section in Section::ALL {
        out[section.name()] = plan.section(section).iter().map(command).collect();
    }
    out["buckets"] = plan.buckets.iter().map(to_json).collect();
    out
}

fn tuning(tuning: &Tuning) -> Value {
    let libraries = tuning.libraries.iter().map(|(name, version)| json!({"name": name, "version": version}));
    let kernels = tuning.kernels.iter().map(|k| {
        json!({
            "kernel": k.kernel, "algorithm": k.algorithm.to_string(),
            "workspace_bytes": k.workspace_bytes, "ns": k.ns,
            "default_ns": k.default_ns,
        })
    });
    json!({
        "device": tuning.device, "arch": tuning.arch, "libraries": libraries.collect::<Vec<_>>(),
        "rounding": tuning.rounding, "allow_nondeterminism": tuning.allow_nondeterminism,
        "kernels": kernels.collect::<Vec<_>>(),
    })
}

fn init(init: &Init) -> Value {
    match init {
        Init::Zeros => json!({"kind": "zeros"}),
        Init::Data { offset, bytes, hash } => {
            json!({"kind": "data", "offset": offset, "bytes": bytes, "hash": hex(hash)})
        }
        Init::Random { seed, kind } => json!({"kind": kind, "seed": seed}),
    }
}

fn input(i: &memc_plan::Input) -> Value {
    let feed = match &i.feed {
        Feed::Data { source, micro, low, high } => {
            json!({"kind": "data", "source": source, "micro": micro, "low": low, "high": high})
        }
        Feed::LearningRate { default, turn } => {
            json!({"kind": "learning_rate", "default": default, "turn": turn.index, "turns": turn.count})
        }
        Feed::Step { turn } => json!({"kind": "step", "turn": turn.index, "turns": turn.count}),
    };
    json!({"name": i.name, "type": i.ty.to_string(), "slot": slice(&i.slot), "feed": feed})
}

fn command(c: &memc_plan::Command) -> Value {
    let list = |s: &[Slice]| s.iter().map(slice).collect::<Vec<_>>();
    let mut out = match &c.action {
        Action::Launch { kernel, reads, writes, workspace } => {
            let workspace = workspace.as_ref().map(slice);
            json!({"kernel": kernel, "reads": list(reads), "writes": list(writes), "workspace": workspace})
        }
        Action::Copy { src, dst } => json!({"src": slice(src), "dst": slice(dst)}),
        Action::Record { event } | Action::Wait { event } => json!({"event": event}),
        Action::Free { slice: s } => json!({"slice": slice(s)}),
        Action::Load { state } | Action::Store { state } => json!({"state": state}),
        Action::HostWrite { input } => json!({"input": input}),
        Action::HostRead { output } => json!({"output": output}),
    };
    out["stream"] = json!(c.queue.name());
    out["action"] = json!(c.action.name());
    out["label"] = json!(c.label);
    out
}
