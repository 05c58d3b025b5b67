//! A population of choices: a genetic algorithm whose children are improved by local search (a memetic
//! algorithm; Moscato, 1989).
//!
//! Genes are the order of the ops, what is done with each tensor, the duals by which gaps are chosen with the
//! cost of recomputation among them, and whether slots are packed or may be objects of a pool with size
//! classes.
//!
//! - Crossover of the order: one parent's up to a cut, then the other's. Both keep to the precedence, and so
//!   does the child.
//! - Crossover of tensors: those of one kind follow one parent together. As in a particle swarm (Kennedy and
//!   Eberhart, 1995) each kind stays as it is, or moves to the best of all, or to the other parent; duals
//!   move part of the way.
//! - Greedy choice then mends what does not fit, and large-neighbourhood search improves the child, which
//!   takes the place of the worst if it is faster.

use std::collections::BTreeMap;

use memc_ir::Arena;
use rayon::prelude::*;

use super::duals::Duals;
use super::headroom::First;
use super::lns::Random;
use super::recompute::Wanted;
use super::state::{Permissions, State};
use super::{Common, DECODES, Run, import, recompute, select};
use crate::access_sequence::AccessSequence;
use crate::decisions::Decisions;
use crate::error::DecisionsError;
use crate::ids::{OpPos, TensorId};
use crate::planner::Alive;

/// Genes of the first generation besides its orders.
struct Setting {
    /// Rate at which duals learn.
    rate: f64,
    /// Cost of recomputing an op compared to its time, when a copy's time counts once.
    recompute: f64,
    /// Whether states may be on both sides when a step begins. That frees copies of their time, and hides
    /// plans that do without.
    shadow: bool,
    /// See [`Duals::across`].
    across: f64,
    /// See [`First::pooled`].
    pooled: bool,
}

const SETTINGS: [Setting; 6] = [
    Setting { rate: 1.0, recompute: 16.0, shadow: true, across: 1.0, pooled: false },
    Setting { rate: 4.0, recompute: 4.0, shadow: true, across: 1.0, pooled: true },
    Setting { rate: 2.0, recompute: 1.0, shadow: false, across: 1.0, pooled: false },
    Setting { rate: 64.0, recompute: 64.0, shadow: true, across: 1.0, pooled: false },
    Setting { rate: 4.0, recompute: 16.0, shadow: false, across: 0.0, pooled: true },
    Setting { rate: 2.0, recompute: 4.0, shadow: true, across: 0.0, pooled: false },
];

/// Settings that a [`glance`] is taken at.
const GLANCED: usize = 2;

/// Individuals.
const SIZE: usize = 8;

/// Children of a generation, and generations.
const CHILDREN: usize = 4;
const GENERATIONS: usize = 16;

/// Individuals whose layouts are searched.
const FINALISTS: usize = 4;

/// The last generation.
pub(super) struct Population<'a> {
    /// The fastest, each with a number of its own to draw from.
    pub(super) best: Vec<(First<'a>, u64)>,
    /// The search that came upon the best plan on the way, if one did.
    pub(super) run: Option<Run<'a>>,
    /// Plans that were evaluated.
    pub(super) evaluations: u64,
}

/// Evolves choices that start from orders of the ops and from decisions.
pub(super) fn evolve<'a>(
    common: &Common<'a>,
    starts: &[Vec<OpPos>],
    known: &[Decisions],
) -> Result<Population<'a>, DecisionsError> {
    let mut population = Population { best: Vec::new(), run: None, evaluations: 0 };
    if common.planned && (common.request.stop)() {
        return Ok(population);
    }
    let mut all = first(common, starts, known, &mut population.evaluations);
    tell(common, &all, population.evaluations);
    let founders = common.request.restarts.then(|| all.clone());
    let share = common.limits.work / (GENERATIONS * CHILDREN) as u64 * 3;
    for generation in 0..GENERATIONS as u64 {
        let found = population.run.as_ref().is_some_and(Run::done);
        let done = found || all.first().is_none_or(|best| best.value <= common.floor);
        if done || share == 0 || (common.request.stop)() {
            break;
        }
        let children: Vec<Result<(First<'a>, Run<'a>), DecisionsError>> = (0..CHILDREN as u64)
            .into_par_iter()
            .map(|i| {
                let nth = generation * CHILDREN as u64 + i;
                let seed = common.request.seed ^ (1 + nth).wrapping_mul(GOLDEN);
                let mut run = Run::new(common, Random(seed));
                // The first children are improved parents.
                let parent = (generation == 0 || founders.is_some()).then_some(nth as usize);
                let parents = founders.as_ref().unwrap_or(&all);
                let First { state, duals, pooled, .. } = breed(&mut run, parents, parent);
                let (value, state) = run.lns(state, &duals, share)?;
                Ok((First { value, state, duals, pooled }, run))
            })
            .collect();
        for child in children {
            let (child, mut run) = child?;
            population.evaluations += std::mem::take(&mut run.evaluations);
            all.push(child);
            let best = population.run.as_ref().and_then(Run::key);
            if run.key().is_some_and(|key| best.is_none_or(|best| key < best)) {
                population.run = Some(run);
            }
        }
        select_fittest(&mut all);
        tell(common, &all, population.evaluations);
    }
    all.truncate(FINALISTS);
    let seeds = SETTINGS.iter().map(|setting| setting.rate.to_bits() ^ setting.recompute.to_bits());
    population.best = all.into_iter().zip(seeds).collect();
    Ok(population)
}

