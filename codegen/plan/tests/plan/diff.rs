//! Comparison of plans.

use arbtest::arbtest;
use memc_ir::parse_op;
use memc_plan::{Action, Kernel, Plan, Tuning};

use crate::{example, generate, tuning};

/// A kernel without operands and results.
fn kernel(op: &str) -> Kernel {
    let op = parse_op(op, "").expect("an op of the table");
    Kernel { op, operands: Vec::new(), results: Vec::new(), workspace_bytes: 0 }
}

/// All differences, those of the header first.
fn diff(old: &Plan, new: &Plan) -> Vec<String> {
    let all = memc_plan::diff(old, new);
    assert_eq!(all.is_empty(), all.header.is_empty() && all.details.is_empty());
    [all.header, all.details].concat()
}

fn changed(change: impl FnOnce(&mut Plan)) -> Vec<String> {
    let old = example().0;
    let mut new = old.clone();
    change(&mut new);
    diff(&old, &new)
}

/// There are differences exactly where plans differ.
#[test]
fn equal_plans_have_no_differences() {
    assert_eq!(changed(|_| ()), [] as [&str; 0]);
    arbtest(|u| {
        let (a, b) = (generate::any(u)?, generate::any(u)?);
        assert_eq!(diff(&a, &a), [] as [&str; 0]);
        assert_eq!(diff(&a, &b).is_empty(), a == b);
        Ok(())
    })
    .budget_ms(500);
}

/// A removed wait is one line, though the numbers of all later commands change.
#[test]
fn a_removed_command_is_one_line() {
    let lines = changed(|plan| {
        plan.body.remove(5);
    });
    assert_eq!(lines, ["- body 5 compute wait e0"]);
}

/// A new kernel in front of the table is one line, though it renumbers all launches.
#[test]
fn a_new_kernel_is_one_line() {
    let lines = changed(|plan| {
        plan.kernels.insert(0, kernel("neg"));
        for command in &mut plan.body {
            if let Action::Launch { kernel, .. } = &mut command.action {
                *kernel += 1;
            }
        }
    });
    assert_eq!(lines, ["+ kernel neg() -> ()"]);
}

/// Header, tables, commands and labels each show what changed.
#[test]
fn each_part_is_compared() {
    let lines = changed(|plan| {
        plan.meta.planner = "genetic".to_owned();
        plan.meta.budget_bytes = 9000;
        plan.meta.options.clear();
        plan.meta.claims.step_ns = 400;
        plan.states[0].resident.offset = 256;
        plan.body[2].label.clear();
        if let Action::Launch { kernel, .. } = &mut plan.body[6].action {
            *kernel = 2;
        }
    });
    let expected = [
        "~ planner \"default\" -> \"genetic\"".to_owned(),
        "- option \"accumulate\" \"1\"".to_owned(),
        "~ budget 8192 -> 9000".to_owned(),
        "~ claim step_ns 420 -> 400".to_owned(),
        {
            let old = example().0.states[0].to_string();
            format!("~ state {old} -> {}", old.replace("dev+0:", "dev+256:"))
        },
        "~ body 2 label \"%x\" -> \"\"".to_owned(),
        "- body 6 compute launch k0 r dev+0:256 w dev+512:256 ; relu(f32[8,8]) -> \
         (f32[8,8]) \"%h\""
            .to_owned(),
        "+ body 6 compute launch k2 r dev+0:256 w dev+512:256 ; sgd(f32[8,8], f32[8,8], f32[]) -> \
         (f32[8,8]) \"%h\""
            .to_owned(),
    ];
    assert_eq!(lines, expected);
}

/// The order of commands counts, and so does that of tables, though as one line.
#[test]
fn order_alone_is_a_difference() {
    let lines = changed(|plan| plan.inputs.swap(0, 1));
    assert_eq!(lines, ["- body 0 host write i0 ; x", "+ body 1 host write i1 ; x"]);
    let lines = changed(|plan| plan.kernels.push(plan.kernels[0].clone()));
    assert_eq!(lines, ["+ kernel relu(f32[8,8]) -> (f32[8,8])"]);
    let mut old = example().0;
    old.kernels.push(kernel("exp"));
    old.kernels.push(kernel("neg"));
    let mut new = old.clone();
    new.kernels.swap(3, 4);
    assert_eq!(
        diff(&old, &new),
        ["~ only the order of options, kernels, states, inputs, outputs or tuned kernels differs"]
    );
}

/// A tuning section is shown by its kernels; one algorithm that changed is two lines.
#[test]
fn tuning_is_compared_by_kernel() {
    let lines = changed(|plan| plan.tuning = Some(tuning()));
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert_eq!(lines[0], "+ tuning on \"A GPU\" sm_90 rounding exact");
    assert_eq!(lines[1], "+ tuning library \"cuBLASLt\" \"13.1.0\"");
    assert!(lines[2].starts_with("+ tuning of matmul(f32[8,8], f32[8,8]) {trans_a} -> "), "{lines:#?}");
    let (mut old, mut new) = (example().0, example().0);
    (old.tuning, new.tuning) = (Some(tuning()), Some(Tuning { rounding: "tf32".to_owned(), ..tuning() }));
    let expected =
        ["- tuning on \"A GPU\" sm_90 rounding exact", "+ tuning on \"A GPU\" sm_90 rounding tf32"];
    assert_eq!(diff(&old, &new), expected);
}
