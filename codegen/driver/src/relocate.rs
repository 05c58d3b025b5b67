//! Host arenas of the plans of several buckets as one.
//!
//! What stays in host memory from step to step comes first, in the same bytes for all plans; behind it each
//! plan has the rest of its own. Bytes that were apart stay apart, so that no order between commands is lost.

use std::collections::BTreeMap;

use memc_plan::{Action, Plan, Slice, Space, State};
use memc_planner::ALIGN;

/// Bytes of a plan that stay from step to step.
struct Kept {
    from: Slice,
    /// Bucket, where the state is its own alone; name of the state; whether it is the host shadow.
    key: (Option<usize>, String, bool),
}

/// Bytes of the host arena that stay from step to step.
pub(crate) struct KeptBytes {
    pub(crate) all: u64,
    /// Those of constants that not all buckets have.
    pub(crate) own: u64,
}

/// Gives the plans, one of each bucket, host arenas that agree in what stays from step to step.
/// Each plan's arena ends where the plan itself does.
pub(crate) fn share_host(plans: &mut [Plan], is_shared: &dyn Fn(&State) -> bool) -> KeptBytes {
    let kept: Vec<Vec<Kept>> =
        plans.iter().enumerate().map(|(bucket, plan)| kept(plan, bucket, is_shared)).collect();
    let mut places: BTreeMap<&(Option<usize>, String, bool), u64> = BTreeMap::new();
    let (mut end, mut own) = (0u64, 0u64);
    for Kept { from, key } in kept.iter().flatten() {
        if !places.contains_key(key) {
            places.insert(key, end);
            end = align(end.saturating_add(from.bytes));
            own = own.saturating_add(if key.0.is_some() { align(from.bytes) } else { 0 });
        }
    }
    for (plan, kept) in plans.iter_mut().zip(&kept) {
        let moves = |slice: &Slice| {
            let within = |kept: &&Kept| {
                let last = |of: &Slice| of.offset.saturating_add(of.bytes);
                slice.bytes > 0 && kept.from.offset <= slice.offset && last(slice) <= last(&kept.from)
            };
            let kept = kept.iter().find(within)?;
            let to = places.get(&kept.key)?;
            Some(to.saturating_add(slice.offset - kept.from.offset))
        };
        let mut lowest = u64::MAX;
        each_slice(plan, &mut |slice| {
            if slice.space == Space::Host && moves(slice).is_none() {
                lowest = lowest.min(slice.offset / ALIGN * ALIGN);
            }
        });
        let mut most = end;
        each_slice(plan, &mut |slice| {
            if slice.space == Space::Host {
                slice.offset =
                    moves(slice).unwrap_or(slice.offset.saturating_sub(lowest).saturating_add(end));
                most = most.max(slice.offset.saturating_add(slice.bytes));
            }
        });
        plan.meta.host_bytes = align(most);
    }
    KeptBytes { all: end, own }
}

fn align(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

fn kept(plan: &Plan, bucket: usize, is_shared: &dyn Fn(&State) -> bool) -> Vec<Kept> {
    let mut all = Vec::new();
    for state in &plan.states {
        let owner = if is_shared(state) { None } else { Some(bucket) };
        let resident = Some(state.resident).filter(|slice| slice.space == Space::Host);
        let slices = [(resident, false), (plan.host_shadow(state), true)];
        for (from, is_shadow) in slices {
            all.extend(from.map(|from| Kept { from, key: (owner, state.name.clone(), is_shadow) }));
        }
    }
    all
}

/// Calls `f` for every slice of a plan.
fn each_slice(plan: &mut Plan, f: &mut dyn FnMut(&mut Slice)) {
    plan.states.iter_mut().for_each(|state| f(&mut state.resident));
    plan.inputs.iter_mut().for_each(|input| f(&mut input.slot));
    plan.outputs.iter_mut().for_each(|output| f(&mut output.slot));
    for list in [&mut plan.prologue, &mut plan.body, &mut plan.epilogue] {
        for command in list {
            match &mut command.action {
                Action::Launch { reads, writes, workspace, .. } => {
                    reads.iter_mut().chain(writes).chain(workspace).for_each(&mut *f);
                }
                Action::Copy { src, dst } => [src, dst].into_iter().for_each(&mut *f),
                Action::Free { slice } => f(slice),
                _ => {}
            }
        }
    }
}
