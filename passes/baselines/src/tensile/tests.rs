//! The example of Fig. 5, the text on swapping and recomputation, and random problems.

use memc_planner::{CommandKind, OpPos, Problem, Request, StepPos, Swap, TensorId, TensorKind};

use super::PLANNER;
use super::swap::Tasks;
use crate::samples::{UNIT, device, holds, op, planned, tensor};

/// The MLP of Fig. 5: one hidden layer with a feature map and a mask, forward, backward and optimizing phase.
/// The figure is lost but for its caption; sizes and times are chosen here, the loss is ten ops so that times
/// can be told.
fn mlp() -> Problem {
    let [x, w1, w2, h, mask, y, dy, dw1, dw2] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
    let tensors = vec![
        tensor("x", 1, TensorKind::Persistent),
        tensor("w1", 2, TensorKind::Persistent),
        tensor("w2", 2, TensorKind::Persistent),
        tensor("h", 4, TensorKind::Transient),
        tensor("mask", 1, TensorKind::Transient),
        tensor("y", 1, TensorKind::Transient),
        tensor("dy", 1, TensorKind::Transient),
        tensor("dw1", 2, TensorKind::Transient),
        tensor("dw2", 2, TensorKind::Transient),
    ];
    let mut ops = vec![op("forward1", 10, &[x, w1], &[h, mask]), op("forward2", 10, &[h, mask, w2], &[y])];
    ops.extend((0..9).map(|i| op(&format!("loss{i}"), 2, &[y], &[])));
    ops.extend([
        op("loss9", 2, &[y], &[dy]),
        op("backward2", 10, &[dy, h, mask], &[dw2]),
        op("backward1", 10, &[dy, x], &[dw1]),
        op("update2", 10, &[w2, dw2], &[w2]),
        op("update1", 10, &[w1, dw1], &[w1]),
        op("rest", 10, &[], &[]),
    ]);
    Problem::new("mlp", device(), tensors, ops).expect("invariant: the example is well-formed")
}

/// The swap tasks in the gap of a tensor that begins after op `from`.
fn after(tasks: &Tasks<'_>, t: u32, from: i32) -> Option<Swap> {
    let s = &tasks.genotype;
    let g = s
        .sequence
        .gaps_of(TensorId(t))
        .find(|&g| s.sequence.gaps[g].from == from)
        .expect("invariant: the tensor has that gap");
    s.swaps[g]
}

/// Fig. 5, Sec. 4.1: feature maps leave as early as possible after their access and return as late as
/// possible before the next one, and tasks do not share the link.
#[test]
fn fig_5_feature_maps_leave_early_and_return_late_one_at_a_time() {
    let p = mlp();
    let mut tasks = Tasks::new(&p);
    assert!(tasks.schedule(TensorId(3), StepPos(11)));
    // Out from 20 to 24, when op 4 starts; in from 36, when op 10 starts, to 40.
    assert_eq!(after(&tasks, 3, 1), Some(Swap { drop: 4, back: 10 }));
    assert!(tasks.schedule(TensorId(4), StepPos(11)));
    // Out from 24 to 25, in op 4, released at 26; in from 35 to 36, for which op 9 has to take the bytes
    // at 34.
    assert_eq!(after(&tasks, 4, 1), Some(Swap { drop: 5, back: 9 }));
}

/// Sec. 4.1: a swap-out ends before the peak, or it would not lower it.
#[test]
fn swap_outs_end_before_the_peak() {
    let p = mlp();
    let mut tasks = Tasks::new(&p);
    assert!(
        !tasks.schedule(TensorId(3), StepPos(3)),
        "h, 4 units from 20 on, cannot be gone when op 3 starts at 22"
    );
    assert!(tasks.schedule(TensorId(3), StepPos(4)), "it can when op 4 starts at 24");
}

/// Fig. 1(c), Fig. 5 and Sec. 4.1: what the optimizing phase updates leaves after the update and is back when
/// the next iteration needs it; the copy in host memory serves the rest of its accesses.
#[test]
fn fig_1c_parameters_are_swapped_across_iterations() {
    let p = mlp();
    let n = p.ops.len() as i32;
    let mut tasks = Tasks::new(&p);
    assert!(tasks.schedule(TensorId(2), StepPos(12)));
    // w2: updated by op 14 until 70, gone at 72; needed by op 1 at 10 of the next step, so the copy starts at
    // 8, in op 0.
    assert_eq!(after(&tasks, 2, 14), Some(Swap { drop: 16, back: n }));
    assert_eq!(after(&tasks, 2, 1), Some(Swap { drop: 2, back: 13 }));
    let outs = tasks.genotype.copies_out(&p);
    assert_eq!(outs.values().filter(|&&o| o >= 0).count(), 1, "what was swapped in is still in host memory");
    // w1 is needed by the first op: there is no time before it, but there is between its other accesses.
    assert!(tasks.schedule(TensorId(1), StepPos(12)));
    assert_eq!(after(&tasks, 1, 15), None);
    assert_eq!(after(&tasks, 1, 0), Some(Swap { drop: 2, back: 14 }));
}

/// Algorithm 2: the peak is where the most bytes are, and the largest tensors that lie unused there come
/// first.
#[test]
fn algorithm_2_finds_the_peak_and_its_tensors() {
    let p = mlp();
    let tasks = Tasks::new(&p);
    // x, w1, w2, h, mask, dy, dw2 at backward2.
    assert_eq!(tasks.peak(), (StepPos(12), 13 * UNIT));
    assert_eq!(tasks.idle_at(StepPos(12)), [1, 2, 0].map(TensorId));
}

/// Sec. 4.4: where swapping does not suffice, the tensor with the most bytes per time of recomputation is
/// recomputed.
#[test]
fn recomputation_takes_the_largest_msps() {
    let tensors = ["a", "b", "c"].map(|name| tensor(name, 4, TensorKind::Transient));
    let mut tensors = tensors.to_vec();
    tensors.push(tensor("x", 1, TensorKind::Persistent));
    tensors.push(tensor("top", 4, TensorKind::Transient));
    let ops = vec![
        op("slow", 9, &[3], &[0]),
        op("fast", 3, &[3], &[1]),
        op("medium", 6, &[3], &[2]),
        op("peak", 1, &[], &[4]),
        op("end", 1, &[0, 1, 2], &[]),
    ];
    let p = Problem::new("msps", device(), tensors, ops).expect("invariant: the example is well-formed");
    let mut request = Request::new(13 * UNIT);
    request.allow.swap = false;
    let r = planned(&p, &PLANNER, &request).expect("invariant: 13 units suffice");
    let recompute = r.trace.commands.values().filter_map(|c| match c.kind {
        CommandKind::Run { op, recompute: true } => Some(op),
        _ => None,
    });
    assert_eq!(recompute.collect::<Vec<_>>(), [OpPos(1)]);
    assert_eq!(r.evaluation.step_ns, 23_000);
    request.allow.recompute = false;
    assert!(planned(&p, &PLANNER, &request).is_none());
}

#[test]
fn decisions_are_carried_out_within_the_budget() {
    holds(&PLANNER, 2000);
}
