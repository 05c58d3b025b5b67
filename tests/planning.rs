//! Planning on random training-like graphs: whatever the budget, a plan is either proved by the checker or
//! refused with a budget that does work.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use arbtest::arbitrary::{Result, Unstructured};
use memc::{DecisionsFile, Error, HostOps, Instance, Poses, Search, Silent};
use memc_ir::attr::F32;
use memc_ir::{
    DType, Feed, Init, Module, OpKind, Output, OutputRole, Role, TensorType, ValueId, print, verify,
};
use memc_lower::lower;
use memc_passes::DeviceProfile;
use memc_plan::{Action, Meta, Queue};
use memc_planner::Order;

fn toy() -> &'static DeviceProfile {
    DeviceProfile::named("toy").unwrap()
}

/// The same with copies in both directions at once that have no more of the link than one alone, and slow
/// kernels.
static HALF_DUPLEX: std::sync::LazyLock<DeviceProfile> = std::sync::LazyLock::new(|| {
    let one_way = toy().h2d_bytes_per_s.max(toy().d2h_bytes_per_s);
    DeviceProfile { duplex_total_bytes_per_s: one_way, compute_slowdown: Some(1.5), ..toy().clone() }
});

/// As `toy`, with a link as fast as memory and a host that runs updates.
static HOSTED: std::sync::LazyLock<DeviceProfile> = std::sync::LazyLock::new(|| DeviceProfile {
    h2d_bytes_per_s: 1e9,
    d2h_bytes_per_s: 1e9,
    duplex_total_bytes_per_s: 2e9,
    host_bytes_per_s: Some(4e9),
    host_latency_ns: None,
    ..toy().clone()
});

/// A random step: states, an input, layers of element-wise ops, matrix products, views and reductions, then
/// updates of the states in place or by ops that cannot be in place, in an order that mixes old and new
/// values.
fn random_step(u: &mut Unstructured<'_>) -> Result<Module> {
    let mut m = Module::new("random");
    let n = *u.choose(&[4u64, 8, 16, 33])?;
    let square = TensorType::new(DType::F32, [n, n]);
    let x = m.add_input("x", square.clone(), Feed::Data { source: "x".into(), micro: 0, range: None });
    let one = m.add_const("one", TensorType::scalar(DType::F32), 1f32.to_le_bytes().to_vec());
    let states: Vec<_> = (0..u.int_in_range(1..=5)?)
        .map(|i| m.add_state(&format!("w{i}"), square.clone(), Role::Param, Init::Zeros))
        .collect();
    let mut pool: Vec<ValueId> = vec![x];
    pool.extend(states.iter().map(|&s| m.states[s].value));
    for _ in 0..u.int_in_range(3..=40)? {
        let a = *u.choose(&pool)?;
        let b = *u.choose(&pool)?;
        let (kind, operands): (OpKind, Vec<ValueId>) = match u.int_in_range(0..=8)? {
            0 => (OpKind::Relu {}, vec![a]),
            1 => (OpKind::Exp {}, vec![a]),
            2 => (OpKind::Add {}, vec![a, b]),
            3 => (OpKind::Mul {}, vec![a, one]),
            4 => (OpKind::MatMul { trans_a: u.arbitrary()?, trans_b: false, alpha: F32(1.0) }, vec![a, b]),
            5 => (OpKind::Softmax { axis: 1 }, vec![a]),
            6 => (OpKind::Transpose { perm: vec![1, 0] }, vec![a]),
            7 => {
                let flat = m.add_op(OpKind::Reshape { shape: vec![n * n] }, &[a], &[], "").unwrap()[0];
                (OpKind::Reshape { shape: vec![n, n] }, vec![flat])
            }
            _ => (OpKind::LayerNormGrad { axis: 1 }, layer_norm_grad(&mut m, a, b, n)),
        };
        pool.push(m.add_op(kind, &operands, &[], "").unwrap()[0]);
    }
    let loss = *u.choose(&pool)?;
    m.outputs.push(Output { value: loss, name: "loss".into(), role: OutputRole::Loss });
    for &s in &states {
        let w = m.states[s].value;
        let g = *u.choose(&pool)?;
        let next = match u.int_in_range(0..=5)? {
            4 | 5 => Some(m.add_op(OpKind::Sgd {}, &[w, g, one], &[], "").unwrap()[0]),
            0 => None,
            1 => Some(g),
            2 => Some(m.add_op(OpKind::Sub {}, &[w, g], &[], "").unwrap()[0]),
            _ => Some(
                m.add_op(OpKind::MatMul { trans_a: false, trans_b: true, alpha: F32(0.5) }, &[w, g], &[], "")
                    .unwrap()[0],
            ),
        };
        m.states[s].next = next;
        pool.extend(next);
    }
    Ok(m)
}

