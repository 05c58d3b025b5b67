//! The state as clients see it.

use std::sync::PoisonError;

use memc_plan::Space;
use serde_json::{Value, json};

use super::{Controller, Entry, Status};
use crate::leg::Progress;

impl Controller {
    pub(super) fn status(&self) -> Value {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let plan = self.leg.as_ref().map(|(_, leg)| leg.file.plan());
        let held = |job: &str, space: Space| -> u64 {
            let own = format!("{job}/");
            let states = plan.into_iter().flat_map(|plan| &plan.states);
            let held = states.filter(|state| state.resident.space == space && state.name.starts_with(&own));
            held.map(|state| state.resident.bytes).sum()
        };
        let job = |entry: &Entry| {
            let submission = &entry.submission;
            let progress = results.get(&submission.job).cloned().unwrap_or_default();
            let Progress { step, loss, round_ns } = progress;
            json!({
                "job": submission.job, "status": word(entry.status), "why": entry.why,
                "step": step.max(entry.steps_done), "steps": submission.steps,
                "steps_in_round": submission.steps_in_round,
                "loss": loss.filter(|loss| loss.is_finite()), "round_ms": round_ns as f64 / 1e6,
                "device_state_bytes": held(&submission.job, Space::Dev),
                "host_state_bytes": held(&submission.job, Space::Host),
            })
        };
        json!({
            "ok": true, "gpu_mem_bytes": self.options.budget,
            "arena_bytes": self.planned.as_ref().map(|planned| planned.arena_bytes),
            "planned_round_ms": self.planned.as_ref().map(|planned| planned.round_ns as f64 / 1e6),
            "planning": self.planning.is_some(),
            "legs": self.legs,
            "measured": self.options.adapt.map(|_| json!({
                "rounds": self.seen.rounds, "departure": self.seen.departure,
                "late_launches": self.seen.late.launches, "late_ms": self.seen.late.ns as f64 / 1e6,
                "plans": self.revision,
            })),
            "jobs": self.jobs.iter().map(job).collect::<Vec<_>>(),
        })
    }
}

/// The word for a status.
pub(super) fn word(status: Status) -> &'static str {
    match status {
        Status::Training => "training",
        Status::Paused => "paused",
        Status::Stopping => "stopping",
        Status::Done => "done",
        Status::Failed => "failed",
    }
}
