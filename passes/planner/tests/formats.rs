//! The page on the formats shows a problem and its decisions: both are read, and the one carries out the
//! other.

use memc_planner::{Decisions, evaluate, json};

const PAGE: &str = include_str!("../FORMATS.md");

/// The first block of a language.
fn block(language: &str) -> &'static str {
    let begin = PAGE.split_once(&format!("```{language}\n")).expect("the page has such a block").1;
    begin.split_once("```").expect("the block ends").0
}

#[test]
fn what_the_page_shows_is_read_and_carried_out() {
    let p = json::parse(block("json")).expect("the problem is well-formed");
    let decisions = Decisions::parse(block("text"), &p).expect("the decisions are well-formed");
    assert_eq!(decisions.print(&p), block("text"));
    let plan = evaluate(&p, decisions).expect("the decisions can be carried out");
    let e = plan.evaluation;
    assert!(e.dev_bytes <= p.device.memory_bytes, "{} bytes", e.dev_bytes);
    assert_eq!((e.swap_in_bytes, e.swap_out_bytes), (4096, 4096));
}
