//! `memc-problem/1`: a planning problem as JSON, for other planners and from other tools.
//! `FORMATS.md` of this crate has an example and says what each field means.

use std::collections::BTreeMap;
use std::fmt::Display;

use memc_ir::{Arena, Id};
use serde::de::{DeserializeOwned, Error, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::ids::{OpPos, TensorId};
pub use crate::keys::{NotJson, value};
use crate::problem::{Device, Malformed, Op, Problem, SLOWDOWN_UNIT, Tensor, TensorKind};

/// The value of `format`.
pub const FORMAT: &str = "memc-problem/1";

/// The value of `format` in a device profile, which is easily taken for a problem.
const PROFILE: &str = "memc-profile/1";

/// Largest throughput that is believed, in bytes per second.
const MOST_PER_S: f64 = 1e18;

/// Largest slowdown that is believed.
const MOST_TIMES: f64 = 2000.0;

/// The whole file. Tensors and ops are read one by one, so that errors can name them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(default, deserialize_with = "text")]
    name: String,
    #[serde(rename = "origin", default)]
    _origin: IgnoredAny,
    #[serde(default)]
    device: Value,
    #[serde(deserialize_with = "list")]
    tensors: Vec<Value>,
    #[serde(deserialize_with = "list")]
    ops: Vec<Value>,
    #[serde(rename = "reference", default)]
    _reference: IgnoredAny,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    #[serde(rename = "name", default, skip_serializing)]
    _name: IgnoredAny,
    #[serde(deserialize_with = "number")]
    memory_bytes: u64,
    #[serde(default, deserialize_with = "rate")]
    h2d_bytes_per_s: u64,
    #[serde(default, deserialize_with = "rate")]
    d2h_bytes_per_s: u64,
    #[serde(default, deserialize_with = "rate")]
    duplex_total_bytes_per_s: u64,
    #[serde(default, deserialize_with = "number")]
    copy_latency_ns: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    #[serde(deserialize_with = "number")]
    id: u64,
    #[serde(default, deserialize_with = "text")]
    name: String,
    #[serde(deserialize_with = "number")]
    bytes: u64,
    #[serde(deserialize_with = "kind", serialize_with = "kind_name")]
    kind: TensorKind,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OpEntry {
    #[serde(deserialize_with = "number")]
    id: u64,
    #[serde(default, deserialize_with = "text")]
    name: String,
    #[serde(deserialize_with = "number")]
    time_ns: u64,
    reads: Vec<u64>,
    writes: Vec<u64>,
    #[serde(default, deserialize_with = "number")]
    workspace_bytes: u64,
    #[serde(default, deserialize_with = "flag")]
    repeatable: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<(u64, u64)>,
    #[serde(default, deserialize_with = "slowdown", skip_serializing_if = "Option::is_none")]
    slowdown_under_copies: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after: Vec<u64>,
    #[serde(default, deserialize_with = "time", skip_serializing_if = "Option::is_none")]
    host_time_ns: Option<u64>,
}

fn value_that<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
    holds: impl Fn(&T) -> bool,
    otherwise: impl Display,
) -> Result<T, D::Error> {
    T::deserialize(from).ok().filter(holds).ok_or_else(|| D::Error::custom(otherwise))
}

fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    value_that(from, |_| true, "must be a string")
}

fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    value_that(from, |_| true, "must be true or false").map(Some)
}

fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Value>, D::Error> {
    value_that(from, |_| true, "must be a list")
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    value_that(from, |&n| n < 1 << 60, "must be a non-negative integer below 2^60")
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    number(from).map(Some)
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let must = "must be a number of bytes per second from 1 to 1e18, or 0 for no link";
    let n: f64 = value_that(from, |&n| n == 0.0 || (1.0..=MOST_PER_S).contains(&n), must)?;
    Ok(n as u64)
}

fn slowdown<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let must = format_args!("must be a factor from 1 to {MOST_TIMES}");
    value_that(from, |f| (1.0..=MOST_TIMES).contains(f), must).map(Some)
}

fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<TensorKind, D::Error> {
    let name = String::deserialize(from).unwrap_or_default();
    let kind = [TensorKind::Transient, TensorKind::Persistent, TensorKind::Input]
        .into_iter()
        .find(|k| k.name() == name);
    kind.ok_or_else(|| D::Error::custom("must be transient, persistent or input"))
}

fn kind_name<S: Serializer>(kind: &TensorKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.name())
}

