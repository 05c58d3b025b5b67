//! Moves copies away from where they are needed, so that they run beside kernels.
//!
//! A swap-out starts right after the last op that touches the tensor. A swap-in moves up until the kernels in
//! between cover its time, as long as its bytes are free, its host copy exists, and copies keep their order.

use memc_ir::Arena;
use memc_planner::{Action, Decisions, OpPos, Problem, TensorId};

/// A swap-in starts this many times its own duration early, since copies queue behind each other.
const LEAD: u64 = 3;

/// An action and the device bytes that are busy because of it, up to and including it.
struct Item {
    action: Action,
    busy: Vec<(u64, u64)>,
}

/// Reorders the copies of decisions whose places are all settled.
pub(super) fn prefetch(p: &Problem, decisions: &mut Decisions) {
    let mut items = annotate(p, decisions);
    early_outs(p, &mut items);
    let mut i = 0;
    while i < items.len() {
        if let Action::In((t, Some(at))) = items[i].action {
            let to = target(p, &items, i, t, at);
            items[to..=i].rotate_right(1);
        }
        i += 1;
    }
    decisions.actions = items.into_iter().map(|x| x.action).collect();
}

fn annotate(p: &Problem, decisions: &Decisions) -> Vec<Item> {
    let mut at: Arena<TensorId, Option<u64>> = Arena::filled(None, p.tensors.len());
    let bytes = |t: TensorId| p.tensors[t].bytes;
    let annotate = |action: &Action| {
        let mut busy = Vec::new();
        match action {
            Action::In((t, offset)) => at[*t] = *offset,
            Action::Out(_) => {}
            Action::Drop(t) => busy.extend(at[*t].take().map(|a| (a, a + bytes(*t)))),
            Action::Run(run) => {
                let op = &p.ops[run.op];
                for (t, offset) in &run.at {
                    at[*t] = *offset;
                }
                let unwanted =
                    op.writes.iter().filter(|t| !run.at.iter().any(|p| p.0 == **t) && !op.reads.contains(t));
                for (offset, t) in run.scratch.iter().zip(unwanted) {
                    busy.extend(offset.map(|a| (a, a + bytes(*t))));
                }
                busy.extend(run.workspace.flatten().map(|a| (a, a + op.workspace)));
            }
        }
        Item { action: action.clone(), busy }
    };
    decisions.actions.iter().map(annotate).collect()
}

fn touches(p: &Problem, run: OpPos, t: TensorId) -> bool {
    let op = &p.ops[run];
    op.reads.contains(&t) || op.writes.contains(&t)
}

fn early_outs(p: &Problem, items: &mut [Item]) {
    for i in 0..items.len() {
        let Action::Out(t) = items[i].action else { continue };
        let stop = items[..i].iter().rposition(|x| match &x.action {
            Action::In((o, _)) | Action::Out(o) | Action::Drop(o) => *o == t,
            Action::Run(run) => touches(p, run.op, t),
        });
        items[stop.map_or(0, |s| s + 1)..=i].rotate_right(1);
    }
}

/// The index to which the swap-in at `i` moves.
fn target(p: &Problem, items: &[Item], i: usize, t: TensorId, at: u64) -> usize {
    let (from, to) = (at, at + p.tensors[t].bytes);
    let mut lead = p.device.h2d_ns(to - from).saturating_mul(LEAD);
    let mut index = i;
    while index > 0 && lead > 0 {
        let before = &items[index - 1];
        let blocked = match &before.action {
            Action::In(_) => true,
            Action::Out(o) | Action::Drop(o) => *o == t,
            Action::Run(run) => {
                lead = lead.saturating_sub(p.ops[run.op].time_ns);
                touches(p, run.op, t)
            }
        };
        if blocked || before.busy.iter().any(|&(a, b)| a < to && from < b) {
            break;
        }
        index -= 1;
    }
    index
}
