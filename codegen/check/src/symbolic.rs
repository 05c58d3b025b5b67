//! Symbolic values: what a tensor is, as an expression over inputs, initial states and constants.
//!
//! Symbolic values are hash-consed: equal expressions have equal ids, so comparing values is comparing ids. A
//! symbolic value denotes bytes; types are part of an operator's signature and not of its operands, which
//! makes a reshape transparent.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use memc_ir::TensorType;
use memc_ir::ops::{Class, OpKind};

/// Index of a symbolic value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SymbolicId(u32);

impl SymbolicId {
    /// The value that an earlier error makes unknowable. Comparing with it reports nothing.
    pub(crate) const POISON: SymbolicId = SymbolicId(0);
    /// The value without bytes: all empty tensors are equal.
    pub(crate) const EMPTY: SymbolicId = SymbolicId(1);

    /// Image under [`SymbolicValues::advance`].
    pub(crate) fn image(self, advance: &[SymbolicId]) -> Option<SymbolicId> {
        advance.get(self.0 as usize).copied()
    }

    #[cfg(test)]
    pub(crate) fn new(index: u32) -> SymbolicId {
        SymbolicId(index)
    }
}

/// Index of a [`Signature`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SigId(u32);

/// An operator at given operand types, with the result types they imply.
#[derive(Debug)]
pub(crate) struct Signature {
    /// Operator with attributes.
    pub(crate) kind: OpKind,
    /// Operand types.
    pub(crate) operands: Vec<TensorType>,
    /// Result types.
    pub(crate) results: Vec<TensorType>,
}

/// Reason for which an operator does not apply to operand types, in the words of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Untyped(String);

impl fmt::Display for Untyped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A symbolic value as an expression.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Symbolic {
    /// See [`SymbolicId::POISON`].
    Poison,
    /// See [`SymbolicId::EMPTY`].
    Empty,
    /// An input of the source in one step.
    Input {
        /// Index in the source.
        input: u32,
        /// Step, from 0.
        step: u32,
    },
    /// A state of the source before the first step.
    State(u32),
    /// A constant of the source; the first of those with equal bytes.
    Const(u32),
    /// A result of an operator.
    Apply {
        /// The operator and its types.
        sig: SigId,
        /// Which result.
        result: u32,
        /// Operands.
        args: Rc<[SymbolicId]>,
    },
}

/// The largest number of bytes that operands and results of one operator may have together.
const MAX_OP_BYTES: u64 = 1 << 53;

/// All symbolic values of one check.
#[derive(Debug)]
pub(crate) struct SymbolicValues {
    nodes: Vec<(Symbolic, u64)>,
    ids: BTreeMap<Symbolic, SymbolicId>,
    sigs: Vec<Signature>,
    sig_ids: BTreeMap<(OpKind, Vec<TensorType>), SigId>,
}

impl SymbolicValues {
    /// No symbolic values but the two special ones.
    pub(crate) fn new() -> SymbolicValues {
        let mut values = SymbolicValues {
            nodes: Vec::new(),
            ids: BTreeMap::new(),
            sigs: Vec::new(),
            sig_ids: BTreeMap::new(),
        };
        values.intern(Symbolic::Poison, 0);
        values.intern(Symbolic::Empty, 0);
        values
    }

    /// Number of symbolic values.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The symbolic value and its size in bytes.
    pub(crate) fn get(&self, id: SymbolicId) -> (&Symbolic, u64) {
        self.nodes.get(id.0 as usize).map_or((&Symbolic::Poison, 0), |(value, bytes)| (value, *bytes))
    }

    /// The signature.
    pub(crate) fn sig(&self, id: SigId) -> Option<&Signature> {
        self.sigs.get(id.0 as usize)
    }

    fn intern(&mut self, value: Symbolic, bytes: u64) -> SymbolicId {
        if let Some(&id) = self.ids.get(&value) {
            return id;
        }
        let id = SymbolicId(
            u32::try_from(self.nodes.len()).expect("invariant: fewer values than commands' results"),
        );
        self.nodes.push((value.clone(), bytes));
        self.ids.insert(value, id);
        id
    }

