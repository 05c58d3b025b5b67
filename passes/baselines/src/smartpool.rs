//! SmartPool: everything stays, with offsets chosen offline by descending size and best fit (Zhang et al.,
//! Efficient Memory Management for GPU-based Deep Learning Systems, section III).
//!
//! As published (III-C): the largest variable first, each in the smallest hole that it fits in between its
//! neighbours' memory (those whose lives overlap with its own), or on top when there is none. It swaps
//! nothing. The algorithm is [`memc_alloc::Algorithm::SmartPool`].
//!
//! The paper is silent on these points:
//! - Equal sizes: in the order of their first appearance.
//! - Memory between steps: a tensor that outlives the step keeps one place throughout.
//! - The limit: it has none. Where the pool is larger than the budget there is no plan.

use memc_alloc::Algorithm;
use memc_ir::Bytes;
use memc_planner::{Decisions, Found, NoPlan, Planner, Problem};

/// The planner.
pub(super) const PLANNER: Planner = Planner {
    name: "smartpool",
    summary: "everything stays on the device, laid out by descending size and best fit",
    source: "Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems, \
             2019, section III",
    swaps: false,
    recomputes: false,
    plan: |p, request| {
        let (decisions, height) = lay_out(p, Decisions::keep_all(p))?;
        if height > request.capacity {
            return Err(NoPlan::Infeasible(format!("smartpool swaps nothing and needs {}", Bytes(height))));
        }
        Ok(Found { decisions, evaluations: 1 })
    },
};

/// Gives every place in decisions the offset that SmartPool chooses; also returns the pool's height in bytes.
pub(super) fn lay_out(p: &Problem, decisions: Decisions) -> Result<(Decisions, u64), NoPlan> {
    Ok(memc_planner::lay_out(p, decisions, Algorithm::SmartPool)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::sample::{device, op, tensor};
    use memc_planner::{Action, Space, TensorKind, trace};

    /// Figure 4, reconstructed from its caption and the text: where a variable fits into two holes, first fit
    /// takes the first, best fit, SmartPool's default, the smallest. Offsets in KB: a is [0, 40), hole of 30,
    /// b is [70, 90), hole of 18, c is [108, 124); the new variable takes 12.
    #[test]
    fn figure_4_best_fit() {
        // x and y die before `new` is born; a, b and c live on.
        let sizes = [("a", 40), ("x", 30), ("b", 20), ("y", 18), ("c", 16), ("new", 12)];
        let tensors = sizes.iter().map(|&(n, kb)| tensor(n, TensorKind::Transient, kb << 10)).collect();
        let ops = vec![
            op("make", 1, &[], &[0, 1, 2, 3, 4]),
            op("end x and y", 1, &[1, 3], &[]),
            op("new", 1, &[0, 2, 4], &[5]),
        ];
        let p = Problem::new("figure 4", device(), tensors, ops).expect("it is a problem");
        let offsets = |algorithm| {
            let laid_out = memc_planner::lay_out(&p, Decisions::keep_all(&p), algorithm);
            let (decisions, height) = laid_out.expect("it is laid out");
            let trace = trace(&p, &decisions).expect("it runs");
            let at =
                trace.slots.values().filter(|s| s.space == Space::Dev).map(|s| s.offset.unwrap_or(0) >> 10);
            (at.collect::<Vec<u64>>(), height >> 10)
        };
        let (best, height) = offsets(Algorithm::SmartPool);
        assert_eq!((best, height), (vec![0, 40, 70, 90, 108, 90], 124));
        let (first, height) = offsets(Algorithm::SmartPoolFirstFit);
        assert_eq!((first.last(), height), (Some(&40), 124), "the lowest hole");
    }

    /// Large variables share memory with several small ones, which a pool of whole blocks does not allow
    /// (section III-C).
    #[test]
    fn one_large_variable_shares_with_several_small_ones() {
        let tensors = [("large", 64), ("s1", 32), ("s2", 32)]
            .map(|(n, kb)| tensor(n, TensorKind::Transient, kb << 10))
            .to_vec();
        let ops = vec![op("a", 1, &[], &[0]), op("b", 1, &[], &[1, 2])];
        let p = Problem::new("share", device(), tensors, ops).expect("it is a problem");
        let (decisions, height) = lay_out(&p, Decisions::keep_all(&p)).expect("it lays out");
        assert_eq!(height, 64 << 10);
        let places =
            decisions.actions.iter().filter_map(|a| if let Action::Run(r) = a { Some(&r.at) } else { None });
        assert!(places.flatten().all(|place| place.1.is_some()), "every place has an offset");
    }
}
