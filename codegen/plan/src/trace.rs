//! Timeline of a step as a trace file: a track for each stream, a span for each command, and a counter of the
//! device memory in use.
//!
//! Planned and measured steps have one form, so that both open side by side. The memory is that of the plan
//! at the times given: bytes count while they hold what is still to be read.

use std::collections::BTreeMap;

use memc_support::{TraceFile, TraceSpan};
use serde_json::json;

use crate::live::periods;
use crate::{Action, Plan, Queue, Slice};

/// Run of one command of a plan's body, in ns from the start of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the command in the body.
    pub command: usize,
    /// Its start.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
}

/// Timeline of a step.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Launches, copies, writes and reads of its body.
    pub spans: &'a [Span],
    /// Time of the step in ns.
    pub step_ns: u64,
    /// Origin of the times, for humans.
    pub origin: &'a str,
}

fn bytes<'a>(slices: impl IntoIterator<Item = &'a Slice>) -> u64 {
    slices.into_iter().fold(0, |sum, slice| sum.saturating_add(slice.bytes))
}

impl Trace<'_> {
    /// The trace as JSON text.
    pub fn json(&self) -> String {
        let meta = &self.plan.meta;
        TraceFile {
            process: self.origin,
            tracks: &Queue::ALL.map(Queue::name),
            spans: self.spans.iter().filter_map(|span| self.span(span)).collect(),
            counter: "device memory",
            levels: self.memory(),
            facts: json!({
                "model": meta.model, "origin": self.origin, "profile": meta.profile, "step_ns": self.step_ns,
                "planned_step_ns": meta.claims.step_ns, "arena_bytes": meta.dev_bytes,
                "gpu_mem_bytes": meta.budget_bytes,
            }),
        }
        .json()
    }

    fn span(&self, span: &Span) -> Option<TraceSpan> {
        let command = self.plan.body.get(span.command)?;
        let label_or = |otherwise: &str| {
            if command.label.is_empty() { otherwise.to_owned() } else { command.label.clone() }
        };
        let index = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let (category, name, details) = match &command.action {
            Action::Launch { kernel, reads, writes, .. } => {
                let kernel = self.plan.kernels.get(index(*kernel))?;
                let moved = bytes(reads.iter().chain(writes));
                let types: Vec<String> = kernel.operands.iter().map(ToString::to_string).collect();
                let op = format!("{} {}", kernel.op.mnemonic(), kernel.op.attrs_text());
                let details = json!({"kernel": op.trim_end(), "operands": types.join(", "), "bytes": moved});
                ("launch", label_or(kernel.op.mnemonic()), details)
            }
            Action::Copy { src, dst } => {
                let details = json!({"bytes": src.bytes, "from": src.to_string(), "to": dst.to_string()});
                ("copy", label_or("copy"), details)
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
        let mut details = details;
        details["command"] = span.command.into();
        let (track, start_ns, end_ns) =
            (u32::try_from(command.queue.index()).unwrap_or(u32::MAX), span.start_ns, span.end_ns);
        Some(TraceSpan { track, category, name, start_ns, end_ns, details })
    }

    /// Device memory in use, in bytes, from each time on.
    fn memory(&self) -> BTreeMap<u64, u64> {
        let at: BTreeMap<usize, &Span> = self.spans.iter().map(|span| (span.command, span)).collect();
        let end = self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        let mut changes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for period in periods(self.plan) {
            let start = period.from.and_then(|from| at.get(&from)).map_or(0, |span| span.start_ns);
            let stop = period.to.and_then(|to| at.get(&to)).map_or(end, |span| span.end_ns);
            changes.entry(start).or_default().0 += period.bytes;
            // Bytes that live when the step ends still live then.
            if stop < end || period.to.is_some() {
                changes.entry(stop.max(start)).or_default().1 += period.bytes;
            }
        }
        let mut live = 0u64;
        let level = |(ns, (more, less)): (u64, (u64, u64))| {
            live = live.saturating_add(more).saturating_sub(less);
            (ns, live)
        };
        changes.into_iter().map(level).collect()
    }
}
