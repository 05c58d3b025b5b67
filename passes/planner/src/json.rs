//! `memc-problem/1`: a planning problem as JSON, for other planners and from other tools.
//! `FORMATS.md` of this crate has an example and says what each field means.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub use crate::keys::value;
use crate::problem::{Device, Kind, Malformed, Op, Problem, SLOWDOWN_UNIT, Tensor};

/// The value of `format`.
pub const FORMAT: &str = "memc-problem/1";

/// That of a device profile, which is easily taken for a problem.
const PROFILE: &str = "memc-profile/1";

/// Largest throughput that is believed, in bytes per second.
const MOST_PER_S: f64 = 1e18;

/// Largest slowdown that is believed.
const MOST_TIMES: f64 = 1000.0;

/// Reads a problem; errors name the op or tensor.
pub fn parse(text: &str) -> Result<Problem, Malformed> {
    let root = value(text).map_err(Malformed)?;
    let root = object(&root, "the file")?;
    let format = root.get("format").and_then(Value::as_str).unwrap_or("none");
    if format != FORMAT {
        let profile =
            if format == PROFILE { "; it is a device, which --device takes beside a model" } else { "" };
        return Err(Malformed(format!("the format is {format}, expected {FORMAT}{profile}")));
    }
    known(root, &["format", "name", "origin", "device", "tensors", "ops", "reference"], "the file")?;
    let device = device(root.get("device"))?;
    let mut tensors = Vec::new();
    let mut index: BTreeMap<u64, u32> = BTreeMap::new();
    for (i, t) in list(root, "tensors", "the file")?.iter().enumerate() {
        let t = object(t, &format!("tensors[{i}]"))?;
        let id = number(t, "id", &format!("tensors[{i}]"))?;
        let what = format!("tensor {id}");
        known(t, &["id", "name", "bytes", "kind"], &what)?;
        if index.insert(id, tensors.len() as u32).is_some() {
            return Err(Malformed(format!("{what} is there twice")));
        }
        let kind = match t.get("kind").and_then(Value::as_str) {
            Some("transient") => Kind::Transient,
            Some("persistent") => Kind::Persistent,
            Some("input") => Kind::Input,
            _ => return Err(Malformed(format!("{what}: kind must be transient, persistent or input"))),
        };
        let name = name(t, &what)?.map_or_else(|| format!("t{id}"), str::to_string);
        let bytes = number(t, "bytes", &what)?;
        tensors.push(Tensor { name, bytes: 0, size: bytes, kind, touches: Vec::new(), writes: Vec::new() });
    }
    let ops = ops(list(root, "ops", "the file")?, &index)?;
    if ops.is_empty() {
        return Err(Malformed("there are no ops: a step runs at least one".into()));
    }
    in_order(&tensors, &ops)?;
    handed_out(&tensors, &ops)?;
    unique(tensors.iter_mut().map(|t| &mut t.name));
    let name = name(root, "the file")?.unwrap_or("problem");
    Problem::new(name, device, tensors, ops)
}

/// What an op may say.
const OP: &[&str] = &[
    "id",
    "name",
    "time_ns",
    "reads",
    "writes",
    "workspace_bytes",
    "outputs",
    "after",
    "repeatable",
    "slowdown_under_copies",
];

fn ops(list_of_ops: &[Value], tensors: &BTreeMap<u64, u32>) -> Result<Vec<Op>, Malformed> {
    let mut index: BTreeMap<u64, u32> = BTreeMap::new();
    let mut raw = Vec::new();
    for (i, op) in list_of_ops.iter().enumerate() {
        let op = object(op, &format!("ops[{i}]"))?;
        let id = number(op, "id", &format!("ops[{i}]"))?;
        let label = name(op, &format!("op {id}"))?.map_or_else(|| format!("op{id}"), str::to_string);
        if index.insert(id, i as u32).is_some() {
            return Err(Malformed(format!("op {id} ({label}) is there twice")));
        }
        raw.push((id, label, op));
    }
    let mut out = Vec::with_capacity(raw.len());
    for (id, label, op) in raw {
        let what = format!("op {id} ({label})");
        known(op, OP, &what)?;
        let ids = |field: &str| -> Result<Vec<u32>, Malformed> {
            let of = |v: &Value| {
                let id =
                    v.as_u64().ok_or_else(|| Malformed(format!("{what}: {field} must list tensor ids")))?;
                tensors
                    .get(&id)
                    .copied()
                    .ok_or_else(|| Malformed(format!("{what} refers to an unknown tensor {id}")))
            };
            list(op, field, &what)?.iter().map(of).collect()
        };
        let (reads, writes) = (ids("reads")?, ids("writes")?);
        let numbers = |field: &str| -> Result<Vec<u64>, Malformed> {
            match op.get(field) {
                None => Ok(Vec::new()),
                Some(v) => {
                    v.as_array().and_then(|a| a.iter().map(Value::as_u64).collect()).ok_or_else(|| {
                        Malformed(format!("{what}: {field} must be a list of non-negative integers"))
                    })
                }
            }
        };
        let after = numbers("after")?
            .iter()
            .map(|a| {
                index.get(a).copied().ok_or_else(|| Malformed(format!("{what} is after an unknown op {a}")))
            })
            .collect::<Result<Vec<u32>, _>>()?;
        let outputs = outputs(op, tensors)
            .ok_or_else(|| Malformed(format!("{what}: outputs must be a list of [tensor, bytes]")))?;
        let repeatable = match op.get("repeatable") {
            None => !writes.iter().any(|t| reads.contains(t)),
            Some(v) => {
                v.as_bool().ok_or_else(|| Malformed(format!("{what}: repeatable must be true or false")))?
            }
        };
        out.push(Op {
            name: label.clone(),
            label,
            time_ns: number(op, "time_ns", &what)?,
            slowdown: slowdown(op, &what)?,
            reads,
            writes,
            workspace: optional(op, "workspace_bytes", &what)?,
            outputs,
            repeatable,
            after,
        });
    }
    unique(out.iter_mut().map(|op| &mut op.name));
    Ok(out)
}

