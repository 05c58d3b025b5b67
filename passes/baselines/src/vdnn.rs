//! vDNN: feature maps leave after their last use in the forward pass and come back a layer ahead (Rhu et al.,
//! vDNN, MICRO 2016, arXiv 1602.08124).
//!
//! As published: vDNN_all offloads the input feature maps of all layers, vDNN_conv those of convolution
//! layers alone. A map is copied out while its last consumer in the forward pass runs, and released
//! afterwards. In the backward pass every layer first starts the copies of one later layer: the nearest that
//! has an offloaded map which is not back (the search for the layer to prefetch). The search ends at a
//! convolution layer that has none. A map that was not prefetched is copied in when it is needed. Weights and
//! gradients stay, nothing is recomputed, and the budget changes nothing.
//!
//! The names are the paper's, without section numbers: this follows accounts of it in later papers and
//! reviews. The paper itself was not available.
//!
//! Not in those accounts (the paper describes chains of cuDNN layers), and decided here:
//! - A layer, in a graph of ops: in the backward pass, a run of ops up to the next one that reads the result
//!   of another forward op. A convolution is an op with "conv" in its label.
//! - Maps for the first layer of the backward pass stay, since they would be needed back at once.
//! - End of the forward pass: at the op with the most live bytes.
//! - A result of a forward op for the backward pass alone counts as an input of its layer.
//! - Synchronisation at the end of each layer: the next one waits where it takes the released bytes, not in
//!   general.
//! - vDNN_dyn and convolution algorithms, which trade workspace for time, are left out: a problem has one
//!   time per op.

use std::collections::BTreeMap;

use memc_ir::Bytes;
use memc_ir::{Id, Ids};
use memc_planner::{Action, Allow, Decisions, Found, NoPlan, Op, OpPos, Planner, Problem, Request, TensorId};

use super::walk::{Eviction, EvictionWalk, Facts, Policy, hoist, usage};

/// Offloads the inputs of all layers.
pub(super) const ALL: Planner = Planner {
    name: "vdnn-all",
    summary: "offloads every feature map in the forward pass and prefetches a layer ahead",
    source: "Rhu et al., vDNN, 2016",
    swaps: true,
    recomputes: false,
    plan: |p, request| plan(p, request, false),
};

/// Offloads the inputs of convolutions.
pub(super) const CONV: Planner = Planner {
    name: "vdnn-conv",
    summary: "offloads the inputs of convolutions in the forward pass and prefetches a layer ahead",
    source: "Rhu et al., vDNN, 2016",
    swaps: true,
    recomputes: false,
    plan: |p, request| plan(p, request, true),
};

/// True if an op is a convolution, going by its name.
pub(super) fn is_conv(op: &Op) -> bool {
    op.label.to_ascii_lowercase().contains("conv")
}

fn plan(p: &Problem, request: &Request<'_>, conv_only: bool) -> Result<Found, NoPlan> {
    let name = if conv_only { CONV.name } else { ALL.name };
    let facts = Facts::new(p);
    let mut policy = Offload::default();
    if request.allow.on(&p.device).swap {
        policy.choose(p, &facts, conv_only);
    }
    // Memory is not looked at on the way; the result either fits or does not.
    let open = Request { allow: Allow { recompute: false, ..request.allow }, capacity: u64::MAX, ..*request };
    let walk = EvictionWalk::new(p, &facts, &open, |_| true);
    let (decisions, _) = walk.run(&mut policy).map_err(|e| e.explain(p, name))?;
    let launches = launches(p, &facts, &policy);
    let lead = |t: TensorId, slot: usize| {
        let at = launches.get(&t).map_or(slot, |&l| l.index());
        (at, at)
    };
    let decisions = overlap(p, hoist(p, decisions, u64::MAX, &lead));
    let peak = usage(p, &decisions).into_iter().max().unwrap_or(0);
    if peak > request.capacity {
        return Err(NoPlan::Infeasible(format!("{name} needs {}, whatever the budget", Bytes(peak))));
    }
    Ok(Found { decisions, evaluations: 1 })
}

/// Feature maps to offload.
#[derive(Default)]
struct Offload {
    /// By the op that reads it last in the forward pass.
    after: BTreeMap<OpPos, Vec<TensorId>>,
    /// The position that needs each again.
    needed: BTreeMap<TensorId, OpPos>,
}

impl Offload {
    fn choose(&mut self, p: &Problem, facts: &Facts, conv_only: bool) {
        let layers = layers(p, facts);
        let second = layers.get(1).map_or(p.ops.next_id(), |l| l.first);
        for (t, tensor) in p.tensors.iter().filter(|(_, t)| !t.persistent()) {
            let Some((last, next)) = crossing(p, facts, t).filter(|c| c.1 >= second) else { continue };
            let forward = tensor.touches.iter().take_while(|&&i| i <= last);
            let mut of_layer = forward.filter(|&&i| !conv_only || is_conv(&p.ops[i]));
            let read = |i: &OpPos| p.ops[*i].reads.contains(&t);
            let unread = !tensor.touches.iter().take_while(|&&i| i <= last).any(read);
            if of_layer.any(|i| unread || read(i)) && p.ops[next].reads.contains(&t) {
                self.after.entry(last).or_default().push(t);
                self.needed.insert(t, next);
            }
        }
    }
}

/// The last touch of a tensor in the forward pass and the first in the backward pass.
pub(super) fn crossing(p: &Problem, facts: &Facts, t: TensorId) -> Option<(OpPos, OpPos)> {
    let touches = &p.tensors[t].touches;
    let k = touches.partition_point(|&x| x < facts.split);
    Some((*touches.get(k.checked_sub(1)?)?, *touches.get(k)?))
}

