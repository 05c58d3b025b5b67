//! Graph rewrites, cost model, planners and layout.

mod device;
mod options;
mod pipeline;
pub mod plan;

pub use device::{DeviceProfile, PROFILES};
pub use options::{OptionDef, Options};
pub use pipeline::{PassCx, PassDef, PassError, Pipeline, Step};

/// Every pass, sorted by name.
pub const PASSES: &[PassDef] = &[];
