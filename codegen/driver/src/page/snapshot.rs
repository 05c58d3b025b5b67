//! A plan as a snapshot of PyTorch's CUDA allocator, which pytorch.org/memory_viz opens.
//!
//! The trace has one whole step, and the next one up to the moment at which most is live. The blocks of the
//! arena are those of that moment: viewers go back from them, event by event. Addresses are offsets in the
//! device arena. A tensor that takes no time is left out, as on the page.

use std::collections::BTreeMap;

use memc_plan::Action;
use serde::Serialize;

use super::decisions;
use super::scene::Scene;
use super::slots::{Came, Slot, Stay};
use crate::error::Error;
use crate::explain::Does;

/// A line of a stack as viewers show it: `filename:line:name`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Frame {
    filename: String,
    line: usize,
    name: String,
}

/// Bytes of the arena. `requested_size` is `size`: the arena's slots are not rounded.
#[derive(Serialize)]
struct Block<'a> {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: &'a [Frame],
}

#[derive(Serialize)]
struct Segment<'a> {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    segment_type: &'static str,
    segment_pool_id: (u32, u32),
    is_expandable: bool,
    frames: &'a [Frame],
    blocks: Vec<Block<'a>>,
}

#[derive(Serialize)]
struct Event<'a> {
    action: &'static str,
    addr: u64,
    size: u64,
    stream: u64,
    time_us: u64,
    frames: &'a [Frame],
    user_metadata: &'a str,
}

#[derive(Serialize)]
struct Snapshot<'a> {
    segments: Vec<Segment<'a>>,
    device_traces: Vec<Vec<Event<'a>>>,
}

/// Bytes that hold a tensor from one time to another, in ns from the begin of the first step.
struct Life {
    offset: u64,
    bytes: u64,
    tensor: usize,
    came: Came,
    /// The command that writes it.
    command: Option<usize>,
    /// Whether it is there already when its step begins.
    goes_on: bool,
    start: u64,
    end: u64,
    frames: Vec<Frame>,
    decision: String,
}

/// The pickle.
pub(super) fn pickle(scene: &Scene<'_>) -> Result<Vec<u8>, Error> {
    let until = scene.step_ns.saturating_add(scene.peak.ns);
    let mut lives = lives(scene, until);
    let does = decisions::by_tensor(scene);
    for life in &mut lives {
        let decision = does.get(&life.tensor).map_or("scratch of one launch", |does| told(*does));
        life.frames = frames(scene, life, decision);
        life.decision = format!("{decision}; {}", came(life));
    }
    let arena = [Frame { filename: scene.plan.meta.model.clone(), line: 0, name: "device arena".to_owned() }];
    let snapshot = Snapshot {
        segments: vec![segment(scene, &lives, until, &arena)],
        device_traces: vec![events(scene, &lives, until, &arena)],
    };
    let options = serde_pickle::SerOptions::new().proto_v2();
    serde_pickle::to_vec(&snapshot, options).map_err(|error| Error::Internal(error.to_string()))
}

fn told(does: Does) -> &'static str {
    match does {
        Does::Keep => "kept",
        Does::Swap => "swapped out, back in",
        Does::Recompute => "dropped, recomputed",
        Does::Both => "swapped out, back in, and recomputed",
        Does::Host => "updated in host memory",
    }
}

fn came(life: &Life) -> &'static str {
    match life.came {
        _ if life.goes_on => "there when the step begins",
        Came::Resident => "written by the host",
        Came::Copied => "copied in",
        Came::Computed => "computed",
        Came::Recomputed => "computed again",
    }
}

/// The tensor, what made it and where the source has that, and its purpose with the decision.
fn frames(scene: &Scene<'_>, life: &Life, decision: &str) -> Vec<Frame> {
    let frame = |filename: &str, line: usize, name: &str| Frame {
        filename: filename.to_owned(),
        line,
        name: name.to_owned(),
    };
    let model = &scene.plan.meta.model;
    let at = life.command.unwrap_or(0);
    let mut frames = vec![frame(model, at, scene.name(life.tensor))];
    let command = life.command.and_then(|index| scene.command(index));
    match command.map(|command| (&command.action, &command.label)) {
        Some((Action::Launch { kernel, .. }, label)) => {
            let kernel = scene.plan.kernels.get(super::index(*kernel));
            let op = kernel.map_or("op", |kernel| kernel.op.mnemonic());
            let origin = scene.tensors.origin(label).filter(|origin| !origin.is_empty());
            let (file, line) = origin.map_or((model.as_str(), at), place);
            frames.push(frame(file, line, op));
        }
        Some((Action::Copy { .. }, _)) => frames.push(frame(model, at, "copy to the device")),
        _ => {}
    }
    frames.push(frame(scene.part(life.tensor).name(), 0, decision));
    frames
}

/// File and line of an origin `FILE:LINE`; of another, such as a node's name, all of it and 0.
fn place(origin: &str) -> (&str, usize) {
    let parts = origin.rsplit_once(':');
    let parsed = parts.and_then(|(file, line)| Some((file, line.parse().ok()?)));
    parsed.filter(|(file, _)| !file.is_empty()).unwrap_or((origin, 0))
}

