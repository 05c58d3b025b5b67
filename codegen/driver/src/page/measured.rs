//! A step that ran, beside the modelled one.

use std::collections::BTreeMap;

use memc_plan::{Action, Plan, Queue, Span};
use serde_json::Value;

use super::lanes;
use super::scene::Scene;
use super::svg::{escape, ms, percent, table};
use crate::error::Error;

/// Commands of the table.
const SHOWN: usize = 20;

/// Times of a step's commands, and where they are from.
pub(super) struct Measured {
    spans: Vec<Span>,
    step_ns: u64,
    origin: String,
}

impl Measured {
    /// Reads a trace of this plan that `memrun --trace` or `memc trace` wrote.
    ///
    /// # Errors
    /// [`Error::Usage`] for another file, and for the trace of another plan.
    pub(super) fn parse(text: &str, plan: &Plan) -> Result<Measured, Error> {
        let wrong = |why: String| {
            Error::Usage(format!(
                "--trace: {why}\nhint: `memrun PLAN --trace FILE` writes the trace of a step of this plan"
            ))
        };
        let trace: Value = serde_json::from_str(text).map_err(|e| wrong(format!("not a trace: {e}")))?;
        let facts = &trace["otherData"];
        let (Some(model), Some(step_ns)) = (facts["model"].as_str(), facts["step_ns"].as_u64()) else {
            return Err(wrong("not a trace of a step".into()));
        };
        if model != plan.meta.model {
            return Err(wrong(format!("a step of `{model}`, and the plan is one of `{}`", plan.meta.model)));
        }
        let events = trace["traceEvents"].as_array().map(Vec::as_slice).unwrap_or_default();
        let runs = events.iter().filter(|event| event["ph"] == "X");
        let spans: Option<Vec<Span>> = runs.map(|event| span(event, plan)).collect();
        let spans = spans.ok_or_else(|| wrong("the trace of another plan".into()))?;
        let origin = facts["origin"].as_str().unwrap_or("measured").to_owned();
        Ok(Measured { spans, step_ns: step_ns.max(1), origin })
    }
}

/// The run of a command, where the plan has it on that queue.
fn span(event: &Value, plan: &Plan) -> Option<Span> {
    let command = usize::try_from(event["args"]["command"].as_u64()?).ok()?;
    let known = plan.body.get(command)?;
    let takes_time =
        !matches!(known.action, Action::Record { .. } | Action::Wait { .. } | Action::Free { .. });
    if !takes_time || event["tid"].as_u64()? != known.queue.index() as u64 {
        return None;
    }
    // Times are in µs with three places.
    let ns = |key: &str| Some((event[key].as_f64()? * 1e3).round() as u64);
    let start_ns = ns("ts")?;
    Some(Span { command, start_ns, end_ns: start_ns.saturating_add(ns("dur")?) })
}

/// The section of the page.
pub(super) fn html(modelled: &Scene<'_>, mut own: Scene<'_>, measured: Measured) -> String {
    let last = measured.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
    own.spans = measured.spans.into_iter().map(|span| (span.command, span)).collect();
    own.stalls.clear();
    // Nothing is folded: the trace is of one step, and has the modelled one's scale where that is longer.
    own.step_ns = measured.step_ns.max(last + 1).max(modelled.step_ns);
    format!(
        "<section aria-labelledby=\"measured\"><h2 id=\"measured\">Measured step</h2>\n<p>{}: a step of {}, \
         modelled {}. Its commands were issued one by one.</p>\n{}{}</section>\n",
        escape(&sentence(&measured.origin)),
        ms(measured.step_ns),
        ms(modelled.step_ns),
        lanes::picture(&own, "Lanes of the measured step"),
        differences(modelled, &own),
    )
}

/// A text with its first letter in upper case.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Time of each queue, and the commands whose times differ most.
fn differences(modelled: &Scene<'_>, own: &Scene<'_>) -> String {
    let mut queues: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    let mut all: Vec<(usize, u64, u64)> = Vec::new();
    for &command in own.spans.keys().filter(|command| modelled.spans.contains_key(command)) {
        let (before, after) = (modelled.length_ns(command), own.length_ns(command));
        let queue = own.command(command).map_or(Queue::Host, |command| command.queue);
        let sum = queues.entry(queue.index()).or_default();
        *sum = (sum.0.saturating_add(before), sum.1.saturating_add(after));
        if queue != Queue::Host {
            all.push((command, before, after));
        }
    }
    let busy = Queue::ALL.into_iter().filter(|queue| *queue != Queue::Host).filter_map(|queue| {
        let (before, after) = queues.get(&queue.index())?;
        Some(vec![lanes::name(queue).to_owned(), ms(*before), ms(*after), percent(*after, *before)])
    });
    let busy: Vec<Vec<String>> = busy.collect();
    all.sort_by_key(|&(command, before, after)| (std::cmp::Reverse(before.abs_diff(after)), command));
    let row = |&(command, before, after): &(usize, u64, u64)| {
        vec![own.label(command), ms(before), ms(after), percent(after, before)]
    };
    let rows: Vec<Vec<String>> = all.iter().take(SHOWN).map(row).collect();
    let header = |first| [first, "modelled", "measured", "of the modelled"];
    format!(
        "{}<details><summary>Commands that differ most</summary>\n{}</details>\n",
        table("Busy", &header("queue"), 1, &busy),
        table("The largest differences", &header("command"), 1, &rows),
    )
}
