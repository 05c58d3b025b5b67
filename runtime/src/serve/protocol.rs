//! Requests and responses of the Open Inference Protocol (KServe v2), in JSON and with binary tensors.
//!
//! Contract: a request is taken whole or refused with one sentence. What is taken has every input of the
//! model once, in its element type, with equal numbers of rows, and values that the kernels accept.

use memc_ir::{DType, TensorType};
use serde_json::{Map, Value, json};

use super::http::{JSON_LENGTH, Request, Response};
use super::model::{Model, Port};
use super::tensor;
use crate::feed::legal;

/// A request for a model's outputs.
#[derive(Debug)]
pub(super) struct Wanted {
    id: Option<String>,
    pub(super) rows: u64,
    /// Bytes of each of the model's inputs.
    pub(super) inputs: Vec<Vec<u8>>,
    /// Places of the outputs that are wanted, and whether each is to be binary.
    outputs: Vec<(usize, bool)>,
}

/// The model's inputs and outputs. A first axis of -1 takes up to `max_batch_size` rows.
pub(super) fn metadata(model: &Model) -> String {
    let port = |port: &Port| {
        let mut shape: Vec<i64> = port.ty.shape.iter().map(|&n| i64::try_from(n).unwrap_or(-1)).collect();
        if let (Some(_), Some(first)) = (model.batch, shape.first_mut()) {
            *first = -1;
        }
        json!({"name": port.name, "datatype": tensor::name(port.ty.dtype), "shape": shape})
    };
    let mut object = json!({
        "name": model.name,
        "versions": ["1"],
        "platform": "memc_plan",
        "inputs": model.inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": model.outputs.iter().map(port).collect::<Vec<_>>(),
    });
    if let Some(batch) = model.batch {
        object["parameters"] = json!({"max_batch_size": batch});
    }
    format!("{object}\n")
}

/// Reads a request.
///
/// # Errors
/// One sentence about the first thing that is wrong.
pub(super) fn read(model: &Model, request: &Request) -> Result<Wanted, String> {
    let (text, mut binary) = parts(request)?;
    let body: Value =
        serde_json::from_slice(text).map_err(|error| format!("the request is no JSON: {error}"))?;
    let body = body.as_object().ok_or("the request is no JSON object")?;
    let id = match body.get("id") {
        None => None,
        Some(id) => Some(id.as_str().ok_or("`id` is no string")?.to_owned()),
    };
    let given = body.get("inputs").and_then(Value::as_array).ok_or("the request has no list `inputs`")?;
    let mut inputs: Vec<Option<(u64, Vec<u8>)>> = model.inputs.iter().map(|_| None).collect();
    for entry in given {
        let entry = entry.as_object().ok_or("an entry of `inputs` is no object")?;
        let name = entry.get("name").and_then(Value::as_str).ok_or("an entry of `inputs` has no `name`")?;
        let place = model.inputs.iter().position(|port| port.name == name);
        let found = place.and_then(|place| Some((model.inputs.get(place)?, inputs.get_mut(place)?)));
        let (port, slot) = found.ok_or_else(|| {
            format!("the model has no input `{}`; it has {}", short(name), names(&model.inputs))
        })?;
        let read = input(model, port, entry, &mut binary);
        let read = read.map_err(|what| format!("input `{name}`: {what}"))?;
        if slot.replace(read).is_some() {
            return Err(format!("input `{name}` is given twice"));
        }
    }
    if !binary.is_empty() {
        return Err(format!("{} bytes behind the JSON belong to no input", binary.len()));
    }
    let mut out = Wanted { id, rows: 1, inputs: Vec::new(), outputs: outputs(model, body)? };
    for (at, (port, read)) in model.inputs.iter().zip(inputs).enumerate() {
        let (rows, bytes) = read.ok_or_else(|| format!("there is no input `{}`", port.name))?;
        if at > 0 && rows != out.rows {
            return Err(format!("input `{}` has {rows} rows, those before it have {}", port.name, out.rows));
        }
        out.rows = rows;
        out.inputs.push(bytes);
    }
    Ok(out)
}

/// The JSON of a request, and the tensors behind it.
fn parts(request: &Request) -> Result<(&[u8], &[u8]), String> {
    let Some(length) = &request.json_length else { return Ok((&request.body, &[])) };
    let length = length.parse().ok().filter(|_| length.bytes().all(|b| b.is_ascii_digit()));
    length.and_then(|length: usize| request.body.split_at_checked(length)).ok_or_else(|| {
        format!("{JSON_LENGTH} is no number up to the length of the body, {}", request.body.len())
    })
}