/// Reads an object with the fields of `T`; errors name it by `what`, and the field.
fn entry<T: DeserializeOwned>(v: &Value, what: &str) -> Result<T, Malformed> {
    if !v.is_object() {
        return Err(Malformed(format!("{what} must be an object")));
    }
    serde_path_to_error::deserialize(v).map_err(|e| {
        let (field, why) = (e.path().to_string(), e.inner().to_string());
        let unknown = || why.starts_with("unknown field") || field == ".";
        Malformed(match why.starts_with("must ") {
            true => format!("{what}: {field} {why}"),
            false if unknown() => format!("{what}: {why}"),
            false => format!("{what}: {field}: {why}"),
        })
    })
}

/// The name of a tensor or op in an error: its id, and the name where it has one.
fn called(v: &Value, group: &str, one: &str, index: usize) -> String {
    let name = v.get("name").and_then(Value::as_str).filter(|n| !n.trim().is_empty());
    match (v.get("id").and_then(Value::as_u64), name) {
        (Some(id), Some(name)) if one == "op" => format!("op {id} ({name})"),
        (Some(id), _) => format!("{one} {id}"),
        (None, _) => format!("{group}[{index}]"),
    }
}

/// A name, or `otherwise` where it cannot be seen.
fn visible(name: String, otherwise: impl Fn() -> String) -> String {
    if name.trim().is_empty() { otherwise() } else { name }
}

/// Reads a problem; errors name the op or tensor.
pub fn parse(text: &str) -> Result<Problem, Malformed> {
    let root = value(text).map_err(|e| Malformed(e.to_string()))?;
    let format = root.get("format").and_then(Value::as_str).unwrap_or("none");
    if root.is_object() && format != FORMAT {
        let profile =
            if format == PROFILE { "; it is a device, which --device takes beside a model" } else { "" };
        return Err(Malformed(format!("the format is {format}, expected {FORMAT}{profile}")));
    }
    let file: File = entry(&root, "the file")?;
    let d: DeviceEntry = entry(&file.device, "device")?;
    let device = Device {
        memory_bytes: d.memory_bytes,
        h2d_bytes_per_s: d.h2d_bytes_per_s,
        d2h_bytes_per_s: d.d2h_bytes_per_s,
        duplex_bytes_per_s: d.duplex_total_bytes_per_s,
        copy_latency_ns: d.copy_latency_ns,
    };
    let mut tensors: Arena<TensorId, Tensor> = Arena::default();
    let mut index: BTreeMap<u64, TensorId> = BTreeMap::new();
    for (i, v) in file.tensors.iter().enumerate() {
        let what = called(v, "tensors", "tensor", i);
        let TensorEntry { id, name, bytes, kind } = entry(v, &what)?;
        if index.insert(id, tensors.next_id()).is_some() {
            return Err(Malformed(format!("{what} is there twice")));
        }
        let name = visible(name, || format!("t{id}"));
        tensors.push(Tensor { name, bytes: 0, size: bytes, kind, touches: Vec::new(), writes: Vec::new() });
    }
    let ops = ops(&file.ops, &index)?;
    if ops.is_empty() {
        return Err(Malformed("there are no ops: a step runs at least one".into()));
    }
    in_order(&tensors, &ops)?;
    handed_out(&tensors, &ops)?;
    unique(tensors.values_mut().map(|t| &mut t.name));
    Problem::new(&visible(file.name, || "problem".into()), device, tensors.into_values().collect(), ops)
}

fn ops(list: &[Value], tensors: &BTreeMap<u64, TensorId>) -> Result<Vec<Op>, Malformed> {
    let mut index: BTreeMap<u64, OpPos> = BTreeMap::new();
    let mut entries: Vec<(String, OpEntry)> = Vec::with_capacity(list.len());
    for (i, v) in list.iter().enumerate() {
        let what = called(v, "ops", "op", i);
        let op: OpEntry = entry(v, &what)?;
        if index.insert(op.id, OpPos::new(i)).is_some() {
            return Err(Malformed(format!("{what} is there twice")));
        }
        entries.push((what, op));
    }
    let mut out = Vec::with_capacity(entries.len());
    for (what, op) in entries {
        let tensor = |id: &u64| {
            let known = tensors.get(id).copied();
            known.ok_or_else(|| Malformed(format!("{what} refers to an unknown tensor {id}")))
        };
        let earlier = |id: &u64| {
            let known = index.get(id).copied();
            known.ok_or_else(|| Malformed(format!("{what} is after an unknown op {id}")))
        };
        let reads: Vec<TensorId> = op.reads.iter().map(tensor).collect::<Result<_, _>>()?;
        let writes: Vec<TensorId> = op.writes.iter().map(tensor).collect::<Result<_, _>>()?;
        let outputs = op.outputs.iter().map(|(t, bytes)| Ok((tensor(t)?, *bytes)));
        let parts = |times: f64| ((times - 1.0) * f64::from(SLOWDOWN_UNIT)).round() as u32;
        let label = visible(op.name, || format!("op{}", op.id));
        out.push(Op {
            name: label.clone(),
            label,
            time_ns: op.time_ns,
            slowdown: op.slowdown_under_copies.map_or(0, parts),
            repeatable: op.repeatable.unwrap_or_else(|| !writes.iter().any(|t| reads.contains(t))),
            reads,
            writes,
            workspace: op.workspace_bytes,
            outputs: outputs.collect::<Result<_, _>>()?,
            after: op.after.iter().map(earlier).collect::<Result<_, _>>()?,
            sends: Vec::new(),
            host_ns: op.host_time_ns,
        });
    }
    unique(out.iter_mut().map(|op| &mut op.name));
    Ok(out)
}