/// Times longer beside copies in both directions, as parts of a whole by which it is.
fn slowdown(op: &Map<String, Value>, what: &str) -> Result<u32, Malformed> {
    let Some(factor) = op.get("slowdown_under_copies") else { return Ok(0) };
    let factor = factor.as_f64().filter(|f| (1.0..=MOST_TIMES).contains(f));
    let parts = |f: f64| ((f - 1.0) * f64::from(SLOWDOWN_UNIT)).round() as u32;
    let wrong =
        || Malformed(format!("{what}: slowdown_under_copies must be a factor from 1 to {MOST_TIMES}"));
    factor.map(parts).ok_or_else(wrong)
}

/// Refuses ops that read what only a later one computes: they form a cycle, or are not in execution order.
fn in_order(tensors: &[Tensor], ops: &[Op]) -> Result<(), Malformed> {
    let mut reader: Vec<Option<&Op>> = vec![None; tensors.len()];
    let mut written = vec![false; tensors.len()];
    for op in ops {
        for &t in &op.reads {
            reader[t as usize] = reader[t as usize].or(Some(op));
        }
        for &t in &op.writes {
            let (t, tensor) = (t as usize, &tensors[t as usize]);
            let early =
                reader[t].filter(|r| tensor.kind == Kind::Transient && !written[t] && r.name != op.name);
            if let Some(early) = early {
                return Err(Malformed(format!(
                    "the ops form a cycle: {} reads tensor {} before {} computes it; list ops in execution order",
                    early.name, tensor.name, op.name
                )));
            }
            written[t] = true;
        }
    }
    Ok(())
}

/// Refuses results that are more than the tensors that they are in.
fn handed_out(tensors: &[Tensor], ops: &[Op]) -> Result<(), Malformed> {
    for op in ops {
        let more = op.outputs.iter().find(|&&(t, bytes)| bytes > tensors[t as usize].size);
        if let Some(&(t, bytes)) = more {
            let Tensor { name, size, .. } = &tensors[t as usize];
            return Err(Malformed(format!(
                "op {} hands out {bytes} bytes of tensor {name}, which has {size}",
                op.name
            )));
        }
    }
    Ok(())
}

fn outputs(op: &Map<String, Value>, tensors: &BTreeMap<u64, u32>) -> Option<Vec<(u32, u64)>> {
    let Some(list) = op.get("outputs") else { return Some(Vec::new()) };
    let pair = |v: &Value| match v.as_array()?.as_slice() {
        [t, bytes] => Some((*tensors.get(&t.as_u64()?)?, bytes.as_u64().filter(|&b| b < 1 << 60)?)),
        _ => None,
    };
    list.as_array()?.iter().map(pair).collect()
}

/// Makes names unique by their position.
fn unique<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let names: Vec<&mut String> = names.collect();
    for name in &names {
        *seen.entry((*name).clone()).or_default() += 1;
    }
    for (i, name) in names.into_iter().enumerate() {
        if seen.get(name.as_str()).is_some_and(|&n| n > 1) {
            *name = format!("{name}#{i}");
        }
    }
}

/// What the device may say.
const DEVICE: &[&str] = &[
    "name",
    "memory_bytes",
    "h2d_bytes_per_s",
    "d2h_bytes_per_s",
    "duplex_total_bytes_per_s",
    "copy_latency_ns",
];

