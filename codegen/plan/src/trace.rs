//! A step's timeline as a trace that Perfetto and Chrome's tracing show: a track for each stream, a slice for each command,
//! and a counter of the device memory in use.
//!
//! Planned and measured steps are told alike, so that both open side by side. Memory is what the plan implies, at the
//! times given: bytes count while they hold what is still to be read.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::live::periods;
use crate::{Action, Plan, Slice, Stream};

/// When a command of a plan's body ran, in ns from the first one's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// Index of the command in the body.
    pub command: usize,
    /// Its start.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
}

/// A step's timeline.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Launches, copies, writes and reads of its body.
    pub laps: &'a [Lap],
    /// Time of the step in ns.
    pub step_ns: u64,
    /// Where the times come from, for humans.
    pub origin: &'a str,
}

/// The one process of a trace.
const PROCESS: u32 = 1;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn bytes<'a>(slices: impl IntoIterator<Item = &'a Slice>) -> u64 {
    slices.into_iter().fold(0, |sum, slice| sum.saturating_add(slice.bytes))
}

impl Trace<'_> {
    /// The trace as JSON.
    pub fn json(&self) -> String {
        let mut events = vec![metadata("process_name", PROCESS, json!({"name": self.origin}))];
        for stream in Stream::ALL {
            let track = stream as u32;
            events.push(metadata("thread_name", track, json!({"name": stream.name()})));
            events.push(metadata("thread_sort_index", track, json!({"sort_index": track})));
        }
        events.extend(self.laps.iter().filter_map(|lap| self.slice(lap)));
        events.extend(self.memory());
        let meta = &self.plan.meta;
        let value = json!({
            "displayTimeUnit": "ns",
            "otherData": {
                "model": meta.model, "origin": self.origin, "profile": meta.profile, "step_ns": self.step_ns,
                "planned_step_ns": meta.claims.step_ns, "arena_bytes": meta.dev_bytes, "gpu_mem_bytes": meta.budget_bytes,
            },
            "traceEvents": events,
        });
        format!("{value}\n")
    }

    fn slice(&self, lap: &Lap) -> Option<Value> {
        let command = self.plan.body.get(lap.command)?;
        let named = |otherwise: &str| {
            if command.label.is_empty() { otherwise.to_owned() } else { command.label.clone() }
        };
        let index = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let (kind, name, arguments) = match &command.action {
            Action::Launch { kernel, reads, writes, .. } => {
                let kernel = self.plan.kernels.get(index(*kernel))?;
                let moved = bytes(reads.iter().chain(writes));
                let types = kernel.operands.join(", ");
                let op = format!("{} {}", kernel.op, kernel.attrs);
                let arguments = json!({"kernel": op.trim_end(), "operands": types, "bytes": moved});
                ("launch", named(&kernel.op), arguments)
            }
            Action::Copy { src, dst } => {
                let arguments = json!({"bytes": src.bytes, "from": src.to_string(), "to": dst.to_string()});
                ("copy", named("copy"), arguments)
            }
            Action::HostWrite { input } => {
                let input = self.plan.inputs.get(index(*input))?;
                ("host", format!("write {}", input.name), json!({"bytes": input.slot.bytes}))
            }
            Action::HostRead { output } => {
                let output = self.plan.outputs.get(index(*output))?;
                ("host", format!("read {}", output.name), json!({"bytes": output.slot.bytes}))
            }
            _ => return None,
        };
        Some(json!({
            "ph": "X", "pid": PROCESS, "tid": command.stream as u32, "cat": kind, "name": name,
            "ts": us(lap.start_ns), "dur": us(lap.end_ns.saturating_sub(lap.start_ns)), "args": arguments,
        }))
    }

    /// The counter, a value for every time at which it changes.
    fn memory(&self) -> Vec<Value> {
        let at: BTreeMap<usize, &Lap> = self.laps.iter().map(|lap| (lap.command, lap)).collect();
        let end = self.laps.iter().map(|lap| lap.end_ns).max().unwrap_or(0);
        let mut changes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for period in periods(self.plan) {
            let start = period.from.and_then(|from| at.get(&from)).map_or(0, |lap| lap.start_ns);
            let stop = period.to.and_then(|to| at.get(&to)).map_or(end, |lap| lap.end_ns);
            changes.entry(start).or_default().0 += period.bytes;
            // What lives when the step ends still lives then.
            if stop < end || period.to.is_some() {
                changes.entry(stop.max(start)).or_default().1 += period.bytes;
            }
        }
        let mut live = 0u64;
        let value = |(ns, (more, less)): (u64, (u64, u64))| {
            live = live.saturating_add(more).saturating_sub(less);
            let arguments = Map::from_iter([("live".to_owned(), json!(live))]);
            json!({"ph": "C", "pid": PROCESS, "name": "device memory", "ts": us(ns), "args": arguments})
        };
        changes.into_iter().map(value).collect()
    }
}

fn metadata(name: &str, track: u32, arguments: Value) -> Value {
    json!({"ph": "M", "pid": PROCESS, "tid": track, "name": name, "args": arguments})
}
