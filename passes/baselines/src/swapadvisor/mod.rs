//! SwapAdvisor (Huang, Jin, Li, "SwapAdvisor: Pushing Deep Learning Beyond the GPU Memory Limit via Smart
//! Swapping", ASPLOS 2020).
//!
//! As published:
//! - Sec. 4.1: a schedule is any topological order. Memory is a pool of size classes with a number of objects
//!   each. Swaps run on one stream for each direction, beside the computation.
//! - Sec. 4.2, victims: a tensor that finds no free object in its class evicts one of that class. The victim
//!   is the tensor needed furthest in the future (Belady), among those last used at least a threshold of time
//!   ago.
//! - Sec. 4.2, double pass: the second scan begins with the parameters that the first left on the device. It
//!   removes one where there is pressure that the first scan did not have.
//! - Sec. 4.2, times: a swap-out starts once the last op that used the tensor has run, the swap-in into its
//!   object once the swap-out is done, the op once the swap-in is done.
//! - Sec. 5.1: every pair of parents has two child schedules and two child pools, so four children. N_p = 144
//!   (Sec. 6.1). An individual survives with a probability by Eq. 1, the softmax of (T_best - t) / T_best.
//! - Sec. 5.2: crossover of schedules (Fig. 4); mutation by a scheduler that takes any ready op with
//!   probability P.
//! - Sec. 5.3: CLS and CNT, their crossover with CNT_EXT and averages, repair by inverse proportion (Fig. 5),
//!   mutation by one step of CLS and a normal distribution for CNT.
//! - Sec. 6.4, Fig. 10: the search over schedules alone is `swapadvisor-order`, that over pools alone
//!   `swapadvisor-pool`.
//!
//! The method as printed does not evolve, and here:
//! - Eq. 1 gives the best individual e times the chance of one twice as slow. That tells schedules of RNNs
//!   apart, of which some are a hundred times as slow, but not pools, of which few are twice as slow. The
//!   exponent is multiplied by 30;
//! - P = 10 % of the ops of a schedule is a hundred at once. The paper takes 10 % as the start of a search
//!   for each model's P (Sec. 6.1). Every child draws its own, from 0.1 % to 10 %, logarithmically uniform;
//! - the best individual survives, whose time is T_best.
//!
//! The paper is silent, and here:
//! - the first generation: half of the schedules are the given one, which Sec. 4 calls a legitimate initial
//!   value, the others random. Size classes end after a size with a probability drawn for each individual.
//!   Memory goes to the classes by random weights times the bytes of their tensors;
//! - a pool that no op could run in: counts are raised to the objects that an op needs at once, and are not
//!   repaired below that;
//! - a pool that then exceeds memory: it has no time, and does not survive while another does. In the first
//!   generation it is drawn anew, in the end with the classes of the smallest pool that every op could run
//!   in;
//! - no class has more objects than there are tensors for it;
//! - the number of children: as many as survivors. Parents are paired at random, an individual survives once
//!   (sampling without replacement);
//! - the part that is not searched: the given order for pools. For schedules the classes of the smallest pool
//!   that every op could run in, and memory by the bytes of their tensors;
//! - scratch space is a tensor of its op;
//! - the threshold: the time of the copy of an object of the class to the device; without a candidate older
//!   than that, any;
//! - ties of Belady's rule: the tensor unused for longest. A parameter is next needed in the next iteration;
//! - the choice of a free object: the one free for longest. A parameter returns to the object in which the
//!   step found it;
//! - a parameter that ends the step elsewhere, or not on the device, is no initial resident, and the second
//!   pass repeats;
//! - a tensor whose content host memory holds already, or that is overwritten next, is released without a
//!   copy;
//! - swap-ins run in the order in which their objects become free, then in the order of the ops that need
//!   them; swap-outs in the order in which tensors become free;
//! - the deviation of CNT's mutation: half of the count, at least one. CNT follows a mutated CLS through
//!   CNT_EXT;
//! - the time of an individual: that of a step in steady state, which may overlap the next one's copies.
//!
//! The paper searches for 30 minutes on 72 virtual cores. Here the number of evaluated ops is bounded:
//! 320,000 at effort 0, and four times as many at each effort above. That is 3,700 individuals of 1,400 ops
//! at effort 2. A search also ends, as the paper's does not, after 200 generations without a better
//! individual, or as many as there are ops if those are more. Few ops have few schedules and pools; at effort
//! 2 more than 178 ops do not get that many generations.
//!
//! The method ends where no mapping of sizes to classes gives every op its objects within the budget. It does
//! not recompute.

mod engine;
mod graph;
mod pool;
mod swap;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use memc_ir::{Arena, Bytes};
use memc_planner::{Alive, Found, NoPlan, OpPos, Planner, Problem, Progress, Request};
use rayon::prelude::*;

use self::engine::{Augmented, decisions};
use self::graph::Graph;
use self::pool::Pool;
use super::random::Random;

