//! Measured profiles: what is read back, what is refused, and what is learned.

#![allow(clippy::unwrap_used, reason = "tests")]

use memc_ir::{TensorType, parse_op, parse_type};
use memc_passes::{DeviceProfile, Family, PROFILES};

/// A profile with these measured ops.
fn profile(ops: &str) -> String {
    format!(
        r#"{{"format": "memc-profile/1", "name": "mine", "kernels": "plain", "processors": 2,
        "f32_flops_per_s": 1e9, "memory_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9, "h2d_bytes_per_s": 2e9,
        "duplex_total_bytes_per_s": 2.5e9, "kernel_latency_ns": 100, "copy_latency_ns": 10,
        "memory_bytes": 1000000, "reserve_bytes": 5, "ops": [{ops}]}}"#
    )
}

fn ns(p: &DeviceProfile, op: &str, attrs: &str, operands: &[&str]) -> u64 {
    let kind = parse_op(op, attrs).unwrap();
    let operands: Vec<TensorType> = operands.iter().map(|t| parse_type(t).unwrap()).collect();
    let operands: Vec<&TensorType> = operands.iter().collect();
    let results = kind.infer(&operands).unwrap();
    p.op_ns(&kind, &operands, &results.iter().collect::<Vec<_>>())
}

const MATMUL: &str = r#"{"op": "matmul", "operands": ["f32[8,8]", "f32[8,8]"], "time_ns": 777}"#;

#[test]
fn what_is_printed_reads_back_as_it_was() {
    let softmax = r#"{"op": "softmax", "attrs": "{axis = 1}", "operands": ["f16[4,9]"], "time_ns": 5000}"#;
    let measured = DeviceProfile::parse(&profile(&format!("{MATMUL}, {softmax}"))).unwrap();
    assert_eq!(DeviceProfile::parse(&measured.print()).unwrap(), measured);
    let slowed = profile("").replace("\"reserve", "\"compute_slowdown_under_copies\": 1.25, \"reserve");
    let slowed = DeviceProfile::parse(&slowed).unwrap();
    assert_eq!(slowed.compute_slowdown, Some(1.25));
    assert_eq!(DeviceProfile::parse(&slowed.print()).unwrap(), slowed);
    for built_in in PROFILES {
        assert_eq!(&DeviceProfile::parse(&built_in.print()).unwrap(), built_in);
    }
}

#[test]
fn a_measured_op_takes_what_was_measured_and_others_what_that_teaches() {
    let plain = DeviceProfile::parse(&profile("")).unwrap();
    let learned = DeviceProfile::parse(&profile(MATMUL)).unwrap();
    assert_eq!(ns(&plain, "matmul", "", &["f32[8,8]", "f32[8,8]"]), 100 + 1024);
    assert_eq!(ns(&learned, "matmul", "", &["f32[8,8]", "f32[8,8]"]), 777);
    // Attributes are part of an op.
    assert_ne!(ns(&learned, "matmul", "{trans_a}", &["f32[8,8]", "f32[8,8]"]), 777);
    let relu = ["f32[300]"];
    assert!(ns(&learned, "relu", "", &relu) < ns(&plain, "relu", "", &relu));
}

/// Of several times the one counts that was measured with the workspace that plans have: here 960 bytes for a
/// matrix product.
#[test]
fn an_op_takes_what_was_measured_with_its_workspace() {
    let with = |bytes: u64, ns: u64| {
        MATMUL.replace("\"time_ns\": 777", &format!("\"workspace_bytes\": {bytes}, \"time_ns\": {ns}"))
    };
    let time = |ops: &[String]| {
        let text = profile(&ops.join(", ")).replace("plain", "gpu");
        let profile = DeviceProfile::parse(&text).unwrap();
        assert_eq!(DeviceProfile::parse(&profile.print()).unwrap(), profile);
        ns(&profile, "matmul", "", &["f32[8,8]", "f32[8,8]"])
    };
    let [less, fits, more] = [with(0, 900), with(960, 700), with(961, 500)];
    assert_eq!(time(&[more.clone(), less.clone(), fits.clone()]), 700);
    assert_eq!(time(&[less.clone(), more.clone()]), 900);
    assert_eq!(time(&[with(5000, 400), more.clone()]), 500, "the nearest");
    assert_eq!(time(std::slice::from_ref(&more)), 500);
    // Of several times with one workspace the lower of the two in the middle.
    assert_eq!(time(&[fits.clone(), with(960, 800), less]), 700);
}

/// A byte takes one ns: three matrices 768, which the product is measured, or modelled, to take longer than.
#[test]
fn an_op_is_slowed_more_the_more_it_moves() {
    let text = profile(MATMUL).replace("\"reserve", "\"compute_slowdown_under_copies\": 1.25, \"reserve");
    let (alone, beside) = (profile(MATMUL), text);
    let slowdown = |text: &str, op: &str, operands: &[&str]| {
        let kind = parse_op(op, "").unwrap();
        let operands: Vec<TensorType> = operands.iter().map(|t| parse_type(t).unwrap()).collect();
        let operands: Vec<&TensorType> = operands.iter().collect();
        let results = kind.infer(&operands).unwrap();
        let results: Vec<&TensorType> = results.iter().collect();
        DeviceProfile::parse(text).unwrap().slowdown(&kind, &operands, &results)
    };
    let matmul = ["f32[8,8]", "f32[8,8]"];
    assert_eq!(slowdown(&alone, "matmul", &matmul), 0);
    let parts = |of: f64| (2.0 * 0.25 * 1024.0 * (of + (1.0 - of) / 3.0)).round() as u32;
    assert_eq!(slowdown(&beside, "matmul", &matmul), parts(768.0 / 777.0));
    let plain = beside.replace(MATMUL, "");
    assert_eq!(slowdown(&plain, "matmul", &matmul), parts(768.0 / 1124.0));
    assert_eq!(slowdown(&plain, "neg", &["f32[100]"]), parts(800.0 / 900.0));
}

