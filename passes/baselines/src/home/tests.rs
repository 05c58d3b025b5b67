//! The examples of Fig. 3, 4 and 5, the text on recomputation, and random problems.

use memc_planner::{Problem, Request, Step, TensorKind, evaluate};

use super::cost::{Cost, Model};
use super::maps::{Net, RECOMPUTE, RETAIN, SWAP};
use super::{PLANNER, update};
use crate::samples::{UNIT, device, holds, op, planned, tensor};

/// A network of layers, by the sizes of their feature maps and the times of their propagations: FWDi reads
/// map i-1 and BWDi as well (Sec. 3.4).
fn chain(layers: &[(u64, u64, u64)]) -> Problem {
    let n = layers.len() as u32;
    let mut tensors = vec![tensor("x", 1, TensorKind::Persistent)];
    tensors.extend(
        layers.iter().enumerate().map(|(i, l)| tensor(&format!("fm{}", i + 1), l.0, TensorKind::Transient)),
    );
    let forward = layers.iter().zip(1..).map(|(l, i)| op(&format!("fwd{i}"), l.1, &[i - 1], &[i]));
    let backward = layers.iter().zip(1..n + 1).rev().map(|(l, i)| op(&format!("bwd{i}"), l.2, &[i - 1], &[]));
    let mut ops: Vec<_> = forward.collect();
    ops.push(op("loss", 1, &[n], &[]));
    ops.extend(backward);
    Problem::new("chain", device(), tensors, ops).expect("invariant: the example is well-formed")
}

/// Fig. 3: a policy is an action for every feature map; the last map of a chain waits for nothing.
#[test]
fn feature_maps_wait_for_the_backward_propagation() {
    let p = chain(&[(2, 1, 1), (3, 1, 1), (4, 1, 1), (1, 1, 1)]);
    let net = Net::new(&p, true, true);
    let maps: Vec<Option<u32>> = net.map_of.values().map(|map| map.map(|map| map.0)).collect();
    assert_eq!(maps, [None, Some(0), Some(1), Some(2), None]);
    assert!(net.maps.values().all(|m| m.actions == [RETAIN, SWAP, RECOMPUTE]));
}

/// Fig. 4: OFFLOAD1 hides behind the forward propagation. OFFLOAD2 and PRE2 of 6 units each do not: tensor 2
/// leaves while FWD3 reads it and comes back before BWD3, so that it costs (OFFLOAD2 - FWD3) + (PRE2 - BWD4)
/// where FWD4 needs its memory.
#[test]
fn fig_4_swapping_costs_what_does_not_overlap() {
    let p = chain(&[(2, 4, 4), (6, 4, 4), (1, 4, 4), (6, 4, 4), (1, 4, 4)]);
    let net = Net::new(&p, true, true);
    let mut model = Model::new(&net, 100 * UNIT);
    let compute = p.compute_ns();
    let retain = vec![RETAIN; net.maps.len()];
    assert_eq!(model.evaluate(&retain), Cost { over: 0, ns: compute });
    let mut policy = retain.clone();
    policy[0] = SWAP;
    assert_eq!(model.evaluate(&policy), Cost { over: 0, ns: compute }, "OFFLOAD1 and PRE1 are hidden");
    policy = retain;
    policy[1] = SWAP;
    assert_eq!(
        model.evaluate(&policy),
        Cost { over: 0, ns: compute + 2000 },
        "PRE2 - BWD4, with room for all"
    );
    // FWD4 needs the room of tensor 2: x, tensors 1, 3 and 4 are 10 units, and with tensor 5 there are 11.
    let mut tight = Model::new(&net, 11 * UNIT);
    let both = Cost { over: 0, ns: compute + 2000 + 2000 };
    assert_eq!(tight.evaluate(&policy), both, "OFFLOAD2 - FWD3 as well");
    let r = evaluate(&p, tight.genotype(&policy).decisions(&p))
        .expect("invariant: the policy can be carried out");
    assert_eq!((r.evaluation.step_ns, r.evaluation.load_bytes), (both.ns, 11 * UNIT), "as it is carried out");
    let mut low = Model::new(&net, 10 * UNIT);
    assert_eq!(low.evaluate(&policy).over, UNIT);
}