    /// A symbolic value without operands and with `bytes` bytes.
    pub(crate) fn leaf(&mut self, value: Symbolic, bytes: u64) -> SymbolicId {
        if bytes == 0 { SymbolicId::EMPTY } else { self.intern(value, bytes) }
    }

    /// The signature of an operator at operand types.
    ///
    /// # Errors
    /// [`Untyped`] where the operator's row rejects them.
    pub(crate) fn signature(&mut self, kind: &OpKind, operands: &[&TensorType]) -> Result<SigId, Untyped> {
        let key = (kind.clone(), operands.iter().map(|&ty| ty.clone()).collect::<Vec<_>>());
        if let Some(&id) = self.sig_ids.get(&key) {
            return Ok(id);
        }
        let results = kind.infer(operands).map_err(|why| Untyped(why.to_string()))?;
        let types = operands.iter().copied().chain(&results);
        let total = types.map(TensorType::bytes).try_fold(0u64, u64::checked_add);
        if total.is_none_or(|total| total > MAX_OP_BYTES) {
            let what = format!("operands and results of {} are too large together", kind.mnemonic());
            return Err(Untyped(what));
        }
        let id = SigId(u32::try_from(self.sigs.len()).map_err(|_| Untyped("too many operators".to_owned()))?);
        self.sigs.push(Signature { kind: key.0.clone(), operands: key.1.clone(), results });
        self.sig_ids.insert(key, id);
        Ok(id)
    }

    /// The results of an operator on `args`. Copies and views are the identity.
    pub(crate) fn apply(&mut self, sig: SigId, args: &[SymbolicId]) -> Vec<SymbolicId> {
        let Some(signature) = self.sig(sig) else { return Vec::new() };
        let sizes: Vec<u64> = signature.results.iter().map(TensorType::bytes).collect();
        if args.contains(&SymbolicId::POISON) {
            return vec![SymbolicId::POISON; sizes.len()];
        }
        if let (true, [arg]) = (is_identity(&signature.kind), args) {
            return vec![*arg];
        }
        let args: Rc<[SymbolicId]> = args.into();
        let mut results = Vec::with_capacity(sizes.len());
        for (result, bytes) in (0u32..).zip(sizes) {
            results.push(self.leaf(Symbolic::Apply { sig, result, args: Rc::clone(&args) }, bytes));
        }
        results
    }

    /// Every symbolic value that exists with each `State(s)` replaced by `next[s]`, by id.
    pub(crate) fn advance(&mut self, next: &[SymbolicId]) -> Vec<SymbolicId> {
        let mut map: Vec<SymbolicId> = Vec::with_capacity(self.nodes.len());
        for index in 0..self.nodes.len() {
            let Some((value, bytes)) = self.nodes.get(index).cloned() else { break };
            let image = match value {
                Symbolic::Poison => SymbolicId::POISON,
                Symbolic::Empty => SymbolicId::EMPTY,
                Symbolic::State(s) => next.get(s as usize).copied().unwrap_or(SymbolicId::POISON),
                Symbolic::Input { input, step } => {
                    self.leaf(Symbolic::Input { input, step: step.saturating_add(1) }, bytes)
                }
                Symbolic::Const(_) => SymbolicId(index as u32),
                Symbolic::Apply { sig, result, args } => {
                    // Operands are older than what they make, so they are mapped already.
                    let image =
                        |arg: &SymbolicId| map.get(arg.0 as usize).copied().unwrap_or(SymbolicId::POISON);
                    let args: Rc<[SymbolicId]> = args.iter().map(image).collect();
                    if args.contains(&SymbolicId::POISON) {
                        SymbolicId::POISON
                    } else {
                        self.leaf(Symbolic::Apply { sig, result, args }, bytes)
                    }
                }
            };
            map.push(image);
        }
        map
    }
}

/// Whether an operator passes its operand's bytes on.
pub(crate) fn is_identity(kind: &OpKind) -> bool {
    kind.def().class == Class::View || matches!(kind, OpKind::Copy {})
}
