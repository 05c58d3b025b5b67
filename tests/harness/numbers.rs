//! Running modules on the CPU kernels with inputs that everyone can compute.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, Def, Feed, Id, Init, Module, TensorType, value_name};
use memc_kernels::interp::{Tensor, eval};

/// Contents of states when the step starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feeds {
    /// A pattern, as for inputs.
    Pattern,
    /// Their initial content; a pattern where that is random.
    Initial,
    /// Random numbers from this seed, for inputs too; step numbers are small.
    Random(u64),
}

/// Results of every op of `m` as lines; ops whose row rejects their operands have none, nor have those that
/// use them.
pub(crate) fn run(m: &Module) -> Result<Vec<String>, String> {
    let mut now = start(m, Feeds::Pattern)?;
    let mut out = Vec::new();
    for &id in &m.order {
        let op = &m.ops[id];
        let operands: Option<Vec<&Tensor>> = op.operands.iter().map(|v| now[v.index()].as_ref()).collect();
        let (Some(kind), Some(operands)) = (op.kind(), operands) else { continue };
        if kind.infer(&m.operand_types(id)).is_err() {
            continue;
        }
        match eval(kind, &operands) {
            Ok(results) => {
                for (&v, t) in op.results.iter().zip(results) {
                    out.push(format!("{} = {} {}", value_name(m, v), t.ty, elements(&t)?));
                    now[v.index()] = Some(t);
                }
            }
            Err(e) => out.push(format!("error: {e}")),
        }
    }
    Ok(out)
}

/// Outputs and states after one step of a valid module, with what they are.
pub(crate) fn outcome(m: &Module, feeds: Feeds) -> Result<Vec<(String, Tensor)>, String> {
    let mut now = start(m, feeds)?;
    for &id in &m.order {
        let op = &m.ops[id];
        let operands: Option<Vec<&Tensor>> = op.operands.iter().map(|v| now[v.index()].as_ref()).collect();
        let (Some(kind), Some(operands)) = (op.kind(), operands) else {
            return Err("not a valid step".into());
        };
        let results = eval(kind, &operands).map_err(|e| format!("{}: {e}", op.origin))?;
        for (&v, t) in op.results.iter().zip(results) {
            now[v.index()] = Some(t);
        }
    }
    let outputs = m.outputs.iter().map(|o| (format!("output {}", o.name), o.value));
    let states =
        m.states.values().map(|s| (format!("state {}", value_name(m, s.value)), s.next.unwrap_or(s.value)));
    let find = |(what, v): (String, memc_ir::ValueId)| {
        now[v.index()].clone().map(|t| (what.clone(), t)).ok_or(format!("{what} is not computed"))
    };
    outputs.chain(states).map(find).collect()
}

/// Inputs, states and constants by value.
fn start(m: &Module, feeds: Feeds) -> Result<Vec<Option<Tensor>>, String> {
    let mut now: Vec<Option<Tensor>> = vec![None; m.values.len()];
    // The pattern differs between values, but not with the number of constants and ops.
    let mut salt = 0;
    for (v, value) in m.values.iter() {
        let range = |feed: &Feed| if let Feed::Data { range, .. } = feed { *range } else { None };
        now[v.index()] = match value.def {
            Def::Input(i) if let Feeds::Random(seed) = feeds => {
                let feed = &m.inputs[i].feed;
                Some(random(&value.ty, (seed, &value.name), matches!(feed, Feed::Step { .. }), range(feed))?)
            }
            Def::State(_) if let Feeds::Random(seed) = feeds => {
                Some(random(&value.ty, (seed, &value.name), false, None)?)
            }
            Def::Input(i) if matches!(m.inputs[i].feed, Feed::Step { .. }) => Some(first_step(&value.ty)?),
            Def::Input(i) => Some(pattern(&value.ty, &mut salt, range(&m.inputs[i].feed))?),
            Def::State(s) => Some(match (&m.states[s].init, feeds) {
                (Init::Uniform { .. } | Init::Normal { .. }, _) | (_, Feeds::Pattern | Feeds::Random(_)) => {
                    pattern(&value.ty, &mut salt, None)?
                }
                (init, Feeds::Initial) => initial(&value.ty, init)?,
            }),
            Def::Const(c) => Some(filled(&value.ty, &m.consts[c].data)?),
            Def::HostShadow(_) | Def::Op(..) => None,
        };
    }
    Ok(now)
}

fn zeros(ty: &TensorType) -> Result<Tensor, String> {
    Tensor::zeros(ty.clone()).map_err(|e| e.to_string())
}