fn device(v: Option<&Value>) -> Result<Device, Malformed> {
    let d = object(v.unwrap_or(&Value::Null), "device")?;
    known(d, DEVICE, "device")?;
    let rate = |field: &str| match d.get(field) {
        None => Ok(0),
        Some(v) => {
            let n = v.as_f64().filter(|&n| n == 0.0 || (1.0..=MOST_PER_S).contains(&n));
            n.map(|n| n as u64).ok_or_else(|| {
                Malformed(format!(
                    "device: {field} must be a number of bytes per second from 1 to 1e18, or 0 for no link"
                ))
            })
        }
    };
    Ok(Device {
        memory_bytes: number(d, "memory_bytes", "device")?,
        h2d_bytes_per_s: rate("h2d_bytes_per_s")?,
        d2h_bytes_per_s: rate("d2h_bytes_per_s")?,
        duplex_bytes_per_s: rate("duplex_total_bytes_per_s")?,
        copy_latency_ns: optional(d, "copy_latency_ns", "device")?,
    })
}

fn object<'a>(v: &'a Value, what: &str) -> Result<&'a Map<String, Value>, Malformed> {
    v.as_object().ok_or_else(|| Malformed(format!("{what} must be an object")))
}

/// Refuses fields that mean nothing here: one that is misspelt would be lost.
fn known(o: &Map<String, Value>, fields: &[&str], what: &str) -> Result<(), Malformed> {
    match o.keys().find(|key| !fields.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(Malformed(format!("{what}: unknown field `{key}` (known: {})", fields.join(", ")))),
    }
}

/// What something is called, if it says; a name that cannot be seen is none.
fn name<'a>(o: &'a Map<String, Value>, what: &str) -> Result<Option<&'a str>, Malformed> {
    let text = |v: &'a Value| v.as_str().ok_or_else(|| Malformed(format!("{what}: name must be a string")));
    Ok(o.get("name").map(text).transpose()?.filter(|n| !n.trim().is_empty()))
}

fn list<'a>(o: &'a Map<String, Value>, field: &str, what: &str) -> Result<&'a [Value], Malformed> {
    let list = o.get(field).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| Malformed(format!("{what}: {field} must be a list")))
}

fn number(o: &Map<String, Value>, field: &str, what: &str) -> Result<u64, Malformed> {
    let n = o.get(field).and_then(Value::as_u64).filter(|&n| n < 1 << 60);
    n.ok_or_else(|| Malformed(format!("{what}: {field} must be a non-negative integer below 2^60")))
}

fn optional(o: &Map<String, Value>, field: &str, what: &str) -> Result<u64, Malformed> {
    if o.contains_key(field) { number(o, field, what) } else { Ok(0) }
}

/// Writes a problem; [`parse`] reads it back.
pub fn print(p: &Problem) -> String {
    let d = &p.device;
    let tensors: Vec<Value> = p
        .tensors
        .iter()
        .enumerate()
        .map(|(id, t)| json!({"id": id, "name": t.name, "bytes": t.size, "kind": t.kind.name()}))
        .collect();
    let ops: Vec<Value> = p
        .ops
        .iter()
        .enumerate()
        .map(|(id, op)| {
            let mut o = json!({
                "id": id, "name": op.name, "time_ns": op.time_ns, "reads": op.reads, "writes": op.writes,
                "workspace_bytes": op.workspace, "repeatable": op.repeatable,
            });
            if let Some(o) = o.as_object_mut() {
                if !op.outputs.is_empty() {
                    o.insert("outputs".into(), json!(op.outputs));
                }
                if op.slowdown > 0 {
                    let times = 1.0 + f64::from(op.slowdown) / f64::from(SLOWDOWN_UNIT);
                    o.insert("slowdown_under_copies".into(), json!(times));
                }
                if !op.after.is_empty() {
                    o.insert("after".into(), json!(op.after));
                }
            }
            o
        })
        .collect();
    // One tensor or op a line, so that files diff.
    let lines = |values: &[Value]| {
        let lines: Vec<String> = values.iter().map(Value::to_string).collect();
        format!("[\n{}\n]", lines.join(",\n"))
    };
    let device = json!({
        "memory_bytes": d.memory_bytes, "h2d_bytes_per_s": d.h2d_bytes_per_s, "d2h_bytes_per_s": d.d2h_bytes_per_s,
        "duplex_total_bytes_per_s": d.duplex_bytes_per_s, "copy_latency_ns": d.copy_latency_ns,
    });
    format!(
        "{{\"format\": \"{FORMAT}\", \"name\": {},\n\"device\": {device},\n\"tensors\": {},\n\"ops\": {}}}\n",
        json!(p.name),
        lines(&tensors),
        lines(&ops)
    )
}
