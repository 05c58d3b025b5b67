//! The parser of the text form.

use memc_plan::{Action, Plan, PlanError, Queue, Slice, text};

/// The error for a text, as `line: message`.
fn error(text: &str) -> String {
    match text::parse(text) {
        Err(PlanError::Text { line, what }) => format!("{line}: {what}"),
        other => format!("not an error of the text: {other:?}"),
    }
}

/// Most of a plan may be left out, and comments and blank lines do not count.
#[test]
fn short_plans_parse() {
    let text = "; what it tests\nplan 1\n\n  body { \r\n compute launch k3 w host+1:2 ; %h ; not %g\n\n}\r\n";
    let plan = text::parse(text).unwrap();
    let writes = vec![Slice::host(1, 2)];
    let action = Action::Launch { kernel: 3, reads: vec![], writes, workspace: None };
    assert_eq!(plan.body.len(), 1);
    assert_eq!(plan.body[0].action, action);
    assert_eq!(plan.body[0].queue, Queue::COMPUTE);
    assert_eq!(plan.body[0].label, "%h ; not %g");
    assert_eq!(plan.meta.source_hash, memc_plan::hash(b""));
}

/// The source text is taken as it stands, and its hash follows from it.
#[test]
fn source_text_is_kept() {
    let plan = text::parse("plan 1\nsource text\n  | module @m\n  |\n  |   %a ; \"x\n  |\n").unwrap();
    let mut expected = Plan::default();
    expected.meta.set_source("module @m\n\n  %a ; \"x\n");
    assert_eq!(plan, expected);
}