fn filled(ty: &TensorType, data: &[u8]) -> Result<Tensor, String> {
    let mut t = zeros(ty)?;
    if data.len() != t.data.bytes().len() {
        return Err(format!("{} bytes are not a tensor {ty}", data.len()));
    }
    t.data.bytes_mut().copy_from_slice(data);
    Ok(t)
}

fn initial(ty: &TensorType, init: &Init) -> Result<Tensor, String> {
    match init {
        Init::Data(blob) => {
            filled(ty, blob.bytes().map(|bytes| &**bytes).ok_or("the initial bytes are not at hand")?)
        }
        Init::Ones if ty.dtype.is_float() => initial(ty, &Init::Fill(Scalar::Float(F32(1.0)))),
        Init::Ones => initial(ty, &Init::Fill(Scalar::Int(1))),
        Init::Fill(value) => {
            let element =
                value.to_bytes(ty.dtype).ok_or_else(|| format!("{value:?} is no element of {ty}"))?;
            filled(ty, &element.repeat(ty.numel() as usize))
        }
        Init::Zeros => zeros(ty),
        _ => Err(format!("no initial content of type {ty}")),
    }
}

/// The number of the first step.
fn first_step(ty: &TensorType) -> Result<Tensor, String> {
    initial(ty, &Init::Ones)
}

/// Element `i` of value number `salt`: quarters from -1.25 to 1.25 for floats, 0 to 4 (or `range`) for
/// integers, and every third `true`.
fn pattern(ty: &TensorType, salt: &mut i64, range: Option<(i64, i64)>) -> Result<Tensor, String> {
    let mut t = zeros(ty)?;
    let (low, high) = range.unwrap_or((0, 5));
    let width = ty.dtype.bytes() as usize;
    for (i, out) in t.data.bytes_mut().chunks_mut(width).enumerate() {
        let n = i as i64 * 7 + *salt * 5;
        let int = low + n % (high - low).max(1);
        let element = match ty.dtype {
            dtype if dtype.is_float() => Scalar::Float(F32((n % 11 - 5) as f32 / 4.0)),
            DType::Bool => Scalar::Int((n % 3 == 0).into()),
            _ => Scalar::Int(int),
        };
        let element = element.to_bytes(ty.dtype).ok_or_else(|| format!("{int} is no element of {ty}"))?;
        out.copy_from_slice(&element);
    }
    *salt += 1;
    Ok(t)
}

/// Floats from -2 to 2 (states of `v` and inputs called `inv` are positive), integers within their range.
fn random(
    ty: &TensorType,
    (seed, name): (u64, &str),
    step: bool,
    range: Option<(i64, i64)>,
) -> Result<Tensor, String> {
    let mut t = zeros(ty)?;
    let (low, high) = range.unwrap_or((0, 5));
    // SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
    let mut state = name.bytes().fold(seed, |h, b| h.wrapping_mul(0x100_0000_01b3) ^ u64::from(b));
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let width = ty.dtype.bytes() as usize;
    for out in t.data.bytes_mut().chunks_mut(width) {
        let bits = next();
        let int = if step { 1 + (bits % 9) as i64 } else { low + (bits % (high - low).max(1) as u64) as i64 };
        let real = (bits >> 40) as f32 / (1 << 22) as f32 - 2.0;
        let element = match ty.dtype {
            dtype if dtype.is_float() => Scalar::Float(F32(match name {
                _ if step => int as f32,
                "v" | "inv" => real.abs() + 0.1,
                _ => real,
            })),
            DType::Bool => Scalar::Int((bits >> 63) as i64),
            _ => Scalar::Int(int),
        };
        let element = element.to_bytes(ty.dtype).ok_or_else(|| format!("{int} is no element of {ty}"))?;
        out.copy_from_slice(&element);
    }
    Ok(t)
}

/// The elements, floats rounded to five digits, since the last bits of sums may depend on the machine.
fn elements(t: &Tensor) -> Result<String, String> {
    let width = t.ty.dtype.bytes() as usize;
    let one = |bytes: &[u8]| match Scalar::from_bytes(bytes, t.ty.dtype) {
        Some(Scalar::Float(x)) => Ok(rounded(x.0)),
        Some(Scalar::Int(v)) => Ok(v.to_string()),
        None => Err(format!("{bytes:?} is no element of {}", t.ty)),
    };
    let items = t.data.bytes().chunks(width).map(one).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("[{}]", items.join(", ")))
}

fn rounded(x: f32) -> String {
    let five: f32 = format!("{x:.4e}").parse().unwrap_or(x);
    format!("{five:?}")
}
