//! Intermediate representation of a training step: types, ops, module, text form, verifier.

#[macro_use]
mod words;

pub mod attr;
pub mod autodiff;
mod bytes;
mod data;
mod diag;
mod edit;
mod entity;
mod error;
mod init;
mod module;
pub mod ops;
mod parse;
mod print;
pub mod recipe;
mod slice;
mod traffic;
mod types;
mod verify;

pub use bytes::{Bytes, counted, some_of};
pub use data::Data;
pub use diag::{Anchor, Diag, Diags};
pub use entity::{Arena, ConstId, HostShadowId, Id, Ids, InputId, OpId, SlotId, StateId, ValueId};
pub use error::{ParseError, TypeError};
pub use init::{Blob, Init};
pub use module::{
    ByteRange, Code, Const, Def, Feed, HostShadow, Input, Module, Op, Output, OutputRole, Phase, Role,
    SLOT_ALIGN, Slot, Space, State, Stream, Turn, Value, Wait, aligned,
};
pub use ops::{Class, Cost, Negligible, OpKind};
pub use parse::{parse, parse_op, parse_type};
pub use print::{print, print_annotated, print_diags, slot_name, value_name};
pub use slice::Slice;
pub use traffic::Traffic;
pub use types::{DType, MAX_ELEMENTS, MAX_RANK, TensorType};
pub use verify::{RULES, Rule, verify};
