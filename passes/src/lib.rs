//! Graph rewrites, cost model, planners and layout.

mod device;
mod options;
mod pipeline;
pub mod plan;

pub use device::{DeviceProfile, PROFILES};
pub use options::{OptionDef, Options};
pub use pipeline::{PassCx, PassDef, PassError, Pipeline, Step};

/// Every pass, sorted by name.
pub static PASSES: &[PassDef] =
    &[plan::rows::APPLY, plan::rows::LAYOUT, plan::rows::PLAN, plan::rows::TIMEPOINTS, plan::rows::TO_MEM];

/// The graph passes before planning. What they leave is what the checker holds a plan against.
pub const GRAPH_PIPELINE: &str = "";
