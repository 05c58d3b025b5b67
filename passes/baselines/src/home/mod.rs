//! HOME (He et al., "HOME: A Holistic GPU Memory Management Framework for Deep Learning", IEEE Transactions
//! on Computers 2022).
//!
//! As published:
//! - Sec. 3.3: a particle is a policy, an action for every feature map: 0 retains it, 1 swaps it, 2
//!   recomputes it.
//! - Sec. 3.3, Algorithm 1: random particles are evaluated and updated, iteration after iteration. The best
//!   policy ever seen is the result.
//! - Sec. 3.5, Algorithm 3: in every particle every action in turn becomes that of the best particle of the
//!   last iteration, or that of the particle's own best policy. The lower cost decides, with the rest as it
//!   is.
//! - Sec. 3.4, Algorithm 2, Fig. 4, swap-outs: they run beside the computation as soon as the map is there,
//!   also beside the op that uses it last in forward propagation (OFFLOAD2 beside FWD3). Where memory does
//!   not suffice they are waited for, the first one first.
//! - Sec. 3.4, swap-ins: a swapped map comes back while the stage before the one that needs it runs.
//! - Sec. 3.4, recomputation: a map is released after its last use and recomputed before its next one, which
//!   may require that others are recomputed too (Sec. 2.2).
//!
//! The paper is silent, or contradicts itself, and here:
//! - Sec. 3.6 lets copies to the host begin when forward propagation needs a tensor no longer. Here, as in
//!   Fig. 4, only its release waits for that;
//! - a feature map, where ops are no layers: a transient tensor that waits, read later, across the point of
//!   the step where the most bytes wait. That is where the propagation turns. Everything else is retained,
//!   parameters too;
//! - a stage of the backward propagation: from one op that needs a feature map first to the next such op;
//! - a policy that exceeds memory (Algorithm 2 returns an error): it costs more than any that does not, by
//!   the bytes above memory, so that the update has a direction;
//! - a map without room to come back yet comes as soon as there is room, at the latest for its op;
//! - a recomputed tensor stays until its last use if it is a feature map, else until the op that needed it
//!   has run;
//! - a policy with more than three recomputations for every op is impossible;
//! - particles are drawn each from its own random mix of the three actions;
//! - velocities, inertia and coefficients of particle swarms: the published update has none;
//! - Fig. 5 shows the candidates 2 and 0 for the first tensor, where Algorithm 3 and the text's own best
//!   policy give 2 and 1. The algorithm decides;
//! - the budget: 500 particles and 500 iterations of Algorithm 3 are 2 n evaluations for each update of a
//!   particle, and the search times of Table 3 leave room for one. Here evaluations are bounded, by 6 million
//!   runs of ops at effort 0 and four times as many at each effort above. There are as many particles as
//!   leave ten iterations that evaluate every other action once, up to 500. Where both actions are the same,
//!   or one is that of the particle, nothing is evaluated anew. The search ends where an iteration changes
//!   nothing, after about ten;
//! - the order is the problem's.
//!
//! The method ends where everything that is no feature map, parameters above all, leaves no room.

mod cost;
mod maps;
#[cfg(test)]
mod tests;

use memc_ir::Bytes;
use memc_planner::{Alive, Found, NoPlan, Planner, Problem, Progress, Request, evaluate};
use rayon::prelude::*;

use self::cost::{Cost, IMPOSSIBLE, Model};
use self::maps::Net;
use super::random::Random;

/// HOME.
pub(super) const PLANNER: Planner = Planner {
    name: "home",
    summary: "particle swarm over retaining, swapping or recomputing every feature map",
    source: "He et al., HOME, IEEE Transactions on Computers 2022",
    swaps: true,
    recomputes: true,
    plan,
};

/// Runs of ops evaluated at effort 0.
const OPS: u64 = 6_000_000;
/// m and iters of Sec. 3.3.
const PARTICLES: u64 = 500;
/// Iterations for which particles are given up.
const ITERATIONS: u64 = 10;