/// Refuses ops that read what only a later one computes: they form a cycle, or are not in execution order.
fn in_order(tensors: &Arena<TensorId, Tensor>, ops: &[Op]) -> Result<(), Malformed> {
    let mut reader: Arena<TensorId, Option<&Op>> = Arena::filled(None, tensors.len());
    let mut written = Arena::filled(false, tensors.len());
    for op in ops {
        for &t in &op.reads {
            reader[t] = reader[t].or(Some(op));
        }
        for &t in &op.writes {
            let tensor = &tensors[t];
            let early = reader[t]
                .filter(|r| tensor.kind == TensorKind::Transient && !written[t] && r.name != op.name);
            if let Some(early) = early {
                return Err(Malformed(format!(
                    "the ops form a cycle: {} reads tensor {} before {} computes it; \
                     list ops in execution order",
                    early.name, tensor.name, op.name
                )));
            }
            written[t] = true;
        }
    }
    Ok(())
}

/// Refuses results that are more than the tensors that they are in.
fn handed_out(tensors: &Arena<TensorId, Tensor>, ops: &[Op]) -> Result<(), Malformed> {
    for op in ops {
        let more = op.outputs.iter().find(|&&(t, bytes)| bytes > tensors[t].size);
        if let Some(&(t, bytes)) = more {
            let Tensor { name, size, .. } = &tensors[t];
            return Err(Malformed(format!(
                "op {} hands out {bytes} bytes of tensor {name}, which has {size}",
                op.name
            )));
        }
    }
    Ok(())
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

fn numbers(ids: &[impl Id]) -> Vec<u64> {
    ids.iter().map(|id| id.index() as u64).collect()
}

/// Writes a problem; [`parse`] reads it back.
pub fn print(p: &Problem) -> String {
    let d = &p.device;
    let device = DeviceEntry {
        _name: IgnoredAny,
        memory_bytes: d.memory_bytes,
        h2d_bytes_per_s: d.h2d_bytes_per_s,
        d2h_bytes_per_s: d.d2h_bytes_per_s,
        duplex_total_bytes_per_s: d.duplex_bytes_per_s,
        copy_latency_ns: d.copy_latency_ns,
    };
    let tensors = p.tensors.values().zip(0..);
    let tensors =
        tensors.map(|(t, id)| TensorEntry { id, name: t.name.clone(), bytes: t.size, kind: t.kind });
    let factor = |parts: u32| 1.0 + f64::from(parts) / f64::from(SLOWDOWN_UNIT);
    let ops = p.ops.values().zip(0..).map(|(op, id)| OpEntry {
        id,
        name: op.name.clone(),
        time_ns: op.time_ns,
        reads: numbers(&op.reads),
        writes: numbers(&op.writes),
        workspace_bytes: op.workspace,
        repeatable: Some(op.repeatable),
        outputs: op.outputs.iter().map(|&(t, bytes)| (u64::from(t.0), bytes)).collect(),
        slowdown_under_copies: (op.slowdown > 0).then(|| factor(op.slowdown)),
        after: numbers(&op.after),
        host_time_ns: op.host_ns,
    });
    let (tensors, ops): (Vec<String>, Vec<String>) = (tensors.map(line).collect(), ops.map(line).collect());
    format!(
        "{{\"format\": \"{FORMAT}\", \"name\": {},\n\"device\": {},\n\
         \"tensors\": [\n{}\n],\n\"ops\": [\n{}\n]}}\n",
        json!(p.name),
        line(device),
        tensors.join(",\n"),
        ops.join(",\n")
    )
}

/// One object on one line, so that files diff.
fn line(entry: impl Serialize) -> String {
    json!(entry).to_string()
}
