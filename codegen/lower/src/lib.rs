//! Lowers the memory IR to a plan.
//!
//! Everything lowering needs is in the module: order, slots, offsets, waits. No planner is asked, no time is
//! modelled; what the plan claims about time is passed in.

mod commands;
mod error;
mod tables;

pub use error::LowerError;

use std::collections::BTreeMap;

use memc_ir::{Data, Module, Phase, Space, print};
use memc_plan::{Claims, Meta, Plan};

/// A plan, and the initial bytes of the states that have some, by index in the plan's state table.
#[derive(Debug)]
pub struct Lowered {
    /// The plan, its data section laid out.
    pub plan: Plan,
    /// Initial bytes.
    pub data: BTreeMap<usize, Data>,
}

/// Lowers a synchronised mem-phase module; `source` is the graph-phase module it implements.
///
/// `meta` has planner, profile, import options, budget, reserve, and the claims about time and the unplanned
/// step. The rest of it is filled in.
///
/// # Errors
/// [`LowerError`], as when a slot has no offset or a state's initial bytes are not at hand.
pub fn lower(source: &Module, module: &Module, mut meta: Meta) -> Result<Lowered, LowerError> {
    if module.phase != Phase::Mem || source.phase != Phase::Graph {
        return Err(LowerError::Phase);
    }
    let height = |space| {
        let slots = module.slots.values().filter(|s| s.space == space);
        slots.map(|s| s.offset.unwrap_or(0) + s.bytes).max().unwrap_or(0)
    };
    meta.producer = concat!("memc ", env!("CARGO_PKG_VERSION")).into();
    meta.model = source.name.clone();
    meta.dev_bytes = height(Space::Dev);
    meta.host_bytes = height(Space::Host);
    meta.set_source(print(source));
    let mut plan = Plan { meta, ..Plan::default() };
    let data = tables::fill(&mut plan, module)?;
    commands::emit(&mut plan, module)?;
    let traffic = module.traffic();
    plan.meta.claims = Claims {
        peak_bytes: tables::device_end(&plan),
        swap_out_bytes: traffic.swap_out_bytes,
        swap_in_bytes: traffic.swap_in_bytes,
        recompute_ops: traffic.recompute_ops,
        ops: traffic.ops,
        ..plan.meta.claims
    };
    plan.layout_data()?;
    Ok(Lowered { plan, data })
}
