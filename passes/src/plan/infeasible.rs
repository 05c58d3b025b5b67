//! The report for a budget that no plan fits.

use std::fmt;

use memc_ir::Bytes;

use super::problem::Problem;

/// Reason why a budget is too small, and a sufficient one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Infeasible {
    /// The budget in bytes, the driver's reserve included.
    pub budget_bytes: u64,
    /// Bytes of either budget outside the arena: driver, libraries and code.
    pub reserve_bytes: u64,
    /// The smallest such budget for which a plan was found.
    pub smallest_bytes: u64,
    /// The op with the largest working set.
    pub op: String,
    /// Whether that op is an optimizer's, so that its size is not the batch's.
    pub updates: bool,
    /// Bytes that op needs at once.
    pub working_set_bytes: u64,
    /// Largest tensors of that op: name, type (empty where there is none), bytes.
    pub tensors: Vec<(String, String, u64)>,
}

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
        let tensor = |t: u32| {
            let tensor = &numbers.tensors[t as usize];
            let ty = model.map(|p| p.tensor_type(t).to_string()).unwrap_or_default();
            (named(&tensor.name, "t", t as usize), ty, tensor.bytes)
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
            op: named(op.map_or("", |op| &op.label), "op", position),
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

/// A name inside a sentence: quoted where it has blanks or characters that cannot be seen.
fn quoted(name: &str) -> String {
    let plain = name.chars().all(|c| !c.is_whitespace() && !c.is_control());
    if plain { name.to_string() } else { format!("{name:?}") }
}

/// Whether an op is an optimizer's: its operands begin with a parameter and its gradient.
fn updates(kind: &memc_ir::OpKind) -> bool {
    kind.def().operands.get(1) == Some(&"g")
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no plan fits {}", Bytes(self.budget_bytes))?;
        writeln!(f, "  smallest feasible: {}", Bytes(self.smallest_bytes))?;
        if self.reserve_bytes > 0 {
            let reserve = Bytes(self.reserve_bytes);
            writeln!(f, "  both include the device's reserve for driver, libraries and code: {reserve}")?;
        }
        writeln!(f, "  working set peaks at {}: {}", quoted(&self.op), Bytes(self.working_set_bytes))?;
        for (name, ty, bytes) in &self.tensors {
            let ty = if ty.is_empty() { String::new() } else { format!(" : {ty}") };
            writeln!(f, "    {:>12}  {}{ty}", Bytes(*bytes).short(), quoted(name))?;
        }
        let batch = if self.reserve_bytes > 0 && self.budget_bytes <= self.reserve_bytes {
            "; a smaller batch does not help, since the reserve alone takes as much"
        } else if self.updates {
            "; a smaller batch does not help, since that op updates a parameter"
        } else {
            ", or a smaller batch"
        };
        write!(f, "hint: pass --gpu-mem {}B or more{batch}", self.smallest_bytes)
    }
}
