//! The report for a budget that no plan fits.

use memc_ir::Id;

use super::problem::Problem;
use crate::error::Infeasible;

/// Tensors that a report names.
const NAMED: usize = 5;

impl Infeasible {
    /// The report for a problem, of a model or of numbers alone. Budgets include the driver's reserve.
    pub fn new(
        numbers: &memc_planner::Problem,
        model: Option<&Problem>,
        budget_bytes: u64,
        reserve_bytes: u64,
        smallest_bytes: u64,
    ) -> Infeasible {
        let (position, working_set_bytes) = numbers.largest_working_set();
        let op = numbers.ops.get(position);
        let set = op.map(|_| numbers.working_set(position)).unwrap_or_default();
        let tensor = |t: memc_planner::TensorId| {
            let tensor = &numbers.tensors[t];
            let ty = model.map(|p| p.tensor_type(t).to_string()).unwrap_or_default();
            (named(&tensor.name, "t", t.index()), ty, tensor.bytes)
        };
        let mut tensors: Vec<(String, String, u64)> = set.into_iter().map(tensor).collect();
        if let Some(op) = op.filter(|op| op.workspace > 0) {
            tensors.push(("workspace".into(), String::new(), op.workspace));
        }
        tensors.sort_by(|a, b| b.2.cmp(&a.2).then(a.0.cmp(&b.0)));
        tensors.truncate(NAMED);
        let kind =
            |p: &Problem| p.ops.get(position).and_then(|&op| p.module.ops[op].kind()).is_some_and(updates);
        Infeasible {
            budget_bytes,
            reserve_bytes,
            smallest_bytes,
            op: named(op.map_or("", |op| &op.label), "op", position.index()),
            updates: model.is_some_and(kind),
            working_set_bytes,
            tensors,
        }
    }
}

/// Name of a tensor or op: as in problem files, `what` and its position, where its name is empty.
fn named(name: &str, what: &str, position: usize) -> String {
    if name.is_empty() { format!("{what}{position}") } else { name.to_string() }
}

/// Whether an op is an optimizer's: its operands begin with a parameter and its gradient.
fn updates(kind: &memc_ir::OpKind) -> bool {
    kind.def().operands.get(1) == Some(&"g")
}