/// SwapAdvisor.
pub(super) const PLANNER: Planner = Planner {
    name: "swapadvisor",
    summary: "genetic search over the order and a size-class pool, Belady swapping",
    source: "Huang et al., SwapAdvisor, ASPLOS 2020",
    swaps: true,
    recomputes: false,
    plan: |p, request| plan(p, request, Genes { order: true, pool: true }),
};

/// With one pool.
pub(super) const ORDER: Planner = Planner {
    name: "swapadvisor-order",
    summary: "as `swapadvisor`, searches the order alone",
    source: "Huang et al., SwapAdvisor, 2020, figure 10",
    plan: |p, request| plan(p, request, Genes { order: true, pool: false }),
    ..PLANNER
};

/// In the given order.
pub(super) const POOL: Planner = Planner {
    name: "swapadvisor-pool",
    summary: "as `swapadvisor`, searches the pool alone",
    source: "Huang et al., SwapAdvisor, 2020, figure 10",
    plan: |p, request| plan(p, request, Genes { order: false, pool: true }),
    ..PLANNER
};

/// N_p, the number of individuals that survive.
const POPULATION: usize = 144;
/// P, the most and the least probability of a child's mutations.
const MUTATION: (f64, f64) = (0.1, 0.001);
/// Factor of the exponents of Eq. 1.
const SHARPNESS: f64 = 30.0;
/// Ops evaluated at effort 0.
const OPS: u64 = 320_000;
/// Generations without an individual that has a time, after which the search ends.
const HOPELESS: u64 = 4;
/// Generations without a better individual, after which the search ends, unless there are more ops.
const STALE: u64 = 200;
/// Random pools drawn for an individual of the first generation until one fits.
const DRAWS: usize = 64;

/// Parts of the chromosome that the search varies.
#[derive(Clone, Copy, Debug)]
struct Genes {
    order: bool,
    pool: bool,
}

/// A chromosome and its time in ns; none if no op order runs in its pool.
#[derive(Clone, Debug)]
struct Individual {
    order: Arc<Vec<OpPos>>,
    pool: Pool,
    time: Option<u64>,
}

fn plan(p: &Problem, request: &Request<'_>, genes: Genes) -> Result<Found, NoPlan> {
    let genes = Genes { order: genes.order && request.allow.reorder, ..genes };
    let g = Graph::new(p, request.capacity, request.allow.on(&p.device).swap);
    let budget = OPS << (2 * request.effort.min(5));
    let generations = budget / (p.ops.len().max(1) * POPULATION) as u64;
    let mut population = first(&g, request, genes);
    let mut evaluations = population.len() as u64;
    let mut best: Option<Individual> = None;
    let tell = |best: &mut Option<Individual>, individuals: &[Individual], evaluations: u64| {
        let better = keep_best(best, individuals);
        if let Some(step_ns) = best.as_ref().and_then(|b| b.time).filter(|_| better) {
            (request.watch)(Progress { step_ns, evaluations });
        }
        better
    };
    tell(&mut best, &population, evaluations);
    alive(request, &population, evaluations);
    let (stale, mut better) = (STALE.max(p.ops.len() as u64), 0);
    for generation in 1..generations.max(2) {
        let hopeless = best.is_none() && generation >= HOPELESS;
        if (request.stop)() || hopeless || generation - better > stale {
            break;
        }
        let children = children(&g, request, genes, &population, generation);
        evaluations += children.len() as u64;
        if tell(&mut best, &children, evaluations) {
            better = generation;
        }
        population.extend(children);
        let fastest = best.as_ref().and_then(|b| b.time).unwrap_or(1);
        population = survivors(population, fastest, &mut Random::new(request.seed, stream(generation, 0)));
        alive(request, &population, evaluations);
    }
    let Some(best) = best else {
        return Err(NoPlan::Infeasible(format!(
            "none of {evaluations} size-class pools has an object for every tensor of every op within {}",
            Bytes(request.capacity)
        )));
    };
    let moves = g
        .plan(&best.order, &best.pool)
        .ok_or_else(|| NoPlan::Failed("a plan is not found a second time".into()))?;
    Ok(Found { decisions: decisions(&g, &best.order, &best.pool, &moves), evaluations })
}

/// Tells of the individuals that are alive.
fn alive(request: &Request<'_>, population: &[Individual], evaluations: u64) {
    (request.alive)(&Alive { evaluations, step_ns: population.iter().filter_map(|x| x.time).collect() });
}

/// Stream of random numbers for a part of a generation.
fn stream(generation: u64, part: usize) -> u64 {
    (generation << 20) + part as u64
}

/// Keeps the fastest; true if that is a new one.
fn keep_best(best: &mut Option<Individual>, individuals: &[Individual]) -> bool {
    let mut better = false;
    for individual in individuals {
        if let Some(time) = individual.time
            && best.as_ref().and_then(|b| b.time).is_none_or(|b| time < b)
        {
            *best = Some(individual.clone());
            better = true;
        }
    }
    better
}

