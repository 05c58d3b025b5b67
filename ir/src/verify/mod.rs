//! The numbered rules every module satisfies between passes.
//!
//! All violations of a layer are collected. Layers run in order (structure, types, graph or memory) and a
//! layer is skipped when the one before it failed, so that later rules may rely on earlier ones.

mod graph;
mod mem;
mod structure;
mod types;

use crate::diag::{Anchor, Diag, Diags};
use crate::module::{Module, Phase};

/// A verifier rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Number, as `M3`.
    pub code: &'static str,
    /// Sentence that holds.
    pub summary: &'static str,
}

macro_rules! rules {
    ($($code:literal $summary:literal;)*) => {
        /// Every rule, in the order they are checked.
        pub const RULES: &[Rule] = &[$(Rule { code: $code, summary: $summary }),*];
    };
}

rules! {
    "S1" "every id is in range and every definition points back at its value";
    "S2" "the order lists no op twice";
    "S3" "operands are defined before they are used";
    "S4" "names are unique and not empty";
    "S5" "outputs and next states are defined by the module";
    "T1" "the op's row accepts its operands and attributes";
    "T2" "result types are those the row infers";
    "T3" "types are not too large";
    "T4" "a constant's payload has the size of its type";
    "T5" "a next state has the type of its state";
    "T6" "an initial value is one of its state's type, and an input's range has values";
    "G1" "the graph phase has no slots, swaps, waits or clones";
    "M1" "every value has a slot of the right space that is large enough";
    "M2" "slots are allocated before use and freed; a resident slot on the device may be freed if it is \
          allocated again, one in host memory stays";
    "M3" "a read slot holds the value that is read";
    "M4" "results share bytes with operands only where the row allows it";
    "M5" "an op has a workspace slot of at least the bytes that its row asks for";
    "M6" "every state ends the step in its resident slot, and in its host shadow where it has one";
    "M7" "offsets are aligned, and live slots of one space do not overlap";
    "M8" "an op that reads a copy's result runs after the copy";
}

pub(crate) struct Sink {
    diags: Vec<Diag>,
}

impl Sink {
    fn report(&mut self, code: &'static str, at: Anchor, message: impl Into<String>) {
        self.diags.push(Diag::new(code, at, message));
    }
}

/// Checks every rule of the module's phase.
///
/// The error holds all violations of the first layer that has any.
pub fn verify(module: &Module) -> Result<(), Diags> {
    let layers: [fn(&Module, &mut Sink); 3] = [
        structure::check,
        types::check,
        if module.phase == Phase::Graph { graph::check } else { mem::check },
    ];
    for layer in layers {
        let mut sink = Sink { diags: Vec::new() };
        layer(module, &mut sink);
        if !sink.diags.is_empty() {
            return Err(Diags(sink.diags));
        }
    }
    Ok(())
}
