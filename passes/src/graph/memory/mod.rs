//! Choosing among equal formulations of gradients by the activations that they save.
//!
//! All formulations are put into one e-graph: ops of the module, alternatives that rules offer, and every
//! forward op as a way to recompute its result in the backward pass. The extracted formulation has the
//! smallest cost
//!
//! > value of the bytes kept from the forward pass + modelled time of the ops
//!
//! where a saved tensor counts once however many ops read it. Inputs, parameters and constants count nothing.
//! A recomputed value counts for the share of the backward pass during which it is held. A byte is worth
//! `exchange` times the time that the device's link takes to copy it out and back in. So nothing is
//! recomputed where a swap would be far cheaper. With 0, bytes only decide between formulations of the same
//! time. `search` does the extraction.
//!
//! Rules are exact, like every graph pass. Contractions are never recomputed here; the planner, who knows the
//! budget, may do so.
//!
//! **Invariant:** this is the last pass before planning but for `dce`. In the result, an op may stand twice,
//! once in the forward and once in the backward pass; only their ids tell them apart, and `cse` would merge
//! them again.

mod emit;
mod lang;
mod rule;
mod rules;
mod search;
mod sides;
mod solution;
mod space;

use memc_ir::{Module, Phase};

use self::sides::{Sides, kept_bytes};
use self::solution::Rate;
use self::space::Space;
use super::compact::compact;
use super::dce::sweep;
use crate::{DeviceProfile, Fired, OptionDef, Options, PassCx, PassDef, PassError};

pub use rule::RuleDef;
pub use rules::RULES;
pub use sides::saved_bytes;

/// Name of the pass.
pub const NAME: &str = "memory-rewrite";

pub(crate) const PASS: PassDef = PassDef {
    name: NAME,
    summary: "keep fewer bytes from the forward for the backward pass",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] = &[OptionDef {
    name: "exchange",
    default: "4",
    doc: "time that freeing a byte may cost, in times of copying it to the host and back; 0: none",
}];

/// Names of what the pass counts besides its rules.
pub mod counts {
    /// Bytes of saved activations before.
    pub const BEFORE: &str = "saved bytes before";
    /// And after.
    pub const AFTER: &str = "saved bytes after";
    /// Modelled time added to the step in ns.
    pub const ADDED: &str = "ns added";
    /// Forward ops that the backward pass recomputes.
    pub const RECOMPUTED: &str = "ops recomputed";
}

fn run(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let exchange = options.number(OPTIONS, "exchange")?;
    sweep(m);
    let sides = Sides::new(m);
    let (before, ns_before) = (kept_bytes(m, &sides), compute_ns(m, cx.profile));
    let space = Space::new(m, &sides, RULES, cx.profile);
    let solution = search::best(&space, Rate::new(cx.profile, exchange));
    let written = emit::emit(m, &sides, &solution)?;
    sweep(m);
    let after = kept_bytes(m, &sides.extended(m, &written.early));
    compact(m);
    let mut count = |what: &str, n: u64| cx.stats.push((PASS.name, what.into(), n));
    count(counts::BEFORE, before);
    count(counts::AFTER, after);
    count(counts::ADDED, compute_ns(m, cx.profile).saturating_sub(ns_before));
    count(counts::RECOMPUTED, written.recomputed.len() as u64);
    for (i, rule) in RULES.iter().enumerate() {
        count(rule.name, written.rules.iter().filter(|(r, _)| *r == i).count() as u64);
    }
    let fired = |rule, at| Fired { pass: NAME, rule, at, count: 1 };
    cx.fired.extend(written.recomputed.into_iter().map(|at| fired("recompute", at)));
    cx.fired.extend(written.rules.into_iter().map(|(rule, at)| fired(RULES[rule].name, at)));
    Ok(())
}

/// Sum of the modelled times of a module's kernels.
fn compute_ns(m: &Module, profile: &DeviceProfile) -> u64 {
    let kernels = m.order.iter().filter(|&&op| !m.ops[op].is_view());
    kernels.fold(0u64, |sum, &op| {
        let time = m.ops[op].kind().map(|k| profile.op_ns(k, &m.operand_types(op), &m.result_types(op)));
        sum.saturating_add(time.unwrap_or(0))
    })
}