impl Policy for Offload {
    fn leave(&mut self, w: &EvictionWalk<'_>) -> Vec<(TensorId, Eviction)> {
        self.after.get(&w.position).into_iter().flatten().map(|&t| (t, Eviction::Swap)).collect()
    }
}

/// A layer of the backward pass: its first op, and whether it has a convolution.
struct Layer {
    first: OpPos,
    conv: bool,
}

fn layers(p: &Problem, facts: &Facts) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut current = None;
    for i in Ids::between(facts.split, p.ops.next_id()) {
        let op = &p.ops[i];
        let forward = |&t: &TensorId| {
            let tensor = &p.tensors[t];
            let saved = !tensor.persistent() && crossing(p, facts, t).is_some();
            tensor.touches.first().copied().filter(|_| saved)
        };
        let of = op.reads.iter().filter_map(forward).max();
        if layers.is_empty() || (of.is_some() && of != current) {
            layers.push(Layer { first: i, conv: false });
            current = of;
        }
        if let Some(layer) = layers.last_mut() {
            layer.conv |= is_conv(op);
        }
    }
    layers
}

/// For every offloaded tensor that is prefetched, the position before which its copy starts.
fn launches(p: &Problem, facts: &Facts, offload: &Offload) -> BTreeMap<TensorId, OpPos> {
    let layers = layers(p, facts);
    let of = |i: OpPos| layers.partition_point(|l| l.first <= i).saturating_sub(1);
    let mut wants: Vec<Vec<TensorId>> = vec![Vec::new(); layers.len()];
    for (&t, &next) in &offload.needed {
        wants[of(next)].push(t);
    }
    let mut out = BTreeMap::new();
    let mut fetched = vec![false; layers.len()];
    for (j, layer) in layers.iter().enumerate() {
        for k in j + 1..layers.len() {
            if !wants[k].is_empty() && !fetched[k] {
                fetched[k] = true;
                out.extend(wants[k].iter().map(|&t| (t, layer.first)));
                break;
            }
            if layers[k].conv && wants[k].is_empty() {
                break;
            }
        }
    }
    out
}

/// Starts copies to the host together with the op before them where that only reads the tensor.
fn overlap(p: &Problem, d: Decisions) -> Decisions {
    let mut actions: Vec<Action> = Vec::with_capacity(d.actions.len());
    let mut last_run = None;
    for action in d.actions {
        match (&action, last_run) {
            (Action::Out(t), Some((at, op))) if reads_only(p, op, *t) && !appears(&actions, at, *t) => {
                actions.insert(at, action);
                last_run = Some((at + 1, op));
            }
            (Action::Run(run), _) => {
                last_run = Some((actions.len(), run.op));
                actions.push(action);
            }
            _ => actions.push(action),
        }
    }
    Decisions { actions, ..d }
}

fn appears(actions: &[Action], run: usize, t: TensorId) -> bool {
    matches!(actions.get(run), Some(Action::Run(run)) if run.at.iter().any(|a| a.0 == t))
}

fn reads_only(p: &Problem, op: OpPos, t: TensorId) -> bool {
    let op = &p.ops[op];
    op.reads.contains(&t) && !op.writes.contains(&t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::evaluate;
    use memc_planner::sample::chain;

    const MB: u64 = 1 << 20;

    fn order(p: &Problem, d: &Decisions) -> Vec<String> {
        let name = |t: TensorId| p.tensors[t].name.clone();
        let word = |a: &Action| match a {
            Action::In((t, _)) => Some(format!("in {}", name(*t))),
            Action::Out(t) => Some(format!("out {}", name(*t))),
            Action::Run(run) => Some(p.ops[run.op].name.clone()),
            Action::Drop(_) => None,
        };
        d.actions.iter().filter_map(word).collect()
    }

    /// The published timeline, for a chain of four layers: each input leaves while its layer runs, and comes
    /// back while the layer behind it runs backward.
    #[test]
    fn offloads_with_the_consumer_and_prefetches_a_layer_ahead() {
        let p = chain(4, MB, 2 * MB, 2 * MB);
        let found = plan(&p, &Request::new(1 << 30), false).expect("it fits");
        assert_eq!(
            order(&p, &found.decisions),
            [
                "forward0",
                "out a0",
                "forward1",
                "out a1",
                "forward2",
                "out a2",
                "forward3",
                "in a2",
                "backward3",
                "in a1",
                "backward2",
                "in a0",
                "backward1",
                "backward0"
            ]
            .map(String::from)
        );
    }

    /// Copies that take no longer than the layers cost nothing.
    #[test]
    fn is_hidden_behind_long_layers() {
        let p = chain(8, MB, 2 * MB, 2 * MB);
        let found = plan(&p, &Request::new(1 << 30), false).expect("it fits");
        let e = evaluate(&p, found.decisions).expect("it runs").evaluation;
        assert!(e.swap_out_bytes > 0 && e.load_bytes < 5 * MB, "{e:?}");
        assert_eq!(e.stall_in_ns, 0);
    }

    /// The variant for convolutions offloads their inputs alone, and says what it needs below that.
    #[test]
    fn convolutions_alone() {
        let mut p = chain(4, MB, 2 * MB, 2 * MB);
        p.ops[OpPos(2)].label = "Conv_7".into();
        let found = plan(&p, &Request::new(1 << 30), true).expect("it fits");
        assert!(order(&p, &found.decisions).iter().filter(|w| w.starts_with("out")).eq(["out a1"]));
        let Err(NoPlan::Infeasible(why)) = plan(&p, &Request::new(2 * MB), true) else {
            panic!("it cannot fit")
        };
        assert!(why.contains("whatever the budget"), "{why}");
    }
}
