//! Groups of ops under construction, and the order that they leave.

use memc_ir::{OpId, OpKind, ValueId};

/// Ops that are one kernel, or one op of any kind.
#[derive(Clone)]
pub(super) struct Group {
    /// Positions in the order, ascending.
    pub(super) members: Vec<usize>,
    /// Position of the group in the order: that of a member.
    pub(super) at: usize,
    pub(super) kind: OpKind,
    pub(super) operands: Vec<ValueId>,
    pub(super) results: Vec<ValueId>,
    /// Modelled time.
    pub(super) ns: u64,
}

/// An entry of the new order.
pub(super) enum Item {
    /// An op as it was.
    Op(OpId),
    /// The fused op in place of several ops, with the values that its results replace.
    Fused { kind: OpKind, operands: Vec<ValueId>, results: Vec<ValueId>, ops: Vec<OpId> },
}