/// Tells of a generation.
fn tell(common: &Common<'_>, all: &[First<'_>], evaluations: u64) {
    let step_ns = all.iter().map(|individual| individual.value).collect();
    (common.request.alive)(&Alive { evaluations, step_ns });
}

/// Weyl constant of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A choice with the time of its step.
fn valued<'a>(mut state: State<'a>, duals: Duals) -> First<'a> {
    let value = state.decode(DECODES);
    First { value, state, duals, pooled: false }
}

/// Choices made from every start by every setting, and those that decisions amount to.
fn first<'a>(
    common: &Common<'a>,
    starts: &[Vec<OpPos>],
    known: &[Decisions],
    evaluations: &mut u64,
) -> Vec<First<'a>> {
    let (p, request) = (common.p, common.request);
    let may = Permissions { allow: request.allow, shadow: true };
    let fitted = |d: &Decisions| {
        if (request.stop)() {
            return None;
        }
        let duals = Duals::new(p.ops.len(), 1.0);
        let mut state = import::import(p, d, request.capacity, may)?;
        let fits = select::greedy(&mut state, &duals, &mut 0);
        state.commit();
        fits.then(|| valued(state, duals))
    };
    let known: Vec<Option<First<'a>>> = known.par_iter().map(fitted).collect();
    let cells: Vec<_> =
        SETTINGS.iter().flat_map(|setting| starts.iter().map(move |s| (setting, s))).collect();
    let share = common.limits.work / cells.len().max(1) as u64;
    let learned: Vec<(Option<First<'a>>, u64)> =
        cells.par_iter().map(|&(setting, order)| learned(common, setting, order, share)).collect();
    let mut all: Vec<First<'a>> = Vec::new();
    for (first, spent) in learned {
        *evaluations += spent;
        all.extend(first);
    }
    all.extend(known.into_iter().flatten());
    select_fittest(&mut all);
    all
}

/// The choice that a setting makes in an order, and the plans evaluated for it.
fn learned<'a>(
    common: &Common<'a>,
    &Setting { rate, recompute, shadow, across, pooled }: &Setting,
    order: &[OpPos],
    until: u64,
) -> (Option<First<'a>>, u64) {
    let (p, request) = (common.p, common.request);
    let sequence = AccessSequence::of_order(p, order.iter().copied());
    let may = Permissions { allow: request.allow, shadow };
    let state = State::new(p, sequence, request.capacity, may);
    let mut run = Run::new(common, Random(request.seed));
    let mut duals = Duals { across, ..Duals::new(p.ops.len(), recompute) };
    let learned = run.learn(state, &mut duals, rate, until);
    let first = |(value, state)| First { value, state, duals, pooled };
    (learned.map(first), run.evaluations)
}

/// Times in ns of the steps that a few settings begin with, in the problem's order.
pub(super) fn glance(common: &Common<'_>) -> Vec<u64> {
    let order: Vec<OpPos> = common.p.ops.ids().collect();
    let settings = SETTINGS[..GLANCED].par_iter();
    settings.filter_map(|setting| Some(learned(common, setting, &order, 0).0?.value)).collect()
}

