//! The rules that every plan in a file satisfies.

use memc_ir::Turn;
use memc_plan::{Action, Command, Feed, Init, Plan, Queue, Slice, Space, TunedKernel, Tuning};

use crate::{example, tuning};

/// The plan's tuning section, which it now has.
fn section(plan: &mut Plan) -> &mut Tuning {
    plan.tuning.get_or_insert_with(tuning)
}

/// The kernels of this section.
fn tuned(plan: &mut Plan) -> &mut Vec<TunedKernel> {
    &mut section(plan).kernels
}

/// Each rule rejects the example with one thing changed, and says what is wrong.
#[test]
fn each_rule_rejects() {
    type Case = (fn(&mut Plan), &'static str);
    let cases: [Case; 37] = [
        (|p| p.meta.dev_bytes = 1011, "dev+1008:4 is not within the dev arena of 1011 bytes"),
        (|p| p.states[0].resident.offset = u64::MAX, "state `w`: dev+18446744073709551615:256 is not within"),
        (|p| p.inputs[0].slot.bytes = 1 << 60, "input `x`: host+0:1152921504606846976 is not within"),
        (|p| p.inputs[0].slot.space = Space::Dev, "input `x`: the staging slot is not in the host arena"),
        (|p| p.outputs[0].slot.offset = 289, "output `y`: host+289:256 is not within"),
        (
            |p| p.inputs[1].feed = Feed::LearningRate { default: f32::NAN, turn: Turn::default() },
            "input `lr`: the default learning rate",
        ),
        (
            |p| p.inputs[1].feed = Feed::Data { source: String::new(), micro: 0, low: 3, high: 3 },
            "input `lr`: the range 3..3 is empty",
        ),
        (|p| p.states.push(p.states[0].clone()), "state `w`: two states have this name"),
        (
            |p| p.states[0].resident.bytes = 255,
            "state `w`: 256 bytes of initial data for a resident slot of 255 bytes",
        ),
        (
            |p| p.states[0].init = Init::Data { offset: 64, bytes: 256, hash: [0; 32] },
            "state `w`: data at offset 64; its place in the data section is 0",
        ),
        (|p| p.meta.source.push('x'), "source: the hash is not that of the text"),
        (|p| p.events = 2, "body command 10 `d2h record e2`: no event 2; the plan has 2"),
        (|p| p.events = 21, "events: 21 declared for 20 commands"),
        (|p| p.events = u32::MAX, "events: 4294967295 declared for 20 commands"),
        (|p| p.kernels.truncate(2), "body command 13 `compute launch k2 "),
        (|p| p.prologue[0].action = Action::Load { state: 1 }, "`host load s1`: no state 1; the plan has 1"),
        (|p| p.inputs.truncate(1), "body command 1 `host write i1`: no input 1; the plan has 1"),
        (|p| p.outputs.clear(), "body command 15 `host read o0`: no output 0; the plan has 0"),
        (|p| p.kernels[0].operands.clear(), "1 reads and 1 writes for 0 operands and 1 results"),
        (|p| p.kernels[1].workspace_bytes = 257, "workspace of 256 bytes where 257 are needed"),
        (|p| p.kernels[0].workspace_bytes = 1, "workspace of 0 bytes where 1 are needed"),
        (
            |p| p.body[2].action = Action::Copy { src: Slice::host(0, 8), dst: Slice::dev(0, 9) },
            "body command 2 `h2d copy host+0:8 -> dev+0:9`: copies 8 bytes into 9",
        ),
        (|p| p.body[0].queue = Queue::H2D, "`h2d write i0`: `write` belongs on the host"),
        (|p| p.body[4].queue = Queue::Host, "`host record e0`: `record` cannot run on the host"),
        (
            |p| p.body.push(p.prologue[0].clone()),
            "body command 16 `host load s0`: loads belong in the prologue",
        ),
        (
            |p| p.prologue.push(p.epilogue[2].clone()),
            "prologue command 1 `host store s0`: stores belong in the",
        ),
        (|p| tuned(p).clear(), "tuning: it lists no kernel"),
        (|p| tuned(p)[0].kernel = 3, "tuning: no kernel 3; the plan has 3"),
        (
            |p| tuned(p)[0].workspace_bytes = 257,
            "tuning: kernel 1 takes 257 bytes of workspace where a launch has 256",
        ),
        (|p| tuned(p)[0].kernel = 0, "tuning: kernel 0 takes 256 bytes of workspace where a launch has 0"),
        (
            |p| {
                let again = tuned(p)[0].clone();
                tuned(p).push(again);
            },
            "tuning: kernel 1 is out of order or listed twice",
        ),
        (
            |p| {
                p.kernels.push(p.kernels[1].clone());
                tuned(p)[0].kernel = 3;
            },
            "tuning: kernel 3 is never launched",
        ),
        (
            |p| section(p).device.push('\u{1b}'),
            "tuning: \"A GPU\\u{1b}\" is no text without control characters",
        ),
        (|p| section(p).arch.push('\n'), "tuning: \"sm_90\\n\" is no text without control characters"),
        (|p| section(p).rounding.push('\0'), "tuning: \"exact\\0\" is no text without control characters"),
        (|p| section(p).libraries[0].0.push('\r'), "tuning: \"cuBLASLt\\r\" is no text without control"),
        (
            |p| section(p).libraries[0].1.push('\u{9b}'),
            "tuning: \"13.1.0\\u{9b}\" is no text without control",
        ),
    ];
    let mut plan = example().0;
    plan.validate().unwrap();
    tuned(&mut plan);
    plan.validate().unwrap();
    for (change, expected) in cases {
        let mut plan = example().0;
        change(&mut plan);
        let error = plan.validate().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
}

/// Slices overlap where they share a byte of one arena, also at the end of the range.
#[test]
fn overlap_is_half_open() {
    let overlaps = |a: Slice, b: Slice| {
        assert_eq!(a.overlaps(&b), b.overlaps(&a));
        a.overlaps(&b)
    };
    assert!(overlaps(Slice::dev(0, 2), Slice::dev(1, 1)));
    assert!(!overlaps(Slice::dev(0, 2), Slice::dev(2, 1)));
    assert!(!overlaps(Slice::dev(0, 2), Slice::host(0, 2)));
    assert!(!overlaps(Slice::dev(0, 2), Slice::dev(1, 0)));
    assert!(overlaps(Slice::dev(u64::MAX - 1, 5), Slice::dev(0, u64::MAX)));
    assert_eq!(Slice::dev(u64::MAX, 1).end(), None);
}

/// Iteration, slices and counts see every command of the example.
#[test]
fn counts_see_every_command() {
    let plan = example().0;
    let counts = plan.counts(memc_plan::Section::Body);
    assert_eq!((counts.commands, counts.launches), (16, 3));
    assert_eq!((counts.copies_out, counts.bytes_out, counts.copies_in, counts.bytes_in), (1, 256, 2, 260));
    assert_eq!((counts.records, counts.waits), (3, 3));
    assert_eq!(plan.commands().count(), 20);
    let slices = |command: &Command| command.action.slices().copied().collect::<Vec<_>>();
    let expected = [Slice::dev(256, 256), Slice::dev(0, 256), Slice::dev(256, 256), Slice::dev(752, 256)];
    assert_eq!(slices(&plan.body[11]), expected);
    assert_eq!(slices(&plan.body[9]), [Slice::dev(512, 256), Slice::host(256, 256)]);
    assert!(slices(&plan.body[0]).is_empty());
}
