//! G rules: contents that the graph phase must not have.

use super::Sink;
use crate::diag::Anchor;
use crate::module::{Code, Module};

pub(super) fn check(m: &Module, sink: &mut Sink) {
    if let Some(slot) = m.slots.ids().next() {
        sink.report("G1", Anchor::Slot(slot), "a slot in the graph phase");
    }
    for &id in &m.order {
        let op = &m.ops[id];
        let memory = !matches!(op.code, Code::Compute(_))
            || !op.slots.is_empty()
            || op.workspace.is_some()
            || op.on_host
            || op.clone_of.is_some()
            || !op.waits.is_empty();
        if memory {
            sink.report("G1", Anchor::Op(id), "a memory op or annotation in the graph phase");
        }
    }
    for (v, _) in m.resident_slots().filter(|(_, slot)| slot.is_some()) {
        sink.report("G1", Anchor::Value(v), "a slot in the graph phase");
    }
}
