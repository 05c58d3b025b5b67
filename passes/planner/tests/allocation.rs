//! Evaluating a genotype takes no memory from the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memc_planner::sample::{Seed, sample};
use memc_planner::{AccessSequence, Copies, Genotype, Swap, Timing};

/// The system allocator, counting calls for each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter left.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

#[allow(unsafe_code, reason = "counting needs a global allocator")]
// SAFETY: every method hands its arguments to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn evaluations_of_schemes_over_one_sequence_do_not_allocate() {
    let mut copied = 0;
    for seed in 0..200 {
        let Some(sample) = sample(&mut Seed(seed), 40) else { continue };
        let p = &sample.problem;
        let kept = Genotype::keep_all(AccessSequence::of_order(p, p.ops.ids()));
        let mut swapped = kept.clone();
        for (gap, swap) in kept.sequence.gaps.values().zip(swapped.swaps.values_mut()) {
            *swap = Some(Swap::longest(gap, p.ops.len()));
        }
        let copies = Copies::new(p, &kept.sequence);
        let (few, all) = (kept.copies_out(p), swapped.copies_out(p));
        let mut timing = Timing::default();
        timing.evaluate(&kept, &copies, &few);
        let before = CALLS.get();
        timing.evaluate(&swapped, &copies, &all);
        timing.evaluate(&kept, &copies, &few);
        timing.evaluate(&swapped, &copies, &all);
        assert_eq!(CALLS.get(), before, "seed {seed}");
        copied += all.values().filter(|&&at| at >= 0).count();
    }
    assert!(copied > 1000 && CALLS.get() > 1000, "{copied} copies");
}
