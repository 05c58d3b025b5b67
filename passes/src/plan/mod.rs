//! Planning: what stays on the device, what is swapped, what is computed again, and where it all lies.

mod infeasible;

pub use infeasible::Infeasible;
