//! The plan: schema, binary file and text form.

mod model;
mod query;

pub use model::{
    Action, Claims, Command, DATA_ALIGN, Feed, Init, Input, Kernel, Meta, Output, Plan, Slice, Space, State,
    Stream,
};
pub use query::{Counts, Section};

/// blake3 of `bytes`: the hash of a plan's source text and of its states' initial bytes.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
