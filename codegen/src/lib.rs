//! Lowers the memory IR to a plan.
//!
//! Everything lowering needs is in the module: order, slots, offsets, awaits. No planner is asked, no time is
//! modelled; what the plan claims about time is passed in.

mod commands;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use memc_ir::{Module, OpKind, Phase, Space, print};
use memc_plan::{Claims, Meta, Plan};

/// What the plan's header says beyond what the module holds.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Planner that decided.
    pub planner: String,
    /// Device profile planned for.
    pub profile: String,
    /// Seed of the planner.
    pub seed: u64,
    /// Import options by name.
    pub options: Vec<(String, String)>,
    /// Device budget in bytes.
    pub budget_bytes: u64,
    /// Bytes of the budget left to driver and libraries.
    pub reserve_bytes: u64,
    /// Height of the arena of the unplanned step in bytes.
    pub unplanned_peak_bytes: u64,
    /// Modelled time of the unplanned step in ns.
    pub ideal_ns: u64,
    /// Modelled time of the planned step in ns.
    pub step_ns: u64,
    /// Modelled time of recomputation in ns.
    pub recompute_ns: u64,
}

/// A plan, and the initial bytes of the states that have some, by index in the plan's state table.
#[derive(Debug)]
pub struct Lowered {
    /// The plan, its data section laid out.
    pub plan: Plan,
    /// Initial bytes.
    pub data: BTreeMap<usize, Arc<[u8]>>,
}

/// Lowers a synchronised mem-phase module; `source` is the graph-phase module it implements.
///
/// Fails when a slot has no offset, or when a state's initial bytes are not at hand.
pub fn lower(source: &Module, module: &Module, header: &Header) -> Result<Lowered, String> {
    if module.phase != Phase::Mem || source.phase != Phase::Graph {
        return Err("lowering needs a mem-phase module and its graph-phase source".into());
    }
    let height = |space| {
        let slots = module.slots.values().filter(|s| s.space == space);
        slots.map(|s| s.offset.unwrap_or(0) + s.bytes).max().unwrap_or(0)
    };
    let mut meta = Meta {
        producer: concat!("memc ", env!("CARGO_PKG_VERSION")).into(),
        model: source.name.clone(),
        planner: header.planner.clone(),
        profile: header.profile.clone(),
        seed: header.seed,
        options: header.options.clone(),
        budget_bytes: header.budget_bytes,
        reserve_bytes: header.reserve_bytes,
        dev_bytes: height(Space::Dev),
        host_bytes: height(Space::Host),
        ..Meta::default()
    };
    meta.set_source(print(source));
    let mut plan = Plan { meta, ..Plan::default() };
    let data = tables::fill(&mut plan, module)?;
    commands::emit(&mut plan, module)?;
    plan.meta.claims = claims(&plan, module, header);
    plan.layout_data().map_err(|e| e.to_string())?;
    Ok(Lowered { plan, data })
}

fn claims(plan: &Plan, m: &Module, header: &Header) -> Claims {
    use memc_ir::{Code, Def};
    let mut c = Claims {
        peak_bytes: tables::device_end(plan),
        unplanned_peak_bytes: header.unplanned_peak_bytes,
        ideal_ns: header.ideal_ns,
        step_ns: header.step_ns,
        recompute_ns: header.recompute_ns,
        ..Claims::default()
    };
    for &id in &m.order {
        let op = &m.ops[id];
        let bytes: u64 = m.result_types(id).iter().map(|t| t.bytes()).sum();
        match op.code {
            Code::SwapOut if !op.results.iter().any(|r| m.outputs.iter().any(|o| o.value == *r)) => {
                c.swap_out_bytes += bytes
            }
            Code::SwapIn if !op.operands.iter().any(|&v| matches!(m.values[v].def, Def::Input(_))) => {
                c.swap_in_bytes += bytes
            }
            Code::Compute(ref kind) if !tables::is_view(m, id) => {
                c.ops += 1;
                c.recompute_ops += u64::from(op.clone_of.is_some() && *kind != OpKind::Copy {});
            }
            _ => {}
        }
    }
    c
}