/// Errors name the line and what was expected there.
#[test]
fn errors_name_the_line() {
    let cases = [
        ("", "1: the text ends before its first line, `plan 1`"),
        ("seed 1\n", "1: expected `plan 1`"),
        ("plan one", "1: `one` is not a version"),
        ("plan 1\nseed 1\nseed 2", "3: a second `seed`"),
        ("plan 1\nseed -1", "2: expected the seed, found `-1`"),
        ("plan 1\nseed 1 2", "2: unexpected `2`"),
        ("plan 1\nbogus", "2: unknown keyword `bogus`"),
        ("plan 1\nclaim speed 3", "2: unknown claim `speed`"),
        ("plan 1\nkernel k1 = f() -> ()", "2: expected k0, found k1; tables are numbered in order"),
        ("plan 1\nkernel k0 = f(a b) -> ()", "2: expected `,` or `)`, found `b`"),
        ("plan 1\nkernel k0 = f(f32[2) -> ()", "2: a bracket is not closed"),
        ("plan 1\nmodel \"x", "2: a quoted string is not closed"),
        ("plan 1\nmodel \"\\q\"", "2: unknown escape in a quoted string"),
        ("plan 1\nmodel \"\\u{110000}\"", "2: `\\u` must be followed by a code point such as {1f}"),
        ("plan 1\nmodel größe", "2: unexpected `ö`"),
        ("plan 1\n}", "2: `}` closes no section"),
        ("plan 1\nbody {\n", "3: a section is not closed; end it with `}`"),
        ("plan 1\nbody {\n}\nbody {\n}", "4: a second `body`"),
        ("plan 1\nbody {\n gpu wait e0", "3: `gpu` is not one of compute, d2h, h2d, cpu, host"),
        ("plan 1\nbody {\n compute jump e0", "3: unknown action `jump`"),
        ("plan 1\nbody {\n compute wait k0", "3: expected a reference such as e0, found `k0`"),
        ("plan 1\nbody {\n compute free dev:0", "3: expected a slice such as dev+0:256, found `dev:0`"),
        ("plan 1\nbody {\n compute free", "3: expected a slice such as dev+0:256, found the end of the line"),
        ("plan 1\nbody {\n d2h copy dev+0:1 host+0:1", "3: expected `->`, found `host+0:1`"),
        (
            "plan 1\nbody {\n compute launch k0 ws dev+0:1 ws dev+0:1",
            "3: expected `r`, `w` or one `ws`, each with a slice",
        ),
        (
            "plan 1\nbody {\n 1 compute wait e0",
            "3: command 1 is number 0 of its section; correct it or leave it out",
        ),
        (
            "plan 1\nsource blake3:12",
            "2: expected a hash such as blake3:… with 64 hexadecimal digits, found `blake3:12`",
        ),
        ("plan 1\ninput i0 x f32[] host+0:4 lr", "2: expected `data`, `rate` or `step`, found `lr`"),
        ("plan 1\ntuning gpu sm_90 rounding exact", "2: a tuning section needs `plan 2` in the first line"),
        (
            "plan 2\ntuned k0 convolution 1 math 0 workspace 0 ns 1 default 1",
            "2: a `tuning` line comes first",
        ),
        (
            "plan 2\ntuning gpu sm_90 rounding exact\ntuned k0 product 12",
            "3: expected an algorithm of 128 hexadecimal digits, found `12`",
        ),
        ("plan 1\nbucket\nplan 1", "2: a bucket needs `plan 3` in the first line of the text"),
        ("plan 2\n\nbucket", "3: a bucket needs `plan 3` in the first line of the text"),
        ("plan 3\nseed 1", "2: the text ends without a bucket, and its first line is `plan 3`"),
        ("plan 3\nbucket\nseed 1", "3: expected `plan 1`"),
        ("plan 3\nbucket", "2: the text ends before its first line, `plan 1`"),
        ("plan 3\nbucket\nbucket", "3: expected `plan 1`"),
        ("plan 3\nbucket\nplan 3", "3: a bucket has no buckets; it begins with `plan 1`"),
        ("plan 3\nbody {\nbucket", "3: a section is not closed; end it with `}`"),
        ("plan 3\nbucket\nplan 1\nbody {\nbucket", "5: a section is not closed; end it with `}`"),
        ("plan 3\nbucket\nplan 1\nbucket\nplan 1\nseed 1\nseed 2", "7: a second `seed`"),
        ("plan 3\nbucket x", "2: unknown keyword `bucket`"),
        ("plan 1\nkernel k0 = mull() -> ()", "2: kernel k0 `mull`: unknown op `mull`"),
        (
            "plan 1\nkernel k0 = relu(f32[4]) {alpha = 0.1} -> (f32[4])",
            "2: kernel k0 `relu`: relu has no attribute `alpha`",
        ),
        (
            "plan 1\nkernel k0 = fused(f32[4]) \"{body = \\\"neg(x4294967296)\\\", outs = [0]}\" -> (f32[4])",
            "2: kernel k0 `fused`: attribute `body` of fused has a bad step t0: `x4294967296` is neither an \
             operand \
             `x0` nor a step `t0`",
        ),
        (
            "plan 1\nkernel k0 = fused() \"{body = \\\"neg(x0); fused(t0) {body = \\\\\\\"neg(x0)\\\\\\\", \
             outs = [0]}\\\", outs = [1]}\" -> ()",
            "2: kernel k0 `fused`: attribute `body` of fused has a bad step t1: a step cannot be fused \
             itself",
        ),
        (
            "plan 1\nkernel k0 = fused() \"{body = \\\"neg(x0)\\\", outs = [18446744073709551615]}\" -> ()",
            "2: kernel k0 `fused`: `18446744073709551615` is not a number that fits",
        ),
        (
            "plan 1\nkernel k0 = relu(f64[4]) -> (f32[4])",
            "2: type `f64[4]`: `f64` is not an element type (f32, f16, bf16, i32, i64, i8, u8 or bool)",
        ),
        (
            "plan 1\nstate s0 x weight f32[] dev+0:4 zeros",
            "2: role `weight` is not one of param, frozen, optimizer, gradient, buffer, const",
        ),
        (
            "plan 1\noutput o0 x f32[] host+0:4 result",
            "2: role `result` is not one of loss, gradient, output",
        ),
        ("plan 1\nstate s0 x p f32[] dev+0:4 ones", "2: expected `zeros`, `data` or `random`, found `ones`"),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), expected, "{text}");
    }
}
