//! Timelines in the trace event format, which Perfetto and Chrome's tracing read: one process, a track for
//! each stream, spans on the tracks, and one counter.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Number of the one process of a trace.
const PROCESS: u32 = 1;

/// A timeline. All times are in ns.
#[derive(Clone, Debug)]
pub struct TraceFile<'a> {
    /// Name of the process: the origin of the times, for humans.
    pub process: &'a str,
    /// Names of the tracks; spans name them by index.
    pub tracks: &'a [&'a str],
    /// Spans, in the order of the file.
    pub spans: Vec<TraceSpan>,
    /// Name of the counter.
    pub counter: &'a str,
    /// Value of the counter from each time on.
    pub levels: BTreeMap<u64, u64>,
    /// Facts about the whole, for humans: a JSON object.
    pub facts: Value,
}

/// Something that took time on a track.
#[derive(Clone, Debug)]
pub struct TraceSpan {
    /// Index into [`TraceFile::tracks`].
    pub track: u32,
    /// Category, by which viewers filter.
    pub category: &'static str,
    /// Name, for humans.
    pub name: String,
    /// Start in ns.
    pub start_ns: u64,
    /// End in ns.
    pub end_ns: u64,
    /// Details, for humans: a JSON object.
    pub details: Value,
}

impl TraceFile<'_> {
    /// The trace as JSON text. Its times are in µs, as the format wants.
    pub fn json(&self) -> String {
        let mut events = vec![metadata("process_name", PROCESS, json!({"name": self.process}))];
        for (track, name) in (0u32..).zip(self.tracks) {
            events.push(metadata("thread_name", track, json!({"name": name})));
            events.push(metadata("thread_sort_index", track, json!({"sort_index": track})));
        }
        events.extend(self.spans.iter().map(TraceSpan::event));
        events.extend(self.levels.iter().map(|(&ns, level)| {
            json!({"ph": "C", "pid": PROCESS, "name": self.counter, "ts": us(ns), "args": {"live": level}})
        }));
        let value = json!({"displayTimeUnit": "ns", "otherData": self.facts, "traceEvents": events});
        format!("{value}\n")
    }
}

impl TraceSpan {
    fn event(&self) -> Value {
        json!({
            "ph": "X", "pid": PROCESS, "tid": self.track, "cat": self.category, "name": self.name,
            "ts": us(self.start_ns), "dur": us(self.end_ns.saturating_sub(self.start_ns)),
            "args": self.details,
        })
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn metadata(name: &str, track: u32, arguments: Value) -> Value {
    json!({"ph": "M", "pid": PROCESS, "tid": track, "name": name, "args": arguments})
}