#[test]
fn a_family_is_corrected_by_what_its_own_ops_show() {
    // Sums take three times what the roofline says, element-wise ops half of it.
    let row = |n: u64| {
        let bytes = 4 * n;
        let sum = 3 * (100 + bytes + 4);
        let relu = (100 + 2 * bytes) / 2;
        format!(
            r#"{{"op": "reduce_sum", "attrs": "{{axes = [0]}}", "operands": ["f32[{n}]"], "time_ns": {sum}}},
            {{"op": "relu", "operands": ["f32[{n}]"], "time_ns": {relu}}}"#
        )
    };
    let rows: Vec<String> = (1..=40).map(|i| row(i * 500)).collect();
    let p = DeviceProfile::parse(&profile(&rows.join(","))).unwrap();
    let sum = ns(&p, "reduce_sum", "{axes = [0]}", &["f32[7777]"]) as f64 / (3.0 * (104.0 + 4.0 * 7777.0));
    let relu = ns(&p, "relu", "", &["f32[7777]"]) as f64 / (0.5 * (100.0 + 8.0 * 7777.0));
    assert!((0.93..1.07).contains(&sum) && (0.93..1.07).contains(&relu), "{sum} {relu}");
    let judged = p.judge().unwrap();
    assert!(judged.all.unwrap().log_time.unwrap() > 0.98);
    assert!(judged.all.unwrap().plain_log_time.unwrap() < judged.all.unwrap().log_time.unwrap());
    assert_eq!(
        judged.families.iter().map(|(f, q)| (*f, q.ops)).collect::<Vec<_>>(),
        [(Family::ElementWise, 40), (Family::Reduce, 40)]
    );
    assert!(judged.convolutions.is_none());
}

#[test]
fn of_several_times_of_an_op_the_middle_one_counts() {
    let timed = |ns: u64| DeviceProfile::parse(&profile(&MATMUL.replace("777", &ns.to_string()))).unwrap();
    let mut p = timed(900);
    p.merge(&[timed(100), timed(300)]);
    assert_eq!(ns(&p, "matmul", "", &["f32[8,8]", "f32[8,8]"]), 300);
}

#[test]
fn wrong_files_are_refused_with_the_entry_that_is_wrong() {
    let good = profile(MATMUL);
    assert!(DeviceProfile::parse(&good).is_ok());
    let cases = [
        ("memc-profile/1", "memc-profile/2", "`format` must be \"memc-profile/1\""),
        ("\"plain\"", "\"fast\"", "`kernels` must be \"plain\" or \"gpu\""),
        ("\"mine\"", "\"\"", "`name` must be a text"),
        ("\"mine\"", "\"a\\u001b[2J\"", "`name` must be a text without control characters"),
        (
            "\"reserve_bytes\": 5",
            "\"reserve_bytes\": 1000000",
            "`reserve_bytes` must be less than `memory_bytes`",
        ),
        ("\"processors\": 2", "\"processors\": 0", "`processors` must be"),
        ("\"f32_flops_per_s\": 1e9", "\"f32_flops_per_s\": 0", "`f32_flops_per_s` must be a positive"),
        ("\"f32_flops_per_s\": 1e9,", "", "`f32_flops_per_s` is missing"),
        ("\"h2d_bytes_per_s\": 2e9", "\"h2d_bytes_per_s\": -1", "`h2d_bytes_per_s` must be"),
        ("\"duplex_total_bytes_per_s\": 2.5e9", "\"duplex_total_bytes_per_s\": 0", "positive where both"),
        ("\"copy_latency_ns\": 10", "\"copy_latency_ns\": 1.5", "`copy_latency_ns` must be whole"),
        ("\"copy_latency_ns\": 10", "\"copy_latency_ns\": 10, \"copy_ns\": 3", "unknown entry `copy_ns`"),
        (
            "\"reserve_bytes\": 5",
            "\"reserve_bytes\": 5, \"compute_slowdown_under_copies\": 0.5",
            "`compute_slowdown_under_copies` must be a factor from 1",
        ),
        ("\"matmul\"", "\"matmuls\"", "ops[0]: unknown op `matmuls`"),
        ("\"time_ns\": 777", "\"time_ns\": 0", "ops[0]: `time_ns` must be at least 1"),
        ("\"time_ns\": 777", "\"time\": 7", "ops[0]: unknown entry `time`"),
        ("\"f32[8,8]\", \"f32", "\"f32[8,9]\", \"f32", "ops[0]: "),
        ("\"f32[8,8]\", \"f32", "\"f33[8,9]\", \"f32", "ops[0]: `f33[8,9]`"),
        ("\"f32[8,8]\", \"f32", "3, \"f32", "ops[0]: `operands` must be a list of types"),
        ("[{", "[{{", "not JSON"),
        ("[{", "[7, {", "ops[0]: must be an object"),
    ];
    for (from, to, said) in cases {
        assert!(good.contains(from), "{from}");
        let error = DeviceProfile::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
    assert!(
        DeviceProfile::parse("[]").unwrap_err().to_string().contains("the profile of one device is needed")
    );
    assert!(DeviceProfile::parse("7").unwrap_err().to_string().contains("must be an object"));
}

#[test]
fn a_profile_without_a_link_swaps_nothing() {
    let text = profile("").replace("\"d2h_bytes_per_s\": 1e9", "\"d2h_bytes_per_s\": 0");
    let p = DeviceProfile::parse(&text).unwrap();
    assert_eq!((p.can_swap(), p.d2h_ns(8), p.h2d_ns(8)), (false, None, Some(14)));
}
