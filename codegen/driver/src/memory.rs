//! Device memory over the time of a step.

use memc_ir::Stream;
use memc_planner::{Schedule, Space, Tick};

/// Live bytes on the device from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Modelled time since the begin of the step in ns.
    pub ns: u64,
    /// Bytes of the buffers that are allocated then, without the device's reserve.
    pub bytes: u64,
}

/// Live bytes on the device at the start of every kernel of a plan, by time.
pub fn memory_over_time(plan: &Schedule) -> Vec<Sample> {
    let on_device = || plan.trace.slots.values().filter(|slot| slot.space == Space::Dev);
    let live_at = |tick: Tick| {
        let live = |&(from, to): &(Tick, Tick)| (from..to).contains(&tick);
        on_device().filter(|slot| slot.live.iter().any(live)).map(|slot| slot.bytes).sum()
    };
    let kernels = plan
        .trace
        .commands
        .values()
        .zip(plan.timeline.spans.values())
        .filter(|(c, _)| c.stream == Stream::Compute);
    kernels.map(|(command, span)| Sample { ns: span.start, bytes: live_at(command.at) }).collect()
}