/// The time of a step of an individual whose pool is repaired.
fn evaluate(g: &Graph<'_>, order: Arc<Vec<OpPos>>, mut pool: Pool) -> Individual {
    let time = pool.fit(&g.sizes, g.capacity).then(|| {
        let moves = g.plan(&order, &pool)?;
        Augmented::new(g, &order, &pool, &moves).step_ns(g)
    });
    Individual { order, pool, time: time.flatten() }
}

/// Sec. 5.1: the first generation.
fn first(g: &Graph<'_>, request: &Request<'_>, genes: Genes) -> Vec<Individual> {
    let given: Arc<Vec<OpPos>> = Arc::new(g.p.ops.ids().collect());
    let tightest = g.sizes.tightest();
    let individual = |i: usize| {
        let mut random = Random::new(request.seed, stream(0, i));
        let order = match genes.order && i % 2 == 1 {
            true => Arc::new(g.precedence.vary(&given, 1.0, &mut random)),
            false => given.clone(),
        };
        if !genes.pool {
            return evaluate(g, order, Pool::share(tightest.clone(), &g.sizes, g.capacity, || 1.0));
        }
        let mut pools = (0..DRAWS).map(|_| Pool::random(&g.sizes, g.capacity, &mut random));
        let pool = pools.find(|pool| pool.clone().fit(&g.sizes, g.capacity));
        let pool =
            pool.unwrap_or_else(|| Pool::share(tightest.clone(), &g.sizes, g.capacity, || random.unit()));
        evaluate(g, order, pool)
    };
    (0..POPULATION).into_par_iter().map(individual).collect()
}

/// Sec. 5.1: as many children as there are individuals, by crossover and mutation.
fn children(
    g: &Graph<'_>,
    request: &Request<'_>,
    genes: Genes,
    parents: &[Individual],
    generation: u64,
) -> Vec<Individual> {
    let mut random = Random::new(request.seed, stream(generation, 1));
    let mut pairs: Vec<usize> = (0..parents.len()).collect();
    for i in (1..pairs.len()).rev() {
        pairs.swap(i, random.below(i + 1));
    }
    // Where one part alone is searched there are two children of a pair instead of four.
    let each = (1 + usize::from(genes.order)) * (1 + usize::from(genes.pool));
    let mut children = Vec::new();
    for pair in pairs.chunks_exact(2).take(parents.len() / each) {
        let (a, b) = (&parents[pair[0]], &parents[pair[1]]);
        let schedules = if genes.order {
            let cut = random.below(a.order.len()) + 1;
            [cross(&a.order, &b.order, cut), cross(&b.order, &a.order, cut)].map(Arc::new).to_vec()
        } else {
            vec![a.order.clone()]
        };
        let pools = if genes.pool {
            Pool::cross(&a.pool, &b.pool, random.below(g.sizes.bytes.len()) + 1).to_vec()
        } else {
            vec![a.pool.clone()]
        };
        for schedule in &schedules {
            children.extend(pools.iter().map(|pool| (schedule.clone(), pool.clone())));
        }
    }
    let mutated = |(i, (order, pool)): (usize, (Arc<Vec<OpPos>>, Pool))| {
        let mut random = Random::new(request.seed, stream(generation, 2 + i));
        let (most, least) = MUTATION;
        let probability = most * (least / most).powf(random.unit());
        let order = match genes.order {
            true => Arc::new(g.precedence.vary(&order, probability, &mut random)),
            false => order,
        };
        let pool = if genes.pool { pool.mutate(probability, &mut random) } else { pool };
        evaluate(g, order, pool)
    };
    children.into_par_iter().enumerate().map(mutated).collect()
}

/// Sec. 5.2, Fig. 4: the first `cut` ops of the second schedule, and the rest in the order of the first.
fn cross(first: &[OpPos], second: &[OpPos], cut: usize) -> Vec<OpPos> {
    let mut taken: Arena<OpPos, bool> = Arena::filled(false, first.len());
    let mut child: Vec<OpPos> = second.iter().copied().take(cut).collect();
    for &op in &child {
        taken[op] = true;
    }
    child.extend(first.iter().copied().filter(|&op| !taken[op]));
    child
}

/// Eq. 1: survivors drawn without replacement, each with the probability of its weight among those left (by
/// the keys of Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006), but for one as
/// fast as the best.
fn survivors(population: Vec<Individual>, best: u64, random: &mut Random) -> Vec<Individual> {
    let mut kept = false;
    let mut keyed: Vec<(f64, Individual)> = population
        .into_iter()
        .map(|individual| {
            let exponent = individual.time.map(|t| SHARPNESS * (1.0 - t as f64 / best.max(1) as f64));
            // The logarithm of a key u^(1/weight), negated, as a logarithm once more so that no weight
            // vanishes.
            let noise = (-(1.0 - random.unit()).ln()).max(f64::MIN_POSITIVE).ln();
            if individual.time == Some(best) && !std::mem::replace(&mut kept, true) {
                return (f64::NEG_INFINITY, individual);
            }
            (exponent.map_or(f64::INFINITY, |e| noise - e), individual)
        })
        .collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    keyed.truncate(POPULATION);
    keyed.into_iter().map(|(_, individual)| individual).collect()
}