/// Keeps the fastest, of equal ones the first, and none twice.
fn select_fittest(all: &mut Vec<First<'_>>) {
    all.sort_by_key(|individual| individual.value);
    let mut kept: Vec<First<'_>> = Vec::with_capacity(SIZE);
    for individual in all.drain(..) {
        let same = |other: &First<'_>| {
            other.value == individual.value && other.state.genotype.swaps == individual.state.genotype.swaps
        };
        if kept.len() < SIZE && !kept.iter().any(same) {
            kept.push(individual);
        }
    }
    *all = kept;
}

/// A child of two of the population, mended so that it fits where that can be; or an individual as it is.
fn breed<'a>(run: &mut Run<'a>, all: &[First<'a>], parent: Option<usize>) -> First<'a> {
    let (random, kinds) = (&mut run.random, &run.common.kinds.tensors);
    // The better of two, twice.
    let mut draw = || (random.below(all.len() as u64).min(random.below(all.len() as u64))) as usize;
    let (a, mut b) = (draw(), draw());
    if let Some(i) = parent {
        return all[i % all.len()].clone();
    }
    if a == b {
        b = (a + 1) % all.len();
    }
    let (a, b, best) = (&all[a], &all[b], &all[0]);
    let duals = mixed(random, &a.duals, &b.duals, &best.duals);
    let order = if random.below(2) == 0 { order(&a.state) } else { crossed(random, &a.state, &b.state) };
    // From whom each kind takes what is done with its tensors.
    let mut source: BTreeMap<usize, &State<'a>> = BTreeMap::new();
    for &kind in kinds.values() {
        source.entry(kind).or_insert_with(|| match random.below(8) {
            0..4 => &a.state,
            4..7 => &b.state,
            _ => &best.state,
        });
    }
    let from = |t: TensorId| source.get(&kinds[t]).copied().unwrap_or(&a.state);
    let mut child = transfer(a, order, &from, &duals);
    child.commit();
    if !select::greedy(&mut child, &duals, &mut run.work) {
        return a.clone();
    }
    child.commit();
    let random = &mut run.random;
    let pooled = if random.below(2) == 0 { a.pooled } else { b.pooled };
    First { value: u64::MAX, state: child, duals, pooled: pooled != (random.below(8) == 0) }
}

/// Duals part of the way from a parent's to the other's and to the best one's.
fn mixed(random: &mut Random, a: &Duals, b: &Duals, best: &Duals) -> Duals {
    let (to_b, to_best) = (random.unit(), random.unit() * 0.5);
    let mut out = a.clone();
    let toward = |x: &mut f64, b: f64, best: f64| {
        *x = (*x + to_b * (b - *x) + to_best * (best - *x)).max(0.0);
    };
    let lists = [
        (&mut out.out, &b.out, &best.out),
        (&mut out.back, &b.back, &best.back),
        (&mut out.recompute, &b.recompute, &best.recompute),
    ];
    for (list, b, best) in lists {
        for ((x, &b), &best) in list.values_mut().zip(b.values()).zip(best.values()) {
            toward(x, b, best);
        }
    }
    if random.below(2) == 0 {
        out.across = b.across;
    }
    out.pinned.clear();
    out
}

/// Ops in the order of their first runs.
fn order(s: &State<'_>) -> Vec<OpPos> {
    let steps = s.genotype.sequence.steps.values();
    steps.filter(|step| step.recompute.is_none()).map(|step| step.op).collect()
}

/// The order of one parent up to a cut, then that of the other.
fn crossed(random: &mut Random, a: &State<'_>, b: &State<'_>) -> Vec<OpPos> {
    let mut out = order(a);
    out.truncate(random.below(out.len() as u64 + 1) as usize);
    let mut done = Arena::filled(false, a.p.ops.len());
    for &op in &out {
        done[op] = true;
    }
    out.extend(order(b).into_iter().filter(|&op| !done[op]));
    out
}

/// The choices of parents in an order.
fn transfer<'a, 'b>(
    a: &First<'a>,
    order: Vec<OpPos>,
    from: &dyn Fn(TensorId) -> &'b State<'a>,
    duals: &Duals,
) -> State<'a>
where
    'a: 'b,
{
    let p = a.state.p;
    let mut child =
        State::with_headroom(p, AccessSequence::of_order(p, order), a.state.headroom.clone(), a.state.may);
    let mut wanted: Vec<Wanted> = Vec::new();
    for t in p.tensors.ids() {
        let parent = from(t);
        let consumers = recompute::consumers(p, &parent.genotype.sequence, t);
        let made = |op: OpPos| Wanted { before: child.ran[op], tensor: t, apart: false };
        wanted.extend(consumers.into_iter().map(made));
    }
    if !wanted.is_empty() {
        wanted.sort_unstable();
        wanted.dedup();
        child.restructure(&wanted, &Arena::default(), duals.reach);
    }
    for t in p.tensors.ids() {
        child.inherit(from(t), t);
    }
    child
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::planner::Request;
    use crate::sample::chain;
    use crate::{Starts, plan};

    /// Times of the steps in ns that live after each generation, on a chain of twelve layers.
    #[test]
    fn generations_of_a_small_search_are_these() {
        let p = chain(12, 4096, 1000, 2500);
        let told = Mutex::new(Vec::new());
        let alive = |a: &Alive| told.lock().unwrap_or_else(|e| e.into_inner()).push(a.step_ns.clone());
        let request = Request { effort: 1, alive: &alive, ..Request::new(5 * 4096) };
        plan(&p, &request, &Starts::NONE).expect("there is a plan");
        let told = told.into_inner().unwrap_or_else(|e| e.into_inner());
        let lines: Vec<String> = told.iter().map(|times| format!("{times:?}")).collect();
        let wanted = "\
[54000]
[48000, 48000, 48000, 48000, 54000]
[47000, 48000, 48000, 48000, 48000, 48000, 54000]
[47000, 48000, 48000, 48000, 48000, 48000, 48000, 54000]
[47000, 47000, 47000, 48000, 48000, 48000, 48000, 48000]
[47000, 47000, 47000, 48000, 48000, 48000, 48000, 48000]
[47000, 47000, 47000, 47000, 47000, 48000, 48000, 48000]
[47000, 47000, 47000, 47000, 47000, 48000, 48000, 48000]
[47000, 47000, 47000, 47000, 47000, 47000, 48000, 48000]
[47000, 47000, 47000, 47000, 47000, 47000, 48000, 48000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 48000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 48000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 47000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 47000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 47000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 47000]
[47000, 47000, 47000, 47000, 47000, 47000, 47000, 47000]";
        assert_eq!(lines.join("\n"), wanted);
        let best: Vec<u64> = told.iter().filter_map(|times| times.first().copied()).collect();
        assert!(best.is_sorted_by(|a, b| a >= b), "the best lives on: {best:?}");
    }

    /// A child of twice the same parent recomputes and swaps what that does; a crossed order keeps to the
    /// precedence.
    #[test]
    fn children_have_the_choices_of_their_parents() {
        let p = chain(12, 4096, 1000, 2500);
        let request = Request::new(5 * 4096);
        let may = Permissions { allow: request.allow, shadow: true };
        let chosen = |order: Vec<OpPos>, recompute: f64| {
            let duals = Duals::new(p.ops.len(), recompute);
            let mut state = State::new(&p, AccessSequence::of_order(&p, order), request.capacity, may);
            assert!(select::greedy(&mut state, &duals, &mut 0), "it fits");
            state.commit();
            valued(state, duals)
        };
        let sinking = super::super::Precedence::new(&p).sinking(&p);
        let all = [chosen(p.ops.ids().collect(), 1.0), chosen(sinking, 64.0)];
        for parent in &all {
            let child = transfer(parent, order(&parent.state), &|_| &parent.state, &parent.duals);
            let again = |s: &State<'_>| {
                let steps = s.genotype.sequence.steps.values();
                steps.flat_map(|step| step.remade(&p)).collect::<std::collections::BTreeSet<TensorId>>()
            };
            assert_eq!(again(&child), again(&parent.state));
            let swapped = |s: &State<'_>| s.open.ids().filter(|&g| s.swapped(g)).collect::<Vec<_>>();
            assert_eq!(swapped(&child), swapped(&parent.state));
        }
        let mut random = Random(7);
        for _ in 0..50 {
            let order = crossed(&mut random, &all[0].state, &all[1].state);
            let mut ran = Arena::filled(false, p.ops.len());
            for op in order {
                assert!(p.predecessors()[op].iter().all(|&before| ran[before]));
                ran[op] = true;
            }
            assert!(ran.values().all(|&ran| ran));
        }
    }
}
