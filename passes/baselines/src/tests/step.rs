//! Random training steps for the tests of planners.

use memc_planner::sample::{device, op, tensor};
use memc_planner::{Op, Problem, Tensor, TensorId, TensorKind};

/// A training step with skips, several results per op, updates in place, inputs, outputs and workspaces.
pub(crate) fn random(u: &mut arbtest::arbitrary::Unstructured<'_>) -> arbtest::arbitrary::Result<Problem> {
    let layers = u.int_in_range(2..=9u32)?;
    let mut tensors = vec![tensor("x", TensorKind::Input, 256 * u.int_in_range(1..=8u64)?)];
    let mut ops: Vec<Op> = Vec::new();
    let (mut acts, mut weights, mut saved) = (vec![0u32], Vec::new(), Vec::new());
    let new = |tensors: &mut Vec<Tensor>, name: String, kind, bytes| {
        tensors.push(tensor(&name, kind, bytes));
        tensors.len() as u32 - 1
    };
    for i in 0..layers {
        let from = acts[acts.len() - 1];
        let skip = acts[u.int_in_range(0..=acts.len() - 1)?];
        let w = new(&mut tensors, format!("w{i}"), TensorKind::Persistent, 256 * u.int_in_range(1..=6u64)?);
        let a = new(&mut tensors, format!("a{i}"), TensorKind::Transient, 256 * u.int_in_range(1..=16u64)?);
        let s = new(&mut tensors, format!("s{i}"), TensorKind::Transient, 256 * u.int_in_range(1..=4u64)?);
        let mut writes = vec![a];
        writes.extend(u.arbitrary::<bool>()?.then_some(s));
        let label = if u.arbitrary()? { "conv" } else { "relu" };
        let mut reads = vec![from, skip, w];
        let mut kept = writes.clone();
        if u.ratio(1, 3)? {
            // A mask: it appears where it is first read, and the backward pass reads it again.
            let m = new(
                &mut tensors,
                format!("s_mask{i}"),
                TensorKind::Transient,
                256 * u.int_in_range(1..=4u64)?,
            );
            reads.push(m);
            kept.push(m);
        }
        let mut o = op(&format!("f{i}"), u.int_in_range(1..=5000)?, &reads, &writes);
        o.label = format!("{label}{i}");
        o.workspace = 256 * u.int_in_range(0..=2u64)?;
        o.repeatable = u.ratio(7, 8)?;
        ops.push(o);
        if u.ratio(1, 4)? {
            ops.push(op(&format!("inplace{i}"), 300, &[a], &[a]));
        }
        saved.push((from, kept));
        acts.push(a);
        weights.push(w);
    }
    let mut grad = None;
    for i in (0..layers as usize).rev() {
        let (from, writes) = &saved[i];
        let g = new(&mut tensors, format!("g{i}"), TensorKind::Transient, 256 * u.int_in_range(1..=16u64)?);
        let gw = new(&mut tensors, format!("gw{i}"), TensorKind::Transient, 256 * u.int_in_range(1..=6u64)?);
        let mut reads = vec![*from, weights[i]];
        reads.extend(writes.iter().filter(|&&t| tensors[t as usize].name.starts_with('s') || i % 2 == 0));
        reads.extend(grad);
        let mut o = op(&format!("b{i}"), u.int_in_range(1..=9000)?, &reads, &[g, gw]);
        if i == 0 {
            o.outputs = vec![(TensorId(g), 256)];
        }
        ops.push(o);
        ops.push(op(&format!("u{i}"), 100, &[gw, weights[i]], &[weights[i]]));
        grad = Some(g);
    }
    Ok(Problem::new("random", device(), tensors, ops).expect("the sample is a problem"))
}