/// Operands of a `layer_norm_grad` of three results, two of which nobody reads.
fn layer_norm_grad(m: &mut Module, dy: ValueId, x: ValueId, n: u64) -> Vec<ValueId> {
    let row = m.add_op(
        OpKind::Slice { starts: vec![0, 0], ends: vec![1, n as i64], steps: vec![1, 1] },
        &[x],
        &[],
        "",
    );
    let scale = m.add_op(OpKind::Reshape { shape: vec![n] }, &[row.unwrap()[0]], &[], "").unwrap()[0];
    let norm = m.add_op(OpKind::LayerNorm { axis: 1, epsilon: F32(1e-5) }, &[x, scale], &[], "").unwrap();
    vec![dy, x, scale, norm[1], norm[2]]
}

/// Lowers and proves, and returns the plan; panics with the reasons otherwise.
fn prove(source: &Module, planned: &Module, budget: u64) -> memc_plan::Plan {
    verify(planned).unwrap_or_else(|d| panic!("{}", memc_ir::print_annotated(planned, &d)));
    let text = print(planned);
    assert_eq!(print(&memc_ir::parse(&text).unwrap()), text, "printing is not a fixpoint");
    let meta = Meta { profile: "toy".into(), budget_bytes: budget, ..Meta::default() };
    let lowered = lower(source, planned, meta).unwrap();
    memc_check::check(source, &lowered.plan).unwrap_or_else(|e| panic!("{e}\n{text}"));
    lowered.plan
}

/// The time from one step to the next when the plan's commands run in issue order on their streams, with
/// kernels as long as the cost model says.
fn replayed(
    module: &Module,
    plan: &memc_plan::Plan,
    device: &memc_planner::Device,
    profile: &DeviceProfile,
) -> u64 {
    use memc_planner::{CommandIx, Job, Jobs, Stream, Wait, Waits, simulate};
    let kernels =
        module.order.iter().filter(|&&op| module.ops[op].kind().is_some() && !module.ops[op].is_view());
    let mut kernels = kernels.map(|&op| {
        let (kind, operands) = (module.ops[op].kind().unwrap(), module.operand_types(op));
        let results = module.result_types(op);
        match profile.host_ns(kind, &operands, &results).filter(|_| module.ops[op].on_host) {
            Some(ns) => (ns, 0),
            None => (profile.op_ns(kind, &operands, &results), profile.slowdown(kind, &operands, &results)),
        }
    });
    let (mut jobs, mut waits) = (Jobs::default(), Waits::default());
    // For every event, the command it stands for; what each stream and the host wait for next.
    let mut recorded: Vec<Option<CommandIx>> = vec![None; plan.events as usize];
    let mut last = [None; Stream::ALL.len()];
    let mut events: [Vec<u32>; Stream::ALL.len()] = Default::default();
    let mut early: Vec<(CommandIx, u32)> = Vec::new();
    let mut gates: Vec<u32> = Vec::new();
    for c in &plan.body {
        let (s, stream) = match c.queue {
            Queue::Device(stream) => (c.queue.index(), stream),
            Queue::Host => {
                if let Action::Wait { event } = c.action {
                    gates.push(event);
                }
                continue;
            }
        };
        let (ns, slowdown) = match &c.action {
            Action::Wait { event } => {
                events[s].push(*event);
                continue;
            }
            Action::Record { event } => {
                recorded[*event as usize] = last[s];
                continue;
            }
            Action::Launch { .. } => kernels.next().unwrap(),
            Action::Copy { src, .. } if s == 1 => (device.d2h_ns(src.bytes), 0),
            Action::Copy { src, .. } => (device.h2d_ns(src.bytes), 0),
            _ => continue,
        };
        let job = jobs.next_id();
        last[s] = Some(job);
        jobs.push(Job { stream, ns, slowdown, gate: false });
        let mut list = Vec::new();
        for event in events[s].drain(..) {
            match recorded[event as usize] {
                Some(command) => list.push(Wait { command, previous: false }),
                // Recorded later in the body: the previous step's.
                None => early.push((job, event)),
            }
        }
        waits.push(list);
    }
    for (job, event) in early {
        waits[job].push(Wait { command: recorded[event as usize].unwrap(), previous: true });
    }
    for event in gates {
        jobs[recorded[event as usize].unwrap()].gate = true;
    }
    simulate(device, &jobs, &waits).unwrap().step_ns
}

