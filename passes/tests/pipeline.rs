//! Pipelines: what they show of their passes, and what a failure leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use memc_ir::{Module, Phase, parse, print};
use memc_passes::{Options, PROFILES, PassCx, PassDef, PassError, Pipeline, Step, header};

const MODULE: &str =
    "module @m graph\n\n%x = input : f32[4]\n%y = neg %x : f32[4]\nyield output %x as \"x\"\n";

fn cx() -> PassCx<'static> {
    PassCx::new(&PROFILES[0])
}

fn broken(m: &mut Module, _: &Options, _: &mut PassCx<'_>) -> Result<(), PassError> {
    m.order.clear();
    Err(PassError::Failed("it always fails".into()))
}

static BROKEN: PassDef = PassDef {
    name: "broken",
    summary: "fails",
    phases: (Phase::Graph, Phase::Graph),
    options: &[],
    run: broken,
};

/// The module before the failed pass, and the passes and the device that show the failure again.
#[test]
fn a_failed_pass_leaves_a_reproducer() {
    let mut m = parse(MODULE).unwrap();
    let mut pipeline = Pipeline::parse("dce").unwrap();
    pipeline.0.push(Step { pass: &BROKEN, options: Options::default() });
    let Err(PassError::Bug { text, reproducer }) = pipeline.run(&mut m, &mut cx()) else { panic!() };
    assert_eq!(text, "broken: it always fails");
    assert_eq!(header(&reproducer, "pass"), Some("broken"));
    assert_eq!(header(&reproducer, "device"), Some(&*PROFILES[0].name));
    assert_eq!(print(&parse(&reproducer).unwrap()), print(&m));
    assert!(!print(&m).contains("neg"), "dce ran and broken changed nothing");
}

#[test]
fn observers_see_every_pass_and_until_ends_early() {
    let pipeline = Pipeline::parse("fold,dce,cse").unwrap();
    let mut seen = Vec::new();
    let mut m = parse(MODULE).unwrap();
    let mut observe = |pass: &PassDef, m: &Module| seen.push((pass.name, m.order.len()));
    pipeline.clone().until("dce").unwrap().run_observed(&mut m, &mut cx(), &mut observe).unwrap();
    assert_eq!(seen, [("fold", 1), ("dce", 0)]);
    assert!(pipeline.until("raise").is_none());
}
