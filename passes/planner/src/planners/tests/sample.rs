//! Small problems for the tests of planners.

use crate::problem::{Device, Kind, Op, Problem, Tensor};

/// Link of 1 byte per ns in each direction.
pub(crate) fn device() -> Device {
    let rate = 1_000_000_000;
    Device { memory_bytes: 1 << 40, h2d_bytes_per_s: rate, d2h_bytes_per_s: rate, ..Device::default() }
}

/// A tensor of so many bytes.
pub(crate) fn tensor(name: &str, kind: Kind, size: u64) -> Tensor {
    Tensor { name: name.to_string(), bytes: 0, size, kind, touches: Vec::new(), writes: Vec::new() }
}

/// An op that may run again unless it updates in place.
pub(crate) fn op(name: &str, time_ns: u64, reads: &[u32], writes: &[u32]) -> Op {
    Op {
        name: name.to_string(),
        label: name.to_string(),
        time_ns,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        repeatable: !writes.iter().any(|t| reads.contains(t)),
        ..Op::default()
    }
}

/// `n` layers of one activation of `bytes` each, forward and backward: activation `i` is tensor `i`, made from `i - 1`,
/// the backward pass reads them in reverse; gradients are tensors `n + i` of 256 bytes.
pub(crate) fn chain(n: u32, bytes: u64, forward_ns: u64, backward_ns: u64) -> Problem {
    let mut tensors: Vec<Tensor> = (0..n).map(|i| tensor(&format!("a{i}"), Kind::Transient, bytes)).collect();
    tensors.extend((0..n).map(|i| tensor(&format!("g{i}"), Kind::Transient, 256)));
    let mut ops = Vec::new();
    for i in 0..n {
        let reads: Vec<u32> = i.checked_sub(1).into_iter().collect();
        ops.push(op(&format!("forward{i}"), forward_ns, &reads, &[i]));
    }
    for i in (0..n).rev() {
        let mut reads = vec![i];
        reads.extend((i + 1 < n).then_some(n + i + 1));
        ops.push(op(&format!("backward{i}"), backward_ns, &reads, &[n + i]));
    }
    Problem::new("chain", device(), tensors, ops).expect("the chain is a problem")
}

/// A training step with skips, several results per op, updates in place, inputs, outputs and workspaces.
pub(crate) fn random(u: &mut arbtest::arbitrary::Unstructured<'_>) -> arbtest::arbitrary::Result<Problem> {
    let layers = u.int_in_range(2..=9u32)?;
    let mut tensors = vec![tensor("x", Kind::Input, 256 * u.int_in_range(1..=8u64)?)];
    let mut ops: Vec<Op> = Vec::new();
    let (mut acts, mut weights, mut saved) = (vec![0u32], Vec::new(), Vec::new());
    let new = |tensors: &mut Vec<Tensor>, name: String, kind, bytes| {
        tensors.push(tensor(&name, kind, bytes));
        tensors.len() as u32 - 1
    };
    for i in 0..layers {
        let from = acts[acts.len() - 1];
        let skip = acts[u.int_in_range(0..=acts.len() - 1)?];
        let w = new(&mut tensors, format!("w{i}"), Kind::Persistent, 256 * u.int_in_range(1..=6u64)?);
        let a = new(&mut tensors, format!("a{i}"), Kind::Transient, 256 * u.int_in_range(1..=16u64)?);
        let s = new(&mut tensors, format!("s{i}"), Kind::Transient, 256 * u.int_in_range(1..=4u64)?);
        let mut writes = vec![a];
        writes.extend(u.arbitrary::<bool>()?.then_some(s));
        let label = if u.arbitrary()? { "conv" } else { "relu" };
        let mut reads = vec![from, skip, w];
        let mut kept = writes.clone();
        if u.ratio(1, 3)? {
            // A mask: it appears where it is first read, and the backward pass reads it again.
            let m = new(&mut tensors, format!("s_mask{i}"), Kind::Transient, 256 * u.int_in_range(1..=4u64)?);
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
        let g = new(&mut tensors, format!("g{i}"), Kind::Transient, 256 * u.int_in_range(1..=16u64)?);
        let gw = new(&mut tensors, format!("gw{i}"), Kind::Transient, 256 * u.int_in_range(1..=6u64)?);
        let mut reads = vec![*from, weights[i]];
        reads.extend(writes.iter().filter(|&&t| tensors[t as usize].name.starts_with('s') || i % 2 == 0));
        reads.extend(grad);
        let mut o = op(&format!("b{i}"), u.int_in_range(1..=9000)?, &reads, &[g, gw]);
        if i == 0 {
            o.outputs = vec![(g, 256)];
        }
        ops.push(o);
        ops.push(op(&format!("u{i}"), 100, &[gw, weights[i]], &[weights[i]]));
        grad = Some(g);
    }
    Ok(Problem::new("random", device(), tensors, ops).expect("the sample is a problem"))
}
