//! Algebraic simplification by equality saturation, with named exact rules.
//!
//! Rules are applied in an e-graph (Willsey et al., "egg: Fast and Extensible Equality Saturation", POPL
//! 2021). So a rule that only pays together with another needs no place in a sequence, as moving a transpose
//! past a scaling so that a matrix product can take it. The cheapest equal term by estimated bytes moved
//! replaces the given one, and only when it is strictly cheaper.
//!
//! The graph is cut into trees. The cost of a tree is exact, while the cheapest term of a graph with sharing
//! is hard to find, and many small e-graphs take linear time. A *region* is an op with one result whose
//! result is used more than once (or is a root, or feeds an op with several results), and the ops that only
//! it depends on. A value that other ops use as well is a leaf. Where it only moves elements, the region sees
//! its definition too and may read past it, but gains nothing from its disappearance, since the other uses
//! may stay.
//!
//! Iterations and nodes are limited, time is not, so that results do not depend on the machine.

mod lang;
mod region;
mod rule;
mod rules;

use std::time::Duration;

use egg::{Extractor, Id as ClassId, Rewrite, Runner, SimpleScheduler};
use memc_ir::{Module, Phase};

use self::lang::{Graph, Leaves, Node, Price};
use self::region::{Region, Regions};
use super::compact::compact;
use super::dce::sweep;
use crate::{Fired, OptionDef, Options, PassCx, PassDef, PassError};

pub use rule::RuleDef;
pub use rules::RULES;

pub(crate) const PASS: PassDef = PassDef {
    name: "simplify",
    summary: "rewrite with exact algebraic rules where that moves fewer bytes",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] = &[
    OptionDef { name: "iterations", default: "8", doc: "most rounds of rewriting in one region" },
    OptionDef { name: "rounds", default: "4", doc: "most passes over all regions" },
    OptionDef { name: "nodes", default: "4096", doc: "most nodes in the e-graph of one region" },
];

fn run(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let limit = |name: &str| {
        let number = options.number(OPTIONS, name)?;
        usize::try_from(number).map_err(|_| PassError::Usage(format!("option `{name}` is too large")))
    };
    let (iterations, nodes, rounds) = (limit("iterations")?, limit("nodes")?, limit("rounds")?);
    let rewrites = RULES.iter().map(rule::rewrite).collect::<Result<Vec<_>, _>>()?;
    let mut counts = vec![0u64; RULES.len()];
    // A rewrite may leave a value with one use where it had two, and so join two regions.
    for _ in 0..rounds {
        sweep(m);
        if !round(m, &rewrites, (iterations, nodes), &mut counts, &mut cx.fired) {
            break;
        }
    }
    sweep(m);
    compact(m);
    for (rule, n) in RULES.iter().zip(counts) {
        cx.stats.push(("simplify", rule.name.into(), n));
    }
    Ok(())
}

/// Rewrites every region once; returns whether any became cheaper.
fn round(
    m: &mut Module,
    rewrites: &[Rewrite<Node, Leaves>],
    (iterations, nodes): (usize, usize),
    counts: &mut [u64],
    fired: &mut Vec<Fired>,
) -> bool {
    let mut regions = Regions::new(m);
    let mut cheaper = false;
    for root in regions.roots() {
        let region = Region::build(m, &regions, root);
        let runner = Runner::<_, _, ()>::new(Leaves::default())
            .with_egraph(region.graph)
            .with_scheduler(SimpleScheduler)
            .with_iter_limit(iterations)
            .with_node_limit(nodes)
            .with_time_limit(Duration::MAX)
            .run(rewrites);
        let graph: &Graph = &runner.egraph;
        let extractor = Extractor::new(graph, Price(graph));
        if extractor.find_best_cost(region.root) >= region.cost {
            continue;
        }
        cheaper = true;
        let at = m.ops[root].results.first().map(|&v| m.values[v].name.clone()).unwrap_or_default();
        for (rule, n) in RULES.iter().zip(&mut *counts) {
            let applied = |i: &egg::Iteration<()>| i.applied.get(&egg::Symbol::from(rule.name)).copied();
            let count = runner.iterations.iter().filter_map(applied).sum::<usize>() as u64;
            *n += count;
            if count > 0 {
                fired.push(Fired { pass: PASS.name, rule: rule.name, at: at.clone(), count });
            }
        }
        let best = |class: ClassId| extractor.find_best_node(class).clone();
        regions.replace(m, graph, (region.root, &region.ops), &best);
    }
    regions.finish(m);
    cheaper
}