/// The lives that begin by a time, by offset and time.
fn lives(scene: &Scene<'_>, until: u64) -> Vec<Life> {
    let mut all: Vec<Life> = Vec::new();
    for slot in &scene.slots.slots {
        for stay in scene.stays(slot) {
            all.extend(repeated(scene.step_ns, slot, stay, until));
        }
    }
    all.sort_by_key(|life| (life.offset, life.start, life.end));
    let mut merged: Vec<Life> = Vec::new();
    for life in all {
        match merged.last_mut() {
            Some(last) if continues(last, &life) => last.end = last.end.max(life.end),
            _ => merged.push(life),
        }
    }
    merged
}

/// Whether a life is the rest of another one that the begin of a step has cut.
fn continues(last: &Life, next: &Life) -> bool {
    let place = |life: &Life| (life.offset, life.bytes, life.tensor);
    next.goes_on && place(last) == place(next) && last.end >= next.start
}

/// The lives of a stay in the first two steps, and what goes on of those of steps before.
fn repeated(step_ns: u64, slot: &Slot, (stay, start, end): (&Stay, u64, u64), until: u64) -> Vec<Life> {
    let earlier = end / step_ns;
    let before_ns = earlier.saturating_mul(step_ns);
    let one = |number: u64| {
        let later = |ns: u64| ns.saturating_add(number.saturating_mul(step_ns));
        Life {
            offset: slot.offset,
            bytes: slot.bytes,
            tensor: stay.tensor,
            came: stay.came,
            command: stay.from.or(stay.before),
            goes_on: stay.from.is_none() || later(start) < before_ns,
            start: later(start).saturating_sub(before_ns),
            end: later(end).saturating_sub(before_ns),
            frames: Vec::new(),
            decision: String::new(),
        }
    };
    let lives = (0..earlier.saturating_add(2)).map(one);
    lives.filter(|life| life.start < life.end && life.start <= until).collect()
}

/// The arena at a time.
fn segment<'a>(scene: &Scene<'_>, lives: &'a [Life], at: u64, frames: &'a [Frame]) -> Segment<'a> {
    let arena = scene.plan.meta.dev_bytes;
    let mut blocks = Vec::new();
    let mut free_from = 0;
    let free = |from: u64, to: u64| {
        let size = to.saturating_sub(from);
        let state = "inactive";
        let block = Block { address: from, size, requested_size: size, state, frames: &[] };
        (size > 0).then_some(block)
    };
    let mut live = 0_u64;
    for life in lives.iter().filter(|life| (life.start..life.end).contains(&at)) {
        blocks.extend(free(free_from, life.offset));
        free_from = life.offset.saturating_add(life.bytes);
        live = live.saturating_add(life.bytes);
        blocks.push(Block {
            address: life.offset,
            size: life.bytes,
            requested_size: life.bytes,
            state: "active_allocated",
            frames: &life.frames,
        });
    }
    blocks.extend(free(free_from, arena));
    Segment {
        device: 0,
        address: 0,
        total_size: arena,
        allocated_size: live,
        active_size: live,
        requested_size: live,
        stream: 0,
        segment_type: "large",
        segment_pool_id: (0, 0),
        is_expandable: false,
        frames,
        blocks,
    }
}

/// The arena's event, then those of all lives up to a time. Of one moment, tensors go before others come.
fn events<'a>(scene: &Scene<'_>, lives: &'a [Life], until: u64, arena: &'a [Frame]) -> Vec<Event<'a>> {
    let mut moments: BTreeMap<(u64, bool, bool, u64), &Life> = BTreeMap::new();
    for life in lives {
        moments.insert((life.start, true, !life.goes_on, life.offset), life);
        if life.end <= until {
            moments.insert((life.end, false, false, life.offset), life);
        }
    }
    let mut events = vec![Event {
        action: "segment_alloc",
        addr: 0,
        size: scene.plan.meta.dev_bytes,
        stream: 0,
        time_us: 0,
        frames: arena,
        user_metadata: "the plan's device arena",
    }];
    for ((ns, comes, ..), life) in moments {
        let actions: &[&str] = if comes { &["alloc"] } else { &["free_requested", "free_completed"] };
        events.extend(actions.iter().map(|action| Event {
            action,
            addr: life.offset,
            size: life.bytes,
            stream: 0,
            time_us: ns / 1000,
            frames: &life.frames,
            user_metadata: &life.decision,
        }));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn origins_are_places_of_a_program_or_names_of_nodes() {
        assert_eq!(place("train.py:42"), ("train.py", 42));
        assert_eq!(place("C:/net.py:7"), ("C:/net.py", 7));
        assert_eq!(place("/layer1/Conv"), ("/layer1/Conv", 0));
        assert_eq!(place("a::b"), ("a::b", 0));
        assert_eq!(place(":3"), (":3", 0));
    }
}
