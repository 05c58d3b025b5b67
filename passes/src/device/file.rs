//! Profiles in files: JSON of the form `memc-profile/1`, which `passes/README.md` describes.
//!
//! Contract: a file is read whole or refused. Errors name the faulty entry and its legal values. Unknown
//! entries are refused, since they may be misspelt ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use memc_ir::{OpKind, TensorType, parse_op, parse_type};
use serde_json::{Map, Value, json};

use super::measured::Key;
use super::{DeviceProfile, Kernels, Measured, Peaks, Sample};

/// Value of the entry `format`.
const FORMAT: &str = "memc-profile/1";

/// Largest plausible throughput, per second.
const MOST_PER_S: f64 = 1e18;
/// The entry `tensor_share` of files that have none.
const TENSOR_SHARE: f64 = 0.7;
/// Longest plausible time: 2^50 ns, 13 days.
const MOST_NS: u64 = 1 << 50;

/// An entry of a profile file that is missing, unknown or wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProfileError {}

/// An object of the file, and its place in texts.
struct Entries<'a> {
    at: String,
    of: &'a Map<String, Value>,
}

impl<'a> Entries<'a> {
    fn new(value: &'a Value, at: String, known: &[&str]) -> Result<Entries<'a>, ProfileError> {
        let of = value.as_object().ok_or_else(|| ProfileError(format!("{at}must be an object")))?;
        match of.keys().find(|k| !known.contains(&k.as_str())) {
            Some(other) => {
                Err(ProfileError(format!("{at}unknown entry `{other}` (known: {})", known.join(", "))))
            }
            None => Ok(Entries { at, of }),
        }
    }

    fn wrong(&self, name: &str, what: &str) -> ProfileError {
        ProfileError(format!("{}`{name}` must be {what}", self.at))
    }

    fn get<T>(
        &self,
        name: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<T, ProfileError> {
        let missing = || ProfileError(format!("{}`{name}` is missing: {what}", self.at));
        let value = self.of.get(name).ok_or_else(missing)?;
        read(value).ok_or_else(|| self.wrong(name, what))
    }

    fn maybe<T>(
        &self,
        name: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ProfileError> {
        match self.of.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(name, what)),
        }
    }

    fn text(&self, name: &str) -> Result<&'a str, ProfileError> {
        self.get(name, "a text", Value::as_str)
    }

    fn ns(&self, name: &str) -> Result<u64, ProfileError> {
        self.get(name, "whole nanoseconds, at most 2^50", |v| v.as_u64().filter(|&ns| ns <= MOST_NS))
    }
}

/// A positive throughput.
fn rate(value: &Value) -> Option<f64> {
    value.as_f64().filter(|x| *x > 0.0 && *x <= MOST_PER_S)
}

/// A throughput, or 0 for no link.
fn link(value: &Value) -> Option<f64> {
    value.as_f64().filter(|&x| x == 0.0 || (1.0..=MOST_PER_S).contains(&x))
}

/// Description of a [`line`].
const LINE: &str = "a text without control characters";

/// A text that can be shown.
fn line(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.chars().any(char::is_control))
}

const ENTRIES: &[&str] = &[
    "format",
    "name",
    "summary",
    "kernels",
    "processors",
    "tensor_share",
    "f32_flops_per_s",
    "f16_flops_per_s",
    "bf16_flops_per_s",
    "tf32_flops_per_s",
    "memory_bytes_per_s",
    "d2h_bytes_per_s",
    "h2d_bytes_per_s",
    "duplex_total_bytes_per_s",
    "host_bytes_per_s",
    "host_latency_ns",
    "kernel_latency_ns",
    "copy_latency_ns",
    "memory_bytes",
    "reserve_bytes",
    "compute_slowdown_under_copies",
    "ops",
];

