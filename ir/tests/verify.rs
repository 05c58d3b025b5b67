//! Verifier rules that no text can break, because the parser hands out ids, places every op, and refuses a
//! name that is taken. The other rules have golden files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use memc_ir::{Anchor, Module, OpId, OpKind, Slot, SlotId, Space, ValueId, parse, verify};

fn module() -> Module {
    let text = "module @m graph\n%x = input : f32[4]\n%w = state {role = param, init = zeros} : f32[4]\n\
                %a = neg %x : f32[4]\n%b = exp %a : f32[4]\nyield output %b as \"b\"\ncarry %w <- %a\n";
    let m = parse(text).unwrap();
    verify(&m).unwrap();
    m
}

/// Code and place of every violation after `break_it`.
fn violations(break_it: impl Fn(&mut Module)) -> Vec<(&'static str, Anchor)> {
    let mut m = module();
    break_it(&mut m);
    verify(&m).unwrap_err().0.into_iter().map(|d| (d.code, d.at)).collect()
}

const FAR: u32 = 1000;

#[test]
fn s1_ids_out_of_range_are_reported_where_they_are_used() {
    let (a, b) = (OpId(0), OpId(1));
    assert_eq!(violations(|m| m.ops[b].operands[0] = ValueId(FAR)), [("S1", Anchor::Op(b))]);
    assert_eq!(violations(|m| m.ops[b].slots.push(SlotId(FAR))), [("S1", Anchor::Op(b))]);
    assert_eq!(violations(|m| m.ops[b].workspace = Some(SlotId(FAR))), [("S1", Anchor::Op(b))]);
    assert_eq!(violations(|m| m.ops[a].clone_of = Some(OpId(FAR))), [("S1", Anchor::Op(a))]);
    assert_eq!(violations(|m| m.order.push(OpId(FAR))), [("S1", Anchor::Module)]);
    assert_eq!(violations(|m| m.outputs[0].value = ValueId(FAR)), [("S1", Anchor::Output(0))]);
    let carry = |m: &mut Module| m.states.iter_mut().for_each(|(_, s)| s.next = Some(ValueId(FAR)));
    assert!(matches!(violations(carry)[..], [("S1", Anchor::Carry(_))]));
    let resident = |m: &mut Module| m.inputs.iter_mut().for_each(|(_, i)| i.slot = Some(SlotId(FAR)));
    assert!(matches!(violations(resident)[..], [("S1", Anchor::Value(_))]));
    let host_shadow = |of| {
        move |m: &mut Module| {
            let ty = m.values[ValueId(0)].ty.clone();
            let slot = m.slots.push(Slot { space: Space::Host, bytes: 64, offset: None });
            m.add_host_shadow("host_shadow", ty, of, slot);
        }
    };
    for of in [ValueId(FAR), module().value_named("a").unwrap()] {
        assert!(matches!(violations(host_shadow(of))[..], [("S1", Anchor::Value(_))]));
    }
}

#[test]
fn s1_definitions_point_back_at_their_values() {
    let (a, b) = (module().value_named("a").unwrap(), module().value_named("b").unwrap());
    let swapped = |m: &mut Module| m.values[a].def = m.values[b].def;
    assert_eq!(violations(swapped), [("S1", Anchor::Value(a))]);
}

#[test]
fn s2_an_op_is_in_the_order_once() {
    assert_eq!(violations(|m| m.order.push(OpId(1))), [("S2", Anchor::Op(OpId(1)))]);
}

#[test]
fn s4_names_are_unique_and_not_empty() {
    let (a, b) = (module().value_named("a").unwrap(), module().value_named("b").unwrap());
    assert_eq!(violations(|m| m.values[b].name = "a".into()), [("S4", Anchor::Value(b))]);
    assert_eq!(violations(|m| m.values[a].name = String::new()), [("S4", Anchor::Value(a))]);
}

#[test]
fn s5_outputs_and_next_states_are_computed_by_an_op_in_the_order() {
    let none = |m: &mut Module| m.order.clear();
    let found = violations(none);
    assert_eq!(found[0], ("S5", Anchor::Output(0)));
    assert!(matches!(found[1..], [("S5", Anchor::Carry(_))]), "{found:?}");
    let unplaced = |m: &mut Module| {
        let (x, out) =
            (m.value_named("x").unwrap(), m.new_op(OpKind::Exp {}, &[ValueId(0)], &[], "").unwrap());
        assert_eq!(m.ops[out].operands, [x]);
        m.outputs[0].value = m.ops[out].results[0];
    };
    assert_eq!(violations(unplaced), [("S5", Anchor::Output(0))]);
}
