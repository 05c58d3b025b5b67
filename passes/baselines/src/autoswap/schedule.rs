//! Times of the copies of selected variables (section IV-E, figure 7).
//!
//! Copies to the host run in the order of the accesses before them. Each begins once its access and the copy
//! before it are done. Copies to the device run in the order of the next accesses. Each begins as late as
//! that access and the copy behind it allow. The ops' times without stalls make that plan (LOAD'). Where the
//! load would exceed the limit meanwhile, bytes are released earlier, so that the next op waits for them, and
//! copies to the device begin later (LOAD''). The overhead arises there.

use memc_ir::Arena;
use memc_planner::{Copies, GapIx, Genotype, StepPos, Swap};

/// Planned times of a variable's copies in ns: (start, end).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Planned {
    /// To the host.
    pub(super) out: Option<(u64, u64)>,
    /// To the device; may lie in the next iteration.
    pub(super) back: Option<(u64, u64)>,
}

/// Sets when every swapped gap is given up and fetched, and returns the plan without the limit, by gap.
pub(super) fn schedule(
    genotype: &mut Genotype,
    copies: &Copies,
    outs: &Arena<GapIx, i32>,
    limit: u64,
) -> Arena<GapIx, Planned> {
    let n = genotype.sequence.steps.len();
    for (gap, swap) in genotype.sequence.gaps.values().zip(genotype.swaps.values_mut()) {
        *swap = swap.map(|_| Swap::longest(gap, n));
    }
    let mut start: Arena<StepPos, u64> = Arena::filled(0, n + 1);
    for (i, ns) in genotype.sequence.ns.iter() {
        start[i.next()] = start[i] + ns;
    }
    let mut planned = Arena::filled(Planned::default(), genotype.swaps.len());
    let mut used = genotype.usage();
    swap_outs(genotype, copies, outs, limit, &start, &mut used, &mut planned);
    swap_ins(genotype, copies, limit, &start, &mut used, &mut planned);
    planned
}

fn swap_outs(
    genotype: &mut Genotype,
    copies: &Copies,
    outs: &Arena<GapIx, i32>,
    limit: u64,
    start: &Arena<StepPos, u64>,
    used: &mut Arena<StepPos, u64>,
    planned: &mut Arena<GapIx, Planned>,
) {
    let n = start.len() as i32 - 1;
    let mut order: Vec<GapIx> = outs.ids().filter(|&g| outs[g] >= 0).collect();
    order.sort_by_key(|&g| (genotype.sequence.gaps[g].from, genotype.sequence.gaps[g].to, g));
    let mut free = 0;
    for g in order {
        let (gap, Some(swap)) = (&genotype.sequence.gaps[g], &mut genotype.swaps[g]) else { continue };
        let begin = free.max(start[StepPos::at((gap.from + 1).min(n))]);
        free = begin + copies.out[g];
        planned[g].out = Some((begin, free));
        let last = gap.to.min(n);
        while swap.drop < last && start[StepPos::at(swap.drop)] < free {
            let used = &mut used[StepPos::at(swap.drop)];
            if *used + gap.bytes > limit {
                break;
            }
            *used += gap.bytes;
            swap.drop += 1;
        }
    }
}

fn swap_ins(
    genotype: &mut Genotype,
    copies: &Copies,
    limit: u64,
    start: &Arena<StepPos, u64>,
    used: &mut Arena<StepPos, u64>,
    planned: &mut Arena<GapIx, Planned>,
) {
    let n = start.len() as i32 - 1;
    let period = start[StepPos::at(n)];
    let at = |i: i32| if i >= n { start[StepPos::at(i - n)] + period } else { start[StepPos::at(i)] };
    let mut latest = u64::MAX;
    for &g in copies.order.iter().rev() {
        let (gap, Some(swap)) = (&genotype.sequence.gaps[g], &mut genotype.swaps[g]) else { continue };
        if gap.dead {
            continue;
        }
        let end = latest.min(at(gap.to));
        latest = end.saturating_sub(copies.back[g]);
        planned[g].back = Some((latest, end));
        let first = if gap.arrives() { 0 } else { swap.drop };
        while swap.back > first && at(swap.back) > latest {
            let i = swap.back - 1;
            let used = &mut used[StepPos::at(if i >= n { i - n } else { i })];
            if *used + gap.bytes > limit {
                break;
            }
            *used += gap.bytes;
            swap.back = i;
        }
    }
}