/// A policy costs the same whichever was evaluated before it.
#[test]
fn costs_do_not_depend_on_what_came_before() {
    let p = chain(&[(2, 4, 4), (6, 4, 4), (1, 4, 4), (6, 4, 4), (1, 4, 4)]);
    let net = Net::new(&p, true, true);
    let mut kept = Model::new(&net, 9 * UNIT);
    for n in 0..81u8 {
        let policy = [n / 27, n / 9 % 3, n / 3 % 3, n % 3];
        assert_eq!(kept.evaluate(&policy), Model::new(&net, 9 * UNIT).evaluate(&policy), "{policy:?}");
    }
}

/// Sec. 2.2: recomputing FM3 requires that FM2 is recomputed first: FM3 depends on it, and it was released
/// too.
#[test]
fn recomputation_triggers_that_of_earlier_maps() {
    let p = chain(&[(1, 2, 1), (1, 3, 1), (1, 5, 1), (1, 1, 1), (1, 1, 1)]);
    let net = Net::new(&p, true, true);
    let mut model = Model::new(&net, 100 * UNIT);
    let cost = model.evaluate(&[RETAIN, RECOMPUTE, RECOMPUTE, RETAIN]);
    let recompute: Vec<u32> =
        model.steps.values().filter(|s| s.recompute.is_some()).map(|s| s.op.0).collect();
    assert_eq!(recompute, [1, 2], "fwd2, fwd3");
    assert_eq!(cost.ns, p.compute_ns() + 8000);
    // Once recomputed, FM2 is there for its own backward propagation.
    let steps: Vec<&Step> = model.steps.values().collect();
    let at = steps.iter().position(|s| s.recompute.is_some());
    assert_eq!(at.and_then(|i| steps.get(i + 2)).map(|s| s.op.0), Some(7), "bwd4, which needs FM3");
}

/// Fig. 5: the best policy of the last iteration is [2, 2, 2, 0], the particle's own best [1, 1, 2, 0], its
/// current one [0, 1, 2, 0]. For the first map both actions are tried and the one of lower cost is kept; the
/// map where both agree is not in question. (The figure's second candidate starts with 0, which is neither.)
#[test]
fn fig_5_every_action_is_taken_from_the_better_policy() {
    let (last, best) = ([2, 2, 2, 0], [1, 1, 2, 0]);
    let mut seen = Vec::new();
    let mut policy = vec![0, 1, 2, 0];
    // The lower the first action and the higher the second, the lower the cost.
    let cost = |policy: &[u8]| Cost { over: 0, ns: 10 + u64::from(policy[0]) - u64::from(policy[1]) };
    let before = cost(&policy);
    let after = update(&mut policy, before, &last, &best, &mut |policy| {
        seen.push(policy.to_vec());
        cost(policy)
    });
    assert_eq!(seen[..2], [[2, 1, 2, 0], [1, 1, 2, 0]]);
    assert_eq!(seen[2..], [[1, 2, 2, 0]], "the other candidate is the policy so far");
    assert_eq!((policy.as_slice(), after), ([1, 2, 2, 0].as_slice(), cost(&policy)));
}

/// The model's memory is that of the plan: plans fit, and their time is close to the model's on a chain.
#[test]
fn the_search_finds_the_cheaper_placement() {
    // fm1 is large and cheap to compute, fm2 large and dear: with room for one, fm1 is recomputed.
    let p = chain(&[(8, 1, 1), (8, 40, 1), (1, 1, 1), (1, 1, 1)]);
    let r = planned(&p, &PLANNER, &Request { effort: 1, ..Request::new(18 * UNIT) });
    let e = r.expect("invariant: 18 units suffice").evaluation;
    assert_eq!((e.recompute_ops, e.swap_out_bytes), (1, 0));
    assert_eq!(e.step_ns, p.compute_ns() + 1000);
}

#[test]
fn decisions_are_carried_out_within_the_budget() {
    holds(&PLANNER, 4000);
}

/// A seed gives the same decisions on one thread and on four.
#[test]
fn a_seed_gives_the_same_decisions_at_any_thread_count() {
    let p = chain(&[(4, 2, 3), (3, 1, 2), (5, 2, 2), (2, 4, 1), (3, 1, 1), (4, 2, 2), (1, 1, 1)]);
    let request = Request { effort: 0, seed: 9, ..Request::new(14 * UNIT) };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| e.to_string());
        let found = pool.map(|pool| pool.install(|| (PLANNER.plan)(&p, &request)));
        found.expect("invariant: threads start").expect("invariant: 14 units suffice")
    };
    assert_eq!(on(1), on(4));
}