impl DeviceProfile {
    /// Reads a profile.
    ///
    /// The error names the missing or faulty entry and its legal values.
    pub fn parse(text: &str) -> Result<DeviceProfile, ProfileError> {
        let value = memc_planner::json::value(text).map_err(|e| ProfileError(e.to_string()))?;
        if value.get("format").and_then(Value::as_str) == Some(memc_planner::json::FORMAT) {
            let text = "a planning problem, not the profile of a device: plan it in place of a model, \
                        or pass what `memrun profile` wrote";
            return Err(ProfileError(text.into()));
        }
        if let Some(all) = value.as_array() {
            let names: Vec<&str> = all.iter().filter_map(|p| p.get("name")?.as_str()).collect();
            return Err(ProfileError(format!(
                "a list of {}, where the profile of one device is needed: take the one that is meant out of \
                 it{}",
                all.len(),
                if names.is_empty() { String::new() } else { format!(", of {}", names.join(", ")) },
            )));
        }
        let e = Entries::new(&value, String::new(), ENTRIES)?;
        if e.text("format")? != FORMAT {
            return Err(e.wrong("format", &format!("\"{FORMAT}\"")));
        }
        let per_s = "a positive number per second, at most 1e18";
        let link_per_s = "a number of bytes per second from 1 to 1e18, or 0 for no link";
        let kernels = |v: &Value| {
            let name = v.as_str()?;
            [Kernels::Plain, Kernels::Gpu].into_iter().find(|k| k.name() == name)
        };
        let mut profile = DeviceProfile {
            name: Cow::Owned(e.get("name", LINE, |v| line(v).filter(|t| !t.is_empty()))?.to_owned()),
            summary: Cow::Owned(e.maybe("summary", LINE, line)?.unwrap_or_default().to_owned()),
            kernels: e.get("kernels", "\"plain\" or \"gpu\"", kernels)?,
            processors: e.get("processors", "a whole number from 1 to 2^20", |v| {
                v.as_u64().filter(|n| (1..=1 << 20).contains(n)).and_then(|n| u32::try_from(n).ok())
            })?,
            tensor_share: e
                .maybe("tensor_share", "a share of the peak from 0.01 to 1", |v| {
                    v.as_f64().filter(|share| (0.01..=1.0).contains(share))
                })?
                .unwrap_or(TENSOR_SHARE),
            peaks: Peaks {
                f32: e.get("f32_flops_per_s", per_s, rate)?,
                f16: e.maybe("f16_flops_per_s", per_s, rate)?,
                bf16: e.maybe("bf16_flops_per_s", per_s, rate)?,
                tf32: e.maybe("tf32_flops_per_s", per_s, rate)?,
            },
            memory_bytes_per_s: e.get("memory_bytes_per_s", per_s, rate)?,
            d2h_bytes_per_s: e.get("d2h_bytes_per_s", link_per_s, link)?,
            h2d_bytes_per_s: e.get("h2d_bytes_per_s", link_per_s, link)?,
            duplex_total_bytes_per_s: e.get("duplex_total_bytes_per_s", link_per_s, link)?,
            host_bytes_per_s: e.maybe("host_bytes_per_s", per_s, rate)?,
            host_latency_ns: e.maybe("host_latency_ns", "whole nanoseconds, at most 2^50", |v| {
                v.as_u64().filter(|ns| *ns <= MOST_NS)
            })?,
            kernel_latency_ns: e.ns("kernel_latency_ns")?,
            copy_latency_ns: e.ns("copy_latency_ns")?,
            memory_bytes: e.maybe("memory_bytes", "a number of bytes", Value::as_u64)?,
            reserve_bytes: e.get("reserve_bytes", "a number of bytes", Value::as_u64)?,
            compute_slowdown: e.maybe("compute_slowdown_under_copies", "a factor from 1 to 1000", |v| {
                v.as_f64().filter(|times| (1.0..=1e3).contains(times))
            })?,
            conv_workspace: *memc_cuda::CONV_WORKSPACE.start(),
            measured: None,
        };
        if profile.memory_bytes.is_some_and(|all| profile.reserve_bytes >= all) {
            return Err(e.wrong("reserve_bytes", "less than `memory_bytes`, or nothing is left for a plan"));
        }
        if profile.can_swap() && profile.duplex_total_bytes_per_s <= 0.0 {
            return Err(e.wrong("duplex_total_bytes_per_s", "positive where both directions are"));
        }
        let samples = samples(e.maybe("ops", "a list", Value::as_array)?.map_or(&[], Vec::as_slice))?;
        profile.learn(samples);
        Ok(profile)
    }

