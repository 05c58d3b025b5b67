//! Intermediate representation of a training step: types, ops, module, text form, verifier.

pub mod attr;
mod entity;
pub mod ops;
mod types;

pub use entity::{Arena, ConstId, Id, InputId, OpId, SlotId, StateId, ValueId};
pub use ops::{Class, Cost, OpKind};
pub use types::{Bytes, DType, MAX_ELEMENTS, MAX_RANK, TensorType};
