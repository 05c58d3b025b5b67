//! The text form: printing is a fixpoint, and the verifier's verdicts on hand-written modules.

use memc_ir::{parse, print, verify};

const GRAPH: &str = include_str!("data/graph.mir");
const MEM: &str = include_str!("data/mem.mir");

#[test]
fn printing_a_parsed_graph_gives_the_same_text() {
    let module = parse(GRAPH).unwrap();
    verify(&module).unwrap();
    assert_eq!(print(&module), GRAPH);
}

#[test]
fn printing_a_parsed_mem_module_gives_the_same_text() {
    let module = parse(MEM).unwrap();
    verify(&module).unwrap();
    assert_eq!(print(&module), MEM);
}

#[test]
fn reading_a_freed_slot_is_reported_on_the_op() {
    let text = MEM.replace("free b1\n", "").replace("%h = exp", "free b1\n%h = exp");
    let diags = verify(&parse(&text).unwrap()).unwrap_err();
    assert_eq!(diags.0[0].code, "M2", "{diags}");
}