    /// The profile as a file, with its measured ops; [`DeviceProfile::parse`] reads it back unchanged.
    pub fn print(&self) -> String {
        let ops = self.measured.iter().flat_map(|m| m.samples()).map(|s| {
            let operands: Vec<String> = s.operands.iter().map(ToString::to_string).collect();
            let attrs = s.op.attrs_text();
            let mut row = json!({"op": s.op.mnemonic(), "operands": operands, "time_ns": s.time_ns});
            if !attrs.is_empty() {
                row["attrs"] = attrs.into();
            }
            if s.workspace_bytes > 0 {
                row["workspace_bytes"] = s.workspace_bytes.into();
            }
            row
        });
        let value = json!({
            "format": FORMAT,
            "name": self.name,
            "summary": self.summary,
            "kernels": self.kernels.name(),
            "processors": self.processors,
            "tensor_share": self.tensor_share,
            "f32_flops_per_s": self.peaks.f32,
            "f16_flops_per_s": self.peaks.f16,
            "bf16_flops_per_s": self.peaks.bf16,
            "tf32_flops_per_s": self.peaks.tf32,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "d2h_bytes_per_s": self.d2h_bytes_per_s,
            "h2d_bytes_per_s": self.h2d_bytes_per_s,
            "duplex_total_bytes_per_s": self.duplex_total_bytes_per_s,
            "host_bytes_per_s": self.host_bytes_per_s,
            "host_latency_ns": self.host_latency_ns,
            "kernel_latency_ns": self.kernel_latency_ns,
            "copy_latency_ns": self.copy_latency_ns,
            "memory_bytes": self.memory_bytes,
            "reserve_bytes": self.reserve_bytes,
            "compute_slowdown_under_copies": self.compute_slowdown,
            "ops": ops.collect::<Vec<_>>(),
        });
        format!("{value:#}\n")
    }

    /// Adds the measured ops of other profiles. Of several times of one op with one workspace the median
    /// counts, the lower of two.
    pub fn merge(&mut self, others: &[DeviceProfile]) {
        let all = [&*self].into_iter().chain(others).filter_map(|p| p.measured.as_deref());
        let samples = all.flat_map(Measured::samples).cloned().collect();
        self.learn(samples);
    }

    /// Puts measured ops in the place of those that are the same and had the same workspace.
    pub fn observe(&mut self, samples: Vec<Sample>) {
        let keys: BTreeSet<Key> = samples.iter().map(Sample::key).collect();
        let own = self.measured.as_deref().into_iter().flat_map(Measured::samples);
        let left: Vec<Sample> = own.filter(|sample| !keys.contains(&sample.key())).cloned().collect();
        self.learn(left.into_iter().chain(samples).collect());
    }

    /// Replaces the measured ops; of several times of one op with one workspace the median counts.
    fn learn(&mut self, samples: Vec<Sample>) {
        let mut by_op: BTreeMap<Key, Vec<Sample>> = BTreeMap::new();
        for sample in samples {
            by_op.entry(sample.key()).or_default().push(sample);
        }
        let middle = |mut of: Vec<Sample>| {
            of.sort_by_key(|s| s.time_ns);
            let middle = of.len().saturating_sub(1) / 2;
            of.into_iter().nth(middle)
        };
        let samples: BTreeMap<Key, Sample> =
            by_op.into_iter().filter_map(|(k, of)| Some((k, middle(of)?))).collect();
        self.measured = None;
        if !samples.is_empty() {
            let measured = Measured::learn(self, samples);
            self.measured = Some(Box::new(measured));
        }
    }
}

/// The measured ops of a file.
fn samples(rows: &[Value]) -> Result<Vec<Sample>, ProfileError> {
    let row = |(i, row): (usize, &Value)| {
        let known = ["op", "attrs", "operands", "workspace_bytes", "time_ns", "samples"];
        let e = Entries::new(row, format!("ops[{i}]: "), &known)?;
        let attrs = e.maybe("attrs", "a text as `{axis = 1}`", Value::as_str)?.unwrap_or_default();
        let at = |why: &dyn fmt::Display| ProfileError(format!("{}{why}", e.at));
        let op: OpKind = parse_op(e.text("op")?, attrs).map_err(|why| at(&why))?;
        let list = e.get("operands", "a list of types as \"f32[2,3]\"", Value::as_array)?;
        let types = list.iter().map(|t| {
            let text = t.as_str().ok_or_else(|| e.wrong("operands", "a list of types as \"f32[2,3]\""))?;
            parse_type(text).map_err(|why| at(&format!("`{text}`: {why}")))
        });
        let operands = types.collect::<Result<Vec<TensorType>, ProfileError>>()?;
        let results = op.infer(&operands.iter().collect::<Vec<_>>()).map_err(|why| at(&why))?;
        let time_ns = e.ns("time_ns")?;
        if time_ns == 0 {
            return Err(e.wrong("time_ns", "at least 1"));
        }
        e.maybe("samples", "a whole number", Value::as_u64)?;
        let workspace_bytes = e.maybe("workspace_bytes", "a whole number", Value::as_u64)?.unwrap_or(0);
        Ok(Sample { op, operands, results, workspace_bytes, time_ns })
    };
    rows.iter().enumerate().map(row).collect()
}