/// The updates that run on the host: those that the search chooses, or all that can.
fn on_host(source: &Module, profile: &DeviceProfile, u: &mut Unstructured<'_>) -> Result<HostOps> {
    let given = Instance::of_graph(source, profile, Poses::GIVEN).unwrap();
    let p = given.given().numbers();
    let all: Vec<String> = p.host_candidates().into_iter().map(|at| p.ops[at].name.clone()).collect();
    Ok(if all.is_empty() || u.arbitrary()? { HostOps::Best } else { HostOps::Named(all) })
}

#[test]
fn every_plan_of_a_random_step_is_proved_at_every_budget() {
    arbtest::arbtest(|u| {
        let mut source = random_step(u)?;
        // Swapped bytes are only well defined where no two ops compute the same value, which `cse` sees to.
        let cx = &mut memc_passes::PassCx::new(toy());
        memc_passes::Pipeline::parse("cse,dce").unwrap().run(&mut source, cx).unwrap();
        verify(&source).unwrap_or_else(|d| panic!("{}", memc_ir::print_annotated(&source, &d)));
        let profile: &DeviceProfile = *u.choose(&[toy(), &HALF_DUPLEX, &HOSTED])?;
        // The policy of every command that plans: the better of the orders worth trying, or the one as given.
        let order = if u.arbitrary()? { None } else { Some(Order::Given) };
        let search = Search { order, host: on_host(&source, profile, u)?, ..Search::default() };
        let instance = Instance::of_graph(&source, profile, search.poses()).unwrap_or_else(|e| panic!("{e}"));
        let given = &instance.candidates()[0];
        let kept = given.kept().evaluation.dev_bytes;
        prove(&source, &given.apply(given.kept()).unwrap(), kept);
        let working_set = |c: &memc::Candidate| c.numbers().largest_working_set().1;
        let reserve = instance.reserve_bytes;
        let smallest = instance.smallest(search.allow).unwrap();
        assert!(smallest - reserve <= kept.max(working_set(given)));
        let spread = (kept + reserve).saturating_sub(smallest);
        for budget in [smallest, smallest + spread / 4, smallest + spread / 2] {
            let outcome = instance.plan(budget, &search, &Silent).unwrap_or_else(|e| panic!("{budget}: {e}"));
            let (candidate, plan) =
                outcome.require(&instance, search.allow).unwrap_or_else(|e| panic!("{budget}: {e}"));
            assert!(plan.evaluation.dev_bytes + reserve <= budget);
            let module = candidate.apply(plan).unwrap();
            let lowered = prove(&source, &module, budget);
            let replayed = replayed(&module, &lowered, &candidate.numbers().device, profile);
            assert_eq!(replayed, plan.evaluation.step_ns, "the plan takes another time than was planned");
            let file =
                DecisionsFile { name: "decisions".into(), text: outcome.decisions(&instance).unwrap() };
            let posed = Instance::of_graph(&source, profile, file.poses()).unwrap();
            let again = posed.replay(&file, budget).unwrap_or_else(|e| panic!("{e}\n{}", file.text));
            let (candidate, carried_out) = again.of(&posed).unwrap();
            assert_eq!(carried_out.decisions, plan.decisions, "decisions do not read back\n{}", file.text);
            let carried_out = candidate.apply(carried_out).unwrap();
            assert_eq!(print(&carried_out), print(&module), "decisions do not replay");
        }
        let most = instance.candidates().iter().map(working_set).min().unwrap();
        let hopeless = (most + reserve).saturating_sub(64);
        let keeps = instance.candidates().iter().any(|c| c.kept().evaluation.dev_bytes + reserve <= hopeless);
        // A plan above may need less than the quick method knew of.
        let smallest = instance.smallest(search.allow).unwrap();
        if hopeless < smallest && !keeps {
            let outcome = instance.plan(hopeless, &search, &Silent).unwrap();
            let refused = outcome.require(&instance, search.allow);
            let Err(Error::Infeasible(refused)) = refused.map(|_| ()) else { panic!("it fits {hopeless}") };
            assert_eq!(refused.report.map(|report| report.smallest_bytes), Some(smallest));
        }
        Ok(())
    })
    .budget_ms(8_000);
}
