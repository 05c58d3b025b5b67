//! Algorithms by name: each makes one allocation, quickly. [`crate::solve`] combines them and searches on.

use std::cmp::Reverse;

use crate::compact::{Compact, components};
use crate::instance::Instance;
use crate::place::{Fit, in_order};
use crate::pools::size_classes;
use crate::solution::Solution;
use crate::sweep::{Plan, Rule, Stack, sweep};

/// A way to choose offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// In order of birth, each buffer at the lowest offset that is free for its whole life.
    FirstFit,
    /// The largest first, each in the tightest gap (Pisarchyk and Lee, "Efficient Memory Management for Deep
    /// Neural Net Inference", 2020, greedy by size); of equals those born first.
    BestFit,
    /// SmartPool (Zhang et al., section III-C): variables by descending size, each in the smallest hole
    /// between those of its neighbours in the graph of overlapping lives that have a place. The paper says
    /// nothing of equal sizes; here the order given decides.
    SmartPool,
    /// The same in the lowest hole that is large enough, the paper's other method.
    SmartPoolFirstFit,
    /// TensorFlow Lite's arena planner: buffers that live throughout first, then by size; the tightest gap.
    TfLite,
    /// The largest product of size and life first, in the lowest gap.
    Area,
    /// The longest life first, in the lowest gap.
    Lifetime,
    /// The buffers that live when most is live first, the larger first, in the lowest gap.
    Contention,
    /// From the fullest instant outwards. The buffers live there are stacked. The others take, in time order
    /// on both sides, the gap whose neighbour dies when they do.
    Peak,
    /// From the fullest instant outwards, the others at the upper end unless they live to the end.
    PeakTwoEnded,
    /// Pools of equal blocks, of a power of two bytes, reused within a pool only. SwapAdvisor (section 2)
    /// describes such pools of frameworks; the sizes of its own are searched.
    SizeClass,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 11] = [
        Algorithm::FirstFit,
        Algorithm::BestFit,
        Algorithm::SmartPool,
        Algorithm::SmartPoolFirstFit,
        Algorithm::TfLite,
        Algorithm::Area,
        Algorithm::Lifetime,
        Algorithm::Contention,
        Algorithm::Peak,
        Algorithm::PeakTwoEnded,
        Algorithm::SizeClass,
    ];

    /// Spelling on command lines and in options.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::FirstFit => "first-fit",
            Algorithm::BestFit => "best-fit",
            Algorithm::SmartPool => "smartpool",
            Algorithm::SmartPoolFirstFit => "smartpool-first-fit",
            Algorithm::TfLite => "tflite",
            Algorithm::Area => "area",
            Algorithm::Lifetime => "lifetime",
            Algorithm::Contention => "contention",
            Algorithm::Peak => "peak",
            Algorithm::PeakTwoEnded => "peak-two-ended",
            Algorithm::SizeClass => "size-class",
        }
    }

    /// The algorithm of that name.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// The allocation that `algorithm` makes. Takes `O(n k)` for `k` buffers live at once, or less.
pub fn place(instance: &Instance, algorithm: Algorithm) -> Solution {
    let parts = components(instance);
    let allocations: Vec<Vec<u64>> = parts.iter().map(|c| allocate(c, algorithm)).collect();
    Solution::assemble(instance, parts.iter().zip(&allocations), 0)
}

/// Offsets for one component.
pub(crate) fn allocate(c: &Compact, algorithm: Algorithm) -> Vec<u64> {
    let two_ended = Plan { stack: Stack::LastToDie, rule: Rule::TwoEnded(1) };
    match algorithm {
        Algorithm::FirstFit => in_order(c, &order(c, Order::Start), Fit::First),
        Algorithm::BestFit => in_order(c, &order(c, Order::Size), Fit::Best),
        Algorithm::SmartPool => in_order(c, &order(c, Order::SizeAsGiven), Fit::Best),
        Algorithm::SmartPoolFirstFit => in_order(c, &order(c, Order::SizeAsGiven), Fit::First),
        Algorithm::TfLite => in_order(c, &order(c, Order::WholeLife), Fit::Best),
        Algorithm::Area => in_order(c, &order(c, Order::Area), Fit::First),
        Algorithm::Lifetime => in_order(c, &order(c, Order::Lifetime), Fit::First),
        Algorithm::Contention => in_order(c, &order(c, Order::Contention), Fit::First),
        // A sweep knows no obstacles.
        Algorithm::Peak | Algorithm::PeakTwoEnded if c.has_fixed() => allocate(c, Algorithm::Contention),
        Algorithm::Peak => sweep(c, Plan { stack: Stack::LastToDie, rule: Rule::Mates }),
        Algorithm::PeakTwoEnded => sweep(c, two_ended),
        Algorithm::SizeClass => size_classes(c),
    }
}

/// An order of placing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Start,
    End,
    Size,
    SizeAsGiven,
    WholeLife,
    Area,
    Lifetime,
    Contention,
    ContentionArea,
}

/// The buffers in an order.
pub(crate) fn order(c: &Compact, by: Order) -> Vec<u32> {
    let mut list: Vec<u32> = (0..c.len() as u32).collect();
    let size = |b: u32| Reverse(c.size[b as usize]);
    let hull = |b: u32| c.hull(b as usize);
    let length = |b: u32| Reverse(hull(b).1 - hull(b).0);
    let area = |b: u32| Reverse(c.area(b as usize));
    match by {
        Order::Start => list.sort_by_key(|&b| (hull(b).0, b)),
        Order::End => list.sort_by_key(|&b| (Reverse(hull(b).1), size(b))),
        Order::Size => list.sort_by_key(|&b| (size(b), hull(b).0)),
        Order::SizeAsGiven => list.sort_by_key(|&b| size(b)),
        Order::WholeLife => {
            let throughout = |b: u32| hull(b) != (0, c.load.len() as u32);
            list.sort_by_key(|&b| (throughout(b), size(b), hull(b).0));
        }
        Order::Area => list.sort_by_key(|&b| (area(b), hull(b).0)),
        Order::Lifetime => list.sort_by_key(|&b| (length(b), size(b))),
        Order::Contention | Order::ContentionArea => {
            let most = c.contention();
            let most = |b: u32| Reverse(most[b as usize]);
            match by {
                Order::Contention => list.sort_by_key(|&b| (most(b), size(b), hull(b).0)),
                _ => list.sort_by_cached_key(|&b| (most(b), area(b))),
            }
        }
    }
    list
}
