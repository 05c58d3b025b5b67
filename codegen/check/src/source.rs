//! The expected symbolic values: one step of the source module, evaluated symbolically.

use std::collections::BTreeMap;
use std::fmt;

use memc_ir::{Blob, Def, Id, Module, ValueId, value_name};

use crate::show::Names;
use crate::symbolic::{SigId, Symbolic, SymbolicId, SymbolicValues, Untyped, is_identity};

/// Symbolic values of one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepValues {
    /// One symbolic value per output of the module.
    pub(crate) outputs: Vec<SymbolicId>,
    /// One symbolic value per state: what it holds after the step.
    pub(crate) states: Vec<SymbolicId>,
    /// Number of applications of each operator to the same values, identities left out.
    pub(crate) applied: Applied,
}

/// Reason for which the source has no symbolic value. The verifier rules out all of them.
#[derive(Clone, Debug)]
pub(crate) enum Unevaluated {
    /// An op moves bytes.
    MemoryOp,
    /// An op does not apply to its operands.
    Untyped(Untyped),
}

impl fmt::Display for Unevaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unevaluated::MemoryOp => f.write_str("a memory op in a graph-phase module"),
            Unevaluated::Untyped(why) => why.fmt(f),
        }
    }
}

/// Numbers of applications.
pub(crate) type Applied = BTreeMap<(SigId, Vec<SymbolicId>), u64>;

/// The values of states before the first step, and of constants.
#[derive(Clone, Debug)]
pub(crate) struct Initial {
    /// One symbolic value per state.
    pub(crate) states: Vec<SymbolicId>,
    /// One symbolic value per constant; constants with equal bytes have equal symbolic values.
    pub(crate) consts: Vec<SymbolicId>,
    /// BLAKE3 of each constant's bytes.
    pub(crate) hashes: Vec<[u8; 32]>,
}

/// The symbolic values that every evaluation starts from.
pub(crate) fn initial(source: &Module, symbols: &mut SymbolicValues) -> Initial {
    let bytes_of = |v: ValueId| source.values.get(v).map_or(0, |v| v.ty.bytes());
    let mut states = Vec::with_capacity(source.states.len());
    for (id, state) in source.states.iter() {
        states.push(symbols.leaf(Symbolic::State(id.0), bytes_of(state.value)));
    }
    let (mut consts, mut hashes, mut firsts) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (id, c) in source.consts.iter() {
        let hash = Blob::new(c.data.clone()).hash();
        let first = *firsts.entry(hash).or_insert(id.0);
        consts.push(symbols.leaf(Symbolic::Const(first), bytes_of(c.value)));
        hashes.push(hash);
    }
    Initial { states, consts, hashes }
}

/// Evaluates step `step` from the values of the states before it. `source` is a verified graph-phase module.
pub(crate) fn evaluate(
    source: &Module,
    symbols: &mut SymbolicValues,
    names: &mut Names,
    consts: &[SymbolicId],
    states: &[SymbolicId],
    step: u32,
) -> Result<StepValues, Unevaluated> {
    let mut values = vec![SymbolicId::POISON; source.values.len()];
    let set = |values: &mut Vec<SymbolicId>, v: ValueId, symbolic: SymbolicId| {
        if let Some(slot) = values.get_mut(v.index()) {
            *slot = symbolic;
        }
    };
    for (v, value) in source.values.iter() {
        let symbolic = match value.def {
            Def::Input(input) => symbols.leaf(Symbolic::Input { input: input.0, step }, value.ty.bytes()),
            Def::State(state) => states.get(state.index()).copied().unwrap_or(SymbolicId::POISON),
            Def::Const(c) => consts.get(c.index()).copied().unwrap_or(SymbolicId::POISON),
            Def::HostShadow(_) | Def::Op(..) => continue,
        };
        set(&mut values, v, symbolic);
    }
    let mut applied = Applied::new();
    for &id in &source.order {
        let op = &source.ops[id];
        let Some(kind) = op.kind() else { return Err(Unevaluated::MemoryOp) };
        let sig = symbols.signature(kind, &source.operand_types(id)).map_err(Unevaluated::Untyped)?;
        let args: Vec<SymbolicId> = op
            .operands
            .iter()
            .map(|v| values.get(v.index()).copied().unwrap_or(SymbolicId::POISON))
            .collect();
        if !is_identity(kind) {
            *applied.entry((sig, args.clone())).or_default() += 1;
        }
        for (&v, symbolic) in op.results.iter().zip(symbols.apply(sig, &args)) {
            names.entry(symbolic).or_insert_with(|| format!("{}@{step}", value_name(source, v)));
            set(&mut values, v, symbolic);
        }
    }
    let value = |v: ValueId| values.get(v.index()).copied().unwrap_or(SymbolicId::POISON);
    Ok(StepValues {
        outputs: source.outputs.iter().map(|o| value(o.value)).collect(),
        states: source.states.values().map(|s| value(s.next.unwrap_or(s.value))).collect(),
        applied,
    })
}
