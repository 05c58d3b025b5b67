//! The report for a budget that no plan fits.

use std::fmt;

use memc_ir::Bytes;

/// Why a budget is too small, and what would do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Infeasible {
    /// The budget in bytes, what the driver takes included.
    pub budget_bytes: u64,
    /// The smallest such budget for which a plan was found.
    pub smallest_bytes: u64,
    /// The op with the largest working set.
    pub op: String,
    /// Whether that op is an optimizer's, so that its size is not the batch's.
    pub updates: bool,
    /// Bytes that op needs at once.
    pub working_set_bytes: u64,
    /// That op's largest tensors: name, type, bytes.
    pub tensors: Vec<(String, String, u64)>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no plan fits {}", Bytes(self.budget_bytes))?;
        writeln!(f, "  smallest feasible: {}", Bytes(self.smallest_bytes))?;
        writeln!(f, "  working set peaks at {}: {}", self.op, Bytes(self.working_set_bytes))?;
        for (name, ty, bytes) in &self.tensors {
            writeln!(f, "    {:>12}  {name} : {ty}", Bytes(*bytes).short())?;
        }
        let batch = if self.updates {
            "; a smaller batch does not help, since that op updates a parameter"
        } else {
            ", or a smaller batch"
        };
        write!(f, "hint: pass --gpu-mem {}B or more{batch}", self.smallest_bytes)
    }
}