/// A policy, what it costs, and the best that it has been.
#[derive(Clone)]
struct Particle {
    policy: Vec<u8>,
    cost: Cost,
    best: Vec<u8>,
    best_cost: Cost,
}

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let net = Net::new(p, request.allow.on(&p.device).swap, request.allow.recompute);
    let budget = (OPS << (2 * request.effort.min(5))) / p.ops.len().max(1) as u64;
    let n = net.maps.len().max(1) as u64;
    let particles = (2 * budget / (ITERATIONS * n)).clamp(4, PARTICLES) as usize;
    let mut swarm: Vec<Particle> = (0..particles)
        .into_par_iter()
        .map_init(|| Model::new(&net, request.capacity), |model, i| particle(&net, model, i, request.seed))
        .collect();
    let mut evaluations = particles as u64;
    let mut best = swarm.iter().min_by_key(|x| x.cost).cloned();
    let mut teller = Teller { request, model: Model::new(&net, request.capacity), best: IMPOSSIBLE };
    teller.tell(&swarm, best.as_ref(), evaluations);
    let mut iteration = 1;
    while let Some(last) = swarm.iter().min_by_key(|x| x.cost).map(|x| x.policy.clone()) {
        if iteration >= PARTICLES || evaluations >= budget || (request.stop)() {
            break;
        }
        let moved: Vec<(Particle, u64, bool)> = swarm
            .into_par_iter()
            .map_init(
                || Model::new(&net, request.capacity),
                |model, x| advance(x, &last, model, request.stop),
            )
            .collect();
        evaluations += moved.iter().map(|m| m.1).sum::<u64>();
        let still = moved.iter().all(|m| !m.2);
        swarm = moved.into_iter().map(|m| m.0).collect();
        best = swarm.iter().chain(&best).min_by_key(|x| x.cost).cloned();
        teller.tell(&swarm, best.as_ref(), evaluations);
        // Nothing is random after the first particles: where nothing changes, nothing will.
        if still {
            break;
        }
        iteration += 1;
    }
    let mut model = teller.model;
    let best = best.map(|x| x.policy).unwrap_or_default();
    match model.evaluate(&best) {
        Cost { over: 0, .. } => Ok(Found { decisions: model.genotype(&best).decisions(p), evaluations }),
        cost => {
            let lacking = if cost == IMPOSSIBLE {
                String::new()
            } else {
                format!(", the best lacks {}", Bytes(cost.over))
            };
            Err(NoPlan::Infeasible(format!(
                "none of {evaluations} policies for {} feature maps fits {}{lacking}; all else is retained",
                net.maps.len(),
                Bytes(request.capacity)
            )))
        }
    }
}

/// Tells of the search as it goes on.
struct Teller<'a> {
    request: &'a Request<'a>,
    model: Model<'a>,
    /// Cost of the best policy that was told of.
    best: Cost,
}

impl Teller<'_> {
    /// Tells of a swarm, and of the best policy if it is a better one. Its time is that of the plan, which
    /// the model only estimates.
    fn tell(&mut self, swarm: &[Particle], best: Option<&Particle>, evaluations: u64) {
        let fits = swarm.iter().filter(|x| x.cost.over == 0);
        (self.request.alive)(&Alive { evaluations, step_ns: fits.map(|x| x.cost.ns).collect() });
        let Some(best) = best.filter(|x| x.cost.over == 0 && x.cost < self.best) else { return };
        self.best = best.cost;
        self.model.evaluate(&best.policy);
        let decisions = self.model.genotype(&best.policy).decisions(self.model.problem());
        let found = evaluate(self.model.problem(), decisions).map(|schedule| schedule.evaluation);
        if let Some(e) = found.ok().filter(|e| e.dev_bytes <= self.request.capacity) {
            (self.request.watch)(Progress { step_ns: e.step_ns, evaluations });
        }
    }
}

/// A random particle.
fn particle(net: &Net<'_>, model: &mut Model<'_>, i: usize, seed: u64) -> Particle {
    let mut random = Random::new(seed, i as u64);
    let mix = [random.unit(), random.unit(), random.unit()];
    let mut draw = |actions: &[u8]| {
        let total: f64 = actions.iter().map(|&a| mix[usize::from(a)]).sum();
        let mut left = random.unit() * total;
        let found = actions.iter().find(|&&a| {
            left -= mix[usize::from(a)];
            left < 0.0
        });
        found.copied().unwrap_or(actions[0])
    };
    let policy: Vec<u8> = net.maps.values().map(|map| draw(&map.actions)).collect();
    let cost = model.evaluate(&policy);
    Particle { best: policy.clone(), policy, cost, best_cost: cost }
}

/// A particle after an iteration, how many policies were evaluated, and whether it has changed.
fn advance(
    mut x: Particle,
    last: &[u8],
    model: &mut Model<'_>,
    stop: &(dyn Fn() -> bool + Sync),
) -> (Particle, u64, bool) {
    let mut evaluations = 0;
    let mut policy = x.policy.clone();
    let cost = update(&mut policy, x.cost, last, &x.best, &mut |policy| {
        if stop() {
            return IMPOSSIBLE;
        }
        evaluations += 1;
        model.evaluate(policy)
    });
    x.cost = if stop() { model.evaluate(&policy) } else { cost };
    let better = x.cost < x.best_cost;
    let changed = better || policy != x.policy;
    x.policy = policy;
    if better {
        x.best.clone_from(&x.policy);
        x.best_cost = x.cost;
    }
    (x, evaluations, changed)
}

/// Algorithm 3 for one particle of a known cost: every action becomes that of `last` or that of `best`, by
/// the cost of either. Returns the cost; what the policy is already is not evaluated again.
fn update(
    policy: &mut [u8],
    cost: Cost,
    last: &[u8],
    best: &[u8],
    evaluate: &mut dyn FnMut(&[u8]) -> Cost,
) -> Cost {
    let mut known = Some(cost);
    for j in 0..policy.len() {
        let now = policy[j];
        if last[j] == best[j] {
            policy[j] = last[j];
            known = known.filter(|_| now == last[j]);
            continue;
        }
        let mut of = |action: u8| match known {
            Some(cost) if now == action => cost,
            _ => {
                policy[j] = action;
                evaluate(policy)
            }
        };
        let (one, two) = (of(last[j]), of(best[j]));
        (policy[j], known) = if one < two { (last[j], Some(one)) } else { (best[j], Some(two)) };
    }
    known.unwrap_or_else(|| evaluate(policy))
}