/// Rows and bytes of an input; takes what is its own from `binary`.
fn input(
    model: &Model,
    port: &Port,
    entry: &Map<String, Value>,
    binary: &mut &[u8],
) -> Result<(u64, Vec<u8>), String> {
    let dtype = port.ty.dtype;
    match entry.get("datatype").and_then(Value::as_str) {
        Some(given) if given == tensor::name(dtype) => {}
        Some(given) => return Err(format!("it is {}, not {}", tensor::name(dtype), short(given))),
        None => return Err("it has no `datatype`".to_owned()),
    }
    let shape = entry.get("shape").and_then(Value::as_array).ok_or("it has no list `shape`")?;
    let shape: Option<Vec<u64>> = shape.iter().map(Value::as_u64).collect();
    let rows = rows(model, port, &shape.ok_or("its `shape` has what is no extent")?)?;
    let wanted = model.bytes(port, rows);
    let size = entry.get("parameters").and_then(|parameters| parameters.get("binary_data_size"));
    let bytes = match (size, entry.get("data")) {
        (Some(_), Some(_)) => return Err("it has both `data` and `binary_data_size`".to_owned()),
        (None, None) => return Err("it has no `data`".to_owned()),
        (Some(size), None) => {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            let parts = size.and_then(|size| binary.split_at_checked(size));
            let (own, rest) = parts.ok_or("its `binary_data_size` is more than there is")?;
            *binary = rest;
            own.to_vec()
        }
        (None, Some(data)) => {
            if !data.is_array() {
                return Err("its `data` is no list".to_owned());
            }
            let mut bytes = Vec::new();
            tensor::read(data, dtype, &mut bytes)?;
            bytes
        }
    };
    if bytes.len() != wanted {
        let each = dtype.bytes() as usize;
        let (has, wants) = (bytes.len() / each, wanted / each);
        return Err(format!("its shape has {wants} elements, and its data {has} ({} bytes)", bytes.len()));
    }
    if dtype == DType::Bool && bytes.iter().any(|&b| b > 1) {
        return Err("a boolean is a byte 0 or 1".to_owned());
    }
    let mut ty = port.ty.clone();
    if model.batch.is_some()
        && let Some(first) = ty.shape.first_mut()
    {
        *first = rows;
    }
    legal::first_wrong(&port.legal, &ty, &bytes).map_or(Ok((rows, bytes)), Err)
}

/// Rows of a tensor of this shape.
fn rows(model: &Model, port: &Port, shape: &[u64]) -> Result<u64, String> {
    let TensorType { shape: whole, .. } = &port.ty;
    match (model.batch, shape.split_first(), whole.split_first()) {
        (Some(batch), Some((&rows, rest)), Some((_, each))) if rest == each => match rows {
            0 => Err("it has no rows".to_owned()),
            rows if rows > batch => Err(format!("it has {rows} rows, and a batch has at most {batch}")),
            rows => Ok(rows),
        },
        (None, ..) if shape == whole.as_slice() => Ok(1),
        (batch, ..) => {
            let mut shown: Vec<String> = whole.iter().map(ToString::to_string).collect();
            if let (Some(batch), Some(first)) = (batch, shown.first_mut()) {
                *first = format!("1 to {batch}");
            }
            Err(format!("its shape is [{}], not {shape:?}", shown.join(", ")))
        }
    }
}

/// The outputs that a request names, or all.
fn outputs(model: &Model, body: &Map<String, Value>) -> Result<Vec<(usize, bool)>, String> {
    let flag = |object: &Map<String, Value>, name: &str| {
        object.get("parameters").and_then(|p| p.get(name)).and_then(Value::as_bool)
    };
    let all_binary = flag(body, "binary_data_output").unwrap_or(false);
    let named = match body.get("outputs") {
        None => &[][..],
        Some(list) => list.as_array().ok_or("`outputs` is no list")?,
    };
    if named.is_empty() {
        return Ok((0..model.outputs.len()).map(|at| (at, all_binary)).collect());
    }
    let one = |entry: &Value| {
        let entry = entry.as_object().ok_or("an entry of `outputs` is no object")?;
        let name = entry.get("name").and_then(Value::as_str).ok_or("an entry of `outputs` has no `name`")?;
        let at = model.outputs.iter().position(|port| port.name == name);
        let at = at.ok_or_else(|| {
            format!("the model has no output `{}`; it has {}", short(name), names(&model.outputs))
        })?;
        Ok((at, flag(entry, "binary_data").unwrap_or(all_binary)))
    };
    let wanted: Vec<(usize, bool)> = named.iter().map(one).collect::<Result<_, String>>()?;
    let mut places: Vec<usize> = wanted.iter().map(|(at, _)| *at).collect();
    places.sort_unstable();
    if places.windows(2).any(|pair| pair.first() == pair.last()) {
        return Err("`outputs` names an output twice".into());
    }
    Ok(wanted)
}

/// The response with these outputs, each of a request's rows.
pub(super) fn write(model: &Model, wanted: &Wanted, outputs: &[Vec<u8>]) -> Response {
    let (mut entries, mut binary) = (Vec::new(), Vec::new());
    for (at, is_binary) in &wanted.outputs {
        let (Some(port), Some(bytes)) = (model.outputs.get(*at), outputs.get(*at)) else { continue };
        let mut shape = port.ty.shape.to_vec();
        if model.batch.is_some()
            && let Some(first) = shape.first_mut()
        {
            *first = wanted.rows;
        }
        let name = Value::from(port.name.as_str());
        let mut entry = format!(
            "{{\"name\":{name},\"datatype\":\"{}\",\"shape\":{shape:?},",
            tensor::name(port.ty.dtype)
        );
        if *is_binary {
            entry.push_str(&format!("\"parameters\":{{\"binary_data_size\":{}}}}}", bytes.len()));
            binary.extend_from_slice(bytes);
        } else {
            entry.push_str("\"data\":");
            tensor::write(bytes, port.ty.dtype, &mut entry);
            entry.push('}');
        }
        entries.push(entry);
    }
    let id = wanted.id.as_ref().map(|id| format!("\"id\":{},", Value::from(id.as_str())));
    let text = format!(
        "{{\"model_name\":{},\"model_version\":\"1\",{}\"outputs\":[{}]}}",
        Value::from(model.name.as_str()),
        id.unwrap_or_default(),
        entries.join(",")
    );
    if binary.is_empty() {
        return Response::json(200, text);
    }
    let json_length = Some(text.len());
    let body = [text.into_bytes(), binary].concat();
    Response { status: 200, kind: "application/octet-stream", json_length, body }
}

fn names(ports: &[Port]) -> String {
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    crate::state::list(&names)
}

/// The beginning of a word that a client sent.
fn short(word: &str) -> String {
    word.chars().take(64).collect()
}
