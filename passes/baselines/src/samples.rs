//! Random problems for tests, and properties of every planner on them.

use arbtest::arbitrary::{Result, Unstructured};
use memc_planner::{
    Device, NoPlan, Op, Planner, Problem, Request, Schedule, Tensor, TensorId, TensorKind, evaluate,
};

/// Bytes of the unit in which samples count.
pub(super) const UNIT: u64 = 256 * 1024;

/// A tensor of some units.
pub(super) fn tensor(name: &str, units: u64, kind: TensorKind) -> Tensor {
    Tensor { name: name.into(), size: units * UNIT, bytes: 0, kind, touches: Vec::new(), writes: Vec::new() }
}

/// An op of some units of time; tensors by position.
pub(super) fn op(name: &str, time: u64, reads: &[u32], writes: &[u32]) -> Op {
    let in_place = writes.iter().any(|t| reads.contains(t));
    Op {
        name: name.into(),
        label: name.into(),
        time_ns: time * 1000,
        reads: reads.iter().map(|&t| TensorId(t)).collect(),
        writes: writes.iter().map(|&t| TensorId(t)).collect(),
        repeatable: !in_place,
        ..Op::default()
    }
}

/// A link that moves one unit in each direction per unit of time.
pub(super) fn device() -> Device {
    let rate = UNIT * 1_000_000;
    Device { h2d_bytes_per_s: rate, d2h_bytes_per_s: rate, ..Device::default() }
}

/// A problem of up to a dozen ops: chains with reuse, parameters that are updated, inputs, results, scratch
/// space.
pub(super) fn problem(u: &mut Unstructured<'_>) -> Result<Problem> {
    let mut tensors = Vec::new();
    let mut ops = Vec::new();
    for i in 0..u.int_in_range(0..=3)? {
        let kind = if u.ratio(1, 4)? { TensorKind::Input } else { TensorKind::Persistent };
        tensors.push(tensor(&format!("p{i}"), u.int_in_range(1..=3)?, kind));
    }
    if u.ratio(1, 4)? {
        tensors.push(tensor("given", 1, TensorKind::Transient));
    }
    for i in 0..u.int_in_range(1..=12)? {
        let mut reads: Vec<u32> = Vec::new();
        let known = tensors.len();
        for _ in 0..u.int_in_range(0..=3)? {
            if known > 0 {
                // Near tensors are read more often, as in a chain.
                let back = u.choose_index(known)?.min(u.choose_index(known)?);
                reads.push((known - 1 - back) as u32);
            }
        }
        let mut writes = Vec::new();
        for k in 0..u.int_in_range(0..=2)? {
            writes.push(tensors.len() as u32);
            tensors.push(tensor(&format!("t{i}.{k}"), u.int_in_range(1..=4)?, TensorKind::Transient));
        }
        if !reads.is_empty() && u.ratio(1, 4)? {
            writes.push(*u.choose(&reads)?);
        }
        let mut o = op(&format!("op{i}"), u.int_in_range(0..=6)?, &reads, &writes);
        if u.ratio(1, 4)? {
            o.workspace = u.int_in_range(1..=2)? * UNIT;
        }
        if !writes.is_empty() && u.ratio(1, 6)? {
            o.outputs.push((TensorId(writes[0]), UNIT));
        }
        ops.push(o);
    }
    let mut device = device();
    if u.ratio(1, 8)? {
        device.h2d_bytes_per_s = 0;
    }
    if u.ratio(1, 4)? {
        device.duplex_bytes_per_s = device.d2h_bytes_per_s;
    }
    Ok(Problem::new("sample", device, tensors, ops).expect("invariant: samples are well-formed"))
}

/// Plans a problem and checks the answer: its decisions can be carried out, fit the capacity, and do what the
/// request allows.
pub(super) fn planned(p: &Problem, planner: &Planner, request: &Request<'_>) -> Option<Schedule> {
    let found = match (planner.plan)(p, request) {
        Ok(found) => found,
        Err(NoPlan::Infeasible(why)) => {
            assert!(!why.is_empty());
            return None;
        }
        Err(NoPlan::Failed(why)) => panic!("{} failed: {why}", planner.name),
    };
    let text = found.decisions.print(p);
    let r = evaluate(p, found.decisions).unwrap_or_else(|e| panic!("{}: {e}\n{text}", planner.name));
    let e = &r.evaluation;
    assert!(e.load_bytes <= request.capacity, "{} > {}\n{text}", e.load_bytes, request.capacity);
    let unplanned: u64 = p.tensors.values().filter(|t| t.kind == TensorKind::Input).map(|t| t.bytes).sum();
    if !request.allow.on(&p.device).swap {
        assert!(e.swap_out_bytes == 0 && e.swap_in_bytes <= unplanned, "{} swaps\n{text}", planner.name);
    }
    assert!(request.allow.recompute || e.recompute_ops == 0, "{} recomputes\n{text}", planner.name);
    Some(r)
}

/// Runs a planner on random problems, budgets and restrictions.
pub(super) fn holds(planner: &Planner, budget_ms: u64) {
    arbtest::arbtest(|u| {
        let p = problem(u)?;
        let (least, most) = (p.largest_working_set().1, p.tensors.values().map(|t| t.bytes).sum::<u64>());
        let mut request = Request::new(u.int_in_range(least / 2..=most.max(least) + UNIT)?);
        request.seed = u.arbitrary()?;
        request.effort = 0;
        (request.allow.swap, request.allow.recompute) = (u.ratio(3, 4)?, u.ratio(3, 4)?);
        request.allow.reorder = !u.ratio(1, 4)?;
        if let Some(r) = planned(&p, planner, &request)
            && !request.allow.reorder
        {
            let ran = r.trace.commands.values().filter_map(|c| match c.kind {
                memc_planner::CommandKind::Run { op, recompute: false } => Some(op),
                _ => None,
            });
            assert!(ran.eq(p.ops.ids()), "{} changes the order", planner.name);
        }
        Ok(())
    })
    .budget_ms(budget_ms);
}
